//! Code that is run cell by cell: contexts, which remember, and cells.
//!
//! A *context* is a kernel of the code interpreter that a sandbox's image brings, and a *cell* is a piece of code that
//! it runs. Each request to the interpreter is an exec of a small client inside the sandbox (`guest/interpreter.py`),
//! so a cell is as durable as any command: it goes on without its caller and without the server, and its output is
//! kept. The client writes lines of JSON; [`line`] makes events of them.

mod event;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::json;

pub use event::{CellEventKind, Line, line};

use crate::error::{Code, Error, Result};
use crate::exec::{Exit, ExitReason};
use crate::id::ContextId;
use crate::limits::{
    CELL_CODE_MAX_BYTES, CELL_OUTPUT_MAX_BYTES, CONTEXT_LANGUAGE_MAX_BYTES, DURATION_MAX_MS,
};
use crate::spec::{self, Command, ExecDraft, IdempotencyKey};

/// Where the interpreter listens inside its sandbox. Source: E2B's code interpreter SDKs.
const PORT: u16 = 49_999;
/// What asks the interpreter.
const CLIENT: &str = include_str!("../../guest/interpreter.py");
/// Stands in an exec's `argv` for the program that runs the client. The other arguments are the code.
const PROGRAM: &str = "code-interpreter";
/// The variable that has the request: what runs is shown to more people than its variables are.
const VARIABLE: &str = "ATOLL_INTERPRETER";
/// Code travels in arguments of this size, bytes: below what Linux allows for one.
const PIECE_BYTES: usize = 100 << 10;
/// What the client has to interrupt a cell whose time is over before its exec is killed, milliseconds.
const GRACE_MS: u64 = 30_000;
/// Longest question that is not a cell, milliseconds: a kernel may take a minute to start.
const QUESTION_MAX_MS: u64 = 120_000;

/// How the client's exit codes are told apart; see `guest/interpreter.py`.
const FAILED: i32 = 40;
const INTERRUPTED: i32 = 41;
const TIMED_OUT: i32 = 42;
const MISSING: i32 = 43;
const REFUSED: i32 = 44;

/// What a context is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextSpec {
    /// Its language, by a name that the interpreter knows.
    pub language: String,
    /// Where its cells begin; where the interpreter has its home when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Variables of each of its cells.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

impl ContextSpec {
    /// Checks form and range.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] or [`Code::PathInvalid`] naming the field.
    pub fn validate(&self) -> Result<()> {
        let is_word =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'#' | b'-' | b'_' | b'.');
        if !(1..=CONTEXT_LANGUAGE_MAX_BYTES).contains(&self.language.len())
            || !self.language.bytes().all(is_word)
        {
            let hint = "such as python, javascript, typescript or bash";
            return Err(Error::invalid("language", "is not the name of a language").hint(hint));
        }
        if let Some(cwd) = &self.cwd {
            spec::path("cwd", cwd)?;
        }
        spec::env("env", &self.env)
    }
}

/// What an exec that asks the interpreter is about. Nobody can say this of an exec of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterpreterCall {
    /// Which context.
    pub context: ContextId,
    /// Its language.
    pub language: String,
    /// What is asked.
    #[serde(rename = "do")]
    pub ask: Ask,
}

/// What is asked of the interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// Make the kernel of a context, if there is none.
    Create,
    /// Give it a new kernel.
    Restart,
    /// End its kernel.
    Remove,
    /// Run code in it.
    Run,
}

/// Code that is to be run in a context.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CellDraft {
    /// The code.
    pub code: String,
    /// Variables on top of the context's, for this cell.
    pub env: BTreeMap<String, String>,
    /// Interrupt it after this long.
    pub timeout_ms: Option<u64>,
    /// A second request with the same key in the same sandbox returns the first cell.
    pub idempotency_key: Option<IdempotencyKey>,
}

/// A context as the execs about it are told.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Its id.
    pub id: &'a ContextId,
    /// What it is.
    pub spec: &'a ContextSpec,
    /// How long an interpreter that does not listen yet is waited for, milliseconds.
    pub patience_ms: u64,
}

impl Asked<'_> {
    /// The exec of a question about the context itself.
    #[must_use]
    pub fn question(&self, ask: Ask) -> ExecDraft {
        let request = json!({
            "do": ask, "context": self.id, "language": self.spec.language, "cwd": self.spec.cwd, "port": PORT,
            "patience_ms": self.patience_ms,
        });
        ExecDraft { timeout_ms: Some(QUESTION_MAX_MS), ..self.draft(ask, request.to_string(), Vec::new()) }
    }

    /// The exec of a cell.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] naming the field, [`Code::TooLarge`] for the code.
    pub fn cell(&self, cell: CellDraft) -> Result<ExecDraft> {
        if cell.code.contains('\0') {
            return Err(Error::invalid("code", "contains a NUL byte"));
        }
        if cell.code.len() > CELL_CODE_MAX_BYTES {
            return Err(Error::new(Code::TooLarge, "code: longer than 512 KiB")
                .hint("write it to a file in the sandbox, and run or read that"));
        }
        if let Some(ms) = cell.timeout_ms
            && !(1..=DURATION_MAX_MS).contains(&ms)
        {
            return Err(Error::invalid("timeout_ms", "must lie between 1 ms and one year"));
        }
        let mut env = self.spec.env.clone();
        env.extend(cell.env);
        spec::env("env", &env)?;
        let request = json!({
            "do": Ask::Run, "context": self.id, "language": self.spec.language, "cwd": self.spec.cwd, "port": PORT,
            "patience_ms": self.patience_ms, "env": env, "timeout_ms": cell.timeout_ms,
        });
        let mut argv = Vec::new();
        let mut rest = cell.code.as_str();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
            argv.push(piece.to_owned());
            rest = after;
        }
        Ok(ExecDraft {
            timeout_ms: cell.timeout_ms.map(|ms| ms.saturating_add(GRACE_MS).min(DURATION_MAX_MS)),
            keep_output_bytes: Some(CELL_OUTPUT_MAX_BYTES),
            idempotency_key: cell.idempotency_key,
            ..self.draft(Ask::Run, request.to_string(), argv)
        })
    }

    fn draft(&self, ask: Ask, request: String, mut argv: Vec<String>) -> ExecDraft {
        argv.insert(0, PROGRAM.to_owned());
        let call = InterpreterCall { context: self.id.clone(), language: self.spec.language.clone(), ask };
        ExecDraft {
            // The client needs none of its own: where code runs is its kernel's matter.
            cwd: Some("/".to_owned()),
            interpreter: Some(call),
            env: BTreeMap::from([(VARIABLE.to_owned(), request)]),
            ..ExecDraft::new(Command::Argv(argv))
        }
    }
}

impl InterpreterCall {
    /// What is really run for an exec with these arguments. `-I -S`: nothing that lies in the sandbox can be in the
    /// client's way.
    #[must_use]
    pub fn argv(argv: &[String]) -> Vec<String> {
        let client = ["python3", "-I", "-S", "-X", "utf8", "-c", CLIENT].map(str::to_owned);
        client.into_iter().chain(argv.iter().skip(1).cloned()).collect()
    }

    /// The pieces of code in an exec's arguments.
    pub fn code(argv: &[String]) -> impl Iterator<Item = &str> {
        argv.iter().skip(1).map(String::as_str)
    }
}

/// Where a cell is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum CellState {
    /// It runs, or waits for the cells before it.
    Running,
    /// It ran to its end.
    Done,
    /// Its code failed.
    Error,
    /// A request interrupted it.
    Interrupted,
    /// Its time was over, and it was interrupted.
    TimedOut,
    /// Something else ended it; the reason says what.
    Failed,
}

impl CellState {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Error => "error",
            Self::Interrupted => "interrupted",
            Self::TimedOut => "timed_out",
            Self::Failed => "failed",
        }
    }
}

/// How a cell ended, from how its exec did. With what ended it, if that was not the code.
#[must_use]
pub fn ended(exit: &Exit) -> (CellState, Option<&'static str>) {
    /// `SIGINT` before the client knew what to do with it, and `SIGTERM`.
    const ASKED_TO_END: [i32; 2] = [2, 15];
    let state = match (exit.reason, exit.code) {
        (ExitReason::Exited, Some(0)) => CellState::Done,
        (ExitReason::Exited, Some(FAILED)) => CellState::Error,
        (ExitReason::Exited, Some(INTERRUPTED)) => CellState::Interrupted,
        (ExitReason::Exited, Some(TIMED_OUT)) | (ExitReason::TimedOut, _) => CellState::TimedOut,
        (ExitReason::Signaled, _) if exit.signal.is_some_and(|signal| ASKED_TO_END.contains(&signal)) => {
            CellState::Interrupted
        }
        _ => return (CellState::Failed, Some(why(exit))),
    };
    (state, None)
}

/// What ended an exec of the client that did not come to an end by itself.
const fn why(exit: &Exit) -> &'static str {
    match (exit.reason, exit.code) {
        // Without Python there is no interpreter either.
        (ExitReason::Exited, Some(MISSING)) | (ExitReason::NotStarted, _) => "interpreter_missing",
        (ExitReason::Exited, Some(REFUSED)) => "refused",
        (ExitReason::OutOfMemory, _) => "out_of_memory",
        (ExitReason::Killed | ExitReason::Disconnected, _) => "killed",
        (ExitReason::SandboxPaused, _) => "sandbox_paused",
        (ExitReason::BudgetExhausted, _) => "budget_exhausted",
        (ExitReason::RolledBack, _) => "sandbox_rolled_back",
        (ExitReason::SandboxDied, _) => "sandbox_gone",
        _ => "interpreter_failed",
    }
}

/// What became of a question about a context, from how its exec ended and what it said last.
///
/// # Errors
/// [`Code::InterpreterMissing`], [`Code::InvalidArgument`] for what the interpreter refuses,
/// [`Code::InterpreterFailed`].
pub fn answered(exit: &Exit, text: Option<&str>) -> Result<()> {
    let (state, reason) = ended(exit);
    if state == CellState::Done {
        return Ok(());
    }
    let said = text.map(crate::error::shorten).filter(|text| !text.is_empty());
    Err(match reason {
        Some("interpreter_missing") => missing(),
        Some("refused") => {
            let said = said.unwrap_or_else(|| "the interpreter refuses it".to_owned());
            Error::invalid("context", format_args!("the interpreter says: {said}"))
        }
        _ => {
            let why = said.unwrap_or_else(|| reason.unwrap_or(state.as_str()).replace('_', " "));
            Error::new(Code::InterpreterFailed, format!("the code interpreter failed: {why}"))
        }
    })
}

/// Nothing answers where a code interpreter should.
#[must_use]
pub fn missing() -> Error {
    Error::new(Code::InterpreterMissing, format!("the sandbox has no code interpreter: nothing answers on its port {PORT}"))
        .hint("make the sandbox from the template 'code-interpreter-v1', which 'atoll template build-defaults code-interpreter-v1' makes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> ContextSpec {
        ContextSpec {
            language: "python".to_owned(),
            cwd: None,
            env: BTreeMap::from([("A".into(), "1".into())]),
        }
    }

    fn exit(reason: ExitReason, code: i32) -> Exit {
        Exit { reason, code: Some(code), signal: None, error: None }
    }

    #[test]
    fn languages_and_directories() {
        assert!(context().validate().is_ok());
        for language in ["", "py thon", "../x", "ü", &"x".repeat(100)] {
            let error = ContextSpec { language: language.to_owned(), ..context() }.validate().unwrap_err();
            assert!(error.message.starts_with("language"), "{}", error.message);
        }
        assert!(ContextSpec { cwd: Some("relative".into()), ..context() }.validate().is_err());
    }

    #[test]
    fn code_comes_whole_and_bounded() {
        let (id, spec) = (ContextId::from_parts(1, 2), context());
        let asked = Asked { id: &id, spec: &spec, patience_ms: 0 };
        let code = "ß€😀\n".repeat(30_000);
        let cell = CellDraft { code: code.clone(), timeout_ms: Some(5), ..CellDraft::default() };
        let draft = asked.cell(cell).unwrap();
        assert_eq!(draft.timeout_ms, Some(5 + GRACE_MS));
        let Command::Argv(argv) = draft.command else { panic!("no argv") };
        assert!(argv.len() > 3 && argv.iter().all(|piece| piece.len() <= PIECE_BYTES));
        assert_eq!(InterpreterCall::code(&argv).collect::<String>(), code);
        assert_eq!(InterpreterCall::argv(&argv)[7..], argv[1..]);
        for bad in ["x".repeat(CELL_CODE_MAX_BYTES + 1), "a\0b".to_owned()] {
            assert!(asked.cell(CellDraft { code: bad, ..CellDraft::default() }).is_err());
        }
        let env = BTreeMap::from([("A=B".to_owned(), String::new())]);
        assert!(asked.cell(CellDraft { env, ..CellDraft::default() }).is_err());
    }

    #[test]
    fn ends() {
        use ExitReason::{Exited, Killed, NotStarted, TimedOut as Late};
        let cases = [
            (exit(Exited, 0), CellState::Done, None),
            (exit(Exited, 40), CellState::Error, None),
            (exit(Exited, 41), CellState::Interrupted, None),
            (exit(Exited, 42), CellState::TimedOut, None),
            (exit(Late, 137), CellState::TimedOut, None),
            (exit(Exited, 43), CellState::Failed, Some("interpreter_missing")),
            (exit(NotStarted, 127), CellState::Failed, Some("interpreter_missing")),
            (exit(Exited, 1), CellState::Failed, Some("interpreter_failed")),
            (exit(Killed, 137), CellState::Failed, Some("killed")),
        ];
        for (exit, state, reason) in cases {
            assert_eq!(ended(&exit), (state, reason), "{exit:?}");
        }
        let signaled = Exit { signal: Some(2), ..exit(ExitReason::Signaled, 130) };
        assert_eq!(ended(&signaled), (CellState::Interrupted, None));
    }

    #[test]
    fn answers() {
        assert_eq!(answered(&exit(ExitReason::Exited, 0), None), Ok(()));
        let error = |code, text| answered(&exit(ExitReason::Exited, code), text).unwrap_err();
        assert_eq!(error(43, None).code, Code::InterpreterMissing);
        assert!(error(43, None).hint.is_some_and(|hint| hint.contains("code-interpreter-v1")));
        let refused = error(44, Some("no such\nlanguage"));
        assert_eq!(refused.code, Code::InvalidArgument);
        assert!(refused.message.contains("no such\u{fffd}language"), "{}", refused.message);
        assert_eq!(error(45, Some("")).code, Code::InterpreterFailed);
    }
}
