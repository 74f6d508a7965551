//! What the engine asks of a driver, answered by the fake.

use std::fs::File;
use std::net::Ipv4Addr;
use std::sync::Arc;

use async_trait::async_trait;
use atoll_core::id::{SandboxId, SnapshotId};
use atoll_core::sandbox::PauseMode;
use atoll_core::snapshot::Comparison;
use atoll_core::spec::{IsolationLevel, Resources};
use tokio::sync::watch;

use super::artifact::{self, Artifact};
use super::guest::Files;
use super::{Connect, FakeIsolation, Instance, WITH_MEMORY, injected, kernel};
use crate::{
    ArtifactUsage, Artifacts, Check, Death, DiskSource, Gate, Gates, GuestStream, Isolation, IsolationError,
    Lifecycle, Original, Plan, Resource, RootFs, StandingStill, Status, Taken, Usage, Woken,
};

#[async_trait]
impl Isolation for FakeIsolation {
    fn level(&self) -> IsolationLevel {
        IsolationLevel::Container
    }

    async fn doctor(&self) -> Vec<Check> {
        vec![Check::new("fake", Status::Limited, "instances live in memory, nothing is isolated")]
    }

    fn check_limits(&self, resources: &Resources) -> Result<(), IsolationError> {
        if self.host.lock().no_io_limits { crate::no_io_limits(resources, self.level()) } else { Ok(()) }
    }

    async fn memory_available(&self) -> Option<u64> {
        self.host.count("memory_available").memory_available
    }

    async fn scan(&self) -> Result<Vec<Resource>, IsolationError> {
        let state = self.host.count("scan");
        let resource =
            |id: &SandboxId| Resource { sandbox: id.clone(), kind: "instance", name: format!("fake-{id}") };
        Ok(state.instances.keys().map(resource).collect())
    }
}

#[async_trait]
impl Lifecycle for FakeIsolation {
    async fn create(&self, plan: &Plan) -> Result<(), IsolationError> {
        let delay = self.host.count("create").create_delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let mut state = self.host.lock();
        if state.instances.contains_key(&plan.id) {
            return Err(IsolationError::Kernel {
                step: "make the instance".to_owned(),
                source: std::io::ErrorKind::AlreadyExists.into(),
            });
        }
        let fails = state.failing_creates > 0;
        state.failing_creates = state.failing_creates.saturating_sub(1);
        if !fails || state.half_made {
            let instance = Instance {
                plan: plan.clone(),
                guest: self.guest(plan, &state)?,
                death: watch::Sender::new(fails.then_some(Death::Exited)),
                usage: Usage { pids: 1, ..Usage::default() },
                hibernated: None,
            };
            if let DiskSource::Moved(artifact) = &plan.disk {
                state.artifacts.remove(artifact);
            }
            state.instances.insert(plan.id.clone(), instance);
        }
        if fails { Err(injected("make the instance")) } else { Ok(()) }
    }

    async fn adopt(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let mut state = self.host.count("adopt");
        if state.failing_adopts > 0 {
            state.failing_adopts -= 1;
            return Err(injected("take an instance up"));
        }
        state.instances.get(id).filter(|instance| instance.alive()).map(|_| ()).ok_or(IsolationError::Gone)
    }

    async fn died(&self, id: &SandboxId) -> Death {
        let mut death = match self.host.count("died").instances.get(id) {
            Some(instance) => instance.death.subscribe(),
            None => return Death::Exited,
        };
        // An instance that was removed has been killed before.
        match death.wait_for(Option::is_some).await {
            Ok(death) => death.clone().unwrap_or(Death::Exited),
            Err(_removed) => Death::Exited,
        }
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, IsolationError> {
        let state = self.host.count("usage");
        let there =
            state.instances.get(id).filter(|instance| instance.alive() || instance.hibernated.is_some());
        there.map(|instance| instance.usage).ok_or(IsolationError::Gone)
    }

    async fn update(&self, id: &SandboxId, resources: &Resources) -> Result<(), IsolationError> {
        let mut state = self.host.count("update");
        let live = state.instances.get_mut(id).filter(|instance| instance.alive());
        let live = live.ok_or(IsolationError::Gone)?;
        if live.guest.is_frozen() {
            return Err(injected("limit an instance that stands still"));
        }
        live.plan.resources = *resources;
        Ok(())
    }

    async fn rename(&self, id: &SandboxId, hostname: &str) -> Result<(), IsolationError> {
        let mut state = self.host.count("rename");
        if state.failing_renames > 0 {
            state.failing_renames -= 1;
            return Err(injected("set the host name"));
        }
        let live = state.instances.get_mut(id).filter(|instance| instance.alive());
        hostname.clone_into(&mut live.ok_or(IsolationError::Gone)?.plan.hostname);
        Ok(())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let mut state = self.host.count("destroy");
        if state.failing_destroys > 0 {
            state.failing_destroys -= 1;
            return Err(injected("remove the instance"));
        }
        if let Some(instance) = state.instances.remove(id) {
            instance.kill(Death::Exited);
        }
        Ok(())
    }

    async fn replace(&self, plan: &Plan, committed: Box<dyn FnOnce() + Send>) -> Result<(), IsolationError> {
        {
            let mut state = self.host.count("replace");
            if let DiskSource::Artifact(id) = &plan.disk
                && !state.artifacts.contains_key(id)
            {
                return Err(IsolationError::NoArtifact);
            }
            committed();
            if let Some(instance) = state.instances.remove(&plan.id) {
                instance.kill(Death::Exited);
            }
        }
        self.create(plan).await
    }
}

#[async_trait]
impl StandingStill for FakeIsolation {
    async fn freeze(&self, id: &SandboxId) -> Result<(), IsolationError> {
        Self::live(&self.host.count("freeze"), id)?.set_frozen(true);
        Ok(())
    }

    async fn thaw(&self, id: &SandboxId) -> Result<(), IsolationError> {
        Self::live(&self.host.count("thaw"), id)?.set_frozen(false);
        Ok(())
    }

    async fn reclaim(&self, id: &SandboxId) -> Result<u64, IsolationError> {
        let mut state = self.host.count("reclaim");
        let live = state.instances.get_mut(id).filter(|instance| instance.alive());
        let bytes = std::mem::take(&mut live.ok_or(IsolationError::Gone)?.usage.memory_bytes);
        state.reclaimed.push(id.clone());
        Ok(bytes)
    }

    fn memory_pause(&self) -> Result<(), IsolationError> {
        if self.host.lock().memory_pause {
            return Ok(());
        }
        Err(IsolationError::CannotPause("memory pause unavailable: this is a fake".to_owned()))
    }

    async fn hibernate(&self, id: &SandboxId, mode: PauseMode) -> Result<(), IsolationError> {
        if mode != PauseMode::Filesystem {
            self.memory_pause()?;
        }
        let mut state = self.host.count("hibernate");
        let instance = state.instances.get_mut(id).ok_or(IsolationError::Gone)?;
        match (mode, instance.hibernated) {
            // There is nothing left of it that could be kept, or it is kept already.
            (PauseMode::Frozen | PauseMode::Memory, Some(_)) => return Ok(()),
            (PauseMode::Frozen | PauseMode::Memory, None) => instance.fall_asleep(),
            (PauseMode::Filesystem, _) => instance.kill(Death::Exited),
        }
        instance.hibernated = Some(mode);
        instance.usage = Usage { disk_bytes: instance.usage.disk_bytes, ..Usage::default() };
        Ok(())
    }

    async fn hibernated_disk(&self, id: &SandboxId) -> Result<File, IsolationError> {
        let (files, bytes) = {
            let state = self.host.count("hibernated_disk");
            let instance = state.instances.get(id).filter(|instance| instance.hibernated.is_some());
            let instance = instance.ok_or(IsolationError::Gone)?;
            (instance.guest.files(), instance.plan.resources.disk_bytes)
        };
        let made = Artifact::with(&files, bytes).map_err(|source| kernel("read a disk", source))?;
        made.open().map_err(|source| kernel("read a disk", source))
    }

    async fn wake(&self, plan: &Plan) -> Result<Woken, IsolationError> {
        let mut state = self.host.count("wake");
        let fails = state.failing_wakes > 0;
        state.failing_wakes = state.failing_wakes.saturating_sub(1);
        let (runtime, foreign) = (self.host.runtime.clone(), state.foreign_memory.clone());
        let instance = state.instances.get_mut(&plan.id).ok_or(IsolationError::Gone)?;
        let woken = match (instance.hibernated.take().ok_or(IsolationError::Gone)?, foreign) {
            (PauseMode::Filesystem, _) => Woken::Disk,
            (PauseMode::Frozen | PauseMode::Memory, None) => Woken::Memory,
            (PauseMode::Frozen | PauseMode::Memory, Some(why)) => Woken::DiskInstead(why),
        };
        if woken == Woken::Memory {
            instance.guest.set_frozen(false);
        } else {
            instance.guest.end();
            instance.guest = instance.guest.boot_again(runtime);
        }
        instance.death.send_replace(None);
        instance.plan = plan.clone();
        if fails { Err(injected("wake the instance")) } else { Ok(woken) }
    }
}

#[async_trait]
impl Artifacts for FakeIsolation {
    async fn snapshot(&self, id: &SandboxId, artifact: &SnapshotId) -> Result<Taken, IsolationError> {
        self.take("snapshot", id, artifact)
    }

    fn keeps_memory(&self) -> bool {
        true
    }

    async fn snapshot_with_memory(
        &self,
        id: &SandboxId,
        artifact: &SnapshotId,
    ) -> Result<Taken, IsolationError> {
        self.take(WITH_MEMORY, id, artifact)
    }

    async fn artifacts(&self) -> Result<Vec<SnapshotId>, IsolationError> {
        Ok(self.host.count("artifacts").artifacts.keys().cloned().collect())
    }

    async fn settle_artifact(&self, artifact: &SnapshotId) -> Result<ArtifactUsage, IsolationError> {
        let state = self.host.count("settle_artifact");
        let found = state.artifacts.get(artifact).ok_or(IsolationError::NoArtifact)?;
        found.usage().map_err(|source| kernel("measure a snapshot", source))
    }

    async fn seal_artifact(&self, artifact: &SnapshotId) -> Result<ArtifactUsage, IsolationError> {
        let held = {
            let mut state = self.host.count("seal_artifact");
            let is_held = state.held_seals > 0;
            state.held_seals = state.held_seals.saturating_sub(1);
            is_held.then(|| Arc::clone(&state.seals_go_on).notified_owned())
        };
        if let Some(until_it_goes_on) = held {
            until_it_goes_on.await;
        }
        let state = self.host.lock();
        let found = state.artifacts.get(artifact).ok_or(IsolationError::NoArtifact)?;
        found.usage().map_err(|source| kernel("measure a snapshot", source))
    }

    async fn compare(
        &self,
        _root: &RootFs,
        from: Option<&SnapshotId>,
        to: &SnapshotId,
        _with_text: bool,
    ) -> Result<Comparison, IsolationError> {
        let state = self.host.count("compare");
        let files = |id: &SnapshotId| {
            let found = state.artifacts.get(id).ok_or(IsolationError::NoArtifact)?;
            found.files().map_err(|source| kernel("read a disk", source))
        };
        let (from, to) = (from.map_or_else(|| Ok(Files::new()), files)?, files(to)?);
        Ok(artifact::compare(&from, &to))
    }

    async fn read_artifact(&self, artifact: &SnapshotId) -> Result<File, IsolationError> {
        let state = self.host.count("read_artifact");
        let found = state.artifacts.get(artifact).ok_or(IsolationError::NoArtifact)?;
        found.open().map_err(|source| kernel("read a snapshot", source))
    }

    async fn write_artifact(&self, artifact: &SnapshotId, bytes: u64) -> Result<File, IsolationError> {
        let made = Artifact::empty(bytes).map_err(|source| kernel("make a snapshot", source))?;
        let disk = made.open().map_err(|source| kernel("write a snapshot", source))?;
        self.host.count("write_artifact").artifacts.insert(artifact.clone(), made);
        Ok(disk)
    }

    async fn check_artifact(&self, artifact: &SnapshotId) -> Result<ArtifactUsage, IsolationError> {
        let state = self.host.count("check_artifact");
        let found = state.artifacts.get(artifact).ok_or(IsolationError::NoArtifact)?;
        found.files().map_err(|error| IsolationError::BadArtifact(error.to_string()))?;
        found.usage().map_err(|source| kernel("measure a snapshot", source))
    }

    async fn remove_artifact(&self, artifact: &SnapshotId) -> Result<(), IsolationError> {
        self.host.count("remove_artifact").artifacts.remove(artifact);
        Ok(())
    }
}

#[async_trait]
impl Gates for FakeIsolation {
    async fn connect(&self, id: &SandboxId) -> Result<Box<dyn GuestStream>, IsolationError> {
        let (connect, guest) = {
            let state = self.host.count("connect");
            let instance = state.instances.get(id).filter(|instance| instance.alive());
            (state.connect, Arc::clone(&instance.ok_or(IsolationError::Gone)?.guest))
        };
        match connect {
            Connect::Works => Ok(Box::new(guest.serve())),
            Connect::Silent => Ok(Box::new(guest.silent())),
            Connect::Garbage => Ok(Box::new(guest.garbage())),
            Connect::Hangs => std::future::pending().await,
        }
    }

    /// Sockets on the host's loopback; nothing leads to them by itself.
    async fn gate(&self, id: &SandboxId) -> Result<Gate, IsolationError> {
        self.host.count("gate").instances.get(id).filter(|i| i.alive()).ok_or(IsolationError::Gone)?;
        let open = || {
            let tcp = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            tcp.set_nonblocking(true)?;
            let dns = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            dns.set_nonblocking(true)?;
            let (proxy, resolver) = (tcp.local_addr()?, dns.local_addr()?);
            Ok(Gate {
                tcp,
                dns: Some(dns),
                proxy,
                resolver,
                original: Original::LocalAddress,
                steering: Box::new(()),
                attribution: None,
                keeper: None,
            })
        };
        open().map_err(|source| IsolationError::Kernel { step: "open the gate".to_owned(), source })
    }
}
