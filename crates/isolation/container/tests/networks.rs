//! The network namespace of a container that has ended is another's when nothing was done in it, and only then.
#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

mod common;

use std::sync::Arc;

use atoll_core::id::VolumeId;
use atoll_core::spec::Resources;
use atoll_isolation::conformance::{Sandbox, eventually, plan};
use atoll_isolation::{Gate, Isolation, Plan, PlannedVolume, RootFs};
use atoll_network::{Slot, SlotPool};
use common::{Containers, containers};

/// Counters of a namespace, which a program inside can read.
const COUNTERS: &str = "cat /proc/net/dev /proc/net/snmp /proc/net/netstat /proc/net/snmp6 /proc/net/igmp";
const TO_THE_OUTSIDE: &str =
    "perl -MIO::Socket::INET -e 'IO::Socket::INET->new(PeerAddr => \"192.0.2.1:80\") or die \"connect: $@\"'";

/// A driver whose slots the test sees. None are made ahead: what is ready came back, or is what it was compared with.
struct Host {
    driver: Arc<dyn Isolation>,
    slots: Arc<SlotPool>,
    volumes: Arc<dyn atoll_isolation::volumes::Volumes>,
    _harness: Containers,
}

impl Host {
    fn new() -> Self {
        let slots = Arc::new(SlotPool::start(0).unwrap());
        let mut harness = containers();
        harness.slots = Some(Arc::clone(&slots));
        let driver = harness.driver();
        Self { volumes: Arc::new(driver.volumes()), driver: Arc::new(driver), slots, _harness: harness }
    }

    async fn create(&self, plan: Plan) -> Sandbox {
        self.driver.create(&plan).await.unwrap();
        Sandbox::connect(Arc::clone(&self.driver), plan.id).await
    }

    async fn gate(&self, sandbox: &Sandbox) -> Gate {
        self.driver.gate(&sandbox.id).await.unwrap()
    }

    /// Waits until so many slots are ready.
    async fn ready(&self, count: usize) {
        let slots = &self.slots;
        eventually("slots are used again", || async move { (slots.ready() == count).then_some(()) }).await;
    }

    /// Ends sandboxes, and then another one in which nothing was done; the namespaces that the pool has when that one has
    /// come back, which is looked at as the last.
    async fn used_again(&self, sandboxes: Vec<Sandbox>) -> Vec<u64> {
        let last = self.create(a_plan()).await;
        let untouched = namespace(&last).await;
        for sandbox in sandboxes.into_iter().chain([last]) {
            sandbox.destroy().await;
        }
        let mut slots: Vec<Slot> = Vec::new();
        eventually("an untouched namespace is used again", || {
            while self.slots.ready() > 0 {
                slots.push(self.slots.claim().unwrap());
            }
            std::future::ready(slots.iter().map(number).any(|one| one == untouched).then_some(()))
        })
        .await;
        slots.iter().map(number).collect()
    }
}

fn a_plan() -> Plan {
    plan(RootFs::Host, Resources::default())
}

fn number(slot: &Slot) -> u64 {
    rustix::fs::fstat(&slot.netns).unwrap().st_ino
}

/// The number of a sandbox's network namespace.
async fn namespace(sandbox: &Sandbox) -> u64 {
    let link = sandbox.see("readlink /proc/self/ns/net").await;
    link.strip_prefix("net:[").and_then(|rest| rest.strip_suffix(']')).unwrap().parse().unwrap()
}

/// What the gateway does when it lets go of a sandbox.
fn let_go(mut gate: Gate) {
    let keeper = gate.keeper.take().expect("the gate has a keeper");
    keeper.take_back(gate);
}

#[tokio::test]
async fn the_next_one_has_the_namespace_of_one_that_did_nothing_and_finds_it_new() {
    let host = Host::new();
    let first = host.create(a_plan()).await;
    let used = namespace(&first).await;
    let_go(host.gate(&first).await);
    first.destroy().await;
    host.ready(2).await;

    let second = host.create(a_plan()).await;
    assert_eq!(namespace(&second).await, used);
    let other = host.create(a_plan()).await;
    assert_ne!(namespace(&other).await, used);
    assert_eq!(second.see(COUNTERS).await, other.see(COUNTERS).await);
    let gate = host.gate(&second).await;
    second.see(TO_THE_OUTSIDE).await;
    let (arrived, _) = gate.tcp.accept().unwrap();
    assert_eq!(arrived.local_addr().unwrap(), "192.0.2.1:80".parse().unwrap());
    drop(arrived);
    let_go(gate);
    second.destroy().await;
    other.destroy().await;
    // That of the other one; the second one's has a connection behind it.
    host.ready(1).await;
    assert_ne!(number(&host.slots.claim().unwrap()), used);
}

#[tokio::test]
async fn it_does_not_matter_when_the_gate_comes_back() {
    let host = Host::new();
    let (never_asked, before, after) =
        (host.create(a_plan()).await, host.create(a_plan()).await, host.create(a_plan()).await);
    let mut used = Vec::new();
    for sandbox in [&never_asked, &before, &after] {
        used.push(namespace(sandbox).await);
    }
    let_go(host.gate(&before).await);
    let gate = host.gate(&after).await;
    after.destroy().await;
    let_go(gate);
    let again = host.used_again(vec![never_asked, before]).await;
    assert!(used.iter().all(|one| again.contains(one)), "{used:?} of {again:?}");
}

#[tokio::test]
async fn nobody_has_the_namespace_of_one_that_used_its_network() {
    let inside = "perl -MIO::Socket::INET -e '\
        $s = IO::Socket::INET->new(Listen => 1, LocalAddr => \"127.0.0.1:80\") or die \"listen: $@\"; \
        $c = IO::Socket::INET->new(PeerAddr => \"127.0.0.1:80\") or die \"connect: $@\"'";
    let datagram = "perl -MIO::Socket::INET -e '\
        $s = IO::Socket::INET->new(Proto => \"udp\", PeerAddr => \"10.0.2.3:53\") or die \"socket: $@\"; \
        $s->send(\"x\") or die \"send: $!\"'";
    let refused =
        "perl -MIO::Socket::INET -e 'exit(IO::Socket::INET->new(PeerAddr => \"127.0.0.1:9\") ? 1 : 0)'";
    let host = Host::new();
    let (mut sandboxes, mut used) = (Vec::new(), Vec::new());
    for script in [TO_THE_OUTSIDE, inside, datagram, refused] {
        let sandbox = host.create(a_plan()).await;
        sandbox.see(script).await;
        used.push((script, namespace(&sandbox).await));
        sandboxes.push(sandbox);
    }
    let again = host.used_again(sandboxes).await;
    for (script, one) in used {
        assert!(!again.contains(&one), "{script}");
    }
}

#[tokio::test]
async fn connections_arrive_at_the_newer_gate_when_the_older_one_came_back() {
    let host = Host::new();
    let sandbox = host.create(a_plan()).await;
    let first = host.gate(&sandbox).await;
    let second = host.gate(&sandbox).await;
    assert!(second.keeper.is_none());
    let_go(first);
    sandbox.see(TO_THE_OUTSIDE).await;
    second.tcp.accept().unwrap();
    sandbox.destroy().await;
}

#[tokio::test]
async fn nobody_has_the_namespace_of_one_that_shared_a_volume() {
    let host = Host::new();
    let volume = VolumeId::from_parts(1 << 40, u64::from(std::process::id()));
    host.volumes.create(&volume, 64 << 20).await.unwrap();
    let shared = PlannedVolume {
        id: volume.clone(),
        path: "/data".to_owned(),
        read_only: false,
        subpath: None,
        make: true,
    };
    let (mut sandboxes, mut used) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let sandbox = host.create(Plan { volumes: vec![shared.clone()], ..a_plan() }).await;
        used.push(namespace(&sandbox).await);
        sandboxes.push(sandbox);
    }
    // Of the other one the gate was never asked for: the driver has it until the end.
    assert!(host.gate(&sandboxes[0]).await.keeper.is_none());
    let again = host.used_again(sandboxes).await;
    assert!(used.iter().all(|one| !again.contains(one)), "{used:?} of {again:?}");
    eventually("the volume is removed", || async { host.volumes.remove(&volume).await.ok() }).await;
}
