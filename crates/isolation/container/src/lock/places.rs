//! Where rules' paths led before any sandbox had run on a disk: kept on the disk, beside the part that its sandbox
//! sees.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::BorrowedFd;

use atoll_isolation::IsolationError;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, openat, openat2, unlinkat};
use rustix::io::Errno;

use super::rules::Places;
use crate::step::Step;

const NAME: &str = "programs.json";
/// Largest such file that is read, bytes.
const MAX_BYTES: u64 = 16 << 20;

impl Places {
    /// None yet, of the template of this moment.
    pub(crate) fn of(until_ms: u64) -> Self {
        Self { until_ms, ..Self::default() }
    }
}

/// Reads the places that are kept for the template of this moment; `None` when no sandbox has run on the disk since. A
/// disk may come from anywhere: a file that cannot be parsed is of no template.
pub(crate) fn read(disk: BorrowedFd<'_>, until_ms: u64) -> Result<Option<Places>, IsolationError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let file = match openat2(disk, NAME, flags, Mode::empty(), resolve) {
        Err(Errno::NOENT) => return Ok(None),
        opened => File::from(opened.step("read where a disk has its programs")?),
    };
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text).step("read where a disk has its programs")?;
    let places: Option<Places> = serde_json::from_slice(&text).ok();
    Ok(places.filter(|places| places.until_ms == until_ms))
}

/// Keeps them. No process of the sandbox runs yet.
pub(crate) fn write(disk: BorrowedFd<'_>, places: &Places) -> Result<(), IsolationError> {
    match unlinkat(disk, NAME, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        refused => refused.step("write where a disk has its programs")?,
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let text = serde_json::to_vec(places).map_err(std::io::Error::other);
    let text = text.step("write where a disk has its programs")?;
    let file =
        openat(disk, NAME, flags, Mode::RUSR | Mode::WUSR).step("write where a disk has its programs")?;
    File::from(file).write_all(&text).step("write where a disk has its programs")
}
