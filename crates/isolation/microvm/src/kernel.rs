//! The guest's kernel: taken out of a distribution's package or given by path, and prepared once.
//!
//! ```text
//! <dir>/kernel/
//!   vmlinux        uncompressed, with the PVH entry that QEMU jumps to
//!   modules/NN-x   the modules that the guest agent loads, in order
//!   kernel.json    where it came from, and the digest of each file: checked whenever it is used
//! ```

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

/// What a Debian cloud kernel of the 6.12 series needs to find its disks, its network card and its port. What a
/// kernel has built in has no file and is left out.
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
/// Largest kernel, package member or module that is read, bytes.
const FILE_MAX_BYTES: u64 = 512 << 20;

/// Why there is no kernel.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// Nothing was set up.
    #[error("no guest kernel is set up: run 'atoll setup microvm'")]
    NotSetUp,
    /// What is there is not what was set up.
    #[error("the guest kernel's file {0} has changed since it was set up: run 'atoll setup microvm' again")]
    Changed(String),
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
}

impl Kernel {
    /// Reads what was set up, and checks it.
    ///
    /// # Errors
    /// [`KernelError`].
    pub fn open(dir: &Path) -> Result<Self, KernelError> {
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
        Ok(Self { release: description.release, vmlinux: dir.join("vmlinux"), modules, digest })
    }

    /// Prepares a kernel from an unpacked package: a directory with `boot/vmlinuz-*` and `lib/modules/*`.
    ///
    /// # Errors
    /// [`KernelError`]; what was set up before stays then.
    pub fn set_up_from_tree(dir: &Path, tree: &Path) -> Result<Self, KernelError> {
        let release = only_entry(&tree.join("lib/modules"))?;
        let image = read_file(&tree.join("boot").join(format!("vmlinuz-{release}")))?;
        let modules = tree.join("lib/modules").join(&release).join("kernel");
        let new = dir.with_extension("new");
        match fs::remove_dir_all(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io("remove what an earlier set-up left")(error));
            }
            _ => {}
        }
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
        fs::write(new.join("kernel.json"), text).map_err(io("describe the guest kernel"))?;
        if dir.try_exists().map_err(io("look for an earlier guest kernel"))? {
            fs::remove_dir_all(dir).map_err(io("remove the earlier guest kernel"))?;
        }
        fs::rename(&new, dir).map_err(io("put the guest kernel in its place"))?;
        Self::open(dir)
    }

    /// Unpacks a Debian package and prepares its kernel.
    ///
    /// # Errors
    /// [`KernelError`].
    pub fn set_up_from_package(dir: &Path, package: &Path) -> Result<Self, KernelError> {
        let tree = dir.with_extension("tree");
        fs::create_dir_all(&tree).map_err(io("make a directory for the package"))?;
        let unpacked = run(Command::new("dpkg-deb").arg("-x").arg(package).arg(&tree));
        let kernel = unpacked.and_then(|_| Self::set_up_from_tree(dir, &tree));
        fs::remove_dir_all(&tree).map_err(io("remove the unpacked package"))?;
        kernel
    }
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
