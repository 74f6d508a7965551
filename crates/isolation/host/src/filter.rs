//! Filters of system calls: how they are put together and installed. The levels say which calls theirs let through.
//!
//! A filter first looks a call's number up by halving ([`decide`]), and asks for arguments only where they count
//! ([`by_arguments`]). The kernel remembers which numbers are let through whatever the arguments are, and does not run the
//! filter for them again.
#![expect(unsafe_code, reason = "installing a filter has no safe wrapper")]

pub mod instruction;
mod sockets;
mod tree;

use std::collections::BTreeMap;

use libc::{c_int, c_long, sock_filter};
use rustix::io::Errno;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use instruction::{JUMP_IF_AT_LEAST, LOAD, NUMBER, RETURN, errno, step};
pub use sockets::Sockets;
pub use tree::{Fate, decide};

use crate::jail::said;

/// Numbers from here on are of calls that this project has not reviewed yet. On x86-64 those of x32, the same calls
/// under other numbers, are far above.
pub const UNKNOWN_FROM: u32 = 470;
/// Numbers from here on (Linux 5.1) are of calls that programs know to do without.
const YOUNG_FROM: u32 = 424;

/// What the first argument of a call has to be.
#[derive(Debug, Clone, Copy)]
pub enum Condition {
    /// None of these bits is set.
    Without(c_int),
    /// All of these bits are set.
    With(c_int),
    /// It is one of these.
    OneOf(&'static [u32]),
}

impl Condition {
    /// Rules of which one has to hold.
    fn rules(self) -> Result<Vec<SeccompRule>, BackendError> {
        let rule = |operator, value| {
            SeccompRule::new(vec![SeccompCondition::new(0, SeccompCmpArgLen::Dword, operator, value)?])
        };
        let masked = |bits: c_int| SeccompCmpOp::MaskedEq(u64::from(bits.cast_unsigned()));
        match self {
            Self::Without(bits) => Ok(vec![rule(masked(bits), 0)?]),
            Self::With(bits) => Ok(vec![rule(masked(bits), u64::from(bits.cast_unsigned()))?]),
            Self::OneOf(values) => {
                values.iter().map(|value| rule(SeccompCmpOp::Eq, u64::from(*value))).collect()
            }
        }
    }
}

/// What the filter around a process lets through. It refuses everything else: with `EPERM`, and what is younger than
/// Linux 5.1 as if the kernel did not have it (`ENOSYS`), so that the process uses an older call.
#[derive(Debug, Clone, Copy)]
pub struct Profile {
    /// Calls that it lets through whatever their arguments are.
    pub allowed: &'static [c_long],
    /// Calls that it lets through when the first argument is as it has to be.
    pub conditional: &'static [(c_long, Condition)],
    /// The sockets that it lets through, for a process that makes some.
    pub sockets: Option<Sockets>,
}

impl Profile {
    /// The filter as a program for the kernel.
    ///
    /// # Errors
    /// On a processor that filters cannot be made for.
    pub fn compile(&self) -> Result<Vec<sock_filter>, BackendError> {
        let fate = |number: u32| {
            let call = c_long::from(number);
            let is_of_sockets = self.sockets.is_some_and(|sockets| sockets.calls.contains(&call));
            if is_of_sockets || self.conditional.iter().any(|(asked, _)| *asked == call) {
                Fate::Asked
            } else if self.allowed.contains(&call) {
                Fate::Allowed
            } else if number >= YOUNG_FROM {
                Fate::Missing
            } else {
                Fate::Refused
            }
        };
        let fates: Vec<_> = (0..UNKNOWN_FROM).map(fate).collect();
        let sockets = self.sockets.map(|sockets| sockets.answers()).unwrap_or_default();
        let asked = by_arguments(&[], self.conditional)?;
        Ok(decide(&fates).into_iter().chain(unknown()).chain(sockets).chain(asked).collect())
    }

    /// Puts the filter on this thread and what it starts from now on. It can never be taken off.
    ///
    /// # Errors
    /// What could not be done: the thread is then without the filter.
    pub fn install(&self) -> Result<(), String> {
        let step = "install the filter of system calls";
        let program = self.compile().map_err(said(step))?;
        install(&program).map_err(said(step))
    }
}

/// The answer to numbers that nobody has reviewed: there is no such call. Goes on to what follows for all others.
#[must_use]
pub fn unknown() -> [sock_filter; 3] {
    [
        step(LOAD, NUMBER, 0, 0),
        step(JUMP_IF_AT_LEAST, UNKNOWN_FROM, 0, 1),
        step(RETURN, errno(libc::ENOSYS), 0, 0),
    ]
}

/// The end of a filter: lets through `always`, and `conditional` when the first argument is as it has to be; refuses the
/// rest with `EPERM`, and ends a process that calls by the numbers of another architecture.
///
/// # Errors
/// On a processor that filters cannot be made for.
pub fn by_arguments(
    always: &[c_long],
    conditional: &[(c_long, Condition)],
) -> Result<Vec<sock_filter>, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = always.iter().map(|call| (*call, vec![])).collect();
    for (call, condition) in conditional {
        rules.insert(*call, condition.rules()?);
    }
    let refuse = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    let program: BpfProgram =
        SeccompFilter::new(rules, refuse, SeccompAction::Allow, architecture)?.try_into()?;
    Ok(program.into_iter().map(|i| sock_filter { code: i.code, jt: i.jt, jf: i.jf, k: i.k }).collect())
}

/// Installs a filter on this thread, without touching the heap. The thread needs `CAP_SYS_ADMIN` in its user namespace, or
/// `no_new_privs`.
///
/// # Errors
/// The kernel's.
pub fn install(program: &[sock_filter]) -> rustix::io::Result<()> {
    let Ok(len) = u16::try_from(program.len()) else { return Err(Errno::INVAL) };
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let no_flags: libc::c_ulong = 0;
    // SAFETY: the program and its header live through the call; the kernel copies and only reads them.
    let done = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, no_flags, &raw const program)
    };
    if done == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

#[cfg(test)]
mod tests;
