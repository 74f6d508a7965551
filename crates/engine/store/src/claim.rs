//! One server for one PostgreSQL database: a second one would take the first's sandboxes for its own that died.
//!
//! A server holds an advisory lock of the session that this module keeps open for it. The database lets go of it when
//! that session ends, however it ends. A server whose session broke takes the lock again; if another has it by then,
//! it writes nothing any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, PgConnection, Row as _};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::StoreError;

/// Names the lock: the letters "atoll".
const LOCK: i64 = 0x0061_746f_6c6c;
/// How long a lock may still be held by a server that has just died.
const PATIENCE: Duration = Duration::from_secs(10);
const TRY_EVERY: Duration = Duration::from_millis(200);
/// How often the session is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The database notices within about 30 s that a server's machine is gone.
const NOTICE: &str =
    "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4";

/// What a server has, or has lost.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    options: PgConnectOptions,
    lost: Arc<AtomicBool>,
    closed: CancellationToken,
}

impl Claim {
    pub(crate) fn new(options: PgConnectOptions) -> Self {
        Self { options, lost: Arc::default(), closed: CancellationToken::new() }
    }

    /// # Errors
    /// [`StoreError::Claimed`] once another server has the database.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if self.lost.load(Ordering::Acquire) { Err(StoreError::Claimed) } else { Ok(()) }
    }

    /// Takes the lock and keeps it until [`Self::close`].
    ///
    /// # Errors
    /// [`StoreError::Claimed`] when another server has it; [`StoreError::Unavailable`].
    pub(crate) async fn take(&self) -> Result<(), StoreError> {
        let until = Instant::now() + PATIENCE;
        loop {
            let mut session = PgConnection::connect_with(&self.options).await?;
            if lock(&mut session).await? {
                let claim = self.clone();
                tokio::spawn(async move { claim.keep(session).await });
                return Ok(());
            }
            drop(session.close().await);
            if Instant::now() >= until {
                return Err(StoreError::Claimed);
            }
            tokio::time::sleep(TRY_EVERY).await;
        }
    }

    /// Lets go of it.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    async fn keep(self, session: PgConnection) {
        let mut session = Some(session);
        while self.closed.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
            if let Some(open) = &mut session
                && open.ping().await.is_ok()
            {
                continue;
            }
            session = None;
            match self.retake().await {
                Ok(again) => session = Some(again),
                Err(StoreError::Claimed) => {
                    tracing::error!(
                        "another server has taken this database: this one writes nothing any more"
                    );
                    self.lost.store(true, Ordering::Release);
                    return;
                }
                // The database is away, and with it everybody's lock.
                Err(error) => tracing::warn!(%error, "the claim on the database is not renewed yet"),
            }
        }
        if let Some(session) = session {
            drop(session.close().await);
        }
    }

    async fn retake(&self) -> Result<PgConnection, StoreError> {
        let mut session = PgConnection::connect_with(&self.options).await?;
        if lock(&mut session).await? { Ok(session) } else { Err(StoreError::Claimed) }
    }
}

async fn lock(session: &mut PgConnection) -> Result<bool, StoreError> {
    sqlx::raw_sql(NOTICE).execute(&mut *session).await?;
    let row = sqlx::query("SELECT pg_try_advisory_lock($1)").bind(LOCK).fetch_one(session).await?;
    Ok(row.try_get(0)?)
}
