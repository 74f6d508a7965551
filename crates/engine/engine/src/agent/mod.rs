//! Agents that live in sandboxes, and sessions with them.
//!
//! A [`driver`] task owns each session. It begins the agent's process when there is a message for it, waking the sandbox, gives
//! it one message at a time, and turns what it writes into numbered events. Everything that it knows is kept with the
//! events, in one transaction: up to where the process's output was read, what was taken up of what clients sent, and
//! what is still to be written to the process. So a new server goes on where the last one was, with the same process.
//!
//! A process is an exec with a name of the server's own. Between messages it is no use of its sandbox, which may fall
//! asleep under it; while a message is worked on it is.

mod calls;
mod driver;
mod due;
mod events;
mod fork;
mod housed;
mod layer;
mod lines;
mod meter;
mod run;
mod schedule;
mod served;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::agent::{ModelUsage, SessionState};
use atoll_core::error::shorten;
use atoll_core::id::{AgentId, ProjectId, SandboxId, ScheduleId, SessionId};
use atoll_core::limits::{AGENT_SESSIONS_MAX_COUNT, AGENTS_MAX_COUNT};
use atoll_core::project::kept_name;
use atoll_core::spec::IdempotencyKey;
use atoll_core::{Code, Error, Result};
use atoll_store::{AgentRecord, ScheduleRecord, SessionRecord};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

pub use calls::AgentDraft;
pub use events::EventPage;
pub use fork::{AgentForkOrder, FORK_LABEL};

/// The name of a process begins with this; the session and the number of the process follow.
const RUN_KEY: &str = "atoll-agent-";
/// Wishes that wait for a driver; more wait outside.
const WISHES_MAX_COUNT: usize = 64;

fn run_key(session: &SessionId, run: u64) -> IdempotencyKey {
    IdempotencyKey::server(format!("{RUN_KEY}{session}-{run}"))
}

/// Whether the exec that the server gave this name is an agent's process.
pub(crate) fn is_agent_key(name: &str) -> bool {
    name.starts_with(RUN_KEY)
}

/// An agent that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentGrant {
    /// Its id.
    pub id: AgentId,
    /// The sandbox that it lives in.
    pub sandbox: SandboxId,
}

pub(crate) fn agent_not_found(name: &str) -> Error {
    Error::new(Code::AgentNotFound, format!("no agent '{}'", shorten(name)))
        .hint("'atoll agent ls' shows what there is")
}

fn name_taken(name: &str) -> Error {
    Error::new(Code::NameTaken, format!("another agent is named '{}'", shorten(name)))
        .hint("choose another name, or delete that agent")
}

/// A session as it is now.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionView {
    /// What is kept of it.
    pub record: SessionRecord,
    /// Where it is.
    pub state: SessionState,
}

/// Something that is asked of a driver.
#[derive(Debug)]
enum Wish {
    /// There is a message.
    Look,
    /// End the work on the message.
    Cancel(Reply),
    /// Answer an approval with an option.
    Answer(String, String, Reply),
    /// End the process and forget the session.
    Remove(Reply),
    /// Another process is to take the place of the present one when that has nothing to do.
    Renew,
    /// Look at what the gateway has counted.
    Counted,
}

/// How a wish ended.
type Reply = oneshot::Sender<Result<()>>;

/// The published side of a session.
#[derive(Debug)]
pub(crate) struct SessionShared {
    record: watch::Sender<SessionRecord>,
    /// Number of the last message that a client sent.
    message: watch::Sender<u64>,
    wishes: mpsc::Sender<Wish>,
    spending: Mutex<Spending>,
}

/// What the gateway has counted of a session.
#[derive(Debug, Default)]
struct Spending {
    usage: ModelUsage,
    /// A request was refused, and the driver has not heard of it.
    refused: Option<String>,
}

impl SessionShared {
    fn new(record: SessionRecord) -> (Arc<Self>, mpsc::Receiver<Wish>) {
        let (wishes, inbox) = mpsc::channel(WISHES_MAX_COUNT);
        let spending = Mutex::new(Spending { usage: record.status.usage, refused: None });
        let record = watch::Sender::new(record);
        (Arc::new(Self { record, message: watch::Sender::new(0), wishes, spending }), inbox)
    }

    fn id(&self) -> SessionId {
        self.record.borrow().id.clone()
    }

    fn view(&self) -> SessionView {
        let mut record = self.record.borrow().clone();
        record.status.usage = self.spending().usage;
        let state = match record.status.state {
            // To the client that sent a message, the agent works on it as soon as it was accepted, even if the driver
            // has not looked yet.
            SessionState::Idle | SessionState::Failed if *self.message.borrow() > record.status.delivered => {
                SessionState::Working
            }
            state => state,
        };
        SessionView { record, state }
    }

    fn spending(&self) -> MutexGuard<'_, Spending> {
        // Numbers: a panic leaves them usable as they are.
        self.spending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that there are events up to this number.
    fn published(&self, last: u64) {
        self.record.send_if_modified(|record| {
            let newer = last > record.events;
            record.events = record.events.max(last);
            newer
        });
    }

    /// Wakes the readers of events, which then look whether there still is something to wait for.
    fn wake_readers(&self) {
        self.record.send_modify(|_unchanged| {});
    }

    /// Asks the driver for something, and waits until it is done.
    async fn ask(&self, wish: impl FnOnce(Reply) -> Wish) -> Result<()> {
        let gone = || Error::new(Code::SandboxFailed, "the sandbox of the agent is not alive");
        let (reply, answer) = oneshot::channel();
        self.wishes.send(wish(reply)).await.map_err(|_unsent| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// An agent and its sessions.
#[derive(Debug)]
pub(crate) struct AgentShared {
    record: AgentRecord,
    /// Its name as it is kept: with its sandbox's project.
    kept: String,
    sessions: Mutex<BTreeMap<SessionId, Arc<SessionShared>>>,
    /// Held by the task that makes a session.
    making: tokio::sync::Mutex<()>,
    /// It is being removed: no session is begun any more.
    leaving: AtomicBool,
    /// The model usage that belongs to no session that is there. The task that counts a request holds the lock.
    spent: Mutex<ModelUsage>,
    schedules: Mutex<BTreeMap<ScheduleId, ScheduleRecord>>,
    /// Held by the task that sends a message by a schedule, or forgets a schedule.
    scheduling: tokio::sync::Mutex<()>,
}

impl AgentShared {
    fn new(record: AgentRecord, project: Option<&ProjectId>) -> Arc<Self> {
        let spent = Mutex::new(record.spec.spent);
        Arc::new(Self {
            kept: kept_name(project, &record.name),
            record,
            sessions: Mutex::default(),
            making: tokio::sync::Mutex::default(),
            leaving: AtomicBool::new(false),
            spent,
            schedules: Mutex::default(),
            scheduling: tokio::sync::Mutex::default(),
        })
    }

    pub(crate) fn sandbox(&self) -> &SandboxId {
        &self.record.sandbox
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionId, Arc<SessionShared>>> {
        // One map: a panic leaves it usable as it is.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn schedules(&self) -> MutexGuard<'_, BTreeMap<ScheduleId, ScheduleRecord>> {
        // One map: a panic leaves it usable as it is.
        self.schedules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session with this id, or this name of a thread.
    fn session(&self, text: &str) -> Result<Arc<SessionShared>> {
        let sessions = self.lock();
        let by_id = text.parse().ok().and_then(|id: SessionId| sessions.get(&id));
        let found = by_id.or_else(|| {
            sessions.values().find(|session| session.record.borrow().thread.as_deref() == Some(text))
        });
        found.cloned().ok_or_else(|| SessionId::not_found(text))
    }

    fn all(&self) -> Vec<Arc<SessionShared>> {
        self.lock().values().cloned().collect()
    }

    fn wake_readers(&self) {
        self.all().iter().for_each(|session| session.wake_readers());
    }

    /// Enters a session if there is room.
    fn enter(&self, session: &Arc<SessionShared>) -> Result<()> {
        let mut sessions = self.lock();
        if sessions.len() >= AGENT_SESSIONS_MAX_COUNT {
            return Err(Error::new(
                Code::LimitExceeded,
                format!("the agent has {AGENT_SESSIONS_MAX_COUNT} sessions already"),
            )
            .hint("delete some"));
        }
        sessions.insert(session.id(), Arc::clone(session));
        Ok(())
    }

    fn leave(&self, session: &SessionId) {
        let left = self.lock().remove(session);
        if let Some(left) = left {
            left.wake_readers();
        }
    }

    fn has(&self, session: &Arc<SessionShared>) -> bool {
        self.lock().get(&session.id()).is_some_and(|there| Arc::ptr_eq(there, session))
    }
}

/// Every agent, by its name as it is kept.
#[derive(Debug, Default)]
pub(crate) struct Agents {
    by_name: Mutex<BTreeMap<String, Arc<AgentShared>>>,
    /// Those of an earlier process are there.
    taken_up: CancellationToken,
}

impl Agents {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<AgentShared>>> {
        // One map: a panic leaves it usable as it is.
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, name: &str) -> Option<Arc<AgentShared>> {
        let agents = self.lock();
        let by_id = name.parse::<AgentId>().ok();
        match by_id {
            Some(id) => agents.values().find(|agent| agent.record.id == id).cloned(),
            None => agents.get(name).cloned(),
        }
    }

    fn all(&self) -> Vec<Arc<AgentShared>> {
        self.lock().values().cloned().collect()
    }

    /// Enters an agent, if its name is free and there is room.
    fn enter(&self, agent: &Arc<AgentShared>) -> Result<()> {
        let mut agents = self.lock();
        if agents.contains_key(&agent.kept) {
            return Err(name_taken(&agent.record.name));
        }
        if agents.len() >= AGENTS_MAX_COUNT {
            return Err(Error::new(
                Code::LimitExceeded,
                format!("there are {AGENTS_MAX_COUNT} agents already"),
            )
            .hint("delete some"));
        }
        agents.insert(agent.kept.clone(), Arc::clone(agent));
        Ok(())
    }

    /// Whether a session works with a service of a sandbox. Waits until that is known after a start.
    pub(crate) async fn work_with(&self, sandbox: &SandboxId, service: &str) -> bool {
        self.taken_up.cancelled().await;
        let serves = |agent: &Arc<AgentShared>| {
            agent.sandbox() == sandbox
                && agent.record.spec.serves.as_ref().is_some_and(|serves| serves.service == service)
        };
        let works = |session: &Arc<SessionShared>| session.record.borrow().status.turn.is_some();
        self.all().iter().filter(|agent| serves(agent)).any(|agent| agent.all().iter().any(works))
    }

    /// Whether any live in a sandbox.
    pub(crate) fn are_in(&self, sandbox: &SandboxId) -> bool {
        self.all().iter().any(|agent| agent.sandbox() == sandbox)
    }

    fn leave(&self, agent: &AgentShared) {
        let mut agents = self.lock();
        if agents.get(&agent.kept).is_some_and(|there| there.record.id == agent.record.id) {
            agents.remove(&agent.kept);
        }
        drop(agents);
        agent.wake_readers();
    }

    /// A sandbox is gone, and the agents in it.
    pub(crate) fn sandbox_left(&self, sandbox: &SandboxId) {
        self.all().iter().filter(|agent| agent.sandbox() == sandbox).for_each(|agent| agent.wake_readers());
    }
}
