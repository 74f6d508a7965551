//! Disks of machines: their journal, which the machine's kernel writes, and what the host makes of one that it should not
//! trust.
#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

mod common;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

use atoll_core::id::SnapshotId;
use atoll_core::sandbox::PauseMode;
use atoll_core::snapshot::{ChangeKind, Comparison};
use atoll_core::spec::Resources;
use atoll_isolation::conformance::{Harness, Sandbox, chain, eventually, plan};
use atoll_isolation::{DiskSource, Isolation, IsolationError, Plan, Woken};
use atoll_isolation_storage::DISK_FILE;
use atoll_testing::journals;
use common::{Machines, machines};

const DISK_BYTES: u64 = 256 << 20;

fn small() -> Resources {
    Resources { memory_bytes: 128 << 20, disk_bytes: DISK_BYTES, ..Resources::default() }
}

fn snapshot_id(number: u64) -> SnapshotId {
    SnapshotId::from_parts(number, 1)
}

/// What makes a sandbox of an artifact.
fn plan_from(harness: &Machines, artifact: &SnapshotId, resources: Resources) -> Plan {
    Plan { disk: DiskSource::Artifact(artifact.clone()), ..plan(harness.root(), resources) }
}

/// Whether a machine's disk has a journal, as its kernel says. It is mounted as that wants.
async fn has_journal(sandbox: &Sandbox) -> bool {
    let said = sandbox.see("ls /proc/fs/jbd2 | wc -l; cat /proc/fs/ext4/*/options").await;
    let lines: Vec<_> = said.lines().collect();
    let has_journal = lines[0] == "1";
    assert!(lines.contains(&"nobarrier"), "{said}");
    assert_eq!(lines.contains(&"commit=30"), has_journal, "{said}");
    has_journal
}

/// Puts a sandbox to disk and wakes it, after `meanwhile`.
async fn wake_again(sandbox: Sandbox, made: &Plan, meanwhile: impl FnOnce()) -> Sandbox {
    let Sandbox { driver, id, guest, .. } = sandbox;
    driver.hibernate(&id, PauseMode::Filesystem).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    guest.close();
    meanwhile();
    let woken = driver.wake(made).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert_eq!(woken, Woken::Disk);
    Sandbox::connect(driver, id).await
}

/// Makes an artifact with an empty disk as earlier versions made them for machines.
async fn make_older(harness: &Machines, driver: &dyn Isolation, artifact: &SnapshotId) {
    let image = driver.write_artifact(artifact, DISK_BYTES).await.unwrap();
    let content = harness.path.join("content");
    for name in ["upper", "work"] {
        std::fs::create_dir_all(content.join(name)).unwrap();
    }
    let made = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-m", "0"])
        .args(["-O", "^has_journal,^resize_inode", "-E", "root_owner=0:0,nodiscard", "-d"])
        .arg(&content)
        .arg("/proc/self/fd/0")
        .stdin(image)
        .status();
    assert!(made.unwrap().success());
}

fn kinds(seen: &Comparison) -> BTreeMap<&str, ChangeKind> {
    assert!(!seen.truncated);
    seen.changes.iter().map(|change| (change.path.as_str(), change.kind)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_has_a_journal_unless_it_is_small() {
    let harness = machines();
    for (disk_bytes, wanted) in [(DISK_BYTES, true), (32 << 20, false)] {
        let sandbox = Sandbox::create(&harness, Resources { disk_bytes, ..small() }).await;
        assert_eq!(has_journal(&sandbox).await, wanted, "{disk_bytes} bytes");
        sandbox.destroy().await;
    }
}

/// Snapshots of earlier versions have no journal. What is made from one has none either, and does all that others do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_of_an_earlier_version_goes_on_without_a_journal() {
    let harness = machines();
    let driver = harness.open().await;
    let (older, copy) = (snapshot_id(1), snapshot_id(2));
    make_older(&harness, &*driver, &older).await;
    let made = plan_from(&harness, &older, Resources { disk_bytes: 2 * DISK_BYTES, ..small() });
    driver.create(&made).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let sandbox = Sandbox::connect(Arc::clone(&driver), made.id.clone()).await;
    assert!(!has_journal(&sandbox).await, "it grew, and has a journal");
    sandbox.see("echo kept > /root/f").await;
    let sandbox = wake_again(sandbox, &made, || ()).await;
    assert!(!has_journal(&sandbox).await);
    assert_eq!(sandbox.see("cat /root/f").await, "kept");
    driver.snapshot(&sandbox.id, &copy).await.unwrap();
    assert!(!journals::exists(&harness.storage().artifact_disk(&copy).unwrap()));
    let seen = driver.compare(&made.root, Some(&older), &copy, false).await.unwrap();
    assert_eq!(kinds(&seen).get("/root/f"), Some(&ChangeKind::Added));
    sandbox.destroy().await;
    for artifact in [older, copy] {
        driver.remove_artifact(&artifact).await.unwrap();
    }
}

/// Nothing is left in the journal of a copy, so its blocks are the whole truth, and it can be used as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_has_what_files_that_are_written_hold() {
    let harness = machines();
    let sandbox = Sandbox::create(&harness, small()).await;
    let driver = Arc::clone(&sandbox.driver);
    let fill = "mkdir -p /root/d && cd /root/d && for i in $(seq 2000); do echo $i > $i; done";
    sandbox.see(fill).await;
    sandbox.see("rm -r /root/d").await;
    sandbox.see(fill).await;
    assert_eq!(sandbox.see("ls /root/d | wc -l; cat /root/d/1999").await, "2000\n1999");
    let hold = "exec 3> /root/open; echo one >&3; touch /root/ready; sleep 100000";
    drop(sandbox.start("ex-hold", "root", hold).await);
    eventually("a file is held open", || async {
        (sandbox.run("test -e /root/ready").await.code == 0).then_some(())
    })
    .await;
    let (first, second) = (snapshot_id(1), snapshot_id(2));
    let root = harness.root();
    driver.snapshot(&sandbox.id, &first).await.unwrap();
    let disk = harness.storage().artifact_disk(&first).unwrap();
    assert!(journals::exists(&disk) && !journals::has_to_be_read(&disk));
    driver.check_artifact(&first).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let seen = driver.compare(&root, None, &first, true).await.unwrap();
    let found = kinds(&seen);
    for path in ["/root/d/1", "/root/d/2000", "/root/open"] {
        assert_eq!(found.get(path), Some(&ChangeKind::Added), "{path}");
    }
    // A file that is removed while a process has it stays on the disk, and a comparison does not show it.
    sandbox.see("rm /root/open /root/d/1; echo other > /root/d/2").await;
    driver.snapshot(&sandbox.id, &second).await.unwrap();
    let seen = driver.compare(&root, Some(&first), &second, false).await.unwrap();
    let found = kinds(&seen);
    assert_eq!(found.get("/root/open"), Some(&ChangeKind::Removed));
    assert_eq!(found.get("/root/d/1"), Some(&ChangeKind::Removed));
    assert_eq!(found.get("/root/d/2"), Some(&ChangeKind::Changed));
    assert_eq!(sandbox.see("ls /root/d | wc -l; echo on > /root/d/1; cat /root/d/1").await, "1999\non");
    sandbox.destroy().await;
    for artifact in [first, second] {
        driver.remove_artifact(&artifact).await.unwrap();
    }
}

/// As a kernel that is not honest leaves it: read, the journal puts a link in the place of a directory that the host opens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_journal_is_refused_and_harms_no_other() {
    let harness = machines();
    let sandbox = Sandbox::create(&harness, small()).await;
    let driver = Arc::clone(&sandbox.driver);
    sandbox.see("echo kept > /root/f").await;
    let artifact = snapshot_id(1);
    driver.snapshot(&sandbox.id, &artifact).await.unwrap();
    let disk = harness.storage().artifact_disk(&artifact).unwrap();
    let (number, mut block, offset) = journals::inode_of(&disk, "/upper");
    block[offset..offset + 2].copy_from_slice(&0o120_777_u16.to_le_bytes());
    journals::write(&disk, number, &block);
    let refused = driver.check_artifact(&artifact).await;
    assert!(matches!(refused, Err(IsolationError::BadArtifact(_))), "{refused:?}");
    // A machine's own kernel reads the journal, and there is no directory any more.
    let made = plan_from(&harness, &artifact, small());
    assert!(driver.create(&made).await.is_err(), "a machine has a link for a directory");
    driver.destroy(&made.id).await.unwrap();
    let refused = driver.compare(&made.root, None, &artifact, true).await;
    assert!(
        matches!(&refused, Err(IsolationError::BadArtifact(why)) if why.contains("its 'upper' is no directory")),
        "{refused:?}"
    );
    assert_eq!(sandbox.see("cat /root/f").await, "kept");
    sandbox.destroy().await;
    driver.remove_artifact(&artifact).await.unwrap();
}

/// A power cut of the host leaves a journal that no kernel mounts a disk with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_wakes_on_a_disk_whose_journal_is_torn() {
    let harness = machines();
    let driver = harness.open().await;
    let made = plan(harness.root(), small());
    driver.create(&made).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let sandbox = Sandbox::connect(Arc::clone(&driver), made.id.clone()).await;
    sandbox.see("echo kept > /root/f").await;
    let disk = harness.storage().machine(&made.id).join(DISK_FILE);
    let tear = || {
        assert!(!journals::has_to_be_read(&disk), "a machine that was put to disk has emptied its journal");
        let (number, block, _) = journals::inode_of(&disk, "/upper");
        journals::write(&disk, number, &block);
        journals::tear(&disk, &block);
    };
    let sandbox = wake_again(sandbox, &made, tear).await;
    assert!(has_journal(&sandbox).await);
    assert_eq!(sandbox.see("cat /root/f; echo more > /root/g; cat /root/g").await, "kept\nmore");
    sandbox.destroy().await;
}
