//! Pausing, resuming, waking by a command; also with memory and files to keep.

use std::time::Instant;

use anyhow::Result;
use hyper::Method;
use serde_json::json;

use super::{Bench, IMAGE};
use crate::http::Connection;
use crate::report::Report;
use crate::stats::Samples;

/// Pauses measured of each kind.
const ROUNDS: usize = 100;
/// Hibernations measured: each writes to the disk.
const HIBERNATIONS: usize = 20;

async fn post(connection: &mut Connection, sandbox: &str, verb: &str, mode: Option<&str>) -> Result<()> {
    let body = mode.map_or_else(|| json!({}), |mode| json!({ "mode": mode }));
    let answer = connection.json(Method::POST, &format!("/v1/sandboxes/{sandbox}/{verb}"), &body).await?;
    anyhow::ensure!(answer["state"].is_string(), "{verb} was refused: {answer}");
    Ok(())
}

pub(super) async fn pause(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    report.section("Pause and resume");
    report.table();
    for image in ["host", IMAGE] {
        let mut connection = bench.server.address.connect().await?;
        let sandbox = connection.create(image).await?;
        for (mode, rounds) in [("frozen", ROUNDS), ("filesystem", HIBERNATIONS)] {
            let [mut pauses, mut resumes, mut wakes] = [(); 3].map(|()| Samples::default());
            for _ in 0..rounds {
                let start = Instant::now();
                post(&mut connection, &sandbox, "pause", Some(mode)).await?;
                pauses.push(start.elapsed());
                let start = Instant::now();
                post(&mut connection, &sandbox, "resume", None).await?;
                resumes.push(start.elapsed());
                post(&mut connection, &sandbox, "pause", Some(mode)).await?;
                let start = Instant::now();
                connection.run_true(&sandbox).await?;
                wakes.push(start.elapsed());
            }
            report.row(&format!("`{image}`: pause, `{mode}`"), &pauses, None);
            report.row(&format!("`{image}`: resume, `{mode}`"), &resumes, None);
            report.row(&format!("`{image}`: `true` in a paused one, `{mode}`"), &wakes, None);
        }
        connection.delete(&sandbox).await?;
    }
    Ok(())
}
