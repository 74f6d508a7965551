//! The one writer of a SQLite database.
//!
//! A thread of its own owns the writing connection and runs every statement in place: a transaction costs one message to
//! the thread and one back. It takes everything that waits, up to
//! [`BATCH_MAX_COUNT`] operations, runs it in one `BEGIN IMMEDIATE … COMMIT` and answers after the
//! commit. In company each operation has a savepoint, so that a failing one is undone alone. Operations
//! that make one change ([`Changes::One`]) need neither: SQLite undoes a failing statement by itself and
//! commits one that is alone. When the
//! database itself fails (disk full, I/O), SQLite may have rolled everything back already: the
//! whole batch is undone and each of its operations answers [`StoreError::Unavailable`].
//!
//! Being on another thread, an operation also runs to its end when its caller goes away. When one panics, what is in its
//! transaction is undone, each operation in it is [`StoreError::Unavailable`], and the thread goes on: with another
//! connection, if this one cannot undo it.

mod job;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use std::{io, thread};

use futures::future::BoxFuture;
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use crate::db::Conn;
use crate::error::StoreError;
use crate::sqlite;
use crate::writable::Writes;

pub(crate) use job::{Changes, Kept};
use job::{Job, Outcome, job};

/// Name of the writer's thread.
const THREAD: &str = "atoll-store";
/// Operations that may wait; beyond it callers wait to be let in.
const QUEUE_MAX_COUNT: usize = 1024;
/// Operations in one transaction.
const BATCH_MAX_COUNT: usize = 128;

/// A handle to the writer; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    queue: mpsc::Sender<Message>,
    /// The thread has a connection.
    connected: Arc<AtomicBool>,
}

enum Message {
    Run(Box<dyn Job>),
    Close(oneshot::Sender<()>),
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Run(_) => "Run",
            Self::Close(_) => "Close",
        })
    }
}

impl Writer {
    /// Starts the thread, which opens its connection and owns it, and opens another if that one is of no use any more. It
    /// ends when told to, or with the last handle. What fails is noted in `writes`.
    pub(crate) async fn start(
        mut open: impl FnMut() -> Result<Connection, StoreError> + Send + 'static,
        writes: Arc<Writes>,
    ) -> Result<Self, StoreError> {
        let (queue, messages) = mpsc::channel(QUEUE_MAX_COUNT);
        let connected = Arc::new(AtomicBool::new(true));
        let (reply, opened) = oneshot::channel();
        let is_connected = Arc::clone(&connected);
        let write = move || match open() {
            Ok(conn) => {
                drop(reply.send(Ok(())));
                serve(Some(conn), open, messages, &is_connected, &writes);
            }
            // The caller may have stopped waiting.
            Err(error) => drop(reply.send(Err(error))),
        };
        let started = thread::Builder::new().name(THREAD.to_owned()).spawn(write);
        drop(started.map_err(StoreError::unavailable)?);
        opened.await.unwrap_or_else(|_| Err(gone()))?;
        Ok(Self { queue, connected })
    }

    /// Whether the thread is there and has a connection. If it has none it opens one for the next operation.
    pub(crate) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed) && !self.queue.is_closed()
    }

    /// Runs one operation and waits for its commit.
    pub(crate) async fn run<T, F>(&self, changes: Changes, kept: Kept, operation: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(Conn<'c>) -> BoxFuture<'c, Result<T, StoreError>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job = job(changes, kept, operation, reply);
        if self.queue.send(Message::Run(job)).await.is_err() {
            return Err(gone());
        }
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Finishes what waits and closes the connection.
    pub(crate) async fn close(&self) {
        let (reply, answer) = oneshot::channel();
        // Either fails only when the thread has ended, which is what is wanted.
        if self.queue.send(Message::Close(reply)).await.is_ok() {
            drop(answer.await);
        }
    }
}

pub(crate) fn gone() -> StoreError {
    StoreError::unavailable(io::Error::new(io::ErrorKind::BrokenPipe, "the store is closed"))
}

fn serve(
    mut conn: Option<Connection>,
    mut open: impl FnMut() -> Result<Connection, StoreError>,
    mut messages: mpsc::Receiver<Message>,
    connected: &AtomicBool,
    writes: &Writes,
) {
    let mut received = Vec::with_capacity(BATCH_MAX_COUNT);
    let mut closing = None;
    let mut kept = None;
    while closing.is_none() && messages.blocking_recv_many(&mut received, BATCH_MAX_COUNT) > 0 {
        let mut jobs = Vec::with_capacity(received.len());
        for message in received.drain(..) {
            match message {
                Message::Run(job) => jobs.push(job),
                Message::Close(reply) => closing = Some(reply),
            }
        }
        if !jobs.is_empty() {
            let fate = outlive(&mut conn, &mut open, &mut jobs, &mut kept);
            connected.store(conn.is_some(), Ordering::Relaxed);
            if let Err(error) = &fate {
                // Before anybody is answered: who knows of the failure finds it noted.
                writes.failed(error, Instant::now());
            }
            jobs.into_iter().for_each(|job| job.answer(fate.clone()));
        }
    }
    // The file is consistent whether or not its log could be tidied up.
    drop(conn.map(Connection::close));
    connected.store(false, Ordering::Relaxed);
    if let Some(reply) = closing {
        let _ = reply.send(());
    }
}

/// Runs `jobs` as [`transact_as_asked`] does, and outlives a panic of one of them: then none of them happened. A
/// connection that cannot undo what was begun is given up, which undoes it; `open` gives the next.
fn outlive(
    held: &mut Option<Connection>,
    open: &mut impl FnMut() -> Result<Connection, StoreError>,
    jobs: &mut [Box<dyn Job>],
    kept: &mut Option<Kept>,
) -> Result<(), StoreError> {
    let conn = match held {
        Some(conn) => conn,
        None => {
            *kept = None;
            held.insert(open()?)
        }
    };
    let ran = catch_unwind(AssertUnwindSafe(|| transact_as_asked(conn, jobs, kept)));
    if let Ok(fate) = ran {
        return fate;
    }
    tracing::error!("an operation on the database panicked; what was in its transaction is undone");
    let undone = conn.is_autocommit() || statement(conn, "ROLLBACK").is_ok();
    if !undone {
        *held = None;
    }
    Err(StoreError::unavailable(io::Error::other("an operation of this transaction panicked")))
}

/// Runs `jobs` in one transaction that is kept as safely as the strictest of them asks for. `kept` is the level of the
/// last transaction: changing it takes a statement.
fn transact_as_asked(
    conn: &mut Connection,
    jobs: &mut [Box<dyn Job>],
    kept: &mut Option<Kept>,
) -> Result<(), StoreError> {
    let asked = jobs.iter().map(|job| job.kept()).max().unwrap_or(Kept::Disk);
    if *kept != Some(asked) {
        statement(conn, asked.pragma())?;
        *kept = Some(asked);
    }
    transact(conn, jobs)
}

/// Runs `jobs` in one transaction. `Err` means that none of them happened.
fn transact(conn: &mut Connection, jobs: &mut [Box<dyn Job>]) -> Result<(), StoreError> {
    if let [job] = jobs
        && job.changes() == Changes::One
    {
        return match job.run(conn) {
            Outcome::Keep | Outcome::UndoThis => Ok(()),
            Outcome::UndoAll(error) => Err(error),
        };
    }
    statement(conn, "BEGIN IMMEDIATE")?;
    let result = match jobs {
        [job] => match job.run(conn) {
            Outcome::Keep => statement(conn, "COMMIT"),
            // Undone, and answered with its own error.
            Outcome::UndoThis => return statement(conn, "ROLLBACK"),
            Outcome::UndoAll(error) => Err(error),
        },
        jobs => run_in_company(conn, jobs),
    };
    if result.is_err() {
        // Fails when SQLite has rolled back by itself; either way no transaction is open now.
        drop(statement(conn, "ROLLBACK"));
    }
    result
}

fn run_in_company(conn: &mut Connection, jobs: &mut [Box<dyn Job>]) -> Result<(), StoreError> {
    for job in jobs {
        if job.changes() == Changes::One {
            match job.run(conn) {
                Outcome::Keep | Outcome::UndoThis => continue,
                Outcome::UndoAll(error) => return Err(error),
            }
        }
        statement(conn, "SAVEPOINT job")?;
        match job.run(conn) {
            Outcome::Keep => {}
            Outcome::UndoThis => statement(conn, "ROLLBACK TO job")?,
            Outcome::UndoAll(error) => return Err(error),
        }
        statement(conn, "RELEASE job")?;
    }
    statement(conn, "COMMIT")
}

fn statement(conn: &Connection, sql: &'static str) -> Result<(), StoreError> {
    Ok(sqlite::execute(conn, sql, &[]).map(drop)?)
}

#[cfg(test)]
mod tests;
