//! What the engine asks of containers, by concern.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd;

use async_trait::async_trait;
use atoll_core::id::{SandboxId, SnapshotId};
use atoll_core::sandbox::PauseMode;
use atoll_core::snapshot::Comparison;
use atoll_core::spec::{IsolationLevel, Resources};
use atoll_isolation::{
    ArtifactUsage, Artifacts, Check, Death, Execution, Gate, Gates, GuestStream, HostLoad, Isolation,
    IsolationError, Lifecycle, Plan, PlannedLayer, Resource, RootFs, StandingStill, Taken, Usage, Woken,
    no_memory,
};
use tokio::net::UnixStream;

use crate::step::Step;
use crate::{ContainerIsolation, Inner, create, hibernate, probe};

#[async_trait]
impl Isolation for ContainerIsolation {
    fn level(&self) -> IsolationLevel {
        IsolationLevel::Container
    }

    async fn doctor(&self) -> Vec<Check> {
        self.blocking(|inner| Ok(probe::checks(inner))).await.unwrap_or_default()
    }

    fn check_limits(&self, resources: &Resources) -> Result<(), IsolationError> {
        create::check_limits(resources)
    }

    fn check_execution(&self, execution: &Execution) -> Result<(), IsolationError> {
        self.inner.check_execution(execution)
    }

    async fn set_execution(&self, id: &SandboxId, execution: &Execution) -> Result<(), IsolationError> {
        // Looks at memory only, where nothing has to be changed: not worth another thread.
        if self.inner.has_execution(id, execution)? {
            return Ok(());
        }
        let (id, execution) = (id.clone(), execution.clone());
        self.blocking(move |inner| inner.set_execution(&id, &execution)).await
    }

    fn check_layers(&self) -> Result<(), IsolationError> {
        Ok(())
    }

    async fn set_layers(&self, id: &SandboxId, layers: &[PlannedLayer]) -> Result<bool, IsolationError> {
        // One look at a name: not worth another thread.
        if layers.is_empty() && self.inner.has_no_layers(id)? {
            return Ok(true);
        }
        let (id, layers) = (id.clone(), layers.to_vec());
        self.blocking(move |inner| inner.set_layers(&id, &layers)).await?;
        Ok(true)
    }

    fn exec_starts(&self, id: &SandboxId, exec: &str, profile: &str) -> Result<(), IsolationError> {
        self.inner.exec_starts(id, exec, profile)
    }

    fn exec_started(&self, id: &SandboxId, exec: &str) {
        self.inner.exec_started(id, exec);
    }

    async fn memory_available(&self) -> Option<u64> {
        atoll_isolation_host::memory_available()
    }

    async fn host_load(&self) -> HostLoad {
        atoll_isolation_host::load()
    }

    async fn scan(&self) -> Result<Vec<Resource>, IsolationError> {
        self.blocking(Inner::scan).await
    }

    async fn sandboxes(&self) -> Result<BTreeSet<SandboxId>, IsolationError> {
        let parts = self.blocking(Inner::parts).await?;
        Ok(parts.into_iter().map(|part| part.sandbox).collect())
    }

    async fn close(&self) {
        let closed = self.blocking(|inner| {
            inner.witness.as_ref().inspect(|witness| witness.close()).ok();
            Ok(())
        });
        if let Err(error) = closed.await {
            tracing::error!(%error, "cannot stop reading what the kernel tells of sandboxes");
        }
    }
}

#[async_trait]
impl Lifecycle for ContainerIsolation {
    async fn create(&self, plan: &Plan) -> Result<(), IsolationError> {
        let plan = plan.clone();
        self.blocking(move |inner| inner.create(&plan)).await
    }

    async fn adopt(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let id = id.clone();
        self.blocking(move |inner| inner.adopt(&id)).await
    }

    async fn died(&self, id: &SandboxId) -> Death {
        let Some(instance) = self.inner.live.get(id) else { return Death::Exited };
        if let Err(error) = instance.ended().await {
            tracing::error!(%id, %error, "cannot watch a sandbox's process; taking it for dead");
        }
        self.inner.death(id, &instance)
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, IsolationError> {
        let id = id.clone();
        self.blocking(move |inner| {
            let disk_bytes = inner.disk_bytes(&id);
            if inner.is_hibernated(&id) {
                return Ok(Usage { disk_bytes, ..Usage::default() });
            }
            // The use of a dead sandbox can be measured as long as its cgroups are there.
            Ok(Usage { disk_bytes, ..inner.cgroups.usage(&id)? })
        })
        .await
    }

    async fn oom_kills(&self, id: &SandboxId) -> Result<u64, IsolationError> {
        // One small read of a file in memory: not worth another thread.
        self.inner.cgroups.oom_kills(id)
    }

    async fn update(&self, id: &SandboxId, resources: &Resources) -> Result<(), IsolationError> {
        let (id, resources) = (id.clone(), *resources);
        self.blocking(move |inner| {
            inner.living(&id)?;
            create::check_limits(&resources)?;
            inner.cgroups.limit(&id, &resources)
        })
        .await
    }

    fn names_new_ones(&self) -> bool {
        true
    }

    async fn rename(&self, id: &SandboxId, hostname: &str) -> Result<(), IsolationError> {
        let (id, hostname) = (id.clone(), hostname.to_owned());
        self.blocking(move |inner| inner.rename(&id, hostname)).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let id = id.clone();
        self.blocking(move |inner| inner.destroy(&id)).await
    }

    async fn replace(&self, plan: &Plan, committed: Box<dyn FnOnce() + Send>) -> Result<(), IsolationError> {
        let plan = plan.clone();
        self.blocking(move |inner| inner.replace(&plan, committed)).await
    }
}

#[async_trait]
impl StandingStill for ContainerIsolation {
    async fn freeze(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let id = id.clone();
        self.blocking(move |inner| {
            let instance = inner.living(&id)?;
            let _alone = instance.freezing();
            inner.cgroups.freeze(&id)
        })
        .await
    }

    async fn thaw(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let instance = self.inner.living(id)?;
        if let Some(_alone) = instance.try_freezing() {
            // One small write to a file in memory, which does not wait: not worth another thread.
            return self.inner.cgroups.thaw(id);
        }
        let id = id.clone();
        self.blocking(move |inner| {
            let _alone = instance.freezing();
            inner.cgroups.thaw(&id)
        })
        .await
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
        Err(IsolationError::CannotPause(hibernate::no_memory()))
    }

    async fn hibernate(&self, id: &SandboxId, mode: PauseMode) -> Result<(), IsolationError> {
        let id = id.clone();
        self.blocking(move |inner| inner.hibernate(&id, mode)).await
    }

    async fn wake(&self, plan: &Plan) -> Result<Woken, IsolationError> {
        let plan = plan.clone();
        self.blocking(move |inner| inner.wake(&plan).map(|()| Woken::Disk)).await
    }

    async fn hibernated_disk(&self, id: &SandboxId) -> Result<File, IsolationError> {
        let id = id.clone();
        self.blocking(move |inner| {
            if !inner.is_hibernated(&id) || inner.live.get(&id).is_some() {
                return Err(IsolationError::Gone);
            }
            File::open(inner.storage.sandbox_disk(&id)).step("open the disk of a sandbox")
        })
        .await
    }
}

#[async_trait]
impl Artifacts for ContainerIsolation {
    async fn snapshot(&self, id: &SandboxId, artifact: &SnapshotId) -> Result<Taken, IsolationError> {
        let (id, artifact) = (id.clone(), artifact.clone());
        self.blocking(move |inner| inner.snapshot(&id, &artifact)).await
    }

    async fn snapshot_with_memory(&self, _: &SandboxId, _: &SnapshotId) -> Result<Taken, IsolationError> {
        Err(no_memory(self.level()))
    }

    async fn artifacts(&self) -> Result<Vec<SnapshotId>, IsolationError> {
        self.inner.stored().list().await
    }

    async fn settle_artifact(&self, artifact: &SnapshotId) -> Result<ArtifactUsage, IsolationError> {
        self.inner.stored().settle(artifact).await
    }

    async fn seal_artifact(&self, artifact: &SnapshotId) -> Result<ArtifactUsage, IsolationError> {
        self.inner.stored().seal(artifact).await
    }

    async fn compare(
        &self,
        root: &RootFs,
        from: Option<&SnapshotId>,
        to: &SnapshotId,
        with_text: bool,
    ) -> Result<Comparison, IsolationError> {
        let (root, from, to) = (root.clone(), from.cloned(), to.clone());
        self.blocking(move |inner| {
            let layers = match root {
                RootFs::Host => vec![inner.skeleton.dir().to_owned()],
                RootFs::Layers(layers) => layers,
            };
            inner.storage.compare(&layers, from.as_ref(), &to, with_text)
        })
        .await
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

    async fn remove_artifact(&self, artifact: &SnapshotId) -> Result<(), IsolationError> {
        self.inner.stored().remove(artifact).await
    }
}

#[async_trait]
impl Gates for ContainerIsolation {
    async fn connect(&self, id: &SandboxId) -> Result<Box<dyn GuestStream>, IsolationError> {
        self.inner.living(id)?;
        // The descriptor names the socket itself: even when its path changes meanwhile, nothing else is reached.
        let socket = self.inner.records.of(id).socket()?;
        let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
        match UnixStream::connect(path).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Err(IsolationError::Gone),
            Err(error) => Err(error).step("connect to the guest agent"),
        }
    }

    async fn gate(&self, id: &SandboxId) -> Result<Gate, IsolationError> {
        if let Some(gate) = self.inner.ready_gate(id)? {
            return Ok(gate);
        }
        let id = id.clone();
        self.blocking(move |inner| inner.new_gate(&id)).await
    }
}
