//! Sockets by family, type and protocol. A level lists those that there are; all others (`AF_VSOCK` leads to the host of
//! a virtual machine, `AF_ALG` into kernel cryptography, …) are refused: many would have the kernel load a module,
//! although nobody asked for it outside.

use libc::{c_int, c_long, sock_filter};

use super::instruction::{AND, ARCHITECTURE, JUMP_IF_EQUAL, LOAD, NUMBER, RETURN, X86_64, errno, low, step};

/// The bits of a socket's type that are its type; the others are flags.
const TYPE: u32 = 0xf;

/// The sockets that a filter lets through: Unix, IPv4, IPv6 and netlink, of some protocols.
#[derive(Debug, Clone, Copy)]
pub struct Sockets {
    /// The calls that are answered by this list: `socket`, or `socketpair` as well.
    pub calls: &'static [c_long],
    /// Whether the kernel may be asked for no family at all, which it refuses itself.
    pub unspecified: bool,
    /// Protocols of streams of IPv4 and IPv6. 0 is that of the socket's type.
    pub streams: &'static [c_int],
    /// Protocols of datagrams of both, beside each family's own ICMP.
    pub datagrams: &'static [c_int],
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
            (libc::AF_INET, self.internet(libc::IPPROTO_ICMP)),
            (libc::AF_INET6, self.internet(libc::IPPROTO_ICMPV6)),
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

    /// Type and protocol go together: for a pair that no protocol of its own is registered for, the kernel looks for a
    /// module. Raw sockets need a right that no sandbox has.
    fn internet(&self, icmp: c_int) -> Vec<sock_filter> {
        let datagrams: Vec<c_int> = self.datagrams.iter().copied().chain([icmp]).collect();
        let mut program = vec![step(LOAD, low(1), 0, 0), step(AND, TYPE, 0, 0)];
        program.extend(when(libc::SOCK_STREAM, protocols(self.streams)));
        program.extend(when(libc::SOCK_DGRAM, protocols(&datagrams)));
        program.push(refuse());
        program
    }
}

/// Lets these protocols through, and no others.
fn protocols(of: &[c_int]) -> Vec<sock_filter> {
    let mut program = vec![step(LOAD, low(2), 0, 0)];
    // The last instruction allows.
    for (left, protocol) in (1..=of.len()).rev().zip(of) {
        let past = u8::try_from(left).unwrap_or(u8::MAX);
        program.push(step(JUMP_IF_EQUAL, protocol.cast_unsigned(), past, 0));
    }
    program.extend([refuse(), allow()]);
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
