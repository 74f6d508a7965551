//! A driver without a kernel: instances live in memory and speak the real guest protocol.
//!
//! For tests of everything above the trait. It keeps the contract: instances belong to a [`FakeHost`],
//! not to the driver, so they survive a driver that is dropped; several drivers can be opened on one
//! host, as a restarted server would. Knobs make it fail on demand.
//!
//! Inside an instance run, besides a map of files, these commands:
//!
//! | command | does |
//! |---|---|
//! | `true`, `false` | exits 0, 1 |
//! | `exit N` | exits N |
//! | `echo WORDS…` | writes the words and a line end |
//! | `err WORDS…` | the same on standard error |
//! | `seq N` | writes the numbers 1 to N in lines |
//! | `cat` | copies standard input to output until its end |
//! | `sleep SECONDS` | waits on tokio's clock, or until a signal |
//! | `serve` | writes a line that it never writes twice, then waits for a signal |
//! | `fail-start` | refuses to start: `CommandNotExecutable` |
//!
//! Anything else is `CommandNotFound`. Any signal ends a command.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_core::id::{SandboxId, SnapshotId};
use atoll_core::sandbox::PauseMode;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use crate::{Death, IsolationError, Plan, Usage};

mod artifact;
mod driver;
mod exec;
mod guest;
mod volume;

use artifact::Artifact;
use guest::Guest;
pub use volume::FakeVolumes;

/// How a snapshot with memory is counted.
const WITH_MEMORY: &str = "snapshot_with_memory";

/// What a connection attempt meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Connect {
    /// A guest.
    #[default]
    Works,
    /// [`crate::Gates::connect`] never returns.
    Hangs,
    /// A stream on which no guest answers.
    Silent,
    /// A stream that carries garbage.
    Garbage,
}

#[derive(Debug)]
struct Instance {
    plan: Plan,
    guest: Arc<Guest>,
    death: watch::Sender<Option<Death>>,
    usage: Usage,
    /// Its disk is all there is of it, or its disk and its memory.
    hibernated: Option<PauseMode>,
}

#[derive(Debug, Default)]
struct State {
    instances: BTreeMap<SandboxId, Instance>,
    artifacts: BTreeMap<SnapshotId, Artifact>,
    failing_snapshots: u32,
    held_seals: u32,
    seals_go_on: Arc<Notify>,
    failing_creates: u32,
    half_made: bool,
    failing_destroys: u32,
    failing_wakes: u32,
    failing_adopts: u32,
    memory_available: Option<u64>,
    reclaimed: Vec<SandboxId>,
    failing_renames: u32,
    no_io_limits: bool,
    memory_pause: bool,
    foreign_memory: Option<String>,
    connect: Connect,
    create_delay: Duration,
    /// How often each call was made, by name.
    calls: BTreeMap<&'static str, u64>,
}

/// The machine that instances live on. Clones are the same machine.
#[derive(Debug, Clone, Default)]
pub struct FakeHost {
    state: Arc<Mutex<State>>,
    /// Where instances run; where they are connected to when there is none.
    runtime: Option<Handle>,
}

impl FakeHost {
    /// An empty machine.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty machine whose instances run on `runtime`: they outlive the runtime of a server that
    /// is killed.
    #[must_use]
    pub fn on(runtime: Handle) -> Self {
        Self { state: Arc::default(), runtime: Some(runtime) }
    }

    /// Opens a driver, as a server does when it starts.
    #[must_use]
    pub fn driver(&self) -> FakeIsolation {
        FakeIsolation { host: self.clone() }
    }

    /// The next `times` creates fail; with `half_made` they leave an instance behind all the same.
    pub fn fail_create(&self, times: u32, half_made: bool) {
        let mut state = self.lock();
        state.failing_creates = times;
        state.half_made = half_made;
    }

    /// The next `times` destroys fail.
    pub fn fail_destroy(&self, times: u32) {
        self.lock().failing_destroys = times;
    }

    /// The next `times` wakes fail half-way.
    pub fn fail_wake(&self, times: u32) {
        self.lock().failing_wakes = times;
    }

    /// The next `times` instances cannot be taken up, though they are there.
    pub fn fail_adopt(&self, times: u32) {
        self.lock().failing_adopts = times;
    }

    /// What [`Isolation::memory_available`] says.
    pub fn set_memory_available(&self, bytes: Option<u64>) {
        self.lock().memory_available = bytes;
    }

    /// Instances whose memory was reclaimed, in this order.
    #[must_use]
    pub fn reclaimed(&self) -> Vec<SandboxId> {
        self.lock().reclaimed.clone()
    }

    /// Whether an instance stands still.
    #[must_use]
    pub fn is_frozen(&self, id: &SandboxId) -> bool {
        self.lock().instances.get(id).is_some_and(|instance| instance.alive() && instance.guest.is_frozen())
    }

    /// Whether only the disk of an instance is left.
    #[must_use]
    pub fn is_hibernated(&self, id: &SandboxId) -> bool {
        self.lock().instances.get(id).is_some_and(|instance| instance.hibernated.is_some())
    }

    /// From now on instances can be put to disk with their memory.
    pub fn allow_memory_pause(&self) {
        self.lock().memory_pause = true;
    }

    /// From now on the memory of instances that are put to disk cannot be used, for this reason, as after a change of the
    /// programs that wrote it.
    pub fn refuse_memory(&self, why: &str) {
        self.lock().foreign_memory = Some(why.to_owned());
    }

    /// The next `times` changes of a host name fail.
    pub fn fail_rename(&self, times: u32) {
        self.lock().failing_renames = times;
    }

    /// From now on limits of disk I/O are refused.
    pub fn refuse_io_limits(&self) {
        self.lock().no_io_limits = true;
    }

    /// The next `times` snapshots fail and leave an artifact behind all the same.
    pub fn fail_snapshot(&self, times: u32) {
        self.lock().failing_snapshots = times;
    }

    /// The next `times` seals of artifacts, which are counted, do not go on before [`Self::let_seals_go_on`].
    pub fn hold_seals(&self, times: u32) {
        self.lock().held_seals = times;
    }

    /// Lets all seals that are held go on.
    pub fn let_seals_go_on(&self) {
        self.lock().seals_go_on.notify_waiters();
    }

    /// The memory of all artifacts cannot be used any more, as after a change of the programs that wrote it.
    pub fn spoil_memory(&self) {
        for artifact in self.lock().artifacts.values_mut() {
            artifact.memory = None;
        }
    }

    /// Every create takes this long, on tokio's clock.
    pub fn delay_create(&self, delay: Duration) {
        self.lock().create_delay = delay;
    }

    /// What connections meet from now on.
    pub fn set_connect(&self, connect: Connect) {
        self.lock().connect = connect;
    }

    /// Ends an instance now; its connections break.
    pub fn die(&self, id: &SandboxId, death: Death) {
        if let Some(instance) = self.lock().instances.get(id) {
            instance.kill(death);
        }
    }

    /// Breaks the connections of an instance, which lives on.
    pub fn cut_connections(&self, id: &SandboxId) {
        if let Some(instance) = self.lock().instances.get(id) {
            instance.guest.cut();
        }
    }

    /// Sends garbage on the connections of an instance. While output flows the garbage may fall into
    /// the middle of it, where it is output.
    pub fn break_protocol(&self, id: &SandboxId) {
        if let Some(instance) = self.lock().instances.get(id) {
            instance.guest.send_garbage();
        }
    }

    /// From now on the guest of an instance lists no exec, and serves their streams all the same.
    pub fn hide_execs(&self, id: &SandboxId) {
        if let Some(instance) = self.lock().instances.get(id) {
            instance.guest.hide_execs();
        }
    }

    /// Sets what [`crate::Lifecycle::usage`] says.
    pub fn set_usage(&self, id: &SandboxId, usage: Usage) {
        if let Some(instance) = self.lock().instances.get_mut(id) {
            instance.usage = usage;
        }
    }

    /// The plan an instance was made by, with the resources and the host name it has now.
    #[must_use]
    pub fn plan(&self, id: &SandboxId) -> Option<Plan> {
        self.lock().instances.get(id).map(|instance| instance.plan.clone())
    }

    /// Content of a file in an instance.
    #[must_use]
    pub fn file(&self, id: &SandboxId, path: &str) -> Option<Vec<u8>> {
        self.lock().instances.get(id)?.guest.file(path)
    }

    /// How often a call of the trait was made, by its name.
    #[must_use]
    pub fn calls(&self, name: &str) -> u64 {
        self.lock().calls.get(name).copied().unwrap_or(0)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A test that panicked elsewhere must not hide behind this.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, name: &'static str) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        *state.calls.entry(name).or_default() += 1;
        state
    }
}

impl Instance {
    fn alive(&self) -> bool {
        self.death.borrow().is_none()
    }

    /// Stands still without a connection, and is no live instance any more.
    fn fall_asleep(&self) {
        self.guest.set_frozen(true);
        self.guest.cut();
        self.say_dead(Death::Exited);
    }

    fn kill(&self, death: Death) {
        self.guest.end();
        self.say_dead(death);
    }

    fn say_dead(&self, death: Death) {
        self.death.send_if_modified(|now| {
            let first = now.is_none();
            if first {
                *now = Some(death);
            }
            first
        });
    }
}

/// A driver on a [`FakeHost`].
#[derive(Debug)]
pub struct FakeIsolation {
    host: FakeHost,
}

impl FakeIsolation {
    fn live(state: &State, id: &SandboxId) -> Result<Arc<Guest>, IsolationError> {
        let live = state.instances.get(id).filter(|instance| instance.alive());
        live.map(|instance| Arc::clone(&instance.guest)).ok_or(IsolationError::Gone)
    }
}

fn kernel(step: &str, source: std::io::Error) -> IsolationError {
    IsolationError::Kernel { step: step.to_owned(), source }
}

fn injected(step: &str) -> IsolationError {
    kernel(step, std::io::Error::other("injected"))
}
