//! Nodes of a cluster.

use std::time::Duration;

use atoll_api::{Node, NodeDrain, NodeState, StayingSandbox, UpdateNode};
use atoll_client::Client;

use crate::cli::NodeCommand;
use crate::failure::Result;
use crate::output::{Printer, age, table};
use crate::units::format_bytes;

/// How often is looked how far a drain is.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// `atoll node …`
pub(super) async fn node(client: &Client, printer: Printer, command: NodeCommand) -> Result<()> {
    match command {
        NodeCommand::Ls => {
            let list = client.list_nodes().await?;
            let header =
                ["NAME", "STATE", "SANDBOXES", "MEMORY FREE", "LEVELS", "ADDRESS", "VERSION", "SEEN"];
            printer.result(&list, || table(header, list.items.iter().map(row)))
        }
        NodeCommand::Drain { node, wait: false } => set(client, printer, &node, true).await,
        NodeCommand::Drain { node, wait: true } => {
            client.update_node(&node, &UpdateNode { draining: true }).await?;
            let drain = drained(client, printer, &node).await?;
            printer.result(&drain, || stayed(&node, &drain))
        }
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

/// Waits until a node has only the sandboxes that stay there.
async fn drained(client: &Client, printer: Printer, node: &str) -> Result<NodeDrain> {
    let mut said = None;
    loop {
        let drain = client.get_node_drain(node).await?;
        if drain.state != NodeState::Draining || drain.sandboxes <= drain.staying {
            return Ok(drain);
        }
        let now = (drain.sandboxes - drain.staying, drain.staying);
        if said.replace(now) != Some(now) {
            printer.note(&format!("{} to go, {} stay", now.0, now.1));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn stayed(node: &str, drain: &NodeDrain) -> String {
    if drain.state != NodeState::Draining {
        return format!("{node}: {}, and is drained no more", state(drain.state));
    }
    if drain.staying == 0 {
        return format!("{node}: drained");
    }
    let row = |one: &StayingSandbox| [one.name.clone().unwrap_or_else(|| one.id.clone()), one.reason.clone()];
    let list = table(["SANDBOX", "STAYS BECAUSE"], drain.items.iter().map(row));
    format!("{node}: {} stay\n{list}", drain.staying)
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
