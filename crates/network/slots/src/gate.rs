//! The gate of a slot: the gateway's sockets inside its namespace.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use atoll_failpoint::fail_point;

use crate::settings::Settings;
use crate::{NetworkError, PROXY_ADDRESS, RESOLVER_ADDRESS, Step, openers, redirect, steer};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
const DNS_PORT: u16 = 53;

/// How connections come to the gate.
#[derive(Debug)]
pub enum Steering {
    /// By a BPF program; the local address of an accepted connection is where it wanted to go. Lasts as
    /// long as this link.
    Bpf(OwnedFd),
    /// By rules of `nft`; where a connection wanted to go is in `SO_ORIGINAL_DST`.
    Redirect,
}

/// The way out of a slot. Dropping it closes the way.
#[derive(Debug)]
pub struct Gate {
    /// Every TCP connection to anywhere but the sandbox itself arrives here.
    pub tcp: TcpListener,
    /// Questions to the resolver. Absent when a program inside had taken its address while no gate was
    /// open: then there are no names in this sandbox until it is gone.
    pub dns: Option<UdpSocket>,
    /// How they come here.
    pub steering: Steering,
}

/// Opens a gate in a namespace that has none: its earlier gate went with the server that held it. Blocks
/// for about half a millisecond, longer where others wait for the same.
///
/// # Errors
/// [`NetworkError`].
pub fn open_gate(netns: BorrowedFd<'_>) -> Result<Gate, NetworkError> {
    openers::open(netns)
}

/// Opens a gate in the namespace of this thread, which is `netns` and has these settings.
pub(crate) fn open_here(netns: BorrowedFd<'_>, settings: &Settings) -> Result<Gate, NetworkError> {
    // A socket that connects has a mark that names its sender; the accepted socket is to have the same mark.
    settings.set("tcp_fwmark_accept", "1").step("have marks of connections kept")?;
    let (tcp, steering) = match by_bpf(netns) {
        Ok(made) => made,
        Err(refused) => by_redirect(refused)?,
    };
    let resolver = SocketAddrV4::new(RESOLVER_ADDRESS, DNS_PORT);
    let dns = match UdpSocket::bind(resolver) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => None,
        other => Some(other.step("bind the resolver's socket")?),
    };
    if let Some(dns) = &dns {
        dns.set_nonblocking(true).step("set up the resolver's socket")?;
    }
    Ok(Gate { tcp, dns, steering })
}

fn by_bpf(netns: BorrowedFd<'_>) -> std::io::Result<(TcpListener, Steering)> {
    // Kernels that refuse BPF are not where tests run.
    fail_point!("network::bpf", |_action| Err(std::io::ErrorKind::PermissionDenied.into()));
    let tcp = listen(PROXY_ADDRESS)?;
    let link = steer::attach(netns, tcp.as_fd())?;
    Ok((tcp, Steering::Bpf(link)))
}

/// Steers by `nft`; the error says why BPF did not do, because that should be mended first.
fn by_redirect(refused: std::io::Error) -> Result<(TcpListener, Steering), NetworkError> {
    let redirected = || {
        // Redirected packets are sent to loopback.
        let tcp = listen(Ipv4Addr::LOCALHOST)?;
        redirect::install(tcp.local_addr()?.port())?;
        Ok::<_, std::io::Error>(tcp)
    };
    match redirected() {
        Ok(tcp) => Ok((tcp, Steering::Redirect)),
        Err(error) => Err(std::io::Error::new(refused.kind(), format!("BPF: {refused}; nft: {error}")))
            .step("steer connections to the gateway"),
    }
}

/// A listening socket on a port that the kernel chooses: which one does not matter, and a fixed one could
/// be taken by a program inside.
fn listen(address: Ipv4Addr) -> std::io::Result<TcpListener> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    bind(&socket, &SocketAddr::from((address, 0)))?;
    listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}
