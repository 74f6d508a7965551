//! Arguments of `policy`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::units::parse_duration_ms;

/// What policies mean for what sandboxes did.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Write the smallest policy that would have allowed what sandboxes did, and show how it differs from the one in force
    Learn(LearnArgs),
    /// List what a policy would have refused of what sandboxes did; exit code 1 if there is something
    Replay(ReplayArgs),
    /// Check assertions about a policy, without a server; exit code 1 if one does not hold
    Test(TestArgs),
    /// Say why an event was allowed or refused, and what would have to change
    Explain(ExplainArgs),
}

impl PolicyCommand {
    /// Whether no server is asked.
    pub(crate) fn is_offline(&self) -> bool {
        match self {
            Self::Learn(args) => args.trace_file.is_some(),
            Self::Replay(args) => args.trace_file.is_some(),
            Self::Test(_) => true,
            Self::Explain(_) => false,
        }
    }
}

/// Learning.
#[derive(Debug, Args)]
pub(crate) struct LearnArgs {
    /// Sandboxes, by id or name; the id of one that is gone
    #[arg(required_unless_present = "trace_file", conflicts_with = "trace_file")]
    pub(crate) sandboxes: Vec<String>,
    /// Read events from this file, as 'atoll trace export' writes it, and ask no server; '-' is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) trace_file: Option<PathBuf>,
    /// Only what they did lately, such as 24h
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms, conflicts_with = "trace_file")]
    pub(crate) since: Option<u64>,
    /// Only what this exec did; what the gateway saw belongs to none
    #[arg(long, value_name = "EXEC", conflicts_with = "trace_file")]
    pub(crate) exec: Option<String>,
    /// Write the policy into this file, for --egress and --execution; else it is printed
    #[arg(long, short = 'o', value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Name programs by path and content, not by path alone
    #[arg(long)]
    pub(crate) digests: bool,
    /// From how many names of one domain, programs of one directory or paths below one another on a wildcard stands for them; 0: never
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    pub(crate) fold: usize,
    /// Leave out programs that were written in the sandbox. No rule can allow those: with them everything may run
    #[arg(long)]
    pub(crate) without_written: bool,
}

/// Replaying.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// File with the policy: what 'atoll policy learn' wrote, or what --egress or --execution take
    pub(crate) policy: PathBuf,
    /// Sandboxes, by id or name; the id of one that is gone (repeatable)
    #[arg(
        long,
        value_name = "SANDBOX",
        num_args = 1..,
        required_unless_present = "trace_file",
        conflicts_with = "trace_file"
    )]
    pub(crate) trace: Vec<String>,
    /// Read events from this file, as 'atoll trace export' writes it, and ask no server; '-' is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) trace_file: Option<PathBuf>,
    /// Only what they did lately, such as 7d
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms, conflicts_with = "trace_file")]
    pub(crate) since: Option<u64>,
    /// Exit code 1 also for what cannot be said, and for gaps in journals
    #[arg(long)]
    pub(crate) strict: bool,
}

/// Testing.
#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// File with assertions: one in a line, or TOML or JSON with 'policy' and 'tests'
    pub(crate) file: PathBuf,
    /// File with the policy, if the file with assertions does not name it
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
}

/// Explaining.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Sandbox, by id or name; the id of one that is gone
    pub(crate) sandbox: String,
    /// The event's number, as 'atoll trace' shows it
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) event: u64,
}
