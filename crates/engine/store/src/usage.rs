//! What was used, by hour, sandbox and key.

use std::collections::BTreeMap;

use atoll_core::id::{KeyId, ProjectId, SandboxId};
use atoll_core::limits::USAGE_ROWS_MAX_COUNT;
use atoll_core::usage::Usage;
use sqlx::AssertSqlSafe;

use crate::Store;
use crate::db::{BadColumn, Conn, Row, args};
use crate::error::StoreError;
use crate::listed::{Table, Which};
use crate::sql::add;

const TABLE: Table = Table::new("usage", "sandbox_id");
const HOUR_MS: u64 = 3_600_000;

/// What one sandbox used in one hour on account of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageRow {
    /// When the hour began, milliseconds since the epoch.
    pub hour_ms: u64,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The key: the sandbox's owner, or the API key that started the execs.
    pub key: Option<KeyId>,
    /// The project of the sandbox.
    pub project: Option<ProjectId>,
    /// How much.
    pub used: Usage,
}

/// Up to where a sandbox was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageMark {
    /// The kernel's counter of CPU time then, microseconds.
    pub cpu_us: u64,
    /// When.
    pub at_ms: u64,
}

/// A place in the rows, which go from the newest hour to the oldest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageCursor {
    hour_ms: i64,
    sandbox: String,
    key: String,
}

/// Which rows. The default is all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageFilter {
    /// Of this sandbox.
    pub sandbox: Option<SandboxId>,
    /// On account of this key.
    pub key: Option<KeyId>,
    /// In this project.
    pub project: Option<ProjectId>,
    /// Hours that end after this.
    pub from_ms: Option<u64>,
    /// Hours that begin before this.
    pub to_ms: Option<u64>,
}

impl Store {
    /// Adds to what was used and moves the mark of the sandbox, both or neither. `at_ms` says into which hour
    /// it goes. A sandbox that is not there any more gets no mark.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]: then nothing was added.
    pub async fn add_usage(
        &self,
        sandbox: &SandboxId,
        project: Option<&ProjectId>,
        used: &BTreeMap<Option<KeyId>, Usage>,
        mark: Option<UsageMark>,
        at_ms: u64,
    ) -> Result<(), StoreError> {
        let (sandbox, project, used) = (sandbox.clone(), project.cloned(), used.clone());
        self.write_soon(move |conn| Box::pin(insert(conn, sandbox, project, used, mark, at_ms))).await
    }

    /// Rows that match `filter`, the newest hour first, those after `after`, at most [`USAGE_ROWS_MAX_COUNT`]; and where
    /// to go on, if there may be more.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn usage(
        &self,
        filter: &UsageFilter,
        after: Option<&UsageCursor>,
    ) -> Result<(Vec<UsageRow>, Option<UsageCursor>), StoreError> {
        let mut values = Vec::new();
        let mut sql = "SELECT * FROM usage WHERE 1 = 1".to_owned();
        if let Some(sandbox) = &filter.sandbox {
            values.extend(args![sandbox.as_str()]);
            add(&mut sql, format_args!(" AND sandbox_id = ${}", values.len()));
        }
        if let Some(key) = &filter.key {
            values.extend(args![key.as_str()]);
            add(&mut sql, format_args!(" AND key_id = ${}", values.len()));
        }
        if let Some(project) = &filter.project {
            values.extend(args![project.as_str()]);
            add(&mut sql, format_args!(" AND project = ${}", values.len()));
        }
        if let Some(from) = filter.from_ms {
            values.extend(args![HOUR_MS, from]);
            add(&mut sql, format_args!(" AND hour_ms + ${} > ${}", values.len() - 1, values.len()));
        }
        if let Some(to) = filter.to_ms {
            values.extend(args![to]);
            add(&mut sql, format_args!(" AND hour_ms < ${}", values.len()));
        }
        if let Some(after) = after {
            values.extend(args![after.hour_ms, after.sandbox.as_str(), after.key.as_str()]);
            let n = values.len();
            add(
                &mut sql,
                format_args!(" AND (hour_ms, sandbox_id, key_id) < (${}, ${}, ${n})", n - 2, n - 1),
            );
        }
        values.extend(args![USAGE_ROWS_MAX_COUNT]);
        add(
            &mut sql,
            format_args!(" ORDER BY hour_ms DESC, sandbox_id DESC, key_id DESC LIMIT ${}", values.len()),
        );
        let rows = self
            .read(move |mut conn| Box::pin(async move { conn.rows(AssertSqlSafe(sql), values).await }))
            .await?;
        let is_full = u64::try_from(rows.len()).is_ok_and(|count| count >= u64::from(USAGE_ROWS_MAX_COUNT));
        let place = |row: &Row| {
            let (hour_ms, sandbox) = (row.int("hour_ms")?, row.text("sandbox_id")?);
            Ok(UsageCursor { hour_ms, sandbox, key: row.text("key_id")? })
        };
        let last = rows.last().filter(|_| is_full);
        let next = last.map(|row| row.decode(TABLE.name, TABLE.key, place)).transpose()?;
        Ok((self.readable(&TABLE, Which::Some, &rows, read), next))
    }

    /// Everything that a sandbox ever used, as far as it can be read.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn usage_of(&self, sandbox: &SandboxId) -> Result<Usage, StoreError> {
        const SQL: &str = "SELECT * FROM usage WHERE sandbox_id = $1";
        let values = args![sandbox.as_str()];
        let mut total = Usage::default();
        for row in self.list(&TABLE, Which::Some, SQL, values, read).await? {
            total.add(&row.used);
        }
        Ok(total)
    }

    /// Up to where a sandbox was measured.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when its row cannot be read.
    pub async fn usage_mark(&self, sandbox: &SandboxId) -> Result<Option<UsageMark>, StoreError> {
        const SQL: &str = "SELECT * FROM usage_marks WHERE sandbox_id = $1";
        let values = args![sandbox.as_str()];
        let row = self.read(move |mut conn| Box::pin(async move { conn.row(SQL, values).await })).await?;
        let mark = |row: &Row| Ok(UsageMark { cpu_us: row.uint("cpu_us")?, at_ms: row.uint("at_ms")? });
        row.map(|row| row.decode("usage_marks", "sandbox_id", mark)).transpose()
    }

    /// Removes rows of hours that began before `before_ms`; says how many.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn prune_usage(&self, before_ms: u64) -> Result<u64, StoreError> {
        const SQL: &str = "DELETE FROM usage WHERE hour_ms < $1";
        let values = args![before_ms];
        self.write_one_soon(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await })).await
    }
}

async fn insert(
    mut conn: Conn<'_>,
    sandbox: SandboxId,
    project: Option<ProjectId>,
    used: BTreeMap<Option<KeyId>, Usage>,
    mark: Option<UsageMark>,
    at_ms: u64,
) -> Result<(), StoreError> {
    const ADD: &str = "INSERT INTO usage (hour_ms, sandbox_id, key_id, cpu_us, memory_byte_seconds, \
         disk_byte_seconds, running_ms, egress_bytes, requests, execs, exec_cpu_us, project) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) \
         ON CONFLICT (hour_ms, sandbox_id, key_id) DO UPDATE SET \
         cpu_us = usage.cpu_us + excluded.cpu_us, \
         memory_byte_seconds = usage.memory_byte_seconds + excluded.memory_byte_seconds, \
         disk_byte_seconds = usage.disk_byte_seconds + excluded.disk_byte_seconds, \
         running_ms = usage.running_ms + excluded.running_ms, \
         egress_bytes = usage.egress_bytes + excluded.egress_bytes, \
         requests = usage.requests + excluded.requests, execs = usage.execs + excluded.execs, \
         exec_cpu_us = usage.exec_cpu_us + excluded.exec_cpu_us";
    const MARK: &str = "INSERT INTO usage_marks (sandbox_id, cpu_us, at_ms) \
         SELECT id, CAST($2 AS BIGINT), CAST($3 AS BIGINT) FROM sandboxes WHERE id = $1 \
         ON CONFLICT (sandbox_id) DO UPDATE SET cpu_us = excluded.cpu_us, at_ms = excluded.at_ms";
    for (key, used) in used.into_iter().filter(|(_, used)| !used.is_zero()) {
        let values = args![
            at_ms - at_ms % HOUR_MS,
            sandbox.as_str(),
            key.as_ref().map_or("", |key| key.as_str()),
            used.cpu_us,
            used.memory_byte_seconds,
            used.disk_byte_seconds,
            used.running_ms,
            used.egress_bytes,
            used.requests,
            used.execs,
            used.exec_cpu_us,
            project.as_ref().map(ProjectId::as_str),
        ];
        conn.execute(ADD, values).await?;
    }
    if let Some(mark) = mark {
        conn.execute(MARK, args![sandbox.as_str(), mark.cpu_us, mark.at_ms]).await?;
    }
    Ok(())
}

fn read(row: &Row) -> Result<UsageRow, BadColumn> {
    let key = row.text("key_id")?;
    let key = if key.is_empty() { None } else { Some(key.parse().or(Err("key_id"))?) };
    Ok(UsageRow {
        hour_ms: row.uint("hour_ms")?,
        sandbox: row.parse("sandbox_id")?,
        key,
        project: row.parse_opt("project")?,
        used: Usage {
            cpu_us: row.uint("cpu_us")?,
            memory_byte_seconds: row.uint("memory_byte_seconds")?,
            disk_byte_seconds: row.uint("disk_byte_seconds")?,
            running_ms: row.uint("running_ms")?,
            egress_bytes: row.uint("egress_bytes")?,
            requests: row.uint("requests")?,
            execs: row.uint("execs")?,
            exec_cpu_us: row.uint("exec_cpu_us")?,
        },
    })
}
