//! Nodes of a cluster: their abilities, and the reports that they make of themselves.

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
/// Images that a node tells of: their digests and names.
pub const NODE_IMAGES_MAX_COUNT: usize = 128;
/// How long the other nodes wait for a sign of life of a node: limits and the default, milliseconds.
pub const NODE_LEASE_MIN_MS: u64 = 3_000;
/// The longest.
pub const NODE_LEASE_MAX_MS: u64 = 600_000;
/// When nothing is said.
pub const NODE_LEASE_MS: u64 = 10_000;

/// The facts that a node reports about itself when it starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// Isolation levels that it has.
    pub levels: Vec<IsolationLevel>,
    /// Most sandboxes at once.
    pub sandboxes_max: u64,
    /// Labels that its operator gave it.
    pub labels: BTreeMap<String, String>,
    /// Sandboxes that it makes at once.
    #[serde(default)]
    pub creates_max: u64,
    /// Images that it has, as [`crate::placement::image_mark`] of their digests and names, in order.
    #[serde(default)]
    pub images: Vec<u64>,
    /// What it runs machines with, as [`crate::machine::Platform::mark`]; `None` without machines.
    #[serde(default)]
    pub machines: Option<u64>,
}

/// The load that a node reports with each sign of life. The default stands for a node that has not reported yet: with
/// it, no sandbox is kept away from that node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeLoad {
    /// Sandboxes that it has.
    pub sandboxes: u64,
    /// Memory that is available there, bytes; `u64::MAX` when unknown.
    pub memory_available_bytes: u64,
    /// Memory that it has, bytes; 0 when unknown.
    pub memory_total_bytes: u64,
    /// Memory that its sandboxes may use together, bytes.
    pub memory_promised_bytes: u64,
    /// For what part of the time some task waited for a processor lately, thousandths.
    pub cpu_pressure: u32,
    /// Creations under way that a caller waits for.
    pub creating: u64,
}

impl Default for NodeLoad {
    fn default() -> Self {
        Self {
            sandboxes: 0,
            memory_available_bytes: u64::MAX,
            memory_total_bytes: 0,
            memory_promised_bytes: 0,
            cpu_pressure: 0,
            creating: 0,
        }
    }
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

/// The nodes that one node watches, out of the living nodes in order: the `count` after it; after the last one come the
/// first. So each living node is watched by `count` others, or by all others when there are fewer.
#[must_use]
pub fn watched<'a>(this: &NodeId, living: &[&'a NodeId], count: usize) -> Vec<&'a NodeId> {
    let after = living.partition_point(|id| *id <= this);
    let ring = living.iter().cycle().skip(after).take(living.len());
    ring.filter(|id| **id != this).take(count).copied().collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_is_watched_by_as_many() {
        let ids: Vec<NodeId> = (1..=20).map(|number| NodeId::from_parts(number, number)).collect();
        for living in [1, 2, 5, 20] {
            let living: Vec<&NodeId> = ids[..living].iter().collect();
            let mut watchers = BTreeMap::new();
            for this in &living {
                let watched = watched(this, &living, 4);
                assert_eq!(watched.len(), 4.min(living.len() - 1));
                for id in watched {
                    assert_ne!(id, *this);
                    *watchers.entry(id).or_insert(0) += 1;
                }
            }
            assert!(watchers.values().all(|count| *count == 4.min(living.len() - 1)), "{watchers:?}");
        }
        // A node that is not among the living itself watches all the same.
        let living: Vec<&NodeId> = ids[..3].iter().collect();
        assert_eq!(watched(&ids[10], &living, 2), [&ids[0], &ids[1]]);
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
