//! The cost of a sandbox that does nothing, running and put to disk.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use hyper::Method;
use serde_json::{Value, json};

use super::Bench;
use crate::report::Report;
use crate::server::kib;

/// Clients that make and delete them.
const CLIENTS: usize = 8;
/// Time for memory that is freed in the background to be free.
const SETTLE: Duration = Duration::from_secs(3);

pub(super) async fn idle(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let count = bench.idle;
    report.section(&format!("{count} idle sandboxes"));
    let connect = || try_join_all((0..CLIENTS).map(|_| bench.server.address.connect()));
    settle().await?;
    let (free_before, rss_before) = (available_kib()?, bench.server.rss_kib()?);
    let start = Instant::now();
    let clients = connect().await?.into_iter().enumerate().map(|(client, mut connection)| async move {
        let mut made = Vec::new();
        for _ in (client..count).step_by(CLIENTS) {
            made.push(connection.create("host").await?);
        }
        anyhow::Ok((connection, made))
    });
    let made = try_join_all(clients).await?;
    let took = start.elapsed();
    settle().await?;
    let used = free_before.saturating_sub(available_kib()?);
    let rss = bench.server.rss_kib()?;
    let each = used / u64::try_from(count.max(1))?;
    let server_each = rss.saturating_sub(rss_before) / u64::try_from(count.max(1))?;
    report.line(&format!("- made in {:.1} s with {CLIENTS} clients", took.as_secs_f64()));
    report.line(&format!("- **{each} KiB** of the machine's memory each (`MemAvailable`), all included"));
    report.line(&format!("- server: {} MiB resident, {server_each} KiB for each sandbox", rss / 1024));
    let start = Instant::now();
    let asleep = made.into_iter().map(|(mut connection, made)| async move {
        for sandbox in &made {
            let path = format!("/v1/sandboxes/{sandbox}/pause");
            connection.json(Method::POST, &path, &json!({ "mode": "filesystem" })).await?;
        }
        anyhow::Ok((connection, made))
    });
    let made = try_join_all(asleep).await?;
    let took = start.elapsed();
    settle().await?;
    let each = free_before.saturating_sub(available_kib()?) / u64::try_from(count.max(1))?;
    let disk = disk_kib(bench, &made[0].1[0]).await?;
    report
        .line(&format!("- all paused as `filesystem` in {:.1} s with {CLIENTS} clients", took.as_secs_f64()));
    report.line(&format!("- paused: **{each} KiB** of the machine's memory each, and a disk of {disk} KiB"));
    let start = Instant::now();
    let gone = made.into_iter().map(|(mut connection, made)| async move {
        for sandbox in made {
            connection.delete(&sandbox).await?;
        }
        anyhow::Ok(())
    });
    try_join_all(gone).await?;
    report.line(&format!("- deleted in {:.1} s", start.elapsed().as_secs_f64()));
    Ok(())
}

/// Room that the disk of a sandbox takes on the host.
async fn disk_kib(bench: &Bench<'_>, sandbox: &str) -> Result<u64> {
    let path = format!("/v1/sandboxes/{sandbox}/metrics");
    let metrics = bench.server.address.connect().await?.json(Method::GET, &path, &Value::Null).await?;
    Ok(metrics["disk_host_bytes"].as_u64().context("the disk is not measured")? / 1024)
}

/// Has the kernel write back dirty pages, so that caches do not count.
async fn settle() -> Result<()> {
    tokio::task::spawn_blocking(rustix::fs::sync).await?;
    tokio::time::sleep(SETTLE).await;
    Ok(())
}

fn available_kib() -> Result<u64> {
    kib(&std::fs::read_to_string("/proc/meminfo")?, "MemAvailable:").context("free memory is not known")
}
