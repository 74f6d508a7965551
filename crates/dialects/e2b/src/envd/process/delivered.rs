//! How far the output of a process was delivered: whoever connects goes on from there, and misses nothing that was
//! written while nobody was connected.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::id::ExecId;

/// Processes that are remembered. One that is not is told from its beginning.
const PROCESSES_MAX: usize = 16_384;

/// Offsets, one for each process that somebody read. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Delivered(Arc<Mutex<HashMap<ExecId, u64>>>);

impl Delivered {
    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<ExecId, u64>> {
        // A map of numbers is usable whatever panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn offset(&self, exec: &ExecId) -> u64 {
        self.table().get(exec).copied().unwrap_or_default()
    }

    pub(super) fn note(&self, exec: &ExecId, offset: u64) {
        let mut table = self.table();
        if let Some(known) = table.get_mut(exec) {
            *known = offset.max(*known);
            return;
        }
        if table.len() >= PROCESSES_MAX
            // Ids sort by age.
            && let Some(oldest) = table.keys().min().cloned()
        {
            table.remove(&oldest);
        }
        table.insert(exec.clone(), offset);
    }
}
