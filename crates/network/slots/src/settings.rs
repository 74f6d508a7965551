//! Settings of IPv4 in the network namespace of a thread.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, openat};

/// The names below it mean the network namespace of the thread that opens it.
const DIR: &str = "/proc/sys/net/ipv4";

/// The directory of a namespace's settings. It is found once for all of them: the kernel keeps the directories of all
/// namespaces under one name, and looks at one after the other for that of the thread.
#[derive(Debug)]
pub(crate) struct Settings(OwnedFd);

impl Settings {
    /// Those of this thread's namespace.
    pub(crate) fn open() -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(openat(CWD, DIR, flags, Mode::empty())?))
    }

    /// Changes one.
    pub(crate) fn set(&self, name: &str, value: &str) -> io::Result<()> {
        let file = openat(&self.0, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(&file, value.as_bytes())?;
        Ok(())
    }
}
