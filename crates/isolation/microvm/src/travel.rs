//! Machines that go to another host with their memory, and what a host must have for that.
//!
//! ```text
//! <storage>/artifacts/<id>/   of a machine that came
//!   disk.img       its disk, as its kernel left it
//!   memory         the machine that the other host wrote, its memory where it can be mapped
//!   memory.json    what it can be restored by here; the last to be written
//! ```
//!
//! The other host says what the memory needs. That is compared with what is here before anything is fetched, and where
//! the memory lies in the file is looked for anew: nothing that came is used as a place or a length.
//!
//! Until the machine goes on, nothing of it was used: what a crash leaves of it before that is gone with the next
//! `hibernate`, which says so, and it can come again. After that its memory is here alone, as after any wake.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use atoll_core::id::SnapshotId;
use atoll_core::machine::{MemoryNeeds, Platform, Processor};
use atoll_core::spec::Accelerator;
use atoll_isolation::{HibernatedMemory, IsolationError, Plan};
use atoll_isolation_storage::DISK_FILE;

use crate::create::{Started, check};
use crate::hibernate::{STATE_DESCRIPTION, STATE_FILE};
use crate::memory::{DESCRIPTION, FOREIGN, MEMORY_FILE, MIB, Saved};
use crate::record::{Size, read_json, write_json};
use crate::step::Step;
use crate::vmm::{Memory, Model};
use crate::{Inner, files};

/// Version of the form in which a machine lies in a file.
const FORMAT: u32 = 1;
/// What a file has beside the machine's memory at most, bytes: devices, firmware, and what is left free between them.
const DEVICES_MAX_BYTES: u64 = 256 << 20;
/// Memory of the largest machine that is taken, MiB: more than any host has.
const MEMORY_MAX_MIB: u64 = 16 << 20;
/// The line of [`crate::processor`] that lists features.
const FEATURES: &str = "flags";

/// A digest of what every machine is made of, whatever its size and its host.
fn shape(model: &Model) -> String {
    let size = Size { memory_mib: 0, cpus: 0 };
    let same = Model { qemu: PathBuf::new(), tsc_khz: 0, size, ..model.clone() };
    blake3::hash(format!("{FORMAT}\n{:?}", same.machine()).as_bytes()).to_hex()[..32].to_owned()
}

/// Reads what [`crate::processor`] says.
fn processor(text: &str) -> Processor {
    let mut found = Processor::default();
    for line in text.lines() {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.trim();
        if name.trim() == FEATURES {
            found.features = value.split_whitespace().map(str::to_owned).collect();
        } else {
            found.model = format!("{} {value}", found.model).trim().to_owned();
        }
    }
    found
}

impl Inner {
    /// What this host runs machines with.
    pub(crate) fn platform(&self) -> Platform {
        let model = self.model(Size { memory_mib: 0, cpus: 0 });
        let initrd = self.initrd.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Platform {
            vmm: self.qemu_version.clone(),
            machine: shape(&model),
            kernel: self.kernel.digest.clone(),
            agent: initrd,
            accelerator: model.accelerator,
            clock_khz: self.tsc_khz,
            processor: (model.accelerator == Accelerator::Kvm).then(|| processor(&self.processor)),
        }
    }

    // === where it goes from ===

    /// The memory of a machine that is hibernated, and what it needs.
    pub(crate) async fn hibernated_memory(
        self: &Arc<Self>,
        plan: &Plan,
    ) -> Result<Option<HibernatedMemory>, IsolationError> {
        if !self.is_hibernated(&plan.id) {
            return Err(IsolationError::Gone);
        }
        let Some(saved) = read_json::<Saved>(&self.state(&plan.id, STATE_DESCRIPTION)) else {
            return Ok(None);
        };
        // Only then is what is here now what it was written with.
        if self.restorable(&saved).is_none() {
            return Err(IsolationError::BadArtifact(FOREIGN.to_owned()));
        }
        let file = File::open(self.state(&plan.id, STATE_FILE)).step("open a machine's memory")?;
        let image = self.image(&plan.root).await?;
        let image = self.blocking(move |_inner| files::digest(&image)).await?;
        let Size { memory_mib, cpus } = saved.size;
        let needs = MemoryNeeds { platform: self.platform(), memory_mib, cpus, image };
        Ok(Some(HibernatedMemory { file, needs }))
    }

    // === where it goes to ===

    /// Makes the file for the memory of a machine that comes, if it can be used here.
    pub(crate) async fn expect_memory(
        self: &Arc<Self>,
        artifact: &SnapshotId,
        plan: &Plan,
        needs: &MemoryNeeds,
        bytes: u64,
    ) -> Result<File, IsolationError> {
        if let Some(why) = needs.platform.obstacle(&self.platform()) {
            return Err(IsolationError::BadArtifact(why));
        }
        if needs.memory_mib > MEMORY_MAX_MIB || bytes > needs.memory_mib * MIB + DEVICES_MAX_BYTES {
            let why = "its memory is larger than its machine, or its machine than any".to_owned();
            return Err(IsolationError::BadArtifact(why));
        }
        let image = self.image(&plan.root).await?;
        let (artifact, wanted) = (artifact.clone(), needs.image.clone());
        self.blocking(move |inner| {
            if files::digest(&image)? != wanted {
                let why = "the file that this host made of its image is another".to_owned();
                return Err(IsolationError::BadArtifact(why));
            }
            inner.config.storage.check_room()?;
            let path = inner.config.storage.artifact(&artifact)?.join(MEMORY_FILE);
            let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path);
            let file = file.step("make the file of a machine's memory")?;
            file.set_len(bytes).step("size the file of a machine's memory")?;
            Ok(file)
        })
        .await
    }

    /// Looks for the machine in the file that was filled, and writes down what it can be restored by.
    pub(crate) fn accept_memory(
        &self,
        artifact: &SnapshotId,
        needs: &MemoryNeeds,
    ) -> Result<(), IsolationError> {
        let dir = self.config.storage.artifact(artifact)?;
        let size = Size { memory_mib: needs.memory_mib, cpus: needs.cpus };
        let saved = match self.make_mappable(&dir.join(MEMORY_FILE), size) {
            Err(IsolationError::Kernel { source, .. }) if is_other(&source) => {
                return Err(IsolationError::BadArtifact(source.to_string()));
            }
            other => other?,
        };
        write_json(&dir.join(DESCRIPTION), &saved).step("describe a machine's memory")
    }

    /// Lets a machine go on that came with its memory, as the sandbox that it was.
    pub(crate) async fn go_on_here(
        self: &Arc<Self>,
        plan: &Plan,
        artifact: &SnapshotId,
    ) -> Result<(), IsolationError> {
        check(plan)?;
        let dir = self.config.storage.artifact(artifact)?;
        let saved: Option<Saved> = read_json(&dir.join(DESCRIPTION));
        let usable = saved.and_then(|saved| Some((self.restorable(&saved)?, saved.memory_at)));
        let (model, at) = usable.ok_or_else(|| IsolationError::BadArtifact(FOREIGN.to_owned()))?;
        let image = self.image(&plan.root).await?;
        let from = dir.join(DISK_FILE);
        let disk = self.blocking(move |inner| inner.config.storage.clone_spare(&from)).await?;
        let record = self.record(&plan.id);
        record.create()?;
        // Before there is a disk: without it, what a crash leaves would pass for a sandbox that has no memory any more.
        record.coming().set()?;
        let disk = self.settle_on_record(plan, model.size, disk)?;
        let file = dir.join(MEMORY_FILE);
        let memory = Memory::Mapped { file: &file, at };
        let start = Started { id: &plan.id, model: &model, memory, image: &image, disk: &disk };
        let machine = self.read_state(plan, start).await?;
        self.settle(plan, &model, &machine).await
    }
}

/// Whether a file holds something else than it should.
fn is_other(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        Model {
            qemu: "/usr/bin/qemu-system-x86_64".into(),
            accelerator: Accelerator::Emulated,
            vmlinux: "/one/vmlinux".into(),
            initrd: "/one/initrd".into(),
            size: Size { memory_mib: 192, cpus: 1 },
            tsc_khz: 2_600_000,
            processor: String::new(),
        }
    }

    #[test]
    fn a_shape_is_the_same_on_every_host_and_for_every_size() {
        let other = Model {
            qemu: "/opt/qemu".into(),
            vmlinux: "/two/vmlinux".into(),
            initrd: "/two/initrd".into(),
            size: Size { memory_mib: 1024, cpus: 4 },
            tsc_khz: 2_600_001,
            processor: "another".to_owned(),
            ..model()
        };
        assert_eq!(shape(&other), shape(&model()));
        assert_ne!(shape(&Model { accelerator: Accelerator::Kvm, ..model() }), shape(&model()));
    }

    #[test]
    fn a_processor_is_read() {
        let text = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: A CPU @ 2.5GHz\n\
                    stepping\t: 7\nflags\t\t: fpu avx2";
        let read = processor(text);
        assert_eq!(read.model, "GenuineIntel 6 85 A CPU @ 2.5GHz 7");
        assert_eq!(read.features.into_iter().collect::<Vec<_>>(), ["avx2", "fpu"]);
        assert_eq!(processor(""), Processor::default());
    }
}
