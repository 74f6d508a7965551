//! The sandboxes that run, as far as this process knows them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::SandboxId;

/// All of them, by id.
#[derive(Debug)]
pub struct Live<T>(Mutex<HashMap<SandboxId, Arc<T>>>);

impl<T> Default for Live<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Live<T> {
    /// Enters one; another of the same id is forgotten.
    pub fn insert(&self, id: &SandboxId, one: Arc<T>) {
        self.lock().insert(id.clone(), one);
    }

    /// What is known of one.
    #[must_use]
    pub fn get(&self, id: &SandboxId) -> Option<Arc<T>> {
        self.lock().get(id).cloned()
    }

    /// Forgets one; gives what was known of it.
    pub fn remove(&self, id: &SandboxId) -> Option<Arc<T>> {
        self.lock().remove(id)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
