//! Makes a machine for a sandbox, and removes one. Every step leaves something that carries the sandbox's id, and
//! [`Inner::destroy`] removes all of it that is there.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::spec::IsolationLevel;
use atoll_failpoint::fail_point;
use atoll_guest_protocol::control::{Become, Carried, Question};
use atoll_isolation::{DiskSource, IsolationError, Plan};
use atoll_isolation_host::check_hostname;
use atoll_isolation_storage::{DISK_FILE, Spare};
use atoll_network::{RESOLVER_ADDRESS, Slot, Steering};

use crate::control::moment;
use crate::machine::{Machine, limits};
use crate::record::Size;
use crate::step::{Step, failed};
use crate::template::{self, starting_limits, vmm_limits};
use crate::vmm::{self, Memory, Model, Place};
use crate::{Inner, chain, prepared};

/// How long a restored machine may take to become a sandbox: longer means that the restoration stalled.
pub(crate) const BECOME_TIMEOUT: Duration = Duration::from_secs(30);

/// What to start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Started<'a> {
    pub(crate) id: &'a SandboxId,
    pub(crate) model: &'a Model,
    pub(crate) memory: Memory<'a>,
    pub(crate) image: &'a Path,
    pub(crate) disk: &'a Path,
}

pub(crate) fn check(plan: &Plan) -> Result<(), IsolationError> {
    check_hostname(&plan.hostname)?;
    atoll_isolation::no_execution_policy(&plan.execution, IsolationLevel::Microvm)?;
    if !plan.layers.is_empty() {
        return Err(atoll_isolation::layers::no_layers(IsolationLevel::Microvm));
    }
    if plan.volumes.is_empty() { Ok(()) } else { no_volumes() }
}

pub(crate) fn no_volumes() -> Result<(), IsolationError> {
    Err(IsolationError::Unenforceable(
        "volumes cannot be mounted at the isolation level 'microvm': a disk that several kernels write to would be lost"
            .to_owned(),
    ))
}

impl Inner {
    pub(crate) async fn create(self: &Arc<Self>, plan: &Plan) -> Result<(), IsolationError> {
        if let DiskSource::WithMemory(artifact, _) = &plan.disk {
            return self.create_with_memory(plan, artifact).await;
        }
        if let DiskSource::Asleep(artifact) = &plan.disk {
            return self.go_on_here(plan, artifact).await;
        }
        check(plan)?;
        if plan.disk != DiskSource::Empty {
            return self.create_anew(plan).await;
        }
        let kind = prepared::Kind::of(plan, &self.image(&plan.root).await?)?;
        if let Some(dir) = self.prepared_for(&kind) {
            let Err(error) = self.create_from(plan, &dir).await else { return Ok(()) };
            tracing::warn!(id = %plan.id, error = chain(&error), "a prepared machine could not be used");
            self.forget_prepared(&dir);
            self.destroy(&plan.id).await?;
        }
        self.create_anew(plan).await?;
        self.prepare_later(kind, plan);
        Ok(())
    }

    async fn create_anew(self: &Arc<Self>, plan: &Plan) -> Result<(), IsolationError> {
        let disk = self.claim_disk(plan).await?;
        fail_point!("microvm::create::disk");
        self.create_on(plan, disk).await
    }

    /// The same, on a disk that is there already.
    pub(crate) async fn create_on(self: &Arc<Self>, plan: &Plan, disk: Spare) -> Result<(), IsolationError> {
        check(plan)?;
        let image = self.image(&plan.root).await?;
        let model = self.model(template::size(&plan.resources));
        let saved = self.saved(&model).await?;
        let disk = self.settle_in(plan, model.size, disk)?;
        let start = Started {
            id: &plan.id,
            model: &model,
            memory: Memory::Copied(&saved),
            image: &image,
            disk: &disk,
        };
        self.start_sandbox(plan, start).await
    }

    /// Makes what a sandbox has besides its machine; gives its disk.
    pub(crate) fn settle_in(&self, plan: &Plan, size: Size, disk: Spare) -> Result<PathBuf, IsolationError> {
        self.record(&plan.id).create()?;
        self.settle_on_record(plan, size, disk)
    }

    /// The same, where its record is there already.
    pub(crate) fn settle_on_record(
        &self,
        plan: &Plan,
        size: Size,
        disk: Spare,
    ) -> Result<PathBuf, IsolationError> {
        let record = self.record(&plan.id);
        record.write_size(size)?;
        fail_point!("microvm::create::directory");
        self.claim_uid(&record)?;
        fail_point!("microvm::create::user");
        let dir = self.config.storage.machine(&plan.id);
        DirBuilder::new().mode(0o700).create(&dir).step("make the directory of a machine")?;
        disk.move_to(dir.join(DISK_FILE))
    }

    /// Restores a machine and makes it a sandbox. A restoration that stalls is tried once more.
    pub(crate) async fn start_sandbox(
        self: &Arc<Self>,
        plan: &Plan,
        start: Started<'_>,
    ) -> Result<(), IsolationError> {
        let mut machine = self.restore(plan, start).await;
        if machine.as_ref().is_err_and(is_stall) {
            tracing::warn!(id = %plan.id, "a machine stalled while it was restored; trying once more");
            self.end_vmm(&plan.id).await?;
            machine = self.restore(plan, start).await;
        }
        self.settle(plan, start.model, &*machine?).await
    }

    /// The last step: limits that are the sandbox's own, and the process is written down.
    pub(crate) async fn settle(
        &self,
        plan: &Plan,
        model: &Model,
        machine: &Machine,
    ) -> Result<(), IsolationError> {
        self.cgroups.limit(&plan.id, &vmm_limits(model.size, &plan.resources))?;
        self.begin_throttling(&plan.id, &plan.resources).await?;
        self.record(&plan.id).write_process(machine.process())?;
        fail_point!("microvm::create::written");
        Ok(())
    }

    async fn restore(
        self: &Arc<Self>,
        plan: &Plan,
        start: Started<'_>,
    ) -> Result<Arc<Machine>, IsolationError> {
        let machine = self.launch(start).await?;
        let mut qmp = vmm::monitor(&self.record(start.id)).await?;
        vmm::restore(&mut qmp).await?;
        fail_point!("microvm::create::restored");
        vmm::resize_disk(&mut qmp, plan.resources.disk_bytes).await?;
        drop(qmp);
        machine.ask(Question::Become(who(plan)?), BECOME_TIMEOUT).await?;
        fail_point!("microvm::create::told");
        Ok(machine)
    }

    /// Starts a VMM in a slot and cgroups of its own, and enters it among the living.
    pub(crate) async fn launch(self: &Arc<Self>, start: Started<'_>) -> Result<Arc<Machine>, IsolationError> {
        let record = self.record(start.id);
        let uid = record.uid().ok_or(IsolationError::Gone)?;
        let (id, size) = (start.id.clone(), start.model.size);
        let prepared = self.blocking(move |inner| {
            Ok((inner.claim_slot()?, inner.cgroups.create(&id, &starting_limits(size), uid)?))
        });
        let (slot, membership) = prepared.await?;
        fail_point!("microvm::launch::cgroups");
        let ours = |fd: i32| PathBuf::from(format!("/proc/{}/fd/{fd}", std::process::id()));
        let place = Place {
            record: &record,
            uid,
            image: start.image.to_owned(),
            disk: start.disk.to_owned(),
            scratch: self.config.dir.join("scratch"),
            cgroups: membership.files().map(|file| ours(file.as_raw_fd())).collect(),
            netns: ours(slot.netns.as_raw_fd()),
        };
        vmm::start(&self.config.launcher, start.model, &place, start.memory).await?;
        fail_point!("microvm::launch::vmm");
        let process = record.launched()?;
        let pidfd = process.open()?.ok_or_else(|| ended_at_once(&record.said()))?;
        let machine = Arc::new(Machine::new(process, pidfd, record, Some(slot.gate)));
        self.live.insert(start.id, Arc::clone(&machine));
        Ok(machine)
    }

    fn claim_slot(&self) -> Result<Slot, IsolationError> {
        let slot = self.config.slots.claim().map_err(|error| IsolationError::Kernel {
            step: format!("make a network slot: {error}"),
            source: error.source,
        })?;
        match slot.gate.steering {
            Steering::Bpf(_) => Ok(slot),
            Steering::Redirect => Err(IsolationError::Unavailable(
                "the network of machines needs the right to load BPF programs (sk_lookup)".to_owned(),
            )),
        }
    }

    /// A disk with what the plan says.
    pub(crate) async fn claim_disk(self: &Arc<Self>, plan: &Plan) -> Result<Spare, IsolationError> {
        let (source, bytes) = (plan.disk.clone(), plan.resources.disk_bytes);
        self.blocking(move |inner| inner.config.storage.make_spare(&inner.disks, &source, bytes)).await
    }

    /// Bytes that a sandbox's disk, and its memory while that is on disk, take on the host.
    pub(crate) fn disk_bytes(&self, id: &SandboxId) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let entries = fs::read_dir(self.config.storage.machine(id)).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.metadata().ok()).map(|meta| meta.blocks() * 512).sum()
    }

    pub(crate) async fn destroy(self: &Arc<Self>, id: &SandboxId) -> Result<(), IsolationError> {
        fail_point!("microvm::destroy::start");
        self.end_vmm(id).await?;
        fail_point!("microvm::destroy::ended");
        let id = id.clone();
        self.blocking(move |inner| {
            inner.cgroups.remove(&id)?;
            remove_dir(&inner.config.storage.machine(&id))?;
            fail_point!("microvm::destroy::disk");
            let record = inner.record(&id);
            let uid = record.uid();
            remove_dir(&record.dir)?;
            if let Some(uid) = uid {
                inner.uids().remove(&uid);
            }
            Ok(())
        })
        .await
    }

    /// Kills every process of a sandbox, and waits until they have ended.
    pub(crate) async fn end_vmm(self: &Arc<Self>, id: &SandboxId) -> Result<(), IsolationError> {
        if let Some(machine) = self.live.remove(id) {
            atoll_isolation_host::end(machine.pidfd()).await?;
            machine.reap();
        }
        self.cgroups.end(id).await
    }
}

pub(crate) fn is_stall(error: &IsolationError) -> bool {
    matches!(error, IsolationError::Kernel { source, .. } if source.kind() == io::ErrorKind::TimedOut)
}

fn ended_at_once(said: &str) -> IsolationError {
    failed("keep a VMM running".to_owned(), io::Error::other(format!("it said: {said}")))
}

fn remove_dir(dir: &Path) -> Result<(), IsolationError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).step("remove what a sandbox had"),
        _ => Ok(()),
    }
}

/// What the driver tells a machine that is to become a sandbox.
pub(crate) fn who(plan: &Plan) -> Result<Become, IsolationError> {
    let carried = match &plan.disk {
        DiskSource::WithMemory(_, exec) => exec.as_ref(),
        DiskSource::Empty | DiskSource::Artifact(_) | DiskSource::Moved(_) | DiskSource::Asleep(_) => None,
    };
    Ok(Become {
        carried: carried.map(|exec| Carried { was: exec.was.to_string(), is: exec.is.to_string() }),
        sandbox_id: plan.id.to_string(),
        hostname: plan.hostname.clone(),
        machine_id: atoll_isolation_host::machine_id(&plan.id),
        resolver: RESOLVER_ADDRESS.to_string(),
        limits: Some(limits(&plan.resources)),
        moment: Some(moment().step("choose random bytes")?),
    })
}
