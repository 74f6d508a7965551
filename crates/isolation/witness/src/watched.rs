//! A sandbox that is watched.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use atoll_core::id::SandboxId;
use serde::{Deserialize, Serialize};

use crate::gate::Gate;
use crate::ring::Ring;

/// A layer of a sandbox's image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// What events call it: its digest.
    pub name: String,
    /// Where its files are.
    pub dir: PathBuf,
}

/// Facts about a sandbox that the kernel does not show.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The host's id of root inside.
    pub first_id: u32,
    /// Layers of its image, the lowest first.
    pub layers: Vec<Layer>,
    /// Devices (as `stat` has them) of directories of the host that it sees read-only at the same place.
    pub bound: Vec<u64>,
    /// Device (as `stat` has it) and inode of the directory of the host that it has instead of an image.
    #[serde(default)]
    pub bound_root: Option<(u64, u64)>,
    /// A file above the layers that was changed last before this moment, milliseconds since the epoch, counts as its
    /// image's all the same.
    #[serde(default)]
    pub image_until_ms: Option<u64>,
    /// The directory of the host with the doors to its profiles that it is shown.
    #[serde(default)]
    pub doors: Option<PathBuf>,
}

/// One that is watched now.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) sandbox: SandboxId,
    /// Its cgroup of version 2.
    pub(crate) cgroup: u64,
    pub(crate) slot: u32,
    pub(crate) facts: Facts,
    pub(crate) ring: Arc<Ring>,
    pub(crate) reading: Mutex<Reading>,
    /// Which programs may run in it: used to describe events. The kernel's tables have a copy of their own.
    pub(crate) gate: Mutex<Gate>,
    /// Names of cgroups of execs that the kernel's programs expect to start, and of which they were not yet told that
    /// they have started. One table holds those of all sandboxes, so each sandbox has a share: a guest whose connection
    /// breaks at every start of an exec fills only its own share. `None`: the sandbox was taken out of the tables, and
    /// no more execs are entered.
    pub(crate) starting: Mutex<Option<BTreeSet<String>>>,
}

/// How far its records were read.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// An earlier server read this ring: what it wrote down must not be written again.
    pub(crate) taken_over: bool,
    /// It ran before it was watched, and that is not recorded yet.
    pub(crate) late: bool,
}
