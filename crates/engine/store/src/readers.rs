//! The connections that read a SQLite file beside the writer's.
//!
//! A read takes a connection that no other read has, opens one if there are fewer than [`CONNECTIONS_MAX_COUNT`], or
//! waits for one; it runs on one of the threads that tokio keeps for what blocks, and sees what the writer has
//! committed. Once it runs, it runs to its end: when its caller goes away, too, the connection is there for the next.

use std::mem;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::executor::block_on;
use futures::future::BoxFuture;
use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::db::Conn;
use crate::error::StoreError;
use crate::sqlite;
use crate::store::ACQUIRE_TIMEOUT;
use crate::writer::gone;

/// Connections that read.
const CONNECTIONS_MAX_COUNT: u32 = 4;

/// A handle to the connections; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Readers {
    path: Arc<PathBuf>,
    /// Those that no read has.
    idle: Arc<Mutex<Vec<Connection>>>,
    /// One permit for each connection that is idle or may be opened.
    free: Arc<Semaphore>,
}

impl Readers {
    /// Readers of a file that is a database already. None is opened yet.
    pub(crate) fn new(path: PathBuf) -> Self {
        let free = Semaphore::new(CONNECTIONS_MAX_COUNT as usize);
        Self { path: Arc::new(path), idle: Arc::default(), free: Arc::new(free) }
    }

    /// Runs an operation that changes nothing. It must wait for nothing but its connection.
    pub(crate) async fn run<T, F>(&self, operation: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(Conn<'c>) -> BoxFuture<'c, Result<T, StoreError>> + Send + 'static,
    {
        let permit = self.acquire().await?;
        let readers = self.clone();
        let read = move || {
            let idle = readers.idle().pop();
            let mut conn = match idle {
                Some(conn) => conn,
                None => sqlite::open_to_read(&readers.path)?,
            };
            let result = block_on(operation(Conn::Sqlite(&mut conn)));
            // Back before the permit, which says that it is there. An operation that panics takes its connection along.
            readers.idle().push(conn);
            drop(permit);
            result
        };
        match spawn_blocking(read).await {
            Ok(result) => result,
            Err(ended) => match ended.try_into_panic() {
                // As if the operation had run here.
                Ok(panic) => resume_unwind(panic),
                Err(ended) => Err(StoreError::unavailable(ended)),
            },
        }
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

    /// Waits for the reads that were accepted and closes the connections.
    pub(crate) async fn close(&self) {
        // Fails when they are closed already.
        if let Ok(_all) = self.free.acquire_many(CONNECTIONS_MAX_COUNT).await {
            drop(mem::take(&mut *self.idle()));
            self.free.close();
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Barrier, mpsc};

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
        const COUNT: usize = CONNECTIONS_MAX_COUNT as usize;
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
    async fn a_read_whose_caller_goes_away_gives_its_connection_back() {
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
        assert_eq!(readers.free.available_permits(), CONNECTIONS_MAX_COUNT as usize - 1);
        go.send(()).unwrap();
        let _all = readers.free.acquire_many(CONNECTIONS_MAX_COUNT).await.unwrap();
        assert_eq!(readers.idle().len(), 1);
    }

    #[tokio::test]
    async fn a_read_that_panics_does_so_for_its_caller_alone() {
        let dir = tempfile::tempdir().unwrap();
        let readers = readers(&dir);
        for _ in 0..2 * CONNECTIONS_MAX_COUNT {
            let readers = readers.clone();
            let read = async move { readers.run::<i64, _>(|_| panic!("as asked")).await };
            assert!(tokio::spawn(read).await.unwrap_err().is_panic());
        }
        assert_eq!(readers.run(|conn| Box::pin(one(conn))).await.unwrap(), 1);
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
