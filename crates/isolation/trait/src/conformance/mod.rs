//! What every driver must do, as functions that a driver's own tests call against the real thing.
//!
//! Each case makes its own sandboxes, destroys them, and panics with what it saw when the driver
//! breaks the contract. Cases can run at the same time, each on a [`Harness`] of its own. [`CASES`] in the
//! tests of a driver is spelled out by [`crate::conformance_tests`], so that none is forgotten.
#![expect(clippy::unwrap_used, reason = "these are assertions")]
#![expect(clippy::missing_panics_doc, reason = "panicking is how a case fails")]

pub mod facts;
pub mod killed;
pub mod lifecycle;
pub mod limits;
pub mod memory;
pub mod pause;
pub mod snapshots;
pub mod travel;

use std::collections::BTreeMap;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use atoll_core::id::SandboxId;
use atoll_core::spec::Resources;
use atoll_guest_protocol::client::{ExecEvent, ExecStream, GuestClient};
use atoll_guest_protocol::messages::{StartExec, Welcome};

pub use crate::step::chain;
use crate::{DiskSource, Execution, Isolation, IsolationError, Plan, RootFs};

/// How long anything that must happen may take on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// What the tests of a driver provide.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Opens a driver, each time on the same data.
    async fn open(&self) -> Arc<dyn Isolation>;

    /// What this level takes on the host for itself, on top of a sandbox's memory limit, bytes.
    fn overhead_bytes(&self) -> u64 {
        0
    }

    /// Whether set-user-id bits work: not in every version of every kernel in user space.
    async fn set_user_id(&self) -> bool {
        true
    }

    /// A root file system with coreutils, a shell, util-linux and perl, and the user `user` with id 1000.
    fn root(&self) -> RootFs;
}

/// Makes a test of each case: `conformance_tests!(harness)`, where `harness()` gives a fresh [`Harness`], and
/// panics where this host cannot have this level.
#[macro_export]
macro_rules! conformance_tests {
    ($harness:path) => {
        $crate::conformance_tests!($harness,
            lifecycle::makes_runs_and_removes,
            lifecycle::survives_its_driver,
            lifecycle::refuses_what_is_not_there,
            lifecycle::refuses_an_id_twice,
            lifecycle::reports_death,
            lifecycle::only_the_dead_one_dies,
            pause::what_is_frozen_goes_on,
            pause::what_is_frozen_outlives_its_driver,
            pause::what_is_frozen_can_be_destroyed,
            pause::a_hibernated_one_is_its_disk,
            pause::memory_comes_back,
            pause::what_sleeps_goes_on,
            lifecycle::another_name_while_it_lives,
            limits::memory_kills_only_inside,
            limits::processes_are_counted,
            limits::processes_of_all_users_are_counted,
            limits::the_disk_is_full_only_inside,
            limits::cpu_time_is_throttled,
            limits::io_is_limited,
            limits::limits_change_while_it_lives,
            snapshots::copies_what_was_there,
            snapshots::moves_what_nothing_else_needs,
            snapshots::is_of_one_moment,
            snapshots::the_disk_grows_and_does_not_shrink,
            snapshots::goes_back_to_a_snapshot,
            snapshots::by_another_driver,
            memory::copies_what_ran,
            memory::what_has_no_memory_is_refused,
            travel::what_sleeps_goes_on_elsewhere,
            facts::it_is_a_computer_of_its_own,
            facts::nothing_of_the_host_is_visible,
            facts::root_has_no_power_over_the_kernel,
            facts::there_is_only_loopback_and_the_gate,
            facts::root_and_user_are_what_they_seem
        );
    };
    ($harness:path, $($module:ident::$case:ident),+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                $crate::conformance::$module::$case(&$harness()).await;
            }
        )+
    };
}

/// What a command did.
#[derive(Debug)]
pub struct Output {
    /// Exit code; 128 and the signal when a signal ended it.
    pub code: i32,
    /// Standard output, as text.
    pub stdout: String,
    /// Standard error, as text.
    pub stderr: String,
}

/// One sandbox under test.
#[derive(Debug)]
pub struct Sandbox {
    /// Its driver.
    pub driver: Arc<dyn Isolation>,
    /// Its id.
    pub id: SandboxId,
    /// Its agent.
    pub guest: GuestClient,
    /// What the agent said at first.
    pub welcome: Welcome,
}

/// An id that no other test uses.
#[must_use]
pub fn fresh_id() -> SandboxId {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let random = RandomState::new().hash_one(now.as_nanos());
    SandboxId::from_parts(u64::try_from(now.as_millis()).unwrap(), random)
}

/// A plan with this root and these limits.
#[must_use]
pub fn plan(root: RootFs, resources: Resources) -> Plan {
    Plan {
        id: fresh_id(),
        root,
        resources,
        hostname: "conformance".to_owned(),
        disk: DiskSource::Empty,
        volumes: Vec::new(),
        layers: Vec::new(),
        execution: Execution::default(),
    }
}

/// Tries until `attempt` gives something, or panics with `what` at the deadline.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut attempt: impl FnMut() -> F) -> T {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        if let Some(value) = attempt().await {
            return value;
        }
        assert!(tokio::time::Instant::now() < deadline, "in {DEADLINE:?} it did not happen: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl Sandbox {
    /// Makes one with these limits and connects to it.
    pub async fn create(harness: &dyn Harness, resources: Resources) -> Self {
        let driver = harness.open().await;
        let plan = plan(harness.root(), resources);
        if let Err(error) = driver.create(&plan).await {
            panic!("cannot create a sandbox: {}", chain(&error));
        }
        Self::connect(driver, plan.id).await
    }

    /// Connects to a live one.
    pub async fn connect(driver: Arc<dyn Isolation>, id: SandboxId) -> Self {
        let (guest, welcome) = eventually("the guest agent answers", || async {
            let stream = driver.connect(&id).await.ok()?;
            GuestClient::connect(stream, id.as_str()).await.ok()
        })
        .await;
        Self { driver, id, guest, welcome }
    }

    /// Starts a shell script.
    pub async fn start(&self, exec: &str, user: &str, script: &str) -> ExecStream {
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned();
        let request = StartExec {
            exec_id: exec.to_owned(),
            argv: vec!["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned()],
            env: BTreeMap::from([("PATH".to_owned(), path)]),
            cwd: "/".to_owned(),
            user: user.to_owned(),
            tty: None,
            stdin: false,
            profiles: Vec::new(),
            end_tree: false,
        };
        self.guest.start_exec(request).await.unwrap()
    }

    /// Runs a shell script to its end.
    pub async fn run_as(&self, user: &str, script: &str) -> Output {
        let exec = format!("{}", fresh_id());
        let mut stream = self.start(&exec, user, script).await;
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let ended = tokio::time::timeout(DEADLINE, async {
            loop {
                match stream.next().await.unwrap().unwrap() {
                    ExecEvent::Output { stderr: true, bytes } => stderr.extend_from_slice(&bytes),
                    ExecEvent::Output { stderr: false, bytes } => stdout.extend_from_slice(&bytes),
                    ExecEvent::Exited(exited) => return exited,
                }
                // Closed when the exec has ended meanwhile, which means nothing.
                drop(stream.ack(stream.offset).await);
            }
        });
        let Ok(exited) = ended.await else { panic!("{script} did not end in {DEADLINE:?}") };
        self.guest.forget_exec(&exec).await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let code = exited.code.unwrap_or_else(|| 128 + exited.signal.unwrap_or(0));
        Output { code, stdout: text(stdout), stderr: text(stderr) }
    }

    /// Runs a shell script as root.
    pub async fn run(&self, script: &str) -> Output {
        self.run_as("root", script).await
    }

    /// Runs a shell script as root that must succeed; gives what it printed, trimmed.
    pub async fn see(&self, script: &str) -> String {
        let output = self.run(script).await;
        assert_eq!(output.code, 0, "{script} failed: {output:?}");
        output.stdout.trim().to_owned()
    }

    /// Destroys it, and makes sure that nothing is left.
    pub async fn destroy(self) {
        let Self { driver, id, guest, .. } = self;
        guest.close();
        if let Err(error) = driver.destroy(&id).await {
            panic!("cannot destroy a sandbox: {}", chain(&error));
        }
        assert_clean(&*driver, &id).await;
    }
}

/// Nothing on the host carries this id.
pub async fn assert_clean(driver: &dyn Isolation, id: &SandboxId) {
    assert!(!driver.sandboxes().await.unwrap().contains(id));
    let left: Vec<_> = driver.scan().await.unwrap().into_iter().filter(|r| r.sandbox == *id).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// It must be refused because there is no live instance.
pub fn assert_gone<T: std::fmt::Debug>(result: Result<T, IsolationError>) {
    assert!(matches!(result, Err(IsolationError::Gone)), "expected 'gone', got {result:?}");
}
