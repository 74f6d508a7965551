//! System calls that rustix does not wrap, each as a small safe function.
#![expect(unsafe_code, reason = "raw system calls")]

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the first process of a sandbox is started by hand, so far only on x86_64");

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// Marks a mount read-only (`mount_setattr`).
pub(crate) const ATTR_RDONLY: u64 = 0x01;
/// Ignores set-user-id bits and file capabilities.
pub(crate) const ATTR_NOSUID: u64 = 0x02;
/// Ignores device nodes.
pub(crate) const ATTR_NODEV: u64 = 0x04;
/// Refuses to execute.
pub(crate) const ATTR_NOEXEC: u64 = 0x08;
const ATTR_IDMAP: u64 = 0x0010_0000;
/// How long a process that is being started may have a file of a mount open, and the pause between two looks.
const WRITER_DEADLINE: Duration = Duration::from_secs(10);
const WRITER_PAUSE: Duration = Duration::from_micros(200);

/// `struct mount_attr` of the kernel.
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;

fn check(result: libc::c_long) -> rustix::io::Result<libc::c_long> {
    if result >= 0 {
        return Ok(result);
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Sets attributes of a (detached) mount, and maps its ids through `userns` when given.
///
/// The kernel refuses that (`EBUSY`) while a file of the mount is open for writing. This process has closed those that
/// it wrote, but a process that another thread is just starting has copies of all its descriptors until it executes its
/// own program: this function waits for that.
pub(crate) fn mount_setattr(
    mount: BorrowedFd<'_>,
    attributes: u64,
    userns: Option<BorrowedFd<'_>>,
) -> rustix::io::Result<()> {
    let deadline = Instant::now() + WRITER_DEADLINE;
    loop {
        match mount_setattr_now(mount, attributes, userns) {
            Err(Errno::BUSY) if Instant::now() < deadline => std::thread::sleep(WRITER_PAUSE),
            done => return done,
        }
    }
}

fn mount_setattr_now(
    mount: BorrowedFd<'_>,
    attributes: u64,
    userns: Option<BorrowedFd<'_>>,
) -> rustix::io::Result<()> {
    let idmap = if userns.is_some() { ATTR_IDMAP } else { 0 };
    let fd = userns.map_or(0, |fd| u64::from(fd.as_raw_fd().cast_unsigned()));
    let attr = MountAttr { set: attributes | idmap, clear: 0, propagation: 0, userns: fd };
    let empty = c"";
    // SAFETY: path and attributes live through the call, and the size is the structure's.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            empty.as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    })?;
    Ok(())
}

/// Sets the ids with which this thread makes files. Gives up the file capabilities of root as a side
/// effect, when `uid` is not 0.
pub(crate) fn set_file_ids(id: u32) {
    // SAFETY: changes only this thread's credentials; it cannot fail in a way that it reports.
    unsafe { libc::syscall(libc::SYS_setfsgid, id) };
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_setfsuid, id) };
}

/// Does `work` with `user` as this thread's effective user and with all the rights that the thread is permitted, and then
/// takes the thread back to where it was. A thread that cannot be taken back would go on as another user: the process
/// ends instead.
pub(crate) fn as_effective_user<T>(user: u32, work: impl FnOnce() -> T) -> rustix::io::Result<T> {
    let before = rustix::thread::capabilities(None)?;
    let own = rustix::process::geteuid().as_raw();
    set_effective_user(user)?;
    // Leaving user 0 took them away. They are still permitted, as the real and the saved user stay.
    let all = rustix::thread::CapabilitySets { effective: before.permitted, ..before };
    let done = rustix::thread::set_capabilities(None, all).map(|()| work());
    let back = set_effective_user(own).and_then(|()| rustix::thread::set_capabilities(None, before));
    if back.is_err() {
        std::process::abort();
    }
    done
}

/// Changes the effective user of this thread alone.
fn set_effective_user(user: u32) -> rustix::io::Result<()> {
    const SAME: libc::uid_t = libc::uid_t::MAX;
    // SAFETY: plain numbers. libc's function of this name would change all threads of the process.
    check(unsafe { libc::syscall(libc::SYS_setresuid, SAME, user, SAME) })?;
    Ok(())
}

/// Leaves the session keyring for a new, empty one.
pub(crate) fn new_session_keyring() -> rustix::io::Result<()> {
    let name: *const libc::c_char = std::ptr::null();
    // SAFETY: a null name asks for an anonymous keyring.
    check(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, name) })?;
    Ok(())
}

/// Asks the kernel to kill this process when the thread that made it dies.
pub(crate) fn die_with_parent() -> rustix::io::Result<()> {
    // SAFETY: takes plain numbers.
    check(unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) })?;
    Ok(())
}

/// Makes `target` a copy of `source`, without close-on-exec. The kernel's `dup3`.
pub(crate) fn place_fd(source: BorrowedFd<'_>, target: libc::c_int) -> rustix::io::Result<()> {
    // SAFETY: only for a process that owns its descriptor table alone and knows what `target` holds.
    check(unsafe { libc::syscall(libc::SYS_dup3, source.as_raw_fd(), target, 0) })?;
    Ok(())
}

/// Marks every descriptor from `first` on to be closed at exec.
pub(crate) fn close_on_exec_from(first: libc::c_uint) -> rustix::io::Result<()> {
    // SAFETY: marks, closes nothing now.
    check(unsafe {
        libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    })?;
    Ok(())
}

/// The signals a thread holds back, to put them back later.
pub(crate) struct SignalMask(u64);

/// Holds back all signals of this thread.
pub(crate) fn block_signals() -> SignalMask {
    let mut old = 0;
    set_mask(u64::MAX, Some(&mut old));
    SignalMask(old)
}

impl SignalMask {
    /// No signal held back.
    pub(crate) const EMPTY: Self = Self(0);

    /// Makes this the thread's mask.
    pub(crate) fn restore(&self) {
        set_mask(self.0, None);
    }
}

fn set_mask(mask: u64, old: Option<&mut u64>) {
    let old = old.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: both sets are eight bytes, the kernel's size, and live through the call.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, old, size_of::<u64>())
    };
}

/// Runs the program behind `program` with descriptors, arguments and environment as they are.
/// Returns only on failure.
pub(crate) fn exec_fd(
    program: BorrowedFd<'_>,
    argv: &[*const libc::c_char],
    envp: &[*const libc::c_char],
) -> Errno {
    let empty = c"";
    // SAFETY: both arrays end with a null pointer (their only maker, `Launch`, sees to it) and their
    // strings outlive this call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            empty.as_ptr(),
            argv.as_ptr(),
            envp.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    check(result).err().unwrap_or(Errno::INVAL)
}

/// Ends this process at once, without running anything of the program that it shares memory with.
pub(crate) fn exit_now(code: libc::c_int) -> ! {
    loop {
        // SAFETY: does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, code) };
    }
}

/// A stack for a process that shares this one's memory.
#[derive(Debug)]
pub(crate) struct Stack {
    base: *mut libc::c_void,
    bytes: usize,
}

impl Stack {
    const GUARD_BYTES: usize = 64 << 10;

    /// Maps a stack of `bytes` with a guard page below.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh anonymous mapping.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes + Self::GUARD_BYTES, rights, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self { base, bytes: bytes + Self::GUARD_BYTES };
        // SAFETY: the lowest part of the mapping made above.
        if unsafe { libc::mprotect(base, Self::GUARD_BYTES, libc::PROT_NONE) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(stack)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `new` made; no process runs on it any more.
        unsafe { libc::munmap(self.base, self.bytes) };
    }
}

/// A child process.
#[derive(Debug)]
pub(crate) struct Child {
    /// Its process id here.
    pub(crate) pid: libc::pid_t,
    /// A descriptor that means it, and only it.
    pub(crate) pidfd: OwnedFd,
}

/// Starts `entry(argument)` in a new process that shares this one's memory, with `flags` for more, in the v2
/// cgroup `cgroup` if there is one: entering it later would wait for a grace period of the whole kernel.
///
/// Does not copy page tables, however large this process is. With `CLONE_VFORK` in `flags` this
/// thread sleeps until the child has executed another program or ended. The child has none of this process's handlers of
/// signals, which would run on its memory; signals that this process ignores it ignores, too.
///
/// # Safety
/// `entry` must be async-signal-safe and must not return; `argument` and `stack` must stay valid and
/// untouched until the child has executed another program or has ended.
pub(crate) unsafe fn clone_sharing_memory(
    entry: extern "C" fn(*mut libc::c_void) -> libc::c_int,
    argument: *mut libc::c_void,
    stack: &Stack,
    flags: libc::c_int,
    cgroup: Option<BorrowedFd<'_>>,
) -> io::Result<Child> {
    const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    let mut pidfd: libc::c_int = -1;
    // SAFETY: all-zero is the documented "nothing asked" of this plain struct.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags =
        u64::from((flags | libc::CLONE_VM | libc::CLONE_PIDFD).cast_unsigned()) | CLONE_CLEAR_SIGHAND;
    args.pidfd = &raw mut pidfd as u64;
    args.exit_signal = u64::from(libc::SIGCHLD.cast_unsigned());
    args.stack = stack.base as u64 + Stack::GUARD_BYTES as u64;
    args.stack_size = (stack.bytes - Stack::GUARD_BYTES) as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = u64::from(cgroup.as_raw_fd().cast_unsigned());
    }
    let result: libc::c_long;
    // SAFETY: clone3 reads `args` and writes the descriptor. Here it returns the child's id or an error, and
    // nothing else changes. The child runs on `stack`, whose top is page aligned, calls `entry` with `argument`
    // and by this function's own contract never comes back.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") &raw mut args,
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") argument,
            in("r13") entry,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    if result < 0 {
        return Err(io::Error::from_raw_os_error(i32::try_from(-result).unwrap_or(libc::EIO)));
    }
    let pid = libc::pid_t::try_from(result).map_err(io::Error::other)?;
    // SAFETY: the kernel made this descriptor for us and nobody else knows it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Child { pid, pidfd })
}

/// Sleeps until a signal ends this process.
pub(crate) fn sleep_forever() -> ! {
    loop {
        let none: *const libc::c_void = std::ptr::null();
        // SAFETY: ppoll on no descriptors without a timeout.
        unsafe { libc::syscall(libc::SYS_ppoll, none, 0, none, none, 0) };
    }
}

/// Opens a path inside the user namespace of this thread's credentials and writes `bytes` to it.
pub(crate) fn write_file(path: &CStr, bytes: &[u8]) -> rustix::io::Result<()> {
    use rustix::fs::{Mode, OFlags};
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(file.as_fd(), bytes)?;
    Ok(())
}

/// Leaves namespaces for new ones.
pub(crate) fn unshare(flags: rustix::thread::UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: no caller passes FILES, the one flag that is a hazard.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Becomes user and group 0 of the current user namespace, without further groups. Only this thread:
/// libc's functions of these names would change all threads of the process.
pub(crate) fn become_root() -> rustix::io::Result<()> {
    let none: *const libc::gid_t = std::ptr::null();
    // SAFETY: an empty list.
    check(unsafe { libc::syscall(libc::SYS_setgroups, 0, none) })?;
    // SAFETY: plain numbers.
    check(unsafe { libc::syscall(libc::SYS_setresgid, 0, 0, 0) })?;
    // SAFETY: plain numbers.
    check(unsafe { libc::syscall(libc::SYS_setresuid, 0, 0, 0) })?;
    Ok(())
}

/// The mark of a socket.
pub(crate) fn mark(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut mark = 0_u32;
    let mut bytes = libc::socklen_t::try_from(size_of::<u32>()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `bytes` bytes, which is what `mark` has, and how many into `bytes`.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MARK,
            std::ptr::from_mut(&mut mark).cast(),
            &raw mut bytes,
        )
    };
    if status == 0 { Ok(mark) } else { Err(io::Error::last_os_error()) }
}

/// The version of Landlock's interface that this kernel has; 0 for none.
pub(crate) fn landlock_version() -> i64 {
    const VERSION: u32 = 1;
    let none = std::ptr::null::<u8>();
    // SAFETY: asks for a number; no pointer is followed.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0_usize, VERSION) }.max(0)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::{Command, Stdio};

    use rustix::fs::{Mode, OFlags, openat};
    use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

    use super::*;

    /// A process in a user namespace of its own; ends with this.
    struct Unshared(std::process::Child);

    impl Unshared {
        fn start() -> Self {
            let mut child = Command::new("unshare")
                .args(["--user", "--map-root-user", "sh", "-c", "echo; exec sleep 1000"])
                .stdout(Stdio::piped())
                .spawn()
                .expect("start a process");
            let mut said = [0];
            // It says something once its ids are mapped.
            io::Read::read_exact(&mut child.stdout.take().expect("a pipe"), &mut said).expect("wait for it");
            Self(child)
        }
    }

    impl Drop for Unshared {
        fn drop(&mut self) {
            drop(self.0.kill());
            drop(self.0.wait());
        }
    }

    #[test]
    fn ids_are_mapped_once_nobody_writes_any_more() {
        let other = Unshared::start();
        let userns = File::open(format!("/proc/{}/ns/user", other.0.id())).expect("its namespace");
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).expect("a file system");
        fsconfig_create(&context).expect("a file system");
        let mount =
            fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).expect("a mount");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let written = openat(&mount, "written", flags, Mode::RUSR).expect("a file");
        let refused = mount_setattr_now(mount.as_fd(), ATTR_NODEV, Some(userns.as_fd()));
        assert_eq!(refused, Err(Errno::BUSY), "the kernel wants nobody to write");
        let writer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            drop(written);
        });
        mount_setattr(mount.as_fd(), ATTR_NODEV, Some(userns.as_fd())).expect("it is waited for");
        writer.join().expect("the writer ends");
    }
}
