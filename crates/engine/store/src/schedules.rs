//! Schedules of agents in the database.

use atoll_core::agent::{ScheduleSpec, ScheduleStatus};
use atoll_core::id::{AgentId, ScheduleId};

use crate::Store;
use crate::db::{BadColumn, Row, args, json};
use crate::error::StoreError;
use crate::listed::{Table, Which};

/// Version of the JSON form of a schedule's spec.
const SPEC_VERSION: i64 = 1;
const TABLE: Table = Table::new("agent_schedules", "id").of("agent_id");

/// One schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleRecord {
    /// Its id.
    pub id: ScheduleId,
    /// The agent to which the message is sent.
    pub agent: AgentId,
    /// What, and when.
    pub spec: ScheduleSpec,
    /// How it has fared.
    pub status: ScheduleStatus,
    /// When it was asked for.
    pub created_ms: u64,
}

impl Store {
    /// Stores a new schedule.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when there is no such agent.
    pub async fn insert_schedule(&self, schedule: &ScheduleRecord) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO agent_schedules (id, agent_id, spec, spec_version, status, created_ms) \
             VALUES ($1, $2, $3, $4, $5, $6)";
        let values = args![
            schedule.id.as_str(),
            schedule.agent.as_str(),
            json(&schedule.spec)?,
            SPEC_VERSION,
            json(&schedule.status)?,
            schedule.created_ms,
        ];
        let agent = args![schedule.agent.as_str()];
        self.write_one(move |mut conn| {
            Box::pin(async move {
                if conn.row("SELECT id FROM agents WHERE id = $1", agent).await?.is_none() {
                    return Err(StoreError::NotFound);
                }
                conn.execute(SQL, values).await.map(drop)
            })
        })
        .await
    }

    /// Records how a schedule fared. Does nothing when the schedule is gone.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn update_schedule(&self, id: &ScheduleId, status: &ScheduleStatus) -> Result<(), StoreError> {
        let values = args![id.as_str(), json(status)?];
        self.write_one(move |mut conn| {
            Box::pin(async move {
                conn.execute("UPDATE agent_schedules SET status = $2 WHERE id = $1", values).await.map(drop)
            })
        })
        .await
    }

    /// Every schedule of every agent, the oldest first.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn list_schedules(&self) -> Result<Vec<ScheduleRecord>, StoreError> {
        const SQL: &str = "SELECT * FROM agent_schedules ORDER BY created_ms, id";
        self.list(&TABLE, Which::All, SQL, Vec::new(), read_schedule).await
    }

    /// Removes a schedule. Says whether it was there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn delete_schedule(&self, id: &ScheduleId) -> Result<bool, StoreError> {
        const SQL: &str = "DELETE FROM agent_schedules WHERE id = $1";
        let values = args![id.as_str()];
        self.write_one(move |mut conn| Box::pin(async move { Ok(conn.execute(SQL, values).await? > 0) }))
            .await
    }
}

fn read_schedule(row: &Row) -> Result<ScheduleRecord, BadColumn> {
    Ok(ScheduleRecord {
        id: row.parse("id")?,
        agent: row.parse("agent_id")?,
        spec: row.spec(SPEC_VERSION)?,
        status: row.json("status")?,
        created_ms: row.uint("created_ms")?,
    })
}
