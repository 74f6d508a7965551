//! An image that is ready: what is kept on disk, and what callers see.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use atoll_core::spec::ImageDefaults;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::layer::Prepared;
use crate::manifest::Config;

/// A prepared image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Digest of its manifest: its identity.
    pub digest: Digest,
    /// Its names, sorted. An image without any goes with [`crate::Images::prune`].
    pub names: Vec<String>,
    /// Directories for overlayfs, lowest first, each one once.
    pub layers: Vec<PathBuf>,
    /// Environment, user and working directory as the image says, not validated: that is done when a sandbox is
    /// specified.
    pub defaults: ImageDefaults,
    /// Its entry point.
    pub entrypoint: Vec<String>,
    /// Its default command, or the arguments of its entry point.
    pub cmd: Vec<String>,
    /// Ports it says it serves, such as `80/tcp`.
    pub exposed_ports: Vec<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Bytes of all files in all layers; layers may be shared with other images.
    pub size_bytes: u64,
    /// When it was built, RFC 3339, if it says so.
    pub created: Option<String>,
    /// Architecture, such as `amd64`.
    pub architecture: String,
    /// Operating system, such as `linux`.
    pub os: String,
}

/// What is kept on disk about an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) digest: Digest,
    /// All layers, lowest first.
    pub(crate) layers: Vec<Prepared>,
    pub(crate) defaults: ImageDefaults,
    pub(crate) entrypoint: Vec<String>,
    pub(crate) cmd: Vec<String>,
    pub(crate) exposed_ports: Vec<String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) created: Option<String>,
    pub(crate) architecture: String,
    pub(crate) os: String,
}

impl Record {
    pub(crate) fn new(digest: Digest, config: Config, layers: Vec<Prepared>) -> Self {
        Self {
            digest,
            layers,
            defaults: config.defaults,
            entrypoint: config.entrypoint,
            cmd: config.cmd,
            exposed_ports: config.exposed_ports,
            labels: config.labels,
            created: config.created,
            architecture: config.architecture,
            os: config.os,
        }
    }

    pub(crate) fn image(&self, names: Vec<String>, layers: &Path) -> Image {
        let stack = stack(&self.layers);
        Image {
            digest: self.digest.clone(),
            names,
            size_bytes: stack.iter().map(|layer| layer.size_bytes).sum(),
            layers: stack.iter().map(|layer| Prepared::root(layers, &layer.key)).collect(),
            defaults: self.defaults.clone(),
            entrypoint: self.entrypoint.clone(),
            cmd: self.cmd.clone(),
            exposed_ports: self.exposed_ports.clone(),
            labels: self.labels.clone(),
            created: self.created.clone(),
            architecture: self.architecture.clone(),
            os: self.os.clone(),
        }
    }
}

/// Overlayfs refuses a directory that is there twice. Of equal layers only the highest matters: it brings
/// back everything that the lower one brought and hides everything that the lower one hid.
fn stack(layers: &[Prepared]) -> Vec<&Prepared> {
    let mut seen = BTreeSet::new();
    let mut stack: Vec<_> = layers.iter().rev().filter(|layer| seen.insert(&layer.key)).collect();
    stack.reverse();
    stack
}

/// The identities of the stacks that end with each of these layers.
pub(crate) fn chains(diff_ids: &[Digest]) -> Vec<Digest> {
    let mut chains: Vec<Digest> = Vec::with_capacity(diff_ids.len());
    for diff_id in diff_ids {
        let chain = chains.last().map_or_else(|| diff_id.clone(), |below| below.chain(diff_id));
        chains.push(chain);
    }
    chains
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equal_layers_the_highest_stays() {
        let layer = |key: &str| Prepared {
            key: key.into(),
            diff_id: Digest::of(key.as_bytes()),
            size_bytes: 1,
            boot: String::new(),
        };
        let layers = ["a", "b", "a", "c"].map(layer);
        let keys: Vec<_> = stack(&layers).iter().map(|layer| layer.key.as_str()).collect();
        assert_eq!(keys, ["b", "a", "c"]);
    }

    #[test]
    fn chains_as_specified() {
        let ids = [Digest::of(b"1"), Digest::of(b"2")];
        let chains = chains(&ids);
        assert_eq!(chains[0], ids[0]);
        assert_eq!(chains[1], Digest::of(format!("{} {}", ids[0], ids[1]).as_bytes()));
    }
}
