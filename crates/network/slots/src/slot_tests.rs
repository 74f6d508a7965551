use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use super::*;
use crate::testing::{inside, through};
use crate::{Gate, Steering, open_gate};

fn refused(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}

#[test]
fn every_tcp_destination_arrives_at_the_gate_with_its_address() {
    let slot = make().expect("network slots need root");
    for to in ["192.0.2.1:80", "10.0.2.2:3128", "10.0.2.3:53", "169.254.169.254:80", "8.8.8.8:65535"] {
        let (_arrived, wanted) = through(&slot.netns, &slot.gate, to);
        assert_eq!(wanted, to.parse().unwrap());
    }
}

#[test]
fn servers_inside_are_reached_inside() {
    let slot = make().unwrap();
    inside(&slot.netns, || {
        for (bind, connect) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("[::1]:0", "[::1]"),
            ("0.0.0.0:0", "127.0.0.1"),
            ("0.0.0.0:0", "10.0.2.15"),
            ("0.0.0.0:80", "127.0.0.1"),
            ("[::]:0", "127.0.0.1"),
        ] {
            let listener = TcpListener::bind(bind).unwrap();
            let port = listener.local_addr().unwrap().port();
            let _client = TcpStream::connect(format!("{connect}:{port}")).unwrap();
            listener.set_nonblocking(true).unwrap();
            listener.accept().expect("it arrives at the server inside, at once");
        }
    });
    // A server inside does not catch connections to the outside.
    let netns = slot.netns.try_clone().unwrap();
    let _listener = inside(&netns, || TcpListener::bind("0.0.0.0:443").unwrap());
    let (_arrived, wanted) = through(&netns, &slot.gate, "192.0.2.1:443");
    assert_eq!(wanted, "192.0.2.1:443".parse().unwrap());
}

#[test]
fn nothing_but_tcp_and_the_resolver() {
    let slot = make().unwrap();
    inside(&slot.netns, || {
        let interfaces = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let names: Vec<_> = interfaces.lines().skip(2).filter_map(|l| l.split(':').next()).collect();
        assert_eq!(names.iter().map(|name| name.trim()).collect::<Vec<_>>(), ["lo"]);
        for to in ["192.0.2.1:443", "8.8.8.8:53", "10.0.2.3:54", "10.0.2.2:53", "255.255.255.255:67"] {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            let sent =
                socket.connect(to).and_then(|()| socket.send(b"x")).and_then(|_| socket.recv(&mut [0]));
            assert!(sent.is_err(), "{to} took UDP");
        }
        assert!(TcpStream::connect("[2001:db8::1]:80").is_err());
    });
    let dns = slot.gate.dns.as_ref().unwrap();
    let socket = inside(&slot.netns, || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect("10.0.2.3:53").unwrap();
        socket.send(b"question").unwrap();
        socket
    });
    let mut buffer = [0; 16];
    dns.set_nonblocking(false).unwrap();
    let (length, from) = dns.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..length], from.ip().to_string().as_str()), (&b"question"[..], "10.0.2.15"));
    dns.send_to(b"answer", from).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(socket.recv(&mut buffer).unwrap(), 6);
}

#[test]
fn without_a_gate_there_is_no_traffic_and_a_new_gate_opens_the_way_again() {
    let Slot { netns, gate } = make().unwrap();
    drop(gate);
    for to in ["192.0.2.1:80", "10.0.2.2:3128"] {
        let error = inside(&netns, move || TcpStream::connect(to).unwrap_err());
        assert!(refused(&error), "{error}");
    }
    // A port that a program inside took meanwhile cannot keep the gate from being opened.
    let _taken = inside(&netns, || TcpListener::bind("0.0.0.0:3128").unwrap());
    let gate = open_gate(netns.as_fd()).unwrap();
    assert!(gate.dns.is_some());
    let (_arrived, wanted) = through(&netns, &gate, "10.0.2.2:3128");
    assert_eq!(wanted, "10.0.2.2:3128".parse().unwrap());
    drop(gate);
    let squatter = inside(&netns, || UdpSocket::bind("0.0.0.0:53").unwrap());
    assert!(open_gate(netns.as_fd()).unwrap().dns.is_none());
    drop(squatter);
    assert!(open_gate(netns.as_fd()).unwrap().dns.is_some());
}

#[test]
fn gates_that_are_opened_at_the_same_time_are_each_in_their_own_namespace() {
    let slots: Vec<OwnedFd> = (0..12).map(|_| make().unwrap().netns).collect();
    let gates: Vec<Gate> = std::thread::scope(|scope| {
        let opened: Vec<_> =
            slots.iter().map(|netns| scope.spawn(move || open_gate(netns.as_fd()).unwrap())).collect();
        opened.into_iter().map(|one| one.join().unwrap()).collect()
    });
    for (netns, gate) in slots.iter().zip(&gates) {
        let (_arrived, wanted) = through(netns, gate, "192.0.2.1:80");
        assert_eq!(wanted, "192.0.2.1:80".parse().unwrap());
    }
}

#[test]
fn the_way_without_bpf_leads_to_the_same_place() {
    // A namespace whose BPF link is cut, with rules instead.
    let Slot { netns, gate } = make().unwrap();
    drop(gate);
    // Twice, as after a restart: the rules of the first gate are still there.
    for _ in 0..2 {
        let gate = inside(&netns, || {
            let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
            crate::redirect::install(tcp.local_addr().unwrap().port()).map(|()| Gate {
                tcp,
                dns: None,
                steering: Steering::Redirect,
            })
        })
        .expect("the package nftables is needed");
        for to in ["192.0.2.1:80", "10.0.2.2:3128"] {
            let (_arrived, wanted) = through(&netns, &gate, to);
            assert_eq!(wanted, to.parse().unwrap());
        }
    }
    assert!(refused(&inside(&netns, || TcpStream::connect("192.0.2.1:80").unwrap_err())));
    inside(&netns, || {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        for host in ["127.0.0.1", "10.0.2.15"] {
            let _client = TcpStream::connect((host, port)).unwrap();
            listener.accept().unwrap();
        }
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let sent = socket
            .connect("192.0.2.1:443")
            .and_then(|()| socket.send(b"x"))
            .and_then(|_| socket.recv(&mut [0]));
        assert!(sent.is_err());
    });
}

#[test]
fn low_ports_need_no_privilege_pings_get_no_answer_and_the_host_is_unchanged() {
    let slot = make().unwrap();
    for (name, inside_it) in [("ip_unprivileged_port_start", "0"), ("icmp_echo_ignore_all", "1")] {
        let path = format!("/proc/sys/net/ipv4/{name}");
        let on_the_host = std::fs::read_to_string(&path).unwrap();
        assert_ne!(on_the_host.trim(), inside_it, "{name}");
        inside(&slot.netns, move || assert_eq!(std::fs::read_to_string(path).unwrap().trim(), inside_it));
    }
    let after = make().unwrap();
    drop((slot, after));
    assert_eq!(std::fs::read_to_string("/proc/sys/net/ipv4/icmp_echo_ignore_all").unwrap().trim(), "0");
}

#[test]
fn slots_are_distinct_and_leave_nothing_behind() {
    let inode = |slot: &Slot| rustix::fs::fstat(&slot.netns).unwrap().st_ino;
    let (a, b) = (make().unwrap(), make().unwrap());
    assert_ne!(inode(&a), inode(&b));
    drop((a, b));
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    for _ in 0..100 {
        drop(make().unwrap());
    }
    // Other tests of this process open some of their own meanwhile.
    assert!(descriptors() < before + 100, "{before} → {}", descriptors());
}
