//! Contexts of a sandbox's code interpreter, and cells.
//!
//! Nothing is kept here while it runs. A context is a row; which kernel it is of the interpreter's is known inside the
//! sandbox, to the client that [`atoll_core::code`] starts there as an exec. A cell is such an exec, too: its state is how
//! that ended, and its events are read from that one's log, by any number of readers, also after a restart of the server.

mod cells;
mod lines;
mod reader;

use std::time::Duration;

use atoll_core::code::{self, Ask, Asked, ContextSpec};
use atoll_core::error::shorten;
use atoll_core::id::{ContextId, SandboxId};
use atoll_core::limits::CONTEXTS_MAX_COUNT;
use atoll_core::{Code, Error, Result, spec};
use atoll_store::{ContextRecord, StoreError};

pub use cells::{CellInfo, CellView};
pub use reader::{CellEvent, CellPage};

use crate::authorize::Caller;
use crate::boxed;
use crate::clock::random;
use crate::engine::Engine;
use crate::errors::store_error;

/// How long an interpreter that does not listen yet is waited for in a sandbox whose template starts something: after a
/// wake from disk it may still be starting, milliseconds.
const PATIENCE_MS: u64 = 15_000;
/// How long the end of a question is waited for: its exec is killed before that.
const ANSWER_WAIT: Duration = Duration::from_secs(180);

/// A context that is wanted.
#[derive(Debug, Clone)]
pub struct ContextDraft {
    /// A name for it, unique in the sandbox.
    pub name: Option<String>,
    /// What it is.
    pub spec: ContextSpec,
}

impl Engine {
    /// Makes a context, with its kernel. One that has the name already and is the same is the answer, and is not new.
    ///
    /// # Errors
    /// An error of the draft or the sandbox; [`Code::NameTaken`]; [`Code::LimitExceeded`];
    /// [`Code::InterpreterMissing`], [`Code::InterpreterFailed`]. Then there is no context.
    #[boxed]
    pub async fn create_context(
        &self,
        sandbox: &SandboxId,
        draft: ContextDraft,
        caller: &Caller,
    ) -> Result<(ContextRecord, bool)> {
        if let Some(name) = &draft.name {
            spec::name("name", name)?;
        }
        draft.spec.validate()?;
        let sandbox = self.inner.sandbox(sandbox)?.id.clone();
        if let Some(found) = self.same_context(&sandbox, &draft).await? {
            return Ok((found, false));
        }
        if self.contexts(&sandbox).await?.len() >= CONTEXTS_MAX_COUNT {
            let told = format!("the sandbox has {CONTEXTS_MAX_COUNT} contexts already");
            return Err(Error::new(Code::LimitExceeded, told).hint("remove some"));
        }
        let created_ms = self.inner.now_ms();
        let id = ContextId::from_parts(created_ms, random()?);
        let ContextDraft { name, spec } = draft.clone();
        let record = ContextRecord { id, sandbox: sandbox.clone(), name, spec, created_ms };
        match self.inner.store.insert_context(&record).await {
            Ok(()) => {}
            Err(StoreError::NotFound) => return Err(SandboxId::not_found(sandbox.as_str())),
            // Another caller was faster.
            Err(StoreError::NameTaken) => {
                let found = self.same_context(&sandbox, &draft).await?;
                return found.map(|found| (found, false)).ok_or_else(|| taken(&draft));
            }
            Err(error) => return Err(store_error(error)),
        }
        if let Err(error) = self.ask_interpreter(&record, Ask::Create, caller).await {
            // With a server that stops it may still come into being: the context stays, and its first cell sees to it.
            if error.code != Code::ShuttingDown {
                self.inner.store.delete_context(&record.id).await.map_err(store_error)?;
            }
            return Err(error);
        }
        Ok((record, true))
    }

    /// The context that has a draft's name, if it is the same.
    async fn same_context(&self, sandbox: &SandboxId, draft: &ContextDraft) -> Result<Option<ContextRecord>> {
        let Some(name) = &draft.name else { return Ok(None) };
        match self.inner.store.context(sandbox, name).await.map_err(store_error)? {
            Some(found) if found.spec == draft.spec => Ok(Some(found)),
            Some(_) => Err(taken(draft)),
            None => Ok(None),
        }
    }

    /// The contexts of a sandbox, the oldest first.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`].
    #[boxed]
    pub async fn contexts(&self, sandbox: &SandboxId) -> Result<Vec<ContextRecord>> {
        let sandbox = self.inner.sandbox(sandbox)?;
        self.inner.store.list_contexts(&sandbox.id).await.map_err(store_error)
    }

    /// A context, by id or name.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`], [`Code::ContextNotFound`].
    #[boxed]
    pub async fn context(&self, sandbox: &SandboxId, id_or_name: &str) -> Result<ContextRecord> {
        let sandbox = self.inner.sandbox(sandbox)?;
        let found = self.inner.store.context(&sandbox.id, id_or_name).await.map_err(store_error)?;
        found.ok_or_else(|| {
            Error::new(Code::ContextNotFound, format!("the sandbox has no context '{}'", shorten(id_or_name)))
                .hint("'atoll code contexts SANDBOX' shows what there is")
        })
    }

    /// Gives a context a new kernel, without what was in the old one. Cells that run in it end.
    ///
    /// # Errors
    /// As [`Self::context`], and as [`Self::create_context`] for the interpreter.
    #[boxed]
    pub async fn restart_context(&self, sandbox: &SandboxId, context: &str, caller: &Caller) -> Result<()> {
        let record = self.context(sandbox, context).await?;
        self.ask_interpreter(&record, Ask::Restart, caller).await
    }

    /// Ends a context's kernel, and the cells that run in it, and forgets the context.
    ///
    /// # Errors
    /// As [`Self::restart_context`].
    #[boxed]
    pub async fn remove_context(&self, sandbox: &SandboxId, context: &str, caller: &Caller) -> Result<()> {
        let record = self.context(sandbox, context).await?;
        match self.ask_interpreter(&record, Ask::Remove, caller).await {
            Ok(()) => {}
            // What is not there needs no end.
            Err(error) if matches!(error.code, Code::InterpreterMissing | Code::SandboxFailed) => {}
            Err(error) => return Err(error),
        }
        self.inner.store.delete_context(&record.id).await.map(drop).map_err(store_error)
    }

    /// Asks the interpreter about a context, and waits for its answer.
    async fn ask_interpreter(&self, context: &ContextRecord, ask: Ask, caller: &Caller) -> Result<()> {
        let draft = self.of_context(context)?.question(ask);
        let view = self.create_exec(&context.sandbox, draft, caller).await?;
        let exec = view.record.id;
        let view = self.wait_exec(&context.sandbox, exec.as_str(), ANSWER_WAIT).await?;
        let Some(exit) = view.record.exit.as_ref().filter(|_| view.record.state.is_final()) else {
            return Err(if self.inner.shutdown.is_cancelled() || self.inner.draining.is_cancelled() {
                Error::new(Code::ShuttingDown, "the server is shutting down")
            } else {
                Error::new(Code::Timeout, "the code interpreter does not answer")
            });
        };
        let said = self.last_words(&view).await?;
        code::answered(exit, said.text.as_deref())
    }

    /// A context as execs about it are told.
    fn of_context<'a>(&self, context: &'a ContextRecord) -> Result<Asked<'a>> {
        let sandbox = self.inner.sandbox(&context.sandbox)?;
        let patience_ms = if sandbox.record().spec.start.is_some() { PATIENCE_MS } else { 0 };
        Ok(Asked { id: &context.id, spec: &context.spec, patience_ms })
    }
}

fn taken(draft: &ContextDraft) -> Error {
    let name = draft.name.as_deref().unwrap_or_default();
    Error::new(Code::NameTaken, format!("the sandbox has another context '{}' already", shorten(name)))
        .hint("choose another name, or remove that context")
}
