//! Snapshots and objects that were deleted. The clients ask for them once more, to see that they are gone. The server
//! keeps the last answers about the newest few thousand of them in memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::KeyId;
use serde_json::Value;

/// Most bytes of an answer: a larger one is remembered without what its owner wrote on the thing.
const VIEW_MAX_BYTES: usize = 4 << 10;
/// Most that are remembered.
const KEPT_MAX_COUNT: usize = 5000;

/// A deleted snapshot or object.
#[derive(Debug)]
struct Deleted {
    id: String,
    by: KeyId,
    view: Value,
}

/// The last answers about deleted things, and the keys that deleted them, oldest first. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gone(Arc<Mutex<VecDeque<Deleted>>>);

impl Gone {
    fn list(&self) -> MutexGuard<'_, VecDeque<Deleted>> {
        // The list stays usable when a task panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a thing that a key has deleted.
    pub(crate) fn note(&self, id: String, by: &KeyId, mut view: Value) {
        if view.to_string().len() > VIEW_MAX_BYTES
            && let Some(fields) = view.as_object_mut()
        {
            fields.retain(|_, value| !value.is_object() && !value.is_array());
            fields.insert("metadata".to_owned(), Value::Object(serde_json::Map::new()));
        }
        let mut list = self.list();
        if list.len() >= KEPT_MAX_COUNT {
            // The oldest of who has most goes: nobody pushes out those of others.
            let mut counts = BTreeMap::<&KeyId, usize>::new();
            for deleted in &*list {
                *counts.entry(&deleted.by).or_default() += 1;
            }
            let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(key, _)| key.clone());
            let oldest = list.iter().position(|deleted| most.as_ref() == Some(&deleted.by));
            drop(oldest.and_then(|at| list.remove(at)));
        }
        list.push_back(Deleted { id, by: by.clone(), view });
    }

    /// The last answer about a deleted thing, for the key that deleted it; `None` sees all.
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

    #[test]
    fn nobody_pushes_out_those_of_others() {
        let gone = Gone::default();
        let [one, other] = [1, 2].map(|random| KeyId::from_parts(0, random));
        gone.note("theirs".to_owned(), &other, Value::Null);
        for number in 0..=KEPT_MAX_COUNT {
            gone.note(number.to_string(), &one, Value::Null);
        }
        assert_eq!((gone.find("0", None), gone.find("1", None)), (None, None));
        assert_eq!(gone.find("theirs", Some(&other)), Some(Value::Null));
    }

    #[test]
    fn what_is_remembered_of_one_is_bounded() {
        let gone = Gone::default();
        let key = KeyId::from_parts(0, 1);
        let large = serde_json::json!({"id": "large", "metadata": {"a": "x".repeat(VIEW_MAX_BYTES)}});
        gone.note("large".to_owned(), &key, large);
        let told = serde_json::json!({"id": "large", "metadata": {}});
        assert_eq!(gone.find("large", Some(&key)), Some(told));
    }
}
