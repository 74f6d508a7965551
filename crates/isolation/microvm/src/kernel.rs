//! The guest's kernel: taken out of a distribution's package or given by path, and prepared once.
//!
//! ```text
//! <cache>/kernel/
//!   vmlinux        uncompressed, with the PVH entry that QEMU jumps to
//!   modules/NN-x   the modules that the guest agent loads, in order
//!   kernel.json    where it came from, and the digest of each file: checked whenever it is used
//! <cache>/kernel.lock    shared by every server that uses the kernel; a set-up that replaces it must have it alone
//! <cache>/kernel.set-up  held by the set-up that is going on
//! ```
//!
//! Servers boot machines from these files by name, and keep what they booted beside them: if the kernel changed under a
//! server, the new kernel would end up in machines that are saved under the name of the old one. So a set-up that gives
//! the same kernel changes nothing, and one that gives another kernel is refused while a server runs.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Modules that a Debian cloud kernel of the 6.12 series needs to find its disks, its network card and its port. A
/// module that the kernel has built in has no file and is left out.
const MODULES: [&str; 8] = [
    "drivers/virtio/virtio_mmio",
    "drivers/block/virtio_blk",
    "net/core/failover",
    "drivers/net/net_failover",
    "drivers/net/virtio_net",
    "lib/libcrc32c",
    "fs/erofs/erofs",
    "fs/overlayfs/overlay",
];
/// Offsets in the header of a `bzImage` (`Documentation/arch/x86/boot.rst`): number of set-up sectors, the
/// signature `HdrS`, and where the compressed kernel lies behind them.
const SETUP_SECTORS: usize = 0x1f1;
const SIGNATURE: usize = 0x202;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
/// Directories of files that are derived from a kernel, beside it: useless with another kernel.
const DERIVED: [&str; 2] = ["templates", "initrds"];
/// Largest kernel, package member or module that is read, bytes.
const FILE_MAX_BYTES: u64 = 512 << 20;

/// Why there is no kernel.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// Nothing was set up.
    #[error("no guest kernel is set up: run 'atoll setup microvm'")]
    NotSetUp,
    /// The files that are there are not those that were set up.
    #[error("the guest kernel's file {0} has changed since it was set up: run 'atoll setup microvm' again")]
    Changed(String),
    /// Another kernel was to take its place.
    #[error(
        "a server runs machines with the guest kernel in {0}, and this is another: stop the server, then set it up"
    )]
    InUse(PathBuf),
    /// The given kernel cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// The disk says no.
    #[error("failed to {step}")]
    Io {
        /// What was being done.
        step: String,
        /// The system's word.
        #[source]
        source: io::Error,
    },
}

fn io(step: impl Into<String>) -> impl FnOnce(io::Error) -> KernelError {
    let step = step.into();
    move |source| KernelError::Io { step, source }
}

/// What was set up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    /// The kernel's release, such as `6.12.95+deb12-cloud-amd64`.
    release: String,
    /// File name and BLAKE3 digest, in the order in which modules are loaded.
    files: Vec<(String, String)>,
}

/// A kernel that is ready to boot.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// Its release.
    pub release: String,
    /// The uncompressed kernel.
    pub vmlinux: PathBuf,
    /// Names and contents of the modules, in order.
    pub(crate) modules: Vec<(String, Vec<u8>)>,
    /// Digest of everything.
    pub(crate) digest: String,
    /// Keeps it as it is.
    _used: Arc<File>,
}

impl Kernel {
    /// Reads what was set up below `cache`, and checks it. It stays as it is until this is dropped.
    ///
    /// # Errors
    /// [`KernelError`].
    pub fn open(cache: &Path) -> Result<Self, KernelError> {
        let used = lock_file(&cache.join("kernel.lock"))?;
        flock(&used, FlockOperation::LockShared).map_err(locked)?;
        Self::read(&cache.join("kernel"), used)
    }

    fn read(dir: &Path, used: File) -> Result<Self, KernelError> {
        let text = match fs::read(dir.join("kernel.json")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(KernelError::NotSetUp),
            other => other.map_err(io("read the description of the guest kernel"))?,
        };
        let description: Description = serde_json::from_slice(&text).map_err(|error| {
            KernelError::Unusable(format!("the description of the guest kernel: {error}"))
        })?;
        let mut modules = Vec::new();
        for (name, digest) in &description.files {
            let bytes = read_file(&dir.join(name))?;
            if blake3::hash(&bytes).to_hex().as_str() != digest {
                return Err(KernelError::Changed(name.clone()));
            }
            if let Some(module) = name.strip_prefix("modules/") {
                modules.push((module.to_owned(), bytes));
            }
        }
        let digest = blake3::hash(&text).to_hex().to_string();
        Ok(Self {
            release: description.release,
            vmlinux: dir.join("vmlinux"),
            modules,
            digest,
            _used: Arc::new(used),
        })
    }

    /// Prepares a kernel from an unpacked package: a directory with `boot/vmlinuz-*` and `lib/modules/*`. Where it is the one
    /// that is there, nothing changes; else what was derived from that one goes.
    ///
    /// # Errors
    /// [`KernelError`]; what was set up before stays then.
    pub fn set_up_from_tree(cache: &Path, tree: &Path) -> Result<Self, KernelError> {
        let _turn = turn(cache)?;
        Self::set_up(cache, tree)
    }

    /// Unpacks a Debian package and prepares its kernel, as [`Self::set_up_from_tree`] does.
    ///
    /// # Errors
    /// [`KernelError`].
    pub fn set_up_from_package(cache: &Path, package: &Path) -> Result<Self, KernelError> {
        let _turn = turn(cache)?;
        let tree = cache.join("kernel.tree");
        fs::create_dir_all(&tree).map_err(io("make a directory for the package"))?;
        let unpacked = run(Command::new("dpkg-deb").arg("-x").arg(package).arg(&tree));
        let kernel = unpacked.and_then(|_| Self::set_up(cache, &tree));
        remove(&tree)?;
        kernel
    }

    fn set_up(cache: &Path, tree: &Path) -> Result<Self, KernelError> {
        let new = cache.join("kernel.new");
        remove(&new)?;
        let kernel = unpack(&new, tree).and_then(|description| Self::replace(cache, &new, &description));
        remove(&new)?;
        kernel
    }

    /// Puts a kernel in the place of the one that is there, unless that is the same.
    fn replace(cache: &Path, new: &Path, description: &[u8]) -> Result<Self, KernelError> {
        let there = Self::open(cache);
        if let Ok(same) = &there
            && same.digest == blake3::hash(description).to_hex().as_str()
        {
            return there;
        }
        drop(there);
        let alone = lock_file(&cache.join("kernel.lock"))?;
        flock(&alone, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
            Errno::WOULDBLOCK => KernelError::InUse(cache.to_owned()),
            errno => locked(errno),
        })?;
        for derived in DERIVED {
            remove(&cache.join(derived))?;
        }
        let dir = cache.join("kernel");
        remove(&dir)?;
        fs::rename(new, &dir).map_err(io("put the guest kernel in its place"))?;
        flock(&alone, FlockOperation::LockShared).map_err(locked)?;
        Self::read(&dir, alone)
    }
}

/// Waits until no other set-up is at the same directory.
fn turn(cache: &Path) -> Result<File, KernelError> {
    let file = lock_file(&cache.join("kernel.set-up"))?;
    flock(&file, FlockOperation::LockExclusive).map_err(locked)?;
    Ok(file)
}

fn lock_file(path: &Path) -> Result<File, KernelError> {
    let opened = File::options().create(true).truncate(false).write(true).open(path);
    opened.map_err(io(format!("open {}", path.display())))
}

fn locked(errno: Errno) -> KernelError {
    io("lock the guest kernel")(errno.into())
}

fn remove(dir: &Path) -> Result<(), KernelError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io(format!("remove {}", dir.display()))(error))
        }
        _ => Ok(()),
    }
}

/// Writes kernel, modules and description of an unpacked package to `new`; gives the description.
fn unpack(new: &Path, tree: &Path) -> Result<Vec<u8>, KernelError> {
    let release = only_entry(&tree.join("lib/modules"))?;
    let image = read_file(&tree.join("boot").join(format!("vmlinuz-{release}")))?;
    let modules = tree.join("lib/modules").join(&release).join("kernel");
    fs::create_dir_all(new.join("modules")).map_err(io("make the directory of the guest kernel"))?;
    let mut files = Vec::new();
    let mut keep = |name: String, bytes: &[u8]| {
        files.push((name.clone(), blake3::hash(bytes).to_hex().to_string()));
        fs::write(new.join(&name), bytes).map_err(io(format!("write {name}")))
    };
    keep("vmlinux".to_owned(), &extract(&image)?)?;
    for (index, module) in MODULES.iter().enumerate() {
        let name = module.rsplit('/').next().unwrap_or(module);
        if let Some(bytes) = read_module(&modules.join(module))? {
            keep(format!("modules/{index:02}-{name}"), &bytes)?;
        }
    }
    let text = serde_json::to_vec_pretty(&Description { release, files })
        .map_err(|error| KernelError::Unusable(error.to_string()))?;
    fs::write(new.join("kernel.json"), &text).map_err(io("describe the guest kernel"))?;
    Ok(text)
}

fn only_entry(dir: &Path) -> Result<String, KernelError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(io(format!("list {}", dir.display())))? {
        names.push(entry.map_err(io("list the modules"))?.file_name().to_string_lossy().into_owned());
    }
    match names.as_slice() {
        [name] => Ok(name.clone()),
        _ => Err(KernelError::Unusable(format!("{} holds {} kernels, not one", dir.display(), names.len()))),
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, KernelError> {
    let step = || format!("read {}", path.display());
    let mut bytes = Vec::new();
    File::open(path).map_err(io(step()))?.take(FILE_MAX_BYTES).read_to_end(&mut bytes).map_err(io(step()))?;
    Ok(bytes)
}

/// The uncompressed kernel in a `bzImage`, or the file itself if it is uncompressed.
fn extract(image: &[u8]) -> Result<Vec<u8>, KernelError> {
    let unusable = |why: &str| KernelError::Unusable(format!("the kernel cannot be used: {why}"));
    if image.starts_with(&ELF_MAGIC) {
        return Ok(image.to_vec());
    }
    let u32_at = |at: usize| {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    if image.get(SIGNATURE..SIGNATURE + 4) != Some(b"HdrS") {
        return Err(unusable("it is neither an ELF file nor a bzImage"));
    }
    let payload = || {
        let sectors = match *image.get(SETUP_SECTORS)? {
            0 => 4,
            sectors => usize::from(sectors),
        };
        let start = (sectors + 1) * 512 + u32_at(PAYLOAD_OFFSET)?;
        image.get(start..start.checked_add(u32_at(PAYLOAD_LENGTH)?)?)
    };
    let payload = payload().ok_or_else(|| unusable("its header is damaged"))?;
    if !payload.starts_with(&ZSTD_MAGIC) {
        return Err(unusable("it is compressed with something else than zstd; Debian's are since 6.12"));
    }
    // Four bytes with the length follow the compressed data.
    let compressed = &payload[..payload.len() - 4];
    let mut vmlinux = Vec::new();
    let mut decoder =
        zstd::stream::read::Decoder::new(compressed).map_err(io("decompress the kernel"))?.single_frame();
    decoder.by_ref().take(FILE_MAX_BYTES).read_to_end(&mut vmlinux).map_err(io("decompress the kernel"))?;
    if vmlinux.starts_with(&ELF_MAGIC) { Ok(vmlinux) } else { Err(unusable("what it holds is no ELF file")) }
}

/// A module, decompressed; `None` when the kernel has it built in.
fn read_module(path: &Path) -> Result<Option<Vec<u8>>, KernelError> {
    let with = |end: &str| PathBuf::from(format!("{}{end}", path.display()));
    let there = |end: &str| with(end).try_exists().map_err(io("look for a module"));
    if there(".ko")? {
        return read_file(&with(".ko")).map(Some);
    }
    if there(".ko.xz")? {
        return run(Command::new("xz").arg("--decompress").arg("--stdout").arg(with(".ko.xz"))).map(Some);
    }
    if there(".ko.zst")? {
        let bytes = read_file(&with(".ko.zst"))?;
        return zstd::stream::decode_all(bytes.as_slice()).map(Some).map_err(io("decompress a module"));
    }
    Ok(None)
}

fn run(command: &mut Command) -> Result<Vec<u8>, KernelError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(io(format!("run {program}")))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().chars().take(300).collect::<String>();
    Err(KernelError::Unusable(format!("{program} failed: {said}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(kernel: &[u8]) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        for dir in ["boot", "lib/modules/6.12/kernel"] {
            fs::create_dir_all(tree.path().join(dir)).unwrap();
        }
        fs::write(tree.path().join("boot/vmlinuz-6.12"), [&ELF_MAGIC[..], kernel].concat()).unwrap();
        tree
    }

    #[test]
    fn a_kernel_that_is_used_is_not_replaced_and_the_same_one_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (cache, one, other) = (dir.path(), tree(b"one"), tree(b"other"));
        assert!(matches!(Kernel::open(cache), Err(KernelError::NotSetUp)));
        let used = Kernel::set_up_from_tree(cache, one.path()).unwrap();
        let saved = cache.join("templates/saved");
        fs::create_dir_all(&saved).unwrap();
        let again = Kernel::set_up_from_tree(cache, one.path()).unwrap();
        assert_eq!(again.digest, used.digest);
        assert!(saved.is_dir());
        let refused = Kernel::set_up_from_tree(cache, other.path()).unwrap_err();
        assert!(matches!(refused, KernelError::InUse(_)), "{refused}");
        assert_eq!(Kernel::open(cache).unwrap().digest, used.digest);
        drop((used, again));
        let replaced = Kernel::set_up_from_tree(cache, other.path()).unwrap();
        assert_eq!(fs::read(&replaced.vmlinux).unwrap(), b"\x7fELFother");
        assert!(!saved.try_exists().unwrap());
        let mut left: Vec<_> = fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["kernel", "kernel.lock", "kernel.set-up"]);
    }

    #[test]
    fn what_changed_on_the_disk_is_set_up_again() {
        let dir = tempfile::tempdir().unwrap();
        let one = tree(b"one");
        let vmlinux = Kernel::set_up_from_tree(dir.path(), one.path()).unwrap().vmlinux;
        fs::write(&vmlinux, "changed").unwrap();
        assert!(matches!(Kernel::open(dir.path()), Err(KernelError::Changed(_))));
        Kernel::set_up_from_tree(dir.path(), one.path()).unwrap();
        assert_eq!(fs::read(&vmlinux).unwrap(), b"\x7fELFone");
    }
}
