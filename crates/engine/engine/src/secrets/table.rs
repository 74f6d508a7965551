//! Secrets in memory, as sealed as they are in the database.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use atoll_core::id::SandboxId;
use atoll_store::SecretRecord;

/// By owner (none for the installation) and name.
type Map = BTreeMap<(Option<SandboxId>, String), Arc<SecretRecord>>;

#[derive(Debug)]
pub(super) struct Table {
    map: RwLock<Map>,
}

impl Table {
    pub(super) fn new(records: Vec<SecretRecord>) -> Self {
        let map = records.into_iter().map(|record| (key(&record), Arc::new(record))).collect();
        Self { map: RwLock::new(map) }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.read().len()
    }

    pub(super) fn find(&self, sandbox: Option<&SandboxId>, name: &str) -> Option<Arc<SecretRecord>> {
        self.read().get(&(sandbox.cloned(), name.to_owned())).cloned()
    }

    /// Those of the installation, by name.
    pub(super) fn shared(&self) -> Vec<SecretRecord> {
        let map = self.read();
        let shared = map.iter().take_while(|((owner, _), _)| owner.is_none());
        shared.map(|(_, record)| SecretRecord::clone(record)).collect()
    }

    /// Those of one sandbox.
    pub(super) fn private(&self, sandbox: &SandboxId) -> Vec<Arc<SecretRecord>> {
        let map = self.read();
        map.values().filter(|record| record.sandbox.as_ref() == Some(sandbox)).cloned().collect()
    }

    pub(super) fn put(&self, record: SecretRecord) {
        self.write().insert(key(&record), Arc::new(record));
    }

    pub(super) fn remove(&self, record: &SecretRecord) {
        self.write().remove(&key(record));
    }

    pub(super) fn forget(&self, sandbox: &SandboxId) {
        self.write().retain(|(owner, _), _| owner.as_ref() != Some(sandbox));
    }

    /// Takes what the database holds in place of everything.
    pub(super) fn replace(&self, records: Vec<SecretRecord>) {
        let new = records.into_iter().map(|record| (key(&record), Arc::new(record))).collect();
        *self.write() = new;
    }
}

fn key(record: &SecretRecord) -> (Option<SandboxId>, String) {
    (record.sandbox.clone(), record.name.clone())
}
