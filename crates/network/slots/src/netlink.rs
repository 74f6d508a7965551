//! The messages to the kernel's routing table that a slot needs.
//!
//! A message is a header, a fixed part and attributes, all in the host's byte order and padded to four
//! bytes. The kernel acknowledges each with an error number.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Index of `lo` in every network namespace.
const LO: u32 = 1;
const AF_INET: u8 = 2;

const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_NEWROUTE: u16 = 24;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const IFF_UP: u32 = 1;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_PREFSRC: u16 = 7;
const RT_TABLE_LOCAL: u8 = 255;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_HOST: u8 = 254;
const RT_SCOPE_LINK: u8 = 253;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;

/// Bytes of `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;

/// A connection to the routing table of this thread's network namespace.
pub(crate) struct Routes(OwnedFd);

impl Routes {
    pub(crate) fn open() -> io::Result<Self> {
        // Protocol 0 is the routing table's.
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        Ok(Self(socket))
    }

    /// Brings up `lo`; the kernel then adds 127.0.0.1/8 and ::1/128 by itself.
    pub(crate) fn raise_loopback(&self) -> io::Result<()> {
        // struct ifinfomsg: family, pad, type, index, flags, change.
        let mut body = vec![0, 0, 0, 0];
        for word in [LO, IFF_UP, IFF_UP] {
            body.extend(word.to_ne_bytes());
        }
        self.ask(RTM_NEWLINK, 0, &body)
    }

    /// Gives `lo` one more address.
    pub(crate) fn add_address(&self, address: Ipv4Addr) -> io::Result<()> {
        self.change_address(RTM_NEWADDR, NLM_F_CREATE, address)
    }

    /// Takes an address from `lo`, and with it the routes that name it as their source.
    pub(crate) fn remove_address(&self, address: Ipv4Addr) -> io::Result<()> {
        self.change_address(RTM_DELADDR, 0, address)
    }

    fn change_address(&self, kind: u16, flags: u16, address: Ipv4Addr) -> io::Result<()> {
        // struct ifaddrmsg: family, prefix length, flags, scope, index.
        let mut body = vec![AF_INET, 32, 0, 0];
        body.extend(LO.to_ne_bytes());
        attribute(&mut body, IFA_LOCAL, &address.octets());
        attribute(&mut body, IFA_ADDRESS, &address.octets());
        self.ask(kind, flags, &body)
    }

    /// Makes every IPv4 address one of this namespace's own: `local 0.0.0.0/0 dev lo`, with `src SOURCE` if there
    /// is one.
    pub(crate) fn own_everything(&self, source: Option<Ipv4Addr>) -> io::Result<()> {
        // struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags.
        let mut body =
            vec![AF_INET, 0, 0, 0, RT_TABLE_LOCAL, RTPROT_STATIC, RT_SCOPE_HOST, RTN_LOCAL, 0, 0, 0, 0];
        attribute(&mut body, RTA_OIF, &LO.to_ne_bytes());
        if let Some(source) = source {
            attribute(&mut body, RTA_PREFSRC, &source.octets());
        }
        self.ask(RTM_NEWROUTE, NLM_F_CREATE, &body)
    }

    /// Leads one address to an interface, although all others are this namespace's own: the longest prefix wins.
    pub(crate) fn lead_to(&self, address: Ipv4Addr, interface: u32) -> io::Result<()> {
        let mut body =
            vec![AF_INET, 32, 0, 0, RT_TABLE_LOCAL, RTPROT_STATIC, RT_SCOPE_LINK, RTN_UNICAST, 0, 0, 0, 0];
        attribute(&mut body, RTA_DST, &address.octets());
        attribute(&mut body, RTA_OIF, &interface.to_ne_bytes());
        self.ask(RTM_NEWROUTE, NLM_F_CREATE, &body)
    }

    fn ask(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        let bytes = u32::try_from(HEADER_BYTES + body.len()).map_err(io::Error::other)?;
        let mut message = bytes.to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend((flags | NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
        message.extend([0; 8]);
        message.extend_from_slice(body);
        rustix::net::send(&self.0, &message, SendFlags::empty())?;
        let mut answer = [0; 512];
        let (length, _) = rustix::net::recv(&self.0, &mut answer[..], RecvFlags::empty())?;
        acknowledged(&answer[..length])
    }
}

/// Appends an attribute whose value has a length that is a multiple of four.
fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8; 4]) {
    body.extend(8_u16.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend_from_slice(value);
}

/// Reads the error number of an acknowledgement; 0 is success.
fn acknowledged(answer: &[u8]) -> io::Result<()> {
    let odd = || io::Error::new(io::ErrorKind::InvalidData, "the kernel did not acknowledge");
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    let errno = answer.get(HEADER_BYTES..HEADER_BYTES + 4).and_then(|bytes| bytes.try_into().ok());
    match (kind, errno.map(i32::from_ne_bytes)) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(errno)) => Err(io::Error::from_raw_os_error(errno.wrapping_neg())),
        _ => Err(odd()),
    }
}
