//! The form of a snapshot's row: how a record is put into one, with the checkpoint number that its sandbox gives it, and how
//! it is read from one.

use atoll_core::id::{NodeId, ProjectId, SandboxId};
use atoll_core::snapshot::{CopyMethod, Purpose, SnapshotState};

use crate::db::{BadColumn, Conn, Row, args, json};
use crate::error::StoreError;
use crate::record::SnapshotRecord;

/// Version of the JSON form of a manifest.
const MANIFEST_VERSION: i64 = 1;
/// The holder of a checkpoint that was taken automatically, as stored in `held_by`.
const AUTO: &str = "auto";

pub(super) async fn insert(
    mut conn: Conn<'_>,
    snapshot: SnapshotRecord,
    node: Option<NodeId>,
) -> Result<Purpose, StoreError> {
    const INSERT: &str = "INSERT INTO snapshots (id, state, sandbox_id, checkpoint, held_by, comment, manifest, \
         manifest_version, digest, stored_bytes, paused_us, method, created_ms, created_by, node, project) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)";
    let purpose = match (snapshot.purpose, &snapshot.sandbox) {
        (Purpose::Checkpoint(_), Some(sandbox)) => Purpose::Checkpoint(number(&mut conn, sandbox).await?),
        (Purpose::AutoCheckpoint(_), Some(sandbox)) => {
            Purpose::AutoCheckpoint(number(&mut conn, sandbox).await?)
        }
        (Purpose::Checkpoint(_) | Purpose::AutoCheckpoint(_), None) => return Err(StoreError::NotFound),
        (other, _) => other,
    };
    let held_by = match &purpose {
        Purpose::Snapshot | Purpose::Checkpoint(_) => None,
        Purpose::AutoCheckpoint(_) => Some(AUTO),
        Purpose::Held(by) => Some(by.as_str()),
    };
    let checkpoint = purpose.checkpoint();
    let values = args![
        snapshot.id.as_str(),
        snapshot.state.as_str(),
        snapshot.sandbox.as_ref().map(|sandbox| sandbox.as_str()),
        checkpoint,
        held_by,
        snapshot.comment.as_deref(),
        json(&snapshot.manifest)?,
        MANIFEST_VERSION,
        snapshot.digest.as_deref(),
        snapshot.stored_bytes,
        snapshot.paused_us,
        snapshot.method.map(CopyMethod::as_str),
        snapshot.created_ms,
        snapshot.created_by.as_ref().map(|key| key.as_str()),
        node.as_ref().map(NodeId::as_str),
        snapshot.project.as_ref().map(ProjectId::as_str),
    ];
    conn.execute(INSERT, values).await?;
    if snapshot.private {
        const PRIVATE: &str = "INSERT INTO private_snapshots (snapshot_id) VALUES ($1)";
        conn.execute(PRIVATE, args![snapshot.id.as_str()]).await?;
    }
    Ok(purpose)
}

/// The next checkpoint number of a sandbox.
async fn number(conn: &mut Conn<'_>, sandbox: &SandboxId) -> Result<u32, StoreError> {
    const NUMBER: &str = "INSERT INTO checkpoint_numbers (sandbox_id, last_number) VALUES ($1, 1) ON CONFLICT \
         (sandbox_id) DO UPDATE SET last_number = checkpoint_numbers.last_number + 1 \
         RETURNING sandbox_id, last_number";
    let there = conn.row("SELECT id FROM sandboxes WHERE id = $1", args![sandbox.as_str()]).await?;
    there.ok_or(StoreError::NotFound)?;
    let row = conn.row(NUMBER, args![sandbox.as_str()]).await?.ok_or(StoreError::Conflict)?;
    row.decode("checkpoint_numbers", "sandbox_id", |row| {
        u32::try_from(row.int("last_number")?).or(Err("last_number"))
    })
}

pub(super) fn read(row: &Row) -> Result<SnapshotRecord, BadColumn> {
    if row.int("manifest_version")? != MANIFEST_VERSION {
        return Err("manifest_version");
    }
    let purpose = match (row.uint_opt("checkpoint")?, row.text_opt("held_by")?) {
        (Some(number), held) => {
            let number = u32::try_from(number).or(Err("checkpoint"))?;
            if held.is_some() { Purpose::AutoCheckpoint(number) } else { Purpose::Checkpoint(number) }
        }
        (None, Some(by)) => Purpose::Held(by),
        (None, None) => Purpose::Snapshot,
    };
    let method = row.text_opt("method")?;
    Ok(SnapshotRecord {
        id: row.parse("id")?,
        state: SnapshotState::parse(&row.text("state")?).ok_or("state")?,
        sandbox: row.parse_opt("sandbox_id")?,
        purpose,
        comment: row.text_opt("comment")?,
        manifest: row.json("manifest")?,
        digest: row.text_opt("digest")?,
        stored_bytes: row.uint("stored_bytes")?,
        paused_us: row.uint_opt("paused_us")?,
        method: method.map(|text| CopyMethod::parse(&text).ok_or("method")).transpose()?,
        created_ms: row.uint("created_ms")?,
        created_by: row.parse_opt("created_by")?,
        project: row.parse_opt("project")?,
        private: row.int("private")? != 0,
        tags: Vec::new(),
    })
}
