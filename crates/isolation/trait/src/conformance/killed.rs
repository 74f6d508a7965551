//! Drivers that are killed at a step, for the tests of drivers that have fail points.
//!
//! The process that is killed is the test's own program, started again for its test `killed` with a [`Life`] in its
//! environment.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use atoll_core::id::{SandboxId, SnapshotId};
use atoll_core::sandbox::PauseMode;

use super::{assert_clean, assert_gone};
use crate::{Isolation, Plan};

const FAILPOINT: &str = "ATOLL_TEST_FAILPOINT";
const DIRECTORY: &str = "ATOLL_TEST_DIRECTORY";
const INSTANCE: &str = "ATOLL_TEST_INSTANCE";
const SANDBOX: &str = "ATOLL_TEST_SANDBOX";
const ARTIFACT: &str = "ATOLL_TEST_ARTIFACT";
/// The test that lives a life when there is one in its environment, and else does nothing.
const TEST: &str = "killed";

/// Where a driver works, and where it is killed.
#[derive(Debug)]
pub struct Life {
    /// Name of the fail point.
    pub failpoint: String,
    /// The driver's directory.
    pub directory: PathBuf,
    /// Its installation.
    pub instance: String,
    /// The sandbox that it makes.
    pub sandbox: SandboxId,
    /// The artifact with whose memory the sandbox is to begin, in tests of that.
    pub artifact: Option<SnapshotId>,
}

impl Life {
    /// What this process was started for; `None` in an ordinary run of the tests.
    #[must_use]
    pub fn of_this_process() -> Option<Self> {
        let text = |name| std::env::var_os(name).map(|value| value.into_string().unwrap());
        Some(Self {
            failpoint: text(FAILPOINT)?,
            directory: text(DIRECTORY)?.into(),
            instance: text(INSTANCE)?,
            sandbox: text(SANDBOX)?.parse().unwrap(),
            artifact: text(ARTIFACT).map(|id| id.parse().unwrap()),
        })
    }

    /// Starts another process that lives it, and waits until that process was killed.
    pub fn end(&self) {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST])
            .envs(self.artifact.iter().map(|artifact| (ARTIFACT, artifact.as_str())))
            .env(FAILPOINT, &self.failpoint)
            .env(DIRECTORY, &self.directory)
            .env(INSTANCE, &self.instance)
            .env(SANDBOX, self.sandbox.as_str())
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.signal(), Some(9), "it was not killed at {}: {status}", self.failpoint);
    }
}

/// `kill -9` of this process: what a fail point is to do.
pub fn kill_this_process() {
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
}

/// A whole life: made, put to disk, woken, removed.
pub async fn live(driver: &dyn Isolation, plan: &Plan) {
    driver.create(plan).await.unwrap();
    driver.hibernate(&plan.id, PauseMode::Filesystem).await.unwrap();
    driver.wake(plan).await.unwrap();
    driver.destroy(&plan.id).await.unwrap();
}

/// What another driver finds after a [`live`] that was cut short: a sandbox that is `whole`, or none; what is half asleep or
/// half awake can be put to disk and woken; all of it can be removed, and the id used again.
pub async fn can_be_taken_up(driver: &dyn Isolation, plan: &Plan, failpoint: &str, whole: bool) {
    let id = &plan.id;
    if whole {
        driver.adopt(id).await.unwrap_or_else(|error| panic!("{failpoint}: it is whole: {error:?}"));
    } else {
        assert_gone(driver.adopt(id).await);
    }
    if failpoint.contains("hibernate") || failpoint.contains("wake") {
        let slept = driver.hibernate(id, PauseMode::Filesystem).await;
        slept.unwrap_or_else(|error| panic!("{failpoint}: {error:?}"));
        driver.wake(plan).await.unwrap_or_else(|error| panic!("{failpoint}: {error:?}"));
    }
    driver.destroy(id).await.unwrap_or_else(|error| panic!("{failpoint}: {error:?}"));
    assert_clean(driver, id).await;
    driver.destroy(id).await.unwrap();
    driver.create(plan).await.unwrap_or_else(|error| panic!("{failpoint}: {error:?}"));
    driver.destroy(id).await.unwrap();
    assert_clean(driver, id).await;
}
