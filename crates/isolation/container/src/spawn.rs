//! Starts the first process of a sandbox: the parent's side of [`crate::child`].
#![expect(unsafe_code, reason = "starts a process that shares this one's memory")]

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use atoll_isolation::IsolationError;
use rustix::fs::{MemfdFlags, Mode, SealFlags};
use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, waitid};

use crate::child::{self, Launch};
use crate::step::{Step, failed};
use crate::sys;

/// Stack of the child until it executes the agent.
const STACK_BYTES: usize = 128 << 10;
/// Those that it is started in. It makes a mount namespace itself: see [`crate::base`].
const NAMESPACES: libc::c_int = libc::CLONE_NEWPID | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC;

/// Puts the agent's program into a sealed anonymous file, from which every sandbox executes it: one copy in memory for
/// all, which no process can change. No process inside can read it either: because of that the kernel guards the
/// process that executes it (its memory, descriptors and limits, tracing it) against root inside, too.
pub(crate) fn agent_file(program: &[u8]) -> Result<OwnedFd, IsolationError> {
    /// Says that the file is meant to be executed, where the host refuses that by default. Since Linux 6.3.
    const EXEC: MemfdFlags = MemfdFlags::from_bits_retain(0x10);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = match rustix::fs::memfd_create(c"atoll-guest", flags | EXEC) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(c"atoll-guest", flags),
        other => other,
    };
    let mut file = File::from(made.step("make a file in memory for the guest agent")?);
    file.write_all(program).step("copy the guest agent")?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o711)).step("make the guest agent unreadable")?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).step("seal the guest agent")?;
    // A descriptor that is open for writing would make exec fail with "text file busy".
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let read = File::open(path).step("open the guest agent")?;
    Ok(read.into())
}

/// Starts the process; when this returns it executes the agent. Blocks for about a millisecond.
pub(crate) fn spawn(launch: &Launch) -> Result<sys::Child, IsolationError> {
    let stack = sys::Stack::new(STACK_BYTES).step("map a stack")?;
    let argument = std::ptr::from_ref(launch).cast_mut().cast();
    // A handler of this program must not run in the child, on this program's memory.
    let mask = sys::block_signals();
    // SAFETY: `enter` makes only system calls and never returns. CLONE_VFORK keeps this thread, and with it
    // `launch` and `stack`, in place until the child has executed or ended.
    let child = unsafe {
        let flags = NAMESPACES | libc::CLONE_VFORK;
        sys::clone_sharing_memory(enter, argument, &stack, flags, Some(launch.cgroup.as_fd()))
    };
    mask.restore();
    let child = child.step("start the first process of a sandbox")?;
    let Some((step, errno, blame)) = launch.report.failure() else { return Ok(child) };
    reap(&child.pidfd);
    if blame && matches!(errno, Errno::LOOP | Errno::NOTDIR | Errno::XDEV | Errno::ISDIR | Errno::ROFS) {
        let why = std::io::Error::from(errno);
        return Err(IsolationError::BadRoot(format!("failed to {step}: {why}")));
    }
    Err(failed(format!("start a sandbox: its first process could not {step}"), errno.into()))
}

extern "C" fn enter(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `spawn` passes a `&Launch` and sleeps while this runs.
    let launch = unsafe { &*argument.cast::<Launch>() };
    child::main(launch)
}

/// Takes the exit status of a dead child, so that it does not stay as a zombie. Does nothing when the
/// process is not our child (it was adopted) or was reaped before.
pub(crate) fn reap(pidfd: &OwnedFd) -> Option<Exit> {
    let pidfd = WaitId::PidFd(pidfd.as_fd());
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let status = rustix::io::retry_on_intr(|| waitid(pidfd.clone(), options)).ok()??;
    Some(Exit { signal: status.terminating_signal() })
}

/// How the first process ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exit {
    /// The signal, if one ended it.
    pub(crate) signal: Option<i32>,
}
