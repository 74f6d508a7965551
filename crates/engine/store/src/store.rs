//! Opening a database, and the two ways into it: [`Store::read`] and [`Store::write`].

use std::mem;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use atoll_core::id::NodeId;
use atoll_core::opaque::Opaque;
use futures::future::BoxFuture;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::db::{Conn, args};
use crate::error::StoreError;
use crate::listed::Met;
use crate::membership::{self, Lease, Told};
use crate::migrations::{self, MIGRATIONS};
use crate::nodes::NodeDraft;
use crate::readers::Readers;
use crate::sqlite;
use crate::url::StoreUrl;
use crate::writable::{Unwritable, Writes};
use crate::writer::{Changes, Kept, Writer, gone};

/// Connections to PostgreSQL.
const POSTGRES_CONNECTIONS_MAX_COUNT: u32 = 16;
/// How long an operation waits for a free or new connection.
pub(crate) const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// The database. Clones share it.
#[derive(Debug, Clone)]
pub struct Store {
    backend: Opaque<Backend>,
    /// What cannot be read of what was listed.
    pub(crate) met: Met,
    pub(crate) writes: Arc<Writes>,
}

#[derive(Debug)]
enum Backend {
    Sqlite {
        writer: Writer,
        /// `None` for a database in memory: only the writer's connection can see it.
        readers: Option<Readers>,
    },
    Postgres {
        pool: PgPool,
        options: Box<PgConnectOptions>,
        /// The node that writes. Before [`Store::enter`] it is not set, and the store writes without being a node.
        lease: Arc<OnceLock<Lease>>,
    },
}

impl Store {
    /// Opens the database, creating the file if there is none, and brings its schema up to date.
    /// Must be called inside a Tokio runtime, and the store used in that one.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when it cannot be reached or read; [`StoreError::Schema`] when it
    /// was written by a newer program.
    pub async fn open(url: &StoreUrl) -> Result<Self, StoreError> {
        let writes = Arc::new(Writes::new(url.to_string()));
        let backend = match url {
            StoreUrl::SqliteMemory => {
                let mut opened = false;
                let open = move || {
                    // What was in memory has gone with its connection: another one would be another database.
                    if mem::replace(&mut opened, true) {
                        return Err(gone());
                    }
                    migrated(sqlite::open_in_memory()?)
                };
                let writer = Writer::start(open, Arc::clone(&writes)).await?;
                Backend::Sqlite { writer, readers: None }
            }
            StoreUrl::SqliteFile(path) => {
                let file = path.clone();
                let open = move || {
                    create_private(&file).map_err(StoreError::unavailable)?;
                    migrated(sqlite::open(&file)?)
                };
                let writer = Writer::start(open, Arc::clone(&writes)).await?;
                Backend::Sqlite { writer, readers: Some(Readers::new(path.clone())) }
            }
            StoreUrl::Postgres(url) => {
                let options = url.reveal().parse::<PgConnectOptions>()?.application_name("atoll");
                let seen = Arc::clone(&writes);
                let pool = PgPoolOptions::new()
                    .max_connections(POSTGRES_CONNECTIONS_MAX_COUNT)
                    .acquire_timeout(ACQUIRE_TIMEOUT)
                    .after_connect(|session, _| {
                        Box::pin(
                            async move { sqlx::raw_sql(membership::NOTICE).execute(session).await.map(drop) },
                        )
                    })
                    .before_acquire(move |_session, known| {
                        let keep = !seen.is_stale(known.age, Instant::now());
                        Box::pin(async move { Ok(keep) })
                    })
                    .connect_with(options.clone())
                    .await?;
                MIGRATIONS.run(&pool).await.map_err(migrations::run_error)?;
                Backend::Postgres { pool, options: Box::new(options), lease: Arc::default() }
            }
        };
        Ok(Self { backend: Opaque::new(backend), met: Met::default(), writes })
    }

    /// Becomes a node of the cluster that shares the database, until [`Self::close`] or the end of the process. The
    /// node calls `told` with the time until which it may go on. A SQLite file is in a data directory that only one
    /// server has: there this does nothing.
    ///
    /// # Errors
    /// [`StoreError::Claimed`] when this node is there already; [`StoreError::NameTaken`] when another has its name.
    pub async fn enter(&self, node: &NodeDraft, told: Told) -> Result<(), StoreError> {
        match &*self.backend {
            Backend::Sqlite { .. } => Ok(()),
            Backend::Postgres { pool, options, lease } => {
                let entered = membership::enter((**options).clone(), pool, node, told).await?;
                lease.set(entered).map_err(|_twice| StoreError::Claimed)
            }
        }
    }

    /// Whether several servers may share the database: then each of them is a node.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(*self.backend, Backend::Postgres { .. })
    }

    /// This node's lease, once it has entered.
    #[must_use]
    pub fn lease(&self) -> Option<&Lease> {
        match &*self.backend {
            Backend::Sqlite { .. } => None,
            Backend::Postgres { lease, .. } => lease.get(),
        }
    }

    /// The node that this is.
    pub(crate) fn node(&self) -> Option<&NodeId> {
        self.lease().map(|lease| &lease.node().id)
    }

    /// Why nothing can be stored at this moment, if that is so: when a write failed, or there is no connection, an attempt
    /// decides, one in a second at most. Of a PostgreSQL that does not answer at all the node's lease tells.
    pub async fn unwritable(&self) -> Option<Unwritable> {
        let is_connected = match &*self.backend {
            Backend::Sqlite { writer, .. } => writer.is_connected(),
            Backend::Postgres { pool, .. } => !pool.is_closed(),
        };
        let why = if is_connected { self.writes.failing()? } else { Unwritable::Disconnected };
        match tokio::time::timeout(ACQUIRE_TIMEOUT, self.attempt(why)).await {
            Ok(found) => found.err(),
            Err(_late) => Some(why),
        }
    }

    /// What the last attempt found, or else a new one, if no other says why.
    async fn attempt(&self, why: Unwritable) -> Result<(), Unwritable> {
        let turn = self.writes.turn().await;
        if let Some(found) = self.writes.found(Instant::now()) {
            return found;
        }
        let store = self.clone();
        // In a task of its own, which keeps the turn: whoever asks may go away, and what was found is noted all the same.
        let trying = tokio::spawn(async move {
            let _turn = turn;
            let tried = store.try_to_write().await;
            let found = tried.map_err(|error| error.unwritable().unwrap_or(why));
            store.writes.tried(found, Instant::now());
            found
        });
        trying.await.unwrap_or(Err(why))
    }

    /// Has something written to the disk that leaves nothing behind.
    async fn try_to_write(&self) -> Result<(), StoreError> {
        const PUT: &str = "INSERT INTO changes (what, number) VALUES ($1, 0)";
        const REMOVE: &str = "DELETE FROM changes WHERE what = $1";
        // No table is counted by this name. It is this node's own: none waits for the attempt of another one, which may be
        // cut off from the database in the middle.
        let name = format!("nothing {}", self.node().map_or("", NodeId::as_str));
        let (put, remove) = (args![name.as_str()], args![name.as_str()]);
        self.write(move |mut conn| {
            Box::pin(async move {
                conn.execute(PUT, put).await?;
                conn.execute(REMOVE, remove).await.map(drop)
            })
        })
        .await
    }

    /// Finishes what was accepted, then lets go of the database. Later operations on any clone are
    /// [`StoreError::Unavailable`].
    pub async fn close(&self) {
        match &*self.backend {
            Backend::Sqlite { writer, readers } => {
                // Readers first: the last connection to close cleans the file's log up.
                if let Some(readers) = readers {
                    readers.close().await;
                }
                writer.close().await;
            }
            Backend::Postgres { pool, lease, .. } => {
                if let Some(lease) = lease.get() {
                    lease.close();
                }
                pool.close().await;
            }
        }
    }

    /// Runs an operation that changes nothing. It must wait for nothing but its connection.
    pub(crate) fn read<T, F>(&self, operation: F) -> BoxFuture<'_, Result<T, StoreError>>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(Conn<'c>) -> BoxFuture<'c, Result<T, StoreError>> + Send + 'static,
    {
        Box::pin(async move {
            match &*self.backend {
                Backend::Sqlite { readers: Some(readers), .. } => readers.run(operation).await,
                Backend::Sqlite { writer, readers: None } => {
                    writer.run(Changes::Many, Kept::Process, operation).await
                }
                Backend::Postgres { pool, .. } => {
                    operation(Conn::Postgres(&mut *pool.acquire().await?)).await
                }
            }
        })
    }

    /// Runs an operation in a transaction: it is committed when this returns `Ok`, undone when the
    /// operation returns `Err`. The operation must wait for nothing but its connection. Once it was polled it runs to
    /// its end, even when the caller stops waiting. What is committed survives a power cut.
    pub(crate) fn write<T, F>(&self, operation: F) -> BoxFuture<'_, Result<T, StoreError>>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(Conn<'c>) -> BoxFuture<'c, Result<T, StoreError>> + Send + 'static,
    {
        self.change(Changes::Many, Kept::Disk, operation)
    }

    /// As [`Self::write`], for an operation in which one statement changes something, at most, and
    /// nothing fails after it.
    pub(crate) fn write_one<T, F>(&self, operation: F) -> BoxFuture<'_, Result<T, StoreError>>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(Conn<'c>) -> BoxFuture<'c, Result<T, StoreError>> + Send + 'static,
    {
        self.change(Changes::One, Kept::Disk, operation)
    }

    /// As [`Self::write`], without waiting for the disk: see [`Kept::Process`].
    pub(crate) fn write_soon<T, F>(&self, operation: F) -> BoxFuture<'_, Result<T, StoreError>>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(Conn<'c>) -> BoxFuture<'c, Result<T, StoreError>> + Send + 'static,
    {
        self.change(Changes::Many, Kept::Process, operation)
    }

    /// As [`Self::write_one`], without waiting for the disk: see [`Kept::Process`].
    pub(crate) fn write_one_soon<T, F>(&self, operation: F) -> BoxFuture<'_, Result<T, StoreError>>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(Conn<'c>) -> BoxFuture<'c, Result<T, StoreError>> + Send + 'static,
    {
        self.change(Changes::One, Kept::Process, operation)
    }

    fn change<T, F>(&self, changes: Changes, kept: Kept, operation: F) -> BoxFuture<'_, Result<T, StoreError>>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(Conn<'c>) -> BoxFuture<'c, Result<T, StoreError>> + Send + 'static,
    {
        Box::pin(async move {
            match &*self.backend {
                Backend::Sqlite { writer, .. } => writer.run(changes, kept, operation).await,
                Backend::Postgres { pool, lease, .. } => {
                    let lease = lease.get().cloned();
                    if let Some(lease) = &lease {
                        lease.check()?;
                    }
                    // In a task of its own, as on SQLite's writer it runs on another thread: it runs to its end when its caller goes away.
                    let transaction = transact(pool.clone(), lease, operation);
                    let writes = Arc::clone(&self.writes);
                    let noted = async move {
                        transaction.await.inspect_err(|error| writes.failed(error, Instant::now()))
                    };
                    tokio::spawn(noted).await.unwrap_or_else(|ended| Err(StoreError::unavailable(ended)))
                }
            }
        })
    }
}

async fn transact<T, F>(pool: PgPool, lease: Option<Lease>, operation: F) -> Result<T, StoreError>
where
    F: for<'c> FnOnce(Conn<'c>) -> BoxFuture<'c, Result<T, StoreError>>,
{
    let mut transaction = pool.begin().await?;
    if let Some(lease) = &lease {
        membership::fence(&mut transaction, lease).await?;
    }
    let result = operation(Conn::Postgres(&mut transaction)).await;
    match result {
        Ok(value) => transaction.commit().await.map(|()| value).map_err(StoreError::from),
        Err(error) => {
            // Best effort: a connection that cannot roll back is dropped by the pool.
            drop(transaction.rollback().await);
            Err(error)
        }
    }
}

/// The writer's connection, with the schema brought up to date.
fn migrated(mut conn: rusqlite::Connection) -> Result<rusqlite::Connection, StoreError> {
    migrations::run(&mut conn)?;
    Ok(conn)
}

/// Creates the file so that only its owner can read it; SQLite gives its side files the same mode.
fn create_private(path: &Path) -> std::io::Result<()> {
    std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path).map(drop)
}
