//! Live machines: watching, asking, connecting, measuring.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::spec::Resources;
use atoll_guest_protocol::control::{Answer, Limits, Question};
use atoll_isolation::{Death, DiskIo, Gate, GuestStream, IsolationError, Usage};
use atoll_isolation_host::{Process, check_hostname, gate, process};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use tokio::net::UnixStream;
use tokio::sync::OwnedMutexGuard;
use tokio::task::AbortHandle;

use crate::control::Control;
use crate::record::{AGENT_SOCKET, CONTROL_SOCKET, Record};
use crate::step::Step;
use crate::template::{self, vmm_limits};
use crate::{Inner, chain, stream, vmm};

/// How long a machine may take to answer a question that costs it nothing.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// How long it may take to say what it uses, before the answer is what it said last.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(2);

/// What a machine said about itself last.
#[derive(Debug, Clone, Copy)]
struct Told {
    pids: u32,
    oom_kills: u64,
}

/// One live machine.
#[derive(Debug)]
pub(crate) struct Machine {
    process: Process,
    pidfd: OwnedFd,
    record: Record,
    /// The network gate that came with its slot, until [`Inner::gate`] gives it away.
    gate: Mutex<Option<atoll_network::Gate>>,
    control: tokio::sync::Mutex<Option<Control>>,
    told: Mutex<Told>,
    /// Carries the newest stream to the agent: a port takes one connection at a time.
    carrying: Mutex<Option<AbortHandle>>,
    /// Held by the task that stops the machine, lets it go on, puts it to disk or copies it: one task at a time.
    alone: Arc<tokio::sync::Mutex<()>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    pub(crate) fn new(
        process: Process,
        pidfd: OwnedFd,
        record: Record,
        gate: Option<atoll_network::Gate>,
    ) -> Self {
        Self {
            process,
            pidfd,
            record,
            gate: Mutex::new(gate),
            control: tokio::sync::Mutex::new(None),
            told: Mutex::new(Told { pids: 1, oom_kills: 0 }),
            carrying: Mutex::new(None),
            alone: Arc::default(),
        }
    }

    /// Waits until no other task stops the machine or lets it go on, and keeps other tasks from doing so.
    pub(crate) async fn alone(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.alone).lock_owned().await
    }

    /// The same without waiting; `None` while another task does.
    fn try_alone(&self) -> Option<OwnedMutexGuard<()>> {
        Arc::clone(&self.alone).try_lock_owned().ok()
    }

    pub(crate) fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    pub(crate) fn process(&self) -> Process {
        self.process
    }

    pub(crate) fn is_dead(&self) -> bool {
        process::is_dead(&self.pidfd)
    }

    /// Takes its exit status if it was our child; the status itself says nothing about the guest.
    pub(crate) fn reap(&self) {
        let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }

    /// Connects to the control port, so that the machine knows that the server is there.
    pub(crate) async fn attend(&self) -> Result<(), IsolationError> {
        let mut control = self.control.lock().await;
        if control.is_none() {
            *control = Some(self.connect_control().await?);
        }
        Ok(())
    }

    async fn connect_control(&self) -> Result<Control, IsolationError> {
        let connected = self.record.with_socket(CONTROL_SOCKET, Control::connect).await;
        connected.step("connect to a machine's control port")
    }

    /// Asks it something.
    pub(crate) async fn ask(&self, question: Question, within: Duration) -> Result<Answer, IsolationError> {
        let mut control = self.control.lock().await;
        // Taken out: when this future is cancelled the connection is dropped, and with it an answer that was not read.
        let mut connection = match control.take() {
            Some(connection) => connection,
            None => self.connect_control().await?,
        };
        let answer = connection.ask(question, within).await?;
        *control = Some(connection);
        Ok(answer)
    }

    /// Asks what the sandbox uses; remembers it.
    async fn measure(&self) -> Told {
        if let Ok(answer) = self.ask(Question::Measure(true), MEASURE_TIMEOUT).await {
            *lock(&self.told) = Told { pids: answer.pids, oom_kills: answer.oom_kills };
        }
        *lock(&self.told)
    }

    fn told(&self) -> Told {
        *lock(&self.told)
    }
}

impl Inner {
    pub(crate) fn living(&self, id: &SandboxId) -> Result<Arc<Machine>, IsolationError> {
        self.live.get(id).filter(|machine| !machine.is_dead()).ok_or(IsolationError::Gone)
    }

    pub(crate) async fn adopt(self: &Arc<Self>, id: &SandboxId) -> Result<(), IsolationError> {
        if self.living(id).is_ok() {
            return Ok(());
        }
        let process = self.record(id).read_process().ok_or(IsolationError::Gone)?;
        let machine = self.take_up(id, process)?;
        self.settle_left_over(id, &machine).await
    }

    /// Enters a process among the living, if it is the VMM of this sandbox.
    pub(crate) fn take_up(&self, id: &SandboxId, process: Process) -> Result<Arc<Machine>, IsolationError> {
        let pidfd = process.open()?.ok_or(IsolationError::Gone)?;
        if !self.cgroups.contains(id, process.pid) {
            return Err(IsolationError::Gone);
        }
        let machine = Arc::new(Machine::new(process, pidfd, self.record(id), None));
        self.live.insert(id, Arc::clone(&machine));
        Ok(machine)
    }

    pub(crate) async fn connect(&self, id: &SandboxId) -> Result<Box<dyn GuestStream>, IsolationError> {
        let machine = self.living(id)?;
        if let Some(before) = lock(&machine.carrying).take() {
            before.abort();
        }
        let port =
            machine.record.with_socket(AGENT_SOCKET, async |path| UnixStream::connect(path).await).await;
        let port = port.step("connect to a machine's port")?;
        let (stream, carrying) = stream::open(port).await.step("connect to the guest agent")?;
        *lock(&machine.carrying) = Some(carrying);
        Ok(Box::new(stream))
    }

    /// The network gate: the one that the machine was made with, or a new one. Blocks for half a millisecond.
    pub(crate) fn gate(&self, id: &SandboxId) -> Result<Gate, IsolationError> {
        let machine = self.living(id)?;
        if let Some(gate) = lock(&machine.gate).take() {
            return Ok(gate::convert(gate));
        }
        let netns = File::open(format!("/proc/{}/ns/net", machine.process.pid))
            .step("open the network namespace of a sandbox")?;
        // A process that lives now has had its number all the time: what was opened is its own.
        self.living(id)?;
        gate::open(netns.as_fd())
    }

    pub(crate) async fn died(&self, id: &SandboxId) -> Death {
        let Some(machine) = self.live.get(id) else { return Death::Exited };
        if let Err(error) = process::ended(&machine.pidfd).await {
            tracing::error!(%id, error = chain(&error), "cannot watch a VMM; taking it for dead");
        }
        machine.reap();
        let starved = self.cgroups.oom_kills(id).is_ok_and(|kills| kills > 0);
        if starved { Death::OutOfMemory } else { Death::Exited }
    }

    /// CPU time and memory are the VMM's, and the host measures them. The machine itself tells what goes on inside.
    pub(crate) async fn usage(&self, id: &SandboxId) -> Result<Usage, IsolationError> {
        let disk_bytes = self.disk_bytes(id);
        if self.is_hibernated(id) {
            return Ok(Usage { disk_bytes, ..Usage::default() });
        }
        let outside = self.cgroups.usage(id)?;
        let inside = self.inside(id).await;
        Ok(Usage {
            pids: inside.map_or(0, |told| told.pids),
            oom_kills: outside.oom_kills.saturating_add(inside.map_or(0, |told| told.oom_kills)),
            disk_bytes,
            ..outside
        })
    }

    pub(crate) async fn oom_kills(&self, id: &SandboxId) -> Result<u64, IsolationError> {
        let outside = self.cgroups.oom_kills(id)?;
        // What the machine says may be any number.
        Ok(outside.saturating_add(self.inside(id).await.map_or(0, |told| told.oom_kills)))
    }

    pub(crate) async fn disk_io(&self, id: &SandboxId) -> Option<DiskIo> {
        let machine = self.living(id).ok()?;
        // A task that stops the machine speaks to its VMM, which listens to one connection at a time.
        let _alone = machine.try_alone()?;
        if self.cgroups.is_frozen(id).unwrap_or(true) {
            return None;
        }
        vmm::disk_io(&mut vmm::monitor(&machine.record).await.ok()?).await.ok()
    }

    async fn inside(&self, id: &SandboxId) -> Option<Told> {
        let machine = self.live.get(id)?;
        if machine.is_dead() || self.cgroups.is_frozen(id).unwrap_or(true) {
            return Some(machine.told());
        }
        Some(machine.measure().await)
    }

    pub(crate) async fn update(&self, id: &SandboxId, resources: &Resources) -> Result<(), IsolationError> {
        let machine = self.living(id)?;
        let size = machine.record.read_size().ok_or(IsolationError::Gone)?;
        let wanted = template::size(resources);
        if wanted.memory_mib > size.memory_mib || wanted.cpus > size.cpus {
            return Err(IsolationError::Unenforceable(format!(
                "a running machine does not grow: this one has {} MiB and {} processors, and {} MiB and {} would be needed",
                size.memory_mib, size.cpus, wanted.memory_mib, wanted.cpus
            )));
        }
        machine.ask(Question::Limit(limits(resources)), ANSWER_TIMEOUT).await?;
        self.cgroups.limit(id, &vmm_limits(size, resources))?;
        self.throttle(id, &machine, resources).await
    }

    pub(crate) async fn rename(&self, id: &SandboxId, hostname: &str) -> Result<(), IsolationError> {
        check_hostname(hostname)?;
        let machine = self.living(id)?;
        machine.ask(Question::Rename(hostname.to_owned()), ANSWER_TIMEOUT).await.map(drop)
    }
}

/// What the machine's own kernel enforces.
pub(crate) fn limits(resources: &Resources) -> Limits {
    Limits { memory_bytes: resources.memory_bytes, pids: resources.pids }
}
