//! The disks on which templates stand: where one was built is told by its snapshot's row, and every other node gets a copy when it needs one.
//!
//! A copy is a snapshot of this node that is held by what it is a copy of, so it is known again after a crash; it goes when that does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_core::id::SnapshotId;
use atoll_core::snapshot::{Purpose, SnapshotState};
use atoll_core::{Code, Result};
use atoll_objects::ObjectsError;
use atoll_store::{SharedSnapshot, SnapshotRecord, StoreError, Whereabouts};
use tokio::sync::Notify;
use tokio_util::io::StreamReader;

use super::Shared;
use crate::authorize::Caller;
use crate::boxed;
use crate::engine::Engine;
use crate::errors::store_error;
use crate::snapshot::objects_error;

/// The name that holds a copy: this, and the id of the snapshot that it is a copy of.
const HOLDER: &str = "a template of another node, ";
/// Pause before what failed is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// Longest such pause: a disk may be large, and what cannot be sent is sent as far as it goes each time.
const RETRY_MAX: Duration = Duration::from_secs(600);

/// What is known of disks of templates.
#[derive(Debug, Default)]
pub(super) struct Templates {
    /// There may be something to send, or to remove.
    pub(super) changed: Notify,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Those that every node can have.
    shared: BTreeSet<SnapshotId>,
    /// Copies that are here, by what they are copies of.
    copies: BTreeMap<SnapshotId, SnapshotRecord>,
}

impl Templates {
    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in which there are; says whether one went away.
    pub(super) fn see(&self, snapshots: &BTreeSet<SnapshotId>) -> bool {
        let before = std::mem::replace(&mut self.known().shared, snapshots.clone());
        !snapshots.is_superset(&before)
    }

    fn copy(&self, id: &SnapshotId) -> Option<SnapshotId> {
        self.known().copies.get(id).map(|copy| copy.id.clone())
    }
}

impl Shared {
    /// Whether every node can have a snapshot, as far as is known here.
    pub(crate) fn has_snapshot(&self, id: &SnapshotId) -> bool {
        self.templates.known().shared.contains(id)
    }

    /// Templates are not what they were.
    pub(crate) fn templates_changed(&self) {
        self.templates.changed.notify_one();
    }
}

pub(super) async fn keep(engine: Engine) {
    let Some(shared) = engine.inner.shared_images.clone() else { return };
    let mut pause = RETRY;
    loop {
        // What one of them cannot do keeps none of the others from it.
        let found = engine.find_copies(&shared).await;
        let sent = engine.send_templates(&shared).await;
        let forgotten = engine.forget_templates().await;
        let removed = engine.remove_copies(&shared).await;
        match found.and(sent).and(forgotten).and(removed) {
            Ok(()) => {
                pause = RETRY;
                shared.templates.changed.notified().await;
            }
            Err(error) => {
                tracing::warn!(%error, "disks of templates are not for every node yet, trying again");
                engine.inner.clock.sleep(pause).await;
                pause = (pause * 2).min(RETRY_MAX);
            }
        }
    }
}

impl Engine {
    /// Finds the copies that an earlier process made.
    async fn find_copies(&self, shared: &Shared) -> Result<()> {
        for record in self.all_snapshots().await? {
            let Purpose::Held(by) = &record.purpose else { continue };
            let of = by.strip_prefix(HOLDER).and_then(|id| id.parse().ok());
            let Some(of) = of.filter(|_| record.state == SnapshotState::Ready) else { continue };
            let known = shared.templates.copy(&of);
            match known {
                None => drop(shared.templates.known().copies.insert(of, record)),
                // Another was fetched before this one was found.
                Some(copy) if copy != record.id => self.delete_unused_snapshot(&record).await?,
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Sends the disks of templates that are here alone.
    async fn send_templates(&self, shared: &Shared) -> Result<()> {
        let index = self.inner.store.shared_index().await.map_err(store_error)?;
        let mut wanted = self.template_snapshots().await?;
        wanted.retain(|id| !index.snapshots.contains(id));
        if wanted.is_empty() {
            return Ok(());
        }
        let mut failed = Ok(());
        for record in self.all_snapshots().await? {
            // A node that cannot have its image cannot use it.
            let image = record.manifest.image_digest.as_ref();
            let is_usable = image.is_none_or(|digest| index.digests.contains(digest));
            if wanted.contains(&record.id) && record.state == SnapshotState::Ready && is_usable {
                failed = failed.and(self.send_template(shared, &record.id).await);
            }
        }
        failed
    }

    async fn send_template(&self, shared: &Shared, id: &SnapshotId) -> Result<()> {
        let _turn = shared.sending.lock().await;
        let (record, stream) = self.export(id, &Caller::system(), None).await?;
        let name = shared.snapshot_object(id, &shared.upload);
        let bytes = shared.objects.put(&name, stream).await.map_err(|error| objects_error(&error))?;
        atoll_failpoint::fail_point!("engine.images.template");
        let digest = record.digest.unwrap_or_default();
        let there = SharedSnapshot { upload: shared.upload.clone(), digest };
        match self.inner.store.put_shared_snapshot(id, &there, bytes).await {
            Ok(()) => tracing::info!(snapshot = %id, "every node can have the disk of a template"),
            // The template went meanwhile. If this fails it is collected.
            Err(StoreError::NotFound) => drop(shared.objects.remove(&name).await),
            Err(error) => return Err(store_error(error)),
        }
        Ok(())
    }

    /// Forgets disks on which no template stands any more: the cache of builds may keep the snapshots.
    async fn forget_templates(&self) -> Result<()> {
        // Templates afterwards: a disk is told of only while its template is there.
        let index = self.inner.store.shared_index().await.map_err(store_error)?;
        let used = self.template_snapshots().await?;
        if !self.inner.store.unreadable_of("templates").is_empty() {
            return Ok(());
        }
        for id in index.snapshots.difference(&used) {
            self.inner.store.remove_shared_snapshot(id).await.map_err(store_error)?;
        }
        Ok(())
    }

    /// Removes copies of what is gone.
    async fn remove_copies(&self, shared: &Shared) -> Result<()> {
        let index = self.inner.store.shared_index().await.map_err(store_error)?;
        let gone: Vec<(SnapshotId, SnapshotRecord)> = {
            let copies = &shared.templates.known().copies;
            let gone = copies.iter().filter(|(of, _)| !index.snapshots.contains(*of));
            gone.map(|(of, copy)| (of.clone(), copy.clone())).collect()
        };
        for (of, copy) in gone {
            shared.templates.known().copies.remove(&of);
            self.delete_unused_snapshot(&copy).await?;
        }
        Ok(())
    }

    /// The snapshot on which a template stands, wherever that is, if a sandbox made here can begin with it.
    ///
    /// # Errors
    /// As [`Self::ready_snapshot`].
    #[boxed]
    pub async fn template_snapshot(&self, id: &SnapshotId) -> Result<SnapshotRecord> {
        if self.is_away(id).await?
            && let Some(found) = self.inner.store.snapshot(id).await.map_err(store_error)?
            && found.state == SnapshotState::Ready
        {
            return Ok(found);
        }
        self.ready_snapshot(id).await
    }

    /// The same, with the snapshot of this node that has its disk: that itself, or a copy, which is fetched if it is not here.
    ///
    /// # Errors
    /// As [`Self::ready_snapshot`]; [`Code::ObjectsUnavailable`], [`Code::SnapshotInvalid`], [`Code::DigestMismatch`].
    pub(crate) async fn template_disk(&self, id: &SnapshotId) -> Result<(SnapshotRecord, SnapshotId)> {
        let record = self.template_snapshot(id).await?;
        let Some(shared) = self.inner.shared_images.clone() else { return Ok((record.clone(), record.id)) };
        if !self.is_away(id).await? {
            return Ok((record.clone(), record.id));
        }
        if let Some(copy) = shared.templates.copy(id) {
            return Ok((record, copy));
        }
        let turn = shared.turn(id.as_str());
        let _turn = turn.lock().await;
        if let Some(copy) = shared.templates.copy(id) {
            return Ok((record, copy));
        }
        // It is fetched even if the caller goes away.
        let (engine, of) = (self.clone(), record.clone());
        let fetching = async move { engine.fetch_template(&shared, &of).await };
        Ok((record, self.to_its_end(fetching).await?))
    }

    /// Whether a snapshot is on another node, and in the object store.
    async fn is_away(&self, id: &SnapshotId) -> Result<bool> {
        let Some(cluster) = self.inner.cluster.as_ref().filter(|_| self.inner.shared_images.is_some()) else {
            return Ok(false);
        };
        let store = &self.inner.store;
        let node = store.whereabouts(&Whereabouts::Snapshot(id.clone())).await.map_err(store_error)?;
        Ok(node.is_some_and(|node| node != *cluster.id())
            && store.shared_snapshot(id).await.map_err(store_error)?.is_some())
    }

    async fn fetch_template(&self, shared: &Arc<Shared>, of: &SnapshotRecord) -> Result<SnapshotId> {
        // To fetch its image takes a turn of its own: a task that has one already must not wait for another.
        self.obtain_exactly(of.manifest.image_digest.as_deref(), &of.manifest.layers).await?;
        let _turn = shared.taking.acquire().await;
        let there = self.inner.store.shared_snapshot(&of.id).await.map_err(store_error)?;
        let there = there.ok_or_else(|| SnapshotId::not_found(of.id.as_str()))?;
        tracing::info!(snapshot = %of.id, "fetching the disk of a template of another node");
        let name = shared.snapshot_object(&of.id, &there.upload);
        let got = shared.objects.get(&name).await;
        let is_gone = matches!(got, Err(ObjectsError::NotFound));
        let fetched = async {
            let stream = got.map_err(|error| objects_error(&error))?;
            let held = Purpose::Held(format!("{HOLDER}{}", of.id));
            self.import_copy(StreamReader::new(stream), of, held, &there.digest).await
        };
        let copy = match fetched.await {
            Ok(copy) => copy,
            Err(error) => {
                if is_gone || error.code == Code::DigestMismatch {
                    // Its node finds that it is not told of, and sends it anew.
                    self.inner.store.remove_shared_snapshot(&of.id).await.map_err(store_error)?;
                }
                return Err(error);
            }
        };
        let id = copy.id.clone();
        shared.templates.known().copies.insert(of.id.clone(), copy);
        Ok(id)
    }
}
