//! The agent's life: set-up, connections, and which connection is served.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use atoll_guest_protocol::VERSION;
use atoll_guest_protocol::body::RecordReader;
use atoll_guest_protocol::messages::{Hello, Reason, Welcome};
use atoll_guest_protocol::server::{self, Operation, failure};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, LocalSet};

use crate::blocking::Threads;
use crate::exec::Execs;
use crate::failing::Stop;
use crate::machine::{self, Arrival, Who};
use crate::net::Waiting;
use crate::sftp::Sessions;
use crate::{operations, sentry, sys};

/// How long a new connection may take to introduce itself.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections at once that have not introduced themselves; more are closed.
const STRANGERS_MAX: usize = 8;
/// Pause after a connection could not be accepted (out of descriptors, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Quiet time after which free memory is given back.
const TRIM_AFTER: Duration = Duration::from_secs(1);

/// Everything that outlives a connection.
pub(crate) struct Agent {
    identity: RefCell<Identity>,
    pub(crate) started: Instant,
    pub(crate) threads: Threads,
    pub(crate) execs: Execs,
    pub(crate) watches: Cell<usize>,
    /// The last mark for watches.
    pub(crate) marks: tokio::sync::watch::Sender<u64>,
    pub(crate) waiting: Rc<Waiting>,
    pub(crate) sftp: Sessions,
    /// Dropping the sender ends the connection that is served.
    serving: RefCell<Option<oneshot::Sender<()>>>,
    strangers: Cell<usize>,
    busy: tokio::sync::Notify,
}

/// The identity of this agent towards its host.
struct Identity {
    sandbox_id: String,
    /// Random for each life of a sandbox: a restored machine has another one than the machine that was saved.
    boot_id: String,
}

impl Identity {
    fn new(sandbox_id: &str) -> Self {
        let boot_id = sys::random().iter().map(|byte| format!("{byte:02x}")).collect();
        Self { sandbox_id: sandbox_id.to_owned(), boot_id }
    }
}

impl Agent {
    /// The host tells a machine which sandbox it is. A machine that is a copy of another sandbox still has that
    /// sandbox's execs: the host asks for none of them, except the one that it takes over.
    fn become_sandbox(&self, who: Who) {
        if self.identity.borrow().sandbox_id != who.sandbox_id {
            self.identity.replace(Identity::new(&who.sandbox_id));
            self.execs.set_cgroup(machine::cgroup());
            self.execs.disown(who.carried);
        }
    }
}

/// Runs the agent on the descriptors that it was handed, or on sockets that it makes in a directory; see the crate.
/// Returns only when it cannot begin.
///
/// # Errors
/// The kernel's error, or that there is no listening socket.
pub fn run(sandbox_id: &str, sockets: Option<&Path>) -> io::Result<()> {
    sys::single_heap();
    sys::reset_signals();
    sys::keep_limits();
    let (way, cgroup) = if let Some(sockets) = sockets {
        (Source::Socket(sentry::enter(sockets)?), None)
    } else if machine::is_one() {
        (Source::Port(machine::boot()?), None)
    } else {
        let listener = sys::inherited(3).ok_or_else(|| io::Error::other("there is no socket at fd 3"))?;
        (Source::Socket(listener), sys::inherited(4).filter(is_cgroup2))
    };
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    // Fails where there is nothing to refuse; either way no sandbox is worse off.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .unwrap_or_default();
    rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    LocalSet::new().block_on(&runtime, serve(way, cgroup, sandbox_id))
}

/// Where connections come from, before there is a runtime to wait in.
enum Source {
    Socket(OwnedFd),
    Port(mpsc::UnboundedReceiver<Arrival>),
}

impl Source {
    fn open(self) -> io::Result<Way> {
        match self {
            Self::Socket(listener) => {
                let listener = StdListener::from(listener);
                listener.set_nonblocking(true)?;
                UnixListener::from_std(listener).map(Way::Socket)
            }
            Self::Port(arrivals) => Ok(Way::Port(arrivals)),
        }
    }
}

/// How connections come in.
enum Way {
    /// Over a socket that the driver listens on.
    Socket(UnixListener),
    /// Over the serial port of a machine, which gets its sandbox with them.
    Port(mpsc::UnboundedReceiver<Arrival>),
}

impl Way {
    async fn next(&mut self) -> io::Result<(UnixStream, Option<Who>)> {
        match self {
            Self::Socket(listener) => listener.accept().await.map(|(stream, _)| (stream, None)),
            Self::Port(arrivals) => match arrivals.recv().await {
                Some(Arrival { stream, who }) => Ok((UnixStream::from_std(stream)?, Some(who))),
                None => std::future::pending().await,
            },
        }
    }
}

fn is_cgroup2(fd: &OwnedFd) -> bool {
    const CGROUP2_SUPER_MAGIC: i64 = 0x6367_7270;
    rustix::fs::fstatfs(fd).is_ok_and(|stat| stat.f_type == CGROUP2_SUPER_MAGIC)
}

async fn serve(source: Source, cgroup: Option<OwnedFd>, sandbox_id: &str) -> io::Result<()> {
    let mut way = source.open()?;
    let agent = Rc::new(Agent {
        identity: RefCell::new(Identity::new(sandbox_id)),
        started: Instant::now(),
        threads: Threads::new(),
        execs: Execs::new(cgroup),
        watches: Cell::new(0),
        marks: tokio::sync::watch::Sender::new(0),
        waiting: Rc::default(),
        sftp: Sessions::new(),
        serving: RefCell::new(None),
        strangers: Cell::new(0),
        busy: tokio::sync::Notify::new(),
    });
    let mut children = signal(SignalKind::child())?;
    // Of what a machine's kernel is given the host gets nothing, and the code to give it and to fetch it again is
    // translated in each emulated machine. What is much goes back all the same: see `single_heap`.
    if matches!(way, Way::Socket(_)) {
        tokio::task::spawn_local(trim_when_quiet(Rc::clone(&agent)));
    }
    loop {
        tokio::select! {
            _ = children.recv() => agent.execs.reap(),
            accepted = way.next() => match accepted {
                Ok((stream, who)) if agent.strangers.get() < STRANGERS_MAX => {
                    if let Some(who) = who {
                        agent.become_sandbox(who);
                    }
                    tokio::task::spawn_local(connection(Rc::clone(&agent), stream));
                }
                Ok(_) => {}
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
        }
    }
}

/// Gives memory back once nothing has been going on for a while.
async fn trim_when_quiet(agent: Rc<Agent>) {
    loop {
        agent.busy.notified().await;
        loop {
            tokio::select! {
                () = agent.busy.notified() => {}
                () = tokio::time::sleep(TRIM_AFTER) => break,
            }
        }
        sys::trim_heap();
    }
}

/// Counts a connection as a stranger until it has introduced itself.
struct Stranger(Rc<Agent>);

impl Stranger {
    fn new(agent: &Rc<Agent>) -> Self {
        agent.strangers.set(agent.strangers.get() + 1);
        Self(Rc::clone(agent))
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.strangers.set(self.0.strangers.get() - 1);
    }
}

/// One connection: its place among the strangers while it has one, and the handle that makes it the
/// connection that is served.
struct Door {
    stranger: RefCell<Option<(Stranger, oneshot::Sender<()>)>>,
}

async fn connection(agent: Rc<Agent>, stream: UnixStream) {
    let (sender, mut replaced) = oneshot::channel();
    let door = Rc::new(Door { stranger: RefCell::new(Some((Stranger::new(&agent), sender))) });
    let deadline = tokio::time::sleep(HELLO_TIMEOUT);
    tokio::pin!(deadline);
    let builder = server::builder();
    let mut connection = tokio::select! {
        connection = builder.handshake(stream) => match connection {
            Ok(connection) => connection,
            Err(_) => return,
        },
        () = &mut deadline => return,
    };
    // Dropped with the connection: operations end with it.
    let mut operations = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            _ = &mut replaced => return,
            Some(_) = operations.join_next() => {}
            operation = server::next_operation(&mut connection) => match operation {
                Some(operation) => {
                    operations.spawn_local(handle(Rc::clone(&agent), Rc::clone(&door), operation));
                    // It goes first: what it answers at once is sent with the head of the answer and wakes the host once.
                    tokio::task::yield_now().await;
                }
                None => return,
            },
            () = &mut deadline, if door.stranger.borrow().is_some() => return,
        }
    }
}

async fn handle(agent: Rc<Agent>, door: Rc<Door>, operation: Operation) {
    agent.busy.notify_one();
    let Operation { name, announced, mut request, mut response } = operation;
    let outcome = if name == "hello" {
        hello(&agent, &door, &mut request).await.map(|welcome| operations::Answer::message(&welcome))
    } else if door.stranger.borrow().is_some() {
        Err(Stop::Failure(failure(Reason::Denied, "say hello first")))
    } else {
        operations::run(&agent, &name, announced.as_deref(), &mut request, &mut response).await
    };
    // A host that is gone by now misses nothing: it asks again after it has come back.
    let told = match outcome {
        Ok(operations::Answer::Records(records)) => response.finish_encoded(records).await,
        Ok(operations::Answer::End) => response.finish(),
        Err(Stop::Failure(failure)) => response.fail(&failure).await,
        Err(Stop::Gone) => {
            response.reset();
            Ok(())
        }
    };
    told.unwrap_or_default();
    agent.busy.notify_one();
}

async fn hello(agent: &Agent, door: &Door, request: &mut RecordReader) -> Result<Welcome, Stop> {
    let hello: Hello = request.message().await?;
    if hello.version != VERSION {
        let message = format!("this guest speaks version {VERSION}, the host version {}", hello.version);
        return Err(failure(Reason::Invalid, message).into());
    }
    if hello.sandbox_id != agent.identity.borrow().sandbox_id {
        return Err(failure(Reason::Invalid, "this guest belongs to another sandbox").into());
    }
    if let Some((stranger, sender)) = door.stranger.take() {
        drop(stranger);
        // Drops the sender of the connection before, which ends it.
        drop(agent.serving.replace(Some(sender)));
    }
    Ok(Welcome { version: VERSION, boot_id: agent.identity.borrow().boot_id.clone() })
}
