//! Makes one slot, on a thread that lives for nothing else.
//!
//! `unshare(CLONE_NEWNET)` moves the calling thread, so it must not be a thread that anybody uses
//! afterwards: on a pool's or runtime's thread a failure half way would leave later work in the wrong
//! network.
#![expect(unsafe_code, reason = "unshare and the interface ioctl have no safe wrapper")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::UnshareFlags;

use crate::{NetworkError, Slot};

trait Step<T> {
    fn step(self, step: &'static str) -> Result<T, NetworkError>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: &'static str) -> Result<T, NetworkError> {
        self.map_err(|error| NetworkError { step, source: error.into() })
    }
}

pub(crate) fn make() -> Result<Slot, NetworkError> {
    let thread = std::thread::Builder::new()
        .name("atoll-slot".to_owned())
        .spawn(make_here)
        .step("start a thread for a network slot")?;
    thread
        .join()
        .unwrap_or_else(|_panic| Err(io::Error::other("its thread panicked")).step("make a network slot"))
}

fn make_here() -> Result<Slot, NetworkError> {
    // SAFETY: NEWNET alone does not touch the file descriptor table, the one hazard of unshare.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.step("make a network namespace")?;
    raise_loopback().step("bring up the loopback interface")?;
    // The names below /proc/sys/net mean the calling thread's network namespace.
    std::fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")
        .step("open all ports to unprivileged programs")?;
    let netns = rustix::fs::open("/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .step("open the network namespace")?;
    Ok(Slot { netns })
}

/// Sets `IFF_UP`; the kernel then adds 127.0.0.1/8 and ::1/128 by itself.
fn raise_loopback() -> io::Result<()> {
    /// `IFF_UP`, in the width that the request has.
    const UP: libc::c_short = 1;
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut name = [0; libc::IFNAMSIZ];
    for (slot, byte) in name.iter_mut().zip(b"lo") {
        *slot = byte.cast_signed();
    }
    let flags = libc::__c_anonymous_ifr_ifru { ifru_flags: UP };
    let request = libc::ifreq { ifr_name: name, ifr_ifru: flags };
    // SAFETY: SIOCSIFFLAGS reads one `ifreq`, which lives through the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

    /// Runs `check` inside a fresh slot, on a thread of its own.
    fn inside(check: impl FnOnce() + Send + 'static) {
        let slot = make().expect("network slots need root");
        let run = move || {
            move_into_link_name_space(slot.netns.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            check();
        };
        std::thread::spawn(run).join().unwrap();
    }

    #[test]
    fn loopback_works_for_both_families_and_nothing_else_is_there() {
        inside(|| {
            for address in ["127.0.0.1:0", "[::1]:0"] {
                let listener = TcpListener::bind(address).unwrap();
                let _connection = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            }
            let interfaces = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
            let names: Vec<_> = interfaces.lines().skip(2).filter_map(|l| l.split(':').next()).collect();
            assert_eq!(names.iter().map(|name| name.trim()).collect::<Vec<_>>(), ["lo"]);
            assert_eq!(
                TcpStream::connect("192.0.2.1:80").unwrap_err().raw_os_error(),
                Some(libc::ENETUNREACH)
            );
        });
    }

    #[test]
    fn low_ports_need_no_privilege_and_the_host_is_unchanged() {
        let path = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
        let before = std::fs::read_to_string(path).unwrap();
        inside(move || assert_eq!(std::fs::read_to_string(path).unwrap().trim(), "0"));
        assert_eq!(std::fs::read_to_string(path).unwrap(), before);
    }

    #[test]
    fn slots_are_distinct() {
        let (a, b) = (make().unwrap(), make().unwrap());
        let inode = |slot: &Slot| rustix::fs::fstat(&slot.netns).unwrap().st_ino;
        assert_ne!(inode(&a), inode(&b));
    }
}
