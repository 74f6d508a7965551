//! Live sandboxes: watching, asking, connecting, measuring.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::spec::Resources;
use atoll_guest_protocol::control::{Answer, Ask, Limits, Question};
use atoll_guest_protocol::sentry::{AGENT_SOCKET, CONTROL_SOCKET};
use atoll_guest_protocol::serial::{Deframer, Kind, encode_message};
use atoll_isolation::{Death, Gate, GuestStream, IsolationError, Usage};
use atoll_isolation_host::{Process, check_hostname, gate, process};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::create::check_limits;
use crate::launch::SHARED;
use crate::step::{Step, chain, failed};
use crate::{Inner, host_limits};

/// How long the agent may take to answer a question.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// How long it may take to say what the sandbox uses, before the answer is what it said last.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes read at once: answers are short.
const READ_BYTES: usize = 4 << 10;
/// Most of an agent's words that is kept, characters.
const SAID_MAX: usize = 300;

/// What an agent said about its sandbox last.
#[derive(Debug, Clone, Copy)]
struct Told {
    pids: u32,
    oom_kills: u64,
}

/// One live sandbox.
#[derive(Debug)]
pub(crate) struct Sentry {
    process: Process,
    pidfd: OwnedFd,
    /// The network gate that came with its slot, until [`Inner::gate`] gives it away.
    gate: Mutex<Option<atoll_network::Gate>>,
    /// Held by the task that asks the agent, which takes one question at a time.
    asking: tokio::sync::Mutex<()>,
    told: Mutex<Told>,
    /// Held by the task that freezes its disk: one task at a time.
    freezing: Mutex<()>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sentry {
    pub(crate) fn new(process: Process, pidfd: OwnedFd, gate: Option<atoll_network::Gate>) -> Self {
        Self {
            process,
            pidfd,
            gate: Mutex::new(gate),
            asking: tokio::sync::Mutex::default(),
            told: Mutex::new(Told { pids: 1, oom_kills: 0 }),
            freezing: Mutex::default(),
        }
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

    /// Takes its exit status if it was our child; the status itself says nothing.
    pub(crate) fn reap(&self) {
        let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }

    /// Waits until no other task freezes its disk, and keeps other tasks from doing so.
    pub(crate) fn freezing(&self) -> MutexGuard<'_, ()> {
        lock(&self.freezing)
    }

    /// Opens something of the jail's first process.
    fn of_process(&self, name: &str, flags: OFlags) -> Result<OwnedFd, IsolationError> {
        let path = format!("/proc/{}/{name}", self.process.pid);
        let opened = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty());
        // A process that lives now has had its number all the time: what was opened is its own.
        if self.is_dead() {
            return Err(IsolationError::Gone);
        }
        opened.step(format!("open {name} of a sandbox"))
    }

    /// Connects to a socket in the shared directory. The guest may put anything there: only a socket in that directory
    /// itself is accepted.
    pub(crate) async fn connect(&self, name: &str) -> Result<UnixStream, IsolationError> {
        let shared = self.of_process(&format!("root{SHARED}"), OFlags::PATH | OFlags::DIRECTORY)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let socket =
            openat2(&shared, name, flags, Mode::empty(), resolve).step("find the socket of a sandbox")?;
        let kind = rustix::fs::fstat(&socket).step("find the socket of a sandbox")?.st_mode;
        if rustix::fs::FileType::from_raw_mode(kind) != rustix::fs::FileType::Socket {
            return Err(failed("find the socket of a sandbox".to_owned(), io::Error::other("it is none")));
        }
        // The descriptor names the socket itself: even when its path changes meanwhile, nothing else is reached.
        let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
        UnixStream::connect(path).await.step("connect to a sandbox")
    }

    /// Asks the agent something.
    pub(crate) async fn ask(&self, question: Question, within: Duration) -> Result<Answer, IsolationError> {
        let _turn = self.asking.lock().await;
        let asked = async {
            let stream = self.connect(CONTROL_SOCKET).await?;
            ask(stream, question).await.step("ask a sandbox's agent")
        };
        let late = || io::Error::new(io::ErrorKind::TimedOut, "it does not answer");
        let answer = tokio::time::timeout(within, asked)
            .await
            .unwrap_or_else(|_late| Err(failed("ask a sandbox's agent".to_owned(), late())))?;
        if answer.error.is_empty() {
            return Ok(answer);
        }
        let said: String = answer.error.chars().filter(|c| !c.is_control()).take(SAID_MAX).collect();
        Err(failed("ask a sandbox's agent".to_owned(), io::Error::other(format!("it says: {said}"))))
    }

    async fn measure(&self) -> Told {
        if let Ok(answer) = self.ask(Question::Measure(true), MEASURE_TIMEOUT).await {
            *lock(&self.told) = Told { pids: answer.pids, oom_kills: answer.oom_kills };
        }
        *lock(&self.told)
    }
}

async fn ask(mut stream: UnixStream, question: Question) -> io::Result<Answer> {
    let nonce = random()?;
    let mut wire = Vec::new();
    encode_message(Kind::Ask, &Ask { nonce, question: Some(question) }, &mut wire);
    stream.write_all(&wire).await?;
    let (mut deframer, mut buffer, mut found) = (Deframer::new(), [0; READ_BYTES], None);
    loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        deframer.push(&buffer[..read], |frame| {
            let answer = frame.message::<Answer>().ok().filter(|_| frame.kind == Kind::Answer);
            found = answer.filter(|answer| answer.nonce == nonce).or(found.take());
        });
        if let Some(answer) = found.take() {
            return Ok(answer);
        }
    }
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|_none| io::Error::other("the host has no random bytes"))?;
    Ok(u64::from_ne_bytes(bytes))
}

impl Inner {
    pub(crate) fn living(&self, id: &SandboxId) -> Result<Arc<Sentry>, IsolationError> {
        self.live.get(id).filter(|sentry| !sentry.is_dead()).ok_or(IsolationError::Gone)
    }

    pub(crate) fn adopt(&self, id: &SandboxId) -> Result<(), IsolationError> {
        if self.living(id).is_ok() {
            return Ok(());
        }
        let process = self.record(id).read_process().ok_or(IsolationError::Gone)?;
        let pidfd = process.open()?.ok_or(IsolationError::Gone)?;
        if !self.cgroups.contains(id, process.pid) {
            return Err(IsolationError::Gone);
        }
        self.thaw_disk(id)?;
        self.live.insert(id, Arc::new(Sentry::new(process, pidfd, None)));
        Ok(())
    }

    pub(crate) async fn connect(&self, id: &SandboxId) -> Result<Box<dyn GuestStream>, IsolationError> {
        let stream = self.living(id)?.connect(AGENT_SOCKET).await?;
        Ok(Box::new(stream))
    }

    /// The network gate: the one that the sandbox was made with, or a new one. Blocks for half a millisecond.
    pub(crate) fn gate(&self, id: &SandboxId) -> Result<Gate, IsolationError> {
        let sentry = self.living(id)?;
        if let Some(gate) = lock(&sentry.gate).take() {
            return Ok(gate::convert(gate));
        }
        let netns = File::from(sentry.of_process("ns/net", OFlags::RDONLY)?);
        gate::open(netns.as_fd())
    }

    pub(crate) async fn died(&self, id: &SandboxId) -> Death {
        let Some(sentry) = self.live.get(id) else { return Death::Exited };
        if let Err(error) = process::ended(&sentry.pidfd).await {
            tracing::error!(%id, error = chain(&error), "cannot watch a sandbox; taking it for dead");
        }
        sentry.reap();
        // Only the host's memory limit can end the jail for want of memory: the agent kills only processes inside.
        let starved = self.cgroups.oom_kills(id).is_ok_and(|kills| kills > 0);
        if starved { Death::OutOfMemory } else { Death::Exited }
    }

    /// CPU time and memory are the jail's, and the host measures them. The agent tells what goes on inside.
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
        Ok(outside.saturating_add(self.inside(id).await.map_or(0, |told| told.oom_kills)))
    }

    async fn inside(&self, id: &SandboxId) -> Option<Told> {
        let sentry = self.live.get(id)?;
        if sentry.is_dead() || self.cgroups.is_frozen(id).unwrap_or(true) {
            return Some(*lock(&sentry.told));
        }
        Some(sentry.measure().await)
    }

    pub(crate) async fn update(&self, id: &SandboxId, resources: &Resources) -> Result<(), IsolationError> {
        let sentry = self.living(id)?;
        check_limits(resources)?;
        sentry.ask(Question::Limit(limits(resources)), ANSWER_TIMEOUT).await?;
        self.cgroups.limit(id, &host_limits(resources))
    }

    pub(crate) async fn rename(&self, id: &SandboxId, hostname: &str) -> Result<(), IsolationError> {
        check_hostname(hostname)?;
        let sentry = self.living(id)?;
        sentry.ask(Question::Rename(hostname.to_owned()), ANSWER_TIMEOUT).await.map(drop)
    }
}

/// The limits that the agent enforces inside.
pub(crate) fn limits(resources: &Resources) -> Limits {
    Limits { memory_bytes: resources.memory_bytes, pids: resources.pids }
}
