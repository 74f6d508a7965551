//! The programs against this host's kernel: what processes in a cgroup do, and what is said of it.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use crate::common::Host;
use atoll_recorder::event::{Event, Origin, Process, Transport, What, Witness as Who};

fn ended(events: &[Event], code: i32) -> bool {
    events.iter().any(|e| matches!(&e.what, What::ProcessExited(exit) if exit.code == Some(code)))
}

fn starts(events: &[Event]) -> Vec<(Process, &atoll_recorder::event::ProcessStarted)> {
    events
        .iter()
        .filter_map(|event| match &event.what {
            What::ProcessStarted(started) => Some((event.process.unwrap(), started)),
            _ => None,
        })
        .collect()
}

#[test]
fn processes_are_told_with_arguments_parents_and_ends() {
    let host = Host::new();
    let (witness, sandbox) = (host.witness(), host.parent.sandbox());
    sandbox.watch(&witness);
    sandbox.run("cd /usr/share; /usr/bin/env A=1 cat /etc/hostname 'two words' >/dev/null 2>&1; (exit 7); /usr/bin/sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; kill -9 $$'; exit 0");
    let events =
        host.sink.until(&sandbox.id, "the shell's end", |events| ended(events, 0) && ended(events, 7));
    assert!(events.iter().all(|event| event.witness == Who::Host && event.at_us > 1_600_000_000_000_000));
    let starts = starts(&events);
    let find = |name: &str| {
        starts.iter().find(|(_, s)| s.path.ends_with(name)).unwrap_or_else(|| panic!("{name}: {starts:#?}"))
    };
    let (shell, _) = starts[0];
    let (env, started) = find("/env");
    assert_eq!(started.argv, ["/usr/bin/env", "A=1", "cat", "/etc/hostname", "two words"]);
    assert_eq!(started.cwd, "/usr/share");
    assert_eq!((started.uid, started.cut), (0, false));
    assert_eq!(started.parent, Some(shell));
    let file = started.file.as_ref().unwrap();
    let path = std::fs::canonicalize("/usr/bin/env").unwrap();
    let meta = std::fs::metadata(&path).unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!((file.device, file.inode), (meta.dev(), meta.ino()));
    let digest = format!("blake3:{}", blake3::hash(&std::fs::read(&path).unwrap()));
    assert_eq!(file.digest.as_deref(), Some(digest.as_str()));
    // The same process, another program.
    let (cat, started) = find("/cat");
    assert_eq!((cat, started.argv[0].as_str()), (env, "cat"));
    let forked =
        events.iter().filter(|e| matches!(e.what, What::ProcessForked { parent } if parent == shell)).count();
    assert_eq!(forked, 3, "{events:#?}");
    let (killed, _) =
        starts.iter().find(|(_, s)| s.argv.last().is_some_and(|last| last.starts_with("i=0"))).unwrap();
    let end = events
        .iter()
        .find(|e| e.process == Some(*killed) && matches!(e.what, What::ProcessExited(_)))
        .unwrap();
    let What::ProcessExited(end) = &end.what else { panic!() };
    assert_eq!((end.code, end.signal), (None, Some(9)));
    // The kernel adds up processor time at its ticks: of a process that ended between two it says nothing.
    assert!(end.cpu_us > 1000, "{end:?}");
    let end =
        events.iter().find(|e| e.process == Some(*cat) && matches!(e.what, What::ProcessExited(_))).unwrap();
    let What::ProcessExited(end) = &end.what else { panic!() };
    assert!(end.memory_peak_bytes > 100_000, "{end:?}");
    witness.forget(&sandbox.id).unwrap();
    witness.close();
    assert!(!atoll_witness::is_mounted(&host.place()), "the mount is left");
}

#[test]
fn long_arguments_are_cut_and_deep_directories_too() {
    let host = Host::new();
    let (witness, sandbox) = (host.witness(), host.parent.sandbox());
    sandbox.watch(&witness);
    let deep = host.dir.path().join("d".repeat(200)).join("e".repeat(200)).join("f/".repeat(60));
    std::fs::create_dir_all(&deep).unwrap();
    sandbox.run(&format!("cd {}; /bin/true $(seq 1 5000); exit 0", deep.display()));
    let events = host
        .sink
        .until(&sandbox.id, "true", |events| starts(events).iter().any(|(_, s)| s.path.ends_with("/true")));
    let starts = starts(&events);
    let (_, started) = starts.iter().find(|(_, s)| s.path.ends_with("/true")).unwrap();
    assert!(started.cut);
    assert_eq!(started.argv[..3], ["/bin/true", "1", "2"]);
    assert!(started.cwd.ends_with("/f/f/f"), "{}", started.cwd);
    witness.forget(&sandbox.id).unwrap();
    witness.close();
}

const NETWORK: &str = "
import socket, subprocess, os
subprocess.run(['ip', 'link', 'set', 'lo', 'up'], check=True)
server = socket.create_server(('127.0.0.1', 8123)); six = socket.create_server(('::1', 8124), family=socket.AF_INET6)
pid = os.fork()
if pid == 0:
    for address in [('127.0.0.1', 8123), ('::1', 8124)]: socket.create_connection(address).close()
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.connect(('127.0.0.1', 53))
    try: socket.create_connection(('127.0.0.1', 9))
    except ConnectionRefusedError: pass
    try: socket.create_connection(('192.0.2.1', 80))
    except OSError: pass
    os._exit(0)
server.accept(); six.accept(); os.waitpid(pid, 0)
";

#[test]
fn connections_are_told_by_both_ends() {
    let host = Host::new();
    let (witness, sandbox) = (host.witness(), host.parent.sandbox());
    sandbox.watch(&witness);
    let script = host.dir.path().join("network.py");
    std::fs::write(&script, NETWORK).unwrap();
    sandbox.run(&format!("python3 {}; exit 0", script.display()));
    let events = host.sink.until(&sandbox.id, "the last connection", |events| {
        events.iter().filter(|e| matches!(e.what, What::Connect(_))).count() >= 5 && ended(events, 0)
    });
    let mut connects = Vec::new();
    let (mut listens, mut accepts) = (Vec::new(), Vec::new());
    for event in &events {
        match &event.what {
            What::Connect(s) => connects.push((s.protocol, s.peer.unwrap(), event.process.unwrap())),
            What::Listen(s) => listens.push((s.local.unwrap(), event.process.unwrap())),
            What::Accept(s) => accepts.push((s.local.unwrap(), s.peer.unwrap().ip(), event.process.unwrap())),
            _ => {}
        }
    }
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let to: Vec<_> = connects.iter().map(|(protocol, peer, _)| (*protocol, *peer)).collect();
    let (v4, v6) = (address("127.0.0.1:8123"), address("[::1]:8124"));
    let wanted = [
        (Transport::Tcp, v4),
        (Transport::Tcp, v6),
        (Transport::Udp, address("127.0.0.1:53")),
        (Transport::Tcp, address("127.0.0.1:9")),
        (Transport::Tcp, address("192.0.2.1:80")),
    ];
    assert_eq!(to, wanted);
    let server = listens[0].1;
    assert_eq!(listens, [(v4, server), (v6, server)]);
    assert_eq!(accepts, [(v4, v4.ip(), server), (v6, v6.ip(), server)]);
    assert!(connects.iter().all(|(_, _, process)| *process != server));
    witness.forget(&sandbox.id).unwrap();
    witness.close();
}

#[test]
fn what_is_written_is_told_from_what_was_there() {
    let host = Host::new();
    let (witness, sandbox) = (host.witness(), host.parent.sandbox());
    sandbox.watch(&witness);
    let copy = host.dir.path().join("copy");
    std::fs::copy("/bin/true", &copy).unwrap();
    sandbox.run(&format!("{}; /bin/true; exit 0", copy.display()));
    let events = host.sink.until(&sandbox.id, "the end", |events| {
        starts(events).iter().filter(|(_, s)| s.path.ends_with("true") || s.path.ends_with("/copy")).count()
            == 2
    });
    for (_, started) in starts(&events) {
        let file = started.file.as_ref().unwrap();
        // Nothing here is mounted read-only: that it lies on the device of what is bound is not enough.
        assert_eq!(file.origin, Origin::Other, "{started:?}");
    }
    witness.forget(&sandbox.id).unwrap();
    witness.close();
}

#[test]
fn sandboxes_do_not_see_each_other_and_nobody_is_watched_outside() {
    let host = Host::new();
    let (witness, one, two) = (host.witness(), host.parent.sandbox(), host.parent.sandbox());
    let unwatched = host.parent.sandbox();
    one.watch(&witness);
    two.watch(&witness);
    unwatched.run("/bin/true unwatched; exit 0");
    std::process::Command::new("/bin/true").arg("outside").status().unwrap();
    one.run("/bin/true of-one; exit 0");
    two.run("/bin/true of-two; exit 0");
    let words = |events: &[Event]| -> Vec<String> {
        starts(events)
            .iter()
            .filter_map(|(_, s)| s.argv.get(1).cloned())
            .filter(|w| !w.starts_with('-'))
            .collect()
    };
    for (sandbox, word) in [(&one, "of-one"), (&two, "of-two")] {
        let events =
            host.sink.until(&sandbox.id, word, |events| ended(events, 0) && !words(events).is_empty());
        assert_eq!(words(&events), [word]);
    }
    assert!(host.sink.of(&unwatched.id).is_empty());
    witness.forget(&one.id).unwrap();
    // A slot is used again, and tells nothing of the sandbox that had it before.
    let three = host.parent.sandbox();
    three.watch(&witness);
    three.run("/bin/true of-three; exit 0");
    let events = host.sink.until(&three.id, "of-three", |events| !words(events).is_empty());
    assert_eq!(words(&events), ["of-three"]);
    for sandbox in [&two, &three] {
        witness.forget(&sandbox.id).unwrap();
    }
    witness.close();
}

#[test]
fn slots_that_are_used_again_and_again_tell_of_their_last_sandbox_only() {
    let host = Host::new();
    let witness = host.witness();
    // More than are kept ready and mapped together: some of them get the slot of one before.
    for round in 0..16 {
        let sandbox = host.parent.sandbox();
        sandbox.watch(&witness);
        sandbox.run(&format!("/bin/true of-{round}; exit 0"));
        witness.forget(&sandbox.id).unwrap();
        let events = host.sink.of(&sandbox.id);
        let words: Vec<_> = starts(&events).iter().filter_map(|(_, s)| s.argv.get(1).cloned()).collect();
        let words: Vec<_> = words.iter().filter(|word| word.starts_with("of-")).collect();
        assert_eq!(words, [&format!("of-{round}")]);
        assert!(ended(&events, 0), "{events:#?}");
    }
    assert!(witness.sandboxes().is_empty());
    witness.close();
}

#[test]
fn who_floods_loses_its_own_and_the_gap_has_a_count() {
    let host = Host::new();
    let (witness, loud, quiet) = (host.witness(), host.parent.sandbox(), host.parent.sandbox());
    loud.watch(&witness);
    quiet.watch(&witness);
    // As when the server is away for long.
    host.sink.blind.store(true, Ordering::Release);
    let words = "x".repeat(4000);
    loud.run(&format!("i=0; while [ $i -lt 1500 ]; do i=$((i+1)); /bin/true {words}; done; exit 0"));
    quiet.run("/bin/true quiet; exit 0");
    host.sink.blind.store(false, Ordering::Release);
    let lost = |events: &[Event]| -> u64 {
        let counts = events.iter().filter_map(|e| match &e.what {
            What::Lost(lost) => lost.count,
            _ => None,
        });
        counts.sum()
    };
    let events = host.sink.until(&loud.id, "the gap", |events| lost(events) > 0);
    let told = events.iter().filter(|e| !matches!(e.what, What::Lost(_))).count() as u64;
    // 1,500 of each, and the shell itself, which is not forked in its cgroup.
    assert_eq!(told + lost(&events), 3 * 1500 + 2, "{told} told, {} lost", lost(&events));
    let events = host.sink.until(&quiet.id, "its end", |events| ended(events, 0));
    assert_eq!((lost(&events), starts(&events).len()), (0, 2));
    for sandbox in [&loud, &quiet] {
        witness.forget(&sandbox.id).unwrap();
    }
    witness.close();
}
