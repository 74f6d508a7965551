//! The machine's network: one interface, whose other end is in the sandbox's network slot on the host. Addresses
//! are those of every sandbox (see the host's crate `network`).
#![expect(unsafe_code, reason = "setting up an interface has no safe wrapper")]

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsRawFd;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

const INTERFACE: &[u8] = b"eth0";
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const MASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);
/// Everything goes here; the host's side answers for every address.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// `AF_INET`, in the width that an address has.
const INET: libc::sa_family_t = 2;
/// Connections of the machine, as its kernel lists them.
const CONNECTIONS: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// Settings that every sandbox has.
const SETTINGS: [(&str, &str); 2] = [
    // Programs of users may serve on any port, as in every sandbox.
    ("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0"),
    // There is no IPv6 outside, and no program shall wait for it.
    ("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "1"),
];

/// Brings up `lo` and `eth0`.
pub(super) fn set_up() -> io::Result<()> {
    for (path, value) in SETTINGS {
        match std::fs::write(path, value) {
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    raise(&socket, b"lo")?;
    let address = |address: Ipv4Addr| libc::__c_anonymous_ifr_ifru { ifru_addr: socket_address(address) };
    request(&socket, libc::SIOCSIFADDR, INTERFACE, address(ADDRESS))?;
    request(&socket, libc::SIOCSIFNETMASK, INTERFACE, address(MASK))?;
    raise(&socket, INTERFACE)?;
    add_default_route(&socket)
}

fn raise(socket: &UdpSocket, name: &[u8]) -> io::Result<()> {
    /// `IFF_UP`, in the width that the request has.
    const UP: libc::c_short = 1;
    request(socket, libc::SIOCSIFFLAGS, name, libc::__c_anonymous_ifr_ifru { ifru_flags: UP })
}

fn request(
    socket: &UdpSocket,
    number: libc::Ioctl,
    name: &[u8],
    value: libc::__c_anonymous_ifr_ifru,
) -> io::Result<()> {
    let mut ifr_name = [0; libc::IFNAMSIZ];
    for (slot, byte) in ifr_name.iter_mut().zip(name) {
        *slot = byte.cast_signed();
    }
    let request = libc::ifreq { ifr_name, ifr_ifru: value };
    // SAFETY: all callers pass requests that read one `ifreq`, which lives through the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), number, &raw const request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn add_default_route(socket: &UdpSocket) -> io::Result<()> {
    // SAFETY: a zeroed `rtentry` is a valid value of that plain structure.
    let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
    route.rt_dst = socket_address(Ipv4Addr::UNSPECIFIED);
    route.rt_genmask = socket_address(Ipv4Addr::UNSPECIFIED);
    route.rt_gateway = socket_address(GATEWAY);
    route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
    // SAFETY: SIOCADDRT reads one `rtentry`, which lives through the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCADDRT, &raw const route) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// An address as the kernel's `struct sockaddr` of IPv4: family, port, four octets, padding.
fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let mut sa_data = [0; 14];
    for (slot, octet) in sa_data[2..].iter_mut().zip(address.octets()) {
        *slot = octet.cast_signed();
    }
    libc::sockaddr { sa_family: INET, sa_data }
}

/// Ends the connections that lead out of the machine, which is a copy of another: they belong to that machine. A
/// process that has one open is told at once, as if its peer had reset it. A connection that cannot be ended here ends
/// when the process sends something on it, because no peer outside knows it.
pub(super) fn reset_connections() {
    let mut doomed = HashSet::new();
    for path in CONNECTIONS {
        let list = std::fs::read_to_string(path).unwrap_or_default();
        doomed.extend(list.lines().filter_map(leads_out).map(|inode| format!("socket:[{inode}]")));
    }
    if doomed.is_empty() {
        return;
    }
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid.and_then(Pid::from_raw).filter(|pid| !pid.is_init()) else { continue };
        for link in std::fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten() {
            let is_doomed = std::fs::read_link(link.path())
                .is_ok_and(|target| target.to_str().is_some_and(|target| doomed.contains(target)));
            if let Some(fd) = link.file_name().to_str().and_then(|name| name.parse().ok())
                && is_doomed
            {
                // It may have been closed meanwhile.
                reset(pid, fd).unwrap_or_default();
            }
        }
    }
}

/// A socket that is told to have no peer resets its connection, and wakes the process that waits for it.
fn reset(pid: Pid, fd: i32) -> rustix::io::Result<()> {
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let socket = pidfd_getfd(process, fd, PidfdGetfdFlags::empty())?;
    rustix::net::connect_unspec(socket)
}

/// The inode of a connection in a line of the kernel's list, if its peer is outside.
fn leads_out(line: &str) -> Option<&str> {
    let mut fields = line.split_whitespace();
    let peer = listed_address(fields.nth(2)?)?;
    let outside = !peer.is_loopback() && !peer.is_unspecified() && peer != IpAddr::V4(ADDRESS);
    fields.nth(6).filter(|inode| outside && *inode != "0")
}

/// An address in the kernel's list: words of 32 bits as this processor reads them, and a port.
fn listed_address(field: &str) -> Option<IpAddr> {
    let (address, _port) = field.split_once(':')?;
    let word =
        |at: usize| u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    if address.len() == 8 {
        return Some(IpAddr::V4(word(0)?.into()));
    }
    let mut octets = [0; 16];
    for (at, piece) in octets.chunks_mut(4).enumerate() {
        piece.copy_from_slice(&word(at)?);
    }
    Some(Ipv6Addr::from(octets).to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_out_and_what_does_not() {
        let line = |peer: &str| {
            format!(
                "   1: 0F02000A:A1B2 {peer} 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 20"
            )
        };
        assert_eq!(leads_out(&line("08080808:01BB")), Some("4711"));
        let mapped = "0000000000000000FFFF000008080808:01BB";
        assert_eq!(leads_out(&line(mapped)), Some("4711"));
        for inside in [
            "0100007F:0050",
            "0F02000A:0050",
            "00000000:0000",
            "00000000000000000000000001000000:0050",
            "0000000000000000FFFF00000100007F:0050",
            "00000000000000000000000000000000:0000",
            "x:1",
            "0808:1",
        ] {
            assert_eq!(leads_out(&line(inside)), None, "{inside}");
        }
        assert_eq!(leads_out("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when"), None);
        assert_eq!(leads_out(""), None);
    }
}
