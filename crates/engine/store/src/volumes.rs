//! Volumes in the database.

use atoll_core::id::{NodeId, ProjectId, VolumeId};
use atoll_core::project::{kept_name, plain_name};
use atoll_core::volume::VolumeState;

use crate::Store;
use crate::db::{BadColumn, Row, args};
use crate::error::StoreError;
use crate::listed::{Table, Which};
use crate::record::VolumeRecord;

const TABLE: Table = Table::new("volumes", "id").named("name").of("project");

impl Store {
    /// Stores a new volume.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`].
    pub async fn insert_volume(&self, volume: &VolumeRecord) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO volumes (id, name, state, size_bytes, source, read_only, owner, \
             created_ms, node, project) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT (name) DO NOTHING";
        let values = args![
            volume.id.as_str(),
            kept_name(volume.project.as_ref(), &volume.name),
            volume.state.as_str(),
            volume.size_bytes,
            volume.source.as_deref(),
            u32::from(volume.read_only),
            volume.owner.as_ref().map(|key| key.as_str()),
            volume.created_ms,
            self.node().map(NodeId::as_str),
            volume.project.as_ref().map(ProjectId::as_str),
        ];
        let there =
            self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await })).await?;
        if there == 0 { Err(StoreError::NameTaken) } else { Ok(()) }
    }

    /// Moves a volume to another state. Says whether it was there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn set_volume_state(&self, id: &VolumeId, to: VolumeState) -> Result<bool, StoreError> {
        const SQL: &str = "UPDATE volumes SET state = $2 WHERE id = $1";
        let values = args![id.as_str(), to.as_str()];
        self.write_one(move |mut conn| Box::pin(async move { Ok(conn.execute(SQL, values).await? > 0) }))
            .await
    }

    /// Every volume, by name.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn list_volumes(&self) -> Result<Vec<VolumeRecord>, StoreError> {
        const SQL: &str = "SELECT * FROM volumes ORDER BY name";
        self.list(&TABLE, Which::All, SQL, Vec::new(), read).await
    }

    /// Those on this node; all where there are no nodes.
    ///
    /// # Errors
    /// As [`Self::list_volumes`].
    pub async fn own_volumes(&self) -> Result<Vec<VolumeRecord>, StoreError> {
        let Some(node) = self.node() else { return self.list_volumes().await };
        const SQL: &str = "SELECT * FROM volumes WHERE node = $1 ORDER BY name";
        self.list(&TABLE, Which::Some, SQL, args![node.as_str()], read).await
    }

    /// The ids of all volumes, on any node, also those of unreadable rows: what lies on the host for them must not be
    /// taken for leftovers.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when an id cannot be read: then it is not known what is left over.
    pub async fn volume_ids(&self) -> Result<Vec<VolumeId>, StoreError> {
        self.ids(&TABLE, "SELECT id, created_ms FROM volumes", Vec::new()).await
    }

    /// Forgets a volume. Says whether it was there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn delete_volume(&self, id: &VolumeId) -> Result<bool, StoreError> {
        const SQL: &str = "DELETE FROM volumes WHERE id = $1";
        let values = args![id.as_str()];
        self.write_one(move |mut conn| Box::pin(async move { Ok(conn.execute(SQL, values).await? > 0) }))
            .await
    }
}

fn read(row: &Row) -> Result<VolumeRecord, BadColumn> {
    Ok(VolumeRecord {
        id: row.parse("id")?,
        name: plain_name(&row.text("name")?).to_owned(),
        project: row.parse_opt("project")?,
        state: VolumeState::parse(&row.text("state")?).ok_or("state")?,
        size_bytes: row.uint("size_bytes")?,
        source: row.text_opt("source")?,
        read_only: row.int("read_only")? != 0,
        owner: row.parse_opt("owner")?,
        created_ms: row.uint("created_ms")?,
    })
}
