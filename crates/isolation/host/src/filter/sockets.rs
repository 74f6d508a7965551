//! Sockets by family, type and protocol. A level lists those that there are; all others (`AF_VSOCK` leads to the host of
//! a virtual machine, `AF_ALG` into kernel cryptography, …) are refused: many would have the kernel load a module,
//! although nobody asked for it outside.

use libc::{c_int, c_long, sock_filter};

use super::instruction::{
    ARCHITECTURE, JUMP_IF_ANY_BIT, JUMP_IF_EQUAL, LOAD, NUMBER, RETURN, X86_64, errno, low, step,
};

/// Bits that none of the types of internet protocols has (stream, datagram, raw). Another type is a module, too (DCCP).
const OTHER_TYPES: u32 = 0xc;

/// The sockets that a filter lets through: Unix, IPv4, IPv6 and netlink, of some protocols.
#[derive(Debug, Clone, Copy)]
pub struct Sockets {
    /// The calls that are answered by this list: `socket`, or `socketpair` as well.
    pub calls: &'static [c_long],
    /// Whether the kernel may be asked for no family at all, which it refuses itself.
    pub unspecified: bool,
    /// Protocols of IPv4 and IPv6. 0 is that of the socket's type.
    pub internet: &'static [c_int],
    /// Protocols of netlink.
    pub netlink: &'static [c_int],
}

impl Sockets {
    /// Instructions that answer the calls, and go on with what follows them for all others. Written out, as the compiler
    /// of filters would make six times as many.
    #[must_use]
    pub fn answers(&self) -> Vec<sock_filter> {
        let mut families = vec![
            (libc::AF_UNIX, vec![allow()]),
            (libc::AF_INET, internet(self.internet)),
            (libc::AF_INET6, internet(self.internet)),
            (libc::AF_NETLINK, protocols(self.netlink)),
        ];
        if self.unspecified {
            families.push((libc::AF_UNSPEC, vec![allow()]));
        }
        let mut body = vec![step(LOAD, low(0), 0, 0)];
        body.extend(families.into_iter().flat_map(|(family, then)| when(family, then)));
        body.push(refuse());

        let past = len(&body);
        let calls = u8::try_from(self.calls.len()).unwrap_or(u8::MAX);
        let mut program = vec![
            step(LOAD, ARCHITECTURE, 0, 0),
            step(JUMP_IF_EQUAL, X86_64, 0, past.saturating_add(calls).saturating_add(1)),
            step(LOAD, NUMBER, 0, 0),
        ];
        // The last one of them decides between the answers and what follows.
        for (left, call) in (0..calls).rev().zip(self.calls) {
            let number = u32::try_from(*call).unwrap_or(u32::MAX);
            program.push(step(JUMP_IF_EQUAL, number, left, if left == 0 { past } else { 0 }));
        }
        program.append(&mut body);
        program
    }
}

fn internet(of: &[c_int]) -> Vec<sock_filter> {
    let mut program = vec![step(LOAD, low(1), 0, 0), step(JUMP_IF_ANY_BIT, OTHER_TYPES, 0, 1), refuse()];
    program.extend(protocols(of));
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
