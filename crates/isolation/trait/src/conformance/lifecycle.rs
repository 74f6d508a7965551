//! Making, finding again, dying, removing.

use atoll_core::spec::Resources;
use atoll_guest_protocol::messages::Configure;

use super::{Harness, Sandbox, assert_clean, assert_gone, eventually, fresh_id, plan};
use crate::Death;

/// A sandbox runs commands, shows in the scan, and is gone without a trace when it is destroyed.
pub async fn makes_runs_and_removes(harness: &dyn Harness) {
    let sandbox = Sandbox::create(harness, Resources::default()).await;
    assert_eq!(sandbox.see("echo hello; echo x > /tmp/file; cat /tmp/file").await, "hello\nx");
    let found = sandbox.driver.scan().await.unwrap();
    assert!(found.iter().any(|resource| resource.sandbox == sandbox.id), "not in {found:?}");
    assert!(sandbox.driver.sandboxes().await.unwrap().contains(&sandbox.id));
    let usage = sandbox.driver.usage(&sandbox.id).await.unwrap();
    assert!(usage.cpu_us > 0 && usage.memory_bytes > 0 && usage.pids > 0, "{usage:?}");
    assert!(usage.memory_peak_bytes >= usage.memory_bytes && usage.oom_kills == 0, "{usage:?}");

    let (driver, id) = (sandbox.driver.clone(), sandbox.id.clone());
    sandbox.destroy().await;
    assert_gone(driver.connect(&id).await);
    assert_gone(driver.usage(&id).await);
    assert_gone(driver.update(&id, &Resources::default()).await);
    assert_gone(driver.adopt(&id).await);
    driver.destroy(&id).await.unwrap();
}

/// The driver goes, another comes: the sandbox and its commands are the same.
pub async fn survives_its_driver(harness: &dyn Harness) {
    let Sandbox { driver, id, guest, welcome } = Sandbox::create(harness, Resources::default()).await;
    let before = Sandbox { driver, id: id.clone(), guest, welcome: welcome.clone() };
    drop(before.start("ex-endless", "root", "sleep 100000").await);
    let Sandbox { driver, guest, .. } = before;
    guest.close();
    guest.closed().await;
    drop((guest, driver));

    let driver = harness.open().await;
    assert_gone(driver.connect(&id).await);
    driver.adopt(&id).await.unwrap();
    driver.adopt(&id).await.unwrap();
    let after = Sandbox::connect(driver, id).await;
    assert_eq!(after.welcome.boot_id, welcome.boot_id, "another agent answers");
    let execs = after.guest.list_execs().await.unwrap();
    assert!(execs.iter().any(|exec| exec.exec_id == "ex-endless" && !exec.exited), "{execs:?}");
    assert!(after.driver.usage(&after.id).await.unwrap().pids >= 2);
    after.destroy().await;
}

/// Unknown ids are gone, and destroying them is no error.
pub async fn refuses_what_is_not_there(harness: &dyn Harness) {
    let (driver, id) = (harness.open().await, fresh_id());
    assert_gone(driver.adopt(&id).await);
    assert_gone(driver.connect(&id).await);
    assert_gone(driver.usage(&id).await);
    assert_eq!(driver.died(&id).await, Death::Exited);
    driver.destroy(&id).await.unwrap();
    assert_clean(&*driver, &id).await;
}

/// Making an id that exists fails, and leaves the one that exists alone.
pub async fn refuses_an_id_twice(harness: &dyn Harness) {
    let sandbox = Sandbox::create(harness, Resources::default()).await;
    let twice = crate::Plan { id: sandbox.id.clone(), ..plan(harness.root(), Resources::default()) };
    assert!(sandbox.driver.create(&twice).await.is_err());
    assert_eq!(sandbox.see("echo alive").await, "alive");
    sandbox.destroy().await;
}

/// A task that waits for the instance's death is told of it, and waits until then.
pub async fn reports_death(harness: &dyn Harness) {
    let sandbox = Sandbox::create(harness, Resources::default()).await;
    let (driver, id) = (sandbox.driver.clone(), sandbox.id.clone());
    let waiting = tokio::spawn(async move { driver.died(&id).await });
    assert_eq!(sandbox.see("echo alive").await, "alive");
    assert!(!waiting.is_finished(), "reported dead while it lives");
    let driver = sandbox.driver.clone();
    let id = sandbox.id.clone();
    sandbox.destroy().await;
    let death = tokio::time::timeout(super::DEADLINE, waiting).await.unwrap().unwrap();
    assert_eq!(death, Death::Exited);
    assert_eq!(driver.died(&id).await, Death::Exited);
}

/// One sandbox's end does not touch its neighbour.
pub async fn only_the_dead_one_dies(harness: &dyn Harness) {
    let one = Sandbox::create(harness, Resources::default()).await;
    let other_plan = plan(harness.root(), Resources::default());
    one.driver.create(&other_plan).await.unwrap();
    let other = Sandbox::connect(one.driver.clone(), other_plan.id).await;
    one.run("echo one > /tmp/mark").await;
    assert_ne!(other.run("cat /tmp/mark").await.code, 0, "a neighbour's file is visible");
    one.destroy().await;
    assert_eq!(other.see("echo alive").await, "alive");
    let id = other.id.clone();
    let driver = other.driver.clone();
    other.destroy().await;
    eventually("the scan is empty", || async { driver.scan().await.unwrap().is_empty().then_some(()) }).await;
    assert_gone(driver.connect(&id).await);
}

/// A new host name is seen inside, and only there.
pub async fn another_name_while_it_lives(harness: &dyn Harness) {
    let sandbox = Sandbox::create(harness, Resources::default()).await;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    sandbox.driver.rename(&sandbox.id, "another").await.unwrap();
    assert_eq!(sandbox.see("uname -n").await, "another");
    let configure = Configure { hostname: "another".to_owned(), ..Configure::default() };
    sandbox.guest.configure(configure).await.unwrap();
    assert_eq!(sandbox.see("cat /etc/hostname").await, "another");
    assert!(sandbox.see("cat /etc/hosts").await.contains("another"));
    for bad in ["", "a\nb", &"x".repeat(65)] {
        assert!(sandbox.driver.rename(&sandbox.id, bad).await.is_err(), "{bad:?}");
    }
    assert_eq!(sandbox.see("uname -n").await, "another");
    assert_eq!(std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap(), host);
    assert_gone(sandbox.driver.rename(&fresh_id(), "nobody").await);
    sandbox.destroy().await;
}
