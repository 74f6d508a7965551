//! Snapshots of a sandbox with much on its disk, forks of it, checkpoints.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use hyper::Method;
use serde_json::{Value, json};

use super::Bench;
use crate::http::Connection;
use crate::report::Report;
use crate::stats::Samples;

/// Rounds of each measurement.
const ROUNDS: usize = 20;
/// Content of the disk: files of 50 KiB, 1 GB together, in directories of a hundred.
const FILES: usize = 20_000;
const DIRTY: &str = "i=0; while [ $i -lt 200 ]; do mkdir -p /data/$i; j=0; while [ $j -lt 100 ]; do \
    head -c 51200 /dev/urandom > /data/$i/$j; j=$((j+1)); done; i=$((i+1)); done";
/// Dirties a thousand of them again.
const AGAIN: &str = "i=0; while [ $i -lt 10 ]; do for f in /data/$i/*; do head -c 51200 /dev/urandom > $f; done; \
    i=$((i+1)); done";
const MEMORY_BYTES: u64 = 4 << 30;

pub(super) async fn snapshots(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    report.section(&format!("Snapshot and fork with 1 GB in {FILES} files"));
    let mut connection = bench.server.address.connect().await?;
    let create = json!({ "image": "host", "resources": { "memory_bytes": MEMORY_BYTES } });
    let made = connection.json(Method::POST, "/v1/sandboxes", &create).await?;
    let sandbox = text(&made, "id")?;
    let start = Instant::now();
    shell(&mut connection, &sandbox, DIRTY).await?;
    report.line(&format!("- written inside in {:.1} s", start.elapsed().as_secs_f64()));

    let (first, pause) = snapshot(&mut connection, &sandbox).await?;
    let ms = |took: Duration| format!("{:.1} ms", took.as_secs_f64() * 1e3);
    report.line(&format!(
        "- the first snapshot, all of it unwritten: {} in all, **pause {}**",
        ms(first),
        ms(pause)
    ));
    report.table();
    let [mut clean, mut clean_pause, mut dirty, mut dirty_pause, mut fork, mut done] =
        [(); 6].map(|()| Samples::default());
    for _ in 0..ROUNDS {
        let (took, pause) = snapshot(&mut connection, &sandbox).await?;
        clean.push(took);
        clean_pause.push(pause);
        shell(&mut connection, &sandbox, AGAIN).await?;
        let (took, pause) = snapshot(&mut connection, &sandbox).await?;
        dirty.push(took);
        dirty_pause.push(pause);
        let start = Instant::now();
        let path = format!("/v1/sandboxes/{sandbox}/fork");
        let forked = connection.json(Method::POST, &path, &json!({ "count": 1 })).await?;
        fork.push(start.elapsed());
        let child = text(&forked["results"][0]["sandbox"], "id").context("the fork failed")?;
        connection.run_true(&child).await?;
        done.push(start.elapsed());
        connection.delete(&child).await?;
    }
    report.row("snapshot, nothing unwritten", &clean, None);
    report.row("its pause", &clean_pause, None);
    report.row("snapshot, 50 MB in 1,000 files unwritten", &dirty, None);
    report.row("its **pause**", &dirty_pause, None);
    report.row("**fork**", &fork, None);
    report.row("fork to `true` done in the child", &done, None);
    connection.delete(&sandbox).await
}

/// Takes a snapshot and removes it; gives how long taking it took, and how long the sandbox could not write.
async fn snapshot(connection: &mut Connection, sandbox: &str) -> Result<(Duration, Duration)> {
    let start = Instant::now();
    let path = format!("/v1/sandboxes/{sandbox}/snapshots");
    let made = connection.json(Method::POST, &path, &json!({})).await?;
    let took = start.elapsed();
    if made["method"] != "clone" {
        bail!("this host cannot clone files: {made}");
    }
    let pause = made["paused_us"].as_u64().context("the snapshot does not say its pause")?;
    let id = text(&made, "id")?;
    connection.json(Method::DELETE, &format!("/v1/snapshots/{id}"), &Value::Null).await?;
    Ok((took, Duration::from_micros(pause)))
}

async fn shell(connection: &mut Connection, sandbox: &str, script: &str) -> Result<()> {
    let path = format!("/v1/sandboxes/{sandbox}/execs");
    let started = connection.json(Method::POST, &path, &json!({ "shell": script })).await?;
    let exec = text(&started["exec"], "id").or_else(|_| text(&started, "id"))?;
    loop {
        let path = format!("/v1/sandboxes/{sandbox}/execs/{exec}?wait_ms=60000");
        let seen = connection.json(Method::GET, &path, &Value::Null).await?;
        let seen = if seen["exec"].is_object() { &seen["exec"] } else { &seen };
        if seen["state"] == "exited" {
            if seen["exit"]["code"] != 0 {
                bail!("the script failed: {seen}");
            }
            return Ok(());
        }
    }
}

fn text(value: &Value, name: &str) -> Result<String> {
    Ok(value[name].as_str().with_context(|| format!("the answer has no {name}: {value}"))?.to_owned())
}
