//! Builds of templates.
//!
//! ```text
//! create_build ─▶ drive (one task): wait for the context ─▶ wait for room ─▶ run ─▶ clean up ─▶ record
//!                                                                             │
//!         plan: keys of all steps are known before anything runs  ◀───────────┤
//!         a sandbox from the last step that is in the cache, or the image     │
//!         step by step in that one sandbox; after each a snapshot ─▶ cache ◀──┘
//! ```
//!
//! What a step made is a snapshot held for the build cache. A template version points to the snapshot of its last
//! step: there is one artifact, no matter what points to it, and it goes when neither a key of the cache nor a template
//! does. [`cache`] looks for those after every build, after a deletion, and at every start, so that no crash
//! leaves one.
//!
//! Who builds chooses what its steps wait for, and may never send a context. So builds that have not ended, and those that
//! run, are in [rooms](crate::rooms): a key leaves some to others, also of the [memory](indexes) for what their contexts consist
//! of. A context is received without a thread, and one that is still coming ends with its build.
//!
//! A build belongs to the process that runs it: one that a crash interrupts is `failed` at the next start, its
//! sandboxes are deleted, and building again goes on after the last step that was kept.

mod base;
mod cache;
mod calls;
mod context;
mod copy;
mod drive;
mod fetch;
mod indexes;
mod inputs;
mod journal;
mod live;
mod mount;
mod run;
mod step;
mod verify;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::build::{BuildState, StepState};
use atoll_core::id::BuildId;
use atoll_core::limits::{BUILD_CONTEXTS_MEMORY_MAX_BYTES, BUILDS_OPEN_MAX_COUNT, BUILDS_RUNNING_MAX_COUNT};

pub use cache::{CacheEntry, CachePruned};
pub use calls::BuildView;
pub use journal::{BuildLog, LogEntry, LogPage};
pub use live::{BuildSecrets, ImageLogin};

use crate::engine::Inner;
use crate::rooms::{Limits, Rooms};
use cache::Pins;
use indexes::Indexes;
use live::Live;

/// Counts of builds, for metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BuildStats {
    /// Builds that have not ended, by state.
    pub open: BTreeMap<BuildState, u64>,
    /// Builds that have ended since the start of the server, by state.
    pub ended: BTreeMap<BuildState, u64>,
    /// Steps since the start of the server, by what became of them.
    pub steps: BTreeMap<StepState, u64>,
}

/// What the engine keeps for builds.
#[derive(Debug)]
pub(crate) struct Builds {
    live: Mutex<BTreeMap<BuildId, Arc<Live>>>,
    /// Rooms of builds that have not ended.
    open: Rooms,
    /// Rooms of those that run.
    running: Rooms,
    /// Memory of their contexts' indexes.
    indexes: Indexes,
    pins: Pins,
    /// What has ended.
    counts: Mutex<BuildStats>,
}

impl Default for Builds {
    fn default() -> Self {
        Self {
            live: Mutex::default(),
            open: shared(BUILDS_OPEN_MAX_COUNT),
            running: shared(BUILDS_RUNNING_MAX_COUNT),
            indexes: Indexes::new(BUILD_CONTEXTS_MEMORY_MAX_BYTES),
            pins: Pins::default(),
            counts: Mutex::default(),
        }
    }
}

/// So many rooms, of which a key may have all that its share gives it.
fn shared(all: usize) -> Rooms {
    Rooms::new(Limits { all, of_key: all })
}

impl Builds {
    fn live(&self) -> MutexGuard<'_, BTreeMap<BuildId, Arc<Live>>> {
        // A panic while holding it leaves a plain map.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self) -> MutexGuard<'_, BuildStats> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts of what there is and was.
    pub(crate) fn stats(&self) -> BuildStats {
        let mut stats = self.counts().clone();
        for build in self.live().values() {
            let state = build.record().state;
            if !state.is_final() {
                *stats.open.entry(state).or_default() += 1;
            }
        }
        stats
    }
}

impl Inner {
    /// Where a build keeps its log and its context.
    fn build_dir(&self, id: &BuildId) -> PathBuf {
        self.config.data_dir.join("builds").join(id.as_str())
    }

    fn build_log_dir(&self, id: &BuildId) -> PathBuf {
        self.build_dir(id).join("log")
    }
}
