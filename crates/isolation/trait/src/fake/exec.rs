//! The fake's commands, with the real output window.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_guest_protocol::messages::{Exited, Failure, Reason, StartExec};
use atoll_guest_protocol::server::failure;
use atoll_guest_protocol::window::{Chunk, OutOfWindow, OutputWindow};
use bytes::Bytes;
use tokio::sync::watch;

use super::guest::while_thawed;

/// Bytes that are put into the window at once.
const BLOCK_BYTES: usize = 64 << 10;

#[derive(Debug, Clone, Default)]
struct State {
    window: OutputWindow,
    stdin: VecDeque<Bytes>,
    stdin_closed: bool,
    signal: Option<i32>,
    exited: Option<Exited>,
    /// Its instance has died, and with it the guest that could tell how the command ended.
    lost: bool,
}

/// One exec.
#[derive(Debug)]
pub(super) struct Exec {
    pub(super) request: StartExec,
    pub(super) pid: u32,
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

/// A command, understood.
#[derive(Debug)]
enum Command {
    Exit(i32),
    Write { stderr: bool, text: String },
    Seq(u64),
    Cat,
    Sleep(Duration),
    Serve,
}

fn parse(argv: &[String]) -> Result<Command, Failure> {
    let words: Vec<&str> = argv.iter().map(String::as_str).collect();
    let bad = || failure(Reason::Invalid, "the fake does not understand this argument");
    let text = |words: &[&str]| format!("{}\n", words.join(" "));
    match words.as_slice() {
        ["true"] => Ok(Command::Exit(0)),
        ["false"] => Ok(Command::Exit(1)),
        ["exit", code] => Ok(Command::Exit(code.parse().or(Err(bad()))?)),
        ["echo", words @ ..] => Ok(Command::Write { stderr: false, text: text(words) }),
        ["err", words @ ..] => Ok(Command::Write { stderr: true, text: text(words) }),
        ["seq", last] => Ok(Command::Seq(last.parse().or(Err(bad()))?)),
        ["cat"] => Ok(Command::Cat),
        ["sleep", seconds] => {
            let seconds = seconds.parse().or(Err(bad()))?;
            Ok(Command::Sleep(Duration::try_from_secs_f64(seconds).or(Err(bad()))?))
        }
        ["serve"] => Ok(Command::Serve),
        ["fail-start", ..] => Err(failure(Reason::CommandNotExecutable, "told to fail")),
        _ => Err(failure(Reason::CommandNotFound, "the fake has no such command")),
    }
}

impl Exec {
    /// Starts a command; it runs on the caller's runtime and ends with it.
    pub(super) fn start(
        request: StartExec,
        pid: u32,
        frozen: watch::Receiver<bool>,
    ) -> Result<Arc<Self>, Failure> {
        let command = parse(&request.argv)?;
        if request.cwd == "/missing" {
            return Err(failure(Reason::CwdNotFound, "no such directory"));
        }
        let state = State { stdin_closed: !request.stdin, ..State::default() };
        let exec = Arc::new(Self { request, pid, state: Mutex::new(state), changed: watch::Sender::new(()) });
        tokio::spawn(while_thawed(frozen, Arc::clone(&exec).run(command)));
        Ok(exec)
    }

    /// The same in the memory of a copy: nothing of it runs there yet.
    pub(super) fn copy(&self) -> Self {
        let state = Mutex::new(self.lock().clone());
        Self { request: self.request.clone(), pid: self.pid, state, changed: watch::Sender::new(()) }
    }

    /// Lets a copy go on: what has ended has ended, and everything else waits for a signal.
    pub(super) async fn go_on(self: Arc<Self>) {
        if self.exited().is_none() {
            self.run(Command::Sleep(Duration::MAX)).await;
        }
    }

    async fn run(self: Arc<Self>, command: Command) {
        let mut changed = self.changed.subscribe();
        let signalled = async {
            loop {
                let (lost, signal) = {
                    let state = self.lock();
                    (state.lost, state.signal)
                };
                if lost || signal.is_some() {
                    return signal;
                }
                // The sender lives in the exec.
                drop(changed.changed().await);
            }
        };
        let (code, signal) = tokio::select! {
            biased;
            signal = signalled => (None, signal),
            code = self.execute(command) => (Some(code), None),
        };
        {
            let mut state = self.lock();
            state.exited = (!state.lost).then_some(Exited { code, signal, cpu_us: 0 });
        }
        self.changed.send_replace(());
    }

    /// Ends the command where it is; no client is told how it ended.
    pub(super) fn lose(&self) {
        self.lock().lost = true;
        self.changed.send_replace(());
    }

    async fn execute(&self, command: Command) -> i32 {
        match command {
            Command::Exit(code) => return code,
            Command::Write { stderr, text } => self.write(stderr, text.into()).await,
            Command::Seq(last) => {
                let mut text = String::new();
                for number in 1..=last {
                    text.push_str(&number.to_string());
                    text.push('\n');
                    if text.len() >= BLOCK_BYTES {
                        self.write(false, std::mem::take(&mut text).into()).await;
                    }
                }
                self.write(false, text.into()).await;
            }
            Command::Cat => {
                while let Some(bytes) = self.read().await {
                    self.write(false, bytes).await;
                }
            }
            Command::Sleep(time) => tokio::time::sleep(time).await,
            Command::Serve => {
                static SERVED: AtomicU64 = AtomicU64::new(1);
                let number = SERVED.fetch_add(1, Ordering::Relaxed);
                self.write(false, format!("serving {number}\n").into()).await;
                std::future::pending::<()>().await;
            }
        }
        0
    }

    /// Writes to the window; waits while it is full.
    async fn write(&self, stderr: bool, mut bytes: Bytes) {
        let mut changed = self.changed.subscribe();
        while !bytes.is_empty() {
            let written = {
                let mut state = self.lock();
                let len = state.window.room().min(bytes.len());
                state.window.push(stderr, bytes.split_to(len));
                len > 0
            };
            if written {
                self.changed.send_replace(());
            } else {
                drop(changed.changed().await);
            }
        }
    }

    async fn read(&self) -> Option<Bytes> {
        let mut changed = self.changed.subscribe();
        loop {
            {
                let mut state = self.lock();
                if let Some(bytes) = state.stdin.pop_front() {
                    return Some(bytes);
                }
                if state.stdin_closed {
                    return None;
                }
            }
            drop(changed.changed().await);
        }
    }

    pub(super) fn signal(&self, signal: i32) -> Result<(), Failure> {
        {
            let mut state = self.lock();
            if state.exited.is_some() {
                return Err(failure(Reason::ExecEnded, "the exec has ended"));
            }
            state.signal = Some(signal);
        }
        self.changed.send_replace(());
        Ok(())
    }

    pub(super) fn push_stdin(&self, bytes: Bytes, close: bool) -> Result<(), Failure> {
        {
            let mut state = self.lock();
            if state.exited.is_some() {
                return Err(failure(Reason::ExecEnded, "the exec has ended"));
            }
            if state.stdin_closed {
                return Err(failure(Reason::StdinClosed, "standard input is closed"));
            }
            state.stdin.push_back(bytes);
            state.stdin_closed = close;
        }
        self.changed.send_replace(());
        Ok(())
    }

    pub(super) fn base(&self) -> u64 {
        self.lock().window.base()
    }

    pub(super) fn piece(&self, offset: u64) -> Result<Option<Chunk>, OutOfWindow> {
        self.lock().window.piece(offset)
    }

    pub(super) fn acknowledge(&self, offset: u64) -> Result<(), OutOfWindow> {
        self.lock().window.acknowledge(offset)?;
        self.changed.send_replace(());
        Ok(())
    }

    pub(super) fn exited(&self) -> Option<Exited> {
        self.lock().exited.clone()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
