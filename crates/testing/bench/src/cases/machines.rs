//! Virtual machines: restored one by one, claimed from a pool, put to disk with their memory, forked, idle.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use futures::future::try_join_all;
use hyper::Method;
use serde_json::{Value, json};

use super::{Bench, IMAGE};
use crate::http::Connection;
use crate::report::Report;
use crate::server::{cpu_of_machines, kib};
use crate::stats::{Samples, millis};

/// Creations, and claims, that are measured.
const ROUNDS: usize = 20;
/// Pauses with memory.
const PAUSES: usize = 5;
/// Memory of the machine that is paused, and the part of it that is filled with random bytes.
const MEMORY_BYTES: u64 = 512 << 20;
const FILLED_BYTES: usize = 100 << 20;
/// Children of a fork, and idle machines.
const FORKS: usize = 10;
const FORK_ROUNDS: usize = 3;
const IDLE: usize = 200;
/// Clients that make the idle ones.
const CLIENTS: usize = 4;
/// How long the idle ones are watched, once they have come to rest.
const REST: Duration = Duration::from_secs(5);
const WATCH: Duration = Duration::from_secs(10);
/// How long a machine may take to be prepared for the image and size that is measured.
const PREPARATION: Duration = Duration::from_secs(10);
const POOL: &str = "bench-machine";
const FILL_DEADLINE: Duration = Duration::from_secs(120);
const FILL_POLL: Duration = Duration::from_millis(20);

fn machine(memory_bytes: u64) -> Value {
    let resources = json!({ "cpu_millis": 1000, "memory_bytes": memory_bytes, "disk_bytes": 1_u64 << 30 });
    json!({ "image": IMAGE, "isolation": "microvm", "resources": resources })
}

async fn make(connection: &mut Connection, what: &Value) -> Result<String> {
    let made = connection.json(Method::POST, "/v1/sandboxes", what).await?;
    made["id"].as_str().map(str::to_owned).context("the answer has no id")
}

pub(super) async fn machines(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    if !bench.machines {
        report.line("\nVirtual machines: left out, there is no `--microvm-dir`.");
        return Ok(());
    }
    let mut connection = bench.server.address.connect().await?;
    let info = connection.json(Method::GET, "/v1/info", &Value::Null).await?;
    report.section(&format!("Virtual machines ({})", info["accelerator"].as_str().unwrap_or("none")));
    let small = machine(128 << 20);
    let start = Instant::now();
    let first = make(&mut connection, &small).await?;
    report.line(&format!(
        "- the first of its size, with what that boots and saves: {:.1} s",
        start.elapsed().as_secs_f64()
    ));
    connection.delete(&first).await?;
    tokio::time::sleep(PREPARATION).await;
    report.table();
    restored(&mut connection, &small, report).await?;
    claimed(&mut connection, report).await?;
    paused(&mut connection, report).await?;
    forked(&mut connection, &small, report).await?;
    idle(bench, &small, report).await
}

async fn restored(connection: &mut Connection, what: &Value, report: &mut Report) -> Result<()> {
    let [mut creates, mut done, mut deletes, mut again] = [(); 4].map(|()| Samples::default());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let sandbox = make(connection, what).await?;
        creates.push(start.elapsed());
        connection.run_true(&sandbox).await?;
        done.push(start.elapsed());
        let start = Instant::now();
        connection.run_true(&sandbox).await?;
        again.push(start.elapsed());
        let start = Instant::now();
        connection.delete(&sandbox).await?;
        deletes.push(start.elapsed());
    }
    report.row("create (restored)", &creates, None);
    report.row("**create to `true` done**", &done, None);
    report.row("`true` again", &again, None);
    report.row("delete", &deletes, None);
    Ok(())
}

async fn claimed(connection: &mut Connection, report: &mut Report) -> Result<()> {
    let template = json!({ "name": POOL, "image": IMAGE, "isolation": "microvm",
        "resources": machine(128 << 20)["resources"], "pool": { "min": 2, "max": 2 } });
    connection.json(Method::POST, "/v1/templates", &template).await?;
    let (mut claims, mut done) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        full(connection).await?;
        let start = Instant::now();
        let sandbox = make(connection, &json!({ "template": POOL })).await?;
        claims.push(start.elapsed());
        connection.run_true(&sandbox).await?;
        done.push(start.elapsed());
        connection.delete(&sandbox).await?;
    }
    report.row("claim from a warm pool", &claims, None);
    report.row("**claim to `true` done**", &done, None);
    let size = json!({ "template": POOL, "min": 0, "max": 0 });
    connection.json(Method::PUT, "/v1/pools", &size).await?;
    Ok(())
}

/// Waits until every member is there.
async fn full(connection: &mut Connection) -> Result<()> {
    let start = Instant::now();
    loop {
        let pools = connection.json(Method::GET, "/v1/pools", &Value::Null).await?;
        let items = pools["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        if items.iter().any(|pool| pool["ready"] == 2 && pool["making"] == 0) {
            return Ok(());
        }
        if start.elapsed() > FILL_DEADLINE {
            bail!("the pool does not fill up: {pools}");
        }
        tokio::time::sleep(FILL_POLL).await;
    }
}

async fn paused(connection: &mut Connection, report: &mut Report) -> Result<()> {
    let sandbox = make(connection, &machine(MEMORY_BYTES)).await?;
    let path = format!("/v1/sandboxes/{sandbox}/files?path=/dev/shm/fill");
    // Not zeros: those would not be written.
    let piece: Vec<u8> = (0..1_u32 << 18).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let count = FILLED_BYTES / piece.len();
    connection.upload(Method::PUT, &path, std::iter::repeat_n(Bytes::from(piece), count)).await?;
    let [mut pauses, mut resumes, mut runs] = [(); 3].map(|()| Samples::default());
    for _ in 0..PAUSES {
        let start = Instant::now();
        let pause = format!("/v1/sandboxes/{sandbox}/pause");
        connection.json(Method::POST, &pause, &json!({ "mode": "memory" })).await?;
        pauses.push(start.elapsed());
        let start = Instant::now();
        connection.json(Method::POST, &format!("/v1/sandboxes/{sandbox}/resume"), &json!({})).await?;
        resumes.push(start.elapsed());
        connection.run_true(&sandbox).await?;
        runs.push(start.elapsed());
    }
    let what = format!("{} MiB with {} MiB of data", MEMORY_BYTES >> 20, FILLED_BYTES >> 20);
    report.row(&format!("pause, `memory`, {what}"), &pauses, None);
    report.row("resume", &resumes, None);
    report.row("resume to `true` done", &runs, None);
    connection.delete(&sandbox).await
}

async fn forked(connection: &mut Connection, what: &Value, report: &mut Report) -> Result<()> {
    let parent = make(connection, what).await?;
    let fork = format!("/v1/sandboxes/{parent}/fork");
    for (memory, what) in [(false, "of the disk"), (true, "**with memory**")] {
        let mut took = Samples::default();
        for _ in 0..FORK_ROUNDS {
            let start = Instant::now();
            let order = json!({ "count": FORKS, "memory": memory });
            let made = connection.json(Method::POST, &fork, &order).await?;
            took.push(start.elapsed());
            for child in made["results"].as_array().context("no forks")? {
                connection.delete(child["sandbox"]["id"].as_str().context("a fork failed")?).await?;
            }
        }
        report.row(&format!("fork into {FORKS}, {what}"), &took, None);
    }
    connection.delete(&parent).await
}

async fn idle(bench: &Bench<'_>, what: &Value, report: &mut Report) -> Result<()> {
    let clients = try_join_all((0..CLIENTS).map(|_| bench.server.address.connect())).await?;
    let before = available_kib()?;
    let start = Instant::now();
    let made = clients.into_iter().enumerate().map(|(client, mut connection)| async move {
        let mut made = Vec::new();
        for _ in (client..IDLE).step_by(CLIENTS) {
            made.push(make(&mut connection, what).await?);
        }
        anyhow::Ok((connection, made))
    });
    let made = try_join_all(made).await?;
    let took = start.elapsed();
    tokio::time::sleep(REST).await;
    let each = before.saturating_sub(available_kib()?) / IDLE as u64;
    let cpu = cpu_of_machines()?;
    tokio::time::sleep(WATCH).await;
    let cpu = (cpu_of_machines()?.saturating_sub(cpu)).as_secs_f64() / WATCH.as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a share for people")]
    let share = 100.0 * cpu / IDLE as f64;
    report.line(&format!(
        "\n- {IDLE} idle machines, made in {:.1} s with {CLIENTS} clients: **{each} KiB** each (`MemAvailable`), \
         **{share:.2} %** of a core each",
        took.as_secs_f64()
    ));
    let start = Instant::now();
    try_join_all(made.into_iter().map(|(mut connection, made)| async move {
        for sandbox in made {
            connection.delete(&sandbox).await?;
        }
        anyhow::Ok(())
    }))
    .await?;
    report.line(&format!("- deleted in {} ms", millis(start.elapsed())));
    Ok(())
}

fn available_kib() -> Result<u64> {
    kib(&std::fs::read_to_string("/proc/meminfo")?, "MemAvailable:").context("free memory is not known")
}
