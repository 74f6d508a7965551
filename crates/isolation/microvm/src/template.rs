//! Saved machines: booted once for each size, restored for every sandbox of that size.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use atoll_core::id::SandboxId;
use atoll_core::spec::Resources;
use atoll_isolation::{IsolationError, RootFs};
use atoll_isolation_host::process;
use atoll_isolation_storage::Making;

use crate::create::Started;
use crate::record::Size;
use crate::step::Step;
use crate::stream::random;
use crate::vmm::{self, MEMORY_FILE, Memory, Model, STATE_FILE};
use crate::{Inner, files, is_there};

/// What a machine has on top of its sandbox's memory, for its kernel and the agent, bytes.
pub(crate) const KERNEL_BYTES: u64 = 96 << 20;
/// What a VMM takes on top of its machine's memory: itself, translated code, its threads.
pub(crate) const VMM_BYTES: u64 = 192 << 20;
/// Machines have a multiple of this, so that there are few kinds.
pub(crate) const STEP_BYTES: u64 = 64 << 20;
const MIB: u64 = 1 << 20;
/// Ending of the name of a saved machine that is not finished.
const UNFINISHED: &str = "new";
/// Beginning of the name of a saved machine that is thrown away at once.
pub(crate) const PROBE: &str = "probe-";
/// From this age on a probe counts as left behind: no process works on it any more.
const PROBE_MAX_AGE: Duration = Duration::from_secs(3600);
/// How long a saved machine is kept from which no sandbox is made: one of another release of Atoll, or of QEMU.
const UNUSED_MAX_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Processes and threads of a VMM: processors, and those that read and write disks.
const VMM_PIDS: u32 = 192;
/// How long a VMM may take to end once it was told.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// The machine that a sandbox with these limits needs.
pub(crate) fn size(resources: &Resources) -> Size {
    let memory_bytes = (resources.memory_bytes + KERNEL_BYTES).next_multiple_of(STEP_BYTES);
    Size { memory_mib: memory_bytes / MIB, cpus: resources.cpu_millis.div_ceil(1000).max(1) }
}

/// Limits of the VMM of a machine of this size; CPU time is the sandbox's.
pub(crate) fn vmm_limits(size: Size, resources: &Resources) -> Resources {
    Resources { memory_bytes: size.memory_mib * MIB + VMM_BYTES, pids: VMM_PIDS + size.cpus, ..*resources }
}

/// Limits while a machine starts: its sandbox is not charged for what that costs.
pub(crate) fn starting_limits(size: Size) -> Resources {
    vmm_limits(size, &Resources { cpu_millis: size.cpus * 1000, ..Resources::default() })
}

/// Removes a directory, if it is there.
pub(crate) fn remove_dir(path: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes what processes that were killed left of machines they tried, and what is not used any more. Another
/// installation may be working on one right now, so young ones are left alone.
pub(crate) fn sweep(templates: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(templates)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_probe = name.to_str().is_some_and(|name| name.starts_with(PROBE));
        let age = entry.metadata().and_then(|meta| meta.modified()).ok().and_then(|at| at.elapsed().ok());
        let is_dir = entry.file_type()?.is_dir();
        let most = if is_probe { PROBE_MAX_AGE } else { UNUSED_MAX_AGE };
        if is_dir && age.is_some_and(|age| age > most) {
            remove_dir(&entry.path())?;
        }
    }
    Ok(())
}

/// Waits until no other task, in this process or another, makes the file or directory `path`.
async fn turn(path: &Path) -> Result<fs::File, IsolationError> {
    let lock = path.with_extension("lock");
    let wait = move || {
        let file = fs::File::create(&lock)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
        std::io::Result::Ok(file)
    };
    let waited = tokio::task::spawn_blocking(wait).await.map_err(std::io::Error::other).step("run a task")?;
    waited.step("wait for another who makes the same")
}

/// A machine that is made to be saved is no sandbox.
pub(crate) struct Booting<'a>(&'a Inner, SandboxId, Making);

impl<'a> Booting<'a> {
    /// It gets an id as a sandbox does: if this process is killed, the next one finds and removes the machine.
    pub(crate) fn new(inner: &'a Inner) -> Result<Self, IsolationError> {
        let id = SandboxId::from_parts(0, random().step("choose an id")?);
        let making = inner.config.storage.begin_making(&id)?;
        inner.booting().insert(id.clone());
        Ok(Self(inner, id, making))
    }

    pub(crate) fn id(&self) -> &SandboxId {
        &self.1
    }

    /// How it ended.
    pub(crate) fn end<T>(&self, made: Result<T, IsolationError>) -> Result<T, IsolationError> {
        self.2.check().and(made)
    }
}

impl Drop for Booting<'_> {
    fn drop(&mut self) {
        self.0.booting().remove(&self.1);
    }
}

impl Inner {
    /// What machines of this size have in common.
    pub(crate) fn model(&self, size: Size) -> Model {
        Model {
            qemu: self.config.qemu.clone(),
            accelerator: self.accelerator(),
            vmlinux: self.kernel.vmlinux.clone(),
            initrd: self.initrd.clone(),
            size,
            tsc_khz: self.tsc_khz,
            processor: self.processor.clone(),
        }
    }

    /// What a machine of this model depends on.
    pub(crate) fn key(&self, model: &Model) -> String {
        let initrd = self.initrd.file_name().unwrap_or_default().to_string_lossy();
        model.key(&format!("{}\n{}\n{initrd}", self.qemu_version, self.kernel.digest))
    }

    /// The directory of the saved machine of this model. Boots it when there is none.
    pub(crate) async fn saved(self: &Arc<Self>, model: &Model) -> Result<PathBuf, IsolationError> {
        let saved = self.config.cache.join("templates").join(self.key(model));
        if is_there(&saved) {
            let now = fs::File::open(&saved).and_then(|dir| dir.set_modified(SystemTime::now()));
            now.step("note that a template is used")?;
            return Ok(saved);
        }
        let (inner, model, path) = (Arc::clone(self), model.clone(), saved.clone());
        // In a task of its own, so that it goes on when the caller stops waiting.
        let made = tokio::spawn(async move { inner.save_once(&model, &path, None).await });
        made.await.map_err(std::io::Error::other).step("run a task")??;
        Ok(saved)
    }

    /// The file of an image. Makes it when there is none.
    pub(crate) async fn image(self: &Arc<Self>, root: &RootFs) -> Result<PathBuf, IsolationError> {
        let RootFs::Layers(layers) = root else {
            return Err(IsolationError::BadRoot(
                "the image 'host' is a view of the host's files, which a machine has none of: use an OCI image"
                    .to_owned(),
            ));
        };
        let text = layers.iter().map(|layer| layer.display().to_string()).collect::<Vec<_>>().join("\n");
        let key = blake3::hash(text.as_bytes()).to_hex()[..32].to_owned();
        let dir = self.config.cache.join("images");
        let _turn = turn(&dir.join(&key)).await?;
        let layers = layers.clone();
        self.blocking(move |_inner| files::image(&dir, &key, &layers)).await
    }

    /// Boots a machine of this model and saves it in `saved`, unless another process has.
    pub(crate) async fn save_once(
        self: &Arc<Self>,
        model: &Model,
        saved: &Path,
        within: Option<Duration>,
    ) -> Result<(), IsolationError> {
        let _turn = turn(saved).await?;
        if is_there(saved) { Ok(()) } else { self.save_machine(model, saved, within).await }
    }

    /// Boots a machine of this model and saves it in `saved`, which no other task makes at the same time. Leaves
    /// nothing when that fails.
    pub(crate) async fn save_machine(
        self: &Arc<Self>,
        model: &Model,
        saved: &Path,
        within: Option<Duration>,
    ) -> Result<(), IsolationError> {
        let new = saved.with_extension(UNFINISHED);
        remove_dir(&new).step("remove what an earlier attempt left")?;
        let made = self.save_machine_in(model, &new, saved, within).await;
        if made.is_err() {
            remove_dir(&new).step("remove a template that was not finished")?;
        }
        made
    }

    async fn save_machine_in(
        self: &Arc<Self>,
        model: &Model,
        new: &Path,
        saved: &Path,
        within: Option<Duration>,
    ) -> Result<(), IsolationError> {
        fs::create_dir_all(new).step("make the directory of a template")?;
        let booting = Booting::new(self)?;
        let made = self.boot_and_save(model, booting.id(), new, within).await;
        let removed = self.destroy(booting.id()).await;
        booting.end(made.and(removed))?;
        for name in [MEMORY_FILE, STATE_FILE] {
            // Sandboxes' VMMs run as other users, and read it through a read-only mount.
            let path = new.join(name);
            std::os::unix::fs::chown(&path, Some(0), Some(0)).step("take a file back")?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).step("open a template to read")?;
        }
        std::os::unix::fs::chown(new, Some(0), Some(0)).step("take a directory back")?;
        fs::set_permissions(new, fs::Permissions::from_mode(0o755)).step("open a template to read")?;
        fs::rename(new, saved).step("put a template in its place")
    }

    async fn boot_and_save(
        self: &Arc<Self>,
        model: &Model,
        id: &SandboxId,
        new: &Path,
        within: Option<Duration>,
    ) -> Result<(), IsolationError> {
        let record = self.record(id);
        record.create()?;
        let uid = self.claim_uid(&record)?;
        std::os::unix::fs::chown(new, Some(uid), Some(uid)).step("give a directory to a VMM")?;
        let start = Started {
            id,
            model,
            memory: Memory::Kept(new),
            image: &self.placeholder,
            disk: &self.placeholder,
        };
        self.launch(start).await?;
        let mut qmp = vmm::monitor(&record).await?;
        let worked =
            || self.cgroups.usage(id).map_or(Duration::ZERO, |usage| Duration::from_micros(usage.cpu_us));
        vmm::booted(&mut qmp, within, worked).await?;
        vmm::save(&mut qmp).await?;
        let machine = self.live.get(id).ok_or(IsolationError::Gone)?;
        tokio::time::timeout(END_TIMEOUT, process::ended(machine.pidfd()))
            .await
            .map_err(|_late| std::io::Error::from(std::io::ErrorKind::TimedOut))
            .step("see a VMM end")?
            .step("see a VMM end")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_killed_probes_left_and_what_is_unused_is_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let day = Duration::from_secs(24 * 3600);
        for (name, age) in [
            ("probe-1.new", 2 * PROBE_MAX_AGE),
            ("probe-2", 2 * PROBE_MAX_AGE),
            ("probe-3.new", Duration::ZERO),
            ("0123abcd", 6 * day),
            ("4567abcd", 8 * day),
        ] {
            let path = dir.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join(MEMORY_FILE), "memory").unwrap();
            fs::File::open(&path).unwrap().set_modified(SystemTime::now() - age).unwrap();
        }
        sweep(dir.path()).unwrap();
        let mut left: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["0123abcd", "probe-3.new"]);
    }

    #[test]
    fn few_kinds_of_machines() {
        let of = |memory_bytes, cpu_millis| {
            let size = size(&Resources { memory_bytes, cpu_millis, ..Resources::default() });
            (size.memory_mib, size.cpus)
        };
        assert_eq!(of(64 << 20, 100), (192, 1));
        assert_eq!(of(96 << 20, 1000), (192, 1));
        assert_eq!(of(97 << 20, 1001), (256, 2));
        let limits = vmm_limits(size(&Resources::default()), &Resources::default());
        assert!(limits.memory_bytes <= Resources::default().memory_bytes + crate::OVERHEAD_MAX_BYTES);
    }
}
