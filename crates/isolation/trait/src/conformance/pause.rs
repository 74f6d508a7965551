//! Standing still, being put to disk, and coming back.

use std::time::Duration;

use atoll_core::sandbox::PauseMode;
use atoll_core::spec::Resources;

use super::{DEADLINE, Harness, Sandbox, assert_clean, assert_gone, eventually, plan};
use crate::Death;

/// Long enough for a busy loop to use CPU time, if it could.
const WHILE: Duration = Duration::from_millis(200);

/// Frozen: no CPU time, no answer. Thawed: the same processes go on, over the same connection.
pub async fn what_is_frozen_goes_on(harness: &dyn Harness) {
    let sandbox = Sandbox::create(harness, Resources::default()).await;
    let (driver, id) = (&sandbox.driver, &sandbox.id);
    sandbox.see("(while :; do :; done) > /dev/null 2>&1 & echo $! > /tmp/pid").await;
    driver.freeze(id).await.unwrap();
    driver.freeze(id).await.unwrap();
    // The kernel books the last moment of a process when it leaves the processor, which may be just after it counts as frozen.
    let (before, after) = eventually("it stands still", || async {
        let before = driver.usage(id).await.unwrap();
        tokio::time::sleep(WHILE).await;
        let after = driver.usage(id).await.unwrap();
        (before.cpu_us == after.cpu_us).then_some((before, after))
    })
    .await;
    assert_eq!(before.pids, after.pids);
    let silent = tokio::time::timeout(WHILE, sandbox.guest.list_execs()).await;
    assert!(silent.is_err(), "the agent answers while it is frozen: {silent:?}");
    driver.thaw(id).await.unwrap();
    driver.thaw(id).await.unwrap();
    assert_eq!(sandbox.see("kill -0 $(cat /tmp/pid) && echo alive").await, "alive");
    eventually("it works again", || async {
        (driver.usage(id).await.unwrap().cpu_us > after.cpu_us).then_some(())
    })
    .await;
    sandbox.destroy().await;
}

/// Another driver finds it as it is, and thaws it.
pub async fn what_is_frozen_outlives_its_driver(harness: &dyn Harness) {
    let sandbox = Sandbox::create(harness, Resources::default()).await;
    sandbox.see("echo kept > /dev/shm/mark").await;
    sandbox.driver.freeze(&sandbox.id).await.unwrap();
    let Sandbox { driver, id, guest, .. } = sandbox;
    guest.close();
    drop((guest, driver));
    let driver = harness.open().await;
    driver.adopt(&id).await.unwrap();
    driver.thaw(&id).await.unwrap();
    let again = Sandbox::connect(driver, id).await;
    assert_eq!(again.see("cat /dev/shm/mark").await, "kept");
    again.destroy().await;
}

/// No thaw is needed to remove it.
pub async fn what_is_frozen_can_be_destroyed(harness: &dyn Harness) {
    let sandbox = Sandbox::create(harness, Resources::default()).await;
    sandbox.driver.freeze(&sandbox.id).await.unwrap();
    sandbox.destroy().await;
}

/// Where a kernel says which boot of it this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Hibernated: nothing is left but its disk; woken: its files, and nothing else of what was.
pub async fn a_hibernated_one_is_its_disk(harness: &dyn Harness) {
    let sandbox = Sandbox::create(harness, Resources::default()).await;
    let made = plan(harness.root(), Resources::default());
    let made = crate::Plan { id: sandbox.id.clone(), ..made };
    let write = "head -c 8M /dev/urandom > /root/big; mkdir -p /srv/a; ln -s big /root/link; rm /etc/hosts; \
                 useradd() { :; }; chown 1000:1000 /srv/a; cat /root/big | cksum";
    let sum = sandbox.see(write).await;
    sandbox.see("echo gone > /dev/shm/mark; sleep 1000 > /dev/null 2>&1 &").await;
    let first_boot = sandbox.see(&format!("cat {BOOT_ID} 2>/dev/null || :")).await;
    let Sandbox { driver, id, guest, welcome } = sandbox;
    let memory = driver.hibernate(&id, PauseMode::Memory).await;
    assert!(matches!(memory, Ok(()) | Err(crate::IsolationError::CannotPause(_))), "{memory:?}");
    guest.close();
    let mut welcomes = vec![welcome.boot_id];
    // Where the level has one, the kernel's own word is another at each boot, and never the host's.
    let mut boots = vec![first_boot, std::fs::read_to_string(BOOT_ID).unwrap().trim().to_owned()];
    for round in 0..2 {
        driver.hibernate(&id, PauseMode::Filesystem).await.unwrap();
        driver.hibernate(&id, PauseMode::Filesystem).await.unwrap();
        assert_eq!(driver.died(&id).await, Death::Exited);
        assert_gone(driver.connect(&id).await);
        assert_gone(driver.freeze(&id).await);
        let left: Vec<_> = driver.scan().await.unwrap().into_iter().filter(|r| r.sandbox == id).collect();
        let disk_only = left.iter().all(|resource| ["directory", "disk"].contains(&resource.kind));
        assert!(!left.is_empty() && disk_only, "left behind: {left:?}");
        let disk = driver.hibernated_disk(&id).await.unwrap();
        assert_eq!(disk.metadata().unwrap().len(), made.resources.disk_bytes, "all of it can be read");
        // Half awake, then hibernated again: the undo of a wake.
        driver.wake(&made).await.unwrap();
        driver.hibernate(&id, PauseMode::Filesystem).await.unwrap();
        driver.wake(&made).await.unwrap();
        let again = Sandbox::connect(driver.clone(), id.clone()).await;
        assert_gone(driver.hibernated_disk(&id).await);
        assert_eq!(again.see("cat /root/big | cksum; ").await, sum, "round {round}");
        assert_eq!(again.see("stat -c %u:%g /srv/a; readlink /root/link").await, "1000:1000\nbig");
        assert_eq!(
            again.see("test ! -e /dev/shm/mark; ls /dev/shm | wc -l; pgrep -c sleep || :").await,
            "0\n0"
        );
        again
            .see(&format!("echo {round} >> /root/rounds; test $(wc -l < /root/rounds) = {}", round + 1))
            .await;
        assert!(!welcomes.contains(&again.welcome.boot_id), "the same boot");
        welcomes.push(again.welcome.boot_id.clone());
        let boot = again.see(&format!("cat {BOOT_ID} 2>/dev/null || :")).await;
        assert!(boot.is_empty() || !boots.contains(&boot), "the same boot of the kernel: {boot}");
        boots.push(boot);
        again.guest.close();
    }
    // Another driver wakes what this one hibernated.
    driver.hibernate(&id, PauseMode::Filesystem).await.unwrap();
    drop(driver);
    let driver = harness.open().await;
    assert_gone(driver.adopt(&id).await);
    driver.wake(&made).await.unwrap();
    let again = Sandbox::connect(driver, id).await;
    assert_eq!(again.see("cat /root/rounds | tr '\\n' ' '").await, "0 1");
    let (driver, id) = (again.driver.clone(), again.id.clone());
    again.guest.close();
    driver.hibernate(&id, PauseMode::Filesystem).await.unwrap();
    driver.destroy(&id).await.unwrap();
    assert_clean(&*driver, &id).await;
    assert_gone(driver.hibernate(&id, PauseMode::Filesystem).await);
    assert_gone(driver.wake(&made).await);
    driver.destroy(&id).await.unwrap();
}

/// Memory that a frozen one can do without comes back, and it misses nothing after the thaw.
pub async fn memory_comes_back(harness: &dyn Harness) {
    let sandbox = Sandbox::create(harness, Resources::default()).await;
    let (driver, id) = (&sandbox.driver, &sandbox.id);
    let sum = sandbox.see("head -c 64M /dev/urandom > /root/big; sync; cksum < /root/big").await;
    driver.freeze(id).await.unwrap();
    let before = driver.usage(id).await.unwrap().memory_bytes;
    let given = tokio::time::timeout(DEADLINE, driver.reclaim(id)).await.unwrap().unwrap();
    let after = driver.usage(id).await.unwrap().memory_bytes;
    assert!(given > 16 << 20 && after < before, "{given} bytes of {before} came back, {after} are left");
    driver.thaw(id).await.unwrap();
    assert_eq!(sandbox.see("cksum < /root/big").await, sum);
    sandbox.destroy().await;
}

/// Where a level keeps memory: the processes go on, under another driver, as if no time had passed, but the clock shows
/// that it has.
pub async fn what_sleeps_goes_on(harness: &dyn Harness) {
    let sandbox = Sandbox::create(harness, Resources::default()).await;
    if sandbox.driver.memory_pause().is_err() {
        return sandbox.destroy().await;
    }
    let made = crate::Plan { id: sandbox.id.clone(), ..plan(harness.root(), Resources::default()) };
    sandbox.see("echo kept > /dev/shm/mark; echo kept > /root/mark").await;
    drop(sandbox.start("ex-endless", "root", "sleep 100000").await);
    let Sandbox { driver, id, guest, welcome } = sandbox;
    driver.hibernate(&id, PauseMode::Memory).await.unwrap_or_else(|error| panic!("{}", super::chain(&error)));
    driver.hibernate(&id, PauseMode::Memory).await.unwrap();
    guest.close();
    assert_gone(driver.connect(&id).await);
    let left: Vec<_> = driver.scan().await.unwrap().into_iter().filter(|r| r.sandbox == id).collect();
    assert!(
        left.iter().all(|resource| ["directory", "disk"].contains(&resource.kind)),
        "left behind: {left:?}"
    );
    drop((driver, guest));
    let driver = harness.open().await;
    for round in 0..2 {
        driver.wake(&made).await.unwrap_or_else(|error| panic!("{}", super::chain(&error)));
        let again = Sandbox::connect(driver.clone(), id.clone()).await;
        assert_eq!(again.welcome.boot_id, welcome.boot_id, "another boot");
        assert_eq!(again.see("cat /dev/shm/mark /root/mark").await, "kept\nkept");
        let execs = again.guest.list_execs().await.unwrap();
        assert!(execs.iter().any(|exec| exec.exec_id == "ex-endless" && !exec.exited), "{execs:?}");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let inside: u64 = again.see("date +%s").await.parse().unwrap();
        assert!(now.abs_diff(inside) < 60, "it is {inside} inside and {now} outside");
        again
            .see(&format!("echo {round} >> /root/rounds; test $(wc -l < /root/rounds) = {}", round + 1))
            .await;
        again.guest.close();
        if round == 0 {
            driver.hibernate(&id, PauseMode::Memory).await.unwrap();
        }
    }
    driver.destroy(&id).await.unwrap();
    assert_clean(&*driver, &id).await;
}
