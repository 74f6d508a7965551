//! The driver is killed at every step of a life; another one finds and removes all that is left, and what slept
//! or was about to goes on with its memory.
#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use atoll_core::id::{SandboxId, SnapshotId};
use atoll_core::sandbox::PauseMode;
use atoll_core::spec::Resources;
use atoll_isolation::conformance::killed::{Life, kill_this_process};
use atoll_isolation::conformance::{Harness, Sandbox, assert_clean, assert_gone, eventually, fresh_id};
use atoll_isolation::{DiskSource, HibernatedMemory, Isolation, Plan, sparse};
use atoll_isolation_microvm::FAILPOINTS;
use common::{Machines, machines};

/// A small machine: one kind, booted once.
fn plan(harness: &Machines, id: &SandboxId) -> Plan {
    let resources = Resources {
        memory_bytes: 128 << 20,
        disk_bytes: 256 << 20,
        // More than it can use, and a limit like any other.
        io_bytes_per_second: Some(4 << 30),
        ..Resources::default()
    };
    Plan { id: id.clone(), ..atoll_isolation::conformance::plan(harness.root(), resources) }
}

/// The life of the process that is killed. As a test of its own it does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed() {
    let Some(life) = Life::of_this_process() else { return };
    let (id, snapshot) = (life.sandbox, life.failpoint.contains("snapshot"));
    let harness = Machines::of(life.directory, life.instance, None);
    let (driver, plan) = (harness.open().await, plan(&harness, &id));
    atoll_failpoint::cfg_callback(life.failpoint, kill_this_process).unwrap();
    if let Some(artifact) = life.artifact {
        let disk = match artifact == asleep() {
            true => DiskSource::Asleep(artifact),
            false => DiskSource::WithMemory(artifact, None),
        };
        driver.create(&Plan { disk, ..plan }).await.unwrap();
        return;
    }
    driver.create(&plan).await.unwrap();
    let sandbox = Sandbox::connect(Arc::clone(&driver), id.clone()).await;
    sandbox.see("echo kept > /root/mark; echo kept > /dev/shm/mark").await;
    if snapshot {
        sandbox.see("(while :; do :; done) > /dev/null 2>&1 &").await;
        driver.freeze(&id).await.unwrap();
        driver.snapshot(&id, &SnapshotId::from_parts(1, 1)).await.unwrap();
        driver.thaw(&id).await.unwrap();
        driver.snapshot_with_memory(&id, &SnapshotId::from_parts(1, 2)).await.unwrap();
    }
    sandbox.guest.close();
    driver.hibernate(&id, PauseMode::Memory).await.unwrap();
    driver.wake(&plan).await.unwrap();
    driver.destroy(&id).await.unwrap();
}

/// The artifact of a sandbox that another host put to disk.
fn asleep() -> SnapshotId {
    SnapshotId::from_parts(1, 4)
}

fn run_until_killed(harness: &Machines, failpoint: &str, id: &SandboxId, artifact: Option<&SnapshotId>) {
    let life = Life {
        failpoint: failpoint.to_owned(),
        directory: harness.path.clone(),
        instance: harness.instance.clone(),
        sandbox: id.clone(),
        artifact: artifact.cloned(),
    };
    life.end();
}

/// What the storage holds of a machine.
fn storage_of(harness: &Machines, id: &SandboxId) -> Vec<String> {
    let entries = std::fs::read_dir(harness.storage().machine(id)).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// It uses no CPU time, although a loop runs in it.
async fn assert_stands_still(driver: &dyn Isolation, id: &SandboxId, failpoint: &str) {
    eventually(&format!("it stands still after {failpoint}"), || async {
        let before = driver.usage(id).await.unwrap().cpu_us;
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        (driver.usage(id).await.unwrap().cpu_us == before).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_half_done_can_be_removed_and_nothing_is_lost() {
    let first = machines();
    // Booting and saving the kind of machine passes the same places, and is not meant.
    let (driver, id) = (first.open().await, fresh_id());
    driver.create(&plan(&first, &id)).await.unwrap();
    driver.destroy(&id).await.unwrap();
    for failpoint in FAILPOINTS {
        let harness = machines();
        let id = fresh_id();
        run_until_killed(&harness, failpoint, &id, None);
        let driver = harness.open().await;
        if failpoint.contains("hibernate") || failpoint.contains("wake") {
            // As recovery does: the machine is put to sleep, at whichever step it was, then woken.
            driver
                .hibernate(&id, PauseMode::Memory)
                .await
                .unwrap_or_else(|error| panic!("{failpoint}: {error:?}"));
            let plan = plan(&harness, &id);
            driver.wake(&plan).await.unwrap_or_else(|error| panic!("{failpoint}: {error:?}"));
            let sandbox = Sandbox::connect(Arc::clone(&driver), id.clone()).await;
            assert_eq!(sandbox.see("cat /root/mark /dev/shm/mark").await, "kept\nkept", "{failpoint}");
            sandbox.guest.close();
        } else if failpoint.contains("snapshot") {
            driver.adopt(&id).await.unwrap_or_else(|error| panic!("{failpoint}: {error:?}"));
            let record = harness.path.join("microvm/sandboxes").join(id.as_str());
            assert!(
                record.join("io.json").try_exists().unwrap()
                    && !record.join("unthrottled").try_exists().unwrap(),
                "{failpoint}"
            );
            if ["awake", "lifted", "still"].iter().any(|step| failpoint.ends_with(step)) {
                // It ran for the snapshot only.
                assert_stands_still(&*driver, &id, failpoint).await;
                driver.thaw(&id).await.unwrap();
            }
            let sandbox = Sandbox::connect(Arc::clone(&driver), id.clone()).await;
            assert_eq!(sandbox.see("sync; cat /root/mark /dev/shm/mark").await, "kept\nkept", "{failpoint}");
            let left = storage_of(&harness, &id);
            assert_eq!(left, ["disk.img"], "{failpoint}");
            sandbox.guest.close();
            for artifact in driver.artifacts().await.unwrap() {
                driver.remove_artifact(&artifact).await.unwrap();
            }
        } else if failpoint.contains("launch") || failpoint.contains("create") {
            match failpoint {
                "microvm::create::written" => driver.adopt(&id).await.expect("it is whole, and found"),
                _ => assert_gone(driver.adopt(&id).await),
            }
        }
        driver.destroy(&id).await.unwrap_or_else(|error| panic!("{failpoint}: {error:?}"));
        assert_clean(&*driver, &id).await;
        driver.destroy(&id).await.unwrap();
    }
}

/// A copy that is half made can be removed as well; parent and artifact are as they were.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_made_copy_can_be_removed() {
    let harness = machines();
    let (driver, parent, artifact) = (harness.open().await, fresh_id(), SnapshotId::from_parts(1, 3));
    driver.create(&plan(&harness, &parent)).await.unwrap();
    let sandbox = Sandbox::connect(Arc::clone(&driver), parent.clone()).await;
    sandbox.see("echo kept > /dev/shm/mark").await;
    sandbox.guest.close();
    driver.snapshot_with_memory(&parent, &artifact).await.unwrap();
    drop((sandbox, driver));
    for failpoint in [
        "microvm::create::disk",
        "microvm::create::user",
        "microvm::launch::vmm",
        "microvm::create::restored",
        "microvm::create::told",
        "microvm::create::written",
    ] {
        let id = fresh_id();
        run_until_killed(&harness, failpoint, &id, Some(&artifact));
        let driver = harness.open().await;
        match failpoint {
            "microvm::create::written" => driver.adopt(&id).await.expect("it is whole, and found"),
            _ => assert_gone(driver.adopt(&id).await),
        }
        driver.destroy(&id).await.unwrap_or_else(|error| panic!("{failpoint}: {error:?}"));
        assert_clean(&*driver, &id).await;
    }
    let driver = harness.open().await;
    for id in [parent, fresh_id()] {
        let disk = DiskSource::WithMemory(artifact.clone(), None);
        match driver.adopt(&id).await {
            Ok(()) => {}
            Err(_) => driver.create(&Plan { disk, ..plan(&harness, &id) }).await.unwrap(),
        }
        let sandbox = Sandbox::connect(Arc::clone(&driver), id).await;
        assert_eq!(sandbox.see("cat /dev/shm/mark").await, "kept");
        sandbox.destroy().await;
    }
    driver.remove_artifact(&artifact).await.unwrap();
}

/// Puts a new sandbox to disk, and all of it into an artifact, as if another host had.
async fn put_asleep(harness: &Machines, id: &SandboxId) {
    let (driver, made) = (harness.open().await, plan(harness, id));
    driver.create(&made).await.unwrap();
    let sandbox = Sandbox::connect(Arc::clone(&driver), id.clone()).await;
    sandbox.see("echo kept > /root/mark; echo kept > /dev/shm/mark").await;
    sandbox.guest.close();
    driver.hibernate(id, PauseMode::Memory).await.unwrap();
    let disk = driver.hibernated_disk(id).await.unwrap();
    let HibernatedMemory { file: memory, needs } = driver.hibernated_memory(&made).await.unwrap().unwrap();
    driver.destroy(id).await.unwrap();
    let bytes = |file: &File| file.metadata().unwrap().len();
    let copy = |from: &File, to: &File| {
        sparse::for_pieces(from, 4096, 1 << 20, |at, bytes| to.write_all_at(bytes, at)).unwrap();
    };
    copy(&disk, &driver.write_artifact(&asleep(), bytes(&disk)).await.unwrap());
    let place = driver.write_artifact_memory(&asleep(), &made, &needs, bytes(&memory)).await.unwrap();
    copy(&memory, &place);
    driver.check_artifact_memory(&asleep(), &needs).await.unwrap();
}

/// Until it goes on here nothing of it was used, and it can come once more; from then on its memory is here alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_only_coming_comes_again_with_its_memory() {
    let harness = machines();
    let id = fresh_id();
    put_asleep(&harness, &id).await;
    for failpoint in [
        "microvm::create::directory",
        "microvm::create::user",
        "microvm::launch::vmm",
        "microvm::wake::forgotten",
        "microvm::wake::read",
    ] {
        run_until_killed(&harness, failpoint, &id, Some(&asleep()));
        let driver = harness.open().await;
        let put = driver.hibernate(&id, PauseMode::Memory).await;
        if failpoint == "microvm::wake::forgotten" {
            put.unwrap();
            driver.wake(&plan(&harness, &id)).await.unwrap();
            let sandbox = Sandbox::connect(Arc::clone(&driver), id.clone()).await;
            assert_eq!(sandbox.see("cat /root/mark /dev/shm/mark").await, "kept\nkept");
            sandbox.guest.close();
        } else {
            assert_gone(put);
        }
        driver.destroy(&id).await.unwrap();
        assert_clean(&*driver, &id).await;
    }
    let driver = harness.open().await;
    let disk = DiskSource::Asleep(asleep());
    driver.create(&Plan { disk, ..plan(&harness, &id) }).await.unwrap();
    let sandbox = Sandbox::connect(Arc::clone(&driver), id).await;
    assert_eq!(sandbox.see("cat /root/mark /dev/shm/mark").await, "kept\nkept");
    sandbox.destroy().await;
    driver.remove_artifact(&asleep()).await.unwrap();
}
