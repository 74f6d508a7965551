//! Sandboxes that wait in a warm pool: one after the other, all at once, and as many as go.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::future::try_join_all;
use hyper::Method;
use serde_json::{Value, json};

use super::{Bench, cpu_each};
use crate::http::Connection;
use crate::report::Report;
use crate::stats::Samples;

/// Members of the pool, and sandboxes of a burst.
const POOL: u64 = 100;
/// Bursts.
const BURSTS: usize = 5;
/// Operations before the measured ones.
const WARM_UP: usize = 20;
/// How long a pool may take to be full.
const FILL_DEADLINE: Duration = Duration::from_secs(120);
const FILL_POLL: Duration = Duration::from_millis(20);

pub(super) async fn warm(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let mut control = bench.server.address.connect().await?;
    let size = json!({ "image": "host", "min": POOL, "max": POOL });
    control.json(Method::PUT, "/v1/pools", &size).await?;
    let measured = measure(bench, report, &mut control).await;
    control.delete_pool("host").await?;
    measured
}

async fn measure(bench: &Bench<'_>, report: &mut Report, control: &mut Connection) -> Result<()> {
    report.section(&format!("A warm pool of {POOL}: claim, run `true`, delete"));
    report.table();
    let mut connection = bench.server.address.connect().await?;
    let (mut claims, mut done) = (Samples::default(), Samples::default());
    full(control).await?;
    let mut cpu = bench.server.cpu()?;
    for number in 0..WARM_UP + bench.creates {
        if number == WARM_UP {
            cpu = bench.server.cpu()?;
        }
        let start = Instant::now();
        let sandbox = connection.create("host").await?;
        let claimed = start.elapsed();
        connection.run_true(&sandbox).await?;
        let ran = start.elapsed();
        connection.delete(&sandbox).await?;
        if number >= WARM_UP {
            claims.push(claimed);
            done.push(ran);
        }
    }
    let cpu = cpu_each(bench.server, cpu, bench.creates)?;
    report.row("claim", &claims, None);
    report.row("**claim to `true` done**; CPU of the whole cycle and of filling up again", &done, Some(cpu));
    burst(bench, report, control).await?;
    let pool = pool(control).await?;
    report.line(&format!("\n- {} of {} requests were served by a member", pool["hits"], sum(&pool)));
    report.line(&format!("- a member took {} KiB and {} ms to make", kib(&pool), pool["make_ms"]));
    Ok(())
}

async fn burst(bench: &Bench<'_>, report: &mut Report, control: &mut Connection) -> Result<()> {
    let mut connections = try_join_all((0..POOL).map(|_| bench.server.address.connect())).await?;
    let (mut claims, mut done) = (Samples::default(), Samples::default());
    for _ in 0..BURSTS {
        full(control).await?;
        let start = Instant::now();
        let made = try_join_all(connections.iter_mut().map(|connection| async move {
            let sandbox = connection.create("host").await?;
            let claimed = start.elapsed();
            connection.run_true(&sandbox).await?;
            anyhow::Ok((sandbox, claimed, start.elapsed()))
        }))
        .await?;
        for (_, claimed, ran) in &made {
            claims.push(*claimed);
            done.push(*ran);
        }
        let gone = connections.iter_mut().zip(&made);
        try_join_all(gone.map(|(connection, (sandbox, ..))| connection.delete(sandbox))).await?;
    }
    report.row(&format!("{POOL} at once: claim"), &claims, None);
    report.row(&format!("{POOL} at once: claim to `true` done"), &done, None);
    Ok(())
}

async fn pool(control: &mut Connection) -> Result<Value> {
    let mut pools = control.json(Method::GET, "/v1/pools", &Value::Null).await?;
    let items = pools["items"].as_array_mut().context("the answer has no items")?;
    let found = items.iter().position(|pool| pool["name"] == "image:host").context("the pool is gone")?;
    Ok(items.swap_remove(found))
}

/// Waits until every member is there.
async fn full(control: &mut Connection) -> Result<()> {
    let start = Instant::now();
    while pool(control).await?["ready"] != POOL {
        if start.elapsed() > FILL_DEADLINE {
            bail!("the pool does not fill up: {}", pool(control).await?);
        }
        tokio::time::sleep(FILL_POLL).await;
    }
    Ok(())
}

fn sum(pool: &Value) -> u64 {
    pool["hits"].as_u64().unwrap_or(0) + pool["misses"].as_u64().unwrap_or(0)
}

fn kib(pool: &Value) -> u64 {
    pool["member_bytes"].as_u64().unwrap_or(0) / 1024
}
