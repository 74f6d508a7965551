//! The driver is killed at every step of making, putting to disk, waking, removing and snapshotting a sandbox; another one
//! finds and removes all that is left.
#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

mod common;

use std::sync::Arc;

use atoll_core::id::SnapshotId;
use atoll_core::spec::Resources;
use atoll_isolation::Plan;
use atoll_isolation::conformance::killed::{Life, can_be_taken_up, kill_this_process, live};
use atoll_isolation::conformance::{Harness, Sandbox, assert_clean, plan};
use atoll_isolation_gvisor::{FAILPOINTS, SNAPSHOT_FAILPOINTS};
use common::{Sentries, sentries};

/// Where the process lives and is written down.
const WHOLE: [&str; 3] = ["gvisor::start::written", "gvisor::hibernate::start", "gvisor::destroy::start"];

fn small(harness: &Sentries) -> Plan {
    plan(harness.root(), Resources { disk_bytes: 64 << 20, ..Resources::default() })
}

fn artifact() -> SnapshotId {
    SnapshotId::from_parts(1, 1)
}

/// The life of the process that is killed. As a test of its own it does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed() {
    let Some(life) = Life::of_this_process() else { return };
    let harness = Sentries::of(life.directory, life.instance, None);
    let driver = harness.open().await;
    // The first sandbox is preceded by one that is only tried, which passes the same places and is not meant.
    let first = small(&harness);
    driver.create(&first).await.unwrap();
    driver.destroy(&first.id).await.unwrap();
    atoll_failpoint::cfg_callback(&life.failpoint, kill_this_process).unwrap();
    let plan = Plan { id: life.sandbox, ..first };
    if !life.failpoint.contains("snapshot") {
        return live(&*driver, &plan).await;
    }
    driver.create(&plan).await.unwrap();
    driver.snapshot(&plan.id, &artifact()).await.unwrap();
}

/// A fresh installation in which a driver was killed.
fn after(failpoint: &str) -> (Sentries, Plan) {
    let harness = sentries();
    let plan = small(&harness);
    let life = Life {
        failpoint: failpoint.to_owned(),
        directory: harness.path.clone(),
        instance: harness.instance.clone(),
        sandbox: plan.id.clone(),
        artifact: None,
    };
    life.end();
    (harness, plan)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_half_made_or_half_removed_can_be_removed() {
    for failpoint in FAILPOINTS {
        let (harness, plan) = after(failpoint);
        can_be_taken_up(&*harness.open().await, &plan, failpoint, WHOLE.contains(&failpoint)).await;
    }
}

/// The disk stood still when the driver was killed. Another one that takes the sandbox up lets it go on; so does one that
/// removes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_stood_still_goes_on() {
    for failpoint in SNAPSHOT_FAILPOINTS {
        for adopted in [true, false] {
            let (harness, plan) = after(failpoint);
            let driver = harness.open().await;
            if adopted {
                driver.adopt(&plan.id).await.unwrap();
                let sandbox = Sandbox::connect(Arc::clone(&driver), plan.id.clone()).await;
                assert_eq!(sandbox.see("echo on > /root/f; sync; cat /root/f").await, "on", "{failpoint}");
                sandbox.guest.close();
            }
            driver.destroy(&plan.id).await.unwrap();
            assert_clean(&*driver, &plan.id).await;
            driver.remove_artifact(&artifact()).await.unwrap();
            assert!(driver.artifacts().await.unwrap().is_empty());
        }
    }
}
