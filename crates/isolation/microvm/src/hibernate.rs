//! Ends a machine but for its disk, with its memory or without, and starts it again.
//!
//! ```text
//! <storage>/machines/<id>/
//!   disk.img    the writable disk
//!   state       the whole machine, its memory where it can be mapped
//!   state.json  what it can be read back by: there as long as `state` and the disk are of one moment
//! ```
//!
//! A disk is held still inside before its machine is stopped, and goes on only when the machine runs again and
//! `state.json` is gone. So at whichever step this is cut off, disk and state fit together, or the state is not used.
//!
//! A machine that wakes maps its memory from `state`, which has no name from then on and is gone with the machine.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::sandbox::PauseMode;
use atoll_failpoint::fail_point;
use atoll_guest_protocol::control::Question;
use atoll_isolation::{IsolationError, Plan, Woken};
use atoll_isolation_storage::DISK_FILE;

use crate::control::moment;
use crate::create::{self, Started};
use crate::machine::{ANSWER_TIMEOUT, Machine, limits};
use crate::memory::{FOREIGN, Saved};
use crate::record::{Record, Size, read_json, write_json};
use crate::step::Step;
use crate::template;
use crate::vmm::{self, Memory};
use crate::{Inner, chain, is_there, order};

/// How long a machine may take to write its disk out.
const STILL_TIMEOUT: Duration = Duration::from_secs(60);
pub(crate) const STATE_FILE: &str = "state";
pub(crate) const STATE_DESCRIPTION: &str = "state.json";

impl Inner {
    /// Whether its disk, and perhaps its memory, is all there is of it.
    pub(crate) fn is_hibernated(&self, id: &SandboxId) -> bool {
        self.record(id).is_cleared() && is_there(&self.disk(id)) && self.live.get(id).is_none()
    }

    pub(crate) fn disk(&self, id: &SandboxId) -> PathBuf {
        self.config.storage.machine(id).join(DISK_FILE)
    }

    pub(crate) fn state(&self, id: &SandboxId, name: &str) -> PathBuf {
        self.config.storage.machine(id).join(name)
    }

    /// The machine, even if making or waking it was cut off.
    fn running(&self, id: &SandboxId) -> Option<Arc<Machine>> {
        if let Ok(machine) = self.living(id) {
            return Some(machine);
        }
        let record = self.record(id);
        let process = record.read_process().or_else(|| record.launched().ok())?;
        self.take_up(id, process).ok()
    }

    pub(crate) async fn hibernate(
        self: &Arc<Self>,
        id: &SandboxId,
        mode: PauseMode,
    ) -> Result<(), IsolationError> {
        if mode == PauseMode::Frozen {
            return Err(IsolationError::CannotPause("what is frozen is not hibernated".to_owned()));
        }
        let record = self.record(id);
        if !record.exists() || !is_there(&self.disk(id)) {
            return Err(IsolationError::Gone);
        }
        if record.coming().is_set() {
            // Its memory is where it comes from, and nothing of it was used.
            self.destroy(id).await?;
            return Err(IsolationError::Gone);
        }
        // As long as this file is there, no machine has gone on from the state.
        let kept = self.state(id, STATE_DESCRIPTION).try_exists().step("look for a machine's memory")?;
        let running = self.running(id);
        let _alone = match &running {
            Some(machine) => Some(machine.alone().await),
            None => None,
        };
        if let Some(machine) = running.filter(|_| !kept) {
            let whole = record.read_process().is_some();
            let stood_still = self.cgroups.is_frozen(id)?;
            self.cgroups.thaw(id)?;
            if let Ok(mut qmp) = vmm::monitor(&record).await {
                // The machine may have been stopped to be written out, or been read back and not yet let go on: then
                // its memory is nowhere else.
                drop(vmm::go_on_again(&mut qmp).await);
            }
            // One that was not finished and began anew has no memory that anybody knows.
            let how = if whole || !record.cold().is_set() { mode } else { PauseMode::Filesystem };
            match (self.put_down(id, &machine, how).await, whole) {
                // A machine that was not finished was given to no caller: it holds nothing that a caller was told is
                // written.
                (Ok(()), _) | (Err(_), false) => {}
                (Err(error), true) => {
                    if stood_still {
                        let id = id.clone();
                        self.blocking(move |inner| inner.cgroups.freeze(&id)).await?;
                    }
                    return Err(IsolationError::CannotPause(chain(&error)));
                }
            }
        }
        self.end_vmm(id).await?;
        fail_point!("microvm::hibernate::ended");
        let id = id.clone();
        self.blocking(move |inner| {
            inner.cgroups.remove(&id)?;
            if mode == PauseMode::Filesystem {
                inner.forget_state(&id)?;
            }
            let image = File::open(inner.disk(&id));
            image.and_then(|image| image.sync_all()).step("write the disk of a sandbox out")?;
            let uid = record.uid();
            record.clear_life()?;
            if let Some(uid) = uid {
                inner.uids().remove(&uid);
            }
            Ok(())
        })
        .await
    }

    /// Holds the disk still and, where its memory is wanted, writes the machine out. On error it goes on.
    async fn put_down(
        self: &Arc<Self>,
        id: &SandboxId,
        machine: &Machine,
        mode: PauseMode,
    ) -> Result<(), IsolationError> {
        let put = self.put_down_unthrottled(id, machine, mode).await;
        if put.is_err() {
            self.throttle_again(id).await?;
        }
        put
    }

    async fn put_down_unthrottled(
        self: &Arc<Self>,
        id: &SandboxId,
        machine: &Machine,
        mode: PauseMode,
    ) -> Result<(), IsolationError> {
        self.lift_throttle(id).await?;
        machine.ask(Question::Still(true), STILL_TIMEOUT).await?;
        fail_point!("microvm::hibernate::still");
        if mode == PauseMode::Filesystem {
            return Ok(());
        }
        let written = self.write_state(id).await;
        if written.is_err() {
            if let Ok(mut qmp) = vmm::monitor(&self.record(id)).await {
                drop(vmm::go_on_again(&mut qmp).await);
            }
            drop(machine.ask(Question::Still(false), ANSWER_TIMEOUT).await);
        }
        written
    }

    async fn write_state(self: &Arc<Self>, id: &SandboxId) -> Result<(), IsolationError> {
        self.config.storage.check_room()?;
        let record = self.record(id);
        let size = record.read_size().ok_or(IsolationError::Gone)?;
        let path = self.state(id, STATE_FILE);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).step("remove an earlier memory of a machine");
            }
            _ => {}
        }
        // For writing alone: the VMM looks for a descriptor that is just what it wants.
        let file = File::options().write(true).create_new(true).open(&path);
        let file = file.step("make the file of a machine's memory")?;
        let mut qmp = vmm::monitor(&record).await?;
        vmm::write_out(&mut qmp, &file).await.inspect_err(|error| {
            tracing::warn!(%id, error = chain(error), said = record.said(), "a machine could not be written out");
        })?;
        fail_point!("microvm::hibernate::stopped");
        let (inner, id) = (Arc::clone(self), id.clone());
        let described = move || {
            let saved = inner.make_mappable(&path, size)?;
            file.sync_all().step("write a machine's memory out")?;
            write_json(&inner.state(&id, STATE_DESCRIPTION), &saved).step("describe a machine's memory")
        };
        tokio::task::spawn_blocking(described).await.map_err(io::Error::other).step("run a task")??;
        fail_point!("microvm::hibernate::saved");
        Ok(())
    }

    /// The description first: without it the rest is not used.
    fn forget_state(&self, id: &SandboxId) -> Result<(), IsolationError> {
        for name in [STATE_DESCRIPTION, STATE_FILE] {
            match fs::remove_file(self.state(id, name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).step("remove a machine's memory");
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) async fn wake(self: &Arc<Self>, plan: &Plan) -> Result<Woken, IsolationError> {
        create::check(plan)?;
        let (record, disk) = (self.record(&plan.id), self.disk(&plan.id));
        if !record.exists() || !is_there(&disk) {
            return Err(IsolationError::Gone);
        }
        let image = self.image(&plan.root).await?;
        fail_point!("microvm::wake::start");
        let saved: Option<Saved> = read_json(&self.state(&plan.id, STATE_DESCRIPTION));
        let readable = saved.as_ref().and_then(|saved| Some((self.restorable(saved)?, saved.memory_at)));
        if let Some((model, at)) = readable {
            self.claim_uid(&record)?;
            let state = self.state(&plan.id, STATE_FILE);
            let memory = Memory::Mapped { file: &state, at };
            let start = Started { id: &plan.id, model: &model, memory, image: &image, disk: &disk };
            let machine = self.read_state(plan, start).await?;
            return self.settle(plan, &model, &machine).await.map(|()| Woken::Memory);
        }
        let woken = match saved {
            Some(_) => Woken::DiskInstead(FOREIGN.to_owned()),
            None => Woken::Disk,
        };
        self.forget_state(&plan.id)?;
        self.wake_on_disk(plan, &record, &image, &disk).await.map(|()| woken)
    }

    async fn wake_on_disk(
        self: &Arc<Self>,
        plan: &Plan,
        record: &Record,
        image: &Path,
        disk: &Path,
    ) -> Result<(), IsolationError> {
        order::put_in_order(disk).await;
        let model = self.model(template::size(&plan.resources));
        let saved = self.saved(&model).await?;
        record.write_size(model.size)?;
        record.cold().set()?;
        self.claim_uid(record)?;
        let start = Started { id: &plan.id, model: &model, memory: Memory::Copied(&saved), image, disk };
        self.start_sandbox(plan, start).await
    }

    /// Starts a machine on its memory, lets it go on, and tells it the time.
    pub(crate) async fn read_state(
        self: &Arc<Self>,
        plan: &Plan,
        start: Started<'_>,
    ) -> Result<Arc<Machine>, IsolationError> {
        let machine = self.start_from_file(start).await?;
        fail_point!("microvm::wake::read");
        // From here on the machine has its memory, and must never be restored from this file again.
        self.forget_state(&plan.id)?;
        self.record(&plan.id).coming().clear()?;
        fail_point!("microvm::wake::forgotten");
        vmm::go_on(&mut vmm::monitor(&self.record(&plan.id)).await?).await?;
        fail_point!("microvm::wake::goes_on");
        let now = moment().step("choose random bytes")?;
        machine.ask(Question::Wake(now), ANSWER_TIMEOUT).await?;
        if fits(&plan.resources, start.model.size) {
            machine.ask(Question::Limit(limits(&plan.resources)), ANSWER_TIMEOUT).await?;
        }
        Ok(machine)
    }
}

/// Limits may have changed while it was away; a machine that was written out cannot grow.
fn fits(resources: &atoll_core::spec::Resources, size: Size) -> bool {
    template::size(resources).memory_mib <= size.memory_mib
}
