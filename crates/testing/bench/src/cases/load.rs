//! Many at once.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::future::try_join_all;

use super::{Bench, cpu_each};
use crate::http::Connection;
use crate::report::Report;
use crate::stats::{Samples, millis};

/// Creations of a burst.
const BURST: usize = 100;
/// Bursts.
const BURSTS: usize = 5;
/// Pause between bursts, in which pools fill up again: a burst comes out of calm.
const CALM: Duration = Duration::from_secs(3);

pub(super) async fn burst(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    report.section(&format!("{BURST} creations at once, on as many connections"));
    report.table();
    let mut connections = try_join_all((0..BURST).map(|_| bench.server.address.connect())).await?;
    let (mut creates, mut first, mut deletes) = (Samples::default(), Samples::default(), Samples::default());
    let mut cpu = Duration::ZERO;
    for _ in 0..BURSTS {
        tokio::time::sleep(CALM).await;
        let before = bench.server.cpu()?;
        let start = Instant::now();
        let made = try_join_all(connections.iter_mut().map(|connection| async move {
            let sandbox = connection.create("host").await?;
            let created = start.elapsed();
            connection.run_true(&sandbox).await?;
            anyhow::Ok((sandbox, created, start.elapsed()))
        }))
        .await?;
        cpu += bench.server.cpu()? - before;
        for (_, created, ran) in &made {
            creates.push(*created);
            first.push(*ran);
        }
        let start = Instant::now();
        let gone = connections.iter_mut().zip(&made).map(|(connection, (sandbox, _, _))| async move {
            connection.delete(sandbox).await?;
            anyhow::Ok(start.elapsed())
        });
        try_join_all(gone).await?.into_iter().for_each(|took| deletes.push(took));
    }
    report.row("create", &creates, None);
    let cpu = cpu / u32::try_from(BURST * BURSTS)?;
    report.row("create to `true` done", &first, Some(cpu));
    report.row("delete, all at once", &deletes, None);
    Ok(())
}

pub(super) async fn cycles(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    report.section(&format!("Create, run `true`, delete, for {} s", bench.seconds));
    report.line("| clients at once | cycles/s | median | p99 | CPU of one cycle |");
    report.line("|---:|---:|---:|---:|---:|");
    for clients in [1, 4, 8] {
        let connections = try_join_all((0..clients).map(|_| bench.server.address.connect())).await?;
        let cpu = bench.server.cpu()?;
        let start = Instant::now();
        let until = start + Duration::from_secs(bench.seconds);
        let runs = connections.into_iter().map(|connection| client(connection, until));
        let mut samples = Samples::default();
        try_join_all(runs).await?.into_iter().for_each(|one| samples.extend(one));
        let cpu = cpu_each(bench.server, cpu, samples.len())?;
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = samples.len() as f64 / start.elapsed().as_secs_f64();
        report.line(&format!(
            "| {clients} | **{rate:.0}** | {} | {} | {} |",
            millis(samples.percentile(50)),
            millis(samples.percentile(99)),
            millis(cpu)
        ));
    }
    Ok(())
}

async fn client(mut connection: Connection, until: Instant) -> Result<Samples> {
    let mut samples = Samples::default();
    while Instant::now() < until {
        let start = Instant::now();
        let sandbox = connection.create("host").await?;
        connection.run_true(&sandbox).await?;
        connection.delete(&sandbox).await?;
        samples.push(start.elapsed());
    }
    Ok(samples)
}
