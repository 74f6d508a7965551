//! The mount namespace that those of all containers are copies of: an empty one, with places for the parts of a root.
//!
//! A new mount namespace is a copy of another. A copy of the host's would have all mounts of the host, which would have to
//! be taken away again, and the call that does that, `pivot_root`, looks at every thread of the host. So the driver makes
//! one namespace when it is opened, in which there is nothing of the host:
//!
//! ```text
//! /        a file system in memory, read-only
//! /parts   a mount of its own, so that one call takes away what was attached below: the disk, the layers, ...
//! /root    where the first process of a container builds its root, before it moves it onto `/`
//! ```
//!
//! From then on the root covers these directories. Nothing inside leads below a root: no path, and no process that would
//! have one of them open. Nor would there be anything: both are empty, and nobody can write to them.
//!
//! The namespace is held by a descriptor of the server alone, and ends with it. Containers have their copies.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use atoll_isolation::IsolationError;
use rustix::fs::{CWD, Mode, OFlags, mkdirat};
use rustix::io::{Errno, Result};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};
use rustix::thread::UnshareFlags;

use crate::create::LAYERS_MAX_COUNT;
use crate::step::Step;
use crate::sys;

/// Where a root is built.
pub(crate) const ROOT: &CStr = c"/root";
/// Where its parts are attached.
pub(crate) const PARTS: &CStr = c"/parts";
/// The place of the disk, below [`PARTS`].
pub(crate) const DISK: &CStr = c"disk";
/// The place of a volume of which a directory is wanted, for that moment, below [`PARTS`].
pub(crate) const VOLUME: &CStr = c"volume";
/// The place of the file system in memory whose directories become `/dev` and the like, below [`PARTS`].
pub(crate) const MEMORY: &CStr = c"memory";

/// The place of a layer, below [`PARTS`]; the topmost layer has number 0.
pub(crate) fn layer(number: usize) -> String {
    format!("l{number}")
}

/// Makes the namespace. `dir` is an empty directory, in whose place the file system is for a moment, in that namespace.
pub(crate) fn make(dir: CString) -> std::result::Result<OwnedFd, IsolationError> {
    // A separate thread, which ends in the namespace: a thread of the server must not be left there.
    let maker = std::thread::Builder::new().name("atoll-mounts".to_owned());
    let made = maker.spawn(move || make_here(&dir)).step("start the thread atoll-mounts")?.join();
    made.unwrap_or(Err(Errno::IO)).step("make the mounts that those of containers begin with")
}

fn make_here(dir: &CStr) -> Result<OwnedFd> {
    sys::unshare(UnshareFlags::FS | UnshareFlags::NEWNS)?;
    mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    // Now: there will be no /proc.
    let own = c"/proc/thread-self/ns/mnt";
    let namespace = rustix::fs::open(own, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let nothing_runs = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount(c"atoll", dir, c"tmpfs", nothing_runs, c"mode=0700,size=64k")?;
    rustix::process::chdir(dir)?;
    rustix::process::pivot_root(c".", c".")?;
    unmount(c".", UnmountFlags::DETACH)?;
    rustix::process::chdir(c"/")?;
    make_dir(ROOT)?;
    make_dir(PARTS)?;
    mount_bind(PARTS, PARTS)?;
    rustix::process::chdir(PARTS)?;
    for place in [DISK, VOLUME, MEMORY] {
        make_dir(place)?;
    }
    for number in 0..LAYERS_MAX_COUNT {
        mkdirat(CWD, layer(number), Mode::from_raw_mode(0o755))?;
    }
    for place in [c"/", PARTS] {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mount = rustix::fs::open(place, flags, Mode::empty())?;
        let strict = sys::ATTR_RDONLY | sys::ATTR_NOSUID | sys::ATTR_NODEV | sys::ATTR_NOEXEC;
        sys::mount_setattr(mount.as_fd(), strict, None)?;
    }
    Ok(namespace)
}

fn make_dir(name: &CStr) -> Result<()> {
    mkdirat(CWD, name, Mode::from_raw_mode(0o755))
}
