//! Execs: starting, attaching, signalling, remembering.
//!
//! An exec is remembered until the host says that its exit is safe, across any number of connections.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use atoll_guest_protocol::body::{RecordReader, RecordWriter};
use atoll_guest_protocol::control::Carried;
use atoll_guest_protocol::messages::{
    AttachExec, ExecInfo, ExecList, Exited, Failure, ForgetExec, Reason, ResizeExec, SignalExec, StartExec,
    TtySize, WriteStdin,
};
use atoll_guest_protocol::server::failure;
use atoll_guest_protocol::window::{Chunk, OutOfWindow, OutputWindow};
use atoll_guest_protocol::wire::{Kind, Record};
use bytes::Bytes;
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use crate::agent::Agent;
use crate::blocking::BLOCK_BYTES;
use crate::failing::{Stop, errno, invalid};
use crate::operations::Answer;
use crate::sys::{self, Ended};

mod confine;
mod follow;
mod inject;
mod input;
mod output;
mod prepare;
mod spawn;
mod streams;
mod tree;

use input::Input;
use output::Source;
use streams::Streams;
use tree::{AnnouncedCgroup, ExecCgroup};

/// Execs that are remembered at once, ended ones too.
const EXECS_MAX: usize = 1024;
/// Pauses between two looks whether the cgroup of an exec that has ended is empty.
const GONE_PAUSE_FIRST: Duration = Duration::from_millis(1);
const GONE_PAUSE_LAST: Duration = Duration::from_millis(100);
/// Longest id of an exec, bytes. It becomes a directory's name.
const ID_MAX_BYTES: usize = 64;

/// One exec.
#[derive(Debug)]
struct Exec {
    request: StartExec,
    pid: i32,
    window: RefCell<OutputWindow>,
    /// How the main process ended.
    ended: RefCell<Option<Exited>>,
    /// Its output is complete.
    complete: Cell<bool>,
    changed: watch::Sender<()>,
    input: Option<Input>,
    terminal: Option<Rc<AsyncFd<OwnedFd>>>,
    cgroup: RefCell<Option<ExecCgroup>>,
    /// Its end is told when all that it started has ended, too: because that was asked for, or because all of it was killed.
    ends_tree: Cell<bool>,
    /// It was started for another sandbox, of which this machine is a copy.
    disowned: Cell<bool>,
}

impl Exec {
    fn reaped(&self) -> bool {
        self.ended.borrow().is_some()
    }

    fn room(&self) -> usize {
        if self.disowned.get() { BLOCK_BYTES } else { self.window.borrow().room() }
    }

    /// From now on its output is thrown away, so that the exec does not wait for a host that takes it.
    fn disown(&self) {
        self.disowned.set(true);
        *self.window.borrow_mut() = OutputWindow::new();
        self.changed.send_replace(());
    }

    fn push(&self, stderr: bool, bytes: Bytes) {
        if !bytes.is_empty() && !self.disowned.get() {
            self.window.borrow_mut().push(stderr, bytes);
            self.changed.send_replace(());
        }
    }

    fn piece(&self, offset: u64) -> Result<Option<Chunk>, OutOfWindow> {
        self.window.borrow_mut().piece(offset)
    }

    fn acknowledge(&self, offset: u64) -> Result<(), OutOfWindow> {
        self.window.borrow_mut().acknowledge(offset)?;
        self.changed.send_replace(());
        Ok(())
    }

    fn end(&self) {
        self.complete.set(true);
        self.changed.send_replace(());
    }

    /// How it ended, once all its output is in the window, and where all that it started ends with it, that has.
    fn exited(&self) -> Option<Exited> {
        self.ended.borrow().clone().filter(|_| self.complete.get() && !self.waits_for_tree())
    }

    /// Whether its main process has ended, but processes that it started, and that end with it, have not.
    fn waits_for_tree(&self) -> bool {
        self.ends_tree.get() && self.reaped() && !self.let_go()
    }

    /// Removes its cgroup, if nothing is in it. Says whether it has none any more.
    fn let_go(&self) -> bool {
        let mut cgroup = self.cgroup.borrow_mut();
        if cgroup.as_ref().is_some_and(ExecCgroup::remove) {
            *cgroup = None;
        }
        cgroup.is_none()
    }

    fn set_ended(&self, ended: Ended) {
        let tree_us = self.cgroup.borrow().as_ref().and_then(ExecCgroup::cpu_us).unwrap_or(0);
        let cpu_us = ended.cpu_us.max(tree_us);
        *self.ended.borrow_mut() = Some(Exited { code: ended.code, signal: ended.signal, cpu_us });
        if self.ends_tree.get() {
            tree::signal(self.cgroup.borrow().as_ref(), &self.request.exec_id, self.pid, libc::SIGKILL);
        }
        if let Some(input) = &self.input {
            input.abandon();
        }
        self.changed.send_replace(());
    }
}

/// Tells the end of an exec when its cgroup is gone. In kernels with commit d245698d727a ("cgroup: Defer task cgroup unlink
/// until after the task is done switching out") a process is in its cgroup for a moment after its parent was told of
/// its end, and the kernel does not tell when that is over.
async fn until_gone(exec: Rc<Exec>) {
    let mut pause = GONE_PAUSE_FIRST;
    while !exec.let_go() {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(GONE_PAUSE_LAST);
    }
    exec.changed.send_replace(());
}

/// All execs, and the cgroup their own ones are made in.
pub(crate) struct Execs {
    cgroup: OnceCell<OwnedFd>,
    by_id: RefCell<HashMap<String, Rc<Exec>>>,
    /// Cgroups of forgotten execs that still hold processes.
    lingering: RefCell<Vec<ExecCgroup>>,
    /// Execs of the sandbox that this one is a copy of: they run, and keep their terminals and standard input.
    disowned: RefCell<Vec<Rc<Exec>>>,
}

impl Execs {
    pub(crate) fn new(cgroup: Option<OwnedFd>) -> Self {
        let execs = Self {
            cgroup: OnceCell::new(),
            by_id: RefCell::default(),
            lingering: RefCell::default(),
            disowned: RefCell::default(),
        };
        execs.set_cgroup(cgroup);
        execs
    }

    /// The first one stays.
    pub(crate) fn set_cgroup(&self, cgroup: Option<OwnedFd>) {
        if let Some(cgroup) = cgroup {
            drop(self.cgroup.set(cgroup));
        }
    }

    /// Every exec so far belongs to the sandbox that this one is a copy of: it goes on, but the host cannot ask for it
    /// any more. One exec may be taken over under another id, with the output in its window.
    pub(crate) fn disown(&self, carried: Option<Carried>) {
        {
            let mut execs = self.by_id.borrow_mut();
            let taken = carried.and_then(|Carried { was, is }| Some((is, execs.remove(&was)?)));
            for (_, exec) in execs.drain() {
                exec.disown();
                self.disowned.borrow_mut().push(exec);
            }
            execs.extend(taken);
        }
        self.reap();
    }

    fn find(&self, exec_id: &str) -> Result<Rc<Exec>, Failure> {
        self.by_id
            .borrow()
            .get(exec_id)
            .map(Rc::clone)
            .ok_or_else(|| failure(Reason::NoSuchExec, "no such exec"))
    }

    /// Takes up all children that ended; orphans of execs come to the agent, too.
    ///
    /// The cgroup of an exec that ends goes when the host has it forgotten: removing it takes the kernel a while, in which
    /// the host would wait for the end. With an orphan the last process of an exec that has ended may have gone.
    pub(crate) fn reap(&self) {
        let mut has_orphans = false;
        while let Some(ended) = sys::reap(-1, false) {
            let (execs, disowned) = (self.by_id.borrow(), self.disowned.borrow());
            let mut all = execs.values().chain(disowned.iter());
            if let Some(exec) = all.find(|exec| exec.pid == ended.pid && !exec.reaped()) {
                exec.set_ended(ended);
                if exec.ends_tree.get() {
                    tokio::task::spawn_local(until_gone(Rc::clone(exec)));
                }
            } else {
                has_orphans = true;
            }
        }
        self.disowned.borrow_mut().retain(|exec| {
            if exec.reaped() {
                self.lingering.borrow_mut().extend(exec.cgroup.take());
            }
            !exec.reaped()
        });
        self.lingering.borrow_mut().retain(|cgroup| !cgroup.remove());
        if !has_orphans {
            return;
        }
        for exec in self.by_id.borrow().values().filter(|exec| exec.reaped()) {
            if exec.let_go() && exec.ends_tree.get() {
                exec.changed.send_replace(());
            }
        }
    }

    /// Makes the cgroup of an exec whose start the host announces, while nothing waits for it. Where that cannot be, the
    /// start says why. One that is there already is none of this announcement's, which would remove it: a host whose
    /// connection broke announces an exec again, and what it said on the broken one may not have ended yet.
    fn announce(&self, exec_id: &str) -> Option<AnnouncedCgroup> {
        if !is_id(exec_id) || self.by_id.borrow().contains_key(exec_id) {
            return None;
        }
        let cgroup = ExecCgroup::make_new(self.cgroup.get()?.as_fd(), exec_id).ok()??;
        Some(AnnouncedCgroup::new(exec_id, cgroup))
    }

    fn spawn(&self, request: StartExec, announced: Option<AnnouncedCgroup>) -> Result<Rc<Exec>, Failure> {
        if self.by_id.borrow().len() >= EXECS_MAX {
            return Err(failure(
                Reason::NoProcesses,
                format!("the guest remembers {EXECS_MAX} execs already"),
            ));
        }
        if !is_id(&request.exec_id) {
            return Err(invalid("the exec's id is malformed"));
        }
        let program = prepare::program(&request)?;
        let streams = Streams::open(&request, &program)
            .map_err(|cause| errno("cannot open standard streams", cause))?;
        let cgroup = match announced.and_then(|announced| announced.take(&request.exec_id)) {
            None => self.make_cgroup(&request.exec_id)?,
            made => made,
        };
        let started = spawn::spawn(&program, streams.child(), cgroup.as_ref().map(ExecCgroup::fd));
        let pid = started.map_err(|(step, cause)| {
            cgroup.as_ref().map(ExecCgroup::remove);
            prepare::start_failure(&request, step, cause)
        })?;
        if program.followed
            && let Err(cause) = follow::begin(pid, &request.profiles)
        {
            sys::kill(pid, libc::SIGKILL).unwrap_or_default();
            sys::reap(pid, true);
            cgroup.as_ref().map(ExecCgroup::remove);
            return Err(errno("cannot follow the processes of a profile", cause));
        }
        let exec = Rc::new(Exec {
            pid,
            window: RefCell::new(OutputWindow::new()),
            ended: RefCell::new(None),
            complete: Cell::new(false),
            changed: watch::Sender::new(()),
            input: request.stdin.then(Input::default),
            terminal: streams.terminal.clone(),
            cgroup: RefCell::new(cgroup),
            ends_tree: Cell::new(request.end_tree),
            disowned: Cell::new(false),
            request,
        });
        streams.pump(&exec);
        self.by_id.borrow_mut().insert(exec.request.exec_id.clone(), Rc::clone(&exec));
        Ok(exec)
    }

    /// The cgroup of a new exec, where there are cgroups: then no exec runs without one, as its processes would be
    /// found by searching only, which they can hide from. Elsewhere (in a sentry) there is none.
    fn make_cgroup(&self, exec_id: &str) -> Result<Option<ExecCgroup>, Failure> {
        let Some(parent) = self.cgroup.get() else { return Ok(None) };
        match ExecCgroup::make(parent.as_fd(), exec_id) {
            Ok(cgroup) => Ok(Some(cgroup)),
            Err(rustix::io::Errno::AGAIN) => {
                Err(failure(Reason::NoProcesses, "the sandbox has as many cgroups as it can have"))
            }
            Err(cause) => Err(errno("cannot make the cgroup of an exec", cause)),
        }
    }

    pub(crate) fn signal(&self, request: &SignalExec) -> Result<Answer, Stop> {
        if !(1..=64).contains(&request.signal) {
            return Err(invalid("a signal is a number from 1 to 64").into());
        }
        let exec = self.find(&request.exec_id)?;
        let ended = || Stop::Failure(failure(Reason::ExecEnded, "the exec has ended"));
        if request.tree {
            // Once the end of an exec was told, it is not taken back.
            if request.signal == libc::SIGKILL && !exec.reaped() {
                exec.ends_tree.set(true);
            }
            let cgroup = exec.cgroup.borrow();
            let reached = if cgroup.is_none() && exec.reaped() && self.cgroup.get().is_some() {
                // Its cgroup was removed because nothing is left of it.
                0
            } else {
                // By the id that it was started with.
                tree::signal(cgroup.as_ref(), &exec.request.exec_id, exec.pid, request.signal)
            };
            if reached == 0 && exec.reaped() {
                return Err(ended());
            }
        } else {
            // Once reaped, the number may belong to another group.
            if exec.reaped() {
                return Err(ended());
            }
            sys::kill(-exec.pid, request.signal).map_err(|cause| errno("cannot signal", cause))?;
        }
        Ok(Answer::done(0))
    }

    pub(crate) fn resize(&self, request: &ResizeExec) -> Result<Answer, Stop> {
        let exec = self.find(&request.exec_id)?;
        let terminal = exec
            .terminal
            .as_ref()
            .ok_or_else(|| failure(Reason::NotATerminal, "the exec has no terminal"))?;
        let size = request.size.as_ref().ok_or_else(|| invalid("there is no size"))?;
        tcsetwinsize(terminal.get_ref(), window_size(size)?)
            .map_err(|cause| errno("cannot resize", cause))?;
        Ok(Answer::done(0))
    }

    pub(crate) fn forget(&self, request: &ForgetExec) -> Result<Answer, Stop> {
        let mut execs = self.by_id.borrow_mut();
        if execs.get(&request.exec_id).is_some_and(|exec| !exec.reaped()) {
            return Err(failure(Reason::Conflict, "the exec still runs").into());
        }
        if let Some(exec) = execs.remove(&request.exec_id)
            && let Some(cgroup) = exec.cgroup.take()
            && !cgroup.remove()
        {
            self.lingering.borrow_mut().push(cgroup);
        }
        Ok(Answer::done(0))
    }

    pub(crate) fn list(&self) -> ExecList {
        let execs = self.by_id.borrow();
        let info = |(id, exec): (&String, &Rc<Exec>)| ExecInfo {
            exec_id: id.clone(),
            pid: exec.pid.unsigned_abs(),
            exited: exec.reaped(),
        };
        ExecList { execs: execs.iter().map(info).collect() }
    }
}

/// Whether a text can be the id of an exec.
fn is_id(text: &str) -> bool {
    let is_ok = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=ID_MAX_BYTES).contains(&text.len()) && text.bytes().all(is_ok)
}

fn window_size(size: &TtySize) -> Result<Winsize, Failure> {
    let cell = |cells: u32| {
        u16::try_from(cells).map_err(|_large| invalid("a terminal has at most 65535 columns and rows"))
    };
    Ok(Winsize { ws_row: cell(size.rows)?, ws_col: cell(size.cols)?, ws_xpixel: 0, ws_ypixel: 0 })
}

/// `exec-start`.
pub(crate) async fn start(
    agent: &Rc<Agent>,
    announced: Option<&str>,
    request: &mut RecordReader,
    response: &mut RecordWriter,
) -> Result<Answer, Stop> {
    let announced = announced.and_then(|exec_id| agent.execs.announce(exec_id));
    let wanted: StartExec = request.message().await?;
    // While the guest stood still the host may have said what to start, waited for an answer, and given the start up. It
    // has told its client that the exec did not start.
    if response.is_cut().await {
        return Err(Stop::Gone);
    }
    let existing = agent.execs.by_id.borrow().get(&wanted.exec_id).map(Rc::clone);
    let exec = match existing {
        Some(exec) if exec.request == wanted => exec,
        Some(_) => return Err(failure(Reason::Conflict, "another exec has this id").into()),
        None => agent.execs.spawn(wanted, announced)?,
    };
    let offset = exec.window.borrow().base();
    output::stream(exec, offset, request, response).await
}

/// `exec-attach`.
pub(crate) async fn attach(
    agent: &Rc<Agent>,
    request: &mut RecordReader,
    response: &mut RecordWriter,
) -> Result<Answer, Stop> {
    let wanted: AttachExec = request.message().await?;
    let exec = agent.execs.find(&wanted.exec_id)?;
    exec.piece(wanted.offset).map_err(|error| invalid(error.to_string()))?;
    // Acknowledgements may have been lost when the earlier connection was cut. Without this one, a guest
    // with a full window and a host that has all its output would wait for each other.
    exec.acknowledge(wanted.offset).map_err(|error| invalid(error.to_string()))?;
    output::stream(exec, wanted.offset, request, response).await
}

/// `exec-stdin`.
pub(crate) async fn write_stdin(agent: &Rc<Agent>, request: &mut RecordReader) -> Result<Answer, Stop> {
    let wanted: WriteStdin = request.message().await?;
    let exec = agent.execs.find(&wanted.exec_id)?;
    if exec.reaped() {
        return Err(failure(Reason::ExecEnded, "the exec has ended").into());
    }
    let Some(input) = &exec.input else {
        return Err(failure(Reason::StdinClosed, "the exec has no standard input").into());
    };
    let _turn = input.turn.lock().await;
    input.check()?;
    let mut bytes = 0;
    loop {
        match request.next().await? {
            Some(Record { kind: Kind::Data, payload }) => {
                bytes += payload.len() as u64;
                input.push(payload).await?;
            }
            Some(_) => return Err(invalid("only data may follow").into()),
            None => break,
        }
    }
    if wanted.close {
        input.close();
    }
    Ok(Answer::done(bytes))
}

/// The source that a descriptor is.
fn source(fd: &Rc<AsyncFd<OwnedFd>>, stderr: bool) -> Source {
    Source::new(Rc::clone(fd), stderr)
}
