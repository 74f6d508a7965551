//! Arguments of `trace`.

use std::path::PathBuf;

use atoll_recorder::{Head, PublicKey};
use clap::{Args, Subcommand};

use crate::units::parse_duration_ms;

/// What a sandbox did.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct TraceArgs {
    #[command(subcommand)]
    pub(crate) command: Option<TraceCommand>,
    #[command(flatten)]
    pub(crate) of: TraceOf,
    /// Wait for what comes
    #[arg(long, short = 'f')]
    pub(crate) follow: bool,
}

/// Which events.
#[derive(Debug, Args)]
pub(crate) struct TraceOf {
    /// Sandbox, by id or name; the id of one that is gone
    #[arg(required = true)]
    pub(crate) sandbox: Option<String>,
    /// Only of this exec
    #[arg(long, value_name = "EXEC")]
    pub(crate) exec: Option<String>,
    /// Only of this kind, such as exec_started (repeatable)
    #[arg(long, value_name = "KIND", value_parser = clap::builder::PossibleValuesParser::new(atoll_recorder::event::KINDS))]
    pub(crate) kind: Vec<String>,
    /// Only the last of it, such as 1h
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) since: Option<u64>,
}

/// What can be made of a journal.
#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Show programs, hosts, bytes, files, refusals
    Summary(TraceOf),
    /// Show what ran, with its connections: processes where the kernel is a witness, else commands
    Tree(TraceOf),
    /// Check that the journal is as it was written; with --dir from its files alone
    Verify(VerifyArgs),
    /// Write all events as JSON lines, for other programs
    Export(ExportArgs),
}

/// Verifying.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Sandbox, by id or name; the id with --dir
    pub(crate) sandbox: String,
    /// Directory with journals, as DATA_DIR/trace or a copy of it: no server is asked
    #[arg(long, value_name = "DIR", requires = "key")]
    pub(crate) dir: Option<PathBuf>,
    /// The installation's public key, as 'atoll trace verify' printed it earlier
    #[arg(long, value_name = "KEY", requires = "dir")]
    pub(crate) key: Option<PublicKey>,
    /// A signed statement that was noted earlier, as NUMBER:LINK: it must be in the journal
    #[arg(long, value_name = "HEAD", requires = "dir")]
    pub(crate) head: Option<Head>,
}

/// Exporting.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) of: TraceOf,
    /// In the Open Cybersecurity Schema Framework, for a SIEM
    #[arg(long)]
    pub(crate) ocsf: bool,
}
