//! Snapshots in the database: what is asked of them and changed about them, and the references that point to them. [`rows`]
//! has the form of a row.

mod rows;

use std::collections::BTreeMap;

use atoll_core::id::{NodeId, ProjectId, SandboxId, SnapshotId};
use atoll_core::limits::PAGE_MAX_COUNT;
use atoll_core::project::{kept_name, plain_name};
use atoll_core::snapshot::{CopyMethod, Purpose, Reference};
use sqlx::AssertSqlSafe;

use self::rows::{insert, read};
use crate::Store;
use crate::db::{Conn, Row, Value, args};
use crate::error::StoreError;
use crate::listed::{Table, Which};
use crate::record::{Cursor, Page, SnapshotFilter, SnapshotRecord};
use crate::sandboxes;
use crate::sql::{add, any_of, here, newest_first, next_page};

const TABLE: &str = "snapshots";
const LIST: Table = Table::new(TABLE, "id").of("project");
const TAGS: Table = Table::new("snapshot_tags", "snapshot_id").named("name");

/// All of a snapshot's row, and whether it is private.
macro_rules! select {
    () => {
        "SELECT snapshots.*, CAST(CASE WHEN EXISTS (SELECT 1 FROM private_snapshots \
         WHERE snapshot_id = snapshots.id) THEN 1 ELSE 0 END AS BIGINT) AS private FROM snapshots"
    };
}

/// What is known of a snapshot once it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotOutcome {
    /// What it takes on the host, bytes.
    pub stored_bytes: u64,
    /// How long its sandbox could not write, microseconds.
    pub paused_us: Option<u64>,
    /// How its disk came about.
    pub method: CopyMethod,
    /// Its digest, if it is known already.
    pub digest: Option<String>,
    /// References that point to it from now on.
    pub tags: Vec<Reference>,
}

impl Store {
    /// Stores a snapshot that is going to be made. Its tags are stored with [`Self::finish_snapshot`].
    ///
    /// A checkpoint gets the next number of its sandbox; the record's own number is ignored. Gives the purpose as
    /// stored.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`] for the id; [`StoreError::NotFound`] for a checkpoint of no sandbox.
    pub async fn insert_snapshot(&self, snapshot: &SnapshotRecord) -> Result<Purpose, StoreError> {
        let snapshot = snapshot.clone();
        let node = self.node().cloned();
        self.write(move |conn| Box::pin(insert(conn, snapshot, node))).await
    }

    /// Records that the snapshot is made: it is ready, and its `tags` now point to it, even if they pointed to another
    /// snapshot before.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when it is not being made.
    pub async fn finish_snapshot(
        &self,
        id: &SnapshotId,
        outcome: &SnapshotOutcome,
    ) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE snapshots SET state = 'ready', stored_bytes = $2, paused_us = $3, method = $4, \
             digest = $5 WHERE id = $1 AND state = 'creating'";
        let values = args![
            id.as_str(),
            outcome.stored_bytes,
            outcome.paused_us,
            outcome.method.as_str(),
            outcome.digest.as_deref(),
        ];
        let (id, tags) = (id.clone(), outcome.tags.clone());
        self.write(move |mut conn| {
            Box::pin(async move {
                if conn.execute(SQL, values).await? == 0 {
                    return Err(StoreError::Conflict);
                }
                for tag in tags {
                    set_tag(&mut conn, &tag, &id).await?;
                }
                Ok(())
            })
        })
        .await
    }

    /// Keeps the digest and what the snapshot takes on the host, which are found out afterwards.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn set_snapshot_digest(
        &self,
        id: &SnapshotId,
        digest: &str,
        stored_bytes: u64,
    ) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE snapshots SET digest = $2, stored_bytes = $3 WHERE id = $1";
        let values = args![id.as_str(), digest, stored_bytes];
        self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await.map(drop) }))
            .await
    }

    /// The snapshot with this id, if there is one.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when its row cannot be read.
    pub async fn snapshot(&self, id: &SnapshotId) -> Result<Option<SnapshotRecord>, StoreError> {
        const SQL: &str = concat!(select!(), " WHERE id = $1");
        self.one_snapshot(SQL, args![id.as_str()]).await
    }

    /// The snapshot that a reference of a project, or of none, points to.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when its row cannot be read.
    pub async fn tagged_snapshot(
        &self,
        project: Option<&ProjectId>,
        reference: &Reference,
    ) -> Result<Option<SnapshotRecord>, StoreError> {
        const SQL: &str = concat!(
            select!(),
            " WHERE id = (SELECT snapshot_id FROM snapshot_tags WHERE name = $1 AND tag = $2)"
        );
        let name = kept_name(project, &reference.name);
        self.one_snapshot(SQL, args![name, reference.tag.as_str()]).await
    }

    /// The snapshots that a reference of any project points to.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when a row cannot be read.
    pub async fn snapshots_tagged(&self, reference: &Reference) -> Result<Vec<SnapshotId>, StoreError> {
        const SQL: &str = "SELECT id FROM snapshots WHERE EXISTS (SELECT 1 FROM snapshot_tags \
             WHERE snapshot_id = snapshots.id AND name = snapshots.project || '/' || $1 AND tag = $2) ORDER BY id";
        let values = args![reference.name.as_str(), reference.tag.as_str()];
        let rows = self.read(move |mut conn| Box::pin(async move { conn.rows(SQL, values).await })).await?;
        rows.iter().map(|row| row.decode(TABLE, "id", |row| row.parse("id"))).collect()
    }

    async fn one_snapshot(
        &self,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Result<Option<SnapshotRecord>, StoreError> {
        let (rows, tags) = self
            .read(move |mut conn| {
                Box::pin(async move {
                    let rows = conn.rows(sql, values).await?;
                    let tags = tag_rows(&mut conn, ids_in(&rows)).await?;
                    Ok((rows, tags))
                })
            })
            .await?;
        let found = rows.first().map(|row| row.decode(TABLE, "id", read)).transpose()?;
        Ok(self.with_tags(found.into_iter().collect(), &tags).pop())
    }

    /// Snapshots that match `filter`, the newest first, at most `limit` (1 to [`PAGE_MAX_COUNT`]).
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn list_snapshots(
        &self,
        filter: &SnapshotFilter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<SnapshotRecord>, StoreError> {
        let limit = limit.clamp(1, PAGE_MAX_COUNT);
        let (sql, values) = list_query(filter, self.node(), after, limit);
        let (rows, tags, next) = self
            .read(move |mut conn| {
                Box::pin(async move {
                    let mut rows = conn.rows(AssertSqlSafe(sql), values).await?;
                    let next = next_page(&mut rows, limit)?;
                    let tags = tag_rows(&mut conn, ids_in(&rows)).await?;
                    Ok((rows, tags, next))
                })
            })
            .await?;
        let records = self.readable(&LIST, Which::Some, &rows, read);
        Ok(Page { items: self.with_tags(records, &tags), next })
    }

    /// Gives each record the references that point to it.
    fn with_tags(&self, mut records: Vec<SnapshotRecord>, rows: &[Row]) -> Vec<SnapshotRecord> {
        let read = |row: &Row| {
            let name = plain_name(&row.text("name")?).to_owned();
            Ok((row.text("snapshot_id")?, Reference { name, tag: row.text("tag")? }))
        };
        let mut tags: BTreeMap<String, Vec<Reference>> = BTreeMap::new();
        for (id, reference) in self.readable(&TAGS, Which::Some, rows, read) {
            tags.entry(id).or_default().push(reference);
        }
        for record in &mut records {
            record.tags = tags.remove(record.id.as_str()).unwrap_or_default();
        }
        records
    }

    /// The ids of all snapshots, also those of unreadable rows: things of these snapshots must not be taken for
    /// leftovers.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when an id cannot be read: then it is not known what is left over.
    pub async fn snapshot_ids(&self) -> Result<Vec<SnapshotId>, StoreError> {
        self.ids(&LIST, "SELECT id, created_ms FROM snapshots", Vec::new()).await
    }

    /// Makes every snapshot of a sandbox private, or none.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn set_snapshots_private(&self, sandbox: &SandboxId, private: bool) -> Result<(), StoreError> {
        const PUT: &str = "INSERT INTO private_snapshots (snapshot_id) SELECT id FROM snapshots \
             WHERE sandbox_id = $1 ON CONFLICT (snapshot_id) DO NOTHING";
        const FORGET: &str = "DELETE FROM private_snapshots WHERE snapshot_id IN \
             (SELECT id FROM snapshots WHERE sandbox_id = $1)";
        let (sql, values) = (if private { PUT } else { FORGET }, args![sandbox.as_str()]);
        self.write_one(move |mut conn| Box::pin(async move { conn.execute(sql, values).await.map(drop) }))
            .await
    }

    /// How many snapshots there are, in any state.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn count_snapshots(&self) -> Result<u64, StoreError> {
        const SQL: &str = "SELECT COUNT(*) AS count FROM snapshots";
        self.read(|mut conn| {
            Box::pin(async move {
                let row = conn.row(SQL, Vec::new()).await?;
                row.map_or(Ok(0), |row| row.decode(TABLE, "count", |row| row.uint("count")))
            })
        })
        .await
    }

    /// Marks a snapshot as being removed; from now on it has no tags and cannot be used. Says whether it was
    /// there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn mark_snapshot_deleting(&self, id: &SnapshotId) -> Result<bool, StoreError> {
        let id = id.clone();
        self.write(move |mut conn| {
            Box::pin(async move {
                let values = || args![id.as_str()];
                let mark = "UPDATE snapshots SET state = 'deleting' WHERE id = $1";
                let marked = conn.execute(mark, values()).await?;
                conn.execute("DELETE FROM snapshot_tags WHERE snapshot_id = $1", values()).await?;
                Ok(marked > 0)
            })
        })
        .await
    }

    /// Removes a snapshot's row. Says whether it was there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn delete_snapshot(&self, id: &SnapshotId) -> Result<bool, StoreError> {
        let values = args![id.as_str()];
        self.write_one(move |mut conn| {
            Box::pin(
                async move { Ok(conn.execute("DELETE FROM snapshots WHERE id = $1", values).await? > 0) },
            )
        })
        .await
    }

    /// Makes a reference point to a snapshot, even if it pointed to another one before.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when there is no such snapshot or it is not ready.
    pub async fn tag_snapshot(&self, reference: &Reference, id: &SnapshotId) -> Result<(), StoreError> {
        let (reference, id) = (reference.clone(), id.clone());
        self.write(move |mut conn| {
            Box::pin(async move {
                // Holds it until the end of the transaction: who marks it as being removed takes this reference away, too.
                let ready = "UPDATE snapshots SET state = 'ready' WHERE id = $1 AND state = 'ready'";
                if conn.execute(ready, args![id.as_str()]).await? == 0 {
                    return Err(StoreError::NotFound);
                }
                set_tag(&mut conn, &reference, &id).await
            })
        })
        .await
    }

    /// Removes a reference to a snapshot. Says whether it was there and pointed to that.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn untag_snapshot(&self, reference: &Reference, id: &SnapshotId) -> Result<bool, StoreError> {
        const SQL: &str = "DELETE FROM snapshot_tags WHERE tag = $2 AND snapshot_id = $3 \
             AND name IN ($1, (SELECT project || '/' || $1 FROM snapshots WHERE id = $3))";
        let values = args![reference.name.as_str(), reference.tag.as_str(), id.as_str()];
        self.write_one(move |mut conn| Box::pin(async move { Ok(conn.execute(SQL, values).await? > 0) }))
            .await
    }
}

async fn set_tag(conn: &mut Conn<'_>, reference: &Reference, id: &SnapshotId) -> Result<(), StoreError> {
    const SQL: &str = "INSERT INTO snapshot_tags (name, tag, snapshot_id) \
         SELECT COALESCE(project || '/', '') || $1, CAST($2 AS TEXT), id FROM snapshots WHERE id = $3 \
         ON CONFLICT (name, tag) DO UPDATE SET snapshot_id = excluded.snapshot_id";
    let values = args![reference.name.as_str(), reference.tag.as_str(), id.as_str()];
    conn.execute(SQL, values).await.map(drop)
}

fn ids_in(snapshots: &[Row]) -> Vec<String> {
    snapshots.iter().filter_map(|row| row.text("id").ok()).collect()
}

/// The rows of the references that point to these snapshots.
async fn tag_rows(conn: &mut Conn<'_>, ids: Vec<String>) -> Result<Vec<Row>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let mut values = Vec::new();
    let ids = any_of("snapshot_id", ids.iter().map(String::as_str), &mut values);
    let sql = format!("SELECT * FROM snapshot_tags WHERE {ids} ORDER BY name, tag");
    conn.rows(AssertSqlSafe(sql), values).await
}

/// The SQL condition for snapshots that an API key may see; the placeholders for [`VisibleTo::values`] begin with this
/// number. As long as a sandbox is there, a key that sees the sandbox sees its snapshots. Within its own project (or
/// outside of any project, if it has none), a key also sees the snapshots that it made and, when their sandbox is gone,
/// those that are not private.
fn visible(key: usize) -> String {
    let (project, of_sandbox) = (key + 1, sandboxes::visible(key));
    format!(
        "(EXISTS (SELECT 1 FROM sandboxes WHERE id = snapshots.sandbox_id AND {of_sandbox}) \
         OR COALESCE(snapshots.project, '') = ${project} AND (created_by = ${key} \
         OR NOT EXISTS (SELECT 1 FROM sandboxes WHERE id = snapshots.sandbox_id) \
         AND NOT EXISTS (SELECT 1 FROM private_snapshots WHERE snapshot_id = snapshots.id)))"
    )
}

fn list_query(
    filter: &SnapshotFilter,
    node: Option<&NodeId>,
    after: Option<&Cursor>,
    limit: u32,
) -> (String, Vec<Value>) {
    let mut values = Vec::new();
    let mut sql = concat!(select!(), " WHERE 1 = 1").to_owned();
    if filter.here {
        here(&mut sql, node, &mut values);
    }
    if let Some(sandbox) = &filter.sandbox {
        values.push(sandbox.as_str().into());
        add(&mut sql, format_args!(" AND sandbox_id = ${}", values.len()));
    }
    if let Some(name) = &filter.name {
        values.push(name.as_str().into());
        let n = values.len();
        let tagged = "SELECT 1 FROM snapshot_tags WHERE snapshot_id = snapshots.id AND name";
        add(&mut sql, format_args!(" AND EXISTS ({tagged} IN (${n}, snapshots.project || '/' || ${n}))"));
    }
    if let Some(to) = &filter.visible_to {
        let first = values.len() + 1;
        values.extend(to.values());
        add(&mut sql, format_args!(" AND {}", visible(first)));
    }
    if !filter.held {
        sql.push_str(" AND (held_by IS NULL OR checkpoint IS NOT NULL)");
    }
    match filter.checkpoints {
        Some(true) => sql.push_str(" AND checkpoint IS NOT NULL"),
        Some(false) => sql.push_str(" AND checkpoint IS NULL"),
        None => {}
    }
    newest_first(&mut sql, &mut values, after, limit);
    (sql, values)
}
