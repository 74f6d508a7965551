//! Sandboxes begin with a small ring, and a busy one is given a larger one.

use std::process::Child;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::{DEADLINE, Host, Sandbox};
use crate::takeover::{self, Told, words};
use atoll_recorder::event::What;
use atoll_witness::Witness;

const SMALL_BYTES: usize = 64 << 10;
const LARGER_BYTES: usize = 256 << 10;
/// Programs whose records go into a small ring, and are more than may wait there.
const SOME: usize = 60;
/// Programs whose records do not go into a small ring, but into a larger one.
const MANY: usize = 240;

/// Runs programs with the numbers behind `from` up to `to`, one after the other.
fn run(sandbox: &Sandbox, from: usize, to: usize) {
    sandbox.run(&format!("i={from}; while [ $i -lt {to} ]; do i=$((i+1)); /bin/true n$i; done; exit 0"));
}

/// What has to be told of so many programs, which so many shells ran.
fn wanted(programs: usize, shells: usize) -> Told {
    // A shell itself is not forked in its cgroup.
    Told { words: words(programs), starts: programs + shells, forks: programs }
}

fn until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_larger(witness: &Witness, sandbox: &Sandbox) -> bool {
    witness.ring_bytes(&sandbox.id) == Some(LARGER_BYTES)
}

#[test]
fn what_a_small_ring_could_not_take_is_told_whole_and_in_order() {
    let host = Host::new();
    let (witness, sandbox) = (host.witness(), host.parent.sandbox());
    sandbox.watch(&witness);
    assert_eq!(witness.ring_bytes(&sandbox.id), Some(SMALL_BYTES));
    // As when the thread that reads is held up for long.
    host.sink.blind.store(true, Ordering::Release);
    run(&sandbox, 0, SOME);
    until("a larger ring", || is_larger(&witness, &sandbox));
    run(&sandbox, SOME, SOME + MANY);
    assert!(host.sink.of(&sandbox.id).is_empty());
    host.sink.blind.store(false, Ordering::Release);
    let all = 3 * (SOME + MANY) + 2 * 2;
    let events = host.sink.until(&sandbox.id, "the last record", |events| events.len() >= all);
    assert_eq!(Told::by(&events), wanted(SOME + MANY, 2));
    // It goes on with the larger one, and has no third.
    host.sink.blind.store(true, Ordering::Release);
    run(&sandbox, SOME + MANY, SOME + 2 * MANY);
    assert!(is_larger(&witness, &sandbox));
    host.sink.blind.store(false, Ordering::Release);
    witness.forget(&sandbox.id).unwrap();
    assert_eq!(Told::by(&host.sink.of(&sandbox.id)), wanted(SOME + 2 * MANY, 3));
    witness.close();
    assert!(!atoll_witness::is_mounted(&host.place()), "the mount is left");
}

#[test]
fn who_is_busy_while_it_is_read_gets_a_larger_ring_and_who_does_little_keeps_its_small_one() {
    let host = Host::new();
    let (witness, busy, quiet) = (host.witness(), host.parent.sandbox(), host.parent.sandbox());
    busy.watch(&witness);
    quiet.watch(&witness);
    run(&quiet, 0, 5);
    let (end, mut shells) = (Instant::now() + DEADLINE, 0);
    while !is_larger(&witness, &busy) {
        assert!(Instant::now() < end, "it gets no larger ring");
        run(&busy, 0, MANY);
        shells += 1;
    }
    run(&quiet, 5, 10);
    assert_eq!(witness.ring_bytes(&quiet.id), Some(SMALL_BYTES));
    witness.forget(&quiet.id).unwrap();
    assert_eq!(Told::by(&host.sink.of(&quiet.id)), wanted(10, 2));
    witness.forget(&busy.id).unwrap();
    assert_eq!(witness.ring_bytes(&busy.id), None);
    // Nothing is told twice, and nothing is missing that is not counted, however slow this host is.
    let events = host.sink.of(&busy.id);
    let lost = events.iter().filter_map(|event| match &event.what {
        What::Lost(lost) => lost.count,
        _ => None,
    });
    let told = events.iter().filter(|event| !matches!(event.what, What::Lost(_))).count();
    assert_eq!(told as u64 + lost.sum::<u64>(), (shells * (3 * MANY + 2)) as u64);
    witness.close();
}

/// A sandbox that ends while its small ring is still to be read: the records of both are read first.
#[test]
fn a_sandbox_that_ends_while_its_ring_grows_is_told_whole() {
    let host = Host::new();
    let witness = host.witness();
    for _ in 0..4 {
        let sandbox = host.parent.sandbox();
        sandbox.watch(&witness);
        host.sink.blind.store(true, Ordering::Release);
        run(&sandbox, 0, SOME);
        // Now, a bit later, or not yet: whenever the thread gets to it.
        host.sink.blind.store(false, Ordering::Release);
        witness.forget(&sandbox.id).unwrap();
        assert_eq!(Told::by(&host.sink.of(&sandbox.id)), wanted(SOME, 1));
    }
    assert!(witness.sandboxes().is_empty());
    witness.close();
}

/// Runs programs, some at a time, until the server has killed itself; gives how many, and how many shells ran them.
fn run_until_killed(sandbox: &Sandbox, server: &mut Child) -> (usize, usize) {
    let (end, mut shells) = (Instant::now() + DEADLINE, 0);
    while server.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "the server lives");
        run(sandbox, shells * 20, (shells + 1) * 20);
        shells += 1;
    }
    (shells * 20, shells)
}

#[test]
fn a_server_that_is_killed_while_a_ring_grows_loses_nothing_and_repeats_nothing() {
    for failpoint in ["witness::growth::pinned", "witness::growth::replaced", "witness::growth::read"] {
        let host = Host::new();
        let sandbox = host.parent.sandbox();
        let (dir, role) = (host.dir.path(), takeover::role(&host, &sandbox));
        let mut server = takeover::start(&format!("{role}|{failpoint}"), dir);
        let (programs, shells) = run_until_killed(&sandbox, &mut server);
        // While no server is there.
        run(&sandbox, programs, programs + 20);
        let wanted = wanted(programs + 20, shells + 1);
        let mut server = takeover::start(&role, dir);
        let ends = || {
            let events = takeover::read(&dir.join("events"));
            events.iter().filter(|event| matches!(event.what, What::ProcessExited(_))).count()
        };
        until(failpoint, || ends() >= wanted.starts);
        // One more look: what is repeated would come now.
        std::thread::sleep(Duration::from_millis(200));
        server.kill().unwrap();
        server.wait().unwrap();
        assert_eq!(Told::by(&takeover::read(&dir.join("events"))), wanted, "killed at {failpoint}");
    }
}
