//! Where a level keeps memory on disk: a sandbox goes on elsewhere, from copies of its disk and its memory alone.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use atoll_core::machine::MemoryNeeds;
use atoll_core::sandbox::PauseMode;
use atoll_core::spec::Resources;

use super::snapshots::fresh_snapshot;
use super::{Harness, Sandbox, assert_clean, assert_gone, chain, eventually, plan};
use crate::{DiskSource, HibernatedMemory, IsolationError, Plan, sparse};

/// Data is copied in blocks of this many bytes, so many at once.
const BLOCK_BYTES: u64 = 4096;
const PIECE_BYTES: usize = 1 << 20;
/// A process that counts, in its own memory.
const COUNT: &str = "i=0; while :; do i=$((i+1)); echo $i > /dev/shm/count; sleep 0.05; done";

fn copy(from: &File, to: &File) {
    sparse::for_pieces(from, BLOCK_BYTES, PIECE_BYTES, |at, bytes| to.write_all_at(bytes, at)).unwrap();
}

fn bytes(file: &File) -> u64 {
    file.metadata().unwrap().len()
}

async fn count(sandbox: &Sandbox) -> u64 {
    eventually("it counts", || async { sandbox.see("cat /dev/shm/count || :").await.parse().ok() }).await
}

fn refused<T: std::fmt::Debug>(outcome: Result<T, IsolationError>, why: &str) {
    assert!(
        matches!(&outcome, Err(IsolationError::BadArtifact(text)) if text.contains(why)),
        "{why}: {outcome:?}"
    );
}

/// What ran goes on, in the same boot, where nothing of the sandbox was but what was copied. Memory that needs something
/// else is refused before it comes, and bytes that are no memory are refused when they have come.
pub async fn what_sleeps_goes_on_elsewhere(harness: &dyn Harness) {
    let sandbox = Sandbox::create(harness, Resources::default()).await;
    if sandbox.driver.memory_pause().is_err() {
        return sandbox.destroy().await;
    }
    let made = Plan { id: sandbox.id.clone(), ..plan(harness.root(), Resources::default()) };
    sandbox.see("echo kept > /dev/shm/mark; echo kept > /root/mark").await;
    drop(sandbox.start("ex-count", "root", COUNT).await);
    let before = count(&sandbox).await;
    let Sandbox { driver, id, guest, welcome } = sandbox;
    assert_gone(driver.hibernated_memory(&made).await);
    driver.hibernate(&id, PauseMode::Memory).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    guest.close();
    let disk = driver.hibernated_disk(&id).await.unwrap();
    let HibernatedMemory { file, needs } = driver.hibernated_memory(&made).await.unwrap().unwrap();
    // Both are open, and all that is left of it.
    driver.destroy(&id).await.unwrap();
    assert_clean(&*driver, &id).await;

    let artifact = fresh_snapshot();
    copy(&disk, &driver.write_artifact(&artifact, bytes(&disk)).await.unwrap());
    let other = |change: fn(&mut MemoryNeeds)| {
        let mut needs = needs.clone();
        change(&mut needs);
        needs
    };
    let another_vmm = other(|needs| "another".clone_into(&mut needs.platform.vmm));
    let another_image = other(|needs| "another".clone_into(&mut needs.image));
    let asked =
        async |needs: &MemoryNeeds, bytes| driver.write_artifact_memory(&artifact, &made, needs, bytes).await;
    refused(asked(&another_vmm, bytes(&file)).await, "another");
    refused(asked(&another_image, bytes(&file)).await, "image");
    refused(asked(&needs, u64::MAX).await, "larger");
    let endless = other(|needs| needs.memory_mib = u64::MAX);
    refused(asked(&endless, bytes(&file)).await, "larger");
    let asleep = Plan { disk: DiskSource::Asleep(artifact.clone()), ..made.clone() };
    assert!(driver.create(&asleep).await.is_err(), "its memory is not there");
    driver.destroy(&id).await.unwrap();

    let memory = asked(&needs, bytes(&file)).await.unwrap();
    assert!(driver.check_artifact_memory(&artifact, &needs).await.is_err(), "these are zeros");
    copy(&file, &memory);
    drop(memory);
    driver.check_artifact_memory(&artifact, &needs).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    driver.create(&asleep).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    // The machine has what it needs of them.
    driver.remove_artifact(&artifact).await.unwrap();
    let again = Sandbox::connect(driver.clone(), id.clone()).await;
    assert_eq!(again.welcome.boot_id, welcome.boot_id, "another boot");
    assert_eq!(again.see("cat /dev/shm/mark /root/mark").await, "kept\nkept");
    let execs = again.guest.list_execs().await.unwrap();
    assert!(execs.iter().any(|exec| exec.exec_id == "ex-count" && !exec.exited), "{execs:?}");
    let reached = count(&again).await;
    assert!(reached >= before, "it counted to {before} and is at {reached}");
    eventually("it goes on", || async { (count(&again).await > reached).then_some(()) }).await;
    again.destroy().await;
}
