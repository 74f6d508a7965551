//! Where a level keeps memory in artifacts: copies of a sandbox with everything that ran in it.

use std::collections::BTreeSet;

use atoll_core::id::ExecId;
use atoll_core::spec::Resources;
use atoll_guest_protocol::client::{ExecEvent, ExecStream};
use atoll_guest_protocol::messages::AttachExec;

use super::snapshots::fresh_snapshot;
use super::{DEADLINE, Harness, Sandbox, chain, eventually, plan};
use crate::{CarriedExec, DiskSource, IsolationError, Plan};

/// A process that counts, in memory and in a file in memory, and never twice the same.
const COUNT: &str = "i=0; while :; do i=$((i+1)); echo $i >> /dev/shm/count; sleep 0.02; done";
/// How far it has counted, if it never lost its place: every line is the one before plus one.
const COUNTED: &str =
    "awk '$1 != NR { print \"line \" NR \" is \" $1; exit 1 } END { print NR }' /dev/shm/count";
/// A command that writes for as long as its output is taken.
const FLOOD: &str = "echo $$ > /dev/shm/flooding; x=$(head -c 8000 /dev/zero | tr '\\0' x); i=0; while :; do i=$((i+1)); echo $x; echo $i > /dev/shm/flood; done";
/// More lines of it than any window and pipe hold.
const FLOOD_LINES: u64 = 300;
/// A command that a child takes over: it writes one line before the copy, and one when the test tells it to.
const SAY: &str = "echo first; until test -e /dev/shm/go; do sleep 0.05; done; echo second; exit 7";
/// What it says first.
const FIRST: &str = "first\n";
/// Shows the sandbox's names, and random numbers that it draws.
const WHO: &str =
    "hostname; cat /etc/hostname; head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid";

async fn count(sandbox: &Sandbox) -> u64 {
    sandbox.see(COUNTED).await.parse().unwrap()
}

/// Every process in a copy goes on from the moment of the copy, in a sandbox of another name; parent and children go
/// their own ways.
pub async fn copies_what_ran(harness: &dyn Harness) {
    let resources = Resources { memory_bytes: 128 << 20, disk_bytes: 256 << 20, ..Resources::default() };
    let parent = Sandbox::create(harness, resources).await;
    let (driver, artifact) = (parent.driver.clone(), fresh_snapshot());
    parent.see("echo one > /root/file; echo one > /dev/shm/file").await;
    let counting = parent.start("ex-count", "user", COUNT).await;
    let flooding = parent.start("ex-flood", "root", FLOOD).await;
    eventually("it counts", || async {
        (parent.run("test -s /dev/shm/count -a -s /dev/shm/flood").await.code == 0).then_some(())
    })
    .await;
    let (was, is) = (ExecId::from_parts(1, 1), ExecId::from_parts(2, 2));
    let mut saying = parent.start(was.as_str(), "root", SAY).await;
    assert_eq!(said(&mut saying).await, FIRST);
    drop(saying);
    let before = count(&parent).await;
    let taken = match driver.snapshot_with_memory(&parent.id, &artifact).await {
        Ok(taken) => taken,
        Err(IsolationError::Unavailable(why)) => {
            assert!(why.contains("memory"), "{why}");
            driver.remove_artifact(&artifact).await.unwrap();
            return parent.destroy().await;
        }
        Err(error) => panic!("{}", chain(&error)),
    };
    assert!(taken.usage.stored_bytes > 1 << 20 && taken.usage.disk_bytes == resources.disk_bytes);
    // Tidying the artifact's disk must not touch the one that the memory knows.
    driver.seal_artifact(&artifact).await.unwrap();
    let after = count(&parent).await;
    eventually("the parent goes on", || async { (count(&parent).await > after).then_some(()) }).await;
    parent.see("echo two > /root/file; sync").await;

    let (mut children, mut seen) = (Vec::new(), BTreeSet::new());
    seen.insert(parent.see(WHO).await);
    for (number, carried) in [None, Some(CarriedExec { was, is: is.clone() })].into_iter().enumerate() {
        let plan = Plan {
            disk: DiskSource::WithMemory(artifact.clone(), carried.clone()),
            hostname: format!("child-{number}"),
            ..plan(harness.root(), resources)
        };
        driver.create(&plan).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
        let child = Sandbox::connect(driver.clone(), plan.id).await;
        assert_ne!(child.welcome.boot_id, parent.welcome.boot_id);
        let execs = child.guest.list_execs().await.unwrap();
        assert_eq!(execs.len(), usize::from(carried.is_some()), "it has execs of its parent: {execs:?}");
        if carried.is_some() {
            takes_over(&child, &is).await;
        }
        let who = child.see(WHO).await;
        assert!(who.starts_with(&format!("child-{number}\nchild-{number}\n")), "{who}");
        for line in who.lines().skip(2) {
            assert!(seen.insert(line.to_owned()), "two draw the same: {line}");
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let inside: u64 = child.see("date +%s").await.parse().unwrap();
        assert!(now.abs_diff(inside) < 60, "it is {inside} inside and {now} outside");
        assert_eq!(child.see("cat /root/file /dev/shm/file").await, "one\none");
        children.push(child);
    }
    for (number, child) in children.iter().enumerate() {
        let reached = count(child).await;
        assert!(reached >= before, "it counted to {before} and is at {reached}");
        eventually("a child goes on", || async { (count(child).await > reached).then_some(()) }).await;
        // More than any window holds: no client takes it, and the command does not wait. The file is empty while it is
        // written anew.
        let flooded = async || child.see("cat /dev/shm/flood").await.parse::<u64>().ok();
        let flood = eventually("it has written", || async { flooded().await }).await + FLOOD_LINES;
        eventually("what nobody reads is thrown away", || async {
            flooded().await.filter(|now| *now > flood).map(drop)
        })
        .await;
        // They are processes like any other.
        child.see(&format!("kill $(cat /dev/shm/flooding); echo child {number} > /root/file; sync")).await;
    }
    drop((counting, flooding));
    parent.destroy().await;
    driver.remove_artifact(&artifact).await.unwrap();
    let Some(first) = children.pop() else { panic!("there are two") };
    first.destroy().await;
    for (number, child) in children.into_iter().enumerate() {
        let reached = count(&child).await;
        eventually("it goes on alone", || async { (count(&child).await > reached).then_some(()) }).await;
        assert_eq!(child.see("cat /root/file").await, format!("child {number}"));
        child.destroy().await;
    }
}

/// The next thing that an exec says; it is acknowledged.
async fn said(stream: &mut ExecStream) -> String {
    let event = tokio::time::timeout(DEADLINE, stream.next()).await.expect("it says something").unwrap();
    let Some(ExecEvent::Output { bytes, .. }) = event else { panic!("{event:?}") };
    // Closed when the exec has ended meanwhile, which means nothing.
    drop(stream.ack(stream.offset).await);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The exec of the parent goes on as one of the child, at the offset where the parent's host was.
async fn takes_over(child: &Sandbox, exec: &ExecId) {
    let offset = u64::try_from(FIRST.len()).unwrap();
    let attach = AttachExec { exec_id: exec.to_string(), offset };
    let mut saying = child.guest.attach_exec(attach).await.unwrap();
    child.see("touch /dev/shm/go").await;
    assert_eq!(said(&mut saying).await, "second\n");
    let end = saying.next().await.unwrap();
    assert!(matches!(&end, Some(ExecEvent::Exited(exited)) if exited.code == Some(7)), "{end:?}");
    child.guest.forget_exec(exec.as_str()).await.unwrap();
}

/// What has no memory, or is of another size, is refused and leaves nothing.
pub async fn what_has_no_memory_is_refused(harness: &dyn Harness) {
    let resources = Resources { memory_bytes: 128 << 20, disk_bytes: 256 << 20, ..Resources::default() };
    let parent = Sandbox::create(harness, resources).await;
    let (driver, disk, memory) = (parent.driver.clone(), fresh_snapshot(), fresh_snapshot());
    driver.snapshot(&parent.id, &disk).await.unwrap();
    let mut plans = vec![(&disk, resources)];
    if driver.snapshot_with_memory(&parent.id, &memory).await.is_ok() {
        plans.push((&memory, Resources { memory_bytes: 1 << 30, ..resources }));
        plans.push((&memory, Resources { disk_bytes: 512 << 20, ..resources }));
    }
    for (artifact, resources) in plans {
        let plan =
            Plan { disk: DiskSource::WithMemory(artifact.clone(), None), ..plan(harness.root(), resources) };
        let refused = driver.create(&plan).await;
        let expected = matches!(
            refused,
            Err(IsolationError::BadArtifact(_)
                | IsolationError::Unenforceable(_)
                | IsolationError::Unavailable(_))
        );
        assert!(expected, "{refused:?}");
        driver.destroy(&plan.id).await.unwrap();
        super::assert_clean(&*driver, &plan.id).await;
    }
    // Its disk is one like any other.
    let plan = Plan { disk: DiskSource::Artifact(disk.clone()), ..plan(harness.root(), resources) };
    driver.create(&plan).await.unwrap();
    driver.destroy(&plan.id).await.unwrap();
    parent.destroy().await;
    for artifact in [disk, memory] {
        driver.remove_artifact(&artifact).await.unwrap();
    }
}
