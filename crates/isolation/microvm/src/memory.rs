//! Copies of machines with their memory: artifacts that a machine goes on from.
//!
//! ```text
//! <storage>/machines/<id>/copy    what the VMM writes its machine to: only as long as it is copied
//! <storage>/artifacts/<id>/
//!   disk.img       the disk, for a machine that begins with it alone; put in order later
//!   live.img       the disk as the memory knows it: never changes
//!   memory         the machine, its memory where it can be mapped
//!   memory.json    what it can be restored by; the last to be written
//! ```
//!
//! Before a machine is copied its agent stops every process and holds the disk still. In the copy the processes go on
//! once the driver has told the agent which sandbox it is: no process ever runs with another sandbox's name, or repeats
//! its random numbers.
//!
//! What an artifact holds is a clone of what the VMM wrote. The VMM still has that file open, and must not be able to
//! change the memory of other sandboxes later.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_core::id::{SandboxId, SnapshotId};
use atoll_failpoint::fail_point;
use atoll_guest_protocol::control::Question;
use atoll_isolation::{ArtifactUsage, IsolationError, Plan, Taken};
use atoll_isolation_storage::DISK_FILE;
use serde::{Deserialize, Serialize};

use crate::create::{BECOME_TIMEOUT, Started, check, is_stall, who};
use crate::machine::{ANSWER_TIMEOUT, Machine};
use crate::qmp::Qmp;
use crate::record::{Size, read_json, write_json};
use crate::step::Step;
use crate::vmm::{self, Memory, Model};
use crate::{Inner, is_there, mapped, template};

/// The file that the VMM writes the machine to.
const COPY_FILE: &str = "copy";
/// The parts of an artifact.
const LIVE_FILE: &str = "live.img";
pub(crate) const MEMORY_FILE: &str = "memory";
pub(crate) const DESCRIPTION: &str = "memory.json";
/// How long a machine may take to stop its processes and write its disk out.
const HALT_TIMEOUT: Duration = Duration::from_secs(60);
pub(crate) const MIB: u64 = 1 << 20;
/// Why memory that was written with something else than this host has cannot be used.
pub(crate) const FOREIGN: &str =
    "it was written by another QEMU, guest kernel or version of Atoll, or on another processor";

/// A machine in a file: what it can be restored by.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Saved {
    /// What it depends on.
    key: String,
    pub(crate) size: Size,
    /// Where in the file its memory begins.
    pub(crate) memory_at: u64,
}

impl Inner {
    /// Makes a file to which a machine was written one from which its memory can be mapped.
    pub(crate) fn make_mappable(&self, path: &Path, size: Size) -> Result<Saved, IsolationError> {
        let file = File::options().read(true).write(true).open(path).step("open a machine's memory")?;
        let memory_at =
            mapped::make_mappable(&file, size.memory_mib * MIB).step("find a machine's memory")?;
        // VMMs run as other users.
        let readable = fs::Permissions::from_mode(0o444);
        file.set_permissions(readable).step("open a machine's memory to read")?;
        Ok(Saved { key: self.key(&self.model(size)), size, memory_at })
    }

    /// The model of a machine in a file, if it can be restored here and now.
    pub(crate) fn restorable(&self, saved: &Saved) -> Option<Model> {
        let model = self.model(saved.size);
        (saved.key == self.key(&model)).then_some(model)
    }

    // === taking ===

    /// Takes a snapshot of a machine with its memory. It stands still while its memory is written.
    pub(crate) async fn snapshot_with_memory(
        self: &Arc<Self>,
        id: &SandboxId,
        artifact: &SnapshotId,
    ) -> Result<Taken, IsolationError> {
        let (inner, id, artifact) = (Arc::clone(self), id.clone(), artifact.clone());
        // In a task of its own: it lets the machine go on even when the caller stops waiting.
        let taking = tokio::spawn(async move {
            let (machine, _alone, dir) = inner.begin_snapshot(&id, &artifact).await?;
            let paused = inner.while_awake(&id, inner.copy_whole(&id, &machine, &dir)).await?;
            fail_point!("microvm::snapshot::copied");
            inner.keep_copy(&id, &dir).await?;
            inner.taken(&artifact, paused)
        });
        taking.await.map_err(io::Error::other).step("run a task")?
    }

    /// Writes the machine out and clones its disk, both of one moment. The machine goes on whether that succeeds or
    /// fails. Gives how long it stood still.
    pub(crate) async fn copy_whole(
        self: &Arc<Self>,
        id: &SandboxId,
        machine: &Machine,
        dir: &Path,
    ) -> Result<Duration, IsolationError> {
        let record = self.record(id);
        let mut qmp = vmm::monitor(&record).await?;
        record.stopped().set()?;
        let since = Instant::now();
        let copied = async {
            machine.ask(Question::Halt(true), HALT_TIMEOUT).await?;
            fail_point!("microvm::snapshot::halted");
            self.stop_and_copy(id, &mut qmp, dir).await?;
            fail_point!("microvm::snapshot::stopped");
            Ok(())
        };
        let copied: Result<(), IsolationError> = copied.await;
        vmm::go_on_again(&mut qmp).await?;
        machine.ask(Question::Halt(false), ANSWER_TIMEOUT).await?;
        let paused = since.elapsed();
        record.stopped().clear()?;
        copied.map(|()| paused)
    }

    /// Stops the machine, writes it out and clones its disk.
    pub(crate) async fn stop_and_copy(
        self: &Arc<Self>,
        id: &SandboxId,
        qmp: &mut Qmp,
        dir: &Path,
    ) -> Result<(), IsolationError> {
        self.forget_copy(id)?;
        // For writing alone: the VMM looks for a descriptor that is just what it wants.
        let file = File::options().write(true).create_new(true).open(self.state(id, COPY_FILE));
        let file = file.step("make the file of a machine's memory")?;
        vmm::write_out(qmp, &file).await?;
        let (from, to) = (self.state(id, DISK_FILE), dir.join(DISK_FILE));
        self.blocking(move |inner| inner.config.storage.duplicate(&from, &to)).await.map(drop)
    }

    /// Puts what was written into the artifact.
    pub(crate) async fn keep_copy(
        self: &Arc<Self>,
        id: &SandboxId,
        dir: &Path,
    ) -> Result<(), IsolationError> {
        let (id, dir) = (id.clone(), dir.to_owned());
        self.blocking(move |inner| {
            let (copy, memory) = (inner.state(&id, COPY_FILE), dir.join(MEMORY_FILE));
            let size = inner.record(&id).read_size().ok_or(IsolationError::Gone)?;
            inner.config.storage.duplicate(&copy, &memory)?;
            inner.forget_copy(&id)?;
            let saved = inner.make_mappable(&memory, size)?;
            // Tidying a disk puts another in the place of the one that has this name.
            fs::hard_link(dir.join(DISK_FILE), dir.join(LIVE_FILE)).step("keep the disk of a snapshot")?;
            write_json(&dir.join(DESCRIPTION), &saved).step("describe a machine's memory")
        })
        .await
    }

    pub(crate) fn forget_copy(&self, id: &SandboxId) -> Result<(), IsolationError> {
        match fs::remove_file(self.state(id, COPY_FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).step("remove a machine's memory")
            }
            _ => Ok(()),
        }
    }

    /// Puts an artifact on the host's disk for good, with its memory, if it has any.
    pub(crate) fn settle_artifact(&self, artifact: &SnapshotId) -> Result<ArtifactUsage, IsolationError> {
        self.settle_memory(artifact)?;
        self.config.storage.settle_artifact(artifact)
    }

    /// The same, with a disk that is final.
    pub(crate) fn seal_artifact(&self, artifact: &SnapshotId) -> Result<ArtifactUsage, IsolationError> {
        self.settle_memory(artifact)?;
        self.config.storage.seal_artifact(artifact)
    }

    fn settle_memory(&self, artifact: &SnapshotId) -> Result<(), IsolationError> {
        let dir = self.config.storage.artifact(artifact)?;
        for name in [LIVE_FILE, MEMORY_FILE, DESCRIPTION] {
            match File::open(dir.join(name)).and_then(|file| file.sync_all()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other.step("write out a snapshot")?,
            }
        }
        Ok(())
    }

    // === going on from one ===

    /// Makes a machine that goes on from an artifact.
    pub(crate) async fn create_with_memory(
        self: &Arc<Self>,
        plan: &Plan,
        artifact: &SnapshotId,
    ) -> Result<(), IsolationError> {
        check(plan)?;
        let dir = self.config.storage.artifact(artifact)?;
        self.create_from(plan, &dir).await
    }

    /// The same, from what is in this directory.
    pub(crate) async fn create_from(self: &Arc<Self>, plan: &Plan, dir: &Path) -> Result<(), IsolationError> {
        let memory = dir.join(MEMORY_FILE);
        let saved: Option<Saved> = read_json(&dir.join(DESCRIPTION));
        let saved = saved.filter(|_| is_there(&memory)).ok_or_else(|| {
            IsolationError::BadArtifact("the snapshot holds a disk, and no memory".to_owned())
        })?;
        let model = self.restorable(&saved).ok_or_else(|| {
            IsolationError::BadArtifact(
                "the snapshot's memory was written by another QEMU, guest kernel or version, or on another processor: only its disk can be used"
                    .to_owned(),
            )
        })?;
        let live = dir.join(LIVE_FILE);
        check_size(plan, model.size, &live)?;
        let image = self.image(&plan.root).await?;
        let disk = self.blocking(move |inner| inner.config.storage.clone_spare(&live)).await?;
        fail_point!("microvm::create::disk");
        let disk = self.settle_in(plan, model.size, disk)?;
        let memory = Memory::Mapped { file: &memory, at: saved.memory_at };
        let start = Started { id: &plan.id, model: &model, memory, image: &image, disk: &disk };
        let mut machine = self.go_on_as(plan, start).await;
        if machine.as_ref().is_err_and(is_stall) {
            tracing::warn!(id = %plan.id, "a machine stalled while it was restored; trying once more");
            self.end_vmm(&plan.id).await?;
            machine = self.go_on_as(plan, start).await;
        }
        self.settle(plan, &model, &*machine?).await
    }

    async fn go_on_as(
        self: &Arc<Self>,
        plan: &Plan,
        start: Started<'_>,
    ) -> Result<Arc<Machine>, IsolationError> {
        let machine = self.start_from_file(start).await?;
        fail_point!("microvm::create::restored");
        let mut qmp = vmm::monitor(&self.record(start.id)).await?;
        vmm::go_on(&mut qmp).await?;
        machine.ask(Question::BecomeAnother(who(plan)?), BECOME_TIMEOUT).await?;
        fail_point!("microvm::create::told");
        Ok(machine)
    }

    /// Starts a VMM on a machine in a file. It stands still, and has the server connected to its control port when it
    /// goes on.
    pub(crate) async fn start_from_file(
        self: &Arc<Self>,
        start: Started<'_>,
    ) -> Result<Arc<Machine>, IsolationError> {
        let Memory::Mapped { file, .. } = start.memory else {
            return Err(IsolationError::Unavailable("the machine is in no file".to_owned()));
        };
        let state = File::open(file).step("open a machine's memory")?;
        let machine = self.launch(start).await?;
        // A server had asked the machine something before it was written out. When it goes on it must find a server at
        // its control port.
        machine.attend().await?;
        let mut qmp = vmm::monitor(&self.record(start.id)).await?;
        vmm::read_back(&mut qmp, &state).await?;
        Ok(machine)
    }
}

/// A machine that is restored is as large as it was, and so is its disk.
fn check_size(plan: &Plan, size: Size, disk: &Path) -> Result<(), IsolationError> {
    let wanted = template::size(&plan.resources);
    if wanted.memory_mib > size.memory_mib || wanted.cpus > size.cpus {
        return Err(IsolationError::Unenforceable(format!(
            "a machine that goes on from a snapshot does not grow: it has {} MiB and {} processors, and {} MiB and {} would be needed",
            size.memory_mib, size.cpus, wanted.memory_mib, wanted.cpus
        )));
    }
    let has = fs::metadata(disk).step("measure a disk image")?.len();
    if has == plan.resources.disk_bytes {
        return Ok(());
    }
    Err(IsolationError::Unenforceable(format!(
        "a machine that goes on from a snapshot keeps its disk of {has} bytes, and cannot have one of {}",
        plan.resources.disk_bytes
    )))
}
