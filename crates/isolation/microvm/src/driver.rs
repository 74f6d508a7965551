//! What the engine asks of machines, by concern.

use std::collections::BTreeSet;
use std::fs::File;

use async_trait::async_trait;
use atoll_core::id::{SandboxId, SnapshotId};
use atoll_core::machine::{MemoryNeeds, Platform};
use atoll_core::sandbox::PauseMode;
use atoll_core::snapshot::Comparison;
use atoll_core::spec::{Accelerator, IsolationLevel, Resources};
use atoll_isolation::{
    ArtifactUsage, Artifacts, Check, Death, DiskIo, Gate, Gates, GuestStream, HibernatedMemory, HostLoad,
    Isolation, IsolationError, Lifecycle, Plan, Resource, RootFs, StandingStill, Taken, Usage, Woken,
};

use crate::create::no_volumes;
use crate::step::Step;
use crate::{Inner, MicrovmIsolation};

#[async_trait]
impl Isolation for MicrovmIsolation {
    fn level(&self) -> IsolationLevel {
        IsolationLevel::Microvm
    }

    fn accelerator(&self) -> Option<Accelerator> {
        Some(self.inner.accelerator())
    }

    fn platform(&self) -> Option<Platform> {
        Some(self.inner.platform())
    }

    async fn doctor(&self) -> Vec<Check> {
        self.inner.checks().await
    }

    fn check_limits(&self, _resources: &Resources) -> Result<(), IsolationError> {
        Ok(())
    }

    fn check_volumes(&self) -> Result<(), IsolationError> {
        no_volumes()
    }

    async fn memory_available(&self) -> Option<u64> {
        atoll_isolation_host::memory_available()
    }

    async fn host_load(&self) -> HostLoad {
        atoll_isolation_host::load()
    }

    async fn close(&self) {
        self.inner.stop_preparing().await;
    }

    async fn scan(&self) -> Result<Vec<Resource>, IsolationError> {
        self.blocking(Inner::scan).await
    }

    async fn sandboxes(&self) -> Result<BTreeSet<SandboxId>, IsolationError> {
        let parts = self.blocking(Inner::parts).await?;
        Ok(parts.into_iter().map(|part| part.sandbox).collect())
    }
}

#[async_trait]
impl Lifecycle for MicrovmIsolation {
    async fn create(&self, plan: &Plan) -> Result<(), IsolationError> {
        let making = self.inner.config.storage.begin_making(&plan.id)?;
        making.end(self.inner.create(plan).await)
    }

    async fn adopt(&self, id: &SandboxId) -> Result<(), IsolationError> {
        self.inner.adopt(id).await
    }

    async fn died(&self, id: &SandboxId) -> Death {
        self.inner.died(id).await
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, IsolationError> {
        self.inner.usage(id).await
    }

    async fn oom_kills(&self, id: &SandboxId) -> Result<u64, IsolationError> {
        self.inner.oom_kills(id).await
    }

    async fn disk_io(&self, id: &SandboxId) -> Option<DiskIo> {
        self.inner.disk_io(id).await
    }

    async fn update(&self, id: &SandboxId, resources: &Resources) -> Result<(), IsolationError> {
        self.inner.update(id, resources).await
    }

    async fn rename(&self, id: &SandboxId, hostname: &str) -> Result<(), IsolationError> {
        self.inner.rename(id, hostname).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), IsolationError> {
        self.inner.destroy(id).await
    }

    async fn replace(&self, plan: &Plan, committed: Box<dyn FnOnce() + Send>) -> Result<(), IsolationError> {
        self.inner.replace(plan, committed).await
    }
}

#[async_trait]
impl StandingStill for MicrovmIsolation {
    async fn freeze(&self, id: &SandboxId) -> Result<(), IsolationError> {
        self.inner.freeze(id).await
    }

    async fn thaw(&self, id: &SandboxId) -> Result<(), IsolationError> {
        self.inner.thaw(id).await
    }

    async fn reclaim(&self, id: &SandboxId) -> Result<u64, IsolationError> {
        let id = id.clone();
        self.blocking(move |inner| {
            inner.living(&id)?;
            inner.cgroups.reclaim(&id)
        })
        .await
    }

    fn memory_pause(&self) -> Result<(), IsolationError> {
        Ok(())
    }

    async fn hibernate(&self, id: &SandboxId, mode: PauseMode) -> Result<(), IsolationError> {
        self.inner.hibernate(id, mode).await
    }

    async fn hibernated_memory(&self, plan: &Plan) -> Result<Option<HibernatedMemory>, IsolationError> {
        self.inner.hibernated_memory(plan).await
    }

    async fn wake(&self, plan: &Plan) -> Result<Woken, IsolationError> {
        let making = self.inner.config.storage.begin_making(&plan.id)?;
        making.end(self.inner.wake(plan).await)
    }

    async fn hibernated_disk(&self, id: &SandboxId) -> Result<File, IsolationError> {
        let id = id.clone();
        self.blocking(move |inner| {
            if !inner.is_hibernated(&id) {
                return Err(IsolationError::Gone);
            }
            File::open(inner.disk(&id)).step("open the disk of a sandbox")
        })
        .await
    }
}

#[async_trait]
impl Artifacts for MicrovmIsolation {
    async fn snapshot(&self, id: &SandboxId, artifact: &SnapshotId) -> Result<Taken, IsolationError> {
        self.inner.snapshot(id, artifact).await
    }

    fn keeps_memory(&self) -> bool {
        true
    }

    async fn snapshot_with_memory(
        &self,
        id: &SandboxId,
        artifact: &SnapshotId,
    ) -> Result<Taken, IsolationError> {
        self.inner.snapshot_with_memory(id, artifact).await
    }

    async fn artifacts(&self) -> Result<Vec<SnapshotId>, IsolationError> {
        self.inner.stored().list().await
    }

    async fn settle_artifact(&self, artifact: &SnapshotId) -> Result<ArtifactUsage, IsolationError> {
        let artifact = artifact.clone();
        self.blocking(move |inner| inner.settle_artifact(&artifact)).await
    }

    async fn seal_artifact(&self, artifact: &SnapshotId) -> Result<ArtifactUsage, IsolationError> {
        let artifact = artifact.clone();
        self.blocking(move |inner| inner.seal_artifact(&artifact)).await
    }

    async fn compare(
        &self,
        root: &RootFs,
        from: Option<&SnapshotId>,
        to: &SnapshotId,
        with_text: bool,
    ) -> Result<Comparison, IsolationError> {
        let (root, from, to) = (root.clone(), from.cloned(), to.clone());
        self.blocking(move |inner| inner.compare(&root, from.as_ref(), &to, with_text)).await
    }

    async fn read_artifact(&self, artifact: &SnapshotId) -> Result<File, IsolationError> {
        self.inner.stored().read(artifact).await
    }

    async fn write_artifact(&self, artifact: &SnapshotId, bytes: u64) -> Result<File, IsolationError> {
        self.inner.stored().write(artifact, bytes).await
    }

    async fn check_artifact(&self, artifact: &SnapshotId) -> Result<ArtifactUsage, IsolationError> {
        self.inner.stored().check(artifact).await
    }

    async fn write_artifact_memory(
        &self,
        artifact: &SnapshotId,
        plan: &Plan,
        needs: &MemoryNeeds,
        bytes: u64,
    ) -> Result<File, IsolationError> {
        self.inner.expect_memory(artifact, plan, needs, bytes).await
    }

    async fn check_artifact_memory(
        &self,
        artifact: &SnapshotId,
        needs: &MemoryNeeds,
    ) -> Result<(), IsolationError> {
        let (artifact, needs) = (artifact.clone(), needs.clone());
        self.blocking(move |inner| inner.accept_memory(&artifact, &needs)).await
    }

    async fn remove_artifact(&self, artifact: &SnapshotId) -> Result<(), IsolationError> {
        self.inner.stored().remove(artifact).await
    }
}

#[async_trait]
impl Gates for MicrovmIsolation {
    async fn connect(&self, id: &SandboxId) -> Result<Box<dyn GuestStream>, IsolationError> {
        self.inner.connect(id).await
    }

    async fn gate(&self, id: &SandboxId) -> Result<Gate, IsolationError> {
        let id = id.clone();
        self.blocking(move |inner| inner.gate(&id)).await
    }
}
