//! A server on PostgreSQL is a node: one of several that share the database, each with sandboxes of its own.
//!
//! A node gives a sign of life (a *beat*) a few times in each lease. The other nodes watch whether the beat changes,
//! each by a clock of its own that no other machine sets. When it has not changed for a whole lease, one of them takes
//! over: it raises the node's epoch in the transaction that records what became of its sandboxes
//! ([`Store::take_over`]). Every transaction that writes begins by locking the node's row with the epoch that the node
//! had when it entered ([`fence`]): a node whose epoch was raised writes nothing any more, even if it believes that it
//! is alive.
//!
//! The node counts its lease from before it sent the last beat that was answered, by a clock that runs on while the machine
//! sleeps. So it stops before another node may have taken over.
//!
//! The session that beats also holds two advisory locks. One names the node, so that a copy of its data directory does
//! not become the same node at the same time. The other is shared by all nodes; older versions, which knew of no
//! nodes, take it exclusively.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, PgConnection, PgPool, Row as _};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::StoreError;
use crate::nodes::NodeDraft;

/// The lock that every node shares, and that older servers take alone: the letters "atoll".
const LOCK: i64 = 0x0061_746f_6c6c;
/// The lock that makes nodes that enter at the same moment do so one after the other.
const ENTRANCE: i64 = LOCK + 1;
/// How long a lock may still be held by a server that has just died.
const PATIENCE: Duration = Duration::from_secs(10);
const TRY_EVERY: Duration = Duration::from_millis(200);
/// Beats in a lease.
const BEATS: u32 = 5;
/// A node stops one fifth of its lease before another node may take over.
const MARGIN_PART: u64 = 5;
/// What each session sets. The database notices within about 30 s that a node's machine is gone, and within 10 s that a
/// node stands still in the middle of a transaction: the rows that it locked are in no other node's way for longer.
pub(crate) const NOTICE: &str = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; \
     SET tcp_keepalives_count = 4; SET idle_in_transaction_session_timeout = '10s'";

/// Counts what changes in tables that servers keep in memory. In one statement each, and only where it is missing: making
/// a trigger locks its table.
const TRIGGERS: &str = "
CREATE OR REPLACE FUNCTION atoll_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO changes (what, number) VALUES (TG_ARGV[0], 1)
        ON CONFLICT (what) DO UPDATE SET number = changes.number + 1;
    RETURN NULL;
END $$;
DO $$
DECLARE
    wanted RECORD;
BEGIN
    FOR wanted IN SELECT * FROM (VALUES
        ('api_keys', 'keys', 'INSERT OR DELETE OR UPDATE OF hash, scopes, expires_ms'),
        ('secrets', 'secrets', 'INSERT OR DELETE OR UPDATE'),
        ('secret_versions', 'secrets', 'INSERT OR DELETE OR UPDATE'),
        ('ssh_keys', 'ssh_keys', 'DELETE OR UPDATE'),
        ('pools', 'pools', 'INSERT OR DELETE OR UPDATE'),
        ('projects', 'projects', 'INSERT OR DELETE OR UPDATE'),
        ('arrivals', 'arrivals', 'INSERT'),
        ('shared_images', 'images', 'INSERT OR DELETE'),
        ('shared_image_names', 'images', 'INSERT OR DELETE OR UPDATE'),
        ('shared_snapshots', 'images', 'INSERT OR DELETE')
    ) AS list (on_table, what, at) LOOP
        IF NOT EXISTS (SELECT 1 FROM pg_trigger
            WHERE tgname = 'atoll_changed' AND tgrelid = wanted.on_table::regclass) THEN
            EXECUTE format('CREATE TRIGGER atoll_changed AFTER %s ON %I
                FOR EACH STATEMENT EXECUTE FUNCTION atoll_changed(%L)', wanted.at, wanted.on_table, wanted.what);
        END IF;
    END LOOP;
END $$;";

/// Makes a sandbox that is being stored hold its image, if all nodes share that: who removes the image waits for it, and finds
/// the sandbox.
const HOLDS: &str = "
CREATE OR REPLACE FUNCTION atoll_holds_image() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM shared_images WHERE digest = NEW.image_digest FOR KEY SHARE;
    RETURN NEW;
END $$;
DO $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_trigger
        WHERE tgname = 'atoll_holds_image' AND tgrelid = 'sandboxes'::regclass) THEN
        CREATE TRIGGER atoll_holds_image BEFORE INSERT ON sandboxes FOR EACH ROW
            WHEN (NEW.image_digest IS NOT NULL) EXECUTE FUNCTION atoll_holds_image();
    END IF;
END $$;";

/// Nanoseconds since this machine started, those in which it slept included.
#[must_use]
pub fn boot_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// The node calls this with the end of each new term, on the clock of [`boot_ns`]. It must not block.
pub type Told = Arc<dyn Fn(u64) + Send + Sync>;

/// A node's lease: how long it may act as a node of the cluster. Clones share it.
#[derive(Clone)]
pub struct Lease {
    inner: Arc<Inner>,
}

struct Inner {
    node: NodeDraft,
    epoch: i64,
    /// When the node must have stopped, see [`boot_ns`].
    until_ns: AtomicU64,
    /// Another node has taken over: for good.
    lost: AtomicBool,
    /// The term is over and no new one has begun.
    away: watch::Sender<bool>,
    /// The node's load, JSON, which each beat writes to the database.
    load: watch::Sender<String>,
    told: Told,
    closed: CancellationToken,
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("node", &self.inner.node.id).field("epoch", &self.inner.epoch).finish()
    }
}

impl Lease {
    /// The node.
    #[must_use]
    pub fn node(&self) -> &NodeDraft {
        &self.inner.node
    }

    /// Whether the node may do anything at this moment.
    #[must_use]
    pub fn holds(&self) -> bool {
        !self.is_lost() && boot_ns() < self.inner.until_ns.load(Ordering::Acquire)
    }

    /// Whether another node has taken over what this one had.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.inner.lost.load(Ordering::Acquire)
    }

    /// Tells whether the node has to stand still: now, and at each change.
    #[must_use]
    pub fn away(&self) -> watch::Receiver<bool> {
        self.inner.away.subscribe()
    }

    /// Sets the node's load, which the next beats write to the database.
    pub fn say(&self, load: String) {
        self.inner.load.send_replace(load);
    }

    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if self.is_lost() { Err(StoreError::Claimed) } else { Ok(()) }
    }

    pub(crate) fn close(&self) {
        self.inner.closed.cancel();
    }

    /// The id of the node and the epoch with which it writes.
    pub(crate) fn epoch(&self) -> (&str, i64) {
        (self.inner.node.id.as_str(), self.inner.epoch)
    }

    fn lose(&self) {
        if !self.inner.lost.swap(true, Ordering::AcqRel) {
            tracing::error!("another node has taken over: this one writes nothing any more");
        }
        self.inner.away.send_replace(true);
    }

    /// A beat that was sent at `sent_ns` was answered.
    fn renewed(&self, sent_ns: u64) {
        let until = sent_ns + self.inner.node.term_ns();
        self.inner.until_ns.store(until, Ordering::Release);
        (self.inner.told)(until);
        self.inner.away.send_if_modified(|away| std::mem::replace(away, false));
    }
}

impl NodeDraft {
    /// For how long after a beat the node may go on.
    fn term_ns(&self) -> u64 {
        (self.lease_ms - self.lease_ms / MARGIN_PART) * 1_000_000
    }

    /// How often it beats.
    fn beat_every(&self) -> Duration {
        Duration::from_millis(self.lease_ms) / BEATS
    }
}

/// Enters the cluster, and beats from then on.
///
/// # Errors
/// [`StoreError::Claimed`] when the node is there already; [`StoreError::NameTaken`]; [`StoreError::Unavailable`].
pub(crate) async fn enter(
    options: PgConnectOptions,
    pool: &PgPool,
    node: &NodeDraft,
    told: Told,
) -> Result<Lease, StoreError> {
    let session = hold(&options, node).await?;
    let sent_ns = boot_ns();
    let epoch = write_down(pool, node).await?;
    let lease = Lease {
        inner: Arc::new(Inner {
            node: node.clone(),
            epoch,
            until_ns: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            away: watch::Sender::new(false),
            load: watch::Sender::new("{}".to_owned()),
            told,
            closed: CancellationToken::new(),
        }),
    };
    lease.renewed(sent_ns);
    tokio::spawn(keep(lease.clone(), options, session));
    tokio::spawn(stop_in_time(lease.clone()));
    Ok(lease)
}

/// Opens the session that holds the node's locks; tries for [`PATIENCE`].
async fn hold(options: &PgConnectOptions, node: &NodeDraft) -> Result<PgConnection, StoreError> {
    let until = Instant::now() + PATIENCE;
    loop {
        let mut session = PgConnection::connect_with(options).await?;
        if lock(&mut session, node).await? {
            return Ok(session);
        }
        drop(session.close().await);
        if Instant::now() >= until {
            return Err(StoreError::Claimed);
        }
        tokio::time::sleep(TRY_EVERY).await;
    }
}

async fn lock(session: &mut PgConnection, node: &NodeDraft) -> Result<bool, StoreError> {
    const SQL: &str =
        "SELECT pg_try_advisory_lock_shared($1) AND pg_try_advisory_lock(hashtextextended($2, $1))";
    sqlx::raw_sql(NOTICE).execute(&mut *session).await?;
    let row = sqlx::query(SQL).bind(LOCK).bind(node.id.as_str()).fetch_one(session).await?;
    Ok(row.try_get(0)?)
}

/// Writes the node down with a new epoch. The first node of a database gets all that a server without nodes left there.
async fn write_down(pool: &PgPool, node: &NodeDraft) -> Result<i64, StoreError> {
    const ENTER: &str = "INSERT INTO nodes (id, name, address, version, facts, epoch, beats, lease_ms, is_alive, \
         is_draining, load, created_ms, seen_ms) VALUES ($1, $2, $3, $4, $5, 1, 1, $6, 1, 0, '{}', $7, $7) \
         ON CONFLICT (id) DO UPDATE SET name = EXCLUDED.name, address = EXCLUDED.address, \
         version = EXCLUDED.version, facts = EXCLUDED.facts, epoch = nodes.epoch + 1, beats = nodes.beats + 1, \
         lease_ms = EXCLUDED.lease_ms, is_alive = 1, seen_ms = EXCLUDED.seen_ms RETURNING epoch";
    const INHERIT: [&str; 4] = [
        "UPDATE sandboxes SET node = $1 WHERE node IS NULL AND NOT EXISTS (SELECT 1 FROM nodes WHERE id <> $1)",
        "UPDATE snapshots SET node = $1 WHERE node IS NULL AND NOT EXISTS (SELECT 1 FROM nodes WHERE id <> $1)",
        "UPDATE volumes SET node = $1 WHERE node IS NULL AND NOT EXISTS (SELECT 1 FROM nodes WHERE id <> $1)",
        "UPDATE builds SET node = $1 WHERE node IS NULL AND NOT EXISTS (SELECT 1 FROM nodes WHERE id <> $1)",
    ];
    let mut transaction = pool.begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(ENTRANCE).execute(&mut *transaction).await?;
    sqlx::raw_sql(TRIGGERS).execute(&mut *transaction).await?;
    sqlx::raw_sql(HOLDS).execute(&mut *transaction).await?;
    let row = sqlx::query(ENTER)
        .bind(node.id.as_str())
        .bind(&node.name)
        .bind(&node.address)
        .bind(&node.version)
        .bind(&node.facts)
        .bind(i64::try_from(node.lease_ms).unwrap_or(i64::MAX))
        .bind(i64::try_from(node.now_ms).unwrap_or(i64::MAX))
        .fetch_one(&mut *transaction)
        .await
        .map_err(|error| match StoreError::from(error) {
            // The id cannot collide: it is in the statement's own ON CONFLICT.
            StoreError::AlreadyExists => StoreError::NameTaken,
            other => other,
        })?;
    let epoch = row.try_get(0)?;
    for sql in INHERIT {
        sqlx::query(sql).bind(node.id.as_str()).execute(&mut *transaction).await?;
    }
    transaction.commit().await?;
    Ok(epoch)
}

/// Locks the node's row, which must still have the node's epoch. A node that wants to raise the epoch waits for this
/// transaction; transactions of this node that begin after that fail.
pub(crate) async fn fence(conn: &mut PgConnection, lease: &Lease) -> Result<(), StoreError> {
    // Not FOR SHARE: a node's own beats would wait for its writes, and these for its beats.
    const SQL: &str = "SELECT 1 FROM nodes WHERE id = $1 AND epoch = $2 FOR KEY SHARE";
    let (node, epoch) = lease.epoch();
    match sqlx::query(SQL).bind(node).bind(epoch).fetch_optional(conn).await? {
        Some(_) => Ok(()),
        None => {
            lease.lose();
            Err(StoreError::Claimed)
        }
    }
}

async fn keep(lease: Lease, options: PgConnectOptions, session: PgConnection) {
    let every = lease.inner.node.beat_every();
    let mut session = Some(session);
    while lease.inner.closed.run_until_cancelled(tokio::time::sleep(every)).await.is_some() {
        if lease.is_lost() {
            break;
        }
        let sent_ns = boot_ns();
        match tokio::time::timeout(every * 2, beat(&lease, &options, session.take())).await {
            Ok(Ok((open, true))) => {
                session = Some(open);
                lease.renewed(sent_ns);
            }
            Ok(Ok((_open, false))) => {
                lease.lose();
                return;
            }
            Ok(Err(error)) => tracing::warn!(%error, "the node's lease is not renewed yet"),
            Err(_late) => tracing::warn!("the node's lease is not renewed yet: the database takes long"),
        }
    }
    if let Some(session) = session {
        drop(session.close().await);
    }
}

/// One beat; says whether the node's epoch is still its own.
async fn beat(
    lease: &Lease,
    options: &PgConnectOptions,
    session: Option<PgConnection>,
) -> Result<(PgConnection, bool), StoreError> {
    const SQL: &str = "UPDATE nodes SET beats = beats + 1, load = $3, \
         seen_ms = (extract(epoch FROM clock_timestamp()) * 1000)::bigint WHERE id = $1 AND epoch = $2";
    let mut session = match session {
        Some(session) => session,
        None => {
            let mut session = PgConnection::connect_with(options).await?;
            // It goes on even when the locks are not free yet: the epoch decides whether this is still the same node.
            lock(&mut session, &lease.inner.node).await?;
            session
        }
    };
    let (node, epoch) = lease.epoch();
    let load = lease.inner.load.borrow().clone();
    let done = sqlx::query(SQL).bind(node).bind(epoch).bind(load).execute(&mut session).await?;
    Ok((session, done.rows_affected() == 1))
}

/// Says that the node has to stand still when its term is over.
async fn stop_in_time(lease: Lease) {
    let stopping = async {
        loop {
            let until = lease.inner.until_ns.load(Ordering::Acquire);
            let now = boot_ns();
            if now < until {
                // The machine may sleep meanwhile: not longer than this until the clock is looked at.
                let left = Duration::from_nanos(until - now).min(Duration::from_millis(200));
                tokio::time::sleep(left).await;
                continue;
            }
            if !*lease.inner.away.borrow() {
                tracing::error!("the node's lease was not renewed: it stands still");
                lease.inner.away.send_replace(true);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    lease.inner.closed.run_until_cancelled(stopping).await;
}
