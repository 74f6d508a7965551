//! What the tests of slots share.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{Gate, Steering};

/// Runs `check` inside a network namespace, on a thread of its own.
pub(crate) fn inside<T: Send + 'static>(netns: &OwnedFd, check: impl FnOnce() -> T + Send + 'static) -> T {
    let netns = netns.try_clone().unwrap();
    let run = move || {
        move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        check()
    };
    std::thread::spawn(run).join().unwrap()
}

/// Connects from inside and gives the connection that arrives at the gate, and where it wanted to go.
pub(crate) fn through(slot_netns: &OwnedFd, gate: &Gate, to: &'static str) -> (TcpStream, SocketAddr) {
    let mut client = inside(slot_netns, move || TcpStream::connect(to).unwrap());
    gate.tcp.set_nonblocking(false).unwrap();
    let (mut arrived, _) = gate.tcp.accept().unwrap();
    client.write_all(b"x").unwrap();
    arrived.read_exact(&mut [0]).unwrap();
    let wanted = match gate.steering {
        Steering::Bpf(_) => arrived.local_addr().unwrap(),
        Steering::Redirect => rustix::net::sockopt::ip_original_dst(&arrived).unwrap().into(),
    };
    (arrived, wanted)
}

/// Waits for something that must happen soon.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "it did not happen: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
