//! Starting a process without copying the agent.
//!
//! `clone3` with `CLONE_VM | CLONE_VFORK`: the child borrows the agent's memory, on a stack of its own,
//! and the agent waits until it has become the new program or given up. So a start costs the same
//! however big the agent is, the child is in its cgroup from its first instruction on, and errors come
//! back through memory. Between clone and exec the child may only do bare system calls on memory that
//! was prepared before: no allocation, no locks, and none of the C library's `setuid` family, which
//! would signal the agent's other threads.
#![expect(unsafe_code, reason = "clone3 and what a child may do before exec")]

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the guest agent enters its children by hand, so far only on x86_64");

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::io::Errno;

use super::{confine, follow};
use crate::{sentry, sys};

/// Stack of the child until it executes the program. It calls nothing deep.
const STACK_BYTES: usize = 32 << 10;
/// Descriptors that a command may have unless it asks for more.
const DESCRIPTORS_MAX_COUNT: libc::rlim_t = 65_536;
/// Added to a command's badness when memory runs out: the kernel kills it before the agent.
const OOM_SCORE: &str = "500";

/// A program to start, ready for the child.
#[derive(Debug)]
pub(crate) struct Program {
    /// Where it may be, in the order to try.
    pub(crate) candidates: Vec<CString>,
    pub(crate) argv: Vec<CString>,
    pub(crate) env: Vec<CString>,
    pub(crate) cwd: CString,
    /// Whether `/` does when `cwd` does not.
    pub(crate) cwd_optional: bool,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    /// Standard input is a terminal that the process shall control.
    pub(crate) terminal: bool,
    /// The limits of its profile.
    pub(crate) limits: Vec<confine::Limit>,
    /// The domain of its profile, to enter for good.
    pub(crate) ruleset: Option<OwnedFd>,
    /// It stands still at its first instruction, until a follower follows it.
    pub(crate) followed: bool,
}

/// Where a start failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Clone,
    Setup,
    Identity,
    Cwd,
    Execute,
}

/// Power over a sentry that only the agent has: `CAP_SYS_ADMIN` and `CAP_SYS_RESOURCE` (`linux/capability.h`).
const AGENTS_CAPABILITIES: [c_int; 2] = [21, 24];

const SETUP: i32 = 1;
const IDENTITY: i32 = 2;
const CWD: i32 = 3;
const EXECUTE: i32 = 4;

/// Everything that the child reads, and the place where it writes why it gave up.
struct Plan {
    candidates: Vec<*const c_char>,
    argv: Vec<*const c_char>,
    /// `/bin/sh`, a place for the script, the arguments: for scripts without `#!`.
    shell_argv: Vec<*const c_char>,
    env: Vec<*const c_char>,
    cwd: *const c_char,
    cwd_optional: bool,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    stdio: [c_int; 3],
    terminal: bool,
    limits: Vec<confine::Limit>,
    ruleset: Option<c_int>,
    followed: bool,
    /// In a sentry: how many processes its user may have, and that it has no power over the sentry.
    processes_max: Option<u32>,
    /// The child has the agent's handlers of signals, and all signals wait.
    reset_signals: bool,
    step: AtomicI32,
    errno: AtomicI32,
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// Starts a program with these standard streams, in this cgroup. Returns its process id.
pub(crate) fn spawn(
    program: &Program,
    stdio: [BorrowedFd<'_>; 3],
    cgroup: Option<BorrowedFd<'_>>,
) -> Result<i32, (Step, Errno)> {
    let admitted = sentry::limited().map(sentry::Processes::admit).transpose();
    let processes_max = admitted.map_err(|errno| (Step::Clone, errno))?;
    let mut shell_argv = vec![c"/bin/sh".as_ptr(), ptr::null()];
    shell_argv.extend(program.argv.iter().skip(1).map(|argument| argument.as_ptr()));
    shell_argv.push(ptr::null());
    let mut plan = Plan {
        candidates: pointers(&program.candidates),
        argv: pointers(&program.argv),
        shell_argv,
        env: pointers(&program.env),
        cwd: program.cwd.as_ptr(),
        cwd_optional: program.cwd_optional,
        uid: program.uid,
        gid: program.gid,
        groups: program.groups.clone(),
        stdio: stdio.map(|fd| fd.as_raw_fd()),
        terminal: program.terminal,
        limits: program.limits.clone(),
        ruleset: program.ruleset.as_ref().map(AsRawFd::as_raw_fd),
        followed: program.followed,
        processes_max,
        reset_signals: false,
        step: AtomicI32::new(0),
        errno: AtomicI32::new(0),
    };
    let pid = clone_child(&mut plan, cgroup).map_err(|errno| (Step::Clone, errno))?;
    // The child has executed the program or is gone: the kernel held us until then.
    let step = match plan.step.load(Ordering::Acquire) {
        0 => {
            raise_oom_score(pid);
            return Ok(pid);
        }
        IDENTITY => Step::Identity,
        CWD => Step::Cwd,
        EXECUTE => Step::Execute,
        _ => Step::Setup,
    };
    sys::reap(pid, true);
    Err((step, Errno::from_raw_os_error(plan.errno.load(Ordering::Acquire))))
}

/// Handlers of the agent must never run in the child, on the agent's memory. A kernel that cannot see to that by itself
/// (gVisor) is told so in two steps: signals wait while the child still has the handlers, and it takes them off.
fn clone_child(plan: &mut Plan, cgroup: Option<BorrowedFd<'_>>) -> Result<i32, Errno> {
    const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
    match clone_with(plan, cgroup, CLONE_CLEAR_SIGHAND) {
        Err(Errno::INVAL) => {
            plan.reset_signals = true;
            let mask = sys::block_signals();
            let cloned = clone_with(plan, cgroup, 0);
            sys::set_signal_mask(mask);
            cloned
        }
        cloned => cloned,
    }
}

fn clone_with(plan: &mut Plan, cgroup: Option<BorrowedFd<'_>>, more_flags: u64) -> Result<i32, Errno> {
    let stack = Stack::new()?;
    // SAFETY: all-zero is the documented "nothing asked" of this plain struct.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK;
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    args.flags = u64::from(flags.unsigned_abs()) | more_flags;
    args.exit_signal = u64::from(libc::SIGCHLD.unsigned_abs());
    args.stack = stack.0 as u64;
    args.stack_size = STACK_BYTES as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = u64::from(cgroup.as_raw_fd().unsigned_abs());
    }
    let result: i64;
    // SAFETY: clone3 reads `args`. In the agent it returns the child's id or an error and nothing else
    // changes. The child runs on `stack`, whose top is 16-byte aligned, calls `child` with `plan` and
    // never comes back. With CLONE_VFORK the agent's thread stands still until the child has left
    // this memory, so `plan` and `stack` outlive its use of them.
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
            in("r12") ptr::from_mut(plan),
            in("r13") child as extern "C" fn(*mut Plan) -> !,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    drop(stack);
    if result < 0 {
        return Err(Errno::from_raw_os_error(i32::try_from(-result).unwrap_or(libc::EIO)));
    }
    Ok(i32::try_from(result).unwrap_or_default())
}

/// Memory for the child's stack, with nothing else next to it.
struct Stack(*mut c_void);

impl Stack {
    fn new() -> Result<Self, Errno> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
        // SAFETY: asks for fresh memory; nothing existing is replaced.
        let memory = unsafe { libc::mmap(ptr::null_mut(), STACK_BYTES, protection, flags, -1, 0) };
        if memory == libc::MAP_FAILED { Err(sys::last_errno()) } else { Ok(Self(memory)) }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this size, and its user is gone.
        unsafe { libc::munmap(self.0, STACK_BYTES) };
    }
}

/// The child's whole life before the program.
extern "C" fn child(plan: *mut Plan) -> ! {
    // SAFETY: the agent keeps the plan alive and does not run meanwhile.
    let plan = unsafe { &mut *plan };
    let (step, errno) = match become_program(plan) {
        Ok(never) => match never {},
        Err(failed) => failed,
    };
    plan.errno.store(errno, Ordering::Release);
    plan.step.store(step, Ordering::Release);
    // SAFETY: ends this process without running anything of the agent's.
    unsafe { libc::_exit(127) }
}

fn become_program(plan: &mut Plan) -> Result<std::convert::Infallible, (i32, c_int)> {
    // SAFETY: no pointers.
    check(SETUP, unsafe { libc::setsid() })?;
    for (target, fd) in (0..).zip(plan.stdio) {
        // SAFETY: no pointers. The agent's own 0 to 2 are open, so none of these is overwritten
        // before its turn.
        check(SETUP, unsafe { libc::dup2(fd, target) })?;
    }
    if plan.terminal {
        // SAFETY: the request takes a number.
        check(SETUP, unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) })?;
    }
    if plan.reset_signals {
        sys::default_signals();
        sys::set_signal_mask(0);
    } else {
        // SAFETY: sets no handler function.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    lower_descriptors();
    if let Some(max) = plan.processes_max {
        give_up_the_sentry(max)?;
    }
    change_identity(plan)?;
    if !plan.limits.iter().all(|limit| confine::take_on(*limit)) {
        return Err((SETUP, last()));
    }
    if plan.ruleset.is_some_and(|ruleset| !confine::enter(ruleset)) {
        return Err((SETUP, last()));
    }
    close_the_agents()?;
    // SAFETY: a string that the agent keeps alive.
    if unsafe { libc::chdir(plan.cwd) } != 0 {
        let errno = last();
        // SAFETY: a constant string.
        if !plan.cwd_optional || unsafe { libc::chdir(c"/".as_ptr()) } != 0 {
            return Err((CWD, errno));
        }
    }
    if plan.followed && !follow::ask_to_be_followed() {
        return Err((SETUP, last()));
    }
    Err((EXECUTE, execute(plan)))
}

/// Closes all descriptors but the standard streams, in the child only: its table is a copy of the agent's. Close-on-exec
/// would be too late: the program or the client chooses the working directory, which `/proc/self/fd/N` or a link to it
/// would lead to the agent's own cgroup, out of that of the exec.
fn close_the_agents() -> Result<(), (i32, c_int)> {
    // gVisor's kernel knows no end above this, and there is no descriptor above it.
    // SAFETY: no pointers.
    check(SETUP, unsafe { libc::syscall(libc::SYS_close_range, 3, c_int::MAX, 0) })
}

/// Done by the agent once the program runs: until then the child shares the agent's memory, and no process in the
/// sandbox, not even the agent, may change the score of a process that has it. A process that the program forks before
/// that has the agent's own score, and is chosen by its size. Not needed for the start: a sandbox may have no `/proc`,
/// and the program may have ended.
fn raise_oom_score(pid: i32) {
    drop(std::fs::write(format!("/proc/{pid}/oom_score_adj"), OOM_SCORE));
}

/// The server raises its own limit of descriptors as far as it may, and the agent has it from there. Programs that look at
/// every descriptor they could have would take for ever, so commands begin with fewer; they may raise it again.
fn lower_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let none = ptr::null::<libc::rlimit>();
    // SAFETY: a live structure to be filled; nothing is set.
    let got = unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, none, &raw mut limit) };
    if got == 0 && limit.rlim_cur > DESCRIPTORS_MAX_COUNT {
        limit.rlim_cur = DESCRIPTORS_MAX_COUNT;
        let none = ptr::null_mut::<libc::rlimit>();
        // SAFETY: a live structure; the previous limit is not asked for.
        unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, &raw const limit, none) };
    }
}

/// Takes on a limit of processes, and gives up the rights that only the agent may have.
fn give_up_the_sentry(processes_max: u32) -> Result<(), (i32, c_int)> {
    let max = libc::rlim_t::from(processes_max);
    let limit = libc::rlimit { rlim_cur: max, rlim_max: max };
    let none = ptr::null::<libc::rlimit>();
    // SAFETY: a live structure; the previous limit is not asked for.
    let set = unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_NPROC, &raw const limit, none) };
    check(IDENTITY, set)?;
    for capability in AGENTS_CAPABILITIES {
        // SAFETY: no pointers.
        check(IDENTITY, unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) })?;
    }
    Ok(())
}

fn change_identity(plan: &Plan) -> Result<(), (i32, c_int)> {
    // Bare calls: the C library's would signal the threads of the agent.
    // SAFETY: a live array with its length.
    let result = unsafe { libc::syscall(libc::SYS_setgroups, plan.groups.len(), plan.groups.as_ptr()) };
    check(IDENTITY, result)?;
    // SAFETY: no pointers.
    check(IDENTITY, unsafe { libc::syscall(libc::SYS_setresgid, plan.gid, plan.gid, plan.gid) })?;
    // SAFETY: no pointers.
    check(IDENTITY, unsafe { libc::syscall(libc::SYS_setresuid, plan.uid, plan.uid, plan.uid) })
}

/// Tries the candidates as a shell does; returns why none could be executed.
fn execute(plan: &mut Plan) -> c_int {
    let mut verdict = libc::ENOENT;
    for index in 0..plan.candidates.len() {
        let path = plan.candidates[index];
        if path.is_null() {
            break;
        }
        // SAFETY: null-terminated arrays of strings that the agent keeps alive.
        unsafe { libc::execve(path, plan.argv.as_ptr(), plan.env.as_ptr()) };
        match last() {
            libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
            // A later directory may have a file of that name that may be executed.
            libc::EACCES => verdict = libc::EACCES,
            libc::ENOEXEC => {
                plan.shell_argv[1] = path;
                // SAFETY: as above.
                unsafe { libc::execve(c"/bin/sh".as_ptr(), plan.shell_argv.as_ptr(), plan.env.as_ptr()) };
                return libc::ENOEXEC;
            }
            errno => return errno,
        }
    }
    verdict
}

fn check(step: i32, result: impl Into<i64>) -> Result<(), (i32, c_int)> {
    if result.into() < 0 { Err((step, last())) } else { Ok(()) }
}

/// The errno of the child's last call. It is the one of the agent's thread, which stands still.
fn last() -> c_int {
    // SAFETY: gives the address of the thread's own errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: that address is valid for as long as the thread.
    unsafe { *errno }
}
