use std::io::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram, UnixListener, UnixStream};

use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto};

use super::*;
use crate::SlotPool;
use crate::testing::{inside, through, until};

fn inode(netns: &OwnedFd) -> u64 {
    rustix::fs::fstat(netns).unwrap().st_ino
}

/// Gives gates back, the one of a slot in which nothing was done as the last; all that the pool has when that has come
/// back is what it made of them.
fn handed_out_after(pool: &SlotPool, gates: Vec<Gate>) -> Vec<Slot> {
    let Slot { netns, gate } = pool.claim().unwrap();
    let untouched = inode(&netns);
    drop(netns);
    for gate in gates.into_iter().chain([gate]) {
        pool.give_back(gate);
    }
    let mut slots: Vec<Slot> = Vec::new();
    until("an untouched slot is used again", || {
        while pool.ready() > 0 {
            slots.push(pool.claim().unwrap());
        }
        slots.iter().any(|slot| inode(&slot.netns) == untouched)
    });
    slots
}

/// Claims a slot, works in it, and gives its inode and gate.
fn worked_in(pool: &SlotPool, work: impl FnOnce() + Send + 'static) -> (u64, Gate) {
    let Slot { netns, gate } = pool.claim().unwrap();
    inside(&netns, work);
    (inode(&netns), gate)
}

#[test]
fn a_slot_in_which_nothing_was_sent_is_handed_out_again_as_new() {
    let pool = SlotPool::start(0).expect("network slots need root");
    let (used, gate) = worked_in(&pool, || {
        let (mut one, _other) = UnixStream::pair().unwrap();
        one.write_all(b"x").unwrap();
        let name = UnixAddress::from_abstract_name("known").unwrap();
        let _listener = UnixListener::bind_addr(&name).unwrap();
        let _port = TcpListener::bind("0.0.0.0:80").unwrap();
        let _other_port = UdpSocket::bind("0.0.0.0:5353").unwrap();
        // The kernel frees it a grace period after it was closed.
        let netlink = rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, None).unwrap();
        drop(netlink);
    });
    let slots = handed_out_after(&pool, vec![gate]);
    let again = slots.iter().find(|slot| inode(&slot.netns) == used).expect("it is used again");

    let shown = Arc::new(inside(&again.netns, || Fresh::read().unwrap()));
    let new = slot::make().unwrap();
    until("a new slot shows what the used one shows", || {
        let shown = Arc::clone(&shown);
        inside(&new.netns, move || shown.difference().unwrap()).is_none()
    });
    let (_arrived, wanted) = through(&again.netns, &again.gate, "192.0.2.1:443");
    assert_eq!(wanted, "192.0.2.1:443".parse().unwrap());
}

/// A label of a flow to itself, which the kernel remembers for some seconds after its socket.
fn label_a_flow() {
    let socket = UdpSocket::bind("[::1]:0").unwrap();
    let mut request = Ipv6Addr::LOCALHOST.octets().to_vec();
    request.extend(0x12345_u32.to_be_bytes());
    // Get it, for anybody, and make it; expires and lingers in seconds; padding.
    request.extend([0, 255]);
    request.extend([1_u16, 6, 20].map(u16::to_ne_bytes).concat());
    request.extend([0; 4]);
    // SAFETY: the option reads a `struct in6_flowlabel_req`, which is these 32 bytes.
    let set = unsafe {
        let length = u32::try_from(request.len()).unwrap();
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IPV6, 32, request.as_ptr().cast(), length)
    };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
}

fn ping() {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)).unwrap();
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    rustix::net::sendto(&socket, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0], SendFlags::empty(), &to).unwrap();
}

#[test]
fn a_slot_in_which_anything_was_done_is_not_handed_out_again() {
    type Work = fn();
    let works: [(&str, Work); 11] = [
        ("a connection that waits at the gate", || drop(TcpStream::connect("192.0.2.1:80").unwrap())),
        ("a connection that is refused", || drop(TcpStream::connect("127.0.0.1:80").unwrap_err())),
        ("a connection inside", || {
            let listener = TcpListener::bind("127.0.0.1:80").unwrap();
            drop((TcpStream::connect("127.0.0.1:80").unwrap(), listener.accept().unwrap()));
        }),
        ("a connection over IPv6", || {
            let listener = TcpListener::bind("[::1]:80").unwrap();
            drop((TcpStream::connect("[::1]:80").unwrap(), listener));
        }),
        ("a question that waits at the gate", || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.send_to(b"?", "10.0.2.3:53").unwrap();
        }),
        ("a datagram to itself", || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        }),
        ("no route", || drop(TcpStream::connect("[2001:db8::1]:80").unwrap_err())),
        ("a ping", ping),
        ("a group", || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.join_multicast_v4(&Ipv4Addr::new(224, 0, 0, 251), &Ipv4Addr::UNSPECIFIED).unwrap();
        }),
        ("a group of IPv6", || {
            let socket = UdpSocket::bind("[::]:0").unwrap();
            socket.join_multicast_v6(&"ff02::fb".parse().unwrap(), 1).unwrap();
        }),
        ("a label", label_a_flow),
    ];
    let pool = SlotPool::start(0).unwrap();
    let (named, gates): (Vec<_>, Vec<_>) = works
        .into_iter()
        .map(|(name, work)| {
            let (used, gate) = worked_in(&pool, work);
            ((name, used), gate)
        })
        .unzip();
    // A new namespace may get the number of one that is gone.
    let held: Vec<OwnedFd> = gates.iter().map(|gate| netns_of(&gate.tcp).unwrap()).collect();
    let slots = handed_out_after(&pool, gates);
    for (name, used) in named {
        assert!(slots.iter().all(|slot| inode(&slot.netns) != used), "{name}");
    }
    drop(held);
}

#[test]
fn a_slot_of_which_a_socket_is_held_is_not_handed_out_again() {
    let pool = SlotPool::start(0).unwrap();
    let make: [fn() -> OwnedFd; 4] = [
        || UnixDatagram::unbound().unwrap().into(),
        || TcpListener::bind("0.0.0.0:80").unwrap().into(),
        || UdpSocket::bind("[::]:5353").unwrap().into(),
        || rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, None).unwrap(),
    ];
    let mut gates = Vec::new();
    let mut held = Vec::new();
    for make in make {
        let Slot { netns, gate } = pool.claim().unwrap();
        held.push((inside(&netns, make), inode(&netns)));
        gates.push(gate);
    }
    let slots = handed_out_after(&pool, gates);
    for (socket, used) in held {
        assert!(slots.iter().all(|slot| inode(&slot.netns) != used), "{socket:?} is held");
    }
}

/// A connection that its program let go of while data waits in it. It is there as long as the listener.
fn let_go_of_an_unsent_stream() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:80").unwrap();
    let mut stream = TcpStream::connect("127.0.0.1:80").unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write_all(&[1; 1 << 16]).is_ok() {}
    listener
}

#[test]
fn what_a_sandbox_does_keeps_no_slot_of_another_from_being_handed_out_again() {
    let pool = SlotPool::start(0).unwrap();
    // From now on it is known what a new one shows.
    drop(handed_out_after(&pool, Vec::new()));
    let other = pool.claim().unwrap();
    let listener = inside(&other.netns, let_go_of_an_unsent_stream);
    let shown = std::fs::read_to_string("/proc/net/sockstat").unwrap();
    assert!(!shown.contains("orphan 0"), "the kernel counts it for the whole host: {shown}");
    drop(handed_out_after(&pool, Vec::new()));
    drop(listener);
}

#[test]
fn a_gate_without_a_name_server_or_with_rules_does_not_come_back() {
    let pool = SlotPool::start(0).unwrap();
    let claimed = [(); 2].map(|()| pool.claim().unwrap());
    let held = claimed.each_ref().map(|slot| slot.netns.try_clone().unwrap());
    let [without_names, with_rules] = claimed.map(|slot| slot.gate);
    let without_names = Gate { dns: None, ..without_names };
    let with_rules = Gate { steering: Steering::Redirect, ..with_rules };
    let slots = handed_out_after(&pool, vec![without_names, with_rules]);
    for netns in &held {
        assert!(slots.iter().all(|slot| inode(&slot.netns) != inode(netns)));
    }
}

#[test]
fn a_pool_that_goes_closes_the_gates_that_rest() {
    let pool = SlotPool::start(0).unwrap();
    let Slot { netns, gate } = pool.claim().unwrap();
    pool.give_back(gate);
    drop(pool);
    let refused = inside(&netns, || TcpStream::connect("192.0.2.1:80").unwrap_err());
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}
