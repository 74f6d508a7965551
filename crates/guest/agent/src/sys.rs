//! The calls to the kernel that need `unsafe` and that no wrapper offers.
#![expect(unsafe_code, reason = "wait4, mallopt and others have no safe wrapper")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

/// Makes a descriptor awaitable. It has to be non-blocking.
pub(crate) fn registered(fd: OwnedFd) -> Result<AsyncFd<OwnedFd>, Errno> {
    // SAFETY: an owned descriptor stays open and the same for as long as it is owned.
    let registered = unsafe { AsyncFd::register(fd) };
    registered.map_err(|error| Errno::from_io_error(&error.into()).unwrap_or(Errno::IO))
}

/// How a child ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) pid: i32,
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    /// CPU time of it and its waited-for children, microseconds.
    pub(crate) cpu_us: u64,
}

/// Takes up one child that ended (`pid` -1: any), or `None` when there is none now.
pub(crate) fn reap(pid: i32, block: bool) -> Option<Ended> {
    let mut status = 0;
    // SAFETY: a zeroed rusage is a valid value of that plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let flags = if block { 0 } else { libc::WNOHANG };
    // SAFETY: both pointers are to live locals.
    let pid = unsafe { libc::wait4(pid, &raw mut status, flags, &raw mut usage) };
    if pid <= 0 {
        return None;
    }
    let micros = |time: libc::timeval| {
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_usec).unwrap_or(0)
    };
    Some(Ended {
        pid,
        code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
        signal: libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)),
        cpu_us: micros(usage.ru_utime) + micros(usage.ru_stime),
    })
}

/// Sends a signal to a process (positive) or a process group (negative).
pub(crate) fn kill(pid: i32, signal: i32) -> Result<(), Errno> {
    // SAFETY: takes no pointers.
    if unsafe { libc::kill(pid, signal) } == 0 { Ok(()) } else { Err(last_errno()) }
}

/// The errno of the call before.
pub(crate) fn last_errno() -> Errno {
    Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// Takes ownership of a descriptor that was inherited under this number, and closes it on exec.
/// `None` when there is none. To be called once for each number, before anything else opens files.
pub(crate) fn inherited(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: takes no pointers; an unused number is answered with EBADF.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return None;
    }
    // SAFETY: the number is open, as the call above showed, and no other value in this process owns it.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Gives the calling thread, and no other, the credentials of a user for everything that concerns files. The
/// kernel takes the capabilities of root over files away with it.
pub(crate) fn set_thread_files_user(uid: u32, gid: u32, groups: &[u32]) -> std::io::Result<()> {
    // The library's wrapper would change all threads: the system call is for this one.
    // SAFETY: pointer and length are of a live slice.
    let done = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    if done != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: takes no pointers.
    if unsafe { libc::syscall(libc::SYS_setfsgid, gid) } < 0 {
        return set_thread_effective_user(uid, gid);
    }
    // SAFETY: as above.
    unsafe { libc::setfsuid(uid) };
    // These two calls return only the previous id, never an error. So a second call of each, with an id
    // that does not exist, shows which id is set now.
    // SAFETY: as above; no such id exists, so nothing changes.
    let now_gid = unsafe { libc::setfsgid(u32::MAX) };
    // SAFETY: as above.
    let now_uid = unsafe { libc::setfsuid(u32::MAX) };
    if now_uid.cast_unsigned() == uid && now_gid.cast_unsigned() == gid {
        return Ok(());
    }
    Err(std::io::ErrorKind::PermissionDenied.into())
}

/// The same with the effective ids, for a kernel that has no separate ids for files (gVisor). The real ids stay root's,
/// so that only root may signal or trace the thread.
fn set_thread_effective_user(uid: u32, gid: u32) -> std::io::Result<()> {
    const KEEP: u32 = u32::MAX;
    for (call, id) in [(libc::SYS_setresgid, gid), (libc::SYS_setresuid, uid)] {
        // Bare calls: the library's would change all threads.
        // SAFETY: takes no pointers.
        if unsafe { libc::syscall(call, KEEP, id, KEEP) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// One heap for all threads: each further one would cost memory in every sandbox.
pub(crate) fn single_heap() {
    // SAFETY: takes no pointers; called before any thread is started.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    // Free memory at the top of the heap goes back early.
    // SAFETY: as above.
    unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, 512 << 10) };
}

/// Gives free memory back to the kernel.
pub(crate) fn trim_heap() {
    // SAFETY: takes no pointers.
    unsafe { libc::malloc_trim(0) };
}

/// Default handling for all signals. Only system calls: a child that shares the agent's memory does it, too.
pub(crate) fn default_signals() {
    // The kernel's structure, all zero: default handling, no flags, an empty mask. A bare call, because
    // the C library refuses two numbers that it uses itself, and children would inherit them ignored.
    let default = [0_u64; 4];
    for signal in 1..=64 {
        // SAFETY: a live structure of the kernel's layout; numbers that cannot be set are refused.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, &raw const default, 0, 8) };
    }
}

/// Lets every signal wait that can; gives the mask of before.
pub(crate) fn block_signals() -> u64 {
    set_signal_mask(u64::MAX)
}

/// Sets which signals wait, and gives which did.
pub(crate) fn set_signal_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    let (new, old) = (&raw const mask, &raw mut before);
    // A bare call: the library keeps two of its own out.
    // SAFETY: both are live and have the size that is said.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, new, old, 8) };
    before
}

/// Sets default handling and an empty mask for all signals, in place of those that were inherited.
pub(crate) fn reset_signals() {
    default_signals();
    // A write to a pipe without readers is an error, not the end.
    // SAFETY: sets no handler function.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    set_signal_mask(0);
}

/// Sees to it that no other process changes this one's limits of resources: a process with the same ids may do that
/// only if all of them are the same, and from now on no other process has this saved id. In programs that the agent
/// starts it is root's again. To be called before any thread is started.
pub(crate) fn keep_limits() {
    /// An id that no program runs as: one below what stands for "no id" in 16 bits would be `nobody`.
    const SAVED_USER: u32 = 65_535;
    const SAME: u32 = u32::MAX;
    // Not possible, and not needed, where root inside is not confined.
    // SAFETY: takes no pointers.
    unsafe { libc::syscall(libc::SYS_setresuid, SAME, SAME, SAVED_USER) };
}

/// Random bytes.
pub(crate) fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    // SAFETY: the buffer is a live local of that length. Up to 256 bytes come whole.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    bytes
}

/// Sets the wall clock.
pub(crate) fn set_clock(unix_ns: u64) -> Result<(), Errno> {
    let time = libc::timespec {
        tv_sec: i64::try_from(unix_ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(unix_ns % 1_000_000_000).unwrap_or(0),
    };
    // SAFETY: the time is a live local.
    if unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &raw const time) } == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

/// Mixes fresh bytes into the kernel's random generator and makes it use them at once. Best effort: a
/// container's agent may not, and need not.
pub(crate) fn reseed(seed: &[u8]) {
    /// `RNDADDENTROPY` and `RNDRESEEDCRNG` of `linux/random.h`.
    const ADD_ENTROPY: libc::Ioctl = 0x4008_5203;
    const RESEED: libc::Ioctl = 0x5207;
    /// `struct rand_pool_info` with room for one seed.
    #[repr(C)]
    struct Pool {
        entropy_bits: i32,
        bytes: i32,
        seed: [u8; 32],
    }
    let Ok(seed) = <[u8; 32]>::try_from(seed) else { return };
    let Ok(device) = std::fs::File::open("/dev/urandom") else { return };
    let pool = Pool { entropy_bits: 256, bytes: 32, seed };
    // SAFETY: the request reads a `rand_pool_info` of `bytes` bytes, which lives through the call.
    unsafe { libc::ioctl(device.as_raw_fd(), ADD_ENTROPY, &raw const pool) };
    // SAFETY: takes no argument.
    unsafe { libc::ioctl(device.as_raw_fd(), RESEED) };
}

/// Writes out a file system and holds it still: a process that writes to it waits.
pub(crate) fn freeze(root: &OwnedFd) -> Result<(), Errno> {
    const FIFREEZE: libc::Ioctl = 0xc004_5877;
    // SAFETY: the request reads no argument.
    if unsafe { libc::ioctl(root.as_raw_fd(), FIFREEZE, 0) } == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Lets a file system that is held still go on.
pub(crate) fn thaw(root: &OwnedFd) -> Result<(), Errno> {
    const FITHAW: libc::Ioctl = 0xc004_5878;
    // SAFETY: as above.
    if unsafe { libc::ioctl(root.as_raw_fd(), FITHAW, 0) } == 0 { Ok(()) } else { Err(last_errno()) }
}
