//! Sandboxes that go from node to node: everything that wakes one which is put to disk lies in the object store, too.
//!
//! ```text
//! index      what a copy consists of: pieces of the disk and of the logs, by digest
//! logs       the output of ended execs as one stream of bytes, and back
//! pieces     what is read becomes pieces: compared, compressed
//! send       the copy is made: pieces that are not there yet, then the index, then the row says so
//! checkpoint the same for one that runs and is to outlive its node; what one that moves has is sent ahead
//! keep       the task that does that after each hibernation, until it is done or the sandbox is woken
//! fetch      the way back: what comes is believed by its digest only
//! arrive     what came to this node is taken up; what dead nodes had is taken over
//! drain      what is on a node that takes no new sandboxes goes to others
//! collect    objects that no copy refers to are removed
//! ```
//!
//! There, below a directory that the database names, each sandbox has
//!
//! ```text
//! <sandbox>/<upload>/index      the index, whose digest is in the database
//! <sandbox>/<upload>/<digest>   a piece, compressed
//! ```
//!
//! An upload has a name of its own, so that no two processes ever write, or remove, under the same: neither a node that was taken
//! over and does not know it yet, nor one that stood still for an hour in the middle of it. A copy refers to pieces of its own
//! upload and of the copy before it, and to no others; what may be removed follows from that alone, see `atoll_store`'s module
//! `kept`.
//!
//! A sandbox that moves stands still from when it is put to disk until the other node wakes it. So its disk is sent before, while
//! it runs, as a clone of a moment; the copy is made of the disk that it has in the end, and sends what changed since.
//!
//! The memory of a machine is one more sequence of bytes with pieces, in the same index as the disk. What it needs of a node is
//! written beside it (`atoll_core::machine`); a node that has not all of that wakes the sandbox without, and says so.
//! Memory goes on once: a node writes down that it is used before it lets the machine go on, see `atoll_store`'s module `kept`.
//!
//! All of it is there on nodes with an object store only; one without says why its sandboxes stay when it is drained.

mod arrive;
mod checkpoint;
mod collect;
mod drain;
mod fetch;
mod index;
mod keep;
mod logs;
mod pieces;
mod send;

use std::path::{Path, PathBuf};

use atoll_core::id::SandboxId;
use atoll_core::{Code, Error, Result};
use atoll_objects::Objects;
use atoll_store::{SandboxRecord, Store};
use tokio::sync::Notify;

use crate::clock::random;
use crate::config::Config;
use crate::engine::Engine;
use crate::errors::store_error;
use crate::rooms::{Limits, Rooms, Who};

pub(crate) use checkpoint::{HOLDER as COPY_HOLDER, begin as begin_copy, check as check_durability};
pub(crate) use fetch::{Fetched, HOLDER};
pub(crate) use keep::Keeping;
pub(crate) use send::Upload;

/// How the reason of a sandbox begins that was woken without the memory with which it was put to disk.
pub(crate) const WITHOUT_MEMORY: &str = "woken without its memory";
/// Stands before that as long as it is paused.
pub(crate) const TO_BE: &str = "to be ";
/// The reason of a sandbox whose copied memory may have gone on, while it is paused.
pub(crate) const MEMORY_USED: &str =
    "to be woken without its memory, which may have gone on: its server ended as it woke";
/// Why a sandbox with agents does not move.
pub(crate) const AGENTS: &str = "agents live in it, whose sessions do not move yet";
/// Copies that are made, or fetched, at the same time. One owner has half of them: its large disks hold up no other's.
const AT_ONCE: Limits = Limits { all: 4, of_key: 4 };
/// Disks that came, or of which copies are made, and that are checked or put in order at the same time. What is on them
/// decides how long that takes: minutes, at worst.
const CHECKED_AT_ONCE: Limits = Limits { all: 6, of_key: 2 };

/// The way of sandboxes to other nodes.
#[derive(Debug)]
pub(crate) struct Travel {
    objects: Objects,
    /// The directory there.
    place: String,
    /// The directory here for what is on its way. Emptied at each start.
    dir: PathBuf,
    sending: Rooms,
    fetching: Rooms,
    checking: Rooms,
    /// Something may have come.
    pub(crate) arrivals: Notify,
    waking: arrive::Waking,
}

impl Travel {
    /// The way, where there is one.
    pub(crate) async fn open(config: &Config, store: &Store) -> Result<Option<Self>> {
        let (Some(objects), Some(_node)) = (&config.objects, store.lease()) else { return Ok(None) };
        let fresh = format!("{:016x}{:016x}", random()?, random()?);
        let place = store.kept_place(&fresh).await.map_err(store_error)?;
        store.give_uploads_up().await.map_err(store_error)?;
        let dir = config.data_dir.join("travel");
        empty(&dir).await.map_err(|error| {
            tracing::error!(%error, "the directory for sandboxes on their way cannot be used");
            Error::new(Code::Internal, "the directory for sandboxes on their way cannot be used")
        })?;
        Ok(Some(Self::new(objects.clone(), format!("kept/{place}"), dir)))
    }

    fn new(objects: Objects, place: String, dir: PathBuf) -> Self {
        Self {
            objects,
            place,
            dir,
            sending: Rooms::new(AT_ONCE),
            fetching: Rooms::new(AT_ONCE),
            checking: Rooms::new(CHECKED_AT_ONCE),
            arrivals: Notify::new(),
            waking: arrive::Waking::default(),
        }
    }

    /// The name of an object of a sandbox.
    fn object(&self, sandbox: &SandboxId, upload: &str, name: &str) -> String {
        format!("{}/{sandbox}/{upload}/{name}", self.place)
    }
}

async fn empty(dir: &Path) -> std::io::Result<()> {
    match tokio::fs::remove_dir_all(dir).await {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    tokio::fs::create_dir(dir).await
}

/// Whose rooms a sandbox takes.
fn owner_of(record: &SandboxRecord) -> Who {
    Who::new(record.owner.as_ref(), record.project.as_ref())
}

/// Why a sandbox cannot be woken on another node, even from a copy.
pub(crate) fn bound_here(record: &SandboxRecord) -> Option<&'static str> {
    (!record.spec.volumes.is_empty()).then_some("it has volumes, which are on this node")
}

impl Engine {
    /// Starts what a node does all the time for sandboxes that come and go.
    pub(crate) fn start_travel(&self) {
        if self.is_node() {
            // Without an object store it says why everything stays.
            self.spawn_while_open(drain::keep(self.clone()));
        }
        if self.inner.travel.is_some() {
            self.spawn_while_open(arrive::keep(self.clone()));
            self.spawn_while_open(collect::keep(self.clone()));
            self.spawn_while_open(crate::trace::keep_settled(self.clone()));
        }
    }
}
