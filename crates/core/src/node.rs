//! Nodes of a cluster: what they can do, and what they say of themselves.

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
    /// Sandboxes that it makes at once.
    #[serde(default)]
    pub creates_max: u64,
    /// Images that it has, as [`crate::placement::image_mark`] of their digests and names, in order.
    #[serde(default)]
    pub images: Vec<u64>,
}

/// What a node has to do, as it says with each sign of life. The default is that of one that has not said anything yet, which
/// keeps nothing away from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeLoad {
    /// Sandboxes that it has.
    pub sandboxes: u64,
    /// Memory that is available there, bytes; `u64::MAX` when unknown.
    pub memory_available_bytes: u64,
    /// Memory that it has, bytes; 0 when unknown.
    pub memory_total_bytes: u64,
    /// What its sandboxes may use together, bytes.
    pub memory_promised_bytes: u64,
    /// For what part of the time something waited for a processor lately, thousandths.
    pub cpu_pressure: u32,
    /// Creations under way that somebody waits for.
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

/// Of the nodes that live, in order, those that one of them watches: the `count` after it, and after the last come the first. So
/// each is watched by as many others, however many there are.
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
        // Who does not live itself, as far as is known, watches all the same.
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
