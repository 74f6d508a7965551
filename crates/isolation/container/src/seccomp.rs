//! The system call filter of everything in a sandbox, compiled once.
//!
//! It is the second line: the first is that no capability inside reaches beyond the sandbox's own user
//! namespace. The filter keeps code paths of the kernel out of reach that have no use in a sandbox and a
//! history of faults. It lets through the calls that are listed ([`calls`], in the main Docker's default profile) and
//! refuses the rest with `EPERM`; it answers a call that is younger than the list as if it did not exist (`ENOSYS`), so
//! that programs fall back.
//!
//! `clone3` is let through, although its flags cannot be inspected: the guest agent needs it, user namespaces are
//! forbidden by a count of 0 (see [`crate::userns`]), and all other namespaces need a capability that no process inside
//! has.
//!
//! Some calls are answered here because the resource that they take belongs to the whole host, and the kernel counts it
//! for no sandbox: asynchronous I/O (one number of slots for all processes), huge pages (one reserve), and core dumps
//! (a helper outside, started as the host's root, reads them).
//!
//! And some, because the kernel would look for a module outside, as the host's root: sockets of rare protocols, the
//! requests of devices ([`special`]) and an option of TCP. What names a module in memory or in a message stays out of a
//! filter's sight: a program of an unknown format (until Linux 6.13), and a question about traffic classifiers.

mod calls;
mod special;

use std::path::Path;

use atoll_isolation::IsolationError;
use atoll_isolation_host::filter::{Condition, Fate, Sockets, UNKNOWN_FROM, by_arguments, decide};

/// Namespace flags of `clone` and `unshare`. Each is refused.
const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;
/// One that only `unshare` knows: in `clone` the bit is part of a signal's number.
const NEW_TIME: libc::c_int = 0x80;

/// Execution domains: Linux, with 32-bit names of the machine (`setarch`), and the question which one it is.
const PERSONALITIES: Condition = Condition::OneOf(&[0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff]);

/// Calls whose arguments decide whether they are let through.
const BY_ARGUMENTS: [(libc::c_long, Condition); 3] = [
    (libc::SYS_unshare, Condition::Without(NAMESPACES | NEW_TIME)),
    (libc::SYS_clone, Condition::Without(NAMESPACES)),
    (libc::SYS_personality, PERSONALITIES),
];

/// The sockets that exist inside.
///
/// Internet: streams of TCP, and of several paths of TCP, which some runtimes ask for, where the kernel has that; datagrams
/// of UDP and ICMP. Others (SCTP, L2TP, …) are modules.
///
/// Netlink: what programs use without power over the network, which is routes and addresses, messages between programs,
/// the audit log (of which logins ask whether it is there), and devices. Others lead to IPsec or packet filters, which a
/// sandbox cannot have, or are modules. Two load modules by what stands in a message, which no filter sees, for every
/// program: the generic one, of any name, and the one that lists sockets, of any family (`ss` reads `/proc` instead).
const SOCKETS: Sockets = Sockets {
    calls: &[libc::SYS_socket, libc::SYS_socketpair],
    unspecified: true,
    streams: &[0, libc::IPPROTO_TCP, libc::IPPROTO_MPTCP],
    datagrams: &[0, libc::IPPROTO_UDP],
    netlink: &[
        libc::NETLINK_ROUTE,
        libc::NETLINK_USERSOCK,
        libc::NETLINK_AUDIT,
        libc::NETLINK_KOBJECT_UEVENT,
    ],
};

/// The same where the kernel has no several paths of TCP: it would look for a module.
const WITHOUT_MPTCP: Sockets = Sockets { streams: &[0, libc::IPPROTO_TCP], ..SOCKETS };
/// A kernel with several paths of TCP has settings for them.
const MPTCP: &str = "/proc/sys/net/mptcp";

/// Compiles the filter for this architecture.
pub(crate) fn compile() -> Result<Vec<libc::sock_filter>, IsolationError> {
    let rest = by_arguments(&special::LET_THROUGH_OTHERWISE, &BY_ARGUMENTS)
        .map_err(|error| IsolationError::Unavailable(format!("seccomp filter: {error}")))?;
    let sockets = if Path::new(MPTCP).try_exists().unwrap_or(false) { SOCKETS } else { WITHOUT_MPTCP };
    let asked = special::answers().into_iter().chain(sockets.answers());
    Ok(decide(&fates()).into_iter().chain(asked).chain(rest).collect())
}

/// What becomes of each call that this project has reviewed.
fn fates() -> Vec<Fate> {
    let fate = |number: u32| {
        let call = libc::c_long::from(number);
        let answered = special::concerns(call) || SOCKETS.calls.contains(&call);
        if answered || BY_ARGUMENTS.iter().any(|(asked, _)| *asked == call) {
            Fate::Asked
        } else if special::MISSING.contains(&call) {
            Fate::Missing
        } else if call == libc::SYS_clone3 || calls::ALLOWED.contains(&call) {
            Fate::Allowed
        } else {
            Fate::Refused
        }
    };
    (0..UNKNOWN_FROM).map(fate).collect()
}

#[cfg(test)]
mod docker;
#[cfg(test)]
mod tests;
