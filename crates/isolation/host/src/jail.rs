//! What jails are made of: the launchers of sentries and VMMs put theirs together from these parts.
//!
//! A launcher is a small program of its own with one thread, which the server starts. It takes the parts in this order:
//! [`close_inherited`], [`enter_cgroups`], [`enter_network`], [`own_namespaces`], then either [`root`] and [`fork_sibling`] or the other way
//! round, [`change_root`] in the child, and gives up its privileges.
#![expect(unsafe_code, reason = "unshare, fork and close_range have no safe wrapper")]

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, mount_remount, unmount,
};
use rustix::process::pivot_root;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// Where [`change_root`] has the old root for a moment: a directory of the new one.
pub const OLD_ROOT: &str = "old";

/// Closes every descriptor but the standard streams. The server passes none on, but the process that started the server may
/// have given it some that stay open across programs.
///
/// # Errors
/// What could not be done.
pub fn close_inherited() -> Result<(), String> {
    // SAFETY: takes no pointers; a launcher has opened nothing yet.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    if closed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        .map_err(said("close what was inherited"))
}

/// Moves this process into cgroups, by their `cgroup.procs`, and into a session of its own.
///
/// # Errors
/// What could not be done.
pub fn enter_cgroups(cgroups: &[PathBuf]) -> Result<(), String> {
    for procs in cgroups {
        std::fs::write(procs, "0").map_err(said(format!("enter {}", procs.display())))?;
    }
    rustix::process::setsid().map(drop).map_err(said("leave the session"))
}

/// Moves this process into a network slot.
///
/// # Errors
/// What could not be done.
pub fn enter_network(slot: &Path) -> Result<(), String> {
    let netns = File::open(slot).map_err(said("open the network slot"))?;
    move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(said("enter the network slot"))
}

/// Gives this process mounts, IPC, a host name and a cgroup root of its own, and its children process ids.
///
/// # Errors
/// What could not be done.
pub fn own_namespaces() -> Result<(), String> {
    let own = UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWCGROUP;
    // SAFETY: none of the flags touches the file descriptor table, the one hazard of unshare.
    unsafe { unshare_unsafe(own) }.map_err(said("make the namespaces"))
}

/// Which process this is after [`fork_sibling`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forked {
    /// The new one.
    Child,
    /// The launcher; the id of the new process, as its own namespace has it.
    Launcher(i32),
}

/// Forks a process that is the server's child and not the launcher's, so that the server takes its exit status.
///
/// # Safety
/// The calling process has one thread.
///
/// # Errors
/// What could not be done.
pub unsafe fn fork_sibling() -> Result<Forked, String> {
    let flags = libc::CLONE_PARENT | libc::SIGCHLD;
    // SAFETY: a fork; there is one thread, says the caller, so the child may do anything.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        -1 => Err(format!("failed to fork: {}", io::Error::last_os_error())),
        0 => Ok(Forked::Child),
        // An id of a process has 22 bits.
        pid => i32::try_from(pid).map(Forked::Launcher).map_err(said("fork")),
    }
}

/// Mounts an empty file system for the new root, which only this mount namespace has, on an empty directory of the
/// host; `options` are those of a tmpfs. [`OLD_ROOT`] is there.
///
/// # Errors
/// What could not be done.
pub fn root(scratch: &Path, options: &CStr) -> Result<(), String> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(said("make mounts private"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", scratch, "tmpfs", flags, options).map_err(said("mount the jail's root"))?;
    std::fs::create_dir(scratch.join(OLD_ROOT)).map_err(said("make a directory of the jail"))
}

/// Shows a file or a directory of the host at a place that is there, never with what would raise privileges.
///
/// # Errors
/// What could not be done.
pub fn show(from: &Path, to: &Path, flags: MountFlags) -> Result<(), String> {
    let step = || format!("show {} in the jail", from.display());
    mount_bind(from, to).map_err(said(step()))?;
    mount_remount(to, MountFlags::BIND | MountFlags::NOSUID | flags, "").map_err(said(step()))
}

/// Makes `scratch` the root, and leaves nothing of the old one.
///
/// # Errors
/// What could not be done.
pub fn change_root(scratch: &Path) -> Result<(), String> {
    rustix::process::chdir(scratch).map_err(said("enter the jail's root"))?;
    pivot_root(".", OLD_ROOT).map_err(said("change the root"))?;
    unmount(OLD_ROOT, UnmountFlags::DETACH).map_err(said("leave the old root"))?;
    rustix::fs::unlinkat(CWD, OLD_ROOT, rustix::fs::AtFlags::REMOVEDIR)
        .map_err(said("remove the old root"))?;
    rustix::process::chdir("/").map_err(said("enter the new root"))
}

/// Writes a file of a directory whole or not at all.
///
/// # Errors
/// The kernel's.
pub fn write_whole(dir: &File, name: &Path, text: &str) -> io::Result<()> {
    let mut new = name.as_os_str().to_owned();
    new.push(".new");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, &new, flags, Mode::from_raw_mode(0o600))?;
    File::from(file).write_all(text.as_bytes())?;
    Ok(rustix::fs::renameat(dir, &new, dir, name)?)
}

/// The directory and the name of a file that is written when the root may be another.
///
/// # Errors
/// What could not be done.
pub fn place_of(file: &Path) -> Result<(File, &Path), String> {
    let dir = file.parent().ok_or("a file has no place")?;
    let name = file.file_name().ok_or("a file has no name")?;
    Ok((File::open(dir).map_err(said(format!("open {}", dir.display())))?, Path::new(name)))
}

/// Turns an error into one line that says what failed.
pub fn said<E: std::fmt::Display>(step: impl Into<String>) -> impl FnOnce(E) -> String {
    let step = step.into();
    move |error| format!("failed to {step}: {error}")
}
