//! What the writer's thread does for others: one operation each, with what it asks of its transaction.

use futures::executor::block_on;
use futures::future::BoxFuture;
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::gone;
use crate::db::Conn;
use crate::error::StoreError;

/// How many statements of an operation change something, at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Changes {
    /// One, and nothing fails after it.
    One,
    /// Any number: all of them or none.
    Many,
}

/// When an operation is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kept {
    /// When it would survive the end of the program. A power cut may undo it, and all operations after it: this is for
    /// records of processes, which a power cut ends anyway.
    Process,
    /// When it is on disk, and all that came before it.
    Disk,
}

impl Kept {
    /// What makes SQLite wait for the disk with each commit, or only when it tidies its log up.
    pub(super) const fn pragma(self) -> &'static str {
        match self {
            Self::Process => "PRAGMA synchronous = NORMAL",
            Self::Disk => "PRAGMA synchronous = FULL",
        }
    }
}

/// One operation: run, then answered when its fate is known.
pub(super) trait Job: Send {
    fn changes(&self) -> Changes;
    fn kept(&self) -> Kept;
    /// Runs the operation and keeps its result.
    fn run(&mut self, conn: &mut Connection) -> Outcome;
    /// Answers with the kept result, or with `fate` if the transaction failed.
    fn answer(self: Box<Self>, fate: Result<(), StoreError>);
}

/// What an operation means for its transaction.
pub(super) enum Outcome {
    Keep,
    UndoThis,
    UndoAll(StoreError),
}

struct Operation<T, F> {
    changes: Changes,
    kept: Kept,
    operation: Option<F>,
    result: Option<Result<T, StoreError>>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

/// An operation whose result `reply` gets.
pub(super) fn job<T, F>(
    changes: Changes,
    kept: Kept,
    operation: F,
    reply: oneshot::Sender<Result<T, StoreError>>,
) -> Box<dyn Job>
where
    T: Send + 'static,
    F: for<'c> FnOnce(Conn<'c>) -> BoxFuture<'c, Result<T, StoreError>> + Send + 'static,
{
    Box::new(Operation { changes, kept, operation: Some(operation), result: None, reply })
}

impl<T, F> Job for Operation<T, F>
where
    T: Send + 'static,
    F: for<'c> FnOnce(Conn<'c>) -> BoxFuture<'c, Result<T, StoreError>> + Send + 'static,
{
    fn changes(&self) -> Changes {
        self.changes
    }

    fn kept(&self) -> Kept {
        self.kept
    }

    fn run(&mut self, conn: &mut Connection) -> Outcome {
        let Some(operation) = self.operation.take() else { return Outcome::UndoThis };
        // It waits for nothing but its connection, and that never makes it wait.
        let result = block_on(operation(Conn::Sqlite(conn)));
        let outcome = match &result {
            Ok(_) => Outcome::Keep,
            Err(error @ StoreError::Unavailable { .. }) => Outcome::UndoAll(error.clone()),
            Err(_) => Outcome::UndoThis,
        };
        self.result = Some(result);
        outcome
    }

    fn answer(self: Box<Self>, fate: Result<(), StoreError>) {
        let result = match (fate, self.result) {
            (Ok(()), Some(result)) => result,
            (Ok(()), None) => Err(gone()),
            (Err(error), _) => Err(error),
        };
        // The caller may have stopped waiting; the operation stands all the same.
        drop(self.reply.send(result));
    }
}
