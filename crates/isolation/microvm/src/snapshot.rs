//! Snapshots of live machines' disks, and replacing a disk by one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_core::id::{SandboxId, SnapshotId};
use atoll_core::snapshot::{Comparison, CopyMethod};
use atoll_failpoint::fail_point;
use atoll_guest_protocol::control::Question;
use atoll_isolation::{IsolationError, Plan, RootFs, Taken};
use atoll_isolation_storage::{DISK_FILE, Kind, filesystem};
use tokio::sync::OwnedMutexGuard;

use crate::Inner;
use crate::machine::{ANSWER_TIMEOUT, Machine};
use crate::step::Step;

impl Inner {
    /// Takes a snapshot. The machine writes its disk out, empties its journal and holds it still while it is cloned; should
    /// this process end in between, the machine notices and goes on.
    pub(crate) async fn snapshot(
        self: &Arc<Self>,
        id: &SandboxId,
        artifact: &SnapshotId,
    ) -> Result<Taken, IsolationError> {
        let (inner, id, artifact) = (Arc::clone(self), id.clone(), artifact.clone());
        // In a task of its own: it brings the machine back to what it was even when the caller stops waiting.
        let taking = tokio::spawn(async move { inner.take_snapshot(&id, &artifact).await });
        taking.await.map_err(std::io::Error::other).step("run a task")?
    }

    async fn take_snapshot(
        self: &Arc<Self>,
        id: &SandboxId,
        artifact: &SnapshotId,
    ) -> Result<Taken, IsolationError> {
        let (machine, _alone, dir) = self.begin_snapshot(id, artifact).await?;
        // A machine that stands still has to write its disk out, too.
        let paused = self.while_awake(id, self.copy_disk(id, &machine, dir.join(DISK_FILE))).await?;
        self.taken(artifact, paused)
    }

    /// Makes the directory of an artifact. From here on no other task stops the machine or lets it go on.
    pub(crate) async fn begin_snapshot(
        self: &Arc<Self>,
        id: &SandboxId,
        artifact: &SnapshotId,
    ) -> Result<(Arc<Machine>, OwnedMutexGuard<()>, PathBuf), IsolationError> {
        let machine = self.living(id)?;
        let artifact = artifact.clone();
        let made = self.blocking(move |inner| {
            inner.config.storage.check_room()?;
            inner.config.storage.make_artifact(&artifact)
        });
        let dir = made.await?;
        let alone = machine.alone().await;
        self.living(id)?;
        Ok((machine, alone, dir))
    }

    pub(crate) fn taken(&self, artifact: &SnapshotId, paused: Duration) -> Result<Taken, IsolationError> {
        let storage = &self.config.storage;
        let method = if storage.kind() == Kind::Copy { CopyMethod::Copy } else { CopyMethod::Clone };
        Ok(Taken { usage: storage.artifact_usage(artifact)?, paused, method })
    }

    async fn copy_disk(
        self: &Arc<Self>,
        id: &SandboxId,
        machine: &Machine,
        to: PathBuf,
    ) -> Result<Duration, IsolationError> {
        let since = Instant::now();
        let held = machine.ask(Question::Still(true), ANSWER_TIMEOUT).await;
        fail_point!("microvm::snapshot::still");
        let copied = match held {
            Ok(_) => {
                let from = self.config.storage.machine(id).join(DISK_FILE);
                self.blocking(move |inner| inner.config.storage.duplicate(&from, &to)).await.map(drop)
            }
            // The machine may have received the question.
            Err(error) => Err(error),
        };
        machine.ask(Question::Still(false), ANSWER_TIMEOUT).await?;
        copied.map(|()| since.elapsed())
    }

    /// Makes an instance anew. The disk is made while the old one still lives: what can fail for want of room
    /// fails before anything is lost.
    pub(crate) async fn replace(
        self: &Arc<Self>,
        plan: &Plan,
        committed: Box<dyn FnOnce() + Send>,
    ) -> Result<(), IsolationError> {
        let disk = self.claim_disk(plan).await?;
        committed();
        self.destroy(&plan.id).await?;
        self.create_on(plan, disk).await
    }

    /// Compares two artifacts. A machine's disk is what its own kernel made of it, so it is put in order and checked
    /// like one that came from elsewhere before the host's kernel reads it. A kernel that is honest leaves nothing in the
    /// journal of a disk that it holds still; what another leaves there, a confined program reads.
    pub(crate) fn compare(
        &self,
        root: &RootFs,
        from: Option<&SnapshotId>,
        to: &SnapshotId,
        with_text: bool,
    ) -> Result<Comparison, IsolationError> {
        let RootFs::Layers(layers) = root else {
            return Err(IsolationError::BadRoot("a machine's root is an OCI image".to_owned()));
        };
        let storage = &self.config.storage;
        for artifact in from.into_iter().chain([to]) {
            if filesystem::check(&storage.artifact_disk(artifact)?).is_err() {
                self.seal_artifact(artifact)?;
                filesystem::check(&storage.artifact_disk(artifact)?)?;
            }
        }
        storage.compare(layers, from, to, with_text)
    }
}
