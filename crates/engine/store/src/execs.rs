//! Execs in the database.

use atoll_core::exec::{ExecState, Exit, ExitReason};
use atoll_core::id::{ExecId, SandboxId};
use atoll_core::limits::PAGE_MAX_COUNT;
use atoll_core::spec::IdempotencyKey;
use sqlx::AssertSqlSafe;

use crate::Store;
use crate::db::{BadColumn, Conn, Row, args, json};
use crate::error::StoreError;
use crate::listed::{Table, Which};
use crate::record::{Cursor, ExecRecord, Insertion, Page};
use crate::sql::{add, any_of, newest_first, next_page};

/// Version of the JSON form of an exec's spec.
const SPEC_VERSION: i64 = 1;
const TABLE: Table = Table::new("execs", "id").of("sandbox_id");
/// Execs removed by one call of [`Store::prune_execs`].
const PRUNE_MAX_COUNT: i64 = 1000;
/// The exec with an idempotency key.
const BY_KEY: &str = "SELECT * FROM execs WHERE sandbox_id = $1 AND idempotency_key = $2";
/// How often an insertion tries again when the exec that was in its way vanishes meanwhile.
const INSERT_TRIES_MAX_COUNT: usize = 4;

impl Store {
    /// Stores a new exec, unless its sandbox already has one with its idempotency key: then gives that.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when there is no such sandbox, [`StoreError::AlreadyExists`] for the id.
    pub async fn insert_exec(&self, exec: &ExecRecord) -> Result<Insertion, StoreError> {
        let exec = exec.clone();
        self.write_one_soon(move |conn| Box::pin(insert_or_get(conn, exec))).await
    }

    /// The exec with this id, if there is one.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when its row cannot be read.
    pub async fn exec(&self, id: &ExecId) -> Result<Option<ExecRecord>, StoreError> {
        let values = args![id.as_str()];
        self.read(move |mut conn| {
            Box::pin(async move {
                conn.row("SELECT * FROM execs WHERE id = $1", values).await?.map(decode).transpose()
            })
        })
        .await
    }

    /// The exec of a sandbox that was made with this idempotency key, if there is one.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when its row cannot be read.
    pub async fn exec_by_key(
        &self,
        sandbox: &SandboxId,
        key: &IdempotencyKey,
    ) -> Result<Option<ExecRecord>, StoreError> {
        let values = args![sandbox.as_str(), key.to_string()];
        self.read(move |mut conn| {
            Box::pin(async move { conn.row(BY_KEY, values).await?.map(decode).transpose() })
        })
        .await
    }

    /// Execs of a sandbox in one of `states` (any when empty), the newest first, at most `limit`
    /// (1 to [`PAGE_MAX_COUNT`]).
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn list_execs(
        &self,
        sandbox: &SandboxId,
        states: &[ExecState],
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<ExecRecord>, StoreError> {
        let limit = limit.clamp(1, PAGE_MAX_COUNT);
        let mut values = args![sandbox.as_str()];
        let mut sql = "SELECT * FROM execs WHERE sandbox_id = $1".to_owned();
        if !states.is_empty() {
            let states = any_of("state", states.iter().map(|state| state.as_str()), &mut values);
            add(&mut sql, format_args!(" AND {states}"));
        }
        newest_first(&mut sql, &mut values, after, limit);
        let mut rows = self
            .read(move |mut conn| Box::pin(async move { conn.rows(AssertSqlSafe(sql), values).await }))
            .await?;
        let next = next_page(&mut rows, limit)?;
        Ok(Page { items: self.readable(&TABLE, Which::Some, &rows, read), next })
    }

    /// Records how an exec ended: as lost when its sandbox died, else as exited. The first end stands;
    /// says whether this was it.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    pub async fn finish_exec(
        &self,
        id: &ExecId,
        exit: &Exit,
        pid: Option<u32>,
        output_bytes: u64,
        cpu_us: u64,
        ended_ms: u64,
    ) -> Result<bool, StoreError> {
        const SQL: &str = "UPDATE execs SET state = $2, exit = $3, pid = $4, output_bytes = $5, cpu_us = $6, \
             ended_ms = $7 WHERE id = $1 AND state IN ('starting', 'running')";
        let values =
            args![id.as_str(), end_state(exit).as_str(), json(exit)?, pid, output_bytes, cpu_us, ended_ms];
        let id = id.clone();
        self.write_one_soon(move |mut conn| {
            Box::pin(async move {
                let count = conn.execute(SQL, values).await?;
                was_changed(&mut conn, count, &id).await
            })
        })
        .await
    }

    /// Marks every exec of a sandbox that has not ended as lost; gives their ids.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn lose_execs(&self, sandbox: &SandboxId, ended_ms: u64) -> Result<Vec<ExecId>, StoreError> {
        self.end_execs(sandbox, &Exit::sandbox_died(), ended_ms).await
    }

    /// Ends every exec of a sandbox that has not ended in the same way; gives their ids.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn end_execs(
        &self,
        sandbox: &SandboxId,
        exit: &Exit,
        ended_ms: u64,
    ) -> Result<Vec<ExecId>, StoreError> {
        const SQL: &str = "UPDATE execs SET state = $4, exit = $2, ended_ms = $3 \
             WHERE sandbox_id = $1 AND state IN ('starting', 'running') RETURNING id";
        let values = args![sandbox.as_str(), json(exit)?, ended_ms, end_state(exit).as_str()];
        let rows = self
            .write_one_soon(move |mut conn| Box::pin(async move { conn.rows(SQL, values).await }))
            .await?;
        ids(&rows)
    }

    /// Every exec of a sandbox that has not ended, the oldest first: what recovery starts from.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn open_execs(&self, sandbox: &SandboxId) -> Result<Vec<ExecRecord>, StoreError> {
        const SQL: &str = "SELECT * FROM execs WHERE sandbox_id = $1 AND state IN ('starting', 'running') \
             ORDER BY created_ms, id";
        let values = args![sandbox.as_str()];
        self.list(&TABLE, Which::Some, SQL, values, read).await
    }

    /// Removes an exec. Says whether it was there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn delete_exec(&self, id: &ExecId) -> Result<bool, StoreError> {
        let values = args![id.as_str()];
        self.write_one_soon(move |mut conn| {
            Box::pin(async move { Ok(conn.execute("DELETE FROM execs WHERE id = $1", values).await? > 0) })
        })
        .await
    }

    /// Removes the ended execs of a sandbox beyond the `keep` newest ended ones, at most 1000 of
    /// them, but not the one with the idempotency key `spare`; gives their ids. Call again while it gives any.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn prune_execs(
        &self,
        sandbox: &SandboxId,
        keep: u64,
        spare: Option<&IdempotencyKey>,
    ) -> Result<Vec<ExecId>, StoreError> {
        const SQL: &str = "DELETE FROM execs WHERE id IN (SELECT id FROM execs WHERE sandbox_id = $1 \
             AND state IN ('exited', 'lost') AND (idempotency_key IS NULL OR idempotency_key <> $4) \
             ORDER BY created_ms DESC, id DESC LIMIT $2 OFFSET $3) RETURNING id";
        // No key is empty.
        let spare = spare.map(IdempotencyKey::to_string).unwrap_or_default();
        let values = args![sandbox.as_str(), PRUNE_MAX_COUNT, keep, spare];
        let rows = self
            .write_one_soon(move |mut conn| Box::pin(async move { conn.rows(SQL, values).await }))
            .await?;
        ids(&rows)
    }
}

const fn end_state(exit: &Exit) -> ExecState {
    if matches!(exit.reason, ExitReason::SandboxDied) { ExecState::Lost } else { ExecState::Exited }
}

pub(crate) async fn insert_or_get(mut conn: Conn<'_>, exec: ExecRecord) -> Result<Insertion, StoreError> {
    const INSERT: &str = "INSERT INTO execs (id, sandbox_id, idempotency_key, request_digest, spec, \
         spec_version, state, pid, exit, output_bytes, started_by, created_ms, ended_ms, cpu_us, pauses_before_ms) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) \
         ON CONFLICT (sandbox_id, idempotency_key) DO NOTHING";
    let exit = exec.exit.as_ref().map(serde_json::to_string).transpose().map_err(StoreError::unavailable)?;
    let key = exec.idempotency_key.as_ref().map(IdempotencyKey::to_string);
    let values = args![
        exec.id.as_str(),
        exec.sandbox.as_str(),
        key.as_deref(),
        exec.request_digest.as_str(),
        json(&exec.spec)?,
        SPEC_VERSION,
        exec.state.as_str(),
        exec.pid,
        exit.as_deref(),
        exec.output_bytes,
        exec.started_by.as_ref().map(|key| key.as_str()),
        exec.created_ms,
        exec.ended_ms,
        exec.cpu_us,
        exec.pauses_before_ms,
    ];
    for _ in 0..INSERT_TRIES_MAX_COUNT {
        if conn.execute(INSERT, values.clone()).await? > 0 {
            return Ok(Insertion::Inserted);
        }
        let by = args![exec.sandbox.as_str(), key.as_deref()];
        if let Some(row) = conn.row(BY_KEY, by).await? {
            return Ok(Insertion::Existing(Box::new(decode(row)?)));
        }
    }
    Err(StoreError::Conflict)
}

/// Whether a statement on one exec changed it; an error when there is no such exec.
async fn was_changed(conn: &mut Conn<'_>, count: u64, id: &ExecId) -> Result<bool, StoreError> {
    if count > 0 {
        return Ok(true);
    }
    let there = conn.row("SELECT id FROM execs WHERE id = $1", args![id.as_str()]).await?;
    if there.is_some() { Ok(false) } else { Err(StoreError::NotFound) }
}

fn ids(rows: &[Row]) -> Result<Vec<ExecId>, StoreError> {
    rows.iter().map(|row| row.decode("execs", "id", |row| row.parse("id"))).collect()
}

#[expect(clippy::needless_pass_by_value, reason = "fits map over rows")]
fn decode(row: Row) -> Result<ExecRecord, StoreError> {
    row.decode("execs", "id", read)
}

fn read(row: &Row) -> Result<ExecRecord, BadColumn> {
    let exit = row.text_opt("exit")?;
    Ok(ExecRecord {
        id: row.parse("id")?,
        sandbox: row.parse("sandbox_id")?,
        idempotency_key: row.text_opt("idempotency_key")?.map(IdempotencyKey::of_stored),
        request_digest: row.text("request_digest")?,
        spec: row.spec(SPEC_VERSION)?,
        state: row.exec_state()?,
        pid: row.int_opt("pid")?.map(u32::try_from).transpose().or(Err("pid"))?,
        exit: exit.map(|text| serde_json::from_str(&text)).transpose().or(Err("exit"))?,
        output_bytes: row.uint("output_bytes")?,
        cpu_us: row.uint("cpu_us")?,
        pauses_before_ms: row.uint("pauses_before_ms")?,
        started_by: row.parse_opt("started_by")?,
        created_ms: row.uint("created_ms")?,
        ended_ms: row.uint_opt("ended_ms")?,
    })
}
