//! Accesses in memory: looking one up is on the path of every request to a port.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use atoll_core::Result;
use atoll_core::id::{AccessId, SandboxId};
use atoll_store::{AccessRecord, Store};
use tokio_util::sync::CancellationToken;

use crate::errors::store_error;

/// One access, and the sign that it was taken back.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) record: AccessRecord,
    /// Fires when it is taken back: what was let in through it is cut.
    pub(super) revoked: CancellationToken,
}

impl Entry {
    pub(super) fn is_over(&self, now_ms: u64) -> bool {
        self.record.expires_ms.is_some_and(|end| end <= now_ms)
    }
}

/// Every access that was made and not taken back.
#[derive(Debug, Default)]
pub(crate) struct ShareLinks {
    maps: RwLock<Maps>,
}

#[derive(Debug, Default)]
struct Maps {
    by_hash: BTreeMap<Vec<u8>, Arc<Entry>>,
    by_sandbox: BTreeMap<SandboxId, Vec<Arc<Entry>>>,
}

impl ShareLinks {
    pub(crate) async fn load(store: &Store) -> Result<Self> {
        let cache = Self::default();
        for record in store.list_accesses().await.map_err(store_error)? {
            cache.put(record);
        }
        Ok(cache)
    }

    /// Reads those of a sandbox that came from another node.
    pub(crate) async fn reload(&self, store: &Store, sandbox: &SandboxId) -> Result<()> {
        let stored = store.list_accesses().await.map_err(store_error)?;
        self.remove_if(|entry| entry.record.sandbox == *sandbox);
        stored.into_iter().filter(|record| record.sandbox == *sandbox).for_each(|record| self.put(record));
        Ok(())
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Maps> {
        self.maps.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Maps> {
        self.maps.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, record: AccessRecord) {
        let entry = Arc::new(Entry { record, revoked: CancellationToken::new() });
        let mut maps = self.write();
        if let Some(hash) = &entry.record.hash {
            maps.by_hash.insert(hash.clone(), Arc::clone(&entry));
        }
        maps.by_sandbox.entry(entry.record.sandbox.clone()).or_default().push(entry);
    }

    pub(super) fn by_hash(&self, hash: &[u8]) -> Option<Arc<Entry>> {
        self.read().by_hash.get(hash).cloned()
    }

    pub(super) fn by_id(&self, sandbox: &SandboxId, id: &AccessId) -> Option<Arc<Entry>> {
        self.read().by_sandbox.get(sandbox)?.iter().find(|entry| entry.record.id == *id).cloned()
    }

    /// The public access to a port, if there is one now.
    pub(super) fn public(&self, sandbox: &SandboxId, port: u16, now_ms: u64) -> Option<Arc<Entry>> {
        let maps = self.read();
        let fits = |entry: &&Arc<Entry>| {
            entry.record.hash.is_none() && entry.record.target.covers_port(port) && !entry.is_over(now_ms)
        };
        maps.by_sandbox.get(sandbox)?.iter().find(fits).cloned()
    }

    /// Those of a sandbox, the oldest first.
    pub(super) fn of(&self, sandbox: &SandboxId) -> Vec<AccessRecord> {
        let maps = self.read();
        maps.by_sandbox
            .get(sandbox)
            .map(|entries| entries.iter().map(|entry| entry.record.clone()).collect())
            .unwrap_or_default()
    }

    /// Forgets what `over` says, and cuts what was let in through it.
    fn remove_if(&self, over: impl Fn(&Entry) -> bool) {
        let mut maps = self.write();
        maps.by_hash.retain(|_, entry| !over(entry));
        maps.by_sandbox.retain(|_, entries| {
            entries.retain(|entry| {
                let gone = over(entry);
                if gone {
                    entry.revoked.cancel();
                }
                !gone
            });
            !entries.is_empty()
        });
    }

    pub(super) fn remove(&self, id: &AccessId) {
        self.remove_if(|entry| entry.record.id == *id);
    }

    /// Forgets what has ended, and what belongs to sandboxes that are gone.
    pub(super) fn prune(&self, now_ms: u64, is_there: impl Fn(&SandboxId) -> bool) {
        self.remove_if(|entry| entry.is_over(now_ms) || !is_there(&entry.record.sandbox));
    }
}
