//! Agents, their sessions and events in the database.

use atoll_core::agent::{AgentSpec, EventKind, NewEvent, SessionStatus};
use atoll_core::id::{AgentId, SandboxId, SessionId};
use atoll_core::project::plain_name;
use serde_json::Value;

use crate::Store;
use crate::db::{BadColumn, Conn, Row, args, json};
use crate::error::StoreError;
use crate::listed::{Table, Which};

/// Version of the JSON form of an agent's spec.
const SPEC_VERSION: i64 = 1;
const AGENTS: Table = Table::new("agents", "id").named("name");
const SESSIONS: Table = Table::new("agent_sessions", "id").of("agent_id");
const EVENTS: Table = Table::new("agent_events", "session_id");

/// One agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRecord {
    /// Its id.
    pub id: AgentId,
    /// Its name; no two agents in sandboxes of one project, or of none, have the same.
    pub name: String,
    /// The sandbox it lives in.
    pub sandbox: SandboxId,
    /// What it is.
    pub spec: AgentSpec,
    /// When it was asked for.
    pub created_ms: u64,
}

/// One session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionRecord {
    /// Its id.
    pub id: SessionId,
    /// The agent it is with.
    pub agent: AgentId,
    /// What the client calls it; no two sessions of an agent have the same.
    pub thread: Option<String>,
    /// Where the conversation is.
    pub status: SessionStatus,
    /// Number of the last event.
    pub events: u64,
    /// When it was asked for.
    pub created_ms: u64,
}

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub struct EventRecord {
    /// Counts from 1 in its session.
    pub number: u64,
    /// What it is about.
    pub kind: EventKind,
    /// What it says.
    pub data: Value,
    /// When that was.
    pub at_ms: u64,
}

impl Store {
    /// Stores a new agent.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`]; [`StoreError::NotFound`] when there is no such sandbox.
    pub async fn insert_agent(&self, agent: &AgentRecord) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO agents (id, name, sandbox_id, spec, spec_version, created_ms) \
             SELECT $1, COALESCE(project || '/', '') || $2, id, $4, $5, $6 FROM sandboxes WHERE id = $3 ON CONFLICT (name) DO NOTHING";
        let values = args![
            agent.id.as_str(),
            agent.name.as_str(),
            agent.sandbox.as_str(),
            json(&agent.spec)?,
            SPEC_VERSION,
            agent.created_ms,
        ];
        self.insert_of_sandbox(&agent.sandbox, SQL, values).await
    }

    /// Stores the changed spec of an agent. Does nothing when the agent is gone.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn update_agent(&self, agent: &AgentRecord) -> Result<(), StoreError> {
        let values = args![agent.id.as_str(), json(&agent.spec)?];
        self.write_one(move |mut conn| {
            Box::pin(async move {
                conn.execute("UPDATE agents SET spec = $2 WHERE id = $1", values).await.map(drop)
            })
        })
        .await
    }

    /// Every agent, the oldest first.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn list_agents(&self) -> Result<Vec<AgentRecord>, StoreError> {
        const SQL: &str = "SELECT * FROM agents ORDER BY created_ms, id";
        self.list(&AGENTS, Which::All, SQL, Vec::new(), read_agent).await
    }

    /// Removes an agent with its sessions. Says whether it was there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn delete_agent(&self, id: &AgentId) -> Result<bool, StoreError> {
        let values = args![id.as_str()];
        self.write_one(move |mut conn| {
            Box::pin(async move { Ok(conn.execute("DELETE FROM agents WHERE id = $1", values).await? > 0) })
        })
        .await
    }

    /// Stores a new session.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`] for the thread; [`StoreError::NotFound`] when there is no such agent.
    pub async fn insert_agent_session(&self, session: &SessionRecord) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO agent_sessions (id, agent_id, thread, status, events, created_ms) \
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (agent_id, thread) DO NOTHING";
        let values = args![
            session.id.as_str(),
            session.agent.as_str(),
            session.thread.as_deref(),
            json(&session.status)?,
            session.events,
            session.created_ms,
        ];
        let agent = args![session.agent.as_str()];
        let inserted = self.write_one(move |mut conn| {
            Box::pin(async move {
                if conn.row("SELECT id FROM agents WHERE id = $1", agent).await?.is_none() {
                    return Err(StoreError::NotFound);
                }
                conn.execute(SQL, values).await
            })
        });
        if inserted.await? == 0 { Err(StoreError::NameTaken) } else { Ok(()) }
    }

    /// Every session of every agent, the oldest first.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn list_agent_sessions(&self) -> Result<Vec<SessionRecord>, StoreError> {
        const SQL: &str = "SELECT * FROM agent_sessions ORDER BY created_ms, id";
        self.list(&SESSIONS, Which::All, SQL, Vec::new(), read_session).await
    }

    /// Removes a session with its events. Says whether it was there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn delete_agent_session(&self, id: &SessionId) -> Result<bool, StoreError> {
        const SQL: &str = "DELETE FROM agent_sessions WHERE id = $1";
        let values = args![id.as_str()];
        self.write_one(move |mut conn| Box::pin(async move { Ok(conn.execute(SQL, values).await? > 0) }))
            .await
    }

    /// Stores events and, with them, where the conversation is. Gives the number of the last event.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when there is no such session.
    pub async fn append_agent_events(
        &self,
        session: &SessionId,
        events: &[NewEvent],
        status: &SessionStatus,
        at_ms: u64,
    ) -> Result<u64, StoreError> {
        const SQL: &str =
            "UPDATE agent_sessions SET status = $2, events = events + $3 WHERE id = $1 RETURNING events";
        let values = args![session.as_str(), json(status)?, events.len() as u64];
        let rows: Vec<_> = events
            .iter()
            .map(|event| json(&event.data).map(|data| (event.kind, data)))
            .collect::<Result<_, _>>()?;
        let id = session.clone();
        self.write_soon(move |mut conn| {
            Box::pin(async move {
                let last = conn.row(SQL, values).await?.ok_or(StoreError::NotFound)?;
                let last = last.decode("agent_sessions", "events", |row| row.uint("events"))?;
                let first = last + 1 - rows.len() as u64;
                for (number, (kind, data)) in (first..).zip(rows) {
                    let values = args![id.as_str(), number, kind.as_str(), None::<&str>, data, at_ms];
                    conn.execute(INSERT_EVENT, values).await?;
                }
                Ok(last)
            })
        })
        .await
    }

    /// Stores a message, unless there is one with its key: then gives that. Says whether it is new. `None`: `most` messages
    /// after `delivered` are there already.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when there is no such session.
    pub async fn append_agent_message(
        &self,
        session: &SessionId,
        key: Option<&str>,
        data: &Value,
        at_ms: u64,
        delivered: u64,
        most: u64,
    ) -> Result<Option<(EventRecord, bool)>, StoreError> {
        const BACK: &str = "UPDATE agent_sessions SET events = events - 1 WHERE id = $1";
        const WAITING: &str = "SELECT COUNT(*) AS count FROM agent_events WHERE session_id = $1 \
             AND number > $2 AND kind = $3";
        const BY_KEY: &str = "SELECT * FROM agent_events WHERE session_id = $1 AND client_key = $2";
        const COUNT: &str = "UPDATE agent_sessions SET events = events + 1 WHERE id = $1 RETURNING events";
        let (id, key, data) = (session.clone(), key.map(str::to_owned), data.clone());
        let text = json(&data)?;
        self.write(move |mut conn: Conn<'_>| {
            Box::pin(async move {
                // First: this makes other callers that bring the same key wait.
                let counted = conn.row(COUNT, args![id.as_str()]).await?.ok_or(StoreError::NotFound)?;
                let number = counted.decode("agent_sessions", "events", |row| row.uint("events"))?;
                if let Some(key) = &key
                    && let Some(row) = conn.row(BY_KEY, args![id.as_str(), key.as_str()]).await?
                {
                    conn.execute(BACK, args![id.as_str()]).await?;
                    return Ok(Some((row.decode("agent_events", "session_id", read_event)?, false)));
                }
                let kind = EventKind::Message;
                let waiting = conn.row(WAITING, args![id.as_str(), delivered, kind.as_str()]).await?;
                let waiting = waiting.map(|row| row.decode("agent_events", "count", |row| row.uint("count")));
                if waiting.transpose()?.is_some_and(|waiting| waiting >= most) {
                    conn.execute(BACK, args![id.as_str()]).await?;
                    return Ok(None);
                }
                let values = args![id.as_str(), number, kind.as_str(), key.as_deref(), text, at_ms];
                conn.execute(INSERT_EVENT, values).await?;
                Ok(Some((EventRecord { number, kind, data, at_ms }, true)))
            })
        })
        .await
    }

    /// Events after a number, in order, at most so many. No event, while there are any behind unreadable rows, is no answer:
    /// the caller asks for what comes after the last event that it has.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn agent_events(
        &self,
        session: &SessionId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<EventRecord>, StoreError> {
        const SQL: &str =
            "SELECT * FROM agent_events WHERE session_id = $1 AND number > $2 ORDER BY number LIMIT $3";
        self.events_after(SQL, session, None, after, limit).await
    }

    /// Messages after a number, in order, at most so many, as in [`Self::agent_events`].
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn agent_messages(
        &self,
        session: &SessionId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<EventRecord>, StoreError> {
        const SQL: &str = "SELECT * FROM agent_events WHERE session_id = $1 AND number > $2 AND kind = $4 \
             ORDER BY number LIMIT $3";
        self.events_after(SQL, session, Some(EventKind::Message), after, limit).await
    }

    async fn events_after(
        &self,
        sql: &'static str,
        session: &SessionId,
        kind: Option<EventKind>,
        after: u64,
        limit: u32,
    ) -> Result<Vec<EventRecord>, StoreError> {
        let mut after = after;
        loop {
            let mut values = args![session.as_str(), after, limit];
            values.extend(kind.map(|kind| crate::db::Value::from(kind.as_str())));
            let rows =
                self.read(move |mut conn| Box::pin(async move { conn.rows(sql, values).await })).await?;
            let events = self.readable(&EVENTS, Which::Some, &rows, read_event);
            match rows.last().and_then(|row| row.uint("number").ok()) {
                Some(last) if events.is_empty() && last > after => after = last,
                _ => return Ok(events),
            }
        }
    }

    /// Removes the oldest events of a session, so that at most `count`, of at most so many bytes together, stay.
    /// Messages after `delivered` always stay.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn prune_agent_events(
        &self,
        session: &SessionId,
        count: u64,
        bytes: u64,
        delivered: u64,
    ) -> Result<(), StoreError> {
        const SIZES: &str = "SELECT number, CAST(LENGTH(data) AS BIGINT) AS size FROM agent_events WHERE session_id = $1 \
             ORDER BY number DESC LIMIT $2";
        const DELETE: &str =
            "DELETE FROM agent_events WHERE session_id = $1 AND number < $2 AND number <= $3";
        let id = session.clone();
        self.write_soon(move |mut conn| {
            Box::pin(async move {
                let rows = conn.rows(SIZES, args![id.as_str(), count]).await?;
                let (mut sum, mut first) = (0, u64::MAX);
                for row in &rows {
                    let (number, size) = row.decode("agent_events", "number", read_size)?;
                    sum += size;
                    if sum > bytes && first != u64::MAX {
                        break;
                    }
                    first = number;
                }
                if first != u64::MAX {
                    conn.execute(DELETE, args![id.as_str(), first, delivered]).await?;
                }
                Ok(())
            })
        })
        .await
    }
}

const INSERT_EVENT: &str = "INSERT INTO agent_events (session_id, number, kind, client_key, data, at_ms) \
     VALUES ($1, $2, $3, $4, $5, $6)";

fn read_size(row: &Row) -> Result<(u64, u64), BadColumn> {
    Ok((row.uint("number")?, row.uint("size")?))
}

fn read_agent(row: &Row) -> Result<AgentRecord, BadColumn> {
    Ok(AgentRecord {
        id: row.parse("id")?,
        name: plain_name(&row.text("name")?).to_owned(),
        sandbox: row.parse("sandbox_id")?,
        spec: row.spec(SPEC_VERSION)?,
        created_ms: row.uint("created_ms")?,
    })
}

fn read_session(row: &Row) -> Result<SessionRecord, BadColumn> {
    Ok(SessionRecord {
        id: row.parse("id")?,
        agent: row.parse("agent_id")?,
        thread: row.text_opt("thread")?,
        status: row.json("status")?,
        events: row.uint("events")?,
        created_ms: row.uint("created_ms")?,
    })
}

fn read_event(row: &Row) -> Result<EventRecord, BadColumn> {
    Ok(EventRecord {
        number: row.uint("number")?,
        kind: EventKind::parse(&row.text("kind")?).ok_or("kind")?,
        data: row.json("data")?,
        at_ms: row.uint("at_ms")?,
    })
}
