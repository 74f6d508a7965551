//! Snapshots of live instances, and replacing a disk by one.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use atoll_core::id::{SandboxId, SnapshotId};
use atoll_core::snapshot::CopyMethod;
use atoll_core::spec::IsolationLevel;
use atoll_failpoint::fail_point;
use atoll_isolation::{DiskSource, IsolationError, Plan, Taken, no_memory};
use atoll_isolation_storage::{DISK_FILE, Kind, MountedDisk, Use, mount_ext4};

use crate::Inner;
use crate::disk::Disk;
use crate::step::Step;

impl Inner {
    /// Takes a snapshot of a live instance's disk. Its processes stand still while the image is cloned; data that can
    /// be written out is written before.
    ///
    /// The processes are stopped, not the file system: to freeze a file system the kernel waits for three of its grace
    /// periods, some thirty milliseconds, even when there is nothing to write. Its journal is emptied instead, which takes
    /// a fraction of a millisecond.
    pub(crate) fn snapshot(&self, id: &SandboxId, artifact: &SnapshotId) -> Result<Taken, IsolationError> {
        let instance = self.living(id)?;
        self.storage.check_room()?;
        let to = self.storage.make_artifact(artifact)?.join(DISK_FILE);
        fail_point!("container::snapshot::artifact");
        let mount = match instance.disk_mount().step("copy a file descriptor")? {
            Some(mount) => mount,
            None => self.mount_again(id)?.ok_or(IsolationError::Gone)?,
        };
        let disk = MountedDisk::open(mount.as_fd())?;
        disk.write_out_until_little_is_left()?;
        let _alone = instance.freezing();
        let (copy, paused) = self.while_still(id, || {
            fail_point!("container::snapshot::frozen");
            self.storage.copy_mounted(&disk, &self.storage.sandbox_disk(id), &to)
        })?;
        fail_point!("container::snapshot::cloned");
        copy.finish()?;
        let method = if self.storage.kind() == Kind::Copy { CopyMethod::Copy } else { CopyMethod::Clone };
        Ok(Taken { usage: self.storage.artifact_usage(artifact)?, paused, method })
    }

    /// Does `work` while no process of a sandbox runs, and gives how long that took. A sandbox that stood still before
    /// does so afterwards. The caller holds the lock for stopping it and letting it go on.
    fn while_still<T>(
        &self,
        id: &SandboxId,
        work: impl FnOnce() -> Result<T, IsolationError>,
    ) -> Result<(T, Duration), IsolationError> {
        if self.cgroups.is_frozen(id)? {
            let since = Instant::now();
            return work().map(|done| (done, since.elapsed()));
        }
        let record = self.records.of(id);
        record.frozen().set()?;
        let since = Instant::now();
        let done = self.cgroups.freeze(id).and_then(|()| work());
        let thawed = self.cgroups.thaw(id);
        let paused = since.elapsed();
        thawed?;
        record.frozen().clear()?;
        done.map(|done| (done, paused))
    }

    /// Mounts the disk of an instance that another process made once more; `None` when nothing has it mounted.
    pub(crate) fn mount_again(&self, id: &SandboxId) -> Result<Option<OwnedFd>, IsolationError> {
        let bound = self.storage.container_loops()?;
        let device = bound.into_iter().find(|(sandbox, _)| sandbox == id);
        device.map(|(_, device)| mount_ext4(&device, Use::Again)).transpose()
    }

    /// Lets a sandbox go on that was stopped for a snapshot by a process that was then killed.
    pub(crate) fn thaw_left_over(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let record = self.records.of(id);
        if !record.frozen().is_set() {
            return Ok(());
        }
        match self.cgroups.thaw(id) {
            Ok(()) | Err(IsolationError::Gone) => record.frozen().clear(),
            Err(error) => Err(error),
        }
    }

    /// A disk with what the plan says.
    pub(crate) fn claim_disk(&self, plan: &Plan) -> Result<Disk, IsolationError> {
        let bytes = plan.resources.disk_bytes;
        match &plan.disk {
            DiskSource::WithMemory(..) | DiskSource::Asleep(_) => Err(no_memory(IsolationLevel::Container)),
            DiskSource::Artifact(artifact) => self
                .disks
                .make_from(bytes, |storage, path| storage.duplicate(&storage.artifact_disk(artifact)?, path)),
            DiskSource::Moved(artifact) => {
                self.disks.make_from(bytes, |storage, path| storage.move_artifact_disk(artifact, path))
            }
            DiskSource::Empty if bytes == self.pooled_disk_bytes => self.ready_disks.claim(),
            DiskSource::Empty => self.disks.make(bytes),
        }
    }

    /// Makes an instance anew. The disk is made while the old one still lives: what can fail for want of room
    /// fails before anything is lost.
    pub(crate) fn replace(
        &self,
        plan: &Plan,
        committed: Box<dyn FnOnce() + Send>,
    ) -> Result<(), IsolationError> {
        let disk = self.claim_disk(plan)?;
        fail_point!("container::replace::disk");
        committed();
        self.destroy(&plan.id)?;
        fail_point!("container::replace::destroyed");
        self.create_on(plan, disk)
    }
}
