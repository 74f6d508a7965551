//! Drives one attached exec: output to ours, our input to it, signals in between.
//!
//! ```text
//! stdin thread ─▶ feed (task) ─▶ AttachInput        feed also follows the terminal's size and
//! signals ──────▶ watch ───────▶ REST calls         looks for the detach keys
//! AttachEvents ─▶ show ────────▶ stdout / stderr
//! ```
//!
//! `show` and `watch` run side by side, so that Ctrl-C works while our own output is stuck.

use atoll_api::{OutputChunk, SignalExec};
use atoll_client::{AttachEvent, AttachEvents, AttachInput, Client, ClientError, ResumePolicy};
use atoll_core::exec::{ExecState, Exit, ExitReason};
use atoll_core::{Code, Error};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::failure::{EXIT_FAILURE, Failure, Result};
use crate::output::Printer;
use crate::signals::{Stop, Stops};
use crate::terminal::{self, DetachKeys, DetachScanner, RawMode};

/// How we are attached.
#[derive(Debug, Clone)]
pub(crate) enum Mode {
    /// Only output.
    Output,
    /// Standard input is passed on as it is.
    Input,
    /// Our terminal is its terminal.
    Terminal(DetachKeys),
}

/// How it came to an end.
#[derive(Debug)]
pub(crate) enum Finished {
    /// The exec ended.
    Exited(Exit),
    /// The user detached; the exec goes on.
    Detached,
}

impl Finished {
    /// How the exec ended, if it did.
    pub(crate) fn exit(&self) -> Option<&Exit> {
        match self {
            Self::Exited(exit) => Some(exit),
            Self::Detached => None,
        }
    }
}

/// One exec in one sandbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) client: &'a Client,
    pub(crate) sandbox: &'a str,
    pub(crate) exec: &'a str,
}

/// An event as `--json` shows it.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line<'a> {
    Output {
        #[serde(flatten)]
        chunk: OutputChunk,
    },
    Gap {
        from: u64,
        to: u64,
    },
    Reconnected {
        input_unconfirmed_bytes: u64,
    },
    Refused {
        code: Code,
        message: &'a str,
    },
    Exit {
        state: ExecState,
        exit: &'a Exit,
        offset: u64,
    },
}

/// Shows one event. Gives the exit when it is the last.
pub(crate) async fn show_event(printer: Printer, event: AttachEvent) -> Result<Option<Exit>> {
    if printer.is_json() {
        return show_line(printer, event);
    }
    match event {
        AttachEvent::Output { stream, data, .. } => printer.exec_output(stream, data).await?,
        AttachEvent::Gap { from, to } => {
            printer.warn(&format!("{} bytes of output were dropped: the log's limit was reached", to - from));
        }
        AttachEvent::Reconnected { input_unconfirmed_bytes: 0 } => {}
        AttachEvent::Reconnected { input_unconfirmed_bytes: bytes } => {
            printer.warn(&format!("the connection broke; up to {bytes} bytes of input may be lost"));
        }
        // It was never open, or closed in the same moment: the program does not want input.
        AttachEvent::Refused(error) if matches!(error.code, Code::StdinClosed | Code::ExecEnded) => {}
        AttachEvent::Refused(error) => printer.warn(&error.message),
        AttachEvent::Exit { exit, .. } => return Ok(Some(exit)),
    }
    Ok(None)
}

fn show_line(printer: Printer, event: AttachEvent) -> Result<Option<Exit>> {
    let line = match &event {
        AttachEvent::Output { stream, offset, data } => {
            Line::Output { chunk: OutputChunk::new(*offset, *stream, data) }
        }
        AttachEvent::Gap { from, to } => Line::Gap { from: *from, to: *to },
        AttachEvent::Reconnected { input_unconfirmed_bytes: bytes } => {
            Line::Reconnected { input_unconfirmed_bytes: *bytes }
        }
        AttachEvent::Refused(error) => Line::Refused { code: error.code, message: &error.message },
        AttachEvent::Exit { state, exit, offset } => Line::Exit { state: *state, exit, offset: *offset },
    };
    printer.stream_item(&line)?;
    match event {
        AttachEvent::Exit { exit, .. } => Ok(Some(exit)),
        AttachEvent::Output { .. }
        | AttachEvent::Gap { .. }
        | AttachEvent::Reconnected { .. }
        | AttachEvent::Refused(_) => Ok(None),
    }
}

async fn show(printer: Printer, mode: &Mode, events: &mut AttachEvents) -> Result<Exit> {
    while let Some(event) = events.next().await {
        let event = event?;
        // A person sees what is missing and types it again; a program must not get a stream with a hole.
        if let (Mode::Input, AttachEvent::Reconnected { input_unconfirmed_bytes: 1.. }) = (mode, &event) {
            return Err(Failure::Plain(
                Error::new(Code::StdinClosed, "the connection broke while standard input was being sent")
                    .hint(
                        "some of it may not have arrived; the command may still be running: see 'atoll ps'",
                    ),
            ));
        }
        if let Some(exit) = show_event(printer, event).await? {
            return Ok(exit);
        }
    }
    Err(ClientError::Protocol("the events ended before the exec did".to_owned()).into())
}

/// Attaches at `offset` and stays until the exec ends or the user detaches.
pub(crate) async fn drive(
    printer: Printer,
    target: Target<'_>,
    mode: &Mode,
    offset: u64,
    stops: &mut Stops,
) -> Result<Finished> {
    let mut attachment =
        target.client.attach(target.sandbox, target.exec, offset, ResumePolicy::default()).await?;
    let raw = match mode {
        Mode::Terminal(_) => Some(RawMode::enable()?),
        Mode::Output | Mode::Input => None,
    };
    let (feeder, detached) = feed(mode, attachment.input)?;
    let mut detached = detached.fuse();
    let result = {
        let showing = show(printer, mode, &mut attachment.events);
        tokio::pin!(showing);
        let mut watch = Watch { target, printer, seen: 0, calls: FuturesUnordered::new() };
        loop {
            tokio::select! {
                exit = &mut showing => break exit.map(Finished::Exited),
                Ok(()) = &mut detached => break Ok(Finished::Detached),
                stop = stops.next() => if raw.is_some() || !watch.pass_on(stop) {
                    break Err(stop.failure());
                },
                Some(call) = watch.calls.next() => if let Err(error) = call {
                    watch.failed(&error);
                },
            }
        }
    };
    feeder.abort();
    drop(raw);
    result
}

/// Passes signals on: the first as it is, the second as a kill of the whole tree. After the third we
/// leave without waiting.
struct Watch<'a> {
    target: Target<'a>,
    printer: Printer,
    seen: u32,
    calls: FuturesUnordered<BoxFuture<'a, Result<(), ClientError>>>,
}

impl Watch<'_> {
    fn pass_on(&mut self, stop: Stop) -> bool {
        self.seen += 1;
        let Target { client, sandbox, exec } = self.target;
        match self.seen {
            1 => self.calls.push(Box::pin(async move {
                let signal = SignalExec { signal: stop.name().to_owned(), tree: false };
                client.signal_exec(sandbox, exec, &signal).await
            })),
            2 => self.calls.push(Box::pin(client.kill_exec(sandbox, exec))),
            _ => return false,
        }
        true
    }

    fn failed(&self, error: &ClientError) {
        // The exec ended in the same moment, as the user wanted.
        if error.code() != Some(Code::ExecEnded) {
            self.printer.warn(&format!("the signal was not sent: {error}"));
        }
    }
}

/// Starts the task that feeds input. The second value is told when the detach keys were typed, and
/// is closed otherwise.
fn feed(mode: &Mode, input: AttachInput) -> Result<(tokio::task::JoinHandle<()>, oneshot::Receiver<()>)> {
    let (tell, told) = oneshot::channel();
    let task = match mode {
        Mode::Output => tokio::spawn(std::future::pending()),
        Mode::Input => {
            let mut stdin = terminal::read_stdin()?;
            tokio::spawn(async move {
                while let Some(data) = stdin.recv().await {
                    if input.write(data).await.is_err() {
                        return;
                    }
                }
                // If the exec has ended it needs no end of input.
                let _ = input.close().await;
            })
        }
        Mode::Terminal(keys) => {
            let scanner = DetachScanner::new(keys);
            let stdin = terminal::read_stdin()?;
            let resized = signal(SignalKind::window_change())
                .map_err(|error| Failure::io("cannot catch signals", error))?;
            return Ok((tokio::spawn(feed_terminal(input, scanner, stdin, resized, tell)), told));
        }
    };
    // Only a terminal can detach.
    drop(tell);
    Ok((task, told))
}

async fn feed_terminal(
    input: AttachInput,
    mut scanner: DetachScanner,
    mut stdin: tokio::sync::mpsc::Receiver<Bytes>,
    mut resized: tokio::signal::unix::Signal,
    tell: oneshot::Sender<()>,
) {
    // The window may have changed since the exec was made.
    let mut alive = input.resize(terminal::size()).await.is_ok();
    while alive {
        tokio::select! {
            data = stdin.recv() => {
                let Some(data) = data else { break };
                let (pass, detach) = scanner.scan(&data);
                alive = input.write(Bytes::from(pass)).await.is_ok();
                if detach {
                    // Without a receiver the session is over anyway.
                    let _ = tell.send(());
                    return;
                }
            }
            _ = resized.recv() => alive = input.resize(terminal::size()).await.is_ok(),
        }
    }
    // The terminal has gone or the exec has ended; the latter is told by its exit.
    std::future::pending::<()>().await;
}

/// What was to be run, for what is said when it cannot.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Program<'a> {
    /// Its name, where it is known.
    pub(crate) name: Option<&'a str>,
    /// What the user may have meant by it.
    pub(crate) hint: Option<&'a str>,
}

impl Program<'_> {
    /// Why it did not start.
    fn not_started(self, code: Code, why: &str) -> Failure {
        let what = self.name.map_or_else(|| "the command".to_owned(), |name| format!("'{name}'"));
        let error = Error::new(code, format!("{what} {why}"));
        Failure::Plain(match self.hint {
            Some(hint) => error.hint(hint),
            None => error,
        })
    }
}

/// The exit code of this program for an exit of the exec: the exec's own code. Prints a reason where the code does not
/// say it.
pub(crate) fn exit_code(printer: Printer, exit: &Exit, program: Program<'_>) -> u8 {
    let why = match exit.reason {
        ExitReason::Exited | ExitReason::Signaled | ExitReason::Killed | ExitReason::Disconnected => None,
        ExitReason::OutOfMemory => {
            Some((Code::LimitExceeded, "the command was killed: the sandbox's memory limit was reached"))
        }
        ExitReason::TimedOut => Some((Code::Timeout, "the command was killed: its timeout passed")),
        ExitReason::IdleTimedOut => {
            Some((Code::Timeout, "the command was killed: it wrote nothing for its idle timeout"))
        }
        ExitReason::NotStarted => None,
        ExitReason::RolledBack => {
            Some((Code::InvalidState, "the command was ended: its sandbox was put back to an earlier state"))
        }
        ExitReason::SandboxPaused => {
            Some((Code::InvalidState, "the command was ended: its sandbox was paused without its memory"))
        }
        ExitReason::BudgetExhausted => {
            Some((Code::BudgetExhausted, "the command was killed: a budget of its sandbox is used up"))
        }
        ExitReason::SandboxDied => {
            Some((Code::SandboxFailed, "the sandbox died while the command was running"))
        }
    };
    let failure = match (exit.reason, exit.error) {
        (ExitReason::NotStarted, Some(Code::CommandNotFound)) => {
            Some(program.not_started(Code::CommandNotFound, "does not exist in the sandbox"))
        }
        (ExitReason::NotStarted, _) => {
            let program = Program { hint: None, ..program };
            Some(program.not_started(
                Code::CommandNotExecutable,
                "cannot be run: it is no program, or not for this system",
            ))
        }
        _ => why.map(|(code, why)| Failure::plain(code, why)),
    };
    // With `--json` the exit itself was the last line.
    if let Some(failure) = failure.filter(|_| !printer.is_json()) {
        printer.failure(&failure);
    }
    let code = exit.code.map(|code| u8::try_from(code.rem_euclid(256)));
    code.and_then(Result::ok).unwrap_or(EXIT_FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::exec::OutputStream;

    fn exit(reason: ExitReason, code: Option<i32>) -> Exit {
        Exit { reason, code, signal: None, error: None }
    }

    #[test]
    fn codes_pass_through() {
        let printer = Printer::new(true, false);
        assert_eq!(exit_code(printer, &exit(ExitReason::Exited, Some(0)), Program::default()), 0);
        assert_eq!(exit_code(printer, &exit(ExitReason::Exited, Some(255)), Program::default()), 255);
        assert_eq!(exit_code(printer, &exit(ExitReason::TimedOut, Some(137)), Program::default()), 137);
        assert_eq!(
            exit_code(printer, &exit(ExitReason::SandboxDied, None), Program::default()),
            EXIT_FAILURE
        );
    }

    #[test]
    fn lines_carry_their_bytes() {
        let chunk = OutputChunk::new(3, OutputStream::Stderr, b"x\xff");
        let line = serde_json::to_value(Line::Output { chunk }).unwrap();
        assert_eq!(
            line,
            serde_json::json!({"type": "output", "offset": 3, "stream": "stderr", "data": "eP8=", "encoding": "base64"})
        );
    }
}
