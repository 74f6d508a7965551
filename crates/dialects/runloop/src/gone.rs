//! Snapshots and objects that were deleted. The clients ask for them once more, to see that they are gone. What was said
//! last of each is kept in memory, the newest few thousand of them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::KeyId;
use serde_json::Value;

/// Those that are remembered.
const KEPT_MAX_COUNT: usize = 5000;

/// What was deleted.
#[derive(Debug)]
struct Deleted {
    id: String,
    by: KeyId,
    view: Value,
}

/// What was said last of what is gone, and who deleted it, oldest first. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gone(Arc<Mutex<VecDeque<Deleted>>>);

impl Gone {
    fn list(&self) -> MutexGuard<'_, VecDeque<Deleted>> {
        // A list is usable whatever panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers what a key has deleted.
    pub(crate) fn note(&self, id: String, by: &KeyId, view: Value) {
        let mut list = self.list();
        if list.len() >= KEPT_MAX_COUNT {
            list.pop_front();
        }
        list.push_back(Deleted { id, by: by.clone(), view });
    }

    /// What was said of a deleted one, to the key that deleted it; `None` sees all.
    pub(crate) fn find(&self, id: &str, sees: Option<&KeyId>) -> Option<Value> {
        let list = self.list();
        let found = list.iter().find(|deleted| deleted.id == id)?;
        sees.is_none_or(|key| *key == found.by).then(|| found.view.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_for_who_deleted_them() {
        let gone = Gone::default();
        let [one, other] = [1, 2].map(|random| KeyId::from_parts(0, random));
        for number in 0..=KEPT_MAX_COUNT {
            gone.note(number.to_string(), &one, Value::Null);
        }
        assert_eq!(gone.find("0", None), None);
        assert_eq!(gone.find("1", Some(&one)), Some(Value::Null));
        assert_eq!(gone.find("1", Some(&other)), None);
    }
}
