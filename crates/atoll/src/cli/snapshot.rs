//! Arguments of the commands that concern snapshots.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::env::parse_env;
use crate::units::{parse_duration_ms, parse_pair};

#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Take a snapshot of a sandbox's disk; the sandbox goes on
    Create {
        /// With its memory and processes, at the isolation level microvm
        #[arg(long)]
        memory: bool,
        /// Reference for it, as NAME or NAME:TAG (repeatable); it leaves what it points to now
        #[arg(short, long, value_name = "REFERENCE")]
        tag: Vec<String>,
        /// A line of text, to remember what it is
        #[arg(short, long, value_name = "TEXT")]
        comment: Option<String>,
        /// Variable of sandboxes that are made from it (repeatable)
        #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = parse_env)]
        env: Vec<(String, String)>,
        /// Default user of sandboxes that are made from it
        #[arg(short, long)]
        user: Option<String>,
        /// Default working directory of sandboxes that are made from it
        #[arg(short, long, value_name = "DIRECTORY")]
        workdir: Option<String>,
        /// Sandbox, by id or name
        sandbox: String,
    },
    /// List snapshots
    Ls {
        /// Only their ids, one in a line
        #[arg(short, long)]
        quiet: bool,
        /// Only of this sandbox
        #[arg(long, value_name = "SANDBOX")]
        sandbox: Option<String>,
        /// Only with a reference of this name
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
    },
    /// Show a snapshot, as JSON
    Show {
        /// Id, NAME or NAME:TAG
        snapshot: String,
    },
    /// Make a reference point to a snapshot
    Tag {
        /// Id, NAME or NAME:TAG
        snapshot: String,
        /// NAME or NAME:TAG
        tag: String,
    },
    /// Write a snapshot to a file, to be imported elsewhere
    Export {
        /// Id, NAME or NAME:TAG
        snapshot: String,
        /// The file, or - for standard output
        file: PathBuf,
    },
    /// Make a snapshot of an exported one
    Import {
        /// Reference for it, as NAME or NAME:TAG (repeatable); it leaves what it points to now
        #[arg(short, long, value_name = "REFERENCE")]
        tag: Vec<String>,
        /// The file, or - for standard input
        file: PathBuf,
    },
    /// Send a snapshot to the server's object store
    Push {
        /// Reference for it there (repeatable) [default: those that it has here]
        #[arg(short, long, value_name = "REFERENCE")]
        tag: Vec<String>,
        /// Id, NAME or NAME:TAG
        snapshot: String,
    },
    /// Fetch a snapshot from the server's object store
    Pull {
        /// Reference for it here (repeatable) [default: the same as there]
        #[arg(short, long, value_name = "REFERENCE")]
        tag: Vec<String>,
        /// NAME, NAME:TAG or a digest
        from: String,
    },
    /// Remove references, and a snapshot with its last one; or snapshots by their ids
    Rm {
        /// Ids, NAMEs or NAME:TAGs
        #[arg(required = true, value_name = "SNAPSHOT")]
        snapshots: Vec<String>,
    },
}

/// A checkpoint.
#[derive(Debug, Args)]
pub(crate) struct CheckpointArgs {
    /// A line of text, to remember what it is
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) comment: Option<String>,
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
}

/// Checkpoints of a sandbox.
#[derive(Debug, Args)]
pub(crate) struct CheckpointsArgs {
    /// Remove this checkpoint instead (repeatable)
    #[arg(long, value_name = "NUMBER")]
    pub(crate) rm: Vec<u32>,
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
}

/// An earlier state.
#[derive(Debug, Args)]
pub(crate) struct RollbackArgs {
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
    /// Checkpoint (a number) or snapshot
    pub(crate) to: String,
}

/// Two points of a sandbox.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// Show the difference of small texts
    #[arg(short, long)]
    pub(crate) text: bool,
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
    /// Checkpoint (a number), snapshot or 'now' [default: the image]
    pub(crate) from: Option<String>,
    /// Checkpoint (a number), snapshot or 'now' [default: now]
    pub(crate) to: Option<String>,
}

/// A fork.
#[derive(Debug, Args)]
pub(crate) struct ForkArgs {
    /// How many
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1)]
    pub(crate) count: u32,
    /// Go on from this checkpoint (a number) or snapshot instead of from now
    #[arg(long, value_name = "CHECKPOINT")]
    pub(crate) at: Option<String>,
    /// With the sandbox's processes and memory, at the isolation level microvm
    #[arg(long)]
    pub(crate) memory: bool,
    /// Name of a single one, or what the names of several begin with
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Variable on top of the sandbox's (repeatable)
    #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = parse_env)]
    pub(crate) env: Vec<(String, String)>,
    /// Label on top of the sandbox's (repeatable)
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) label: Vec<(String, String)>,
    /// Delete them this long after their creation, such as 2h
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ms)]
    pub(crate) ttl: Option<u64>,
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
}
