//! Arguments that concern the nodes of a cluster.

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// List the servers that share the database
    Ls,
    /// Take no new sandboxes on a node; with an object store, those that it has go to other nodes
    Drain {
        /// Id or name
        node: String,
        /// Wait until all that can have gone, and say which stay and why
        #[arg(long)]
        wait: bool,
    },
    /// Take new sandboxes on a node again
    Undrain {
        /// Id or name
        node: String,
    },
    /// Forget a dead node with what was on its disks: hibernated sandboxes, snapshots, volumes
    Rm {
        /// Id or name
        node: String,
    },
}
