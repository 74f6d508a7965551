//! Follows an exec of a profile that some of its programs leave: for example an agent that starts a shell without
//! knowing of profiles.
//!
//! The kernel of the host knows the profile of each process by itself. But a process inherits the limits on what it may
//! see from the process that started it; so a process that leaves a profile has to enter the new limits before its
//! program's first instruction. No kernel does that from outside. So a process of its own, the follower, traces the
//! exec's processes (`ptrace`, seized: they run at full speed and stop only where they fork or execute), and when one
//! executes a program that leaves the profile, the follower makes it enter another domain ([`super::confine`]); if no
//! program leads out of the new profile, the follower lets it go for good.
//!
//! The follower ends with the last process that it follows. If the follower is killed before that, the
//! kernel kills these processes.
#![expect(unsafe_code, reason = "fork and ptrace have no safe wrapper")]

use std::collections::{HashMap, HashSet};
use std::ptr;

use atoll_guest_protocol::messages::{Confine, ProfileStep};
use libc::{c_int, c_void};
use rustix::io::Errno;

use super::confine;
use super::inject::Stopped;
use crate::sys;

/// The events at which a process stops: forks, new threads, executed programs. When the follower ends,
/// the kernel kills the processes that it traces.
const OPTIONS: c_int = libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_EXITKILL;

/// The name in a step that stands for all programs that no step names.
const EVERY_PROGRAM: &str = "*";

/// Begins to follow a process that stands at its program's first instruction, and whose tracer is this thread. The
/// process goes on when it is followed.
pub(super) fn begin(pid: i32, profiles: &[Confine]) -> Result<(), Errno> {
    if !stopped_at_program(pid)? {
        return Ok(());
    }
    // The process stands still until the follower lets it go on.
    trace(libc::PTRACE_DETACH, pid, 0, libc::SIGSTOP as usize)?;
    // SAFETY: the library makes its memory usable in the child, which has this thread alone. It is kept from the agent's handlers of
    // signals, descriptors and everything that waits: it uses none of these.
    match unsafe { libc::fork() } {
        -1 => Err(sys::last_errno()),
        0 => {
            live(pid, profiles);
            // SAFETY: ends this process without running anything of the agent's.
            unsafe { libc::_exit(0) }
        }
        _ => Ok(()),
    }
}

/// Waits until the child has executed its program and says so, or has ended; the end is left for the task that waits
/// for ends.
fn stopped_at_program(pid: i32) -> Result<bool, Errno> {
    // SAFETY: all-zero is a valid value of this plain structure.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT;
    loop {
        // SAFETY: a live structure to be filled.
        let waited = unsafe { libc::waitid(libc::P_PID, pid.cast_unsigned(), &raw mut info, flags) };
        match (waited, info.si_code) {
            (0, libc::CLD_TRAPPED | libc::CLD_STOPPED) => return Ok(true),
            (0, _) => return Ok(false),
            _ if sys::last_errno() == Errno::INTR => {}
            _ => return Err(sys::last_errno()),
        }
    }
}

/// The follower's life.
fn live(pid: i32, profiles: &[Confine]) {
    sys::default_signals();
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) };
    // SAFETY: a constant string.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"atoll-follow".as_ptr()) };
    let seized = trace(libc::PTRACE_SEIZE, pid, 0, OPTIONS.cast_unsigned() as usize);
    let followed = seized.and_then(|()| {
        sys::kill(pid, libc::SIGCONT)?;
        Follower { profiles, places: HashMap::from([(pid, 0)]), early: HashSet::new(), asked: HashSet::new() }
            .run()
    });
    if followed.is_err() {
        // A process that is not followed any more may not go on.
        sys::kill(pid, libc::SIGKILL).unwrap_or_default();
    }
}

struct Follower<'a> {
    profiles: &'a [Confine],
    /// Of each thread that is followed: the place of its profile.
    places: HashMap<i32, usize>,
    /// New threads that stand still until the event of the process that made them is known.
    early: HashSet<i32>,
    /// Processes that went through a door: their next program is the one that was asked for, and changes no profile.
    asked: HashSet<i32>,
}

impl Follower<'_> {
    fn run(&mut self) -> Result<(), Errno> {
        loop {
            let mut status = 0;
            // SAFETY: a live number to be filled.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL) };
            if pid < 0 {
                match sys::last_errno() {
                    Errno::INTR => continue,
                    Errno::CHILD => return Ok(()),
                    other => return Err(other),
                }
            }
            if !libc::WIFSTOPPED(status) {
                self.places.remove(&pid);
                self.early.remove(&pid);
                self.asked.remove(&pid);
                continue;
            }
            match self.stopped(pid, libc::WSTOPSIG(status), status >> 16) {
                // It was killed meanwhile; its end is told.
                Ok(()) | Err(Errno::SRCH) => {}
                Err(other) => return Err(other),
            }
        }
    }

    fn stopped(&mut self, pid: i32, signal: c_int, event: c_int) -> Result<(), Errno> {
        match event {
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                let child = message(pid)?;
                if let Some(profile) = self.places.get(&pid).copied() {
                    self.places.insert(child, profile);
                }
                if self.early.remove(&child) {
                    go_on(child, 0)?;
                }
                go_on(pid, 0)
            }
            libc::PTRACE_EVENT_EXEC => self.executed(pid),
            libc::PTRACE_EVENT_STOP if !self.places.contains_key(&pid) => {
                self.early.insert(pid);
                Ok(())
            }
            // All of the process stands still: so does this thread, until it is told to go on.
            libc::PTRACE_EVENT_STOP if signal != libc::SIGTRAP => trace(libc::PTRACE_LISTEN, pid, 0, 0),
            libc::PTRACE_EVENT_STOP => go_on(pid, 0),
            _ if signal == libc::SIGTRAP | 0x80 => go_on(pid, 0),
            _ => go_on(pid, signal),
        }
    }

    /// A process executes a program: it stays, or it leaves with less.
    fn executed(&mut self, pid: i32) -> Result<(), Errno> {
        // Another thread of it may have asked, which has its number now.
        let before = message(pid)?;
        if before != pid
            && let Some(profile) = self.places.remove(&before)
        {
            self.places.insert(pid, profile);
        }
        let Some(now) = self.places.get(&pid).copied() else { return Err(Errno::SRCH) };
        if self.asked.remove(&pid) {
            return go_on(pid, 0);
        }
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let steps = self.profiles.get(now).map_or(&[] as &[ProfileStep], |profile| &profile.steps);
        let step = next(steps, program.to_str().unwrap_or_default());
        let place = step.and_then(|step| usize::try_from(step.profile).ok()).unwrap_or(now);
        if place == now {
            return go_on(pid, 0);
        }
        let door = step.is_some_and(|step| step.door);
        let Some(profile) = self.profiles.get(place) else { return kill(pid, Errno::INVAL) };
        let mut stopped = match Stopped::new(pid) {
            Ok(stopped) => stopped,
            Err(error) => return kill(pid, error),
        };
        if let Err(error) = confine::enter_in(&mut stopped, profile).and_then(|()| stopped.restore()) {
            return kill(pid, error);
        }
        let late = stopped.late();
        if profile.steps.is_empty() {
            self.places.remove(&pid);
            trace(libc::PTRACE_DETACH, pid, 0, 0)?;
        } else {
            self.places.insert(pid, place);
            if door {
                self.asked.insert(pid);
            }
            go_on(pid, 0)?;
        }
        // The signals that came while it was held.
        late.into_iter().try_for_each(|signal| sys::kill(pid, signal))
    }
}

/// A process that could not be confined does not run.
fn kill(pid: i32, why: Errno) -> Result<(), Errno> {
    if why != Errno::SRCH {
        sys::kill(pid, libc::SIGKILL)?;
    }
    Ok(())
}

/// The step that leads to the profile in which a program runs; `None` where no step speaks of the program.
fn next<'a>(steps: &'a [ProfileStep], program: &str) -> Option<&'a ProfileStep> {
    let directory = |step: &ProfileStep, end: &str| step.program.strip_suffix(end).map(str::to_owned);
    let below = |path: &str, deep: bool| {
        program
            .strip_prefix(path)
            .and_then(|rest| rest.strip_prefix('/'))
            .is_some_and(|rest| deep || !rest.contains('/'))
    };
    steps
        .iter()
        .find(|step| step.program == program)
        .or_else(|| steps.iter().find(|step| directory(step, "/*").is_some_and(|path| below(&path, false))))
        .or_else(|| steps.iter().find(|step| directory(step, "/**").is_some_and(|path| below(&path, true))))
        .or_else(|| steps.iter().find(|step| step.program == EVERY_PROGRAM))
}

/// The number that an event comes with.
fn message(pid: i32) -> Result<i32, Errno> {
    let mut number: libc::c_ulong = 0;
    trace(libc::PTRACE_GETEVENTMSG, pid, 0, ptr::from_mut(&mut number) as usize)?;
    i32::try_from(number).or(Err(Errno::RANGE))
}

fn go_on(pid: i32, signal: c_int) -> Result<(), Errno> {
    trace(libc::PTRACE_CONT, pid, 0, signal.cast_unsigned() as usize)
}

/// A request about a process that is traced; addresses in it are those of live variables of the caller.
pub(super) fn trace(request: libc::c_uint, pid: i32, address: usize, data: usize) -> Result<(), Errno> {
    let (address, data) = (address as *mut c_void, data as *mut c_void);
    // SAFETY: the request writes only to a live variable of the caller, as this function's contract says.
    let done = unsafe { libc::ptrace(request, pid, address, data) };
    if done < 0 { Err(sys::last_errno()) } else { Ok(()) }
}

/// Lets the tracer of the calling process see it begin its program. Called by the child before it executes it.
pub(super) fn ask_to_be_followed() -> bool {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_name_decides() {
        let step = |program: &str, profile| ProfileStep { program: program.to_owned(), profile, door: false };
        let steps = [step("*", 3), step("/opt/**", 2), step("/opt/*", 1), step("/opt/me", 0)];
        for (program, place) in [
            ("/opt/me", 0),
            ("/opt/other", 1),
            ("/opt/a/b", 2),
            ("/optional", 3),
            ("/opt", 3),
            ("/bin/sh", 3),
            ("", 3),
            ("/opt/me (deleted)", 1),
        ] {
            assert_eq!(next(&steps, program).map(|step| step.profile), Some(place), "{program}");
        }
        assert_eq!(next(&[], "/bin/sh"), None);
    }
}
