//! The driver is killed at every step of making and removing a sandbox; another one finds and removes
//! all that is left.
#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

mod common;

use atoll_core::id::SandboxId;
use atoll_core::spec::Resources;
use atoll_isolation::conformance::fresh_id;
use atoll_isolation::conformance::killed::{Life, can_be_taken_up, kill_this_process, live};
use atoll_isolation::{DiskSource, Plan, RootFs};
use atoll_isolation_container::FAILPOINTS;
use common::{Containers, containers};

/// Where the process lives and is written down.
const WHOLE: [&str; 3] =
    ["container::create::record", "container::hibernate::start", "container::destroy::start"];

fn plan(id: &SandboxId) -> Plan {
    Plan {
        id: id.clone(),
        root: RootFs::Host,
        resources: Resources::default(),
        hostname: "box".into(),
        disk: DiskSource::Empty,
        volumes: Vec::new(),
        layers: Vec::new(),
        execution: atoll_isolation::Execution::default(),
    }
}

/// The life of the process that is killed. As a test of its own it does nothing.
#[tokio::test]
async fn killed() {
    let Some(life) = Life::of_this_process() else { return };
    let harness = Containers {
        _dir: None,
        witness: None,
        slots: None,
        path: life.directory,
        instance: life.instance,
        root: RootFs::Host,
    };
    let driver = harness.driver();
    atoll_failpoint::cfg_callback(&life.failpoint, kill_this_process).unwrap();
    live(&driver, &plan(&life.sandbox)).await;
}

#[tokio::test]
async fn whatever_is_half_made_or_half_removed_can_be_removed() {
    // One installation, as a server has it that is killed again and again.
    let harness = containers();
    for failpoint in FAILPOINTS {
        let id = fresh_id();
        let life = Life {
            failpoint: failpoint.to_owned(),
            directory: harness.path.clone(),
            instance: harness.instance.clone(),
            sandbox: id.clone(),
            artifact: None,
        };
        life.end();
        can_be_taken_up(&harness.driver(), &plan(&id), failpoint, WHOLE.contains(&failpoint)).await;
    }
}
