//! A sandbox that is watched.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use atoll_core::id::SandboxId;
use serde::{Deserialize, Serialize};

use crate::gate::Gate;
use crate::growth::Pace;
use crate::object::GROWN_BYTES;
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
    pub(crate) rings: Mutex<Rings>,
    /// Whether it may be given a larger ring. Held while it is given one: whoever takes the sandbox away waits for that.
    pub(crate) may_grow: Mutex<bool>,
    pub(crate) reading: Mutex<Reading>,
    /// Which programs may run in it: used to describe events. The kernel's tables have a copy of their own.
    pub(crate) gate: Mutex<Gate>,
    /// Names of cgroups of execs that the kernel's programs expect to start, and of which they were not yet told that
    /// they have started. One table holds those of all sandboxes, so each sandbox has a share: a guest whose connection
    /// breaks at every start of an exec fills only its own share. `None`: the sandbox was taken out of the tables, and
    /// no more execs are entered.
    pub(crate) starting: Mutex<Option<BTreeSet<String>>>,
}

/// The rings of a sandbox, in the order in which the kernel's programs wrote to them.
#[derive(Debug, Clone)]
pub(crate) struct Rings {
    /// The one that is read.
    pub(crate) now: Arc<Ring>,
    /// The larger one to which the programs write now, and to `now` no more: it is read when that has been read to its
    /// end.
    pub(crate) next: Option<Arc<Ring>>,
}

impl Rings {
    /// Of a sandbox with one ring.
    pub(crate) const fn of(ring: Arc<Ring>) -> Self {
        Self { now: ring, next: None }
    }

    /// Each of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Ring>> {
        std::iter::once(&self.now).chain(&self.next)
    }

    /// The one to which the kernel's programs write.
    pub(crate) const fn last(&self) -> &Arc<Ring> {
        match &self.next {
            Some(next) => next,
            None => &self.now,
        }
    }

    /// Whether there is anything to do for who reads them.
    pub(crate) fn are_to_read(&self) -> bool {
        self.next.is_some() || self.now.waits()
    }

    /// Whether they are less than what a busy sandbox is given.
    pub(crate) fn are_small(&self) -> bool {
        self.last().bytes() < GROWN_BYTES as usize
    }

    /// Goes on with the larger ring; gives the one that was read to its end.
    pub(crate) fn turn(&mut self) -> Option<Arc<Ring>> {
        self.next.take().map(|next| std::mem::replace(&mut self.now, next))
    }
}

/// How far its records were read.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// An earlier server read this ring: what it wrote down must not be written again.
    pub(crate) taken_over: bool,
    /// It ran before it was watched, and that is not recorded yet.
    pub(crate) late: bool,
    /// How many of them come.
    pub(crate) pace: Pace,
}
