//! The cache of build steps: which snapshot a key leads to, which may go, and which nothing needs any more.
//!
//! [`Pins::gate`] orders three things. Making a snapshot and entering its key happens under the shared side, so that no
//! task takes it for left over in between; so does looking keys up and pinning what they lead to. A task that removes
//! snapshots holds the other side.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::id::{SandboxId, SnapshotId};
use atoll_core::limits::BUILD_CACHE_DEFAULT_BYTES;
use atoll_core::snapshot::{Purpose, SnapshotState};
use atoll_core::{Code, Error, Result};
use atoll_store::{CacheRecord, SnapshotRecord};
use tokio::sync::RwLock;

use crate::authorize::Caller;
use crate::boxed;
use crate::engine::Engine;
use crate::errors::store_error;
use crate::snapshot::SnapshotOrder;

/// The name that holds the snapshots of steps.
pub(super) const HOLDER: &str = "the build cache";

/// Snapshots that running builds stand on.
#[derive(Debug, Default)]
pub(super) struct Pins {
    pinned: Arc<Mutex<BTreeMap<SnapshotId, usize>>>,
    gate: Arc<RwLock<()>>,
}

impl Pins {
    fn pin(&self, id: &SnapshotId) -> Pin {
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        *pinned.entry(id.clone()).or_default() += 1;
        Pin { id: id.clone(), pinned: Arc::clone(&self.pinned) }
    }

    fn all(&self) -> BTreeSet<SnapshotId> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }
}

/// Keeps a snapshot as long as it lives.
#[derive(Debug)]
pub(super) struct Pin {
    id: SnapshotId,
    pinned: Arc<Mutex<BTreeMap<SnapshotId, usize>>>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = pinned.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                pinned.remove(&self.id);
            }
        }
    }
}

/// A snapshot that a build found or made.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    pub(super) snapshot: SnapshotId,
    /// The image that is below it.
    pub(super) image: String,
    /// Size of its disk.
    pub(super) disk_bytes: u64,
    _pin: Arc<Pin>,
}

/// One entry of the cache, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheEntry {
    /// What is stored.
    pub record: CacheRecord,
    /// Whether a template stands on it: it takes no room that pruning would free.
    pub in_template: bool,
}

/// What pruning did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CachePruned {
    /// Keys that are gone.
    pub removed: u64,
    /// What their snapshots took on the host, bytes. Clones share it: the disk may gain less.
    pub freed_bytes: u64,
}

impl Engine {
    /// What is in the cache for these keys, pinned.
    pub(super) async fn find_cached(&self, keys: &BTreeSet<String>) -> Result<BTreeMap<String, Kept>> {
        let _gate = self.inner.builds.pins.gate.read().await;
        let ready = self.build_snapshots().await?;
        let mut found = BTreeMap::new();
        for record in self.inner.store.cached_steps().await.map_err(store_error)? {
            if !keys.contains(&record.key) {
                continue;
            }
            if let Some(snapshot) = ready.get(&record.snapshot) {
                found.insert(record.key, self.kept(snapshot));
            }
        }
        let used: Vec<String> = found.keys().cloned().collect();
        self.inner.store.touch_cached_steps(&used, self.inner.now_ms()).await.map_err(store_error)?;
        Ok(found)
    }

    /// The snapshot of a template that a build begins with, pinned.
    pub(super) async fn keep_base(&self, id: &SnapshotId) -> Result<Kept> {
        // Fetched before others are kept waiting; then it is found at once.
        self.template_disk(id).await?;
        let _gate = self.inner.builds.pins.gate.read().await;
        let (found, here) = self.template_disk(id).await?;
        Ok(self.kept(&SnapshotRecord { id: here, ..found }))
    }

    fn kept(&self, snapshot: &SnapshotRecord) -> Kept {
        let pin = Arc::new(self.inner.builds.pins.pin(&snapshot.id));
        Kept {
            snapshot: snapshot.id.clone(),
            image: snapshot.manifest.image.clone(),
            disk_bytes: snapshot.manifest.resources.disk_bytes,
            _pin: pin,
        }
    }

    /// Takes a snapshot of a step's sandbox and enters it. Goes on to its end when the caller stops waiting.
    pub(super) async fn keep_step(
        &self,
        sandbox: SandboxId,
        key: String,
        step: String,
        made_in_ms: u64,
        caller: Caller,
    ) -> Result<Kept> {
        let engine = self.clone();
        let work = async move {
            let _gate = engine.inner.builds.pins.gate.read().await;
            let order = SnapshotOrder::without_name(Purpose::Held(HOLDER.to_owned()), None);
            let snapshot = engine.create_snapshot(&sandbox, order, &caller).await?;
            atoll_failpoint::fail_point!("engine.build.snapshot");
            let now = engine.now_ms();
            let record = CacheRecord {
                key,
                snapshot: snapshot.id.clone(),
                step,
                stored_bytes: snapshot.stored_bytes,
                made_in_ms,
                created_ms: now,
                used_ms: now,
            };
            let kept = engine.kept(&snapshot);
            engine.inner.store.put_cached_step(&record).await.map_err(store_error)?;
            atoll_failpoint::fail_point!("engine.build.cached");
            Ok(kept)
        };
        let kept = self.inner.tracker.spawn(work).await;
        kept.unwrap_or_else(|_panicked| Err(Error::new(Code::Internal, "keeping a step broke off")))
    }

    /// What is in the cache, the longest unused first.
    ///
    /// # Errors
    /// [`Code::StoreUnavailable`].
    #[boxed]
    pub async fn build_cache(&self) -> Result<Vec<CacheEntry>> {
        let templates = self.template_snapshots().await?;
        let records = self.inner.store.cached_steps().await.map_err(store_error)?;
        let entry = |record: CacheRecord| {
            let in_template = templates.contains(&record.snapshot);
            CacheEntry { record, in_template }
        };
        Ok(records.into_iter().map(entry).collect())
    }

    /// Takes the longest unused entries out until the rest has at most `keep_bytes`. What running builds stand on
    /// stays.
    ///
    /// # Errors
    /// What resists.
    #[boxed]
    pub async fn prune_build_cache(&self, keep_bytes: u64) -> Result<CachePruned> {
        let gate = self.inner.builds.pins.gate.write().await;
        let pinned = self.inner.builds.pins.all();
        let templates = self.template_snapshots().await?;
        let records = self.inner.store.cached_steps().await.map_err(store_error)?;
        let mut total: u64 = records.iter().map(|record| record.stored_bytes).sum();
        let mut pruned = CachePruned::default();
        for record in records {
            if total <= keep_bytes {
                break;
            }
            if pinned.contains(&record.snapshot) {
                continue;
            }
            self.inner.store.delete_cached_step(&record.key, &record.snapshot).await.map_err(store_error)?;
            total -= record.stored_bytes;
            pruned.removed += 1;
            if !templates.contains(&record.snapshot) {
                pruned.freed_bytes += record.stored_bytes;
            }
        }
        drop(gate);
        self.collect_build_snapshots().await?;
        Ok(pruned)
    }

    /// Removes snapshots of steps that neither a key nor a template leads to, and keys that lead to nothing.
    pub(crate) async fn collect_build_snapshots(&self) -> Result<()> {
        let _gate = self.inner.builds.pins.gate.write().await;
        let mut needed = self.inner.builds.pins.all();
        needed.extend(self.template_snapshots().await?);
        if !self.inner.store.unreadable_of("templates").is_empty() {
            // Any of the snapshots may be that of a template that cannot be read.
            return Ok(());
        }
        let there = self.build_snapshots().await?;
        for record in self.inner.store.cached_steps().await.map_err(store_error)? {
            if there.contains_key(&record.snapshot) {
                needed.insert(record.snapshot);
            } else {
                let gone = self.inner.store.delete_cached_step(&record.key, &record.snapshot).await;
                gone.map_err(store_error)?;
            }
        }
        for (id, record) in &there {
            if !needed.contains(id) {
                tracing::debug!(snapshot = %id, "removing what no build and no template needs");
                self.delete_unused_snapshot(record).await?;
            }
        }
        Ok(())
    }

    /// The same in the background, with what is over the cache's limit.
    pub(crate) fn tidy_build_cache(&self) {
        let engine = self.clone();
        self.inner.tracker.spawn(async move {
            if let Err(error) = engine.prune_build_cache(BUILD_CACHE_DEFAULT_BYTES).await {
                tracing::warn!(%error, "the build cache could not be tidied up");
            }
        });
    }

    async fn build_snapshots(&self) -> Result<BTreeMap<SnapshotId, SnapshotRecord>> {
        let all = self.all_snapshots().await?;
        let ours = all.into_iter().filter(|record| {
            record.state == SnapshotState::Ready && record.purpose == Purpose::Held(HOLDER.to_owned())
        });
        Ok(ours.map(|record| (record.id.clone(), record)).collect())
    }

    pub(crate) async fn template_snapshots(&self) -> Result<BTreeSet<SnapshotId>> {
        let templates = self.inner.store.list_templates(None).await.map_err(store_error)?;
        Ok(templates.into_iter().filter_map(|template| template.spec.snapshot).collect())
    }
}
