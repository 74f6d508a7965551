//! Rings that were one sandbox's and are another's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{DEADLINE, Host, Kept, Sandbox};
use atoll_core::id::SandboxId;
use atoll_recorder::event::{Event, What};
use atoll_witness::{Sink, Witness};

/// A sink with which the reading thread stands at one of the loud sandboxes, from when it reads `going` on.
#[derive(Debug)]
struct Slow {
    kept: Kept,
    going: SandboxId,
    loud: Vec<Sandbox>,
    armed: AtomicBool,
    stands: AtomicBool,
}

impl Sink for Slow {
    fn takes(&self, sandbox: &SandboxId) -> bool {
        if *sandbox == self.going && self.armed.swap(false, Ordering::AcqRel) {
            for one in &self.loud {
                one.run("exit 0");
            }
            self.stands.store(true, Ordering::Release);
        }
        true
    }

    fn record(&self, sandbox: &SandboxId, event: Event) {
        // It has an end for a test that failed.
        let end = Instant::now() + DEADLINE;
        let is_loud = self.loud.iter().any(|one| one.id == *sandbox);
        while is_loud && self.stands.load(Ordering::Acquire) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kept.record(sandbox, event);
    }

    fn written(&self, _: &SandboxId) {}

    fn last(&self, sandbox: &SandboxId, max: usize) -> Vec<Event> {
        self.kept.last(sandbox, max)
    }
}

/// More sandboxes than rings are ready, so that one of them gets the ring that was given back last.
fn many(host: &Host, witness: &Witness) -> Vec<Sandbox> {
    let begin = |number| {
        let sandbox = host.parent.sandbox();
        sandbox.watch(witness);
        sandbox.run(&format!("/bin/true of-{number}; exit 0"));
        sandbox
    };
    (0..12).map(begin).collect()
}

/// The thread reads one sandbox after the other, of a list that it makes before. It stands at a loud one, most likely before the
/// place of one that has gone since: what it finds there when it goes on is the next sandbox's.
#[test]
fn a_ring_that_was_given_back_is_not_read_as_its_last_sandboxs() {
    let host = Host::new();
    let (going, loud) = (host.parent.sandbox(), (0..7).map(|_| host.parent.sandbox()).collect());
    let (armed, stands) = (AtomicBool::new(false), AtomicBool::new(false));
    let sink = Arc::new(Slow { kept: Kept::default(), going: going.id.clone(), loud, armed, stands });
    let witness = Witness::open(&host.place(), sink.clone()).unwrap();
    for sandbox in sink.loud.iter().chain([&going]) {
        sandbox.watch(&witness);
    }
    sink.armed.store(true, Ordering::Release);
    witness.forget(&going.id).unwrap();
    let next = many(&host, &witness);
    sink.stands.store(false, Ordering::Release);
    for (number, sandbox) in next.iter().enumerate() {
        witness.forget(&sandbox.id).unwrap();
        let events = sink.kept.of(&sandbox.id);
        let word = format!("of-{number}");
        let is_start = |event: &Event| matches!(&event.what, What::ProcessStarted(started) if started.argv.get(1) == Some(&word));
        assert!(events.iter().any(is_start), "{word} is not in {events:#?}");
    }
    for sandbox in &sink.loud {
        witness.forget(&sandbox.id).unwrap();
    }
    witness.close();
}
