//! Snapshots of live sandboxes, and sandboxes made from them.

use std::hash::{BuildHasher, RandomState};

use atoll_core::id::SnapshotId;
use atoll_core::spec::Resources;

use super::{Harness, Sandbox, assert_gone, chain, fresh_id, plan};
use crate::{DiskSource, IsolationError, Plan};

/// An id that no other test uses.
pub(super) fn fresh_snapshot() -> SnapshotId {
    SnapshotId::from_parts(1, RandomState::new().hash_one("snapshot"))
}

fn from(harness: &dyn Harness, artifact: &SnapshotId, resources: Resources) -> Plan {
    Plan { disk: DiskSource::Artifact(artifact.clone()), ..plan(harness.root(), resources) }
}

const SMALL: u64 = 64 << 20;

/// A sandbox made from a snapshot has what the other had then, and each goes its own way.
pub async fn copies_what_was_there(harness: &dyn Harness) {
    let parent = Sandbox::create(harness, Resources::default()).await;
    let (driver, artifact) = (parent.driver.clone(), fresh_snapshot());
    parent
        .see("mkdir -p /home/user/d && echo one > /home/user/d/f && chown -R user /home/user/d && rm /etc/profile")
        .await;
    let taken = driver.snapshot(&parent.id, &artifact).await.unwrap();
    assert!(taken.usage.stored_bytes > 0 && taken.usage.disk_bytes == Resources::default().disk_bytes);
    assert_eq!(driver.artifacts().await.unwrap(), std::slice::from_ref(&artifact));
    parent.see("echo two > /home/user/d/f; echo late > /home/user/late").await;

    let plan = from(harness, &artifact, Resources::default());
    driver.create(&plan).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let child = Sandbox::connect(driver.clone(), plan.id).await;
    let look =
        "cat /home/user/d/f; stat -c %U /home/user/d/f; ls /etc/profile /home/user/late 2>/dev/null; echo .";
    assert_eq!(child.see(look).await, "one\nuser\n.");
    child.see("echo three > /home/user/d/f; echo mine > /home/user/mine").await;
    assert_eq!(parent.see("cat /home/user/d/f; ls /home/user").await, "two\nd\nlate");
    parent.destroy().await;
    // What is made from a snapshot does not need it.
    driver.remove_artifact(&artifact).await.unwrap();
    driver.remove_artifact(&artifact).await.unwrap();
    assert!(driver.artifacts().await.unwrap().is_empty());
    assert_eq!(child.see("cat /home/user/d/f").await, "three");
    child.destroy().await;
}

/// A sandbox gets the disk of a snapshot itself: the snapshot has none afterwards, and can be removed.
pub async fn moves_what_nothing_else_needs(harness: &dyn Harness) {
    let parent = Sandbox::create(harness, Resources::default()).await;
    let (driver, artifact) = (parent.driver.clone(), fresh_snapshot());
    parent.see("echo one > /home/f").await;
    driver.snapshot(&parent.id, &artifact).await.unwrap();
    parent.see("echo two > /home/f").await;
    let resources = Resources { disk_bytes: Resources::default().disk_bytes + SMALL, ..Resources::default() };
    let moved = Plan { disk: DiskSource::Moved(artifact.clone()), ..plan(harness.root(), resources) };
    driver.create(&moved).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let child = Sandbox::connect(driver.clone(), moved.id.clone()).await;
    assert_eq!(child.see("cat /home/f; echo three > /home/f").await, "one");
    assert_eq!(parent.see("cat /home/f").await, "two");
    let again = Plan { id: fresh_id(), ..moved };
    assert!(matches!(driver.create(&again).await, Err(IsolationError::NoArtifact)));
    driver.destroy(&again.id).await.unwrap();
    driver.remove_artifact(&artifact).await.unwrap();
    assert!(driver.artifacts().await.unwrap().is_empty());
    assert_eq!(child.see("cat /home/f").await, "three");
    child.destroy().await;
    parent.destroy().await;
}

/// The snapshot is of one moment, also while a process writes, and the writer goes on.
pub async fn is_of_one_moment(harness: &dyn Harness) {
    let parent = Sandbox::create(harness, Resources::default()).await;
    let driver = parent.driver.clone();
    // The second file never has more lines than the first, at any moment.
    let write = "i=0; while :; do i=$((i+1)); echo $i >> /home/a; echo $i >> /home/b; done";
    drop(parent.start("ex-writer", "root", write).await);
    super::eventually("something is written", || async {
        (parent.run("test -s /home/b").await.code == 0).then_some(())
    })
    .await;
    let mut last = 0;
    for _ in 0..3 {
        let artifact = fresh_snapshot();
        driver.snapshot(&parent.id, &artifact).await.unwrap();
        let plan = from(harness, &artifact, Resources::default());
        driver.create(&plan).await.unwrap();
        let child = Sandbox::connect(driver.clone(), plan.id).await;
        let counts = child.see("tail -n1 /home/a; wc -l < /home/a; wc -l < /home/b").await;
        let counts: Vec<u64> = counts.split_whitespace().map(|count| count.parse().unwrap()).collect();
        let [line, first, second] = counts[..] else { panic!("{counts:?}") };
        assert!(line == first && first - second <= 1 && first >= last, "{counts:?} after {last}");
        last = first;
        child.destroy().await;
        driver.remove_artifact(&artifact).await.unwrap();
    }
    let before: u64 = parent.see("wc -l < /home/a").await.parse().unwrap();
    super::eventually("the writer goes on", || async {
        (parent.see("wc -l < /home/a").await.parse::<u64>().unwrap() > before).then_some(())
    })
    .await;
    parent.destroy().await;
}

/// The disk of a sandbox from a snapshot has the size that was asked for, and no less than the snapshot's.
pub async fn the_disk_grows_and_does_not_shrink(harness: &dyn Harness) {
    let small = Resources { disk_bytes: SMALL, ..Resources::default() };
    let parent = Sandbox::create(harness, small).await;
    let (driver, artifact) = (parent.driver.clone(), fresh_snapshot());
    parent.see("echo kept > /home/f").await;
    driver.snapshot(&parent.id, &artifact).await.unwrap();
    parent.destroy().await;
    let larger = from(harness, &artifact, Resources { disk_bytes: 8 * SMALL, ..Resources::default() });
    driver.create(&larger).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let child = Sandbox::connect(driver.clone(), larger.id).await;
    let size: u64 = child.see("df -k / | tail -n1 | awk '{print $2}'").await.parse().unwrap();
    assert!(size * 1024 > 6 * SMALL && size * 1024 <= 8 * SMALL, "{size}");
    assert_eq!(child.see("cat /home/f; head -c 200M /dev/zero > /home/x && echo fits").await, "kept\nfits");
    let full = child.run("head -c 800M /dev/zero > /home/y").await;
    assert!(full.code != 0 && full.stderr.contains("No space left"), "{full:?}");
    child.destroy().await;
    let smaller = from(harness, &artifact, Resources { disk_bytes: SMALL / 2, ..Resources::default() });
    assert!(driver.create(&smaller).await.is_err());
    driver.destroy(&smaller.id).await.unwrap();
    driver.remove_artifact(&artifact).await.unwrap();
}

/// A sandbox gets back what it had, under the same id, and what ran in it does not run any more.
pub async fn goes_back_to_a_snapshot(harness: &dyn Harness) {
    let sandbox = Sandbox::create(harness, Resources::default()).await;
    let (driver, id, artifact) = (sandbox.driver.clone(), sandbox.id.clone(), fresh_snapshot());
    sandbox.see("echo before > /home/f").await;
    driver.snapshot(&id, &artifact).await.unwrap();
    sandbox.see("echo after > /home/f; echo more > /home/g").await;
    drop(sandbox.start("ex-endless", "root", "sleep 100000").await);
    let back = Plan { id: id.clone(), ..from(harness, &artifact, Resources::default()) };
    let missing = Plan { disk: DiskSource::Artifact(fresh_snapshot()), ..back.clone() };
    assert!(matches!(
        driver.replace(&missing, Box::new(|| panic!("nothing was made"))).await,
        Err(IsolationError::NoArtifact)
    ));
    assert_eq!(sandbox.see("cat /home/f").await, "after", "a refused replacement changed something");
    driver.replace(&back, Box::new(|| ())).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let sandbox = Sandbox::connect(driver.clone(), id.clone()).await;
    assert_eq!(sandbox.see("cat /home/f; ls /home").await, "before\nf\nuser");
    assert!(sandbox.guest.list_execs().await.unwrap().is_empty());
    // Also when nothing is there any more.
    sandbox.guest.close();
    driver.destroy(&id).await.unwrap();
    driver.replace(&back, Box::new(|| ())).await.unwrap();
    let sandbox = Sandbox::connect(driver.clone(), id).await;
    assert_eq!(sandbox.see("cat /home/f").await, "before");
    sandbox.destroy().await;
    driver.remove_artifact(&artifact).await.unwrap();
}

/// A sandbox that another driver made can be snapshotted as well; what is not there cannot.
pub async fn by_another_driver(harness: &dyn Harness) {
    let first = Sandbox::create(harness, Resources::default()).await;
    first.see("echo kept > /home/f").await;
    let id = first.id.clone();
    first.guest.close();
    first.guest.closed().await;
    drop(first);
    let driver = harness.open().await;
    let artifact = fresh_snapshot();
    assert_gone(driver.snapshot(&fresh_id(), &artifact).await);
    driver.remove_artifact(&artifact).await.unwrap();
    driver.adopt(&id).await.unwrap();
    driver.snapshot(&id, &artifact).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let parent = Sandbox::connect(driver.clone(), id).await;
    assert_eq!(parent.see("echo on > /home/g; cat /home/f").await, "kept");
    let plan = from(harness, &artifact, Resources::default());
    driver.create(&plan).await.unwrap();
    let child = Sandbox::connect(driver.clone(), plan.id).await;
    assert_eq!(child.see("cat /home/f; ls /home").await, "kept\nf\nuser");
    child.destroy().await;
    parent.destroy().await;
    driver.remove_artifact(&artifact).await.unwrap();
}
