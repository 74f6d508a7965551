//! The driver is killed at every step of making and removing a sandbox; another one finds and removes
//! all that is left.
//!
//! The one that is killed is this very program, started again with the test [`killed`] and a failpoint
//! in its environment.
#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

mod common;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use atoll_core::id::SandboxId;
use atoll_core::sandbox::PauseMode;
use atoll_core::spec::Resources;
use atoll_isolation::conformance::{assert_clean, assert_gone, fresh_id};
use atoll_isolation::{DiskSource, Isolation, Plan, RootFs};
use atoll_isolation_container::FAILPOINTS;
use common::{Containers, containers};

const FAILPOINT: &str = "ATOLL_TEST_FAILPOINT";
const DIRECTORY: &str = "ATOLL_TEST_DIRECTORY";
const INSTANCE: &str = "ATOLL_TEST_INSTANCE";
const SANDBOX: &str = "ATOLL_TEST_SANDBOX";

/// Where the process lives and is written down.
const WHOLE: [&str; 3] =
    ["container::create::record", "container::hibernate::start", "container::destroy::start"];

fn text(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.into_string().unwrap())
}

fn plan(id: &SandboxId) -> Plan {
    Plan {
        id: id.clone(),
        root: RootFs::Host,
        resources: Resources::default(),
        hostname: "box".into(),
        disk: DiskSource::Empty,
        volumes: Vec::new(),
    }
}

/// The life of the process that is killed. As a test of its own it does nothing.
#[tokio::test]
async fn killed() {
    let Some(failpoint) = text(FAILPOINT) else { return };
    let id: SandboxId = text(SANDBOX).unwrap().parse().unwrap();
    let harness = Containers {
        _dir: None,
        path: text(DIRECTORY).unwrap().into(),
        instance: text(INSTANCE).unwrap(),
        root: RootFs::Host,
    };
    let driver = harness.driver();
    fail::cfg_callback(failpoint, || {
        let own = rustix::process::getpid();
        rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
    })
    .unwrap();
    let plan = plan(&id);
    driver.create(&plan).await.unwrap();
    driver.hibernate(&id, PauseMode::Filesystem).await.unwrap();
    driver.wake(&plan).await.unwrap();
    driver.destroy(&id).await.unwrap();
}

fn run_until_killed(harness: &Containers, failpoint: &str, id: &SandboxId) {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed"])
        .env(FAILPOINT, failpoint)
        .env(DIRECTORY, &harness.path)
        .env(INSTANCE, &harness.instance)
        .env(SANDBOX, id.as_str())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.signal(), Some(9), "it was not killed at {failpoint}: {status}");
}

#[tokio::test]
async fn whatever_is_half_made_or_half_removed_can_be_removed() {
    for failpoint in FAILPOINTS {
        let (harness, id) = (containers(), fresh_id());
        run_until_killed(&harness, failpoint, &id);
        let driver = harness.driver();
        if WHOLE.contains(&failpoint) {
            driver.adopt(&id).await.expect("it is whole, and found");
        } else {
            assert_gone(driver.adopt(&id).await);
        }
        if failpoint.contains("hibernate") || failpoint.contains("wake") {
            // What is half asleep or half awake can be put to disk, and woken.
            let plan = plan(&id);
            driver
                .hibernate(&id, PauseMode::Filesystem)
                .await
                .unwrap_or_else(|e| panic!("{failpoint}: {e:?}"));
            driver.wake(&plan).await.unwrap_or_else(|error| panic!("{failpoint}: {error:?}"));
        }
        driver.destroy(&id).await.unwrap_or_else(|error| panic!("{failpoint}: {error:?}"));
        assert_clean(&driver, &id).await;
        driver.destroy(&id).await.unwrap();
        // The id can be used again: nothing stands in its way.
        let again = plan(&id);
        driver.create(&again).await.unwrap_or_else(|error| panic!("{failpoint}: {error:?}"));
        driver.destroy(&id).await.unwrap();
        assert_clean(&driver, &id).await;
    }
}
