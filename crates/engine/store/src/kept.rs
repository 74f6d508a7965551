//! The copies of sandboxes that are in the object store. How sandboxes go from node to node: `arrivals`.
//!
//! An *upload* has a name of its own, which is written down before its first object is sent ([`Store::begin_upload`]).
//! A copy is whole when its upload is recorded as the copy ([`Store::finish_upload`]). An object is in use as long as
//! it is part of the upload under way, or the copy refers to it. An upload that comes to nothing is given up
//! ([`Store::give_upload_up`]), by the next start of its node at the latest. The garbage collector lists the objects first and
//! reads the row afterwards, so it needs no clock and no lock.
//!
//! No machine goes on twice from one moment. Before one goes on that is copied with its memory, its node writes down that this
//! memory is used ([`Store::mark_memory_used`]), if the sandbox is still its own. Until it is recorded that the machine runs, or is put
//! to disk again, or until a newer copy is whole, the copy counts for its disk alone.

use atoll_core::id::SandboxId;

use crate::Store;
use crate::db::{Row, args};
use crate::error::StoreError;
use crate::record::SandboxRecord;
use crate::sandboxes::clean;

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

impl Store {
    /// This node's id; empty on SQLite, which has one node.
    pub(crate) fn node_text(&self) -> String {
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
}

impl SandboxRecord {
    /// Whether everything that is needed to wake it is in the object store.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.kept_ms.is_some()
    }
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
