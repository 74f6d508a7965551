//! How far the output of a process was delivered: a client that connects goes on from there, and also gets the output
//! that was written while no client was connected.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::id::ExecId;

/// Processes that are remembered at most. For a process that is not, output starts from its beginning.
const PROCESSES_MAX: usize = 16_384;

/// Offsets, one for each process that a client read. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Delivered(Arc<Mutex<HashMap<ExecId, u64>>>);

impl Delivered {
    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<ExecId, u64>> {
        // The map of numbers stays usable when a task panics while it holds the lock.
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
