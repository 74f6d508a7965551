//! What to run: [`ExecDraft`] as asked, [`ExecSpec`] as it will be run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::check;
use super::idempotency::IdempotencyKey;
use super::sandbox::SandboxSpec;
use crate::code::InterpreterCall;
use crate::error::{Error, Result};
use crate::limits::{
    ARG_MAX_BYTES, ARGV_MAX_COUNT, ARGV_TOTAL_MAX_BYTES, EXEC_TAG_MAX_BYTES, OUTPUT_KEEP_DEFAULT_BYTES,
    OUTPUT_KEEP_MAX_BYTES, OUTPUT_KEEP_MIN_BYTES, TTY_SIZE_MAX,
};
use crate::profile::ExecProfile;
use crate::traceparent::TraceParent;

/// A command, in one of the two ways people write it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Program and arguments, run as they are.
    Argv(Vec<String>),
    /// A line for `/bin/sh -c`.
    Shell(String),
}

/// Runs a line that came over SSH, or a login shell where there is none, with the user's shell. `nologin` and the
/// like are no shells.
const LOGIN: &str = "case \"${SHELL:-}\" in ''|*/nologin|*/false) SHELL=/bin/sh;; esac; \
[ -x \"$SHELL\" ] || SHELL=/bin/sh; export SHELL; \
if [ $# -gt 0 ]; then exec \"$SHELL\" -c \"$1\"; else exec \"$SHELL\" -l; fi";

impl Command {
    /// A line for the user's own shell, or a login shell.
    #[must_use]
    pub fn login(line: Option<String>) -> Self {
        Self::Argv(["/bin/sh", "-c", LOGIN, "sh"].map(str::to_owned).into_iter().chain(line).collect())
    }
}

/// A command as the one knows it who started it: what a login ran, without what stands around that.
#[must_use]
pub fn shown(argv: &[String]) -> String {
    match argv {
        [_, _, script, _] if script == LOGIN => "(login shell)".to_owned(),
        [_, _, script, _, line] if script == LOGIN => line.clone(),
        argv => argv.join(" "),
    }
}

/// Size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TtySize {
    /// Columns.
    pub cols: u16,
    /// Rows.
    pub rows: u16,
}

impl TtySize {
    /// Checks the range: 1 to 10,000 each way.
    ///
    /// # Errors
    /// [`crate::Code::InvalidArgument`] naming `field`.
    pub fn validate(self, field: &str) -> Result<()> {
        let range = 1..=TTY_SIZE_MAX;
        if range.contains(&self.cols) && range.contains(&self.rows) {
            return Ok(());
        }
        Err(Error::invalid(field, format_args!("columns and rows must lie between 1 and {TTY_SIZE_MAX}")))
    }
}

/// What a caller asked to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecDraft {
    /// The command.
    pub command: Command,
    /// Variables on top of the sandbox's.
    pub env: BTreeMap<String, String>,
    /// Working directory; the sandbox's when absent.
    pub cwd: Option<String>,
    /// User name or id, optionally `:group`; the sandbox's when absent.
    pub user: Option<String>,
    /// Run on a terminal of this size.
    pub tty: Option<TtySize>,
    /// Keep standard input open for the caller; otherwise it reads end-of-file at once.
    pub stdin: bool,
    /// Kill the tree this long after start.
    pub timeout_ms: Option<u64>,
    /// Kill the tree when it has written nothing for this long.
    pub idle_timeout_ms: Option<u64>,
    /// Kill the tree when the last attached client goes away.
    pub kill_on_disconnect: bool,
    /// Kill the tree when no client has been attached for this long.
    pub detach_timeout_ms: Option<u64>,
    /// Output kept on the host; the oldest goes first.
    pub keep_output_bytes: Option<u64>,
    /// Kill what it started and left behind when it ends, and have not ended before.
    pub end_tree: bool,
    /// A second request with the same key in the same sandbox returns the first exec.
    pub idempotency_key: Option<IdempotencyKey>,
    /// A word to find it by while it runs. Need not be unique.
    pub tag: Option<String>,
    /// It asks the sandbox's code interpreter for this, and its arguments are not a command.
    pub interpreter: Option<InterpreterCall>,
    /// The profile that it runs in; the sandbox's default when absent.
    pub profile: Option<String>,
    /// The caller's span, of which its own is a child.
    pub traceparent: Option<TraceParent>,
}

impl ExecDraft {
    /// A draft that just runs `command`.
    #[must_use]
    pub const fn new(command: Command) -> Self {
        Self {
            command,
            env: BTreeMap::new(),
            cwd: None,
            user: None,
            tty: None,
            stdin: false,
            timeout_ms: None,
            idle_timeout_ms: None,
            kill_on_disconnect: false,
            detach_timeout_ms: None,
            keep_output_bytes: None,
            end_tree: false,
            idempotency_key: None,
            tag: None,
            interpreter: None,
            profile: None,
            traceparent: None,
        }
    }
}

/// What will be run, complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecSpec {
    /// Program and arguments; at least one.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: BTreeMap<String, String>,
    /// Working directory; `None` is the user's home.
    pub cwd: Option<String>,
    /// User name or id, optionally `:group`.
    pub user: String,
    /// Terminal size, if it runs on one.
    pub tty: Option<TtySize>,
    /// Standard input stays open for the caller.
    pub stdin: bool,
    /// Kill the tree this long after start, milliseconds.
    pub timeout_ms: Option<u64>,
    /// Kill the tree after this long without output, milliseconds.
    pub idle_timeout_ms: Option<u64>,
    /// Kill the tree when the last attached client goes away.
    pub kill_on_disconnect: bool,
    /// Kill the tree when no client has been attached for this long, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detach_timeout_ms: Option<u64>,
    /// Output kept on the host, bytes.
    pub keep_output_bytes: u64,
    /// It has not ended before all that it started has: what is left then is killed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub end_tree: bool,
    /// A word to find it by while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// It asks the sandbox's code interpreter for this, and its arguments are not a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<InterpreterCall>,
    /// The profile that it runs in, as it was when this was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ExecProfile>,
    /// The caller's span, of which its own is a child.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<TraceParent>,
}

impl ExecSpec {
    /// Validates a draft against the sandbox it will run in and fills every default.
    ///
    /// # Errors
    /// [`crate::Code::InvalidArgument`] or [`crate::Code::PathInvalid`] naming the field.
    pub fn resolve(draft: ExecDraft, sandbox: &SandboxSpec) -> Result<Self> {
        let argv = match draft.command {
            Command::Argv(argv) => argv,
            Command::Shell(line) => vec!["/bin/sh".to_owned(), "-c".to_owned(), line],
        };
        validate_argv("argv", &argv)?;
        check::env("env", &draft.env)?;
        if let Some(cwd) = &draft.cwd {
            check::path("cwd", cwd)?;
        }
        if let Some(user) = &draft.user {
            check::user("user", user)?;
        }
        if let Some(tty) = draft.tty {
            tty.validate("tty")?;
        }
        if let Some(ms) = draft.timeout_ms {
            check::duration("timeout_ms", ms)?;
        }
        if let Some(ms) = draft.idle_timeout_ms {
            check::duration("idle_timeout_ms", ms)?;
        }
        if let Some(ms) = draft.detach_timeout_ms {
            check::duration("detach_timeout_ms", ms)?;
        }
        if draft.tag.as_ref().is_some_and(|tag| tag.is_empty() || tag.len() > EXEC_TAG_MAX_BYTES) {
            return Err(Error::invalid("tag", format_args!("must have 1 to {EXEC_TAG_MAX_BYTES} bytes")));
        }
        let profile = sandbox.profiles.of_exec(draft.profile.as_deref())?;
        let of_profile = profile.map(|(_, profile)| profile);
        let keep = draft.keep_output_bytes.unwrap_or(OUTPUT_KEEP_DEFAULT_BYTES);
        if !(OUTPUT_KEEP_MIN_BYTES..=OUTPUT_KEEP_MAX_BYTES).contains(&keep) {
            return Err(Error::invalid("keep_output_bytes", "must lie between 64 KiB and 16 GiB"));
        }
        let keep = keep.min(sandbox.resources.output_max_bytes());
        let mut env = sandbox.exec_env();
        if draft.tty.is_some() {
            env.entry("TERM".to_owned()).or_insert_with(|| "xterm-256color".to_owned());
        }
        env.extend(draft.env);
        check::env("env", &env)?;
        Ok(Self {
            argv,
            env,
            cwd: draft.cwd.or_else(|| sandbox.workdir.clone()),
            user: draft
                .user
                .or_else(|| of_profile.and_then(|profile| profile.user.clone()))
                .unwrap_or_else(|| sandbox.user.clone()),
            tty: draft.tty,
            stdin: draft.stdin || draft.tty.is_some(),
            timeout_ms: of_profile
                .and_then(|profile| profile.timeout_ms)
                .into_iter()
                .chain(draft.timeout_ms)
                .min(),
            idle_timeout_ms: draft.idle_timeout_ms,
            kill_on_disconnect: draft.kill_on_disconnect,
            detach_timeout_ms: draft.detach_timeout_ms,
            keep_output_bytes: keep,
            end_tree: draft.end_tree,
            tag: draft.tag,
            interpreter: draft.interpreter,
            profile: profile.map(|(name, _)| sandbox.profiles.from(name)),
            traceparent: draft.traceparent,
        })
    }
}

/// Checks a command.
///
/// # Errors
/// [`crate::Code::InvalidArgument`] naming `field`.
pub fn command(field: &str, command: &Command) -> Result<()> {
    match command {
        Command::Argv(argv) => validate_argv(field, argv),
        Command::Shell(line) => validate_argv(field, std::slice::from_ref(line)),
    }
}

fn validate_argv(field: &str, argv: &[String]) -> Result<()> {
    if argv.first().is_none_or(String::is_empty) {
        return Err(Error::invalid(field, "the command is empty"));
    }
    if argv.len() > ARGV_MAX_COUNT {
        return Err(Error::invalid(field, format_args!("more than {ARGV_MAX_COUNT} arguments")));
    }
    for (index, arg) in argv.iter().enumerate() {
        if arg.len() > ARG_MAX_BYTES {
            return Err(Error::invalid(&format!("{field}[{index}]"), "longer than 120 KiB")
                .hint("write the text to a file in the sandbox and pass its path"));
        }
        if arg.contains('\0') {
            return Err(Error::invalid(&format!("{field}[{index}]"), "contains a NUL byte"));
        }
    }
    if argv.iter().map(|arg| arg.len() + 1).sum::<usize>() > ARGV_TOTAL_MAX_BYTES {
        return Err(Error::invalid(field, "all arguments together are larger than 768 KiB"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;
    use crate::spec::resolve::tests::spec;

    fn draft(argv: &[&str]) -> ExecDraft {
        ExecDraft::new(Command::Argv(argv.iter().map(|s| (*s).to_owned()).collect()))
    }

    #[test]
    fn inherits_from_the_sandbox() {
        let mut sandbox = spec();
        sandbox.env.insert("A".into(), "sandbox".into());
        sandbox.workdir = Some("/work".into());
        let mut asked = draft(&["env"]);
        asked.env.insert("B".into(), "exec".into());
        let spec = ExecSpec::resolve(asked, &sandbox).unwrap();
        assert_eq!(spec.env["A"], "sandbox");
        assert_eq!(spec.env["B"], "exec");
        assert_eq!(spec.cwd.as_deref(), Some("/work"));
        assert_eq!(spec.user, sandbox.user);
    }

    #[test]
    fn a_terminal_has_stdin_and_term() {
        let mut asked = draft(&["sh"]);
        asked.tty = Some(TtySize { cols: 80, rows: 24 });
        let spec = ExecSpec::resolve(asked, &spec()).unwrap();
        assert!(spec.stdin);
        assert_eq!(spec.env["TERM"], "xterm-256color");
    }

    #[test]
    fn each_bad_field_is_named() {
        let cases: Vec<(ExecDraft, Code, &str)> = vec![
            (draft(&[]), Code::InvalidArgument, "argv"),
            (draft(&[""]), Code::InvalidArgument, "argv"),
            (draft(&["a", "b\0"]), Code::InvalidArgument, "argv[1]"),
            (draft(&["a", &"x".repeat(ARG_MAX_BYTES + 1)]), Code::InvalidArgument, "argv[1]"),
            (ExecDraft { cwd: Some("relative".into()), ..draft(&["a"]) }, Code::PathInvalid, "cwd"),
            (ExecDraft { user: Some("a b".into()), ..draft(&["a"]) }, Code::InvalidArgument, "user"),
            (ExecDraft { timeout_ms: Some(0), ..draft(&["a"]) }, Code::InvalidArgument, "timeout_ms"),
            (
                ExecDraft { tty: Some(TtySize { cols: 0, rows: 1 }), ..draft(&["a"]) },
                Code::InvalidArgument,
                "tty",
            ),
            (
                ExecDraft { keep_output_bytes: Some(1), ..draft(&["a"]) },
                Code::InvalidArgument,
                "keep_output_bytes",
            ),
        ];
        for (asked, code, field) in cases {
            let error = ExecSpec::resolve(asked, &spec()).unwrap_err();
            assert_eq!(error.code, code);
            assert!(error.message.starts_with(field), "{} names {field}", error.message);
        }
    }
}
