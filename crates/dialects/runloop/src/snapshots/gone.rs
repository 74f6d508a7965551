//! Snapshots that were deleted. The engine forgets them; the clients ask for the status once more, to see that they are
//! gone. What was said last of each is kept in memory, the newest few thousand of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::id::{KeyId, SnapshotId};
use serde_json::Value;

/// Snapshots that are remembered.
const KEPT_MAX_COUNT: usize = 5000;

/// What was said last of snapshots, and who deleted them. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gone(Arc<Mutex<BTreeMap<SnapshotId, (KeyId, Value)>>>);

impl Gone {
    fn table(&self) -> std::sync::MutexGuard<'_, BTreeMap<SnapshotId, (KeyId, Value)>> {
        // A map is usable whatever panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a snapshot that a key has deleted.
    pub(super) fn note(&self, id: SnapshotId, by: &KeyId, view: Value) {
        let mut table = self.table();
        table.insert(id, (by.clone(), view));
        // Ids sort by age.
        while table.len() > KEPT_MAX_COUNT {
            table.pop_first();
        }
    }

    /// What was said of a deleted one, to the key that deleted it; `None` sees all.
    pub(super) fn find(&self, id: &SnapshotId, sees: Option<&KeyId>) -> Option<Value> {
        let table = self.table();
        let (by, view) = table.get(id)?;
        sees.is_none_or(|key| key == by).then(|| view.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_for_who_deleted_them() {
        let gone = Gone::default();
        let [one, other] = [1, 2].map(|random| KeyId::from_parts(0, random));
        let ids: Vec<_> = (0..=KEPT_MAX_COUNT as u64).map(|at| SnapshotId::from_parts(at, 0)).collect();
        for id in &ids {
            gone.note(id.clone(), &one, Value::Null);
        }
        assert_eq!(gone.find(&ids[0], None), None);
        assert_eq!(gone.find(&ids[1], Some(&one)), Some(Value::Null));
        assert_eq!(gone.find(&ids[1], Some(&other)), None);
    }
}
