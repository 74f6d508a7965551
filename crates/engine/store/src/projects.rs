//! Projects in the database, and the quotas of what is in them.
//!
//! A change that may need more of a quota takes a turn at its project first ([`turn`]): on PostgreSQL by a lock on the
//! project's row, on whichever node; SQLite has one writer. What was counted in that turn holds until the change is
//! committed. The removal of a project takes the same turn, so that nothing is added to a project that is being
//! removed.

use std::collections::BTreeSet;

use atoll_core::id::{ProjectId, SandboxId};
use atoll_core::project::{ProjectDefaults, Quota, QuotaUsed};
use atoll_core::sandbox::PauseMode;

use crate::Store;
use crate::db::{BadColumn, Conn, Row, args, json};
use crate::error::StoreError;
use crate::listed::{Table, Which};
use crate::record::SandboxRecord;
use crate::sandboxes;

const TABLE: Table = Table::new("projects", "id").named("name");

/// One project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectRecord {
    /// Its id.
    pub id: ProjectId,
    /// Its name; no two have the same.
    pub name: String,
    /// How much it may have.
    pub quota: Quota,
    /// The settings that its sandboxes get where the request gives none.
    pub defaults: ProjectDefaults,
    /// When it was made.
    pub created_ms: u64,
}

/// What belongs to a project.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Belongings {
    /// Keys.
    pub keys: u64,
    /// Sandboxes.
    pub sandboxes: u64,
    /// Snapshots, also those that something else holds, such as a paused sandbox.
    pub snapshots: u64,
    /// Volumes.
    pub volumes: u64,
    /// Secrets.
    pub secrets: u64,
}

impl Belongings {
    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Store {
    /// Stores a new project, if there are fewer than `max`.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`]; [`StoreError::Conflict`] when there are as many already.
    pub async fn insert_project(&self, project: &ProjectRecord, max: u64) -> Result<(), StoreError> {
        const COUNT: &str = "SELECT COUNT(*) AS number FROM projects";
        const SQL: &str = "INSERT INTO projects (id, name, quota, defaults, created_ms) \
             VALUES ($1, $2, $3, $4, $5) ON CONFLICT (name) DO NOTHING";
        let values = args![
            project.id.as_str(),
            project.name.as_str(),
            json(&project.quota)?,
            json(&project.defaults)?,
            project.created_ms,
        ];
        self.write(move |mut conn| {
            Box::pin(async move {
                if number(&mut conn, COUNT, Vec::new()).await? >= max {
                    return Err(StoreError::Conflict);
                }
                if conn.execute(SQL, values).await? == 0 { Err(StoreError::NameTaken) } else { Ok(()) }
            })
        })
        .await
    }

    /// Every project, by name.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn list_projects(&self) -> Result<Vec<ProjectRecord>, StoreError> {
        const SQL: &str = "SELECT * FROM projects ORDER BY name";
        self.list(&TABLE, Which::All, SQL, Vec::new(), read).await
    }

    /// Changes name, quota and defaults of a project.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; [`StoreError::NameTaken`].
    pub async fn update_project(&self, project: &ProjectRecord) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE projects SET name = $2, quota = $3, defaults = $4 WHERE id = $1";
        let values = args![
            project.id.as_str(),
            project.name.as_str(),
            json(&project.quota)?,
            json(&project.defaults)?,
        ];
        let changed =
            self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await }));
        match changed.await {
            Err(StoreError::AlreadyExists) => Err(StoreError::NameTaken),
            Err(error) => Err(error),
            Ok(0) => Err(StoreError::NotFound),
            Ok(_) => Ok(()),
        }
    }

    /// Removes a project to which nothing belongs. Otherwise it stays. Gives the counts of what belongs to it.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    pub async fn delete_project(&self, id: &ProjectId) -> Result<Belongings, StoreError> {
        let id = id.clone();
        self.write(move |mut conn| {
            Box::pin(async move {
                turn(&mut conn, &id).await?;
                let belongings = belongings(&mut conn, &id).await?;
                if belongings.is_empty() {
                    conn.execute("DELETE FROM projects WHERE id = $1", args![id.as_str()]).await?;
                }
                Ok(belongings)
            })
        })
        .await
    }

    /// What belongs to a project.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn belongings(&self, id: &ProjectId) -> Result<Belongings, StoreError> {
        let id = id.clone();
        self.read(move |mut conn| Box::pin(async move { belongings(&mut conn, &id).await })).await
    }

    /// How much of its quota a project has.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn quota_used(&self, id: &ProjectId) -> Result<QuotaUsed, StoreError> {
        let id = id.clone();
        self.read(move |mut conn| Box::pin(async move { used(&mut conn, &id).await })).await
    }

    /// The sandboxes that have a name, each with its project.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn sandboxes_named(
        &self,
        name: &str,
    ) -> Result<Vec<(Option<ProjectId>, SandboxId)>, StoreError> {
        const SQL: &str =
            "SELECT id, project FROM sandboxes WHERE name = $1 OR name = project || '/' || $1 ORDER BY id";
        let values = args![name];
        let rows = self.read(move |mut conn| Box::pin(async move { conn.rows(SQL, values).await })).await?;
        let of = |row: &Row| Ok((row.parse_opt("project")?, row.parse("id")?));
        rows.iter().map(|row| row.decode("sandboxes", "id", of)).collect()
    }

    /// The sandboxes of a project, with those that are gone and have recorded usage.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn sandboxes_ever_in(&self, id: &ProjectId) -> Result<BTreeSet<SandboxId>, StoreError> {
        const SQL: &str = "SELECT id FROM sandboxes WHERE project = $1 \
             UNION SELECT sandbox_id AS id FROM usage WHERE project = $1";
        let values = args![id.as_str()];
        let ids = self.list(&sandboxes::TABLE, Which::Some, SQL, values, |row| row.parse("id")).await?;
        Ok(ids.into_iter().collect())
    }

    /// Refuses a new sandbox that would exceed its project's quota. [`Self::insert_sandbox`] checks again; this check
    /// spares the work of creating it.
    ///
    /// # Errors
    /// [`StoreError::Quota`].
    pub async fn check_new(&self, sandbox: &SandboxRecord) -> Result<(), StoreError> {
        let disk_bytes = sandbox.spec.resources.disk_bytes;
        self.check_room(sandbox, QuotaUsed { sandboxes: 1, disk_bytes, ..running(sandbox) }).await
    }

    /// Refuses to wake a sandbox whose project has no room for it. [`Self::set_pause`] checks again; this check spares
    /// the work of waking it.
    ///
    /// # Errors
    /// [`StoreError::Quota`].
    pub async fn check_wake(&self, sandbox: &SandboxRecord) -> Result<(), StoreError> {
        // A frozen sandbox is already counted with its memory.
        let memory_bytes = match sandbox.paused {
            Some(PauseMode::Frozen) => 0,
            _ => sandbox.spec.resources.memory_bytes,
        };
        self.check_room(sandbox, QuotaUsed { memory_bytes, ..running(sandbox) }).await
    }

    async fn check_room(&self, sandbox: &SandboxRecord, more: QuotaUsed) -> Result<(), StoreError> {
        let Some(id) = sandbox.project.clone() else { return Ok(()) };
        self.read(move |mut conn| {
            Box::pin(async move {
                let row = conn.row("SELECT * FROM projects WHERE id = $1", args![id.as_str()]).await?;
                let project = row.ok_or(StoreError::NotFound)?.decode("projects", "id", read)?;
                let before = used(&mut conn, &id).await?;
                let after = QuotaUsed {
                    sandboxes: before.sandboxes + more.sandboxes,
                    running: before.running + more.running,
                    cpu_millis: before.cpu_millis + more.cpu_millis,
                    memory_bytes: before.memory_bytes + more.memory_bytes,
                    disk_bytes: before.disk_bytes + more.disk_bytes,
                };
                refused(project.quota.check(&project.name, &before, &after))
            })
        })
        .await
    }
}

/// What a sandbox adds when it runs.
fn running(sandbox: &SandboxRecord) -> QuotaUsed {
    let limits = sandbox.spec.resources;
    QuotaUsed {
        running: 1,
        cpu_millis: u64::from(limits.cpu_millis),
        memory_bytes: limits.memory_bytes,
        ..QuotaUsed::default()
    }
}

fn refused(checked: Result<(), atoll_core::Error>) -> Result<(), StoreError> {
    checked.map_err(|error| StoreError::Quota { error: Box::new(error) })
}

/// A project whose turn it is.
pub(crate) struct Turn {
    project: ProjectRecord,
    before: QuotaUsed,
}

impl Turn {
    /// Refuses what was done in this turn, if it is more than the quota.
    pub(crate) async fn check(self, conn: &mut Conn<'_>) -> Result<(), StoreError> {
        if self.project.quota.is_open() {
            return Ok(());
        }
        let after = used(conn, &self.project.id).await?;
        refused(self.project.quota.check(&self.project.name, &self.before, &after))
    }
}

/// Begins a turn at a project, before anything is done in it.
///
/// # Errors
/// [`StoreError::NotFound`] when it is gone.
pub(crate) async fn turn(conn: &mut Conn<'_>, id: &ProjectId) -> Result<Turn, StoreError> {
    let sql = match conn {
        Conn::Sqlite(_) => "SELECT * FROM projects WHERE id = $1",
        Conn::Postgres(_) => "SELECT * FROM projects WHERE id = $1 FOR UPDATE",
    };
    let row = conn.row(sql, args![id.as_str()]).await?.ok_or(StoreError::NotFound)?;
    let project = row.decode("projects", "id", read)?;
    let before = if project.quota.is_open() { QuotaUsed::default() } else { used(conn, id).await? };
    Ok(Turn { project, before })
}

async fn used(conn: &mut Conn<'_>, id: &ProjectId) -> Result<QuotaUsed, StoreError> {
    const SQL: &str = "SELECT COUNT(*) AS sandboxes, \
         CAST(COALESCE(SUM(runs), 0) AS BIGINT) AS running, \
         CAST(COALESCE(SUM(runs * cpu_millis), 0) AS BIGINT) AS cpu_millis, \
         CAST(COALESCE(SUM(resident * memory_bytes), 0) AS BIGINT) AS memory_bytes, \
         CAST(COALESCE(SUM(disk_bytes), 0) AS BIGINT) AS disk_bytes \
         FROM (SELECT cpu_millis, memory_bytes, disk_bytes, \
         CASE WHEN state IN ('creating', 'running', 'pausing', 'resuming') THEN 1 ELSE 0 END AS runs, \
         CASE WHEN state IN ('creating', 'running', 'pausing', 'resuming') OR paused = 'frozen' THEN 1 ELSE 0 END \
         AS resident \
         FROM sandboxes WHERE project = $1) AS of_project";
    let row = conn.row(SQL, args![id.as_str()]).await?.ok_or(StoreError::NotFound)?;
    row.decode("sandboxes", "project", |row| {
        Ok(QuotaUsed {
            sandboxes: row.uint("sandboxes")?,
            running: row.uint("running")?,
            cpu_millis: row.uint("cpu_millis")?,
            memory_bytes: row.uint("memory_bytes")?,
            disk_bytes: row.uint("disk_bytes")?,
        })
    })
}

async fn belongings(conn: &mut Conn<'_>, id: &ProjectId) -> Result<Belongings, StoreError> {
    const COUNT: [&str; 5] = [
        "SELECT COUNT(*) AS number FROM api_keys WHERE project = $1",
        "SELECT COUNT(*) AS number FROM sandboxes WHERE project = $1",
        "SELECT COUNT(*) AS number FROM snapshots WHERE project = $1",
        "SELECT COUNT(*) AS number FROM volumes WHERE project = $1",
        "SELECT COUNT(*) AS number FROM secrets WHERE project = $1",
    ];
    let mut counts = [0; COUNT.len()];
    for (count, sql) in counts.iter_mut().zip(COUNT) {
        *count = number(conn, sql, args![id.as_str()]).await?;
    }
    let [keys, sandboxes, snapshots, volumes, secrets] = counts;
    Ok(Belongings { keys, sandboxes, snapshots, volumes, secrets })
}

async fn number(
    conn: &mut Conn<'_>,
    sql: &'static str,
    values: Vec<crate::db::Value>,
) -> Result<u64, StoreError> {
    let row = conn.row(sql, values).await?;
    row.map_or(Ok(0), |row| row.decode("projects", "number", |row| row.uint("number")))
}

fn read(row: &Row) -> Result<ProjectRecord, BadColumn> {
    Ok(ProjectRecord {
        id: row.parse("id")?,
        name: row.text("name")?,
        quota: row.json("quota")?,
        defaults: row.json("defaults")?,
        created_ms: row.uint("created_ms")?,
    })
}
