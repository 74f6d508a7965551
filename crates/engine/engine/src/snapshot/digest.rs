//! The digest of a snapshot: it identifies the content, under any name and on any host.
//!
//! BLAKE3 over the manifest and over every block of the disk that is not zero, with its place. It does not depend on
//! how the file is laid out, so a copy on another host has the same. Made in the background: only an export waits for
//! it.

use std::fs::File;
use std::io;

use atoll_core::id::SnapshotId;
use atoll_core::snapshot::{Manifest, SnapshotState};
use atoll_core::{Code, Error, Result};
use atoll_isolation::{IsolationError, sparse};
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;
use crate::errors::{isolation_error, store_error};
use crate::rooms::Who;

/// What a digest counts in, bytes.
pub(super) const BLOCK_BYTES: usize = 4096;
/// Read at once, bytes: whole blocks.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// Hashes a disk in pieces.
pub(super) struct Hasher(blake3::Hasher);

impl Hasher {
    pub(super) fn new(manifest: &Manifest) -> io::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        let text = serde_json::to_vec(manifest)?;
        hasher.update(b"atoll snapshot 1\n");
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(&text);
        Ok(Self(hasher))
    }

    /// Takes the blocks at `offset`, a multiple of the block's size.
    pub(super) fn blocks(&mut self, offset: u64, bytes: &[u8]) {
        for (number, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
            if block.iter().any(|byte| *byte != 0) {
                self.0.update(&(offset + (number * BLOCK_BYTES) as u64).to_le_bytes());
                self.0.update(block);
            }
        }
    }

    pub(super) fn finish(self) -> String {
        format!("blake3:{}", self.0.finalize().to_hex())
    }
}

/// Makes the digest of a snapshot and keeps it. If that fails, it is tried again at the next start, or when an export
/// needs it.
pub(super) async fn digest_later(engine: Engine, id: SnapshotId) {
    match engine.make_digest(&id).await {
        Ok(_digest) => {}
        // Removed meanwhile, or the server stops.
        Err(error) if matches!(error.code, Code::SnapshotNotFound | Code::ShuttingDown) => {}
        Err(error) => tracing::warn!(snapshot = %id, %error, "a snapshot has no digest yet"),
    }
}

impl Engine {
    /// The digest of a snapshot, made now if it is not known yet.
    pub(super) async fn make_digest(&self, id: &SnapshotId) -> Result<String> {
        let stopping = || Error::new(Code::ShuttingDown, "the server is shutting down");
        let record = self.snapshot(id).await?;
        // Whoever asks: of one snapshot, whose disk is replaced by a tidy one, one at a time.
        let who = Who::new(record.created_by.as_ref(), record.project.as_ref());
        let _turn = tokio::select! {
            turn = self.inner.snapshots.digesting.wait(who) => turn,
            () = self.inner.shutdown.cancelled() => return Err(stopping()),
        };
        let record = self.snapshot(id).await?;
        if let Some(digest) = record.digest {
            return Ok(digest);
        }
        let driver = self.inner.driver(record.manifest.isolation)?;
        let sealed = async {
            let usage = driver.seal_artifact(id).await?;
            Ok::<_, IsolationError>((usage, driver.read_artifact(id).await?))
        };
        let (usage, disk) = match sealed.await {
            Ok(sealed) => sealed,
            Err(error) => {
                // It may have been removed meanwhile, which is no failure.
                if self.snapshot(id).await?.state != SnapshotState::Ready {
                    return Err(SnapshotId::not_found(id.as_str()));
                }
                return Err(isolation_error(&error));
            }
        };
        let stop = self.inner.shutdown.clone();
        let hashed =
            tokio::task::spawn_blocking(move || hash(&disk, &record.manifest.of_disk(), &stop)).await;
        let digest = hashed.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(|error| {
            if self.inner.shutdown.is_cancelled() {
                return stopping();
            }
            tracing::error!(snapshot = %id, %error, "a snapshot cannot be read");
            Error::new(Code::Internal, "the snapshot cannot be read")
        })?;
        self.inner.store.set_snapshot_digest(id, &digest, usage.stored_bytes).await.map_err(store_error)?;
        Ok(digest)
    }
}

fn hash(disk: &File, manifest: &Manifest, stop: &CancellationToken) -> io::Result<String> {
    let mut hasher = Hasher::new(manifest)?;
    sparse::for_pieces(disk, BLOCK_BYTES as u64, PIECE_BYTES, |offset, bytes| {
        if stop.is_cancelled() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        hasher.blocks(offset, bytes);
        Ok(())
    })?;
    // The disk was read only to hash it: the host need not keep it in its page cache.
    sparse::forget(disk)?;
    Ok(hasher.finish())
}
