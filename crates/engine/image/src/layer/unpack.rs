//! One layer from its packed bytes to its place in the store.

use std::fs;
use std::io::{self, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;
use serde::{Deserialize, Serialize};

use super::apply::Applier;
use super::tar_reader::TarReader;
use crate::digest::{Digest, HashingReader};
use crate::error::{ImageError, Result};
use crate::limits::{RATIO_FREE_BYTES, RATIO_MAX};

/// Name of the tree inside of a layer's directory.
const ROOT: &str = "root";
/// Name of its description.
const DESCRIPTION: &str = "layer.json";
const READ_BUFFER_BYTES: usize = 256 << 10;

/// A layer that is ready to be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Prepared {
    /// Name of its directory under `layers/`.
    pub(crate) key: String,
    /// Digest of the archive it was made of.
    pub(crate) diff_id: Digest,
    /// Bytes of all files in it.
    pub(crate) size_bytes: u64,
    /// Boot of the host in which it was made.
    pub(crate) boot: String,
}

impl Prepared {
    /// Keys under which this layer on top of these may be found: alone, or as part of the chain.
    pub(crate) fn keys(diff_id: &Digest, chain: &Digest) -> [String; 2] {
        [diff_id.hex().to_owned(), format!("{}-chain", chain.hex())]
    }

    /// The tree of a layer.
    pub(crate) fn root(layers: &Path, key: &str) -> PathBuf {
        layers.join(key).join(ROOT)
    }

    /// Reads the description of a prepared layer, `None` when there is no such layer.
    pub(crate) fn read(layers: &Path, key: &str) -> Result<Option<Self>> {
        match fs::read(layers.join(key).join(DESCRIPTION)) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok().filter(|p: &Self| p.key == key)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ImageError::io("read a layer's description", error)),
        }
    }
}

/// What the bytes must turn out to be.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    /// Digest and size of the packed bytes, where they were not checked before.
    pub(crate) blob: Option<(Digest, u64)>,
    /// Digest of the unpacked archive; `None` for an import, which finds it out.
    pub(crate) diff_id: Option<Digest>,
    /// Identity of the stack with this layer on top; `None`: it is the lowest.
    pub(crate) chain: Option<Digest>,
}

/// Packed bytes and how many of them were read.
pub(crate) struct Packed<R> {
    /// The bytes.
    pub(crate) reader: R,
    /// Counter for progress.
    pub(crate) done: Arc<AtomicU64>,
}

impl<R: Read> Read for Packed<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.reader.read(buf)?;
        self.done.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// Unpacks a layer into the store: `dirs` are `tmp/` and `layers/`, `lowers` the trees below, lowest first,
/// `budget` the bytes it may take. Blocking.
///
/// # Errors
/// [`ImageError::Invalid`], [`ImageError::DigestMismatch`], [`ImageError::HostFull`]. Nothing stays behind.
pub(crate) fn unpack<R: Read>(
    packed: Packed<R>,
    expected: &Expected,
    (tmp, layers): (&Path, &Path),
    lowers: &[PathBuf],
    budget: u64,
) -> Result<Prepared> {
    let work = tempfile::Builder::new()
        .prefix("layer-")
        .tempdir_in(tmp)
        .map_err(|error| ImageError::io("make a directory for a layer", error))?;
    let root = work.path().join(ROOT);
    make_root(&root)?;
    let lowers = lowers.iter().rev().map(|path| open_root(path)).collect::<Result<Vec<_>>>()?;
    let mut applier = Applier::new(open_root(&root)?, &lowers, budget);
    let diff_id = stream(packed, expected, budget, &mut applier)?;
    let outcome = applier.finish()?;
    if let Some(wanted) = &expected.diff_id
        && *wanted != diff_id
    {
        let why = format!("the layer unpacks to {diff_id}");
        return Err(ImageError::DigestMismatch { expected: wanted.to_string(), why });
    }
    let chain = expected.chain.as_ref().unwrap_or(&diff_id);
    let [alone, chained] = Prepared::keys(&diff_id, chain);
    let key = if outcome.depends_on_lowers { chained } else { alone };
    let prepared = Prepared { key, diff_id, size_bytes: outcome.size_bytes, boot: boot_id()? };
    commit(&work.keep(), &prepared, layers)?;
    Ok(prepared)
}

/// Identifies this boot of the host.
pub(crate) fn boot_id() -> Result<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .map_err(|error| ImageError::io("read the boot id", error))
}

fn make_root(root: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::create_dir(root)
        .and_then(|()| fs::set_permissions(root, fs::Permissions::from_mode(0o755)))
        .map_err(|error| ImageError::io("make a directory for a layer", error))
}

fn open_root(path: &Path) -> Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|error| ImageError::io("open a layer", error.into()))
}

fn commit(work: &Path, prepared: &Prepared, layers: &Path) -> Result<()> {
    let done = serde_json::to_vec(prepared)
        .map_err(io::Error::from)
        .and_then(|json| fs::write(work.join(DESCRIPTION), json))
        .and_then(|()| fs::rename(work, layers.join(&prepared.key)));
    done.or_else(|error| {
        drop(fs::remove_dir_all(work));
        // Another pull or load made the same layer at the same time: that one is as good.
        if matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists) {
            return Ok(());
        }
        Err(ImageError::io("put a layer in its place", error))
    })
}

/// Drives the whole chain of readers and gives the digest of the archive.
fn stream<R: Read>(
    packed: Packed<R>,
    expected: &Expected,
    budget: u64,
    applier: &mut Applier<'_>,
) -> Result<Digest> {
    let done = Arc::clone(&packed.done);
    let mut blob = HashingReader::new(packed);
    let diff_id = {
        let unpacked = decoder(BufReader::with_capacity(READ_BUFFER_BYTES, &mut blob))?;
        let bounded = Bounded { inner: unpacked, packed: done, bytes: 0, budget: archive_budget(budget) };
        let mut archive = HashingReader::new(BufReader::with_capacity(READ_BUFFER_BYTES, bounded));
        let mut tar = TarReader::new(&mut archive);
        while let Some(member) = tar.next()? {
            applier.apply(&member, &mut tar)?;
        }
        tar.drain()?;
        archive.digest()
    };
    io::copy(&mut blob, &mut io::sink()).map_err(super::unreadable)?;
    if let Some((digest, size)) = &expected.blob {
        let (got, bytes) = (blob.digest(), blob.count());
        if (&got, &bytes) != (digest, size) {
            let why = format!("the layer is {got} with {bytes} bytes instead of {size}");
            return Err(ImageError::DigestMismatch { expected: digest.to_string(), why });
        }
    }
    Ok(diff_id)
}

/// The most bytes that an archive of files of `budget` bytes may have: headers and padding come on top.
pub(crate) fn archive_budget(budget: u64) -> u64 {
    budget.saturating_add(budget / 4).saturating_add(64 << 20)
}

/// Chooses the decompressor by the bytes, not by the media type that the registry gives: many layers are mislabelled.
pub(crate) fn decoder<'r, R: io::BufRead + 'r>(mut packed: R) -> Result<Box<dyn Read + 'r>> {
    // The buffer is filled by one read, which for a stream may be short: top it up by hand.
    let mut head = Vec::new();
    while head.len() < 4 {
        let mut byte = [0];
        match packed.read(&mut byte).map_err(super::unreadable)? {
            0 => break,
            _ => head.push(byte[0]),
        }
    }
    let kind = head.clone();
    let whole = io::Cursor::new(head).chain(packed);
    match kind.as_slice() {
        [0x1f, 0x8b, ..] => Ok(Box::new(MultiGzDecoder::new(whole))),
        [0x28, 0xb5, 0x2f, 0xfd] => {
            let decoder = zstd::stream::read::Decoder::with_buffer(whole).map_err(super::unreadable)?;
            Ok(Box::new(decoder))
        }
        [b'B', b'Z', b'h', ..] | [0xfd, b'7', b'z', b'X'] => {
            Err(ImageError::Invalid("bzip2 and xz are not supported; use gzip, zstd or none".into()))
        }
        _ => Ok(Box::new(whole)),
    }
}

/// Stops bombs: a limit on what comes out, and on its ratio to what went in.
struct Bounded<R> {
    inner: R,
    packed: Arc<AtomicU64>,
    bytes: u64,
    budget: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.bytes += n as u64;
        if self.bytes > self.budget {
            return Err(io::Error::other("it unpacks to more than the operator allows"));
        }
        let packed = self.packed.load(Ordering::Relaxed);
        if self.bytes > RATIO_FREE_BYTES && self.bytes / RATIO_MAX > packed {
            return Err(io::Error::other("it unpacks to far more than its size allows"));
        }
        Ok(n)
    }
}
