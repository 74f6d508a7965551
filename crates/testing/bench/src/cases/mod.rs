//! What is measured.

mod idle;
mod latency;
mod load;
mod machines;
mod pause;
mod ports;
mod snapshots;
mod streams;
mod warm;

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::ValueEnum;

use crate::report::Report;
use crate::server::Server;
use crate::{image, peers};

/// Name of the imported image.
pub(crate) const IMAGE: &str = "bench-true";

/// The parts, in the order they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Case {
    /// One after the other: create, `true`, delete
    Create,
    /// `true` in a sandbox that runs
    Exec,
    /// Sandboxes from a warm pool
    Warm,
    /// 100 creations at once
    Burst,
    /// Create, run, destroy, for some seconds
    Cycles,
    /// Output through a WebSocket
    Stdout,
    /// A large file, up and down
    Files,
    /// Requests to a port of a sandbox
    Ports,
    /// Pause and resume, both ways
    Pause,
    /// Many sandboxes that do nothing
    Idle,
    /// Snapshots and forks of a full disk
    Snapshots,
    /// Virtual machines: create, claim, pause with memory, fork, idle
    Machines,
    /// Other programs
    Peers,
}

/// What to measure, and how much of it.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    pub(crate) server: &'a Server,
    pub(crate) creates: usize,
    pub(crate) execs: usize,
    pub(crate) seconds: u64,
    pub(crate) idle: usize,
    /// Whether the server has virtual machines.
    pub(crate) machines: bool,
}

/// The parts that take seconds.
pub(crate) fn quick() -> Vec<Case> {
    let slow = [Case::Idle, Case::Snapshots, Case::Machines];
    Case::value_variants().iter().copied().filter(|case| !slow.contains(case)).collect()
}

/// Runs the wanted parts; all when none is named.
pub(crate) async fn run(bench: &Bench<'_>, only: &[Case], report: &mut Report) -> Result<()> {
    let name = format!("/v1/images/import?name={IMAGE}");
    let rootfs = std::iter::once(image::rootfs()?.into());
    bench.server.address.connect().await?.upload(hyper::Method::POST, &name, rootfs).await?;
    for case in Case::value_variants() {
        if !only.is_empty() && !only.contains(case) {
            continue;
        }
        match case {
            Case::Create => latency::create(bench, report).await?,
            Case::Exec => latency::exec(bench, report).await?,
            Case::Warm => warm::warm(bench, report).await?,
            Case::Burst => load::burst(bench, report).await?,
            Case::Cycles => load::cycles(bench, report).await?,
            Case::Stdout => streams::stdout(bench, report).await?,
            Case::Files => streams::files(bench, report).await?,
            Case::Ports => ports::ports(bench, report).await?,
            Case::Pause => pause::pause(bench, report).await?,
            Case::Idle => idle::idle(bench, report).await?,
            Case::Snapshots => snapshots::snapshots(bench, report).await?,
            Case::Machines => machines::machines(bench, report).await?,
            Case::Peers => peers::run(report)?,
        }
    }
    Ok(())
}

/// CPU time of the server since `before`, for each of `count` operations.
fn cpu_each(server: &Server, before: Duration, count: usize) -> Result<Duration> {
    Ok(server.cpu()?.saturating_sub(before) / u32::try_from(count.max(1))?)
}

/// Megabytes per second.
fn rate(bytes: u64, since: Instant) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = bytes as f64 / 1e6 / since.elapsed().as_secs_f64();
    format!("{rate:.0} MB/s")
}
