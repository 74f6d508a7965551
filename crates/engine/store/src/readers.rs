//! The threads that read a SQLite file beside the writer's.
//!
//! A read takes a thread that no other read has, starts one if there are fewer than [`THREADS_MAX_COUNT`], or waits for
//! one. Each has a connection of its own, which sees what the writer has committed. They are not those that tokio
//! keeps for what blocks: work that waits for clients may have all of these. Once a read runs, it runs to its end: when
//! its caller goes away, too, the thread is there for the next. One that panics does so for its caller, and the thread
//! goes on with another connection.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

use futures::executor::block_on;
use futures::future::BoxFuture;
use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use crate::db::Conn;
use crate::error::StoreError;
use crate::sqlite;
use crate::store::ACQUIRE_TIMEOUT;
use crate::writer::gone;

/// Threads that read, each with a connection.
const THREADS_MAX_COUNT: u32 = 4;
/// Name of these threads.
const THREAD: &str = "atoll-store-r";

/// A handle to the threads; clones share them. They end with the last one.
#[derive(Debug, Clone)]
pub(crate) struct Readers {
    path: Arc<PathBuf>,
    /// Those that no read has.
    idle: Arc<Mutex<Vec<Reader>>>,
    /// One permit for each thread that is idle or may be started.
    free: Arc<Semaphore>,
}

/// What a thread does with its connection, if it has one yet.
type Job = Box<dyn FnOnce(&mut Option<Connection>) + Send>;

/// What became of an operation: its result, or its panic.
type Answer<T> = thread::Result<Result<T, StoreError>>;

/// A thread. It ends when this is dropped.
#[derive(Debug)]
struct Reader {
    jobs: mpsc::Sender<Job>,
    /// Told when its connection is closed.
    ended: oneshot::Receiver<()>,
}

impl Reader {
    fn start() -> Result<Self, StoreError> {
        let (jobs, waiting) = mpsc::channel::<Job>();
        let (end, ended) = oneshot::channel();
        let work = move || {
            let mut conn = None;
            while let Ok(job) = waiting.recv() {
                job(&mut conn);
            }
            drop(conn);
            // Fails when nobody waits for it.
            let _ = end.send(());
        };
        let started = thread::Builder::new().name(THREAD.to_owned()).spawn(work);
        drop(started.map_err(StoreError::unavailable)?);
        Ok(Self { jobs, ended })
    }
}

impl Readers {
    /// Readers of a file that is a database already. None is started yet.
    pub(crate) fn new(path: PathBuf) -> Self {
        let free = Semaphore::new(THREADS_MAX_COUNT as usize);
        Self { path: Arc::new(path), idle: Arc::default(), free: Arc::new(free) }
    }

    /// Runs an operation that changes nothing. It must wait for nothing but its connection.
    pub(crate) async fn run<T, F>(&self, operation: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(Conn<'c>) -> BoxFuture<'c, Result<T, StoreError>> + Send + 'static,
    {
        let permit = self.acquire().await?;
        match self.hand_over(permit, operation)?.await {
            Ok(Ok(result)) => result,
            // As if the operation had run here.
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_ended) => Err(gone()),
        }
    }

    /// Gives an operation to a thread, which answers with its result, or with its panic.
    fn hand_over<T, F>(
        &self,
        permit: OwnedSemaphorePermit,
        operation: F,
    ) -> Result<oneshot::Receiver<Answer<T>>, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(Conn<'c>) -> BoxFuture<'c, Result<T, StoreError>> + Send + 'static,
    {
        let idle = self.idle().pop();
        let reader = match idle {
            Some(reader) => reader,
            None => Reader::start()?,
        };
        let (reply, answer) = oneshot::channel();
        let (jobs, readers) = (reader.jobs.clone(), self.clone());
        let job = move |conn: &mut Option<Connection>| {
            let result = catch_unwind(AssertUnwindSafe(|| read(&readers.path, conn, operation)));
            if result.is_err() {
                *conn = None;
            }
            // Back before the permit, which says that it is there.
            readers.idle().push(reader);
            drop(permit);
            // The caller may have stopped waiting.
            drop(reply.send(result));
        };
        // Fails when the thread has ended, which none does that can be found here.
        jobs.send(Box::new(job)).map_err(|_ended| gone())?;
        Ok(answer)
    }

    async fn acquire(&self) -> Result<OwnedSemaphorePermit, StoreError> {
        if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
            return Ok(permit);
        }
        match timeout(ACQUIRE_TIMEOUT, Arc::clone(&self.free).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_closed)) => Err(gone()),
            Err(elapsed) => Err(StoreError::unavailable(elapsed)),
        }
    }

    /// Waits for the reads that were accepted, and until the connections are closed.
    pub(crate) async fn close(&self) {
        // Fails when they are closed already.
        if let Ok(_all) = self.free.acquire_many(THREADS_MAX_COUNT).await {
            let readers = mem::take(&mut *self.idle());
            for Reader { jobs, ended } in readers {
                drop(jobs);
                // Fails when the thread ended without a word: it has no connection, either.
                drop(ended.await);
            }
            self.free.close();
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Reader>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs an operation with the connection that is held, or with one that is opened and kept.
fn read<T, F>(path: &Path, held: &mut Option<Connection>, operation: F) -> Result<T, StoreError>
where
    F: for<'c> FnOnce(Conn<'c>) -> BoxFuture<'c, Result<T, StoreError>>,
{
    let conn = match held {
        Some(conn) => conn,
        None => held.insert(sqlite::open_to_read(path)?),
    };
    block_on(operation(Conn::Sqlite(conn)))
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn readers(dir: &tempfile::TempDir) -> Readers {
        let path = dir.path().join("a.db");
        std::fs::File::create(&path).unwrap();
        drop(sqlite::open(&path).unwrap());
        Readers::new(path)
    }

    async fn one(mut conn: Conn<'_>) -> Result<i64, StoreError> {
        Ok(conn.row("SELECT 1 AS one", Vec::new()).await?.unwrap().int("one").unwrap())
    }

    #[tokio::test]
    async fn so_many_read_at_once_and_the_others_wait() {
        const COUNT: usize = THREADS_MAX_COUNT as usize;
        let dir = tempfile::tempdir().unwrap();
        let readers = readers(&dir);
        let (meet, reading) = (Arc::new(Barrier::new(COUNT)), Arc::new(AtomicUsize::new(0)));
        let reads = (0..4 * COUNT).map(|_| {
            let (meet, reading) = (Arc::clone(&meet), Arc::clone(&reading));
            readers.run(move |conn| {
                assert!(reading.fetch_add(1, Ordering::SeqCst) < COUNT);
                meet.wait();
                reading.fetch_sub(1, Ordering::SeqCst);
                meet.wait();
                Box::pin(one(conn))
            })
        });
        for read in futures::future::join_all(reads).await {
            assert_eq!(read.unwrap(), 1);
        }
        assert_eq!(readers.idle().len(), COUNT);
    }

    #[tokio::test]
    async fn a_read_whose_caller_goes_away_gives_its_thread_back() {
        let dir = tempfile::tempdir().unwrap();
        let readers = readers(&dir);
        let (go, wait) = mpsc::channel::<()>();
        {
            let mut read = std::pin::pin!(readers.run(move |conn| {
                wait.recv().unwrap();
                Box::pin(one(conn))
            }));
            assert!(futures::poll!(&mut read).is_pending());
        }
        assert_eq!(readers.free.available_permits(), THREADS_MAX_COUNT as usize - 1);
        go.send(()).unwrap();
        let _all = readers.free.acquire_many(THREADS_MAX_COUNT).await.unwrap();
        assert_eq!(readers.idle().len(), 1);
    }

    #[tokio::test]
    async fn a_read_that_panics_does_so_for_its_caller_alone() {
        let dir = tempfile::tempdir().unwrap();
        let readers = readers(&dir);
        for _ in 0..2 * THREADS_MAX_COUNT {
            let readers = readers.clone();
            let read = async move { readers.run::<i64, _>(|_| panic!("as asked")).await };
            assert!(tokio::spawn(read).await.unwrap_err().is_panic());
        }
        assert_eq!(readers.run(|conn| Box::pin(one(conn))).await.unwrap(), 1);
    }

    #[test]
    fn a_read_is_answered_though_all_threads_of_tokio_that_may_wait_do_so() {
        let dir = tempfile::tempdir().unwrap();
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).max_blocking_threads(1).enable_time().build().unwrap();
        let readers = readers(&dir);
        let (go, wait) = mpsc::channel::<()>();
        let waits = runtime.spawn_blocking(move || wait.recv());
        let read = async { timeout(ACQUIRE_TIMEOUT, readers.run(|conn| Box::pin(one(conn)))).await };
        assert_eq!(runtime.block_on(read).expect("no thread is left").unwrap(), 1);
        assert!(!waits.is_finished());
        go.send(()).unwrap();
        assert_eq!(runtime.block_on(waits).unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn a_thread_goes_on_after_a_panic_with_another_connection() {
        let dir = tempfile::tempdir().unwrap();
        let readers = readers(&dir);
        // Only the connection that ran this may change something.
        let may_change = readers
            .run(|mut conn| Box::pin(async move { conn.execute("PRAGMA query_only = 0", Vec::new()).await }));
        may_change.await.unwrap();
        let own = readers.clone();
        let read = async move { own.run::<i64, _>(|_| panic!("as asked")).await };
        assert!(tokio::spawn(read).await.unwrap_err().is_panic());
        assert_eq!(readers.idle().len(), 1, "the thread is there");
        let change = readers.run(|mut conn| {
            Box::pin(async move { conn.execute("CREATE TABLE t (a BIGINT)", Vec::new()).await })
        });
        assert!(matches!(change.await, Err(StoreError::Unavailable { .. })));
        assert_eq!(readers.idle().len(), 1, "and is the one that was asked");
    }

    #[tokio::test]
    async fn none_changes_anything() {
        let dir = tempfile::tempdir().unwrap();
        let readers = readers(&dir);
        let change = readers.run(|mut conn| {
            Box::pin(async move { conn.execute("CREATE TABLE t (a BIGINT)", Vec::new()).await })
        });
        assert!(matches!(change.await, Err(StoreError::Unavailable { .. })));
    }

    #[tokio::test]
    async fn closed_ones_are_unavailable_and_what_was_accepted_is_finished() {
        let dir = tempfile::tempdir().unwrap();
        let readers = readers(&dir);
        let (go, wait) = mpsc::channel::<()>();
        let read = readers.run(move |conn| {
            wait.recv().unwrap();
            Box::pin(one(conn))
        });
        let close = async {
            let (mut one, mut two) = (std::pin::pin!(readers.close()), std::pin::pin!(readers.close()));
            assert!(futures::poll!(&mut one).is_pending() && futures::poll!(&mut two).is_pending());
            go.send(()).unwrap();
            futures::join!(one, two);
        };
        let (read, ()) = futures::join!(read, close);
        assert_eq!(read.unwrap(), 1);
        assert_eq!(readers.idle().len(), 0);
        let late = readers.run(|conn| Box::pin(one(conn))).await;
        assert!(matches!(late, Err(StoreError::Unavailable { .. })));
    }
}
