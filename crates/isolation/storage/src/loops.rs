//! Images on loop devices that free themselves with their last user.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use atoll_isolation::IsolationError;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::step::failed;
use crate::sys;

/// Tries to get a loop device that another program did not take in between.
const TRIES: usize = 64;

/// A loop device with an image, bound as long as this or a mount of it lives.
#[derive(Debug)]
pub struct LoopDevice {
    /// Open for reading: some hosts do not mount a device that a process has open for writing.
    fd: OwnedFd,
    number: u32,
}

impl LoopDevice {
    /// The device's file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path(self.number)
    }

    /// The device, for reading.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Takes note of a new size of its image.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn resize(&self) -> std::io::Result<()> {
        Ok(sys::loop_set_capacity(self.as_fd())?)
    }

    /// Drops what the kernel has cached of it, but for blocks that another process is reading just then.
    ///
    /// # Errors
    /// When another process or mount uses the device.
    pub(crate) fn forget(&self) -> std::io::Result<()> {
        let exclusive = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        let device = rustix::fs::open(self.path(), exclusive, Mode::empty())?;
        Ok(sys::forget_blocks(device.as_fd())?)
    }

    /// Reads what the device has at `offset`, or its cache.
    pub(crate) fn read_exact_at(&self, into: &mut [u8], offset: u64) -> std::io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(&self.fd, &mut into[done..], offset + done as u64)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                count => done += count,
            }
        }
        Ok(())
    }

    /// Starts reading parts of the device (first byte and length) all at once, so that mounting it and the
    /// first walks through it do not wait for one block after the other: a device that bypasses the host's
    /// cache starts with none.
    pub fn read_ahead(&self, extents: &[(u64, u64)]) {
        for (offset, length) in extents {
            let length = std::num::NonZeroU64::new(*length);
            // Nothing but speed depends on it.
            let _ = rustix::fs::fadvise(&self.fd, *offset, length, rustix::fs::Advice::WillNeed);
        }
    }

    /// A device that is in use already.
    pub(crate) fn existing(number: u32) -> rustix::io::Result<Self> {
        let read = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Self { fd: rustix::fs::open(path(number), read, Mode::empty())?, number })
    }
}

/// The file of a loop device.
pub(crate) fn path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

/// Binds an image to a loop device.
///
/// # Errors
/// [`IsolationError::Unenforceable`] when the host has no usable loop devices.
pub fn attach(image: &File) -> Result<LoopDevice, IsolationError> {
    bind(image, false)
}

/// Binds an image to a loop device that cannot be written to.
///
/// # Errors
/// As [`attach`].
pub fn attach_read_only(image: &File) -> Result<LoopDevice, IsolationError> {
    bind(image, true)
}

fn bind(image: &File, read_only: bool) -> Result<LoopDevice, IsolationError> {
    let rdwr = OFlags::RDWR | OFlags::CLOEXEC;
    let control = rustix::fs::open("/dev/loop-control", rdwr, Mode::empty()).map_err(unusable)?;
    let mut direct = true;
    for _ in 0..TRIES {
        let number = sys::loop_free(control.as_fd()).map_err(unusable)?;
        let device = rustix::fs::open(path(number), rdwr, Mode::empty()).map_err(unusable)?;
        match sys::loop_configure(device.as_fd(), image.as_fd(), direct, read_only) {
            Ok(()) => return LoopDevice::existing(number).map_err(unusable),
            Err(Errno::BUSY) => {}
            // Not every file system can do without its cache.
            Err(Errno::INVAL) if direct => direct = false,
            Err(error) => return Err(unusable(error)),
        }
    }
    Err(failed("find a free loop device".to_owned(), Errno::BUSY.into()))
}

fn unusable(error: Errno) -> IsolationError {
    let why = std::io::Error::from(error);
    IsolationError::Unenforceable(format!(
        "the disk limit cannot be enforced, because loop devices are unusable here: {why}"
    ))
}

/// Every loop device in use, with the path of its image as the kernel names it: ` (deleted)` follows a path
/// that is no more.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn in_use() -> std::io::Result<Vec<(u32, String)>> {
    let mut found = Vec::new();
    // Lists devices that have a size. A host may have a thousand loop devices that are free.
    for line in std::fs::read_to_string("/proc/partitions")?.lines() {
        let name = line.split_ascii_whitespace().nth(3).and_then(|name| name.strip_prefix("loop"));
        let Some(number) = name.and_then(|number| number.parse().ok()) else { continue };
        // Free devices have no such file. Of others one read gets it whole: no file of sysfs is longer than a page.
        let mut text = vec![0_u8; rustix::param::page_size()];
        let read = File::open(format!("/sys/block/loop{number}/loop/backing_file"))
            .and_then(|mut file| file.read(&mut text));
        let Ok(count) = read else { continue };
        text.truncate(count);
        if let Ok(text) = String::from_utf8(text) {
            found.push((number, text.trim_end().to_owned()));
        }
    }
    Ok(found)
}
