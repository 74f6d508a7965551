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
use std::fs::File;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use atoll_core::id::{SandboxId, SnapshotId};
use atoll_core::sandbox::PauseMode;
use atoll_core::snapshot::Comparison;
use atoll_core::spec::{IsolationLevel, Resources};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::{
    ArtifactUsage, Check, Death, DiskSource, Gate, GuestStream, Isolation, IsolationError, Original, Plan,
    Resource, RootFs, Status, Taken, Usage,
};

mod artifact;
mod exec;
mod guest;

use artifact::Artifact;
use guest::{Files, Guest};

/// How a snapshot with memory is counted.
const WITH_MEMORY: &str = "snapshot_with_memory";

/// What a connection attempt meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Connect {
    /// A guest.
    #[default]
    Works,
    /// [`Isolation::connect`] never returns.
    Hangs,
    /// A stream that nobody answers on.
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
    /// Its disk is all there is of it.
    hibernated: bool,
}

#[derive(Debug, Default)]
struct State {
    instances: BTreeMap<SandboxId, Instance>,
    artifacts: BTreeMap<SnapshotId, Artifact>,
    failing_snapshots: u32,
    failing_creates: u32,
    half_made: bool,
    failing_destroys: u32,
    failing_wakes: u32,
    failing_adopts: u32,
    memory_available: Option<u64>,
    reclaimed: Vec<SandboxId>,
    failing_renames: u32,
    no_io_limits: bool,
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

    /// The next so many instances cannot be taken up, though they are there.
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
        self.lock().instances.get(id).is_some_and(|instance| instance.hibernated)
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

    /// Sets what [`Isolation::usage`] says.
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

    fn kill(&self, death: Death) {
        self.guest.end();
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

#[async_trait]
impl Isolation for FakeIsolation {
    fn level(&self) -> IsolationLevel {
        IsolationLevel::Container
    }

    async fn doctor(&self) -> Vec<Check> {
        vec![Check::new("fake", Status::Limited, "instances live in memory, nothing is isolated")]
    }

    fn check_limits(&self, resources: &Resources) -> Result<(), IsolationError> {
        if self.host.lock().no_io_limits { crate::no_io_limits(resources, self.level()) } else { Ok(()) }
    }

    async fn create(&self, plan: &Plan) -> Result<(), IsolationError> {
        let delay = self.host.count("create").create_delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let mut state = self.host.lock();
        if state.instances.contains_key(&plan.id) {
            return Err(IsolationError::Kernel {
                step: "make the instance".to_owned(),
                source: std::io::ErrorKind::AlreadyExists.into(),
            });
        }
        let fails = state.failing_creates > 0;
        state.failing_creates = state.failing_creates.saturating_sub(1);
        if !fails || state.half_made {
            let instance = Instance {
                plan: plan.clone(),
                guest: self.guest(plan, &state)?,
                death: watch::Sender::new(fails.then_some(Death::Exited)),
                usage: Usage { pids: 1, ..Usage::default() },
                hibernated: false,
            };
            state.instances.insert(plan.id.clone(), instance);
        }
        if fails { Err(injected("make the instance")) } else { Ok(()) }
    }

    async fn adopt(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let mut state = self.host.count("adopt");
        if state.failing_adopts > 0 {
            state.failing_adopts -= 1;
            return Err(injected("take an instance up"));
        }
        state.instances.get(id).filter(|instance| instance.alive()).map(|_| ()).ok_or(IsolationError::Gone)
    }

    async fn connect(&self, id: &SandboxId) -> Result<Box<dyn GuestStream>, IsolationError> {
        let (connect, guest) = {
            let state = self.host.count("connect");
            let instance = state.instances.get(id).filter(|instance| instance.alive());
            (state.connect, Arc::clone(&instance.ok_or(IsolationError::Gone)?.guest))
        };
        match connect {
            Connect::Works => Ok(Box::new(guest.serve())),
            Connect::Silent => Ok(Box::new(guest.silent())),
            Connect::Garbage => Ok(Box::new(guest.garbage())),
            Connect::Hangs => std::future::pending().await,
        }
    }

    /// Sockets on the host's loopback; nothing leads to them by itself.
    async fn gate(&self, id: &SandboxId) -> Result<Gate, IsolationError> {
        self.host.count("gate").instances.get(id).filter(|i| i.alive()).ok_or(IsolationError::Gone)?;
        let open = || {
            let tcp = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            tcp.set_nonblocking(true)?;
            let dns = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            dns.set_nonblocking(true)?;
            let (proxy, resolver) = (tcp.local_addr()?, dns.local_addr()?);
            let (original, steering) = (Original::LocalAddress, Box::new(()));
            Ok(Gate { tcp, dns: Some(dns), proxy, resolver, original, steering })
        };
        open().map_err(|source| IsolationError::Kernel { step: "open the gate".to_owned(), source })
    }

    async fn died(&self, id: &SandboxId) -> Death {
        let mut death = match self.host.count("died").instances.get(id) {
            Some(instance) => instance.death.subscribe(),
            None => return Death::Exited,
        };
        // An instance that was removed has been killed before.
        match death.wait_for(Option::is_some).await {
            Ok(death) => death.clone().unwrap_or(Death::Exited),
            Err(_removed) => Death::Exited,
        }
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, IsolationError> {
        let state = self.host.count("usage");
        let there = state.instances.get(id).filter(|instance| instance.alive() || instance.hibernated);
        there.map(|instance| instance.usage).ok_or(IsolationError::Gone)
    }

    async fn freeze(&self, id: &SandboxId) -> Result<(), IsolationError> {
        Self::live(&self.host.count("freeze"), id)?.set_frozen(true);
        Ok(())
    }

    async fn thaw(&self, id: &SandboxId) -> Result<(), IsolationError> {
        Self::live(&self.host.count("thaw"), id)?.set_frozen(false);
        Ok(())
    }

    async fn reclaim(&self, id: &SandboxId) -> Result<u64, IsolationError> {
        let mut state = self.host.count("reclaim");
        let live = state.instances.get_mut(id).filter(|instance| instance.alive());
        let bytes = std::mem::take(&mut live.ok_or(IsolationError::Gone)?.usage.memory_bytes);
        state.reclaimed.push(id.clone());
        Ok(bytes)
    }

    fn memory_pause(&self) -> Result<(), IsolationError> {
        Err(IsolationError::CannotPause("memory pause unavailable: this is a fake".to_owned()))
    }

    async fn hibernate(&self, id: &SandboxId, mode: PauseMode) -> Result<(), IsolationError> {
        if mode != PauseMode::Filesystem {
            return self.memory_pause();
        }
        let mut state = self.host.count("hibernate");
        let instance = state.instances.get_mut(id).ok_or(IsolationError::Gone)?;
        instance.kill(Death::Exited);
        instance.hibernated = true;
        instance.usage = Usage { disk_bytes: instance.usage.disk_bytes, ..Usage::default() };
        Ok(())
    }

    async fn wake(&self, plan: &Plan) -> Result<(), IsolationError> {
        let mut state = self.host.count("wake");
        let fails = state.failing_wakes > 0;
        state.failing_wakes = state.failing_wakes.saturating_sub(1);
        let runtime = self.host.runtime.clone();
        let kept = state.instances.get_mut(&plan.id).filter(|instance| instance.hibernated);
        let instance = kept.ok_or(IsolationError::Gone)?;
        instance.guest = instance.guest.boot_again(runtime);
        instance.death.send_replace(None);
        instance.plan = plan.clone();
        instance.hibernated = false;
        if fails { Err(injected("wake the instance")) } else { Ok(()) }
    }

    async fn memory_available(&self) -> Option<u64> {
        self.host.count("memory_available").memory_available
    }

    async fn update(&self, id: &SandboxId, resources: &Resources) -> Result<(), IsolationError> {
        let mut state = self.host.count("update");
        let live = state.instances.get_mut(id).filter(|instance| instance.alive());
        let live = live.ok_or(IsolationError::Gone)?;
        if live.guest.is_frozen() {
            return Err(injected("limit an instance that stands still"));
        }
        live.plan.resources = *resources;
        Ok(())
    }

    async fn rename(&self, id: &SandboxId, hostname: &str) -> Result<(), IsolationError> {
        let mut state = self.host.count("rename");
        if state.failing_renames > 0 {
            state.failing_renames -= 1;
            return Err(injected("set the host name"));
        }
        let live = state.instances.get_mut(id).filter(|instance| instance.alive());
        hostname.clone_into(&mut live.ok_or(IsolationError::Gone)?.plan.hostname);
        Ok(())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let mut state = self.host.count("destroy");
        if state.failing_destroys > 0 {
            state.failing_destroys -= 1;
            return Err(injected("remove the instance"));
        }
        if let Some(instance) = state.instances.remove(id) {
            instance.kill(Death::Exited);
        }
        Ok(())
    }

    async fn snapshot(&self, id: &SandboxId, artifact: &SnapshotId) -> Result<Taken, IsolationError> {
        self.take("snapshot", id, artifact)
    }

    fn keeps_memory(&self) -> bool {
        true
    }

    async fn snapshot_with_memory(
        &self,
        id: &SandboxId,
        artifact: &SnapshotId,
    ) -> Result<Taken, IsolationError> {
        self.take(WITH_MEMORY, id, artifact)
    }

    async fn replace(&self, plan: &Plan, committed: Box<dyn FnOnce() + Send>) -> Result<(), IsolationError> {
        {
            let mut state = self.host.count("replace");
            if let DiskSource::Artifact(id) = &plan.disk
                && !state.artifacts.contains_key(id)
            {
                return Err(IsolationError::NoArtifact);
            }
            committed();
            if let Some(instance) = state.instances.remove(&plan.id) {
                instance.kill(Death::Exited);
            }
        }
        self.create(plan).await
    }

    async fn artifacts(&self) -> Result<Vec<SnapshotId>, IsolationError> {
        Ok(self.host.count("artifacts").artifacts.keys().cloned().collect())
    }

    async fn seal_artifact(&self, artifact: &SnapshotId) -> Result<ArtifactUsage, IsolationError> {
        let state = self.host.count("seal_artifact");
        let found = state.artifacts.get(artifact).ok_or(IsolationError::NoArtifact)?;
        found.usage().map_err(|source| kernel("measure a snapshot", source))
    }

    async fn compare(
        &self,
        _root: &RootFs,
        from: Option<&SnapshotId>,
        to: &SnapshotId,
        _with_text: bool,
    ) -> Result<Comparison, IsolationError> {
        let state = self.host.count("compare");
        let files = |id: &SnapshotId| {
            let found = state.artifacts.get(id).ok_or(IsolationError::NoArtifact)?;
            found.files().map_err(|source| kernel("read a disk", source))
        };
        let (from, to) = (from.map_or_else(|| Ok(Files::new()), files)?, files(to)?);
        Ok(artifact::compare(&from, &to))
    }

    async fn read_artifact(&self, artifact: &SnapshotId) -> Result<File, IsolationError> {
        let state = self.host.count("read_artifact");
        let found = state.artifacts.get(artifact).ok_or(IsolationError::NoArtifact)?;
        found.open().map_err(|source| kernel("read a snapshot", source))
    }

    async fn write_artifact(&self, artifact: &SnapshotId, bytes: u64) -> Result<File, IsolationError> {
        let made = Artifact::empty(bytes).map_err(|source| kernel("make a snapshot", source))?;
        let disk = made.open().map_err(|source| kernel("write a snapshot", source))?;
        self.host.count("write_artifact").artifacts.insert(artifact.clone(), made);
        Ok(disk)
    }

    async fn check_artifact(&self, artifact: &SnapshotId) -> Result<ArtifactUsage, IsolationError> {
        let state = self.host.count("check_artifact");
        let found = state.artifacts.get(artifact).ok_or(IsolationError::NoArtifact)?;
        found.files().map_err(|error| IsolationError::BadArtifact(error.to_string()))?;
        found.usage().map_err(|source| kernel("measure a snapshot", source))
    }

    async fn remove_artifact(&self, artifact: &SnapshotId) -> Result<(), IsolationError> {
        self.host.count("remove_artifact").artifacts.remove(artifact);
        Ok(())
    }

    async fn scan(&self) -> Result<Vec<Resource>, IsolationError> {
        let state = self.host.count("scan");
        let resource =
            |id: &SandboxId| Resource { sandbox: id.clone(), kind: "instance", name: format!("fake-{id}") };
        Ok(state.instances.keys().map(resource).collect())
    }
}
