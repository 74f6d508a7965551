//! Sandboxes that go from node to node, and why some stay.
//!
//! A sandbox goes to another node in one statement, which succeeds only if the sandbox is put to disk and copied whole
//! (`kept`). The same transaction writes down that it arrives, which its new node reads, takes it up, and then forgets.

use atoll_core::id::{NodeId, SandboxId};
use atoll_core::node::NodeFacts;
use atoll_core::sandbox::PauseMode;
use atoll_core::spec::{IsolationLevel, SandboxSpec};

use crate::Store;
use crate::db::{Conn, Row, args};
use crate::error::StoreError;
use crate::listed::{Table, Which};
use crate::sandboxes::{SPEC_VERSION, clean};

const ARRIVALS: Table = Table::new("arrivals", "sandbox_id");
const STAYING: Table = Table::new("kept", "id");
/// Sandboxes that are taken over, or up, in one go.
const BATCH_MAX_COUNT: i64 = 200;
/// How many sandboxes of a node are listed, at most, with the reason why they stay.
const STAYING_MAX_COUNT: i64 = 100;

/// A sandbox that has come to this node from another one, or that this node is to wake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// Which.
    pub sandbox: SandboxId,
    /// It ran before.
    pub wake: bool,
}

/// A sandbox that stays on a node that is drained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staying {
    /// Which.
    pub sandbox: SandboxId,
    /// Its name.
    pub name: Option<String>,
    /// Why.
    pub reason: String,
}

/// What a node has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Left {
    /// Sandboxes.
    pub sandboxes: u64,
    /// Those for which a reason to stay is recorded.
    pub staying: u64,
    /// The first of these.
    pub items: Vec<Staying>,
}

impl Store {
    /// Gives a sandbox of this generation, which is put to disk and copied whole, to another node, which lives. Says
    /// whether the sandbox belongs to that node now: not if it may have gone on from the copied memory.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]: then it may belong to that node, or become so. [`Self::hold`] decides.
    pub async fn hand_over(
        &self,
        id: &SandboxId,
        generation: i64,
        to: &NodeId,
        wake: bool,
    ) -> Result<bool, StoreError> {
        const GIVE: &str = "UPDATE sandboxes SET node = $2, generation = generation + 1 WHERE id = $1 \
             AND COALESCE(node, '') = $3 AND generation = $4 AND state = 'paused' \
             AND paused IN ('filesystem', 'memory') AND kept_ms IS NOT NULL AND memory_used = 0 \
             AND EXISTS (SELECT 1 FROM nodes WHERE nodes.id = $2 AND is_alive = 1)";
        let give = args![id.as_str(), to.as_str(), self.node_text(), generation];
        let id = id.clone();
        self.write(move |mut conn| {
            Box::pin(async move {
                if conn.execute(GIVE, give).await? == 0 {
                    return Ok(false);
                }
                arrive(&mut conn, &id, wake).await?;
                Ok(true)
            })
        })
        .await
    }

    /// Keeps a sandbox of this generation on this node: a [`Self::hand_over`] that was begun before fails from now on.
    /// Gives the new generation; `None` when the sandbox was given away.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn hold(&self, id: &SandboxId, generation: i64) -> Result<Option<i64>, StoreError> {
        const SQL: &str = "UPDATE sandboxes SET generation = generation + 1 \
             WHERE id = $1 AND generation = $2 AND COALESCE(node, '') = $3 RETURNING generation";
        let values = args![id.as_str(), generation, self.node_text()];
        self.write_one(move |mut conn| {
            Box::pin(async move {
                let row = conn.row(SQL, values).await?;
                row.map(|row| row.decode("sandboxes", "generation", |row| row.int("generation"))).transpose()
            })
        })
        .await
    }

    /// Moves to this node the sandboxes of dead nodes that are put to disk and copied whole, and have one of these
    /// isolation levels. Those whose memory is on disk, too, it leaves to other nodes if the dead node ran machines as
    /// `theirs` says ([`NodeFacts::machines`]): these can use the memory. Memory that may have gone on is used nowhere: such a
    /// sandbox is put to disk without it from then on, and `reason` is recorded. Gives how many it moved.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn take_kept(
        &self,
        levels: &[IsolationLevel],
        theirs: &[u64],
        reason: &str,
    ) -> Result<usize, StoreError> {
        const FIND: &str = "SELECT sandboxes.id AS id, sandboxes.node AS node, sandboxes.spec AS spec, \
             sandboxes.spec_version AS spec_version, sandboxes.paused AS paused, \
             sandboxes.memory_used AS memory_used, nodes.facts AS facts \
             FROM sandboxes JOIN nodes ON nodes.id = sandboxes.node WHERE nodes.is_alive = 0 AND sandboxes.state = 'paused' \
             AND sandboxes.paused IN ('filesystem', 'memory') AND sandboxes.kept_ms IS NOT NULL AND sandboxes.id > $2 ORDER BY sandboxes.id LIMIT $1";
        // Waits for the node if it enters at this moment: then it is alive, and keeps its sandboxes.
        const HOLD: &str = "UPDATE nodes SET is_alive = 0 WHERE id = $1 AND is_alive = 0";
        const TAKE: &str = "UPDATE sandboxes SET node = $3, generation = generation + 1, \
             paused = CASE WHEN memory_used = 1 THEN 'filesystem' ELSE paused END, \
             reason = CASE WHEN memory_used = 1 THEN $4 ELSE reason END, memory_used = 0 \
             WHERE id = $1 AND node = $2 AND state = 'paused' AND paused IN ('filesystem', 'memory') \
             AND kept_ms IS NOT NULL";
        let Some(heir) = self.node().cloned() else { return Ok(0) };
        let mut wanted: Vec<(SandboxId, NodeId)> = Vec::new();
        let (mut after, mut more) = (String::new(), true);
        // Sandboxes that cannot run here fill no batch: the search goes on behind them.
        while more && wanted.is_empty() {
            let values = args![BATCH_MAX_COUNT, after.as_str()];
            let found =
                self.read(move |mut conn| Box::pin(async move { conn.rows(FIND, values).await })).await?;
            more = i64::try_from(found.len()).is_ok_and(|count| count == BATCH_MAX_COUNT);
            for row in &found {
                let both = |row: &Row| Ok((row.parse("id")?, row.parse("node")?));
                let (id, node): (SandboxId, NodeId) = row.decode("sandboxes", "id", both)?;
                id.as_str().clone_into(&mut after);
                // A sandbox whose spec cannot be read stays where it is.
                let spec = row.spec::<SandboxSpec>(SPEC_VERSION);
                let fits = spec.is_ok_and(|spec| levels.contains(&spec.isolation));
                if fits && !is_for_others(row, theirs) {
                    wanted.push((id, node));
                }
            }
        }
        if wanted.is_empty() {
            return Ok(0);
        }
        let reason = clean(reason);
        self.write(move |mut conn| {
            Box::pin(async move {
                let mut taken = 0;
                for (id, node) in wanted {
                    if conn.execute(HOLD, args![node.as_str()]).await? == 0 {
                        continue;
                    }
                    let take = args![id.as_str(), node.as_str(), heir.as_str(), reason.as_str()];
                    if conn.execute(TAKE, take).await? > 0 {
                        arrive(&mut conn, &id, false).await?;
                        taken += 1;
                    }
                }
                Ok(taken)
            })
        })
        .await
    }

    /// Sandboxes that have come to this node and that it has not taken up yet, by id: the first of them behind `after`.
    /// An empty answer is the end.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn arrivals(&self, after: Option<&SandboxId>) -> Result<Vec<Arrival>, StoreError> {
        const SQL: &str = "SELECT arrivals.sandbox_id AS sandbox_id, arrivals.wake AS wake FROM arrivals \
             JOIN sandboxes ON sandboxes.id = arrivals.sandbox_id \
             WHERE COALESCE(sandboxes.node, '') = $1 AND arrivals.sandbox_id > $3 ORDER BY arrivals.sandbox_id LIMIT $2";
        let after = after.map_or("", SandboxId::as_str);
        let values = args![self.node_text(), BATCH_MAX_COUNT, after];
        let one = |row: &Row| Ok(Arrival { sandbox: row.parse("sandbox_id")?, wake: row.int("wake")? != 0 });
        self.list(&ARRIVALS, Which::Some, SQL, values, one).await
    }

    /// Records that a sandbox of this node is put to disk for a while only: the node that has it afterwards, this one
    /// or the one that it is given to, is to wake it.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when it is not this node's.
    pub async fn expect_wake(&self, id: &SandboxId) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO arrivals (sandbox_id, wake) \
             SELECT id, 1 FROM sandboxes WHERE id = $1 AND COALESCE(node, '') = $2 \
             ON CONFLICT (sandbox_id) DO UPDATE SET wake = 1";
        let values = args![id.as_str(), self.node_text()];
        self.write_one(move |mut conn| {
            Box::pin(async move {
                if conn.execute(SQL, values).await? == 0 { Err(StoreError::NotFound) } else { Ok(()) }
            })
        })
        .await
    }

    /// Records that this node has taken up a sandbox of its own, and woken it if that was asked for.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn arrived(&self, id: &SandboxId) -> Result<(), StoreError> {
        const SQL: &str = "DELETE FROM arrivals WHERE sandbox_id = $1 AND EXISTS \
             (SELECT 1 FROM sandboxes WHERE sandboxes.id = $1 AND COALESCE(node, '') = $2)";
        let values = args![id.as_str(), self.node_text()];
        self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await.map(drop) }))
            .await
    }

    /// How many sandboxes a node has according to the database, and why some of them stay.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`].
    pub async fn left_on(&self, node: &NodeId) -> Result<Left, StoreError> {
        const COUNT: &str = "SELECT COUNT(*) AS sandboxes, COUNT(kept.stays) AS staying FROM sandboxes \
             LEFT JOIN kept ON kept.sandbox_id = sandboxes.id WHERE sandboxes.node = $1";
        const STAY: &str = "SELECT sandboxes.id AS id, sandboxes.name AS name, kept.stays AS stays FROM kept \
             JOIN sandboxes ON sandboxes.id = kept.sandbox_id WHERE sandboxes.node = $1 AND kept.stays IS NOT NULL \
             ORDER BY sandboxes.id LIMIT $2";
        let (one, two) = (args![node.as_str()], args![node.as_str(), STAYING_MAX_COUNT]);
        let (counted, rows) = self
            .read(move |mut conn| {
                Box::pin(async move { Ok((conn.row(COUNT, one).await?, conn.rows(STAY, two).await?)) })
            })
            .await?;
        let counts = |row: Row| {
            row.decode("sandboxes", "sandboxes", |row| Ok((row.uint("sandboxes")?, row.uint("staying")?)))
        };
        let (sandboxes, staying) = counted.map_or(Ok((0, 0)), counts)?;
        let one = |row: &Row| {
            let (sandbox, name) = (row.parse("id")?, row.text_opt("name")?);
            Ok(Staying { sandbox, name, reason: row.text("stays")? })
        };
        Ok(Left { sandboxes, staying, items: self.readable(&STAYING, Which::Some, &rows, one) })
    }
}

pub(crate) async fn arrive(conn: &mut Conn<'_>, id: &SandboxId, wake: bool) -> Result<(), StoreError> {
    // A sandbox that was on its way to a node that died, and was to be woken there, is still to be woken.
    const SQL: &str = "INSERT INTO arrivals (sandbox_id, wake) VALUES ($1, $2) ON CONFLICT (sandbox_id) \
         DO UPDATE SET wake = CASE WHEN arrivals.wake = 1 THEN 1 ELSE EXCLUDED.wake END";
    // Where it comes from nothing becomes its copy any more.
    const LEFT: &str = "UPDATE kept SET stays = NULL, upload = NULL WHERE sandbox_id = $1";
    conn.execute(SQL, args![id.as_str(), u32::from(wake)]).await?;
    conn.execute(LEFT, args![id.as_str()]).await.map(drop)
}

/// Whether a sandbox has memory on disk that nodes can use which run machines so, and this one cannot.
fn is_for_others(row: &Row, theirs: &[u64]) -> bool {
    let asleep = row.text("paused").is_ok_and(|mode| mode == PauseMode::Memory.as_str())
        && row.int("memory_used").is_ok_and(|used| used == 0);
    let ran_on = || row.json::<NodeFacts>("facts").ok()?.machines;
    asleep && ran_on().is_some_and(|mark| theirs.contains(&mark))
}
