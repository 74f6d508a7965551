//! The copies of sandboxes that are in the object store, and sandboxes that go from node to node.
//!
//! An *upload* has a name of its own, which is written down before its first object is sent ([`Store::begin_upload`]).
//! A copy is whole when its upload is recorded as the copy ([`Store::finish_upload`]). An object is in use as long as
//! it is part of the upload under way, or the copy refers to it. An upload that comes to nothing is given up
//! ([`Store::give_upload_up`]), by the next start of its node at the latest. The garbage collector lists the objects first and
//! reads the row afterwards, so it needs no clock and no lock.
//!
//! A sandbox goes to another node in one statement, which succeeds only if the sandbox is put to disk and copied whole.
//!
//! No machine goes on twice from one moment. Before one goes on that is copied with its memory, its node writes down that this
//! memory is used ([`Store::mark_memory_used`]), if the sandbox is still its own. Until it is recorded that the machine runs, or is put
//! to disk again, or until a newer copy is whole, the copy counts for its disk alone.

use atoll_core::id::{NodeId, SandboxId};
use atoll_core::node::NodeFacts;
use atoll_core::sandbox::PauseMode;
use atoll_core::spec::{IsolationLevel, SandboxSpec};

use crate::Store;
use crate::db::{Conn, Row, args};
use crate::error::StoreError;
use crate::listed::{Table, Which};
use crate::record::SandboxRecord;
use crate::sandboxes::clean;

const ARRIVALS: Table = Table::new("arrivals", "sandbox_id");
const STAYING: Table = Table::new("kept", "id");
/// Sandboxes that are taken over, or up, in one go.
const BATCH_MAX_COUNT: i64 = 200;
/// How many sandboxes of a node are listed, at most, with the reason why they stay.
const STAYING_MAX_COUNT: i64 = 100;

/// A copy that is whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyRecord {
    /// The upload that made it.
    pub upload: String,
    /// Digest of its index.
    pub digest: String,
    /// What the sandbox's disk and logs have, bytes.
    pub bytes: u64,
    /// When it was whole.
    pub copied_ms: u64,
}

/// What is known of a sandbox's objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptRecord {
    /// The upload under way.
    pub upload: Option<String>,
    /// The copy that is whole.
    pub copy: Option<CopyRecord>,
}

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
    fn node_text(&self) -> String {
        self.node().map_or_else(String::new, ToString::to_string)
    }

    /// The directory in which the nodes of this database keep sandboxes: `fresh`, unless there is one.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn kept_place(&self, fresh: &str) -> Result<String, StoreError> {
        const PUT: &str = "INSERT INTO kept_place (one, place) VALUES (1, $1) ON CONFLICT (one) DO NOTHING";
        const GET: &str = "SELECT place FROM kept_place";
        let values = args![fresh];
        self.write(move |mut conn| {
            Box::pin(async move {
                conn.execute(PUT, values).await?;
                let row = conn.row(GET, Vec::new()).await?.ok_or(StoreError::NotFound)?;
                row.decode("kept_place", "place", |row| row.text("place"))
            })
        })
        .await
    }

    /// Writes down that an upload begins, in the place of one that was under way; gives what is known of the sandbox's
    /// objects.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when the sandbox is not this node's.
    pub async fn begin_upload(&self, id: &SandboxId, upload: &str) -> Result<KeptRecord, StoreError> {
        const SQL: &str = "INSERT INTO kept (sandbox_id, upload, bytes) \
             SELECT id, $2, 0 FROM sandboxes WHERE id = $1 AND COALESCE(node, '') = $3 \
             ON CONFLICT (sandbox_id) DO UPDATE SET upload = EXCLUDED.upload RETURNING *";
        let values = args![id.as_str(), upload, self.node_text()];
        self.write_one(move |mut conn| {
            Box::pin(async move { read(&conn.row(SQL, values).await?.ok_or(StoreError::NotFound)?) })
        })
        .await
    }

    /// Writes down that an upload is given up: what was sent for it belongs to nothing. Nothing changes when another one has
    /// begun since, or this one has become the copy.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn give_upload_up(&self, id: &SandboxId, upload: &str) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE kept SET upload = NULL WHERE sandbox_id = $1 AND upload = $2";
        let values = args![id.as_str(), upload];
        self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await.map(drop) }))
            .await
    }

    /// The same for every upload of this node's sandboxes: a node that starts goes on with none.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn give_uploads_up(&self) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE kept SET upload = NULL WHERE upload IS NOT NULL AND sandbox_id IN \
             (SELECT id FROM sandboxes WHERE COALESCE(node, '') = $1)";
        let values = args![self.node_text()];
        self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await.map(drop) }))
            .await
    }

    /// Records that an upload is whole and that the sandbox can be woken from it, which is `asleep` as it was when the
    /// upload began: put to disk by the same pause of the same boot. A sandbox that was woken with its memory is in the
    /// same boot, but not in the same pause.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when another upload has begun, or the sandbox was woken or is not this node's any more.
    pub async fn finish_upload(&self, asleep: &SandboxRecord, copy: &CopyRecord) -> Result<(), StoreError> {
        const COPY: &str = "UPDATE kept SET upload = NULL, copy = $2, digest = $3, bytes = $4, copied_ms = $5, \
             stays = NULL, taken_ms = CASE WHEN taken_ms IS NOT NULL THEN $5 END \
             WHERE sandbox_id = $1 AND upload = $2";
        const SAY: &str = "UPDATE sandboxes SET kept_ms = $2, memory_used = 0 WHERE id = $1 AND state = 'paused' \
             AND paused IN ('filesystem', 'memory') AND boot_id = $3 AND COALESCE(node, '') = $4 \
             AND COALESCE(paused_ms, 0) = $5";
        let id = asleep.id.as_str();
        let one = args![id, copy.upload.as_str(), copy.digest.as_str(), copy.bytes, copy.copied_ms];
        let paused_ms = asleep.paused_ms.unwrap_or_default();
        let two = args![id, copy.copied_ms, asleep.boot_id.as_str(), self.node_text(), paused_ms];
        self.write(move |mut conn| {
            Box::pin(async move {
                if conn.execute(COPY, one).await? == 0 || conn.execute(SAY, two).await? == 0 {
                    return Err(StoreError::Conflict);
                }
                Ok(())
            })
        })
        .await
    }

    /// Records that an upload is whole: the copy of a running sandbox, in the boot `boot_id`, as it was at `taken_ms`.
    /// When its node dies, the sandbox is brought back from this copy.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when another upload has begun, or the sandbox does not run in that boot here.
    pub async fn finish_checkpoint(
        &self,
        id: &SandboxId,
        copy: &CopyRecord,
        taken_ms: u64,
        boot_id: &str,
    ) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE kept SET upload = NULL, copy = $2, digest = $3, bytes = $4, copied_ms = $5, \
             taken_ms = $6 WHERE sandbox_id = $1 AND upload = $2 AND EXISTS (SELECT 1 FROM sandboxes \
             WHERE sandboxes.id = $1 AND state = 'running' AND boot_id = $7 AND COALESCE(node, '') = $8)";
        let values = args![
            id.as_str(),
            copy.upload.as_str(),
            copy.digest.as_str(),
            copy.bytes,
            copy.copied_ms,
            taken_ms,
            boot_id,
            self.node_text(),
        ];
        self.write_one(move |mut conn| {
            Box::pin(async move {
                if conn.execute(SQL, values).await? == 0 {
                    return Err(StoreError::Conflict);
                }
                Ok(())
            })
        })
        .await
    }

    /// Writes down that the memory with which a sandbox of this node is put to disk may go on from now on: its copy, if there
    /// is one, counts for its disk alone. The caller lets the machine go on after that, and not without.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when it is not put to disk with its memory, or is not this node's.
    pub async fn mark_memory_used(&self, id: &SandboxId) -> Result<(), StoreError> {
        self.set_memory_used(id, 1).await
    }

    /// Takes [`Self::mark_memory_used`] back: the caller knows that nothing went on.
    ///
    /// # Errors
    /// As [`Self::mark_memory_used`].
    pub async fn mark_memory_unused(&self, id: &SandboxId) -> Result<(), StoreError> {
        self.set_memory_used(id, 0).await
    }

    async fn set_memory_used(&self, id: &SandboxId, used: u32) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE sandboxes SET memory_used = $2 WHERE id = $1 AND COALESCE(node, '') = $3 \
             AND state = 'paused' AND paused = 'memory'";
        let values = args![id.as_str(), used, self.node_text()];
        self.write_one(move |mut conn| {
            Box::pin(async move {
                if conn.execute(SQL, values).await? == 0 { Err(StoreError::Conflict) } else { Ok(()) }
            })
        })
        .await
    }

    /// Records that only the disk counts from now on of a sandbox that is in the object store, and why; gives the new
    /// generation. The sandbox stays kept.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when it is not put to disk and kept, or is not this node's.
    pub async fn give_memory_up(&self, id: &SandboxId, reason: Option<&str>) -> Result<i64, StoreError> {
        const SQL: &str = "UPDATE sandboxes SET paused = 'filesystem', reason = $2, memory_used = 0, \
             generation = generation + 1 WHERE id = $1 AND COALESCE(node, '') = $3 AND state = 'paused' \
             AND paused IN ('filesystem', 'memory') AND kept_ms IS NOT NULL RETURNING generation";
        let values = args![id.as_str(), reason.map(clean).as_deref(), self.node_text()];
        self.write_one(move |mut conn| {
            Box::pin(async move {
                let row = conn.row(SQL, values).await?.ok_or(StoreError::Conflict)?;
                row.decode("sandboxes", "generation", |row| row.int("generation"))
            })
        })
        .await
    }

    /// Says why a sandbox stays on its node, or that it does not.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn set_stays(&self, id: &SandboxId, reason: Option<&str>) -> Result<(), StoreError> {
        const SAY: &str = "INSERT INTO kept (sandbox_id, bytes, stays) \
             SELECT id, 0, $2 FROM sandboxes WHERE id = $1 AND COALESCE(node, '') = $3 \
             ON CONFLICT (sandbox_id) DO UPDATE SET stays = EXCLUDED.stays";
        let values = args![id.as_str(), reason, self.node_text()];
        self.write_one(move |mut conn| Box::pin(async move { conn.execute(SAY, values).await.map(drop) }))
            .await
    }

    /// What is known of a sandbox's objects; nothing when it is gone.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`].
    pub async fn kept(&self, id: &SandboxId) -> Result<KeptRecord, StoreError> {
        const SQL: &str = "SELECT * FROM kept WHERE sandbox_id = $1";
        let values = args![id.as_str()];
        self.read(move |mut conn| {
            Box::pin(async move {
                conn.row(SQL, values).await?.map_or_else(|| Ok(KeptRecord::default()), |row| read(&row))
            })
        })
        .await
    }

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
                let spec = row.spec::<SandboxSpec>(crate::sandboxes::SPEC_VERSION);
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

impl SandboxRecord {
    /// Whether everything that is needed to wake it is in the object store.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.kept_ms.is_some()
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

fn read(row: &Row) -> Result<KeptRecord, StoreError> {
    row.decode("kept", "sandbox_id", |row| {
        let copy = match (row.text_opt("copy")?, row.text_opt("digest")?) {
            (Some(upload), Some(digest)) => Some(CopyRecord {
                upload,
                digest,
                bytes: row.uint("bytes")?,
                copied_ms: row.uint("copied_ms")?,
            }),
            _ => None,
        };
        Ok(KeptRecord { upload: row.text_opt("upload")?, copy })
    })
}
