//! Sandboxes in the database.

use atoll_core::id::{NodeId, ProjectId, SandboxId};
use atoll_core::limits::PAGE_MAX_COUNT;
use atoll_core::project::{kept_name, plain_name};
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::sharing::Visibility;
use atoll_core::spec::RequestKey;
use sqlx::AssertSqlSafe;

use crate::Store;
use crate::db::{BadColumn, Conn, Row, Value, args, json};
use crate::error::StoreError;
use crate::execs::insert_or_get;
use crate::listed::{Table, Which};
use crate::projects::turn;
use crate::record::{Cursor, ExecRecord, Insertion, Page, Restored, SandboxFilter, SandboxRecord, VisibleTo};
use crate::services::{ServiceRecord, insert_service};
use crate::sql::{add, any_of, here, newest_first, next_page};

/// Version of the JSON form of a sandbox's spec.
pub(crate) const SPEC_VERSION: i64 = 1;
pub(crate) const TABLE: Table = Table::new("sandboxes", "id").named("name").of("project");

impl Store {
    /// Stores a new sandbox. Its generation is 1; the record's own generation is ignored.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`], [`StoreError::AlreadyExists`] for the id; [`StoreError::Quota`];
    /// [`StoreError::NotFound`] when its project is gone.
    pub async fn insert_sandbox(&self, sandbox: &SandboxRecord) -> Result<(), StoreError> {
        let (sandbox, node) = (sandbox.clone(), self.node().cloned());
        // Labels are rows of their own, and a quota may refuse: with these it is more than one statement.
        if sandbox.labels.is_empty() && sandbox.project.is_none() {
            self.write_one_soon(move |conn| Box::pin(insert(conn, sandbox, node))).await
        } else {
            self.write_soon(move |conn| Box::pin(insert(conn, sandbox, node))).await
        }
    }

    /// Stores a new sandbox in one commit with its visibility, if the client gave one, an exec that runs in it already,
    /// if there is one, and the services that it begins with. So a private sandbox is never visible for a moment.
    ///
    /// # Errors
    /// As [`Self::insert_sandbox`].
    pub async fn insert_sandbox_with(
        &self,
        sandbox: &SandboxRecord,
        visibility: Option<Visibility>,
        exec: Option<&ExecRecord>,
        services: &[ServiceRecord],
    ) -> Result<(), StoreError> {
        if visibility.is_none() && exec.is_none() && services.is_empty() {
            return self.insert_sandbox(sandbox).await;
        }
        let (sandbox, exec, services) = (sandbox.clone(), exec.cloned(), services.to_vec());
        let node = self.node().cloned();
        self.write_soon(move |mut conn| {
            Box::pin(async move {
                const SAID: &str = "INSERT INTO sandbox_access (sandbox_id, visibility) VALUES ($1, $2)";
                let said = visibility.map(|said| args![sandbox.id.as_str(), said.as_str()]);
                insert(conn.again(), sandbox, node).await?;
                if let Some(values) = said {
                    conn.execute(SAID, values).await?;
                }
                for service in &services {
                    insert_service(&mut conn, service).await?;
                }
                let Some(exec) = exec else { return Ok(()) };
                match insert_or_get(conn, exec).await? {
                    Insertion::Inserted => Ok(()),
                    Insertion::Existing(_) => Err(StoreError::AlreadyExists),
                }
            })
        })
        .await
    }

    /// The sandbox with this id, if there is one.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when its row cannot be read.
    pub async fn sandbox(&self, id: &SandboxId) -> Result<Option<SandboxRecord>, StoreError> {
        let values = args![id.as_str()];
        self.read(move |mut conn| {
            Box::pin(async move {
                conn.row("SELECT * FROM sandboxes WHERE id = $1", values).await?.map(decode).transpose()
            })
        })
        .await
    }

    /// Sandboxes that match `filter`, the newest first, at most `limit` (1 to [`PAGE_MAX_COUNT`]).
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn list_sandboxes(
        &self,
        filter: &SandboxFilter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<SandboxRecord>, StoreError> {
        let limit = limit.clamp(1, PAGE_MAX_COUNT);
        let (sql, values) = list_query(filter, self.node(), after, limit);
        let mut rows = self
            .read(move |mut conn| Box::pin(async move { conn.rows(AssertSqlSafe(sql), values).await }))
            .await?;
        let next = next_page(&mut rows, limit)?;
        Ok(Page { items: self.readable(&TABLE, Which::Some, &rows, read), next })
    }

    /// Stores name, state, reason, spec, labels, annotations, image digest, end and last use of `sandbox` if its
    /// generation is still the stored one; gives the new generation.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when it changed meanwhile, [`StoreError::NotFound`],
    /// [`StoreError::NameTaken`]; [`StoreError::Quota`].
    pub async fn update_sandbox(&self, sandbox: &SandboxRecord) -> Result<i64, StoreError> {
        let sandbox = sandbox.clone();
        self.write(move |conn| Box::pin(update(conn, sandbox))).await
    }

    /// Moves a sandbox to another state if it is in one of `from`; gives the new generation.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when it is in another state, [`StoreError::NotFound`].
    pub async fn set_sandbox_state(
        &self,
        id: &SandboxId,
        from: &[SandboxState],
        to: SandboxState,
        reason: Option<&str>,
    ) -> Result<i64, StoreError> {
        let mut values = args![id.as_str(), to.as_str(), reason.map(clean).as_deref()];
        let sql = format!(
            "UPDATE sandboxes SET state = $2, reason = $3, generation = generation + 1 \
             WHERE id = $1 AND {} RETURNING generation",
            any_of("state", from.iter().map(|state| state.as_str()), &mut values)
        );
        let id = id.clone();
        self.write_one_soon(move |mut conn| {
            Box::pin(async move {
                let row = conn.row(AssertSqlSafe(sql), values).await?;
                changed(&mut conn, row, &id).await
            })
        })
        .await
    }

    /// Moves a sandbox that is being made to running, with the end of its life; gives the new generation.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when it is in another state, [`StoreError::NotFound`].
    pub async fn begin_sandbox(&self, id: &SandboxId, expires_ms: Option<u64>) -> Result<i64, StoreError> {
        const SQL: &str = "UPDATE sandboxes SET state = 'running', reason = NULL, expires_ms = $2, \
             generation = generation + 1 WHERE id = $1 AND state = 'creating' RETURNING generation";
        let (id, values) = (id.clone(), args![id.as_str(), expires_ms]);
        self.write_one_soon(move |mut conn| {
            Box::pin(async move {
                let row = conn.row(SQL, values).await?;
                changed(&mut conn, row, &id).await
            })
        })
        .await
    }

    /// Stores state, reason, pause and boot of `sandbox` if its stored state is one of `from`; gives the new
    /// generation. What stays put to disk stays kept, if it is and its memory was not used: then what is on disk may be newer
    /// than the copy.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when it is in another state, [`StoreError::NotFound`]; [`StoreError::Quota`].
    pub async fn set_pause(&self, sandbox: &SandboxRecord, from: &[SandboxState]) -> Result<i64, StoreError> {
        let (sandbox, from) = (sandbox.clone(), from.to_vec());
        if let Some(project) = sandbox.project.clone().filter(|_| sandbox.state != SandboxState::Paused) {
            let woken = self.write(move |mut conn| {
                Box::pin(async move {
                    let turn = turn(&mut conn, &project).await?;
                    let generation = set_pause(conn.again(), &sandbox, &from).await?;
                    turn.check(&mut conn).await.map(|()| generation)
                })
            });
            return woken.await;
        }
        self.write_one(move |conn| Box::pin(async move { set_pause(conn, &sandbox, &from).await })).await
    }

    /// Removes a sandbox of this node and its execs. Says whether it was there: one that has gone to another node is that
    /// one's to remove.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn delete_sandbox(&self, id: &SandboxId) -> Result<bool, StoreError> {
        const SQL: &str = "DELETE FROM sandboxes WHERE id = $1 AND COALESCE(node, '') = $2";
        let values = args![id.as_str(), self.node().map_or("", NodeId::as_str)];
        self.write_one_soon(move |mut conn| Box::pin(async move { Ok(conn.execute(SQL, values).await? > 0) }))
            .await
    }

    /// Inserts one row of what belongs to a sandbox and has a name.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when there is no such sandbox, [`StoreError::NameTaken`] when `sql` inserts nothing.
    pub(crate) async fn insert_of_sandbox(
        &self,
        sandbox: &SandboxId,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Result<(), StoreError> {
        let sandbox = args![sandbox.as_str()];
        let inserted = self.write_one(move |mut conn| {
            Box::pin(async move {
                if conn.row("SELECT id FROM sandboxes WHERE id = $1", sandbox).await?.is_none() {
                    return Err(StoreError::NotFound);
                }
                conn.execute(sql, values).await
            })
        });
        if inserted.await? == 0 { Err(StoreError::NameTaken) } else { Ok(()) }
    }

    /// The ids of all sandboxes, also those of unreadable rows: things of these sandboxes must not be taken for
    /// leftovers.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when an id cannot be read: then it is not known what is left over.
    pub async fn sandbox_ids(&self) -> Result<Vec<SandboxId>, StoreError> {
        self.ids(&TABLE, "SELECT id, created_ms FROM sandboxes", Vec::new()).await
    }
}

/// As [`Store::set_pause`].
pub(crate) async fn set_pause(
    mut conn: Conn<'_>,
    sandbox: &SandboxRecord,
    from: &[SandboxState],
) -> Result<i64, StoreError> {
    let mut values = args![
        sandbox.id.as_str(),
        sandbox.state.as_str(),
        sandbox.reason.as_deref().map(clean).as_deref(),
        sandbox.paused.map(PauseMode::as_str),
        sandbox.paused_ms,
        sandbox.pauses_ms,
        sandbox.boot_id.as_str(),
    ];
    let sql = format!(
        "UPDATE sandboxes SET state = $2, reason = $3, paused = $4, paused_ms = $5, pauses_ms = $6, \
         boot_id = $7, kept_ms = CASE WHEN state = 'paused' AND $2 = 'paused' AND memory_used = 0 \
         AND (paused = $4 OR paused = 'memory' AND $4 = 'filesystem') THEN kept_ms END, \
         memory_used = 0, generation = generation + 1 WHERE id = $1 AND {} RETURNING generation",
        any_of("state", from.iter().map(|state| state.as_str()), &mut values)
    );
    let row = conn.row(AssertSqlSafe(sql), values).await?;
    changed(&mut conn, row, &sandbox.id).await
}

async fn insert(mut conn: Conn<'_>, sandbox: SandboxRecord, node: Option<NodeId>) -> Result<(), StoreError> {
    const SQL: &str = "INSERT INTO sandboxes (id, name, state, reason, spec, spec_version, labels, \
         image_digest, owner, created_ms, expires_ms, last_active_ms, paused, paused_ms, pauses_ms, boot_id, \
         annotations, request_key, request_digest, node, project, cpu_millis, memory_bytes, disk_bytes, generation) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, \
         $23, $24, 1) ON CONFLICT (name) DO NOTHING";
    let turn = match &sandbox.project {
        Some(project) => Some(turn(&mut conn, project).await?),
        None => None,
    };
    let mut values = args![
        sandbox.id.as_str(),
        kept(&sandbox).as_deref(),
        sandbox.state.as_str(),
        sandbox.reason.as_deref().map(clean).as_deref(),
        json(&sandbox.spec)?,
        SPEC_VERSION,
        json(&sandbox.labels)?,
        sandbox.image_digest.as_deref(),
        sandbox.owner.as_ref().map(|key| key.as_str()),
        sandbox.created_ms,
        sandbox.expires_ms,
        sandbox.last_active_ms,
        sandbox.paused.map(PauseMode::as_str),
        sandbox.paused_ms,
        sandbox.pauses_ms,
        sandbox.boot_id.as_str(),
        json(&sandbox.annotations)?,
        sandbox.request.as_ref().map(|request| request.key.as_str()),
        sandbox.request.as_ref().map(|request| request.digest.as_str()),
        node.as_ref().map(NodeId::as_str),
        sandbox.project.as_ref().map(ProjectId::as_str),
    ];
    values.extend(limits(&sandbox));
    if conn.execute(SQL, values).await? == 0 {
        return Err(StoreError::NameTaken);
    }
    insert_labels(&mut conn, &sandbox).await?;
    match turn {
        Some(turn) => turn.check(&mut conn).await,
        None => Ok(()),
    }
}

/// The name as it is kept.
fn kept(sandbox: &SandboxRecord) -> Option<String> {
    sandbox.name.as_deref().map(|name| kept_name(sandbox.project.as_ref(), name))
}

/// What a sandbox counts for in its project's quota.
fn limits(sandbox: &SandboxRecord) -> [Value; 3] {
    let of_project = sandbox.project.as_ref().map(|_| sandbox.spec.resources);
    [
        of_project.map(|limits| limits.cpu_millis).into(),
        of_project.map(|limits| limits.memory_bytes).into(),
        of_project.map(|limits| limits.disk_bytes).into(),
    ]
}

async fn insert_labels(conn: &mut Conn<'_>, sandbox: &SandboxRecord) -> Result<(), StoreError> {
    const SQL: &str = "INSERT INTO sandbox_labels (sandbox_id, label_key, label_value) VALUES ($1, $2, $3)";
    for (key, value) in &sandbox.labels {
        conn.execute(SQL, args![sandbox.id.as_str(), key.as_str(), value.as_str()]).await?;
    }
    Ok(())
}

async fn update(mut conn: Conn<'_>, sandbox: SandboxRecord) -> Result<i64, StoreError> {
    const SQL: &str = "UPDATE sandboxes SET name = $3, state = $4, reason = $5, spec = $6, spec_version = $7, \
         labels = $8, image_digest = $9, expires_ms = $10, last_active_ms = $11, annotations = $12, \
         cpu_millis = $13, memory_bytes = $14, disk_bytes = $15, generation = generation + 1 \
         WHERE id = $1 AND generation = $2 RETURNING generation";
    let turn = match &sandbox.project {
        Some(project) => Some(turn(&mut conn, project).await?),
        None => None,
    };
    let mut values = args![
        sandbox.id.as_str(),
        sandbox.generation,
        kept(&sandbox).as_deref(),
        sandbox.state.as_str(),
        sandbox.reason.as_deref().map(clean).as_deref(),
        json(&sandbox.spec)?,
        SPEC_VERSION,
        json(&sandbox.labels)?,
        sandbox.image_digest.as_deref(),
        sandbox.expires_ms,
        sandbox.last_active_ms,
        json(&sandbox.annotations)?,
    ];
    values.extend(limits(&sandbox));
    // Only the name can collide: the id is not changed.
    let row = match conn.row(SQL, values).await {
        Err(StoreError::AlreadyExists) => return Err(StoreError::NameTaken),
        row => row?,
    };
    let generation = changed(&mut conn, row, &sandbox.id).await?;
    conn.execute("DELETE FROM sandbox_labels WHERE sandbox_id = $1", args![sandbox.id.as_str()]).await?;
    insert_labels(&mut conn, &sandbox).await?;
    if let Some(turn) = turn {
        turn.check(&mut conn).await?;
    }
    Ok(generation)
}

/// The generation after a change, or why there was none.
async fn changed(conn: &mut Conn<'_>, row: Option<Row>, id: &SandboxId) -> Result<i64, StoreError> {
    if let Some(row) = row {
        return row.decode("sandboxes", "id", |row| row.int("generation"));
    }
    let there = conn.row("SELECT id FROM sandboxes WHERE id = $1", args![id.as_str()]).await?;
    Err(if there.is_some() { StoreError::Conflict } else { StoreError::NotFound })
}

/// A reason may come from inside a sandbox; PostgreSQL cannot store NUL.
pub(crate) fn clean(reason: &str) -> String {
    reason.replace('\0', "\u{fffd}")
}

fn list_query(
    filter: &SandboxFilter,
    node: Option<&NodeId>,
    after: Option<&Cursor>,
    limit: u32,
) -> (String, Vec<Value>) {
    let mut values = Vec::new();
    let mut sql = "SELECT * FROM sandboxes WHERE 1 = 1".to_owned();
    if filter.here {
        here(&mut sql, node, &mut values);
    }
    if !filter.states.is_empty() {
        let states = any_of("state", filter.states.iter().map(|state| state.as_str()), &mut values);
        add(&mut sql, format_args!(" AND {states}"));
    }
    for (key, value) in &filter.labels {
        values.extend(args![key.as_str(), value.as_str()]);
        add(
            &mut sql,
            format_args!(
                " AND EXISTS (SELECT 1 FROM sandbox_labels WHERE sandbox_id = sandboxes.id \
                 AND label_key = ${} AND label_value = ${})",
                values.len() - 1,
                values.len()
            ),
        );
    }
    if let Some(prefix) = &filter.name_prefix {
        // Not LIKE: it ignores case in SQLite, and the prefix would have to be escaped.
        values.push(prefix.as_str().into());
        let n = values.len();
        const PLAIN: &str = "CASE WHEN project IS NULL THEN name ELSE substr(name, length(project) + 2) END";
        add(&mut sql, format_args!(" AND substr({PLAIN}, 1, length(${n})) = ${n}"));
    }
    if let Some(project) = &filter.project {
        values.push(project.as_str().into());
        add(&mut sql, format_args!(" AND project = ${}", values.len()));
    }
    if let Some(to) = &filter.visible_to {
        let first = values.len() + 1;
        values.extend(to.values());
        add(&mut sql, format_args!(" AND {}", visible(first)));
    }
    newest_first(&mut sql, &mut values, after, limit);
    (sql, values)
}

/// The SQL condition for sandboxes that an API key may see; the placeholders for [`VisibleTo::values`] begin with this
/// number. A key sees the sandboxes that it was granted a role on and, within its own project (or outside of any
/// project, if it has none), its own sandboxes and those that are shared.
pub(crate) fn visible(key: usize) -> String {
    let (project, default, shared) = (key + 1, key + 2, key + 3);
    format!(
        "(EXISTS (SELECT 1 FROM sandbox_grants WHERE sandbox_id = sandboxes.id AND key_id = ${key}) \
         OR COALESCE(sandboxes.project, '') = ${project} AND (sandboxes.owner = ${key} \
         OR COALESCE((SELECT visibility FROM sandbox_access WHERE sandbox_id = sandboxes.id), ${default}) = ${shared}))"
    )
}

impl VisibleTo {
    /// The values of [`visible`].
    pub(crate) fn values(&self) -> Vec<Value> {
        let project = self.project.as_ref().map_or("", ProjectId::as_str);
        args![self.key.as_str(), project, self.default.as_str(), Visibility::Shared.as_str()]
    }
}

#[expect(clippy::needless_pass_by_value, reason = "fits map over rows")]
fn decode(row: Row) -> Result<SandboxRecord, StoreError> {
    row.decode("sandboxes", "id", read)
}

fn read(row: &Row) -> Result<SandboxRecord, BadColumn> {
    Ok(SandboxRecord {
        id: row.parse("id")?,
        name: row.text_opt("name")?.map(|kept| plain_name(&kept).to_owned()),
        project: row.parse_opt("project")?,
        state: row.sandbox_state()?,
        reason: row.text_opt("reason")?,
        spec: row.spec(SPEC_VERSION)?,
        labels: row.json("labels")?,
        annotations: row.json("annotations")?,
        image_digest: row.text_opt("image_digest")?,
        owner: row.parse_opt("owner")?,
        request: match (row.text_opt("request_key")?, row.text_opt("request_digest")?) {
            (Some(key), Some(digest)) => Some(RequestKey { key, digest }),
            _ => None,
        },
        created_ms: row.uint("created_ms")?,
        expires_ms: row.uint_opt("expires_ms")?,
        last_active_ms: row.uint("last_active_ms")?,
        paused: row.text_opt("paused")?.map(|text| PauseMode::parse(&text).ok_or("paused")).transpose()?,
        paused_ms: row.uint_opt("paused_ms")?,
        pauses_ms: row.uint("pauses_ms")?,
        boot_id: row.text("boot_id")?,
        kept_ms: row.uint_opt("kept_ms")?,
        memory_used: row.int("memory_used")? != 0,
        restored: match (row.uint_opt("checkpoint_ms")?, row.uint_opt("restored_ms")?) {
            (Some(checkpoint_ms), Some(at_ms)) => Some(Restored { checkpoint_ms, at_ms }),
            _ => None,
        },
        generation: row.int("generation")?,
    })
}
