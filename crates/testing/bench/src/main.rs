//! `atoll-bench`: measures a real server over HTTP, next to its peers on the same machine.
//!
//! It starts its own server on a free port with a data directory of its own, talks to it with a client
//! that does as little as HTTP allows (one kept-alive connection, no Nagle delay, one thread), and
//! removes everything at the end. Nothing here passes or fails by time: it prints what it saw.
//!
//! Next to each wall-clock figure stands the CPU time that the server used for one operation: on a
//! machine that other programs use too, that is the figure to compare.

mod cases;
mod compare;
mod http;
mod image;
mod peers;
mod report;
mod server;
mod stats;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Parser;

use crate::cases::Bench;
use crate::report::Report;
use crate::server::{Server, Settings};

/// Measures Atoll.
#[derive(Debug, Parser)]
struct Args {
    /// The program to measure
    #[arg(long, default_value = "target/release/atoll")]
    atoll: PathBuf,
    /// Where the server keeps its data: on a real disk
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// Write the tables to this file, too
    #[arg(long)]
    out: Option<PathBuf>,
    /// An earlier result: its figures, these, and what times the ones are the others
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// About two minutes: less of everything, and neither idle sandboxes nor the 1 GB of the snapshots
    #[arg(long)]
    quick: bool,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<cases::Case>,
    /// Creations to measure
    #[arg(long, default_value_t = 300, default_value_if("quick", "true", "100"))]
    creates: usize,
    /// Commands to measure
    #[arg(long, default_value_t = 2000, default_value_if("quick", "true", "500"))]
    execs: usize,
    /// Seconds of each sustained run
    #[arg(long, default_value_t = 15, default_value_if("quick", "true", "4"))]
    seconds: u64,
    /// Idle sandboxes at once
    #[arg(long, default_value_t = 1000)]
    idle: usize,
    /// The server's `--pool-demand`: with 0 whatever is asked for is made then
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pool_demand: u32,
    /// What `atoll setup microvm --microvm-dir` made: without it the part `machines` is left out
    #[arg(long)]
    microvm_dir: Option<PathBuf>,
    /// Keep the server's log on standard error
    #[arg(long)]
    verbose: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    // Read before anything is measured: a wrong name is said at once.
    let before = args
        .compare
        .as_ref()
        .map(|path| std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display())));
    let before = before.transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut report = runtime.block_on(measure(&args))?;
    if let Some(before) = before {
        let table = compare::ratios(&before, report.markdown());
        report.section("Against the earlier result");
        report.line(table.as_deref().unwrap_or("It has no row in common with this one."));
    }
    if let Some(path) = &args.out {
        let text = report.markdown();
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

async fn measure(args: &Args) -> Result<Report> {
    let mut report = Report::new();
    let machines = args.microvm_dir.as_deref();
    let settings = Settings { idle: args.idle, machines, by_demand: args.pool_demand, verbose: args.verbose };
    let server = Server::start(&args.atoll, &args.dir, &settings).await?;
    let bench = Bench {
        server: &server,
        creates: args.creates,
        execs: args.execs,
        seconds: args.seconds,
        idle: args.idle,
        machines: machines.is_some(),
    };
    let only = if args.quick && args.only.is_empty() { cases::quick() } else { args.only.clone() };
    let done = cases::run(&bench, &only, &mut report).await;
    // The server is stopped and its objects are removed also after a failure.
    let stopped = server.stop().await;
    done?;
    stopped?;
    Ok(report)
}
