//! Ends an instance but for its disk, and starts it again on that.
//!
//! What a hibernated sandbox has on the host is its directory and its disk image. Its ids are given back, too: the
//! disk stores the image's (`docs/decisions/0002`), so any other range will do when it wakes.
//!
//! Memory is not written out. See `docs/decisions/0006` for what was tried.

use std::fs::File;
use std::os::fd::AsFd;

use atoll_core::id::SandboxId;
use atoll_core::sandbox::PauseMode;
use atoll_failpoint::fail_point;
use atoll_isolation::{IsolationError, Plan};
use atoll_isolation_host::Process;
use atoll_isolation_storage::until_released;

use crate::step::Step;
use crate::{Inner, create};

impl Inner {
    /// Blocks for as long as it takes to write the disk's changes to the host's disk.
    pub(crate) fn hibernate(&self, id: &SandboxId, mode: PauseMode) -> Result<(), IsolationError> {
        match mode {
            PauseMode::Filesystem => {}
            PauseMode::Memory => return Err(IsolationError::CannotPause(no_memory())),
            PauseMode::Frozen => {
                return Err(IsolationError::CannotPause("what is frozen is not hibernated".to_owned()));
            }
        }
        let record = self.records.of(id);
        let image = self.storage.sandbox_disk(id);
        if !record.dir().try_exists().is_ok_and(|there| there)
            || !image.try_exists().step("find the disk of a sandbox")?
        {
            return Err(IsolationError::Gone);
        }
        if self.is_hibernated(id) && self.live.get(id).is_none() {
            return Ok(());
        }
        fail_point!("container::hibernate::start");
        self.thaw_unused(id)?;
        let mounted = self.end_processes(id)?.disk;
        fail_point!("container::hibernate::processes");
        self.cgroups.remove(id)?;
        self.forget(id)?;
        fail_point!("container::hibernate::cgroups");
        // The last thing that keeps it mounted.
        drop(mounted);
        self.release_disk(id)?;
        fail_point!("container::hibernate::disk");
        let first_id = record.first_id();
        record.clear_run()?;
        if let Some(first_id) = first_id {
            self.ranges.give_back(first_id);
        }
        Ok(())
    }

    /// Waits until no loop device has the disk, then for the host's disk to have it.
    fn release_disk(&self, id: &SandboxId) -> Result<(), IsolationError> {
        until_released(|| self.is_bound(id))?;
        let image = File::open(self.storage.sandbox_disk(id));
        image.and_then(|image| image.sync_all()).step("write the disk of a sandbox out")
    }

    fn is_bound(&self, id: &SandboxId) -> Result<bool, IsolationError> {
        Ok(self.storage.container_loops()?.iter().any(|(sandbox, _)| sandbox == id))
    }

    /// Blocks for some milliseconds.
    pub(crate) fn wake(&self, plan: &Plan) -> Result<(), IsolationError> {
        create::check(plan)?;
        let making = self.storage.begin_making(&plan.id)?;
        making.end(self.wake_known(plan))
    }

    fn wake_known(&self, plan: &Plan) -> Result<(), IsolationError> {
        let record = self.records.of(&plan.id);
        fail_point!("container::wake::start");
        let disk = self.disks.reopen(&self.storage.sandbox_disk(&plan.id))?;
        let mut userns = self.userns.claim()?;
        record.claim_ids(userns.first_id())?;
        userns.keep();
        fail_point!("container::wake::disk");
        let membership = self.cgroups.create(&plan.id, &plan.resources, userns.first_id())?;
        self.watch(plan, userns.first_id(), disk.mount.as_fd(), false)?;
        let listener = record.listen()?;
        let pid = self.start(plan, &userns, disk, membership, listener)?;
        fail_point!("container::wake::process");
        let process = Process::read(pid).step("read the start time of a process")?;
        record.write_process(process)
    }
}

/// Why processes cannot be written to disk.
pub(crate) fn no_memory() -> String {
    "memory pause unavailable: containers are not written to disk with their processes, because their detached mounts \
     have no place by which they could be recorded"
        .to_owned()
}
