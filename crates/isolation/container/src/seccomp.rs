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

mod calls;
mod special;
mod tree;

use std::collections::BTreeMap;

use atoll_isolation::IsolationError;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use tree::Fate;

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

/// Socket families that exist inside whatever their protocol; those of [`INTERNET`] and netlink do with some protocols;
/// all others (`AF_VSOCK` leads to the host of a virtual machine, `AF_ALG` into kernel cryptography, …) are refused.
const FAMILIES: [libc::c_int; 2] = [libc::AF_UNSPEC, libc::AF_UNIX];
const INTERNET: [libc::c_int; 2] = [libc::AF_INET, libc::AF_INET6];

/// Protocols of [`INTERNET`]: the type's own, ICMP, TCP, UDP, ICMP of IPv6, and several paths of TCP, which some
/// runtimes ask for. Any other would have the kernel load a module (SCTP, L2TP, …), although nobody asked for it outside.
const PROTOCOLS: [libc::c_int; 6] =
    [0, libc::IPPROTO_ICMP, libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_ICMPV6, libc::IPPROTO_MPTCP];
/// Bits that none of the types of these protocols has (stream, datagram, raw). Another type loads modules, too (DCCP).
const OTHER_TYPES: u64 = 0xc;

/// Protocols of netlink that programs use without power over the network: routes and addresses, messages between
/// programs, sockets, the audit log (of which logins ask whether it is there), devices, and what registers a name.
/// Others lead to IPsec or packet filters, which a sandbox cannot have, or have the kernel load modules.
const NETLINK: [libc::c_int; 6] = [
    libc::NETLINK_ROUTE,
    libc::NETLINK_USERSOCK,
    libc::NETLINK_SOCK_DIAG,
    libc::NETLINK_AUDIT,
    libc::NETLINK_KOBJECT_UEVENT,
    libc::NETLINK_GENERIC,
];

/// Execution domains: Linux, with 32-bit names of the machine (`setarch`), and the question which one it is.
const PERSONALITIES: &[u64] = &[0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Calls whose arguments decide whether they are let through.
const BY_ARGUMENTS: [libc::c_long; 5] =
    [libc::SYS_unshare, libc::SYS_clone, libc::SYS_socket, libc::SYS_socketpair, libc::SYS_personality];

/// Compiles the filter for this architecture.
pub(crate) fn compile() -> Result<Vec<libc::sock_filter>, IsolationError> {
    let program = build().map_err(|error| IsolationError::Unavailable(format!("seccomp filter: {error}")))?;
    let rest = program.into_iter().map(|i| libc::sock_filter { code: i.code, jt: i.jt, jf: i.jf, k: i.k });
    Ok(tree::decide(&fates()).into_iter().chain(special::answers()).chain(rest).collect())
}

/// What becomes of each call that this project has reviewed.
fn fates() -> Vec<Fate> {
    let fate = |number: u32| {
        let call = libc::c_long::from(number);
        if special::concerns(call) || BY_ARGUMENTS.contains(&call) {
            Fate::Asked
        } else if call == libc::SYS_clone3 || calls::ALLOWED.contains(&call) {
            Fate::Allowed
        } else {
            Fate::Refused
        }
    };
    (0..special::UNKNOWN_FROM).map(fate).collect()
}

/// What depends on arguments, and the refusal of everything else.
fn build() -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        special::LET_THROUGH_OTHERWISE.iter().map(|call| (*call, vec![])).collect();
    rules.insert(libc::SYS_unshare, vec![without(NAMESPACES | NEW_TIME)?]);
    rules.insert(libc::SYS_clone, vec![without(NAMESPACES)?]);
    rules.insert(libc::SYS_socket, sockets()?);
    rules.insert(libc::SYS_socketpair, sockets()?);
    rules.insert(libc::SYS_personality, first_is(PERSONALITIES)?);
    let refuse = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    SeccompFilter::new(rules, refuse, SeccompAction::Allow, TargetArch::try_from(std::env::consts::ARCH)?)?
        .try_into()
}

/// The first argument has none of these bits.
fn without(bits: libc::c_int) -> Result<SeccompRule, BackendError> {
    let none = SeccompCmpOp::MaskedEq(u64::from(bits.cast_unsigned()));
    SeccompRule::new(vec![SeccompCondition::new(0, SeccompCmpArgLen::Dword, none, 0)?])
}

/// An argument is this number.
fn is(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

/// The first argument is one of these.
fn first_is(values: &[u64]) -> Result<Vec<SeccompRule>, BackendError> {
    values.iter().map(|value| SeccompRule::new(vec![is(0, *value)?])).collect()
}

/// The sockets that exist inside: family, type and protocol.
fn sockets() -> Result<Vec<SeccompRule>, BackendError> {
    let number = |value: libc::c_int| u64::from(value.cast_unsigned());
    let mut rules = first_is(&FAMILIES.map(number))?;
    for protocol in PROTOCOLS {
        for family in INTERNET {
            let none = SeccompCmpOp::MaskedEq(OTHER_TYPES);
            let of_type = SeccompCondition::new(1, SeccompCmpArgLen::Dword, none, 0)?;
            let conditions = vec![is(0, number(family))?, of_type, is(2, number(protocol))?];
            rules.push(SeccompRule::new(conditions)?);
        }
    }
    for protocol in NETLINK {
        rules.push(SeccompRule::new(vec![is(0, number(libc::AF_NETLINK))?, is(2, number(protocol))?])?);
    }
    Ok(rules)
}

#[cfg(test)]
mod docker;
#[cfg(test)]
mod tests;
