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

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, thread};

use futures::executor::block_on;
use futures::future::BoxFuture;
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use crate::db::Conn;
use crate::error::StoreError;
use crate::sqlite;

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
    const fn pragma(self) -> &'static str {
        match self {
            Self::Process => "PRAGMA synchronous = NORMAL",
            Self::Disk => "PRAGMA synchronous = FULL",
        }
    }
}

/// One operation: run, then answered when its fate is known.
trait Job: Send {
    fn changes(&self) -> Changes;
    fn kept(&self) -> Kept;
    /// Runs the operation and keeps its result.
    fn run(&mut self, conn: &mut Connection) -> Outcome;
    /// Answers with the kept result, or with `fate` if the transaction failed.
    fn answer(self: Box<Self>, fate: Result<(), StoreError>);
}

/// What an operation means for its transaction.
enum Outcome {
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

impl Writer {
    /// Starts the thread, which opens its connection and owns it, and opens another if that one is of no use any more. It
    /// ends when told to, or with the last handle.
    pub(crate) async fn start(
        mut open: impl FnMut() -> Result<Connection, StoreError> + Send + 'static,
    ) -> Result<Self, StoreError> {
        let (queue, messages) = mpsc::channel(QUEUE_MAX_COUNT);
        let connected = Arc::new(AtomicBool::new(true));
        let (reply, opened) = oneshot::channel();
        let is_connected = Arc::clone(&connected);
        let write = move || match open() {
            Ok(conn) => {
                drop(reply.send(Ok(())));
                serve(Some(conn), open, messages, &is_connected);
            }
            // The caller may have stopped waiting.
            Err(error) => drop(reply.send(Err(error))),
        };
        let started = thread::Builder::new().name(THREAD.to_owned()).spawn(write);
        drop(started.map_err(StoreError::unavailable)?);
        opened.await.unwrap_or_else(|_| Err(gone()))?;
        Ok(Self { queue, connected })
    }

    /// Whether the thread is there and has a connection, or can open one now.
    pub(crate) async fn works(&self) -> bool {
        if self.connected.load(Ordering::Relaxed) && !self.queue.is_closed() {
            return true;
        }
        // Nobody else may write anything for a while: the thread opens a connection for this.
        let nothing = self.run::<(), _>(Changes::One, Kept::Process, |_conn| Box::pin(async { Ok(()) }));
        nothing.await.is_ok()
    }

    /// Runs one operation and waits for its commit.
    pub(crate) async fn run<T, F>(&self, changes: Changes, kept: Kept, operation: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(Conn<'c>) -> BoxFuture<'c, Result<T, StoreError>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job = Operation { changes, kept, operation: Some(operation), result: None, reply };
        if self.queue.send(Message::Run(Box::new(job))).await.is_err() {
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
mod tests {
    use futures::future::join_all;

    use super::*;
    use crate::conformance;
    use crate::{SandboxFilter, Store, StoreUrl};

    /// Runs SQL of the test's own on the writing connection.
    async fn sql(store: &Store, sql: &'static str) {
        store
            .read(move |mut conn| Box::pin(async move { conn.execute(sql, Vec::new()).await }))
            .await
            .unwrap();
    }

    /// An operation that keeps the writer until it is told to end: those that come meanwhile wait, and will be in one
    /// transaction.
    async fn occupied(store: &Store) -> (BoxFuture<'_, Result<(), StoreError>>, std::sync::mpsc::Sender<()>) {
        let (begun, has_begun) = oneshot::channel();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let mut busy = store.write::<(), _>(move |_conn| {
            Box::pin(async move {
                begun.send(()).unwrap();
                wait.recv().unwrap();
                Ok(())
            })
        });
        assert!(futures::poll!(&mut busy).is_pending());
        has_begun.await.unwrap();
        (busy, go)
    }

    async fn level(mut conn: Conn<'_>) -> Result<i64, StoreError> {
        let row = conn.row("PRAGMA synchronous", Vec::new()).await?.unwrap();
        Ok(row.int("synchronous").unwrap())
    }

    #[tokio::test]
    async fn a_full_disk_is_unavailable_and_loses_nothing() {
        let store = Store::open(&StoreUrl::SqliteMemory).await.unwrap();
        let parent = conformance::sandbox(1, 1);
        store.insert_sandbox(&parent).await.unwrap();
        // SQLite says SQLITE_FULL exactly as for a full file system.
        sql(&store, "PRAGMA max_page_count = 256").await;
        let mut stored = Vec::new();
        for round in 0.. {
            let records: Vec<_> = (0..16).map(|n| conformance::exec(&parent, round, n)).collect();
            let results = join_all(records.iter().map(|record| store.insert_exec(record))).await;
            let full = results.iter().any(Result::is_err);
            for (record, result) in records.into_iter().zip(results) {
                match result {
                    Ok(_) => stored.push(record),
                    Err(error @ StoreError::Unavailable { .. }) => {
                        assert!(error.is_disk_full(), "{error:?}");
                        assert_eq!(store.exec(&record.id).await.unwrap(), None, "refused, yet there");
                    }
                    Err(other) => panic!("{other:?}"),
                }
            }
            if full {
                break;
            }
        }
        assert!(!stored.is_empty());
        for record in &stored {
            assert_eq!(store.exec(&record.id).await.unwrap().as_ref(), Some(record));
        }
        sql(&store, "PRAGMA max_page_count = 100000").await;
        store.insert_exec(&conformance::exec(&parent, 1 << 40, 1)).await.unwrap();
    }

    #[tokio::test]
    async fn what_must_outlive_a_power_cut_is_on_disk_when_it_is_answered() {
        const NORMAL: i64 = 1;
        const FULL: i64 = 2;
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&StoreUrl::SqliteFile(dir.path().join("db"))).await.unwrap();
        let parent = conformance::sandbox(1, 1);
        store.insert_sandbox(&parent).await.unwrap();
        for _ in 0..2 {
            assert_eq!(store.write_soon(|conn| Box::pin(level(conn))).await.unwrap(), NORMAL);
            assert_eq!(store.write(|conn| Box::pin(level(conn))).await.unwrap(), FULL);
            // In company the strictest counts.
            let (busy, go) = occupied(&store).await;
            let mut soon = store.write_soon(|conn| Box::pin(level(conn)));
            let mut kept = store.write(|conn| Box::pin(level(conn)));
            assert!(futures::poll!(&mut soon).is_pending() && futures::poll!(&mut kept).is_pending());
            go.send(()).unwrap();
            let (busy, soon, kept) = futures::join!(busy, soon, kept);
            assert_eq!((busy.unwrap(), soon.unwrap(), kept.unwrap()), ((), FULL, FULL));
        }
    }

    #[tokio::test]
    async fn an_operation_runs_to_its_end_when_its_caller_goes_away() {
        let store = Store::open(&StoreUrl::SqliteMemory).await.unwrap();
        let parent = conformance::sandbox(1, 1);
        {
            let mut insert = std::pin::pin!(store.insert_sandbox(&parent));
            // One poll puts it into the queue; then the caller is gone.
            assert!(futures::poll!(&mut insert).is_pending());
        }
        assert_eq!(store.sandbox(&parent.id).await.unwrap(), Some(parent));
    }

    #[tokio::test]
    async fn an_operation_that_panics_is_undone_with_its_transaction_and_the_writer_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let url = StoreUrl::SqliteFile(dir.path().join("db"));
        let store = Store::open(&url).await.unwrap();
        let parent = conformance::sandbox(1, 1);
        store.insert_sandbox(&parent).await.unwrap();
        let panics = || {
            store.write::<(), _>(|mut conn| {
                Box::pin(async move {
                    assert!(conn.execute("DELETE FROM sandboxes", Vec::new()).await? > 0);
                    panic!("as asked")
                })
            })
        };
        let (busy, go) = occupied(&store).await;
        let second = conformance::sandbox(2, 2);
        {
            let mut inserts = std::pin::pin!(store.insert_sandbox(&second));
            let mut panicking = panics();
            assert!(futures::poll!(&mut inserts).is_pending());
            assert!(futures::poll!(&mut panicking).is_pending());
            go.send(()).unwrap();
            let (busy, inserts, panicking) = futures::join!(busy, inserts, panicking);
            busy.unwrap();
            assert!(matches!(inserts, Err(StoreError::Unavailable { .. })));
            assert!(matches!(panicking, Err(StoreError::Unavailable { .. })));
        }
        assert_eq!(store.sandbox(&second.id).await.unwrap(), None, "refused, yet there");
        for _ in 0..3 {
            assert!(matches!(panics().await, Err(StoreError::Unavailable { .. })));
            assert_eq!(store.sandbox(&parent.id).await.unwrap().as_ref(), Some(&parent), "it is undone");
        }
        // One without a transaction.
        let alone = store.write_one::<(), _>(|_| panic!("as asked")).await;
        assert!(matches!(alone, Err(StoreError::Unavailable { .. })));
        store.insert_sandbox(&second).await.unwrap();
        store.close().await;
        let store = Store::open(&url).await.unwrap();
        assert_eq!(store.sandbox(&parent.id).await.unwrap(), Some(parent));
        assert_eq!(store.sandbox(&second.id).await.unwrap(), Some(second));
    }

    #[test]
    fn a_connection_that_was_given_up_is_followed_by_another() {
        let (mut held, mut kept) = (None, Some(Kept::Disk));
        let mut refuse = || Err(gone());
        let refused = outlive(&mut held, &mut refuse, &mut [], &mut kept);
        assert!(matches!(refused, Err(StoreError::Unavailable { .. })) && held.is_none());
        kept = Some(Kept::Process);
        let mut open = || sqlite::open_in_memory().map_err(StoreError::from);
        outlive(&mut held, &mut open, &mut [], &mut kept).unwrap();
        assert!(held.is_some());
        assert_eq!(kept, Some(Kept::Disk), "the new one is told how to keep what it writes");
        // It is kept.
        outlive(&mut held, &mut refuse, &mut [], &mut kept).unwrap();
    }

    #[tokio::test]
    async fn a_writer_without_a_connection_says_so_until_it_can_open_one() {
        let may_open = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&may_open);
        let open = move || {
            let may = asked.load(Ordering::Relaxed);
            if may { sqlite::open_in_memory().map_err(StoreError::from) } else { Err(gone()) }
        };
        let (queue, messages) = mpsc::channel(QUEUE_MAX_COUNT);
        let writer = Writer { queue, connected: Arc::new(AtomicBool::new(false)) };
        let connected = Arc::clone(&writer.connected);
        let thread = thread::spawn(move || serve(None, open, messages, &connected));
        for _ in 0..2 {
            assert!(!writer.works().await);
        }
        may_open.store(true, Ordering::Relaxed);
        assert!(writer.works().await, "asking has it opened");
        // It keeps its connection.
        may_open.store(false, Ordering::Relaxed);
        assert!(writer.works().await);
        writer.close().await;
        assert!(!writer.works().await, "closed");
        thread.join().unwrap();
    }

    #[tokio::test]
    async fn nothing_is_left_of_the_log_when_the_store_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&StoreUrl::SqliteFile(dir.path().join("db"))).await.unwrap();
        let parent = conformance::sandbox(1, 1);
        store.insert_sandbox(&parent).await.unwrap();
        assert_eq!(store.sandbox(&parent.id).await.unwrap(), Some(parent));
        store.close().await;
        let left: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|one| one.unwrap().file_name()).collect();
        assert_eq!(left, ["db"]);
    }

    #[tokio::test]
    async fn unreadable_rows_are_corrupt_and_name_the_column() {
        let store = Store::open(&StoreUrl::SqliteMemory).await.unwrap();
        for (damage, wrong) in [
            ("UPDATE sandboxes SET state = 'dreaming'", "state"),
            ("UPDATE sandboxes SET spec_version = 99", "spec_version"),
            ("UPDATE sandboxes SET spec = '{}'", "spec"),
            ("UPDATE sandboxes SET labels = 'x'", "labels"),
            ("UPDATE sandboxes SET owner = 'nobody'", "owner"),
            ("UPDATE sandboxes SET created_ms = -1", "created_ms"),
            ("UPDATE sandboxes SET expires_ms = 'soon'", "expires_ms"),
        ] {
            let record = conformance::sandbox(1, 1);
            store.insert_sandbox(&record).await.unwrap();
            sql(&store, damage).await;
            match store.sandbox(&record.id).await {
                Err(StoreError::Corrupt { table, id, column }) => {
                    assert_eq!((table, id.as_str(), column), ("sandboxes", record.id.as_str(), wrong));
                }
                other => panic!("{damage}: {other:?}"),
            }
            let good = conformance::sandbox(2, 2);
            store.insert_sandbox(&good).await.unwrap();
            let page = store.list_sandboxes(&SandboxFilter::default(), None, 1).await.unwrap();
            assert_eq!(page.items, std::slice::from_ref(&good));
            // A row without a time is in no page, so that the first one is the last.
            if let Some(after) = &page.next {
                let rest = store.list_sandboxes(&SandboxFilter::default(), Some(after), 1).await.unwrap();
                assert_eq!((rest.items, rest.next), (Vec::new(), None), "it hides nothing but itself");
            }
            assert_eq!(store.sandbox_ids().await.unwrap().len(), 2, "and is not nobody's");
            store.delete_sandbox(&good.id).await.unwrap();
            assert!(store.delete_sandbox(&record.id).await.unwrap(), "what is damaged can be removed");
        }
    }
}
