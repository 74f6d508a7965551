//! Taking a snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_core::id::{SandboxId, SnapshotId};
use atoll_core::limits::{SNAPSHOT_TAGS_MAX_COUNT, SNAPSHOTS_MAX_COUNT};
use atoll_core::snapshot::{FORMAT, Manifest, Purpose, Reference, SnapshotKind, SnapshotState, comment};
use atoll_core::spec::SandboxSpec;
use atoll_core::{Code, Error, Result, spec};
use atoll_isolation::IsolationError;
use atoll_store::{SandboxRecord, SnapshotOutcome, SnapshotRecord};

use crate::authorize::Caller;
use crate::boxed;
use crate::clock::random;
use crate::engine::{Engine, Inner};
use crate::errors::{isolation_error, store_error};
use crate::sandbox::SandboxShared;

/// A snapshot that a caller wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotOrder {
    /// What it is for.
    pub purpose: Purpose,
    /// References that shall point to it, whatever they point to now.
    pub tags: Vec<Reference>,
    /// The caller's note.
    pub comment: Option<String>,
    /// Its id, from [`Engine::new_snapshot_id`], for a caller that has to tell it before the snapshot is there.
    pub id: Option<SnapshotId>,
    /// Values that sandboxes made from it begin with, in place of those of its own sandbox.
    pub begin: Begin,
    /// What is to be in it.
    pub kind: SnapshotKind,
}

/// Changes of what a sandbox begins with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Begin {
    /// Variables on top.
    pub env: BTreeMap<String, String>,
    /// Another default user.
    pub user: Option<String>,
    /// Another default working directory.
    pub workdir: Option<String>,
}

impl Begin {
    fn validate(&self) -> Result<()> {
        spec::env("env", &self.env)?;
        self.user.as_deref().map_or(Ok(()), |user| spec::user("user", user))?;
        self.workdir.as_deref().map_or(Ok(()), |dir| spec::path("workdir", dir))
    }

    fn over(self, mut manifest: Manifest) -> Manifest {
        manifest.env.extend(self.env);
        manifest.user = self.user.unwrap_or(manifest.user);
        manifest.workdir = self.workdir.or(manifest.workdir);
        manifest
    }
}

impl SnapshotOrder {
    /// One for people, without a name.
    #[must_use]
    pub const fn unnamed() -> Self {
        Self::without_name(Purpose::Snapshot, None)
    }

    /// One for this purpose, without a name.
    pub(crate) const fn without_name(purpose: Purpose, comment: Option<String>) -> Self {
        let begin = Begin { env: BTreeMap::new(), user: None, workdir: None };
        Self { purpose, tags: Vec::new(), comment, id: None, begin, kind: SnapshotKind::Disk }
    }

    fn validate(&self) -> Result<()> {
        if self.tags.len() > SNAPSHOT_TAGS_MAX_COUNT {
            return Err(Error::invalid("tags", format_args!("more than {SNAPSHOT_TAGS_MAX_COUNT}")));
        }
        self.begin.validate()?;
        self.comment.as_deref().map_or(Ok(()), comment)
    }
}

impl Engine {
    /// An id for a snapshot that is going to be made.
    ///
    /// # Errors
    /// [`Code::Internal`] when the host has no randomness.
    pub fn new_snapshot_id(&self) -> Result<SnapshotId> {
        Inner::new_snapshot_id(self.inner.now_ms())
    }

    /// Takes a snapshot of a sandbox, which goes on. When the caller stops waiting, it is taken all the same.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`], [`Code::SandboxFailed`], [`Code::InvalidState`]; [`Code::HostDiskFull`];
    /// [`Code::LimitExceeded`]. Nothing is left of a snapshot that could not be taken.
    #[boxed]
    pub async fn create_snapshot(
        &self,
        sandbox: &SandboxId,
        order: SnapshotOrder,
        caller: &Caller,
    ) -> Result<SnapshotRecord> {
        if self.inner.shutdown.is_cancelled() {
            return Err(Error::new(Code::ShuttingDown, "the server is shutting down"));
        }
        order.validate()?;
        let sandbox = self.inner.sandbox(sandbox)?;
        // Checked again when the snapshot is there: this check refuses before the work.
        self.check_references(sandbox.record().project.as_ref(), &order.tags, caller).await?;
        let using = sandbox.usable().await?;
        let (engine, caller) = (self.clone(), caller.clone());
        let taking = async move {
            let _using = using;
            engine.take_snapshot(&sandbox, order, &caller).await
        };
        let taken = self.inner.tracker.spawn(taking).await;
        taken.unwrap_or_else(|_panicked| Err(Error::new(Code::Internal, "taking the snapshot broke off")))
    }

    /// The same, of a sandbox that is known to be usable.
    pub(crate) async fn take_snapshot(
        &self,
        sandbox: &Arc<SandboxShared>,
        order: SnapshotOrder,
        caller: &Caller,
    ) -> Result<SnapshotRecord> {
        let inner = &self.inner;
        let _use = sandbox.in_use();
        let mut record =
            new_record(self.inner.now_ms(), &sandbox.record(), order.purpose, order.comment, caller)?;
        record.id = order.id.unwrap_or(record.id);
        record.manifest = order.begin.over(record.manifest);
        record.manifest.kind = order.kind;
        {
            // A change of the sandbox's visibility comes before this, or finds the snapshot's row.
            let _unchanged = inner.acl.unchanging().await;
            record.private = inner.acl.is_private(&sandbox.id);
            self.begin_snapshot(&mut record).await?;
        }
        atoll_failpoint::fail_point!("engine.snapshot.journalled");
        let (driver, boot) = (sandbox.driver(), sandbox.boot());
        let taken = match order.kind {
            SnapshotKind::Disk => driver.snapshot(&sandbox.id, &record.id).await,
            SnapshotKind::Memory => driver.snapshot_with_memory(&sandbox.id, &record.id).await,
        };
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) => {
                self.undo_snapshot(&record).await;
                return Err(sandbox.unless_ended(&boot, refusal(&error)));
            }
        };
        if is_told(&record.purpose)
            && let Err(error) = driver.settle_artifact(&record.id).await
        {
            self.undo_snapshot(&record).await;
            return Err(sandbox.unless_ended(&boot, isolation_error(&error)));
        }
        atoll_failpoint::fail_point!("engine.snapshot.taken");
        let outcome = SnapshotOutcome {
            stored_bytes: taken.usage.stored_bytes,
            paused_us: Some(u64::try_from(taken.paused.as_micros()).unwrap_or(u64::MAX)),
            method: taken.method,
            digest: None,
            tags: order.tags,
        };
        let ready = self.finish_snapshot(record, &outcome, caller).await?;
        if ready.purpose.checkpoint().is_some() && sandbox.dead.is_cancelled() {
            // The task that takes the sandbox apart may have looked for its checkpoints before this one was ready.
            self.delete_unused_snapshot(&ready).await?;
            return Err(Error::new(Code::SandboxFailed, "the sandbox died"));
        }
        sandbox.trace.snapshot(&ready);
        atoll_failpoint::fail_point!("engine.snapshot.finished");
        // No client names a snapshot that something else holds: it gets a digest when one is needed.
        if !matches!(ready.purpose, Purpose::Held(_)) {
            inner.tracker.spawn(super::digest::digest_later(self.clone(), ready.id.clone()));
        }
        Ok(ready)
    }

    /// Writes a snapshot down that is going to be made.
    pub(crate) async fn begin_snapshot(&self, record: &mut SnapshotRecord) -> Result<()> {
        let count = self.inner.store.count_snapshots().await.map_err(store_error)?;
        if count >= SNAPSHOTS_MAX_COUNT {
            return Err(Error::new(Code::LimitExceeded, format!("there are {count} snapshots already"))
                .hint("remove some"));
        }
        record.purpose = self.inner.store.insert_snapshot(record).await.map_err(|error| match error {
            // The sandbox of a checkpoint went meanwhile.
            atoll_store::StoreError::NotFound => Error::new(Code::SandboxNotFound, "the sandbox is gone"),
            other => store_error(other),
        })?;
        Ok(())
    }

    /// Writes down that a snapshot is made, or undoes it.
    pub(crate) async fn finish_snapshot(
        &self,
        record: SnapshotRecord,
        outcome: &SnapshotOutcome,
        caller: &Caller,
    ) -> Result<SnapshotRecord> {
        let finished = async {
            let _turn = self.inner.snapshots.naming.lock().await;
            self.check_references(record.project.as_ref(), &outcome.tags, caller).await?;
            self.inner.store.finish_snapshot(&record.id, outcome).await.map_err(store_error)
        };
        if let Err(error) = finished.await {
            self.undo_snapshot(&record).await;
            return Err(error);
        }
        self.snapshot(&record.id).await
    }

    /// Removes what is there of a snapshot that could not be made. What resists is removed at the next start.
    pub(crate) async fn undo_snapshot(&self, record: &SnapshotRecord) {
        if let Err(error) = self.remove_snapshot(record).await {
            tracing::error!(snapshot = %record.id, %error, "a snapshot that failed could not be undone yet");
        }
    }

    /// Removes artifact and row, in this order: while the row is there a crash is made good.
    pub(super) async fn remove_snapshot(&self, record: &SnapshotRecord) -> Result<()> {
        self.inner.pools.let_go_of_snapshot(&record.id);
        let driver = self.inner.driver(record.manifest.isolation)?;
        driver.remove_artifact(&record.id).await.map_err(|error| isolation_error(&error))?;
        atoll_failpoint::fail_point!("engine.snapshot.removed");
        self.inner.store.delete_snapshot(&record.id).await.map_err(store_error)?;
        Ok(())
    }
}

impl Inner {
    pub(crate) fn new_snapshot_id(now_ms: u64) -> Result<SnapshotId> {
        Ok(SnapshotId::from_parts(now_ms, random()?))
    }
}

/// Whether the client is told that the snapshot is kept, and so may look for it after a power cut. This is true of all
/// but those that are there for a moment, and those that follow each command.
fn is_told(purpose: &Purpose) -> bool {
    match purpose {
        Purpose::Snapshot | Purpose::Checkpoint(_) => true,
        Purpose::AutoCheckpoint(_) => false,
        Purpose::Held(by) => ![super::fork::HOLDER, super::compare::HOLDER].contains(&by.as_str()),
    }
}

fn refusal(error: &IsolationError) -> Error {
    match error {
        IsolationError::Unavailable(why) => Error::new(Code::IsolationUnavailable, why.clone())
            .hint("leave the memory out, or make sandboxes with the isolation level 'microvm'"),
        other => isolation_error(other),
    }
}

fn new_record(
    created_ms: u64,
    sandbox: &SandboxRecord,
    purpose: Purpose,
    comment: Option<String>,
    caller: &Caller,
) -> Result<SnapshotRecord> {
    Ok(SnapshotRecord {
        id: Inner::new_snapshot_id(created_ms)?,
        state: SnapshotState::Creating,
        sandbox: Some(sandbox.id.clone()),
        purpose,
        comment,
        manifest: manifest(&sandbox.spec, sandbox.image_digest.clone()),
        digest: None,
        stored_bytes: 0,
        paused_us: None,
        method: None,
        created_ms,
        created_by: caller.key.clone(),
        project: sandbox.project.clone(),
        private: false,
        tags: Vec::new(),
    })
}

/// The manifest of a sandbox's disk.
pub(crate) fn manifest(spec: &SandboxSpec, image_digest: Option<String>) -> Manifest {
    Manifest {
        format: FORMAT,
        kind: SnapshotKind::Disk,
        image: spec.image.clone(),
        image_digest,
        isolation: spec.isolation,
        resources: spec.resources,
        env: spec.env.clone(),
        user: spec.user.clone(),
        workdir: spec.workdir.clone(),
        layers: spec.layers.clone(),
    }
}
