//! A slot for a virtual machine: the sandbox's own address is at the other end of a tap device, all others are the
//! namespace's as before. So a packet that the machine sends to any address is for this host. The kernel looks its
//! socket up as for a packet of a program in the slot, and the same BPF program steers it to the gate. Nothing is
//! forwarded.
//!
//! The kernel takes from the machine only packets whose source is that one address: any other source is one of
//! the namespace's own, and such a packet from outside is dropped as a martian.
#![expect(unsafe_code, reason = "making a tap device has no safe wrapper")]

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use crate::netlink::Routes;
use crate::{NetworkError, OWN_ADDRESS, Step};

const NAME: &[u8] = b"tap0";
/// The host's end. Always the same, because a machine that is restored remembers it.
const HARDWARE_ADDRESS: [u8; 6] = [0x06, 0, 0x0a, 0, 0x02, 0x02];
/// `IFF_TAP`, no packet information, and a header with which large packets need not be cut.
const TAP: libc::c_short = 0x0002 | 0x1000 | 0x4000;
const ETHERNET: u16 = 1;
const UP: libc::c_short = 1;

/// Makes the tap device in the network namespace of this thread, which must be a slot without processes. It lasts as
/// long as the descriptor that this gives.
///
/// # Errors
/// [`NetworkError`]: most likely there is no `/dev/net/tun`.
pub fn open_tap() -> Result<OwnedFd, NetworkError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let tap = rustix::fs::open("/dev/net/tun", flags, Mode::empty()).step("open /dev/net/tun")?;
    request(&tap, libc::TUNSETIFF, libc::__c_anonymous_ifr_ifru { ifru_flags: TAP })
        .step("make a tap device")?;
    let socket = UdpSocket::bind("0.0.0.0:0").step("open a socket")?;
    let mut address = libc::sockaddr { sa_family: ETHERNET, sa_data: [0; 14] };
    for (slot, byte) in address.sa_data.iter_mut().zip(HARDWARE_ADDRESS) {
        *slot = byte.cast_signed();
    }
    let address = libc::__c_anonymous_ifr_ifru { ifru_hwaddr: address };
    request(&socket, libc::SIOCSIFHWADDR, address).step("give a tap device its address")?;
    match std::fs::write("/proc/sys/net/ipv6/conf/tap0/disable_ipv6", "1") {
        // A kernel without IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => other.step("take IPv6 from a tap device")?,
    }
    request(&socket, libc::SIOCSIFFLAGS, libc::__c_anonymous_ifr_ifru { ifru_flags: UP })
        .step("bring up a tap device")?;
    let index = libc::__c_anonymous_ifr_ifru { ifru_ifindex: 0 };
    let index = request(&socket, libc::SIOCGIFINDEX, index).step("find a tap device")?;
    // SAFETY: SIOCGIFINDEX has filled in the index.
    let index = unsafe { index.ifru_ifindex };
    let routes = Routes::open().step("talk to the routing table")?;
    routes.remove_address(OWN_ADDRESS).step("take a slot's address")?;
    // The route that named it went with it.
    routes.own_everything(None).step("route everything to the gateway")?;
    routes.lead_to(OWN_ADDRESS, index.cast_unsigned()).step("route a slot's address to its machine")?;
    Ok(tap)
}

fn request(
    of: &impl AsRawFd,
    number: libc::Ioctl,
    value: libc::__c_anonymous_ifr_ifru,
) -> io::Result<libc::__c_anonymous_ifr_ifru> {
    let mut ifr_name = [0; libc::IFNAMSIZ];
    for (slot, byte) in ifr_name.iter_mut().zip(NAME) {
        *slot = byte.cast_signed();
    }
    let mut request = libc::ifreq { ifr_name, ifr_ifru: value };
    // SAFETY: all callers pass requests that read or write one `ifreq`, which lives through the call.
    let result = unsafe { libc::ioctl(of.as_raw_fd(), number, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(request.ifr_ifru) }
}
