//! Disks of sandboxes: snapshots of live ones, sandboxes that are nothing but their disk, and back.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use atoll_core::id::{SandboxId, SnapshotId};
use atoll_core::sandbox::PauseMode;
use atoll_core::snapshot::{Comparison, CopyMethod};
use atoll_failpoint::fail_point;
use atoll_isolation::{IsolationError, Plan, RootFs, Taken};
use atoll_isolation_storage::{DISK_FILE, Frozen, Kind, Use, filesystem, mount_ext4, until_released};

use crate::create;
use crate::step::Step;
use crate::{Inner, is_there};

/// Why memory cannot be written to disk: `runsc checkpoint` ends so before it has done anything.
pub(crate) fn no_memory() -> String {
    "memory pause unavailable: at the isolation level 'gvisor' sockets are the host's, and gVisor says 'checkpoint not \
     supported when using hostinet'"
        .to_owned()
}

impl Inner {
    /// Takes a snapshot. The sentry's writes wait from freeze to thaw; data that can be written out is written before.
    /// Freezing empties the disk's journal and says so in its superblock, so the clone is like a disk that was unmounted.
    pub(crate) fn snapshot(&self, id: &SandboxId, artifact: &SnapshotId) -> Result<Taken, IsolationError> {
        let sentry = self.living(id)?;
        let storage = &self.config.storage;
        storage.check_room()?;
        let to = storage.make_artifact(artifact)?.join(DISK_FILE);
        let mount = self.mount_again(id)?.ok_or(IsolationError::Gone)?;
        let _alone = sentry.freezing();
        let record = self.record(id);
        record.frozen().set()?;
        let frozen = Frozen::freeze(mount.as_fd())?;
        fail_point!("gvisor::snapshot::frozen");
        let made = storage.duplicate(&self.disk(id), &to);
        fail_point!("gvisor::snapshot::cloned");
        let paused = frozen.thaw()?;
        record.frozen().clear()?;
        drop(made?);
        let method = if storage.kind() == Kind::Copy { CopyMethod::Copy } else { CopyMethod::Clone };
        Ok(Taken { usage: storage.artifact_usage(artifact)?, paused, method })
    }

    /// The loop devices that have a sandbox's disk.
    fn bound(&self, id: &SandboxId) -> Result<Vec<PathBuf>, IsolationError> {
        let bound = self.config.storage.sentry_loops()?;
        Ok(bound.into_iter().filter(|(sandbox, _)| sandbox == id).map(|(_, device)| device).collect())
    }

    /// Mounts the disk of a live sandbox once more, which is the same file system; `None` when nothing has it mounted.
    fn mount_again(&self, id: &SandboxId) -> Result<Option<OwnedFd>, IsolationError> {
        let Some(device) = self.bound(id)?.pop() else { return Ok(None) };
        mount_ext4(&device, Use::Again).map(Some)
    }

    /// Lets a disk go on that was frozen by a process that was then killed. Until then a process that writes to it
    /// cannot even be killed.
    pub(crate) fn thaw_disk(&self, id: &SandboxId) -> Result<(), IsolationError> {
        if let Some(sentry) = self.live.get(id) {
            // A disk that this process freezes goes on when its snapshot is taken: wait for that.
            drop(sentry.freezing());
        }
        let record = self.record(id);
        if !record.frozen().is_set() {
            return Ok(());
        }
        if let Some(mount) = self.mount_again(id)? {
            Frozen::thaw_left_over(mount.as_fd())?;
        }
        record.frozen().clear()
    }

    /// Makes an instance anew. The disk is made while the old one still lives: what can fail for want of room
    /// fails before anything is lost.
    pub(crate) async fn replace(
        self: &Arc<Self>,
        plan: &Plan,
        committed: Box<dyn FnOnce() + Send>,
    ) -> Result<(), IsolationError> {
        create::check(plan)?;
        let platform = self.platform().await?;
        let disk = self.claim_disk(plan).await?;
        committed();
        self.destroy(&plan.id).await?;
        self.create_on(plan, disk, platform).await
    }

    pub(crate) fn compare(
        &self,
        root: &RootFs,
        from: Option<&SnapshotId>,
        to: &SnapshotId,
        with_text: bool,
    ) -> Result<Comparison, IsolationError> {
        let RootFs::Layers(layers) = root else {
            return Err(IsolationError::BadRoot(
                "the root of a sandbox in gVisor is an OCI image".to_owned(),
            ));
        };
        self.config.storage.compare(layers, from, to, with_text)
    }

    /// Whether its disk is all there is of it.
    pub(crate) fn is_hibernated(&self, id: &SandboxId) -> bool {
        self.record(id).is_cleared() && is_there(&self.disk(id)) && self.live.get(id).is_none()
    }

    pub(crate) async fn hibernate(
        self: &Arc<Self>,
        id: &SandboxId,
        mode: PauseMode,
    ) -> Result<(), IsolationError> {
        match mode {
            PauseMode::Filesystem => {}
            PauseMode::Memory => return Err(IsolationError::CannotPause(no_memory())),
            PauseMode::Frozen => {
                return Err(IsolationError::CannotPause("what is frozen is not hibernated".to_owned()));
            }
        }
        let record = self.record(id);
        if !record.exists() || !is_there(&self.disk(id)) {
            return Err(IsolationError::Gone);
        }
        if self.is_hibernated(id) {
            return Ok(());
        }
        fail_point!("gvisor::hibernate::start");
        self.end(id).await?;
        fail_point!("gvisor::hibernate::ended");
        let id = id.clone();
        self.blocking(move |inner| {
            inner.cgroups.remove(&id)?;
            fail_point!("gvisor::hibernate::cgroups");
            inner.release_disk(&id)?;
            let image = File::open(inner.disk(&id));
            image.and_then(|image| image.sync_all()).step("write the disk of a sandbox out")?;
            fail_point!("gvisor::hibernate::disk");
            let first_id = record.first_id();
            record.clear_life()?;
            if let Some(first_id) = first_id {
                inner.ranges().remove(&first_id);
            }
            Ok(())
        })
        .await
    }

    pub(crate) async fn wake(self: &Arc<Self>, plan: &Plan) -> Result<(), IsolationError> {
        create::check(plan)?;
        let (record, disk) = (self.record(&plan.id), self.disk(&plan.id));
        if !record.exists() || !is_there(&disk) {
            return Err(IsolationError::Gone);
        }
        let platform = self.platform().await?;
        fail_point!("gvisor::wake::start");
        let image = disk.clone();
        self.blocking(move |_| filesystem::recover(&image)).await?;
        self.claim_ids(&record)?;
        fail_point!("gvisor::wake::ids");
        self.start(plan, &record, &disk, platform).await
    }

    /// Waits until no loop device has the disk.
    pub(crate) fn release_disk(&self, id: &SandboxId) -> Result<(), IsolationError> {
        until_released(|| Ok(!self.bound(id)?.is_empty()))
    }
}
