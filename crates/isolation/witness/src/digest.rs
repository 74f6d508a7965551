//! Digests of programs, computed on the host, each content once, and no more than the host can spare.
//!
//! The program's record names the file by device and inode. The file is opened through the process that runs it or,
//! when that has ended, in the layer that has it; the opened file must have the same numbers and be unchanged since. A
//! path that came from a sandbox is never followed anywhere else.

use std::collections::HashMap;
use std::fs::File as Opened;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

use crate::convert::layer;
use crate::record::{Executed, File, Pid};
use crate::watched::Facts;

/// Largest file whose digest is computed, bytes.
const FILE_MAX_BYTES: u64 = 256 << 20;
/// Digests that are remembered.
const CACHE_MAX_COUNT: usize = 65_536;
/// Bytes that may be read at once, and then in a second, for all sandboxes together.
const BURST_BYTES: u64 = 1 << 30;
const RATE_BYTES: u64 = 64 << 20;
/// A file that changed so recently may change again without its time of change telling.
const SETTLED: Duration = Duration::from_secs(2);

/// A content, as far as a file's own numbers tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Content {
    device: u64,
    inode: u64,
    bytes: u64,
    changed: (i64, u32),
}

/// Computes digests, and remembers them.
#[derive(Debug)]
pub(crate) struct Digests {
    known: HashMap<Content, String>,
    budget: u64,
    filled: Instant,
}

impl Default for Digests {
    fn default() -> Self {
        Self { known: HashMap::new(), budget: BURST_BYTES, filled: Instant::now() }
    }
}

impl Digests {
    /// The digest of what a process runs, if it can be had: not of files that are too large, were changed or are gone, nor
    /// when too much was read a moment ago.
    pub(crate) fn of(&mut self, executed: &Executed, pid: Pid, facts: &Facts) -> Option<String> {
        let file = &executed.file;
        let content =
            Content { device: file.device, inode: file.inode, bytes: file.bytes, changed: file.changed };
        // A file without a time of change cannot be told from what it was before.
        let told = file.changed != (0, 0);
        if let Some(digest) = self.known.get(&content).filter(|_| told) {
            return Some(digest.clone());
        }
        if file.bytes > FILE_MAX_BYTES || !self.spend(file.bytes) {
            return None;
        }
        let opened = of_process(file, pid).or_else(|| of_layer(executed, facts))?;
        let digest = format!("blake3:{}", hash(opened, file)?);
        if told && settled(file) {
            if self.known.len() >= CACHE_MAX_COUNT {
                self.known.clear();
            }
            self.known.insert(content, digest.clone());
        }
        Some(digest)
    }

    fn spend(&mut self, bytes: u64) -> bool {
        let passed = u64::try_from(self.filled.elapsed().as_millis()).unwrap_or(u64::MAX);
        let earned = passed.saturating_mul(RATE_BYTES / 1000);
        if earned > 0 {
            self.budget = self.budget.saturating_add(earned).min(BURST_BYTES);
            self.filled = Instant::now();
        }
        let enough = self.budget >= bytes;
        if enough {
            self.budget -= bytes;
        }
        enough
    }
}

fn settled(file: &File) -> bool {
    let changed = UNIX_EPOCH + Duration::from_secs(u64::try_from(file.changed.0).unwrap_or(0));
    SystemTime::now().duration_since(changed).is_ok_and(|since| since > SETTLED)
}

/// Opens the file through the process, as long as it runs just that file. The kernel lets no process write to a file
/// that runs.
fn of_process(file: &File, pid: Pid) -> Option<Opened> {
    let dir = format!("/proc/{}", pid.pid);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = Opened::from(openat(CWD, format!("{dir}/exe"), flags, Mode::empty()).ok()?);
    // Read after it was opened: a pid that was used again in between has another start.
    let same = same_numbers(&opened, file, true) && start_of(&dir) == Some(pid.start_ns / 10_000_000);
    same.then_some(opened)
}

/// When a process was forked, in hundredths of a second of the boot clock.
fn start_of(dir: &str) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("{dir}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Opens the file in the layer, at the path at which the sandbox has it; or at the same path of the host, for
/// directories that are bound from there.
fn of_layer(executed: &Executed, facts: &Facts) -> Option<Opened> {
    let root = match layer(&executed.file, facts) {
        Some(layer) => layer.dir.as_path(),
        None if facts.bound.contains(&executed.file.device) && !executed.file.on_overlay => Path::new("/"),
        None => return None,
    };
    let dir = openat(CWD, root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let path = executed.path.strip_prefix('/')?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let opened = Opened::from(openat2(&dir, path, flags, Mode::empty(), how).ok()?);
    same_numbers(&opened, &executed.file, false).then_some(opened)
}

/// Whether it is the regular file that the record means. Through an overlay a file has another device than below.
fn same_numbers(opened: &Opened, file: &File, through_overlay: bool) -> bool {
    let Ok(meta) = opened.metadata() else { return false };
    let device = meta.dev() == file.device || (through_overlay && file.on_overlay);
    meta.is_file()
        && device
        && meta.ino() == file.inode
        && meta.size() == file.bytes
        && unchanged(&meta, file)
}

fn unchanged(meta: &std::fs::Metadata, file: &File) -> bool {
    file.changed == (0, 0) || (meta.ctime(), meta.ctime_nsec()) == (file.changed.0, i64::from(file.changed.1))
}

/// Reads all of it, and no more than it had; nothing when it changed meanwhile.
fn hash(opened: Opened, file: &File) -> Option<String> {
    use std::io::Read;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader((&opened).take(file.bytes)).ok()?;
    let meta = opened.metadata().ok()?;
    unchanged(&meta, file).then(|| hasher.finalize().to_hex().to_string())
}
