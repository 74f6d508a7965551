//! One operation after the other on one connection.

use std::time::Instant;

use anyhow::Result;

use super::{Bench, IMAGE, cpu_each};
use crate::report::Report;
use crate::stats::Samples;

/// Operations before the measured ones.
const WARM_UP: usize = 20;

pub(super) async fn create(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    report.section("Create, run `true`, delete");
    report.table();
    for image in ["host", IMAGE] {
        let mut connection = bench.server.address.connect().await?;
        let [mut creates, mut runs, mut deletes, mut done] = [(); 4].map(|()| Samples::default());
        let mut cpu = bench.server.cpu()?;
        for number in 0..WARM_UP + bench.creates {
            if number == WARM_UP {
                cpu = bench.server.cpu()?;
            }
            let start = Instant::now();
            let sandbox = connection.create(image).await?;
            let created = start.elapsed();
            connection.run_true(&sandbox).await?;
            let ran = start.elapsed();
            connection.delete(&sandbox).await?;
            let deleted = start.elapsed();
            if number >= WARM_UP {
                creates.push(created);
                runs.push(ran - created);
                deletes.push(deleted - ran);
                done.push(ran);
            }
        }
        let cpu = cpu_each(bench.server, cpu, bench.creates)?;
        report.row(&format!("`{image}`: create"), &creates, None);
        report.row(&format!("`{image}`: first `true`"), &runs, None);
        report.row(&format!("`{image}`: delete"), &deletes, None);
        report.row(
            &format!("`{image}`: **create to `true` done**; CPU of the whole cycle"),
            &done,
            Some(cpu),
        );
    }
    Ok(())
}

pub(super) async fn exec(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    report.section("`true` in a sandbox that runs");
    report.table();
    for image in ["host", IMAGE] {
        let mut connection = bench.server.address.connect().await?;
        let sandbox = connection.create(image).await?;
        let mut samples = Samples::default();
        for _ in 0..WARM_UP {
            connection.run_true(&sandbox).await?;
        }
        let cpu = bench.server.cpu()?;
        for _ in 0..bench.execs {
            let start = Instant::now();
            connection.run_true(&sandbox).await?;
            samples.push(start.elapsed());
        }
        let cpu = cpu_each(bench.server, cpu, bench.execs)?;
        connection.delete(&sandbox).await?;
        report.row(&format!("`{image}`: exec `true`"), &samples, Some(cpu));
    }
    Ok(())
}
