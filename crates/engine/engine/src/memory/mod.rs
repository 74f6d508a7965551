//! Templates with memory: one sandbox of the template is booted, and copied with its memory when what the template
//! starts is ready. Later sandboxes go on from the copy: they run and are ready when they are made.
//!
//! ```text
//! keep (one task): newest versions that want it ─▶ which lacks a copy ─▶ make: a sandbox without an owner, its copy
//!        ▲                                                                  │ saved
//!        │ it could not be used                                             ▼
//! creations, pools ── find: does it fit? ──▶ go on from it; else, or when that fails, boot and start as ever
//! ```
//!
//! A copy is a snapshot that its template holds, with a directory beside it:
//!
//! ```text
//! <data>/memories/<snapshot>/
//!   about.json     what it is good for, which exec is the start command
//!   log/           what the start command had written
//! ```
//!
//! The start command is an exec of each copy: it gets a row, and its output up to the moment of the copy, and a
//! session takes it up there as after a restart of the server. In the copy's guest it has the row's id.
//!
//! A caller that waits for a sandbox never waits for a copy to be made. A request for other limits, environment,
//! policy, image or volumes than the copy was made with gets a sandbox that boots. What a crash leaves of a copy is
//! undone like any snapshot; directories without a ready snapshot are removed at the next start.

mod begin;
mod keep;
mod make;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::{ExecId, SnapshotId};
use atoll_core::policy::EgressPolicy;
use atoll_core::pool::Mold;
use atoll_core::spec::{IsolationLevel, SandboxSpec};
use atoll_core::{Code, Error, Result};
use atoll_store::{SnapshotRecord, TemplateRecord};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

pub(crate) use keep::start;

use crate::boxed;
use crate::engine::{Engine, Inner};
use crate::start::starts_ahead;

/// The name that holds the snapshots; the template's `name:version` follows.
const HOLDER: &str = "the memory of the template ";
/// Pause after a failure: doubles from the first to the last.
const REST_FIRST_MS: u64 = 5_000;
const REST_LAST_MS: u64 = 600_000;

/// What is written down beside the snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct About {
    /// Digest of what a sandbox must be that goes on from it.
    fits: String,
    /// The start command in its guest.
    exec: ExecId,
    pid: Option<u32>,
}

/// A copy that sandboxes can go on from.
#[derive(Debug)]
pub(crate) struct Saved {
    record: SnapshotRecord,
    about: About,
    dir: PathBuf,
}

/// Where a template is with its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateMemoryState {
    /// The copy is being made, or soon will be. Sandboxes boot.
    Saving,
    /// Sandboxes go on from the copy.
    Saved,
    /// Making the copy or going on from it failed; it is made again later. Sandboxes boot.
    Failed,
    /// There is a newer version, and only that has one. Sandboxes of this version boot.
    Superseded,
}

/// The memory of a version of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateMemory {
    /// Where it is.
    pub state: TemplateMemoryState,
    /// What failed last.
    pub problem: Option<String>,
    /// When the copy was made, milliseconds since the epoch.
    pub saved_ms: Option<u64>,
    /// What it takes on the host, bytes.
    pub stored_bytes: Option<u64>,
}

/// What is known of one version of a template.
#[derive(Debug, Default)]
struct Entry {
    saved: Option<Arc<Saved>>,
    making: bool,
    problem: Option<String>,
    /// None is made before this, after a failure.
    rests_until_ms: u64,
    rest_ms: u64,
}

impl Entry {
    fn failed(&mut self, why: &Error, now_ms: u64) {
        self.rest_ms = (self.rest_ms * 2).clamp(REST_FIRST_MS, REST_LAST_MS);
        self.rests_until_ms = now_ms.saturating_add(self.rest_ms);
        self.problem = Some(why.message.clone());
    }
}

#[derive(Debug, Default)]
struct State {
    /// By `name:version`.
    entries: BTreeMap<String, Entry>,
    /// Copies that are used no more, for the keeper to remove once no creation is about to go on from them.
    retired: Vec<Arc<Saved>>,
}

/// The memories of an engine's templates.
#[derive(Debug, Default)]
pub(crate) struct Memories {
    state: Mutex<State>,
    /// Wakes the keeper.
    nudge: Notify,
}

impl Memories {
    /// Held for look-ups and small changes, never across an await.
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while holding it leaves plain maps, which the next round puts right.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that a template changed.
    pub(crate) fn changed(&self) {
        self.nudge.notify_one();
    }

    /// A sandbox goes on from a copy: failures before it are forgotten.
    pub(crate) fn worked(&self, template: Option<&str>) {
        let mut state = self.lock();
        if let Some(entry) = template.and_then(|template| state.entries.get_mut(template)) {
            (entry.rest_ms, entry.problem) = (0, None);
        }
    }

    /// A copy could not be used: it is put away, and another made later.
    pub(crate) fn failed(&self, saved: Arc<Saved>, why: &Error, now_ms: u64) {
        // The next server may use it.
        if why.code == Code::ShuttingDown {
            return;
        }
        let mut state = self.lock();
        let uses = |entry: &&mut Entry| entry.saved.as_ref().is_some_and(|other| Arc::ptr_eq(other, &saved));
        if let Some(entry) = state.entries.values_mut().find(uses) {
            entry.saved = None;
            entry.failed(why, now_ms);
            state.retired.push(saved);
        }
        drop(state);
        self.nudge.notify_one();
    }
}

/// What a sandbox must be to go on from a copy: the same to the last limit. Programs size themselves by what they
/// find when they start.
fn fits(spec: &SandboxSpec, mold: &Mold) -> Result<String> {
    let what = (&mold.image, mold.isolation, &mold.origin, spec.accelerator, spec.resources);
    let text = serde_json::to_vec(&what).map_err(|error| {
        tracing::error!(%error, "a spec cannot be written as JSON");
        Error::new(Code::Internal, "the request cannot be planned")
    })?;
    Ok(blake3::hash(&text).to_hex().to_string())
}

impl Inner {
    /// The copy that a sandbox can go on from, if there is one.
    pub(crate) fn find_memory(&self, spec: &SandboxSpec, mold: &Mold) -> Option<Arc<Saved>> {
        let template = spec
            .template
            .as_deref()
            .filter(|_| starts_ahead(spec) && spec.volumes.is_empty() && spec.layers.is_empty())?;
        let saved = self.memories.lock().entries.get(template)?.saved.clone()?;
        (fits(spec, mold).ok()? == saved.about.fits).then_some(saved)
    }

    /// Where what belongs to a copy lies besides its snapshot.
    fn memory_dir(&self, id: &SnapshotId) -> PathBuf {
        self.memories_dir().join(id.as_str())
    }

    fn memories_dir(&self) -> PathBuf {
        self.config.data_dir.join("memories")
    }
}

impl Engine {
    /// Refuses memory to a template that could never have one. `starts`: it says what it starts, and when that is
    /// ready.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`]; [`Code::IsolationUnavailable`].
    pub(crate) fn check_can_keep_memory(
        &self,
        level: IsolationLevel,
        starts: bool,
        egress: Option<&EgressPolicy>,
    ) -> Result<()> {
        if !self.inner.driver(level)?.keeps_memory() {
            let why =
                format!("sandboxes of the isolation level '{level}' cannot be copied with their memory");
            return Err(Error::new(Code::IsolationUnavailable, why)
                .hint("leave the memory out, or use the isolation level 'microvm'"));
        }
        if !starts {
            let why = "it is saved when what the template starts is ready: the template says what that is, and when";
            return Err(Error::invalid("memory", why)
                .hint("give it a start command, and a ready command or the port that it listens on"));
        }
        if egress.is_some_and(|egress| !egress.inject.is_empty()) {
            return Err(Error::invalid(
                "memory",
                "the template puts secrets into requests: what it starts has to wait for the owner whose secrets they are",
            )
            .hint("leave the memory out"));
        }
        Ok(())
    }

    /// Where a version of a template is with its memory; `None` when it wants none.
    ///
    /// # Errors
    /// [`Code::StoreUnavailable`].
    #[boxed]
    pub async fn template_memory(&self, template: &TemplateRecord) -> Result<Option<TemplateMemory>> {
        if !template.spec.memory {
            return Ok(None);
        }
        let newest = match self.template(&template.name, None).await {
            Ok(newest) => newest.version == template.version,
            // Removed since it was looked up.
            Err(error) if error.code == Code::TemplateNotFound => false,
            Err(error) => return Err(error),
        };
        let state = self.inner.memories.lock();
        let entry = state.entries.get(&versioned(template)).filter(|_| newest);
        let saved = entry.and_then(|entry| entry.saved.as_ref());
        let problem = entry.and_then(|entry| entry.problem.clone());
        Ok(Some(TemplateMemory {
            state: match (newest, saved, &problem) {
                (false, ..) => TemplateMemoryState::Superseded,
                (true, Some(_), _) => TemplateMemoryState::Saved,
                (true, None, Some(_)) => TemplateMemoryState::Failed,
                (true, None, None) => TemplateMemoryState::Saving,
            },
            problem,
            saved_ms: saved.map(|saved| saved.record.created_ms),
            stored_bytes: saved.map(|saved| saved.record.stored_bytes),
        }))
    }
}

/// `name:version`, as sandboxes name it.
fn versioned(template: &TemplateRecord) -> String {
    format!("{}:{}", template.name, template.version)
}
