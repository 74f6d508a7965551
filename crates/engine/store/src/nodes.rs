//! The nodes that share a database, and what is on which of them.

use std::collections::BTreeMap;

use atoll_core::exec::Exit;
use atoll_core::id::{BuildId, KeyId, NodeId, SandboxId, SnapshotId};
use atoll_core::node::{NodeFacts, NodeLoad};
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::{IsolationLevel, SandboxSpec};
use sqlx::AssertSqlSafe;

use crate::Store;
use crate::db::{BadColumn, Conn, Row, args, json};
use crate::error::StoreError;
use crate::listed::{Table, Which};
use crate::migrations;
use crate::sandboxes;
use crate::sql::any_of;

const TABLE: Table = Table::new("nodes", "id").named("name");

/// A node that enters.
#[derive(Debug, Clone)]
pub struct NodeDraft {
    /// Its id, from its data directory.
    pub id: NodeId,
    /// What people call it.
    pub name: String,
    /// Where the other nodes reach it: host and port.
    pub address: String,
    /// Of the program.
    pub version: String,
    /// [`NodeFacts`], JSON.
    pub facts: String,
    /// How long the other nodes wait for a sign of life, milliseconds.
    pub lease_ms: u64,
    /// When it enters.
    pub now_ms: u64,
}

/// A node as the other nodes know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRecord {
    /// Its id.
    pub id: NodeId,
    /// What people call it.
    pub name: String,
    /// Where the other nodes reach it.
    pub address: String,
    /// Of its program.
    pub version: String,
    /// What it can do.
    pub facts: NodeFacts,
    /// What it has to do.
    pub load: NodeLoad,
    /// Raised whenever it starts, or is taken over.
    pub epoch: i64,
    /// Changes as long as it lives.
    pub beats: i64,
    /// How long the other nodes wait for `beats` to change, milliseconds.
    pub lease_ms: u64,
    /// No other node has taken over since it started.
    pub is_alive: bool,
    /// It takes no new sandboxes.
    pub is_draining: bool,
    /// When it entered first.
    pub created_ms: u64,
    /// Its last sign of life, by the database's clock.
    pub seen_ms: u64,
}

/// A record that is on one node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Whereabouts {
    /// A sandbox, by id or name.
    Sandbox(String),
    /// An agent, by id or name.
    Agent(String),
    /// A volume, by id or name.
    Volume(String),
    /// A snapshot.
    Snapshot(SnapshotId),
    /// A build.
    Build(BuildId),
    /// The sandbox that a key asked for with this key of its own.
    Request(KeyId, String),
}

impl Store {
    /// Every node, by name.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
        const SQL: &str = "SELECT * FROM nodes ORDER BY name";
        self.list(&TABLE, Which::All, SQL, Vec::new(), read).await
    }

    /// Those of these nodes that are there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn some_nodes(&self, ids: &[NodeId]) -> Result<Vec<NodeRecord>, StoreError> {
        let mut values = Vec::new();
        let sql = format!(
            "SELECT * FROM nodes WHERE {}",
            any_of("id", ids.iter().map(NodeId::as_str), &mut values)
        );
        self.list(&TABLE, Which::Some, AssertSqlSafe(sql), values, read).await
    }

    /// How often each thing changed that servers keep in memory. All of it: a count that is left out would hide a change,
    /// such as the removal of a key.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when a row cannot be read.
    pub async fn changes(&self) -> Result<BTreeMap<String, i64>, StoreError> {
        const SQL: &str = "SELECT what, number FROM changes";
        let rows = self.read(|mut conn| Box::pin(async move { conn.rows(SQL, Vec::new()).await })).await?;
        let read = |row: &Row| Ok((row.text("what")?, row.int("number")?));
        rows.iter().map(|row| row.decode("changes", "what", read)).collect()
    }

    /// What the database's clock shows, milliseconds since the epoch. PostgreSQL's only.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn clock_ms(&self) -> Result<u64, StoreError> {
        const SQL: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now";
        self.number(SQL, "now").await
    }

    /// The newest version of the schema that this program knows, and the one that the database has.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn schema(&self) -> Result<(u64, u64), StoreError> {
        const SQL: &str = "SELECT max(version) AS version FROM _sqlx_migrations WHERE success";
        Ok((migrations::newest().unsigned_abs(), self.number(SQL, "version").await?))
    }

    async fn number(&self, sql: &'static str, column: &'static str) -> Result<u64, StoreError> {
        let row = self.read(move |mut conn| Box::pin(async move { conn.row(sql, Vec::new()).await })).await?;
        row.map_or(Ok(0), |row| row.decode("nodes", column, |row| row.uint(column)))
    }

    /// The node that a record is on, if the record is there and on a node.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn whereabouts(&self, of: &Whereabouts) -> Result<Option<NodeId>, StoreError> {
        let (sql, values) = match of {
            Whereabouts::Sandbox(text) => {
                ("SELECT node FROM sandboxes WHERE id = $1 OR name = $1", args![text.as_str()])
            }
            Whereabouts::Agent(text) => (
                "SELECT s.node AS node FROM agents a JOIN sandboxes s ON s.id = a.sandbox_id \
                 WHERE a.id = $1 OR a.name = $1",
                args![text.as_str()],
            ),
            Whereabouts::Volume(text) => {
                ("SELECT node FROM volumes WHERE id = $1 OR name = $1", args![text.as_str()])
            }
            Whereabouts::Snapshot(id) => ("SELECT node FROM snapshots WHERE id = $1", args![id.as_str()]),
            Whereabouts::Build(id) => ("SELECT node FROM builds WHERE id = $1", args![id.as_str()]),
            Whereabouts::Request(owner, key) => (
                "SELECT node FROM sandboxes WHERE owner = $1 AND request_key = $2",
                args![owner.as_str(), key.as_str()],
            ),
        };
        let row = self.read(move |mut conn| Box::pin(async move { conn.row(sql, values).await })).await?;
        let Some(row) = row else { return Ok(None) };
        row.decode("sandboxes", "node", |row| row.parse_opt("node"))
    }

    /// The ids of the sandboxes on this node, those of unreadable rows too; of all where there are no nodes.
    ///
    /// # Errors
    /// As [`Self::sandbox_ids`].
    pub async fn own_sandbox_ids(&self) -> Result<Vec<SandboxId>, StoreError> {
        let Some(node) = self.node() else { return self.sandbox_ids().await };
        let values = args![node.as_str()];
        const SQL: &str = "SELECT id, created_ms FROM sandboxes WHERE node = $1";
        self.ids(&sandboxes::TABLE, SQL, values).await
    }

    /// Records this node's facts, which have changed since it entered.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]; [`StoreError::Claimed`].
    pub async fn set_facts(&self, facts: &NodeFacts) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE nodes SET facts = $2 WHERE id = $1";
        let Some(node) = self.node() else { return Ok(()) };
        let values = vec![node.as_str().into(), json(facts)?];
        self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await.map(drop) }))
            .await
    }

    /// Says whether a node takes new sandboxes. Says whether it is there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn set_draining(&self, node: &NodeId, draining: bool) -> Result<bool, StoreError> {
        const SAY: &str = "UPDATE nodes SET is_draining = $2 WHERE id = $1";
        // The reasons why sandboxes stay are found out anew.
        const FORGET: &str = "UPDATE kept SET stays = NULL WHERE stays IS NOT NULL \
             AND sandbox_id IN (SELECT id FROM sandboxes WHERE node = $1)";
        let (say, forget) = (args![node.as_str(), u32::from(draining)], args![node.as_str()]);
        self.write(move |mut conn| {
            Box::pin(async move {
                let said = conn.execute(SAY, say).await? > 0;
                conn.execute(FORGET, forget).await?;
                Ok(said)
            })
        })
        .await
    }

    /// Takes over a node whose sign of life was `beats` of `epoch` for a whole lease: from now on the dead node can
    /// write nothing. Its running and frozen sandboxes become this node's, as failed. But a sandbox that has a copy of
    /// a moment and one of these isolation levels arrives here, put to disk, and what it did after the copy is lost.
    /// Sandboxes that were being created or deleted become this node's, to be deleted. Sandboxes put to disk on the
    /// dead node's disk wait for that node. Gives the sandboxes that were moved; `None` when the node lives after all,
    /// or another node was faster.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]; [`StoreError::Claimed`].
    pub async fn take_over(
        &self,
        dead: &NodeRecord,
        levels: &[IsolationLevel],
        reason: &str,
        now_ms: u64,
    ) -> Result<Option<Vec<SandboxId>>, StoreError> {
        let Some(heir) = self.node() else { return Ok(None) };
        let (dead, heir, reason) = (dead.clone(), heir.clone(), reason.to_owned());
        let levels = levels.to_vec();
        let exit = json(&Exit::sandbox_died())?;
        self.write(move |conn| {
            Box::pin(async move {
                let taken = Taken { dead: &dead, heir: &heir, levels: &levels, reason: &reason, now_ms };
                taken.run(conn, exit).await
            })
        })
        .await
    }

    /// Forgets a dead node with everything on its disks: hibernated sandboxes, snapshots, volumes. Says whether it was
    /// there.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when it lives.
    pub async fn remove_node(&self, node: &NodeId) -> Result<bool, StoreError> {
        let node = node.clone();
        self.write(move |mut conn| {
            Box::pin(async move {
                // Waits for the node if it enters at this moment: then it is alive, and keeps what it has. A node that enters
                // after this waits for the end of it, and is a new one.
                const HOLD: &str = "UPDATE nodes SET is_alive = 0 WHERE id = $1 AND is_alive = 0";
                const FIND: &str = "SELECT id FROM nodes WHERE id = $1";
                const REMOVE: [&str; 5] = [
                    "DELETE FROM sandboxes WHERE node = $1",
                    "DELETE FROM snapshots WHERE node = $1",
                    "DELETE FROM volumes WHERE node = $1",
                    "DELETE FROM builds WHERE node = $1",
                    "DELETE FROM nodes WHERE id = $1",
                ];
                if conn.execute(HOLD, args![node.as_str()]).await? == 0 {
                    let lives = conn.row(FIND, args![node.as_str()]).await?.is_some();
                    return if lives { Err(StoreError::Conflict) } else { Ok(false) };
                }
                for sql in REMOVE {
                    conn.execute(sql, args![node.as_str()]).await?;
                }
                Ok(true)
            })
        })
        .await
    }
}

struct Taken<'a> {
    dead: &'a NodeRecord,
    heir: &'a NodeId,
    levels: &'a [IsolationLevel],
    reason: &'a str,
    now_ms: u64,
}

impl Taken<'_> {
    async fn run(
        &self,
        mut conn: Conn<'_>,
        exit: crate::db::Value,
    ) -> Result<Option<Vec<SandboxId>>, StoreError> {
        // Waits for the transactions that the dead node has open; those that it begins after that are refused.
        const RAISE: &str = "UPDATE nodes SET epoch = epoch + 1, is_alive = 0 \
             WHERE id = $1 AND epoch = $2 AND beats = $3 AND is_alive = 1";
        const FAIL: &str = "UPDATE sandboxes SET node = $2, state = 'failed', reason = $3, paused = NULL, \
             generation = generation + 1 WHERE node = $1 AND (state = 'running' \
             OR state IN ('pausing', 'paused', 'resuming') AND (paused IS NULL OR paused = 'frozen')) RETURNING id";
        const GO: &str = "UPDATE sandboxes SET node = $2, state = 'deleting', generation = generation + 1 \
             WHERE node = $1 AND state IN ('creating', 'deleting') RETURNING id";
        const KEEP: &str = "UPDATE sandboxes SET node = $2 WHERE node = $1 AND state = 'failed' RETURNING id";
        const LOSE: &str = "UPDATE execs SET state = 'lost', exit = $2, ended_ms = $3 \
             WHERE state IN ('starting', 'running') AND sandbox_id = $1";
        const BUILDS: &str =
            "UPDATE builds SET node = $2 WHERE node = $1 AND state IN ('waiting', 'queued', 'running')";
        let (dead, heir) = (self.dead.id.as_str(), self.heir.as_str());
        if conn.execute(RAISE, args![dead, self.dead.epoch, self.dead.beats]).await? == 0 {
            return Ok(None);
        }
        self.bring_back(&mut conn, &exit).await?;
        let kept = conn.rows(KEEP, args![dead, heir]).await?;
        let failed = conn.rows(FAIL, args![dead, heir, self.reason]).await?;
        let going = conn.rows(GO, args![dead, heir]).await?;
        conn.execute(BUILDS, args![dead, heir]).await?;
        let mut moved = Vec::new();
        for row in kept.iter().chain(&failed).chain(&going) {
            moved.push(row.decode("sandboxes", "id", |row| row.parse::<SandboxId>("id"))?);
        }
        for id in &moved {
            let values = vec![id.as_str().into(), exit.clone(), self.now_ms.into()];
            conn.execute(LOSE, values).await?;
        }
        Ok(Some(moved))
    }

    /// Brings running and frozen sandboxes that have a copy of some moment to this node, put to disk as of that moment.
    async fn bring_back(&self, conn: &mut Conn<'_>, exit: &crate::db::Value) -> Result<(), StoreError> {
        const FIND: &str = "SELECT sandboxes.id AS id, sandboxes.state AS state, sandboxes.spec AS spec, \
             sandboxes.spec_version AS spec_version, kept.taken_ms AS taken_ms FROM sandboxes \
             JOIN kept ON kept.sandbox_id = sandboxes.id WHERE sandboxes.node = $1 AND kept.copy IS NOT NULL \
             AND kept.taken_ms IS NOT NULL AND (sandboxes.state = 'running' \
             OR sandboxes.state IN ('pausing', 'paused', 'resuming') \
             AND (sandboxes.paused IS NULL OR sandboxes.paused = 'frozen'))";
        const PUT: &str = "UPDATE sandboxes SET node = $2, state = 'paused', reason = $3, paused = 'filesystem', \
             paused_ms = $4, kept_ms = $4, checkpoint_ms = $5, restored_ms = $4, generation = generation + 1 \
             WHERE id = $1";
        const LOSE: &str = "UPDATE execs SET state = 'lost', exit = $2, ended_ms = $3 WHERE sandbox_id = $1 \
             AND state <> 'lost' AND (state IN ('starting', 'running') OR created_ms >= $4)";
        for row in conn.rows(FIND, args![self.dead.id.as_str()]).await? {
            // A sandbox whose spec cannot be read fails as all others do.
            let Ok(spec) = row.spec::<SandboxSpec>(sandboxes::SPEC_VERSION) else { continue };
            if !self.levels.contains(&spec.isolation) {
                continue;
            }
            let of =
                |row: &Row| Ok((row.parse::<SandboxId>("id")?, row.sandbox_state()?, row.uint("taken_ms")?));
            let (id, state, taken_ms) = row.decode("sandboxes", "id", of)?;
            let put = args![id.as_str(), self.heir.as_str(), self.reason, self.now_ms, taken_ms];
            conn.execute(PUT, put).await?;
            let lose = vec![id.as_str().into(), exit.clone(), self.now_ms.into(), taken_ms.into()];
            conn.execute(LOSE, lose).await?;
            crate::arrivals::arrive(conn, &id, state == SandboxState::Running).await?;
        }
        Ok(())
    }
}

fn read(row: &Row) -> Result<NodeRecord, BadColumn> {
    Ok(NodeRecord {
        id: row.parse("id")?,
        name: row.text("name")?,
        address: row.text("address")?,
        version: row.text("version")?,
        facts: row.json("facts")?,
        // Before its first beat it has said nothing.
        load: row.json("load").unwrap_or_default(),
        epoch: row.int("epoch")?,
        beats: row.int("beats")?,
        lease_ms: row.uint("lease_ms")?,
        is_alive: row.int("is_alive")? != 0,
        is_draining: row.int("is_draining")? != 0,
        created_ms: row.uint("created_ms")?,
        seen_ms: row.uint("seen_ms")?,
    })
}
