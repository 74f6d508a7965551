//! Nodes of a cluster: what they can do, and which of them gets a new sandbox.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::shorten;
use crate::id::{NodeId, is_id_shaped};
use crate::spec::IsolationLevel;
use crate::{Error, Result};

/// Longest name of a node, and longest key or value of its labels, bytes.
pub const NODE_NAME_MAX_BYTES: usize = 63;
/// Labels of one node.
pub const NODE_LABELS_MAX_COUNT: usize = 32;
/// How long the others wait for a sign of life of a node: limits and what holds when nothing is said, milliseconds.
pub const NODE_LEASE_MIN_MS: u64 = 3_000;
/// The longest.
pub const NODE_LEASE_MAX_MS: u64 = 600_000;
/// When nothing is said.
pub const NODE_LEASE_MS: u64 = 10_000;

/// What a node is, as it says itself when it starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// Isolation levels that it has.
    pub levels: Vec<IsolationLevel>,
    /// Most sandboxes at once.
    pub sandboxes_max: u64,
    /// What its operator says of it.
    pub labels: BTreeMap<String, String>,
}

/// What a node has to do, as it says with each sign of life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLoad {
    /// Sandboxes that it has.
    pub sandboxes: u64,
    /// Memory that is available there, bytes.
    pub memory_available_bytes: u64,
}

/// A name of a node: letters, digits, dots and dashes.
///
/// # Errors
/// [`crate::Code::InvalidArgument`].
pub fn validate_name(field: &str, name: &str) -> Result<()> {
    check_word(field, name)?;
    if is_id_shaped(name) {
        return Err(Error::invalid(field, "looks like an id").hint("choose another name"));
    }
    Ok(())
}

/// Labels of a node.
///
/// # Errors
/// [`crate::Code::InvalidArgument`].
pub fn validate_labels(field: &str, labels: &BTreeMap<String, String>) -> Result<()> {
    if labels.len() > NODE_LABELS_MAX_COUNT {
        return Err(Error::invalid(field, format_args!("at most {NODE_LABELS_MAX_COUNT}")));
    }
    labels.iter().try_for_each(|(key, value)| check_word(field, key).and_then(|()| check_word(field, value)))
}

fn check_word(field: &str, text: &str) -> Result<()> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if (1..=NODE_NAME_MAX_BYTES).contains(&text.len()) && text.bytes().all(fits) {
        return Ok(());
    }
    Err(Error::invalid(
        field,
        format_args!(
            "'{}': must be 1 to {NODE_NAME_MAX_BYTES} letters, digits, dots, dashes or underscores",
            shorten(text)
        ),
    ))
}

/// A node, as far as it matters for who gets a sandbox.
#[derive(Debug, Clone)]
pub struct Candidate<'a> {
    /// Which.
    pub id: &'a NodeId,
    /// What it is.
    pub facts: &'a NodeFacts,
    /// What it has to do.
    pub load: NodeLoad,
    /// It takes no new ones.
    pub is_draining: bool,
}

/// What a sandbox needs of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Its isolation level.
    pub level: IsolationLevel,
    /// Its memory, bytes; 0 when it is not limited.
    pub memory_bytes: u64,
}

/// The node that a sandbox is best made on: of those that can and may take it, the one that has the most memory left when it
/// is there, counted in sixteenths of the best; among equals the one with the fewest sandboxes. `None` when none can.
#[must_use]
pub fn place<'a>(wanted: &Wanted, nodes: &[Candidate<'a>]) -> Option<&'a NodeId> {
    let fits = |node: &&Candidate<'a>| {
        !node.is_draining
            && node.facts.levels.contains(&wanted.level)
            && node.load.sandboxes < node.facts.sandboxes_max
            && node.load.memory_available_bytes > wanted.memory_bytes
    };
    let left = |node: &Candidate<'a>| node.load.memory_available_bytes - wanted.memory_bytes;
    let most = nodes.iter().filter(fits).map(left).max()?.max(1);
    let score = |node: &Candidate<'a>| {
        // A little more memory must not send a whole burst to one node.
        let sixteenths = u128::from(left(node)) * 16 / u128::from(most);
        (std::cmp::Reverse(sixteenths), node.load.sandboxes, node.id)
    };
    nodes.iter().filter(fits).min_by_key(|node| score(node)).map(|node| node.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const WANTED: Wanted = Wanted { level: IsolationLevel::Container, memory_bytes: GIB };

    struct Node {
        id: NodeId,
        facts: NodeFacts,
        load: NodeLoad,
        is_draining: bool,
    }

    fn node(number: u64, free_gib: u64, sandboxes: u64) -> Node {
        let facts =
            NodeFacts { levels: vec![IsolationLevel::Container], sandboxes_max: 10, labels: BTreeMap::new() };
        let load = NodeLoad { sandboxes, memory_available_bytes: free_gib * GIB };
        Node { id: NodeId::from_parts(number, number), facts, load, is_draining: false }
    }

    fn chosen(wanted: &Wanted, nodes: &[Node]) -> Option<usize> {
        let all: Vec<_> = nodes
            .iter()
            .map(|node| Candidate {
                id: &node.id,
                facts: &node.facts,
                load: node.load,
                is_draining: node.is_draining,
            })
            .collect();
        let found = place(wanted, &all)?.clone();
        nodes.iter().position(|node| node.id == found)
    }

    #[test]
    fn who_cannot_or_may_not_take_it_gets_none() {
        assert_eq!(chosen(&WANTED, &[]), None);
        let draining = Node { is_draining: true, ..node(1, 64, 0) };
        let mut other = node(2, 64, 0);
        other.facts.levels = vec![IsolationLevel::Gvisor];
        let (full, small, good) = (node(3, 64, 10), node(4, 1, 0), node(5, 8, 9));
        assert_eq!(chosen(&WANTED, &[draining, other, full, small]), None);
        let draining = Node { is_draining: true, ..node(1, 64, 0) };
        assert_eq!(chosen(&WANTED, &[draining, good]), Some(1));
    }

    #[test]
    fn memory_decides_and_then_how_many_there_are() {
        assert_eq!(chosen(&WANTED, &[node(1, 16, 0), node(2, 32, 5)]), Some(1));
        // Nearly the same: they are spread.
        assert_eq!(chosen(&WANTED, &[node(1, 33, 5), node(2, 33, 2)]), Some(1));
        // The same in everything: always the same answer.
        assert_eq!(chosen(&WANTED, &[node(2, 8, 1), node(1, 8, 1)]), Some(1));
    }

    #[test]
    fn a_burst_is_spread_over_equals() {
        let mut nodes: Vec<Node> = (1..=3).map(|number| node(number, 100, 0)).collect();
        for node in &mut nodes {
            node.facts.sandboxes_max = 1000;
        }
        for _ in 0..90 {
            let at = chosen(&WANTED, &nodes).unwrap();
            nodes[at].load.sandboxes += 1;
            nodes[at].load.memory_available_bytes -= GIB / 100;
        }
        for node in &nodes {
            assert!((20..=40).contains(&node.load.sandboxes), "{:?}", node.load);
        }
    }

    #[test]
    fn names_are_words() {
        for good in ["a", "host-1.example.com", "A_b"] {
            validate_name("--node-name", good).unwrap();
        }
        let long = "a".repeat(64);
        let id = NodeId::from_parts(1, 1).to_string();
        for bad in ["", "a b", "a/b", "\u{e4}", long.as_str(), id.as_str()] {
            assert!(validate_name("--node-name", bad).is_err(), "{bad}");
        }
    }
}
