//! Cells: run, look, interrupt.

use std::time::Duration;

use atoll_core::code::{self, Ask, CellDraft, CellState, InterpreterCall, Line};
use atoll_core::error::shorten;
use atoll_core::id::{ContextId, SandboxId};
use atoll_core::limits::PAGE_MAX_COUNT;
use atoll_core::{Code, Error, Result};
use atoll_store::ContextRecord;

use crate::authorize::Caller;
use crate::boxed;
use crate::engine::Engine;
use crate::exec::{ExecView, OutputEvent};
use crate::log::Piece;
use crate::query::ExecQuery;

/// The client's last word is looked for in so many bytes at the end of its output.
const LAST_WORDS_BYTES: u64 = 16 << 10;

/// Code, as the journal and listings tell of it: without its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellInfo {
    /// In which context.
    pub context: ContextId,
    /// BLAKE3 of the code.
    pub digest: String,
    /// Its length.
    pub bytes: u64,
}

impl CellInfo {
    /// What an exec's arguments say of its cell.
    pub(crate) fn new(call: &InterpreterCall, argv: &[String]) -> Self {
        let (mut hasher, mut bytes) = (blake3::Hasher::new(), 0);
        for piece in InterpreterCall::code(argv) {
            hasher.update(piece.as_bytes());
            bytes += piece.len() as u64;
        }
        Self { context: call.context.clone(), digest: hasher.finalize().to_hex().to_string(), bytes }
    }
}

/// A cell as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellView {
    /// The exec that it is.
    pub exec: ExecView,
    /// What it runs.
    pub info: CellInfo,
    /// Where it is.
    pub state: CellState,
    /// What ended it, if that was not its code.
    pub reason: Option<&'static str>,
    /// How many cells its kernel has run, with this one: once it has ended.
    pub execution_count: Option<u64>,
    /// What the interpreter said of a cell that failed.
    pub said: Option<String>,
}

/// What the client said last.
#[derive(Debug, Default)]
pub(super) struct LastWords {
    pub(super) execution_count: Option<u64>,
    pub(super) text: Option<String>,
}

impl Engine {
    /// Runs code in a context, after the cells before it. Answers when that is certain to happen.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`], [`Code::ContextNotFound`], [`Code::InterpreterMissing`] where there is no Python to ask
    /// one with, and as [`Self::create_exec`]. Then nothing ran.
    #[boxed]
    pub async fn run_cell(
        &self,
        sandbox: &SandboxId,
        context: &str,
        cell: CellDraft,
        caller: &Caller,
    ) -> Result<CellView> {
        let context = self.context(sandbox, context).await?;
        let draft = self.of_context(&context)?.cell(cell)?;
        let exec = self.create_exec(sandbox, draft, caller).await?;
        self.cell_view(exec).await
    }

    /// A cell as it is once it has ended, or after `wait`.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`], [`Code::ContextNotFound`], [`Code::ExecNotFound`].
    #[boxed]
    pub async fn cell(
        &self,
        sandbox: &SandboxId,
        context: &str,
        cell: &str,
        wait: Duration,
    ) -> Result<CellView> {
        let context = self.context(sandbox, context).await?;
        self.cell_of(&context, self.exec(sandbox, cell).await?)?;
        self.cell_view(self.wait_exec(sandbox, cell, wait).await?).await
    }

    /// A page of the cells of a context, newest first. A page may be short, or even empty, and not the last.
    ///
    /// # Errors
    /// As [`Self::cell`]; [`Code::InvalidArgument`] for the cursor or the limit.
    #[boxed]
    pub async fn cells(
        &self,
        sandbox: &SandboxId,
        context: &str,
        limit: u32,
        cursor: Option<String>,
    ) -> Result<(Vec<CellView>, Option<String>)> {
        let context = self.context(sandbox, context).await?;
        // Execs that are no cells of this context are left out of the page.
        let query = ExecQuery { states: Vec::new(), cursor, limit: Some(limit.min(PAGE_MAX_COUNT)) };
        let (execs, next) = self.execs(sandbox, &query).await?;
        let mut views = Vec::new();
        for exec in execs {
            if is_cell_of(&context.id, &exec) {
                views.push(self.cell_view(exec).await?);
            }
        }
        Ok((views, next))
    }

    /// Interrupts a cell: its code is told, and its context goes on. One that waits does not begin. Does nothing to one
    /// that has ended.
    ///
    /// # Errors
    /// As [`Self::cell`], and what uses of a sandbox give.
    #[boxed]
    pub async fn interrupt_cell(&self, sandbox: &SandboxId, context: &str, cell: &str) -> Result<()> {
        let context = self.context(sandbox, context).await?;
        let view = self.cell_of(&context, self.exec(sandbox, cell).await?)?;
        self.signal_cell(sandbox, &view).await
    }

    /// Interrupts all cells of a context that run or wait.
    ///
    /// # Errors
    /// As [`Self::interrupt_cell`].
    #[boxed]
    pub async fn interrupt_context(&self, sandbox: &SandboxId, context: &str) -> Result<()> {
        let context = self.context(sandbox, context).await?;
        let mut running = self.running_execs(sandbox).await?;
        running.retain(|exec| is_cell_of(&context.id, exec));
        // The newest first: those that wait must not begin when the one before them ends.
        running.sort_unstable_by(|one, other| other.record.id.cmp(&one.record.id));
        for exec in running {
            self.signal_cell(sandbox, &exec).await?;
        }
        Ok(())
    }

    async fn signal_cell(&self, sandbox: &SandboxId, exec: &ExecView) -> Result<()> {
        // Not `INT`: a Python that is just starting takes that for a failure of its own.
        match self.signal_exec(sandbox, exec.record.id.as_str(), "TERM", false).await {
            Err(error) if error.code == Code::ExecEnded => Ok(()),
            signaled => signaled,
        }
    }

    /// An exec, if it is a cell of this context.
    pub(super) fn cell_of(&self, context: &ContextRecord, exec: ExecView) -> Result<ExecView> {
        if is_cell_of(&context.id, &exec) {
            return Ok(exec);
        }
        let id = shorten(exec.record.id.as_str());
        Err(Error::new(Code::ExecNotFound, format!("the context has no cell '{id}'")))
    }

    pub(super) async fn cell_view(&self, exec: ExecView) -> Result<CellView> {
        let Some(call) = &exec.record.spec.interpreter else {
            return Err(Error::new(Code::ExecNotFound, "the exec is no cell"));
        };
        let info = CellInfo::new(call, &exec.record.spec.argv);
        let ended = exec.record.exit.as_ref().filter(|_| exec.record.state.is_final()).map(code::ended);
        let (state, reason) = ended.unwrap_or((CellState::Running, None));
        let said = if ended.is_some() { self.last_words(&exec).await? } else { LastWords::default() };
        Ok(CellView { info, state, reason, execution_count: said.execution_count, said: said.text, exec })
    }

    /// What the client of an exec that has ended said last.
    pub(super) async fn last_words(&self, exec: &ExecView) -> Result<LastWords> {
        let record = &exec.record;
        let from = exec.extent.end.saturating_sub(LAST_WORDS_BYTES).max(exec.extent.first);
        let mut reader = self.output(&record.sandbox, record.id.as_str(), from, false).await?;
        let mut tail = Vec::new();
        while let Some(OutputEvent::Piece(piece)) =
            reader.next_now(usize::try_from(LAST_WORDS_BYTES).unwrap_or_default()).await?
        {
            if let Piece::Output { bytes, .. } = piece {
                tail.extend_from_slice(&bytes);
            }
        }
        let last = tail.strip_suffix(b"\n").unwrap_or(&tail).rsplit(|byte| *byte == b'\n').next();
        Ok(match last.map(code::line) {
            Some(Line::End { execution_count, text }) => LastWords { execution_count, text },
            _ => LastWords::default(),
        })
    }
}

fn is_cell_of(context: &ContextId, exec: &ExecView) -> bool {
    let call = exec.record.spec.interpreter.as_ref();
    call.is_some_and(|call| call.ask == Ask::Run && call.context == *context)
}
