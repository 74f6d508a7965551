//! Builds and their cache in the database.

use atoll_core::build::{BuildFailure, BuildSpec, BuildState};
use atoll_core::id::{BuildId, KeyId, NodeId, SnapshotId};

use crate::Store;
use crate::db::{BadColumn, Row, Value, args, json};
use crate::error::StoreError;
use crate::listed::{Table, Which};
use crate::record::{Cursor, Page, TemplateRecord};
use crate::sql::{add, any_of, here, newest_first, next_page};
use crate::template_tags;
use crate::templates::insert;

/// Version of the JSON form of a build's spec.
const SPEC_VERSION: i64 = 1;
const TABLE: Table = Table::new("builds", "id");
const CACHE: Table = Table::new("build_cache", "cache_key");

/// One build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildRecord {
    /// Its id.
    pub id: BuildId,
    /// Where it is in its life.
    pub state: BuildState,
    /// What was asked.
    pub spec: BuildSpec,
    /// The version of the template that it made.
    pub template_version: Option<u32>,
    /// Why it made none.
    pub failure: Option<BuildFailure>,
    /// When it was asked for.
    pub created_ms: u64,
    /// When its first step began.
    pub started_ms: Option<u64>,
    /// When it ended.
    pub ended_ms: Option<u64>,
    /// The API key that asked for it.
    pub created_by: Option<KeyId>,
}

/// What the cache has for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheRecord {
    /// The key.
    pub key: String,
    /// What the step made.
    pub snapshot: SnapshotId,
    /// The step, as it is shown.
    pub step: String,
    /// What the snapshot takes on the host, bytes. Clones share it.
    pub stored_bytes: u64,
    /// How long the step took, milliseconds.
    pub made_in_ms: u64,
    /// When it was made.
    pub created_ms: u64,
    /// When a build last began with it or passed it.
    pub used_ms: u64,
}

impl Store {
    /// Stores a new build.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`] for the id.
    pub async fn insert_build(&self, build: &BuildRecord) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO builds (id, state, spec, spec_version, template_version, failure, \
             created_ms, started_ms, ended_ms, created_by, node) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
        let values = args![
            build.id.as_str(),
            build.state.as_str(),
            json(&build.spec)?,
            SPEC_VERSION,
            build.template_version,
            failure(build)?,
            build.created_ms,
            build.started_ms,
            build.ended_ms,
            build.created_by.as_ref().map(|key| key.as_str()),
            self.node().map(NodeId::as_str),
        ];
        self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await.map(drop) }))
            .await
    }

    /// Stores state, result and times of a build that is in one of the states `from`. Says whether it was.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn update_build(&self, build: &BuildRecord, from: &[BuildState]) -> Result<bool, StoreError> {
        let mut values = args![
            build.id.as_str(),
            build.state.as_str(),
            build.template_version,
            failure(build)?,
            build.started_ms,
            build.ended_ms,
        ];
        let states = any_of("state", from.iter().map(|state| state.as_str()), &mut values);
        let mut sql = "UPDATE builds SET state = $2, template_version = $3, failure = $4, started_ms = $5, \
             ended_ms = $6 WHERE id = $1"
            .to_owned();
        add(&mut sql, format_args!(" AND {states}"));
        self.write_one(move |mut conn| {
            Box::pin(async move { Ok(conn.execute(sqlx::AssertSqlSafe(sql), values).await? > 0) })
        })
        .await
    }

    /// Stores the template that a running build made, the tags that point to it, and that it has: all or none. Gives
    /// the version; `None` when the build does not run.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`] for the template's id.
    pub async fn complete_build(
        &self,
        id: &BuildId,
        template: &TemplateRecord,
        tags: &[String],
        ended_ms: u64,
    ) -> Result<Option<u32>, StoreError> {
        const SQL: &str = "UPDATE builds SET state = 'succeeded', template_version = $2, ended_ms = $3 \
             WHERE id = $1 AND state = 'running'";
        let (id, template, tags) = (id.clone(), template.clone(), tags.to_vec());
        let done = self
            .write(move |mut conn| {
                Box::pin(async move {
                    let name = template.name.clone();
                    let version = insert(conn.again(), template).await?;
                    template_tags::set(conn.again(), &name, version, &tags, ended_ms).await?;
                    let values = args![id.as_str(), version, ended_ms];
                    match conn.execute(SQL, values).await? {
                        0 => Err(StoreError::Conflict),
                        _ => Ok(version),
                    }
                })
            })
            .await;
        match done {
            Ok(version) => Ok(Some(version)),
            Err(StoreError::Conflict) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The build with this id, if there is one.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when its row cannot be read.
    pub async fn build(&self, id: &BuildId) -> Result<Option<BuildRecord>, StoreError> {
        let values = args![id.as_str()];
        self.read(move |mut conn| {
            Box::pin(async move {
                conn.row("SELECT * FROM builds WHERE id = $1", values).await?.map(decode).transpose()
            })
        })
        .await
    }

    /// A page of builds, newest first; in one of these states, unless there are none.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn list_builds(
        &self,
        states: &[BuildState],
        created_by: Option<&KeyId>,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<BuildRecord>, StoreError> {
        self.page_of_builds(states, created_by, None, after, limit).await
    }

    /// Up to `limit` builds on this node that are in one of these states, newest first; on any where there are no nodes.
    ///
    /// # Errors
    /// As [`Self::list_builds`].
    pub async fn own_builds(
        &self,
        states: &[BuildState],
        limit: u32,
    ) -> Result<Vec<BuildRecord>, StoreError> {
        Ok(self.page_of_builds(states, None, self.node(), None, limit).await?.items)
    }

    async fn page_of_builds(
        &self,
        states: &[BuildState],
        created_by: Option<&KeyId>,
        node: Option<&NodeId>,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<BuildRecord>, StoreError> {
        let mut values = Vec::new();
        let mut sql = "SELECT * FROM builds WHERE 1 = 1".to_owned();
        here(&mut sql, node, &mut values);
        if !states.is_empty() {
            let states = any_of("state", states.iter().map(|state| state.as_str()), &mut values);
            add(&mut sql, format_args!(" AND {states}"));
        }
        if let Some(key) = created_by {
            values.push(key.as_str().into());
            add(&mut sql, format_args!(" AND created_by = ${}", values.len()));
        }
        newest_first(&mut sql, &mut values, after, limit);
        let mut rows = self
            .read(move |mut conn| Box::pin(async move { conn.rows(sqlx::AssertSqlSafe(sql), values).await }))
            .await?;
        let next = next_page(&mut rows, limit)?;
        Ok(Page { items: self.readable(&TABLE, Which::Some, &rows, read), next })
    }

    /// Removes the ended builds beyond the `keep` newest ended ones, at most 1000 of them; gives their ids.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn prune_builds(&self, keep: u64) -> Result<Vec<BuildId>, StoreError> {
        const SQL: &str = "DELETE FROM builds WHERE id IN (SELECT id FROM builds WHERE state IN \
             ('succeeded', 'failed', 'cancelled') ORDER BY created_ms DESC, id DESC LIMIT 1000 OFFSET $1) RETURNING id";
        let values = args![keep];
        let rows =
            self.write_one(move |mut conn| Box::pin(async move { conn.rows(SQL, values).await })).await?;
        rows.iter().map(|row| row.decode("builds", "id", |row| row.parse("id"))).collect()
    }

    /// Puts a step's result into the cache; what was there for its key gives way.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn put_cached_step(&self, step: &CacheRecord) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO build_cache (cache_key, snapshot_id, step, stored_bytes, made_in_ms, \
             created_ms, used_ms) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (cache_key) DO UPDATE SET \
             snapshot_id = EXCLUDED.snapshot_id, step = EXCLUDED.step, stored_bytes = EXCLUDED.stored_bytes, \
             made_in_ms = EXCLUDED.made_in_ms, created_ms = EXCLUDED.created_ms, used_ms = EXCLUDED.used_ms";
        let values = args![
            step.key.as_str(),
            step.snapshot.as_str(),
            step.step.as_str(),
            step.stored_bytes,
            step.made_in_ms,
            step.created_ms,
            step.used_ms,
        ];
        self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await.map(drop) }))
            .await
    }

    /// What the cache has, the longest unused first.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn cached_steps(&self) -> Result<Vec<CacheRecord>, StoreError> {
        const ALL: &str = "SELECT * FROM build_cache ORDER BY used_ms, cache_key";
        const HERE: &str = "SELECT * FROM build_cache WHERE snapshot_id IN \
             (SELECT id FROM snapshots WHERE node = $1) ORDER BY used_ms, cache_key";
        match self.node() {
            None => self.list(&CACHE, Which::All, ALL, Vec::new(), read_cached).await,
            Some(node) => self.list(&CACHE, Which::Some, HERE, args![node.as_str()], read_cached).await,
        }
    }

    /// Notes that these keys were used.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn touch_cached_steps(&self, keys: &[String], used_ms: u64) -> Result<(), StoreError> {
        let mut values: Vec<Value> = args![used_ms];
        let which = any_of("cache_key", keys.iter().map(String::as_str), &mut values);
        let mut sql = "UPDATE build_cache SET used_ms = $1 WHERE".to_owned();
        add(&mut sql, format_args!(" {which}"));
        self.write_one(move |mut conn| {
            Box::pin(async move { conn.execute(sqlx::AssertSqlSafe(sql), values).await.map(drop) })
        })
        .await
    }

    /// Takes a key out of the cache, if it still leads to this snapshot.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn delete_cached_step(&self, key: &str, snapshot: &SnapshotId) -> Result<(), StoreError> {
        const SQL: &str = "DELETE FROM build_cache WHERE cache_key = $1 AND snapshot_id = $2";
        let values = args![key, snapshot.as_str()];
        self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await.map(drop) }))
            .await
    }
}

fn failure(build: &BuildRecord) -> Result<Value, StoreError> {
    let text =
        build.failure.as_ref().map(serde_json::to_string).transpose().map_err(StoreError::unavailable)?;
    // What a step wrote may be in it.
    Ok(Value::Text(text.map(|text| text.replace("\\u0000", "\\ufffd"))))
}

#[expect(clippy::needless_pass_by_value, reason = "fits map over rows")]
fn decode(row: Row) -> Result<BuildRecord, StoreError> {
    row.decode("builds", "id", read)
}

fn read(row: &Row) -> Result<BuildRecord, BadColumn> {
    let failure = row.text_opt("failure")?;
    Ok(BuildRecord {
        id: row.parse("id")?,
        state: BuildState::parse(&row.text("state")?).ok_or("state")?,
        spec: row.spec(SPEC_VERSION)?,
        template_version: row
            .int_opt("template_version")?
            .map(u32::try_from)
            .transpose()
            .or(Err("template_version"))?,
        failure: failure.map(|text| serde_json::from_str(&text)).transpose().or(Err("failure"))?,
        created_ms: row.uint("created_ms")?,
        started_ms: row.uint_opt("started_ms")?,
        ended_ms: row.uint_opt("ended_ms")?,
        created_by: row.parse_opt("created_by")?,
    })
}

fn read_cached(row: &Row) -> Result<CacheRecord, BadColumn> {
    Ok(CacheRecord {
        key: row.text("cache_key")?,
        snapshot: row.parse("snapshot_id")?,
        step: row.text("step")?,
        stored_bytes: row.uint("stored_bytes")?,
        made_in_ms: row.uint("made_in_ms")?,
        created_ms: row.uint("created_ms")?,
        used_ms: row.uint("used_ms")?,
    })
}
