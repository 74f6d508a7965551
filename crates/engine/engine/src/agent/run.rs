//! A session's process: beginning it, giving it messages, hearing what it says.

use std::ops::ControlFlow;
use std::pin::Pin;
use std::time::Duration;

use atoll_core::agent::{Adapter, EventKind, Input, NewEvent, TurnEnd, joined, marked_env};
use atoll_core::exec::{Exit, ExitReason};
use atoll_core::id::SandboxId;
use atoll_core::limits::STDIN_CHUNK_MAX_BYTES;
use atoll_core::sandbox::SandboxState;
use atoll_core::{Code, Error, Result};
use atoll_store::EventRecord;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::authorize::Caller;
use crate::engine::Engine;
use crate::exec::{OutputEvent, OutputReader};

use super::driver::{Driver, RETRY};
use super::lines::{Line, Lines};
use super::run_key;

/// Code of the error when the agent's process ended in the middle of its work.
const CRASHED: &str = "agent_crashed";
/// Output that is read at once, bytes.
const PIECE_MAX_BYTES: usize = 64 << 10;

/// Events of one piece of output that cost nothing, and what each costs when there are more: 5,000 in a second.
const UNPACED_COUNT: u32 = 100;
const PACE: Duration = Duration::from_micros(200);

/// Something that is being written to a process.
type Writing = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// A process that is attended.
struct Process {
    exec: String,
    reader: OutputReader,
    lines: Lines,
    /// What is being written, and how many lines of the outbox that is.
    writing: Option<(Writing, usize)>,
    /// It takes nothing any more; its end will be read.
    deaf: bool,
}

impl Driver {
    /// Wakes the sandbox and begins a process, which is given the message once it is there.
    pub(super) async fn begin_run(&mut self, message: &EventRecord) {
        match self.sandbox.usable().await {
            Ok(using) => self.using = Some(using),
            Err(error) if error.code == Code::ShuttingDown => return tokio::time::sleep(RETRY).await,
            Err(error) => return self.refuse(message.number, &error).await,
        }
        self.status.run += 1;
        (self.status.live, self.status.given, self.status.offset) = (true, false, 0);
        (self.status.renew, self.status.serving) = (false, None);
        self.status.outbox.clear();
        let using = self.using.take();
        let cwd = self.cwd();
        let session = self.session.id();
        let output = self.status.adapter.step(Input::Begun(&cwd, session.as_str()));
        let events = self.status.take(output);
        // Recorded before the process is there, so that it is found again after a crash at any moment.
        self.commit(events).await;
        self.using = using;
    }

    /// Where the agent works, as it is told.
    fn cwd(&self) -> String {
        let sandbox = self.sandbox.record().spec;
        let spec = &self.agent.record.spec;
        let user = spec.user.as_ref().unwrap_or(&sandbox.user);
        let home = if user == "root" { "/root" } else { "/" };
        spec.cwd.clone().or(sandbox.workdir).unwrap_or_else(|| home.to_owned())
    }

    /// Stays with the process until it has ended.
    pub(super) async fn attend(&mut self) -> ControlFlow<()> {
        self.take_up();
        let mut process = match self.process().await {
            Ok(process) => process,
            Err(error) if error.code.retryable() && error.code != Code::LimitExceeded => {
                tracing::debug!(%error, "an agent's process cannot be had now");
                tokio::time::sleep(RETRY).await;
                return ControlFlow::Continue(());
            }
            Err(error) => {
                self.not_begun(&error).await;
                return ControlFlow::Continue(());
            }
        };
        loop {
            if !process.deaf && self.is_to_go().await {
                process.deaf = true;
                self.kill(&process.exec).await;
            }
            if !process.deaf {
                self.deliver(&process.exec).await;
            }
            self.begin_writing(&mut process);
            let Process { reader, writing, .. } = &mut process;
            let writing = async {
                match writing {
                    Some((writing, _)) => writing.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                wish = self.inbox.recv() => {
                    let Some(wish) = wish else { return ControlFlow::Break(()) };
                    if self.obey(wish, Some(&process.exec)).await.is_break() {
                        return ControlFlow::Break(());
                    }
                }
                written = writing => self.written(&mut process, written).await,
                event = reader.next(PIECE_MAX_BYTES) => {
                    if self.read(&mut process, event).await.is_break() {
                        return ControlFlow::Continue(());
                    }
                }
                () = at(self.cancel_at) => {
                    self.cancel_at = None;
                    self.kill(&process.exec).await;
                }
            }
            if self.status.given
                && self.status.turn.is_none()
                && self.status.adapter.is_off()
                && !process.deaf
            {
                // It does not speak the protocol.
                process.deaf = true;
                self.kill(&process.exec).await;
            }
        }
    }

    /// Hears what was read of the process's output. Breaks when this reader gives no more: the process has ended, or its
    /// output cannot be read.
    async fn read(&mut self, process: &mut Process, event: Result<OutputEvent>) -> ControlFlow<()> {
        match event {
            Ok(OutputEvent::Piece(piece)) => {
                let lines = process.lines.push(piece);
                self.hear(&process.lines, lines).await;
                self.check_flood(process).await;
                ControlFlow::Continue(())
            }
            Ok(OutputEvent::End { exit, .. }) => {
                let last = process.lines.finish().into_iter().collect();
                self.hear(&process.lines, last).await;
                self.run_ended(&process.exec, &exit).await;
                ControlFlow::Break(())
            }
            Err(error) => {
                tracing::warn!(exec = process.exec, %error, "what an agent says cannot be read, trying again");
                tokio::time::sleep(RETRY).await;
                ControlFlow::Break(())
            }
        }
    }

    /// The process: found again, or begun.
    async fn process(&self) -> Result<Process> {
        let (engine, sandbox) = (&self.engine, &self.sandbox.id);
        let session = self.session.id();
        let key = run_key(&session, self.status.run);
        let view = match engine.exec_by_key(sandbox, &key).await {
            Err(error) if error.code == Code::ExecNotFound => {
                let agent = &self.agent.record;
                let none = || Error::new(Code::Internal, "the agent has no command");
                let mut draft = agent.spec.to_exec(&agent.name, session.as_str(), key).ok_or_else(none)?;
                let placed = self.sandbox.record().spec;
                for (name, marked) in marked_env(&placed.egress, &session) {
                    if !placed.env.contains_key(&name) {
                        draft.env.entry(name).or_insert(marked);
                    }
                }
                engine.create_exec(sandbox, draft, &Caller::system()).await?
            }
            found => found?,
        };
        let exec = view.record.id.to_string();
        let reader = engine.output(sandbox, &exec, self.status.offset, false).await?;
        let lines = Lines::at(self.status.offset);
        Ok(Process { exec, reader, lines, writing: None, deaf: false })
    }

    /// The process did not come into being.
    pub(super) async fn not_begun(&mut self, error: &Error) {
        self.status.end_run();
        // The message that it was for would only fail in the same way again.
        match self.next_message().await {
            Some(message) if self.status.turn.is_none() => self.refuse(message.number, error).await,
            _ => {
                let end = TurnEnd::Failed(error.code.as_str().to_owned(), error.message.clone());
                let events = self.status.end_turn(end).into_iter().collect();
                self.commit(events).await;
            }
        }
    }

    /// Gives the process the next message, if it has none.
    pub(super) async fn deliver(&mut self, exec: &str) {
        if self.status.turn.is_some() {
            return;
        }
        let Some(message) = self.next_message().await else { return };
        let using = match self.sandbox.usable().await {
            Ok(using) => using,
            Err(error) => return self.refuse(message.number, &error).await,
        };
        // To wake the sandbox may have meant that the process is gone: its end is read first, and another one begun.
        // A process that was given nothing yet gets this message in any case.
        if self.status.given && self.has_ended(exec).await {
            return;
        }
        self.using = Some(using);
        self.heed();
        self.status.begin_turn(message.number);
        let text = message.data.get("text").and_then(Value::as_str).unwrap_or_default();
        let output = self.status.adapter.step(Input::Message(message.number, text));
        let events = self.status.take(output);
        self.commit(events).await;
    }

    /// Whether another process is to take this one's place, and it can go now: it has nothing to do, and its sandbox is awake
    /// or is needed for a message.
    async fn is_to_go(&mut self) -> bool {
        if !self.status.renew || self.status.turn.is_some() {
            return false;
        }
        if self.next_message().await.is_some() {
            // If the sandbox cannot be woken, the code that delivers the message says so.
            return self.sandbox.usable().await.is_ok();
        }
        self.sandbox.record().state == SandboxState::Running
    }

    async fn has_ended(&self, exec: &str) -> bool {
        let view = self.engine.exec(&self.sandbox.id, exec).await;
        view.is_ok_and(|view| view.record.state.is_final())
    }

    fn begin_writing(&self, process: &mut Process) {
        let outbox = &self.status.outbox;
        if process.writing.is_some() || process.deaf || outbox.is_empty() {
            return;
        }
        let text = outbox.iter().fold(String::new(), |text, line| text + line + "\n");
        let (engine, sandbox, exec) = (self.engine.clone(), self.sandbox.id.clone(), process.exec.clone());
        process.writing = Some((Box::pin(write(engine, sandbox, exec, text.into())), outbox.len()));
    }

    async fn written(&mut self, process: &mut Process, outcome: Result<()>) {
        let Some((_, count)) = process.writing.take() else { return };
        match outcome {
            Ok(()) => {
                self.status.outbox.drain(..count.min(self.status.outbox.len()));
                self.commit(Vec::new()).await;
            }
            Err(error) if matches!(error.code, Code::ExecEnded | Code::ExecNotFound) => process.deaf = true,
            Err(error) if error.code == Code::StdinClosed => {
                // It can be told nothing any more, not even to end.
                process.deaf = true;
                self.kill(&process.exec).await;
            }
            Err(error) => {
                tracing::debug!(exec = process.exec, %error, "an agent cannot be written to now");
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    /// Takes what the process said.
    async fn hear(&mut self, read: &Lines, lines: Vec<Line>) {
        if lines.is_empty() {
            return;
        }
        self.heed();
        let mut events = Vec::new();
        for line in lines {
            match line {
                Line::Text(line) if line.trim().is_empty() => {}
                Line::Text(line) => {
                    let output = self.status.adapter.step(Input::Line(&line));
                    events.extend(self.status.take(output));
                }
                Line::TooLong => events.push(note("a line of more than 1 MiB was left out")),
                Line::Lost => events.push(note("output was dropped before it could be read")),
            }
        }
        self.status.offset = read.offset();
        self.tell(joined(events)).await;
    }

    /// Tells what the agent said, as fast as one agent may.
    pub(super) async fn tell(&mut self, events: Vec<NewEvent>) {
        let count = u32::try_from(events.len()).unwrap_or(u32::MAX);
        self.commit(events).await;
        // All agents share the database: the output of one that says more waits, in the log of its exec.
        if count > UNPACED_COUNT {
            tokio::time::sleep(PACE * count).await;
        }
    }

    /// Ends a process that has more to read than it ever will. Nothing answers what it still says before it ends.
    async fn check_flood(&mut self, process: &mut Process) {
        if process.deaf {
            self.status.outbox.clear();
        } else if self.status.is_flooded() {
            (process.deaf, process.writing) = (true, None);
            self.status.outbox.clear();
            let why = "the agent asks, and does not read the answers".to_owned();
            let end = TurnEnd::Failed("protocol".to_owned(), why);
            let events = self.status.end_turn(end).into_iter().collect();
            self.commit(events).await;
            self.kill(&process.exec).await;
        }
    }

    async fn run_ended(&mut self, exec: &str, exit: &Exit) {
        let mut end = how_it_ended(exit, self.agent.record.spec.adapter);
        if let TurnEnd::Failed(code, text) = &mut end
            && code.as_str() == CRASHED
        {
            // A missing key or package is named there, and nowhere else.
            match self.engine.complained_last(&self.sandbox.id, exec).await {
                Ok(said) if !said.is_empty() => text.extend(["; it wrote last:\n", said.as_str()]),
                Ok(_) => {}
                Err(error) => tracing::debug!(exec, %error, "what an agent wrote last cannot be read"),
            }
        }
        self.heed();
        self.status.end_run();
        let events = self.status.end_turn(end).into_iter().collect();
        self.commit(events).await;
    }
}

fn note(text: &str) -> NewEvent {
    NewEvent::new(EventKind::Log, json!({ "text": text }))
}

/// What the end of the process means for the message that it worked on.
pub(super) fn how_it_ended(exit: &Exit, adapter: Adapter) -> TurnEnd {
    let code = exit.code.map_or_else(|| "without a code".to_owned(), |code| format!("with code {code}"));
    let (name, text) = match exit.reason {
        // A command that is run once for each message.
        ExitReason::Exited if exit.code == Some(0) && adapter == Adapter::Jsonl => {
            return TurnEnd::Done("exited".to_owned());
        }
        ExitReason::SandboxPaused => {
            ("sandbox_paused", "the sandbox was paused without its memory".to_owned())
        }
        ExitReason::RolledBack => {
            ("sandbox_rolled_back", "the sandbox was put back to a checkpoint".to_owned())
        }
        ExitReason::SandboxDied => ("sandbox_gone", "the sandbox died".to_owned()),
        ExitReason::OutOfMemory => {
            ("out_of_memory", "the agent needed more memory than the sandbox has".to_owned())
        }
        ExitReason::BudgetExhausted => ("budget_exhausted", "a budget of the sandbox is used up".to_owned()),
        ExitReason::NotStarted => {
            ("start_failed", format!("the agent's command cannot be run; it ended {code}"))
        }
        ExitReason::Exited
        | ExitReason::Signaled
        | ExitReason::TimedOut
        | ExitReason::IdleTimedOut
        | ExitReason::Killed
        | ExitReason::Disconnected => (CRASHED, format!("the agent's process ended {code}")),
    };
    TurnEnd::Failed(name.to_owned(), text)
}

/// Writes to a process, as fast as it reads.
async fn write(engine: Engine, sandbox: SandboxId, exec: String, mut bytes: Bytes) -> Result<()> {
    while !bytes.is_empty() {
        let piece = bytes.split_to(bytes.len().min(STDIN_CHUNK_MAX_BYTES));
        engine.write_stdin(&sandbox, &exec, piece, false).await?;
    }
    Ok(())
}

/// Sleeps until then, or for ever.
pub(super) async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
