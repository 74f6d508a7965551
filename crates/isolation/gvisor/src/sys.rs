//! System calls of the launcher that rustix does not wrap, each as a small safe function. The launcher has one thread.
#![expect(unsafe_code, reason = "raw system calls")]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::thread::CapabilitySet;

/// Marks a mount read-only (`mount_setattr`).
pub(crate) const ATTR_RDONLY: u64 = 0x01;
/// Ignores set-user-id bits.
pub(crate) const ATTR_NOSUID: u64 = 0x02;
/// Ignores device nodes.
pub(crate) const ATTR_NODEV: u64 = 0x04;
const ATTR_IDMAP: u64 = 0x0010_0000;

/// `struct mount_attr` of the kernel.
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

/// Sets attributes of a detached mount, and maps its ids through a user namespace.
pub(crate) fn map_mount(
    mount: BorrowedFd<'_>,
    attributes: u64,
    userns: BorrowedFd<'_>,
) -> rustix::io::Result<()> {
    let userns = u64::from(userns.as_raw_fd().cast_unsigned());
    let attr = MountAttr { set: attributes | ATTR_IDMAP, clear: 0, propagation: 0, userns };
    let empty = c"";
    // SAFETY: path and attributes live through the call, and the size is the structure's.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            empty.as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(last()) }
}

fn last() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// A user namespace that maps `count` ids from 0 on to those from `first_id` on.
pub(crate) fn user_namespace(first_id: u32, count: u32) -> io::Result<OwnedFd> {
    let (mut said, mut saying) = io::pipe()?;
    // SAFETY: this program has one thread, so the child may do anything.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => hold(&mut saying),
        pid => {
            drop(saying);
            let opened = read_one(&mut said).and_then(|()| {
                for file in ["uid_map", "gid_map"] {
                    std::fs::write(format!("/proc/{pid}/{file}"), format!("0 {first_id} {count}"))?;
                }
                File::open(format!("/proc/{pid}/ns/user"))
            });
            // SAFETY: takes no pointers; the process is our child and was not waited for.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            // SAFETY: no status is asked for.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
            opened.map(OwnedFd::from)
        }
    }
}

/// The process that a user namespace begins with. Killed by its maker, or by its maker's end.
fn hold(saying: &mut impl Write) -> ! {
    // SAFETY: takes no pointers.
    let bound = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } == 0;
    // SAFETY: takes no pointers; there is one thread.
    if bound && unsafe { libc::unshare(libc::CLONE_NEWUSER) } == 0 && saying.write_all(b"x").is_ok() {
        loop {
            // SAFETY: takes no pointers.
            unsafe { libc::pause() };
        }
    }
    exit_now(1)
}

/// Ends this process without running anything of its parent's.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: takes no pointers.
    unsafe { libc::_exit(code) }
}

fn read_one(said: &mut impl Read) -> io::Result<()> {
    let mut byte = [0; 1];
    if said.read(&mut byte)? == 1 {
        Ok(())
    } else {
        Err(io::Error::other("this host refuses user namespaces"))
    }
}

/// Makes files from now on with these ids, with root's power over files all the same.
pub(crate) fn take_on_ids(id: u32) -> rustix::io::Result<()> {
    // SAFETY: takes no pointers; gives what was before.
    unsafe { libc::setfsgid(id) };
    // SAFETY: as above.
    unsafe { libc::setfsuid(id) };
    let mut sets = rustix::thread::capabilities(None)?;
    sets.effective = sets.permitted;
    rustix::thread::set_capabilities(None, sets)
}

/// Gives up every privilege: another user, no capability, none to come.
pub(crate) fn become_nobody(id: u32) -> rustix::io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    rustix::thread::set_thread_groups(&[])?;
    let gid = rustix::process::Gid::from_raw(id);
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    let uid = rustix::process::Uid::from_raw(id);
    // Leaving user 0 clears every capability set.
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    let left = rustix::thread::capabilities(None)?;
    if left.permitted == CapabilitySet::empty() { Ok(()) } else { Err(Errno::PERM) }
}

/// Puts the standard streams on `/dev/null`.
pub(crate) fn silence() {
    // SAFETY: a constant string.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    for target in 0..3 {
        // Without a /dev/null they are closed, which is as quiet.
        // SAFETY: takes no pointers.
        if unsafe { libc::dup2(null, target) } < 0 {
            // SAFETY: nothing in this process owns them.
            unsafe { libc::close(target) };
        }
    }
    if null > 2 {
        // SAFETY: it was opened here, and is one of the streams now.
        unsafe { libc::close(null) };
    }
}

/// Waits for the end of any child, and gives its process id; of none when there is no child.
pub(crate) fn wait_for_any() -> Option<i32> {
    loop {
        // SAFETY: no status is asked for.
        match unsafe { libc::waitpid(-1, std::ptr::null_mut(), 0) } {
            -1 if last() == Errno::INTR => {}
            -1 => return None,
            pid => return Some(pid),
        }
    }
}
