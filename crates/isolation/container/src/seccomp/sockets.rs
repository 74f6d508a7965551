//! The sockets that exist inside, by family, type and protocol. All others (`AF_VSOCK` leads to the host of a virtual
//! machine, `AF_ALG` into kernel cryptography, …) are refused: many would have the kernel load a module, although nobody
//! asked for it outside.

use atoll_isolation_host::filter::instruction::{
    ARCHITECTURE, JUMP_IF_ANY_BIT, JUMP_IF_EQUAL, LOAD, NUMBER, RETURN, X86_64, errno, low, step,
};
use libc::{c_int, sock_filter};

/// The calls that make sockets.
pub(super) const CALLS: [libc::c_long; 2] = [libc::SYS_socket, libc::SYS_socketpair];

/// The type's own protocol, ICMP, TCP, UDP, ICMP of IPv6, and several paths of TCP, which some runtimes ask for. Others
/// (SCTP, L2TP, …) are modules.
const INTERNET: [c_int; 6] =
    [0, libc::IPPROTO_ICMP, libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_ICMPV6, libc::IPPROTO_MPTCP];
/// Bits that none of the types of these protocols has (stream, datagram, raw). Another type is a module, too (DCCP).
const OTHER_TYPES: u32 = 0xc;

/// Protocols of netlink that programs use without power over the network: routes and addresses, messages between
/// programs, sockets, the audit log (of which logins ask whether it is there), devices, and what registers a name.
/// Others lead to IPsec or packet filters, which a sandbox cannot have, or are modules.
const NETLINK: [c_int; 6] = [
    libc::NETLINK_ROUTE,
    libc::NETLINK_USERSOCK,
    libc::NETLINK_SOCK_DIAG,
    libc::NETLINK_AUDIT,
    libc::NETLINK_KOBJECT_UEVENT,
    libc::NETLINK_GENERIC,
];

/// Instructions that answer [`CALLS`], and go on with what follows them for all other calls. Written out, as the
/// compiler of filters would make six times as many.
pub(super) fn answers() -> Vec<sock_filter> {
    let families = [
        (libc::AF_UNSPEC, vec![allow()]),
        (libc::AF_UNIX, vec![allow()]),
        (libc::AF_INET, internet()),
        (libc::AF_INET6, internet()),
        (libc::AF_NETLINK, protocols(&NETLINK)),
    ];
    let mut body = vec![step(LOAD, low(0), 0, 0)];
    body.extend(families.into_iter().flat_map(|(family, then)| when(family, then)));
    body.push(refuse());

    let [socket, socketpair] = CALLS.map(|call| u32::try_from(call).unwrap_or(u32::MAX));
    let past = len(&body);
    let mut program = vec![
        step(LOAD, ARCHITECTURE, 0, 0),
        step(JUMP_IF_EQUAL, X86_64, 0, past.saturating_add(3)),
        step(LOAD, NUMBER, 0, 0),
        step(JUMP_IF_EQUAL, socket, 1, 0),
        step(JUMP_IF_EQUAL, socketpair, 0, past),
    ];
    program.append(&mut body);
    program
}

fn internet() -> Vec<sock_filter> {
    let mut program = vec![step(LOAD, low(1), 0, 0), step(JUMP_IF_ANY_BIT, OTHER_TYPES, 0, 1), refuse()];
    program.extend(protocols(&INTERNET));
    program
}

fn protocols(of: &[c_int]) -> Vec<sock_filter> {
    let mut program = vec![step(LOAD, low(2), 0, 0)];
    program.extend(of.iter().flat_map(|protocol| when(*protocol, vec![allow()])));
    program.push(refuse());
    program
}

/// What is done, to an answer, when the number that was loaded last is this one.
fn when(number: c_int, then: Vec<sock_filter>) -> Vec<sock_filter> {
    let mut program = vec![step(JUMP_IF_EQUAL, number.cast_unsigned(), 0, len(&then))];
    program.extend(then);
    program
}

/// How far a jump past these goes. All of them together are fewer than 100.
fn len(program: &[sock_filter]) -> u8 {
    u8::try_from(program.len()).unwrap_or(u8::MAX)
}

const fn allow() -> sock_filter {
    step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0)
}

const fn refuse() -> sock_filter {
    step(RETURN, errno(libc::EPERM), 0, 0)
}
