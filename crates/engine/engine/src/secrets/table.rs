//! Secrets in memory, as sealed as they are in the database.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use atoll_core::id::{ProjectId, SandboxId};
use atoll_store::SecretRecord;

/// Whose a secret is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// That of all keys that are of no project.
    Installation,
    /// A project's.
    Project(ProjectId),
    /// One sandbox's.
    Sandbox(SandboxId),
}

impl Owner {
    pub(super) fn project(project: Option<&ProjectId>) -> Self {
        project.cloned().map_or(Self::Installation, Self::Project)
    }

    /// As the database keeps it.
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Installation => "",
            Self::Project(project) => project.as_str(),
            Self::Sandbox(sandbox) => sandbox.as_str(),
        }
    }
}

type Map = BTreeMap<(Owner, String), Arc<SecretRecord>>;

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

    pub(super) fn find(&self, owner: Owner, name: &str) -> Option<Arc<SecretRecord>> {
        self.read().get(&(owner, name.to_owned())).cloned()
    }

    /// Those of one owner, by name.
    pub(super) fn of(&self, owner: &Owner) -> Vec<Arc<SecretRecord>> {
        let map = self.read();
        map.iter().filter(|((of, _), _)| of == owner).map(|(_, record)| Arc::clone(record)).collect()
    }

    pub(super) fn put(&self, record: SecretRecord) {
        self.write().insert(key(&record), Arc::new(record));
    }

    pub(super) fn remove(&self, record: &SecretRecord) {
        self.write().remove(&key(record));
    }

    pub(super) fn forget(&self, sandbox: &SandboxId) {
        self.write().retain(|_, record| record.sandbox.as_ref() != Some(sandbox));
    }

    /// Takes what the database holds in place of everything.
    pub(super) fn replace(&self, records: Vec<SecretRecord>) {
        let new = records.into_iter().map(|record| (key(&record), Arc::new(record))).collect();
        *self.write() = new;
    }
}

fn key(record: &SecretRecord) -> (Owner, String) {
    let owner = match &record.sandbox {
        Some(sandbox) => Owner::Sandbox(sandbox.clone()),
        None => Owner::project(record.project.as_ref()),
    };
    (owner, record.name.clone())
}
