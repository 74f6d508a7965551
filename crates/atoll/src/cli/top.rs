//! Arguments of `atoll top`.

use clap::{Args, ValueEnum};

use crate::units::{parse_duration_ms, parse_pair};

/// By what the table is sorted, most first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TopSort {
    /// Processor time
    Cpu,
    /// Memory
    Memory,
    /// Space on the disk
    Disk,
    /// Bytes in and out
    Net,
    /// Commands that run
    Execs,
    /// The youngest first
    Age,
    /// By name, or else id
    Name,
}

/// What sandboxes use, as it changes.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Only with this label (repeatable)
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) label: Vec<(String, String)>,
    /// By what to sort; on a terminal the keys c, m, d, n, e, a and i change that, q ends
    #[arg(
        short,
        long,
        value_name = "cpu|memory|disk|net|execs|age|name",
        value_enum,
        default_value = "cpu",
        hide_possible_values = true
    )]
    pub(crate) sort: TopSort,
    /// Pause between two looks
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_every_ms)]
    pub(crate) every: u64,
    /// Look twice, one second apart, print one table and end
    #[arg(long)]
    pub(crate) once: bool,
}

fn parse_every_ms(text: &str) -> Result<u64, String> {
    let ms = parse_duration_ms(text)?;
    if (1000..=3_600_000).contains(&ms) { Ok(ms) } else { Err("must lie between 1s and 1h".to_owned()) }
}
