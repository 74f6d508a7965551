//! Memory for output that was read and that a client has not taken yet: a bound for all readers, and a share for each key.
//!
//! A key may hold as much as is free after that. So one key alone has half of all, several have equal parts, and one that
//! comes later finds room, however much the others would take. A reader that finds none takes
//! [`READ_LEAST_BYTES`](super::READ_LEAST_BYTES) at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::KeyId;

/// Bytes that all readers of output may hold together, and who holds them.
#[derive(Debug)]
pub(crate) struct Reading {
    max_bytes: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    all: usize,
    /// Of those that hold something. `None` stands for the server itself.
    keys: HashMap<Option<KeyId>, usize>,
}

/// Bytes that one reader holds, until it is dropped.
#[derive(Debug)]
pub(crate) struct Holding {
    reading: Arc<Reading>,
    key: Option<KeyId>,
    bytes: usize,
}

impl Reading {
    pub(crate) fn new(max_bytes: usize) -> Arc<Self> {
        Arc::new(Self { max_bytes, table: Mutex::default() })
    }

    /// Room for so many bytes, if the share of this key has it.
    pub(crate) fn hold(self: &Arc<Self>, key: Option<&KeyId>, bytes: usize) -> Option<Holding> {
        let key = key.cloned();
        let mut table = self.table();
        let all = table.all.checked_add(bytes).filter(|all| *all <= self.max_bytes)?;
        let own = table.keys.get(&key).copied().unwrap_or_default() + bytes;
        if own > self.max_bytes - all {
            return None;
        }
        table.all = all;
        table.keys.insert(key.clone(), own);
        Some(Holding { reading: Arc::clone(self), key, bytes })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Numbers, each changed at once: a panic leaves them usable as they are.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, key: &Option<KeyId>, bytes: usize) {
        let mut table = self.table();
        table.all = table.all.saturating_sub(bytes);
        if let Some(own) = table.keys.get_mut(key) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                table.keys.remove(key);
            }
        }
    }
}

impl Holding {
    /// Gives back all but so many bytes.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let rest = self.bytes.saturating_sub(bytes);
        self.bytes -= rest;
        self.reading.give_back(&self.key, rest);
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.reading.give_back(&self.key, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_BYTES: usize = 64;

    fn fill(reading: &Arc<Reading>, key: &KeyId) -> Vec<Holding> {
        std::iter::from_fn(|| reading.hold(Some(key), 1)).collect()
    }

    /// Bytes that are held, and for how many keys.
    fn held(reading: &Reading) -> (usize, usize) {
        let table = reading.table();
        (table.all, table.keys.len())
    }

    #[test]
    fn a_key_holds_no_more_than_is_left_to_others() {
        let reading = Reading::new(MAX_BYTES);
        let keys: Vec<_> = (0..4).map(|n| KeyId::from_parts(1, n)).collect();
        let first = fill(&reading, &keys[0]);
        assert_eq!(first.len(), MAX_BYTES / 2);
        let second = fill(&reading, &keys[1]);
        assert_eq!(second.len(), MAX_BYTES / 4, "half of what was left");
        assert!(reading.hold(Some(&keys[0]), 1).is_none(), "the first has more than its share by now");
        assert!(
            reading.hold(Some(&keys[2]), MAX_BYTES / 8).is_some(),
            "there is room for one that comes later"
        );
        assert!(reading.hold(None, MAX_BYTES / 8).is_some(), "and for the server itself");
        drop(first);
        assert_eq!(fill(&reading, &keys[3]).len(), (MAX_BYTES - second.len()) / 2);
        drop(second);
        assert_eq!(held(&reading), (0, 0), "all is given back");
    }

    #[test]
    fn what_was_not_read_is_given_back_and_the_rest_later() {
        let reading = Reading::new(MAX_BYTES);
        let key = KeyId::from_parts(1, 1);
        assert!(reading.hold(Some(&key), MAX_BYTES).is_none());
        assert!(reading.hold(Some(&key), usize::MAX).is_none());
        let mut most = reading.hold(Some(&key), MAX_BYTES / 2).unwrap();
        assert!(reading.hold(Some(&key), 1).is_none());
        most.shrink_to(1);
        most.shrink_to(MAX_BYTES);
        assert_eq!(held(&reading), (1, 1));
        drop(most);
        assert_eq!(held(&reading), (0, 0));
    }
}
