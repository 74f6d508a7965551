//! Arguments of the commands that concern snapshots.

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Take a snapshot of a sandbox's disk; the sandbox goes on
    Create {
        /// Reference for it, as NAME or NAME:TAG (repeatable); it leaves what it points to now
        #[arg(short, long, value_name = "REFERENCE")]
        tag: Vec<String>,
        /// A line of text, to remember what it is
        #[arg(short, long, value_name = "TEXT")]
        comment: Option<String>,
        /// Sandbox, by id or name
        sandbox: String,
    },
    /// List snapshots
    Ls {
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
    /// Remove references, and a snapshot with its last one; or snapshots by their ids
    Rm {
        /// Ids, NAMEs or NAME:TAGs
        #[arg(required = true, value_name = "SNAPSHOT")]
        snapshots: Vec<String>,
    },
}
