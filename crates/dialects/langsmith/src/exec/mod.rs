//! Commands: a command that a client asks for becomes an exec of the engine.

pub(crate) mod blocking;
pub(crate) mod frames;
pub(crate) mod sse;
pub(crate) mod ws;

use std::collections::BTreeMap;

use atoll_core::exec::Exit;
use atoll_core::exec::ExitReason;
use atoll_core::id::SandboxId;
use atoll_core::spec::{Command, ExecDraft, TtySize};
use atoll_core::{Code, Error};
use atoll_dialect_kit::exec as kit;
use atoll_engine::{Caller as EngineCaller, Engine, ExecView};
use serde::Deserialize;

use crate::extras::RunConfig;

pub(crate) use kit::by_id;

/// Size of a terminal whose client has not told its own yet.
const TTY: TtySize = TtySize { cols: 80, rows: 24 };
/// Output kept for reconnecting, bytes.
const KEEP_BYTES: u64 = 1 << 30;

/// A command line for the shell, or words as they are (sent by the command-line client).
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum CommandText {
    Line(String),
    Words(Vec<String>),
}

/// The command that a client asks for, over any transport.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Request {
    pub(crate) command: Option<CommandText>,
    pub(crate) shell: Option<String>,
    #[serde(alias = "timeout")]
    pub(crate) timeout_seconds: Option<f64>,
    pub(crate) idle_timeout_seconds: Option<f64>,
    pub(crate) kill_on_disconnect: bool,
    /// The client makes it up: the same id is the same command, however often the client sends it.
    pub(crate) command_id: Option<String>,
    pub(crate) env: Option<BTreeMap<String, String>>,
    pub(crate) cwd: Option<String>,
    pub(crate) run_config: Option<RunConfig>,
    pub(crate) close_stdin: bool,
    pub(crate) pty: bool,
    pub(crate) ssh_agent_forward: bool,
}

impl Request {
    fn draft(self, shell: &str) -> Result<ExecDraft, Error> {
        if self.run_config.is_some() && (self.env.is_some() || self.cwd.is_some()) {
            return Err(Error::invalid("run_config", "cannot be combined with 'env' and 'cwd'"));
        }
        if self.ssh_agent_forward {
            return Err(Error::invalid("ssh_agent_forward", "is not supported by this server"));
        }
        let run = self.run_config.unwrap_or_default();
        let argv = match self.command {
            Some(CommandText::Line(line)) => vec![shell.to_owned(), "-c".to_owned(), line],
            Some(CommandText::Words(words)) => words,
            None if self.pty => vec![shell.to_owned()],
            None => return Err(Error::invalid("command", "is missing")),
        };
        Ok(ExecDraft {
            env: self.env.or(run.env_vars).unwrap_or_default(),
            cwd: self.cwd.or(run.work_dir),
            user: run.user,
            tty: self.pty.then_some(TTY),
            stdin: !self.close_stdin,
            timeout_ms: positive_ms("timeout_seconds", self.timeout_seconds)?,
            kill_on_disconnect: self.kill_on_disconnect,
            detach_timeout_ms: positive_ms("idle_timeout_seconds", self.idle_timeout_seconds)?,
            keep_output_bytes: Some(KEEP_BYTES),
            ..ExecDraft::new(Command::Argv(argv))
        })
    }
}

/// Zero and less mean "never".
fn positive_ms(field: &str, seconds: Option<f64>) -> Result<Option<u64>, Error> {
    const SECONDS_MAX: f64 = 365.0 * 24.0 * 3600.0;
    match seconds {
        Some(seconds) if seconds > SECONDS_MAX || seconds.is_nan() => {
            Err(Error::invalid(field, "must be at most a year"))
        }
        Some(seconds) if seconds > 0.0 =>
        {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "between 0 and a year"
            )]
            Ok(Some(((seconds * 1000.0).ceil() as u64).max(1)))
        }
        _ => Ok(None),
    }
}

/// Runs a command, or finds the command that already has this id.
pub(crate) async fn get_or_create(
    engine: &Engine,
    sandbox: &SandboxId,
    request: Request,
    caller: &EngineCaller,
) -> Result<ExecView, Error> {
    let id = request.command_id.clone();
    let shell = request.shell.clone().filter(|shell| !shell.is_empty());
    let draft = |shell: &str| request.clone().draft(shell);
    kit::get_or_create(engine, sandbox, id.as_deref(), shell.as_deref(), draft, caller).await
}

/// The output of a command, until it ends or its sandbox stands still.
///
/// A stop that preserves memory leaves the command where it is, and no client wakes a sandbox by waiting for output. So
/// the client is told, by an error that it raises: a connection that is only closed makes it reconnect, and that wakes
/// the sandbox which has just been stopped.
pub(crate) struct Output {
    feed: kit::Feed,
    engine: Engine,
    sandbox: SandboxId,
}

impl Output {
    pub(crate) fn new(engine: &Engine, sandbox: &SandboxId, feed: kit::Feed) -> Self {
        Self { feed, engine: engine.clone(), sandbox: sandbox.clone() }
    }

    /// The next event if there is one now.
    ///
    /// # Errors
    /// As [`kit::Feed::next_now`].
    pub(crate) async fn next_now(&mut self) -> Result<Option<kit::Event>, Error> {
        self.feed.next_now().await
    }

    /// The next event, waiting for it. Cancelling the wait loses nothing.
    ///
    /// # Errors
    /// As [`kit::Feed::next`]; [`Code::InvalidState`] when the sandbox is stopped and there is nothing more to tell.
    pub(crate) async fn next(&mut self) -> Result<kit::Event, Error> {
        loop {
            // In this order: what came before the stop, above all an end, is told.
            let stopped = self.engine.is_paused(&self.sandbox);
            match self.feed.next_now().await? {
                Some(event) => return Ok(event),
                None if stopped => {
                    let message = "the sandbox was stopped with its memory, and the command stands still";
                    return Err(Error::new(Code::InvalidState, message).hint(
                        "it goes on at the next use of the sandbox: reconnect to it by its command id",
                    ));
                }
                None => {}
            }
            tokio::select! {
                event = self.feed.next() => return event,
                () = self.engine.until_paused(&self.sandbox) => {}
            }
        }
    }

    /// Where the streams are now.
    pub(crate) fn offsets(&self) -> kit::Offsets {
        self.feed.offsets()
    }
}

/// How a command ended, in the clients' terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// With this code.
    Exit(i32),
    /// Without a code: type and sentence.
    Error(&'static str, String),
}

pub(crate) fn outcome(exit: &Exit) -> Outcome {
    match (exit.reason, exit.code) {
        (ExitReason::TimedOut, _) => {
            Outcome::Error("CommandTimeout", "the command did not end within its timeout".to_owned())
        }
        // The code is that of the signal by which the stop ended it, or of a handler of that signal.
        (ExitReason::SandboxPaused, code) => {
            let with = code.map(|code| format!(", which ended with code {code}")).unwrap_or_default();
            Outcome::Error("CommandError", format!("the sandbox was stopped under the command{with}"))
        }
        (_, Some(code)) => Outcome::Exit(code),
        (_, None) => Outcome::Error("CommandError", "the sandbox died under the command".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_dialect_kit::exec::SHELL;

    fn parse(text: &str) -> Request {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn the_newest_and_the_oldest_clients_ask() {
        let new = parse(
            r#"{"type":"execute","command":"echo hi","shell":"/bin/bash","timeout_seconds":60,
                "idle_timeout_seconds":-1,"ttl_seconds":600,"kill_on_disconnect":true,
                "command_id":"01a1fe11b598746486a3fbc93796230b","close_stdin":true,
                "run_config":{"user":"root","work_dir":"/tmp","env_vars":{"A":"1"}}}"#,
        );
        let draft = new.draft(SHELL).unwrap();
        assert_eq!(draft.command, Command::Argv(vec![SHELL.into(), "-c".into(), "echo hi".into()]));
        assert_eq!((draft.timeout_ms, draft.detach_timeout_ms), (Some(60_000), None));
        assert_eq!((draft.stdin, draft.kill_on_disconnect), (false, true));
        assert_eq!((draft.user.as_deref(), draft.cwd.as_deref()), (Some("root"), Some("/tmp")));
        let old =
            parse(r#"{"type":"execute","command":"cat","timeout_seconds":0,"idle_timeout_seconds":300}"#);
        let draft = old.draft(SHELL).unwrap();
        assert_eq!((draft.stdin, draft.timeout_ms, draft.detach_timeout_ms), (true, None, Some(300_000)));
    }

    #[test]
    fn a_console_needs_no_command_and_words_need_no_shell() {
        assert_eq!(parse(r#"{"pty":true}"#).draft(SHELL).unwrap().command, Command::Argv(vec![SHELL.into()]));
        let words = parse(r#"{"command":["ls","-l"],"timeout":1.5}"#).draft(SHELL).unwrap();
        assert_eq!(words.command, Command::Argv(vec!["ls".into(), "-l".into()]));
        assert_eq!(words.timeout_ms, Some(1500));
        assert!(parse("{}").draft(SHELL).is_err());
        assert!(parse(r#"{"command":"a","cwd":"/","run_config":{}}"#).draft(SHELL).is_err());
        assert!(parse(r#"{"command":"a","timeout":1e300}"#).draft(SHELL).is_err());
    }

    #[test]
    fn a_stop_is_told_whatever_code_a_command_ended_with() {
        let ended = |reason, code| outcome(&Exit { reason, code, signal: None, error: None });
        for code in [None, Some(0), Some(143), Some(137)] {
            let Outcome::Error("CommandError", why) = ended(ExitReason::SandboxPaused, code) else {
                panic!("{code:?} is told as an exit");
            };
            assert!(why.starts_with("the sandbox was stopped under the command"), "{why}");
            assert!(code.is_none_or(|code| why.ends_with(&format!("code {code}"))), "{why}");
        }
        assert_eq!(ended(ExitReason::Signaled, Some(143)), Outcome::Exit(143));
    }
}
