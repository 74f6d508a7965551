//! How fast a machine's disks are. QEMU holds back what is more than the limits, image and disk counted together.
//!
//! A VMM forgets that when it ends, and nothing of it is in a saved machine, so the driver tells each VMM anew once its
//! machine is a sandbox: the sandbox is not charged for what its start costs. What it was told is written down in
//! `io.json`.
//!
//! A machine that is to write out what is only in its memory, because its disk is about to be copied or it is put to
//! disk, is not held back meanwhile: that could take longer than the caller waits. The file `unthrottled` says so; a
//! process that finds it puts the limits back.

use atoll_core::id::SandboxId;
use atoll_core::spec::Resources;
use atoll_failpoint::fail_point;
use atoll_isolation::IsolationError;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::{Inner, vmm};

/// How fast its disks are at most. Nothing: as fast as the host's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IoLimits {
    /// Read and written together.
    pub(crate) bytes_per_second: Option<u64>,
    /// Reads and writes.
    pub(crate) operations_per_second: Option<u32>,
}

impl IoLimits {
    pub(crate) fn of(resources: &Resources) -> Self {
        Self {
            bytes_per_second: resources.io_bytes_per_second,
            operations_per_second: resources.io_operations_per_second,
        }
    }

    fn are_none(self) -> bool {
        self == Self::default()
    }
}

impl Inner {
    /// Tells a VMM that knows of no limits yet.
    pub(crate) async fn begin_throttling(
        &self,
        id: &SandboxId,
        resources: &Resources,
    ) -> Result<(), IsolationError> {
        let (record, limits) = (self.record(id), IoLimits::of(resources));
        record.write_io(limits)?;
        if limits.are_none() {
            return Ok(());
        }
        vmm::throttle(&mut vmm::monitor(&record).await?, limits).await?;
        fail_point!("microvm::create::throttled");
        Ok(())
    }

    /// Other limits for a machine that runs.
    pub(crate) async fn throttle(
        &self,
        id: &SandboxId,
        machine: &Machine,
        resources: &Resources,
    ) -> Result<(), IsolationError> {
        let (record, limits) = (self.record(id), IoLimits::of(resources));
        // So that no other task puts the earlier limits back.
        let _alone = machine.alone().await;
        if record.io() == limits {
            return Ok(());
        }
        vmm::throttle(&mut vmm::monitor(&record).await?, limits).await?;
        record.write_io(limits)
    }

    /// Does `work`, for which the machine writes out its data, without limits. The caller holds [`Machine::alone`], and
    /// the machine runs.
    pub(crate) async fn unthrottled<T>(
        &self,
        id: &SandboxId,
        work: impl Future<Output = Result<T, IsolationError>>,
    ) -> Result<T, IsolationError> {
        self.lift_throttle(id).await?;
        fail_point!("microvm::snapshot::lifted");
        let done = work.await;
        let again = self.throttle_again(id).await;
        // The first error says more: if the VMM died meanwhile, it cannot be told the limits either.
        let done = done?;
        again.map(|()| done)
    }

    /// Lets the disks of a machine be as fast as they can.
    pub(crate) async fn lift_throttle(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let record = self.record(id);
        if record.io().are_none() {
            return Ok(());
        }
        record.unthrottled().set()?;
        vmm::throttle(&mut vmm::monitor(&record).await?, IoLimits::default()).await
    }

    /// Puts the limits back, if they were lifted.
    pub(crate) async fn throttle_again(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let record = self.record(id);
        if !record.unthrottled().is_set() {
            return Ok(());
        }
        vmm::throttle(&mut vmm::monitor(&record).await?, record.io()).await?;
        record.unthrottled().clear()
    }
}
