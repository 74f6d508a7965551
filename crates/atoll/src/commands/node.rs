//! Nodes of a cluster.

use atoll_api::{Node, NodeState, UpdateNode};
use atoll_client::Client;

use crate::cli::NodeCommand;
use crate::failure::Result;
use crate::output::{Printer, age, table};
use crate::units::format_bytes;

/// `atoll node …`
pub(super) async fn node(client: &Client, printer: Printer, command: NodeCommand) -> Result<()> {
    match command {
        NodeCommand::Ls => {
            let list = client.list_nodes().await?;
            let header =
                ["NAME", "STATE", "SANDBOXES", "MEMORY FREE", "LEVELS", "ADDRESS", "VERSION", "SEEN"];
            printer.result(&list, || table(header, list.items.iter().map(row)))
        }
        NodeCommand::Drain { node } => set(client, printer, &node, true).await,
        NodeCommand::Undrain { node } => set(client, printer, &node, false).await,
        NodeCommand::Rm { node } => {
            let removed = client.delete_node(&node).await?;
            printer.result(&removed, || format!("{} is forgotten", removed.name))
        }
    }
}

async fn set(client: &Client, printer: Printer, node: &str, draining: bool) -> Result<()> {
    let node = client.update_node(node, &UpdateNode { draining }).await?;
    printer.result(&node, || format!("{}: {}", node.name, state(node.state)))
}

const fn state(state: NodeState) -> &'static str {
    match state {
        NodeState::Ready => "ready",
        NodeState::Draining => "draining",
        NodeState::Dead => "dead",
    }
}

fn row(node: &Node) -> [String; 8] {
    let levels: Vec<&str> = node.levels.iter().map(|level| level.as_str()).collect();
    [
        if node.is_this { format!("{} *", node.name) } else { node.name.clone() },
        state(node.state).to_owned(),
        format!("{} of {}", node.sandboxes, node.sandboxes_max),
        node.memory_available_bytes.map_or_else(|| "-".to_owned(), format_bytes),
        levels.join(","),
        node.address.clone(),
        node.version.clone(),
        age(node.seen_ms),
    ]
}
