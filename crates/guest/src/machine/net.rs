//! The machine's network: one interface, whose other end is in the sandbox's network slot on the host. Addresses
//! are those of every sandbox (see the host's crate `network`).
#![expect(unsafe_code, reason = "setting up an interface has no safe wrapper")]

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

const INTERFACE: &[u8] = b"eth0";
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const MASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);
/// Everything goes here; the host's side answers for every address.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// `AF_INET`, in the width that an address has.
const INET: libc::sa_family_t = 2;
/// What every sandbox finds set.
const SETTINGS: [(&str, &str); 2] = [
    // Programs of users may serve on any port, as in every sandbox.
    ("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0"),
    // There is no IPv6 outside, and nobody shall wait for it.
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
