//! Images, and disks of templates, that every node can have, because they are in the object store.
//!
//! These rows are the truth: every node can have an image as long as its row is there. An object is in use when the
//! layer's row names its upload, and a layer's row cannot go while an image refers to it. The objects that a node
//! sends bear the upload name that the node took at its start ([`Store::begin_image_uploads`]). So the garbage
//! collector lists the objects first and reads the rows afterwards, and needs no clock.

use std::collections::{BTreeMap, BTreeSet};

use atoll_core::id::SnapshotId;
use sqlx::AssertSqlSafe;

use crate::Store;
use crate::db::{Conn, Row, Value, args};
use crate::error::StoreError;
use crate::sql::any_of;

/// An image that every node can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedImage {
    /// Its digest.
    pub digest: String,
    /// What it consists of. The store does not read this text: its writers define what is in it.
    pub document: String,
    /// Its names, each with the time at which a client gave it, milliseconds since 1970.
    pub names: BTreeMap<String, u64>,
}

/// Which images every node can have: digests, and names with what they stand for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharedIndex {
    /// Digests.
    pub digests: BTreeSet<String>,
    /// Names.
    pub names: BTreeMap<String, String>,
    /// Snapshots on which templates stand.
    pub snapshots: BTreeSet<SnapshotId>,
}

/// A layer that every node can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedLayer {
    /// The upload in which it is.
    pub upload: String,
    /// How many bytes were sent.
    pub bytes: u64,
    /// A node that fetched it found no object, or an object that is not this layer.
    pub is_doubted: bool,
}

/// The disk of a template that every node can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedSnapshot {
    /// The upload in which it is.
    pub upload: String,
    /// The snapshot's digest.
    pub digest: String,
}

/// The layers and snapshots whose objects are in use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharedObjects {
    /// Layers, each with the upload in which it is.
    pub layers: BTreeSet<(String, String)>,
    /// Snapshots, the same.
    pub snapshots: BTreeSet<(String, String)>,
    /// The names of the uploads of living nodes.
    pub uploads: BTreeSet<String>,
}

const OF_THE_LIVING: &str = "SELECT image_uploads.upload AS upload FROM image_uploads \
     JOIN nodes ON nodes.id = image_uploads.node WHERE nodes.is_alive = 1";

impl Store {
    /// Records the upload name that this node gives to all objects that it sends from now on.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn begin_image_uploads(&self, upload: &str) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO image_uploads (node, upload) VALUES ($1, $2) \
             ON CONFLICT (node) DO UPDATE SET upload = EXCLUDED.upload";
        let values = args![self.node().map_or("", |node| node.as_str()), upload];
        self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await.map(drop) }))
            .await
    }

    /// Where a layer is.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`].
    pub async fn shared_layer(&self, diff_id: &str) -> Result<Option<SharedLayer>, StoreError> {
        const SQL: &str = "SELECT * FROM shared_layers WHERE diff_id = $1";
        let values = args![diff_id];
        let row = self.read(move |mut conn| Box::pin(async move { conn.row(SQL, values).await })).await?;
        let read = |row: &Row| {
            let (upload, bytes) = (row.text("upload")?, row.uint("bytes")?);
            Ok(SharedLayer { upload, bytes, is_doubted: row.int("is_doubted")? != 0 })
        };
        row.map(|row| row.decode("shared_layers", "diff_id", read)).transpose()
    }

    /// Records that a layer is whole in this upload. A layer that another node has recorded before stays where it is,
    /// unless it is doubted. Gives the upload in which the layer is.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn put_shared_layer(
        &self,
        diff_id: &str,
        upload: &str,
        bytes: u64,
    ) -> Result<String, StoreError> {
        const PUT: &str = "INSERT INTO shared_layers (diff_id, upload, bytes) VALUES ($1, $2, $3) \
             ON CONFLICT (diff_id) DO UPDATE SET upload = EXCLUDED.upload, bytes = EXCLUDED.bytes, \
             is_doubted = 0 WHERE shared_layers.is_doubted = 1";
        const GET: &str = "SELECT diff_id, upload FROM shared_layers WHERE diff_id = $1";
        let (put, get) = (args![diff_id, upload, bytes], args![diff_id]);
        self.write(move |mut conn| {
            Box::pin(async move {
                conn.execute(PUT, put).await?;
                let row = conn.row(GET, get).await?.ok_or(StoreError::Conflict)?;
                row.decode("shared_layers", "diff_id", |row| row.text("upload"))
            })
        })
        .await
    }

    /// Records that a layer is not in this upload any more, or is damaged there: a node that has the layer may send it
    /// again. Says whether that was not known yet.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn doubt_shared_layer(&self, diff_id: &str, upload: &str) -> Result<bool, StoreError> {
        const SQL: &str = "UPDATE shared_layers SET is_doubted = 1 \
             WHERE diff_id = $1 AND upload = $2 AND is_doubted = 0";
        let values = args![diff_id, upload];
        self.write_one(move |mut conn| Box::pin(async move { Ok(conn.execute(SQL, values).await? > 0) }))
            .await
    }

    /// Records an image, all of whose layers are recorded, and gives it its names. It does not get a name that was
    /// given to another image, or taken away, at a later time. Says how many names it gets: an image that gets none,
    /// and is not there yet, is not recorded.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when one of the layers is not there, or not any more.
    pub async fn put_shared_image(
        &self,
        image: &SharedImage,
        layers: &BTreeSet<String>,
        shared_ms: u64,
    ) -> Result<u64, StoreError> {
        const KNOWN: &str = "SELECT digest FROM shared_images WHERE digest = $1";
        const TAKE_BACK: &str = "DELETE FROM shared_images WHERE digest = $1 AND NOT EXISTS \
             (SELECT 1 FROM shared_image_names WHERE shared_image_names.digest = shared_images.digest)";
        const IMAGE: &str = "INSERT INTO shared_images (digest, document, shared_ms) VALUES ($1, $2, $3) \
             ON CONFLICT (digest) DO UPDATE SET document = EXCLUDED.document";
        const LAYER: &str = "INSERT INTO shared_image_layers (digest, diff_id) VALUES ($1, $2) \
             ON CONFLICT (digest, diff_id) DO NOTHING";
        const NAME: &str = "INSERT INTO shared_image_names (name, digest, said_ms) VALUES ($1, $2, $3) \
             ON CONFLICT (name) DO UPDATE SET digest = EXCLUDED.digest, said_ms = EXCLUDED.said_ms \
             WHERE shared_image_names.said_ms <= EXCLUDED.said_ms";
        let (image, layers) = (image.clone(), layers.clone());
        self.write(move |mut conn| {
            Box::pin(async move {
                let digest = image.digest.as_str();
                let is_known = conn.row(KNOWN, args![digest]).await?.is_some();
                conn.execute(IMAGE, args![digest, image.document.as_str(), shared_ms]).await?;
                for layer in &layers {
                    conn.execute(LAYER, args![digest, layer.as_str()]).await?;
                }
                let mut given = 0;
                for (name, said_ms) in &image.names {
                    given += conn.execute(NAME, args![name.as_str(), digest, *said_ms]).await?;
                }
                if given == 0 && !is_known {
                    conn.execute(TAKE_BACK, args![digest]).await?;
                }
                Ok(given)
            })
        })
        .await
    }

    /// Which images are there.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`].
    pub async fn shared_index(&self) -> Result<SharedIndex, StoreError> {
        const NAMES: &str = "SELECT name, digest FROM shared_image_names WHERE digest IS NOT NULL";
        let (images, names, snapshots) = self
            .read(|mut conn| {
                Box::pin(async move {
                    let snapshots = conn.rows("SELECT snapshot_id FROM shared_snapshots", Vec::new()).await?;
                    let images = conn.rows("SELECT digest FROM shared_images", Vec::new()).await?;
                    let names = conn.rows(NAMES, Vec::new()).await?;
                    Ok((images, names, snapshots))
                })
            })
            .await?;
        let digest = |row: &Row| row.decode("shared_images", "digest", |row| row.text("digest"));
        let name = |row: &Row| {
            row.decode("shared_image_names", "name", |row| Ok((row.text("name")?, row.text("digest")?)))
        };
        let snapshot =
            |row: &Row| row.decode("shared_snapshots", "snapshot_id", |row| row.parse("snapshot_id"));
        Ok(SharedIndex {
            digests: images.iter().map(digest).collect::<Result<_, _>>()?,
            names: names.iter().map(name).collect::<Result<_, _>>()?,
            snapshots: snapshots.iter().map(snapshot).collect::<Result<_, _>>()?,
        })
    }

    /// Every image, by digest.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`].
    pub async fn shared_images(&self) -> Result<Vec<SharedImage>, StoreError> {
        self.found("1 = 1", Vec::new()).await
    }

    /// The images that have one of these names, or a digest that begins so.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`].
    pub async fn find_shared_images(
        &self,
        names: &[String],
        digest: Option<&str>,
    ) -> Result<Vec<SharedImage>, StoreError> {
        let mut values = Vec::new();
        let mut wanted = vec!["1 = 0".to_owned()];
        if !names.is_empty() {
            let any = any_of("name", names.iter().map(String::as_str), &mut values);
            wanted.push(format!("digest IN (SELECT digest FROM shared_image_names WHERE {any})"));
        }
        if let Some(digest) = digest {
            values.extend(args![digest]);
            let at = values.len();
            wanted.push(format!("substr(digest, 1, length(${at})) = ${at}"));
        }
        self.found(&wanted.join(" OR "), values).await
    }

    /// The images for which a condition holds. Their names are read by a query of their own: an image may have many
    /// names, and a join would repeat its document, which may be long, for each.
    async fn found(&self, condition: &str, values: Vec<Value>) -> Result<Vec<SharedImage>, StoreError> {
        let images = format!("SELECT digest, document FROM shared_images WHERE {condition} ORDER BY digest");
        let names = format!(
            "SELECT * FROM shared_image_names WHERE digest IN \
             (SELECT digest FROM shared_images WHERE {condition})"
        );
        let (images, names) = self
            .read(move |mut conn| {
                Box::pin(async move {
                    let images = conn.rows(AssertSqlSafe(images), values.clone()).await?;
                    Ok((images, conn.rows(AssertSqlSafe(names), values).await?))
                })
            })
            .await?;
        let mut named: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        for row in &names {
            let read = |row: &Row| Ok((row.text("digest")?, row.text("name")?, row.uint("said_ms")?));
            let (digest, name, said_ms) = row.decode("shared_image_names", "name", read)?;
            named.entry(digest).or_default().insert(name, said_ms);
        }
        let image = |row: &Row| {
            let (digest, document) = row
                .decode("shared_images", "digest", |row| Ok((row.text("digest")?, row.text("document")?)))?;
            Ok(SharedImage { names: named.remove(&digest).unwrap_or_default(), digest, document })
        };
        images.iter().map(image).collect()
    }

    /// Takes a name away, as long as it stands for this image. Says whether it did.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn remove_shared_name(
        &self,
        name: &str,
        digest: &str,
        now_ms: u64,
    ) -> Result<bool, StoreError> {
        const SQL: &str = "UPDATE shared_image_names SET digest = NULL, said_ms = $3 \
             WHERE name = $1 AND digest = $2";
        let values = args![name, digest, now_ms];
        self.write_one(move |mut conn| Box::pin(async move { Ok(conn.execute(SQL, values).await? > 0) }))
            .await
    }

    /// Removes an image with all its names, on every node. Says whether it was there.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when a sandbox or a snapshot of any node stands on it, also one that is just being made.
    pub async fn remove_shared_image(&self, digest: &str, now_ms: u64) -> Result<bool, StoreError> {
        const NAMES: &str = "UPDATE shared_image_names SET digest = NULL, said_ms = $2 WHERE digest = $1";
        const IMAGE: &str = "DELETE FROM shared_images WHERE digest = $1";
        let digest = digest.to_owned();
        self.write(move |mut conn| {
            Box::pin(async move {
                // Waits for the sandboxes that are being stored, which hold their image: see the module `membership`.
                let hold = match &conn {
                    Conn::Sqlite(_) => "SELECT digest FROM shared_images WHERE digest = $1",
                    Conn::Postgres(_) => "SELECT digest FROM shared_images WHERE digest = $1 FOR UPDATE",
                };
                if conn.row(hold, args![digest.as_str()]).await?.is_none() {
                    return Ok(false);
                }
                if is_used(&mut conn, &digest).await? {
                    return Err(StoreError::Conflict);
                }
                conn.execute(NAMES, args![digest.as_str(), now_ms]).await?;
                Ok(conn.execute(IMAGE, args![digest.as_str()]).await? > 0)
            })
        })
        .await
    }

    /// Forgets names that were taken away before a moment.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn forget_removed_names(&self, before_ms: u64) -> Result<u64, StoreError> {
        const SQL: &str = "DELETE FROM shared_image_names WHERE digest IS NULL AND said_ms < $1";
        let values = args![before_ms];
        self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await })).await
    }

    /// Whether a sandbox or a snapshot of any node stands on an image.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn is_image_used(&self, digest: &str) -> Result<bool, StoreError> {
        let digest = digest.to_owned();
        self.read(move |mut conn| Box::pin(async move { is_used(&mut conn, &digest).await })).await
    }

    /// The disk of a template, if it is there.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`].
    pub async fn shared_snapshot(&self, id: &SnapshotId) -> Result<Option<SharedSnapshot>, StoreError> {
        const SQL: &str = "SELECT * FROM shared_snapshots WHERE snapshot_id = $1";
        let values = args![id.as_str()];
        let row = self.read(move |mut conn| Box::pin(async move { conn.row(SQL, values).await })).await?;
        let read =
            |row: &Row| Ok(SharedSnapshot { upload: row.text("upload")?, digest: row.text("digest")? });
        row.map(|row| row.decode("shared_snapshots", "snapshot_id", read)).transpose()
    }

    /// Records that the disk of a template is there.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when the snapshot is not, or not any more.
    pub async fn put_shared_snapshot(
        &self,
        id: &SnapshotId,
        shared: &SharedSnapshot,
        bytes: u64,
    ) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO shared_snapshots (snapshot_id, upload, digest, bytes) \
             VALUES ($1, $2, $3, $4) ON CONFLICT (snapshot_id) DO UPDATE SET upload = EXCLUDED.upload, \
             digest = EXCLUDED.digest, bytes = EXCLUDED.bytes";
        let values = args![id.as_str(), shared.upload.as_str(), shared.digest.as_str(), bytes];
        self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await.map(drop) }))
            .await
    }

    /// Forgets the disk of a snapshot that no template uses any more.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn remove_shared_snapshot(&self, id: &SnapshotId) -> Result<(), StoreError> {
        const SQL: &str = "DELETE FROM shared_snapshots WHERE snapshot_id = $1";
        let values = args![id.as_str()];
        self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await.map(drop) }))
            .await
    }

    /// Forgets the layers that no image needs and that were sent by this node or by a dead one; gives how many. This
    /// node must not send anything meanwhile.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn forget_unused_layers(&self, own: &str) -> Result<u64, StoreError> {
        let sql = format!(
            "DELETE FROM shared_layers WHERE NOT EXISTS (SELECT 1 FROM shared_image_layers \
             WHERE shared_image_layers.diff_id = shared_layers.diff_id) \
             AND (upload = $1 OR upload NOT IN ({OF_THE_LIVING}))"
        );
        let values = args![own];
        self.write(move |mut conn| Box::pin(async move { conn.execute(AssertSqlSafe(sql), values).await }))
            .await
    }

    /// The objects that are in use, and the uploads of living nodes.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`].
    pub async fn shared_objects(&self) -> Result<SharedObjects, StoreError> {
        let (layers, snapshots, uploads) = self
            .read(|mut conn| {
                Box::pin(async move {
                    // Uploads first: a node that begins an upload after this had sent nothing when the caller listed
                    // the objects.
                    let uploads = conn.rows(OF_THE_LIVING, Vec::new()).await?;
                    let layers = conn.rows("SELECT diff_id, upload FROM shared_layers", Vec::new()).await?;
                    let snapshots =
                        conn.rows("SELECT snapshot_id, upload FROM shared_snapshots", Vec::new()).await?;
                    Ok((layers, snapshots, uploads))
                })
            })
            .await?;
        let layer = |row: &Row| {
            row.decode("shared_layers", "diff_id", |row| Ok((row.text("diff_id")?, row.text("upload")?)))
        };
        let snapshot = |row: &Row| {
            row.decode("shared_snapshots", "snapshot_id", |row| {
                Ok((row.text("snapshot_id")?, row.text("upload")?))
            })
        };
        let upload = |row: &Row| row.decode("image_uploads", "upload", |row| row.text("upload"));
        Ok(SharedObjects {
            layers: layers.iter().map(layer).collect::<Result<_, _>>()?,
            snapshots: snapshots.iter().map(snapshot).collect::<Result<_, _>>()?,
            uploads: uploads.iter().map(upload).collect::<Result<_, _>>()?,
        })
    }
}

async fn is_used(conn: &mut Conn<'_>, digest: &str) -> Result<bool, StoreError> {
    const SQL: &str = "SELECT id FROM sandboxes WHERE image_digest = $1 OR spec LIKE $2 \
         UNION ALL SELECT id FROM snapshots WHERE manifest LIKE $2 LIMIT 1";
    // A digest contains no wildcard of LIKE.
    let values = args![digest, format!("%\"{digest}\"%")];
    Ok(conn.row(SQL, values).await?.is_some())
}
