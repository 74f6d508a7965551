//! Things that clients send before they use them, in memory, each for the key that sent it.
//!
//! A key has a share of entries and of bytes, and the oldest of what is too much of it go. When all is full, the oldest
//! of the key that has the most go. So no key pushes out what a key with less has.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::KeyId;

use crate::once::Limits;
use crate::time::now_ms;

/// How often entries that are too old are looked for, milliseconds.
const SWEEP_MS: u64 = 60_000;

/// The things. Clones share them.
#[derive(Debug)]
pub struct Kept<T> {
    limits: Limits,
    table: Arc<Mutex<Table<T>>>,
}

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Self {
        Self { limits: self.limits, table: Arc::clone(&self.table) }
    }
}

#[derive(Debug)]
struct Table<T> {
    keys: HashMap<KeyId, Share<T>>,
    /// Entries of all keys, and their bytes.
    count: usize,
    bytes: usize,
    /// The number of the newest entry.
    newest: u64,
    swept_ms: u64,
}

/// What one key has.
#[derive(Debug)]
struct Share<T> {
    by_id: HashMap<String, Entry<T>>,
    /// By their numbers: the oldest first.
    by_age: BTreeMap<u64, String>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry<T> {
    number: u64,
    at_ms: u64,
    bytes: usize,
    what: T,
}

impl<T> Table<T> {
    fn remove(&mut self, key: &KeyId, id: &str) {
        let Some(share) = self.keys.get_mut(key) else { return };
        let Some(entry) = share.by_id.remove(id) else { return };
        share.by_age.remove(&entry.number);
        share.bytes -= entry.bytes;
        self.bytes -= entry.bytes;
        self.count -= 1;
        if share.by_id.is_empty() {
            self.keys.remove(key);
        }
    }

    /// Removes the oldest entry of a key; says whether it had one.
    fn remove_oldest(&mut self, key: &KeyId) -> bool {
        let oldest = self.keys.get(key).and_then(|share| share.by_age.values().next()).cloned();
        if let Some(id) = &oldest {
            self.remove(key, id);
        }
        oldest.is_some()
    }

    /// Makes room for one more entry of a key.
    fn make_room(&mut self, key: &KeyId, bytes: usize, limits: &Limits) {
        let is_full = |share: &Share<T>| {
            share.by_id.len() >= limits.of_key || share.bytes + bytes > limits.bytes_of_key
        };
        while self.keys.get(key).is_some_and(is_full) && self.remove_oldest(key) {}
        while self.count >= limits.all || self.bytes + bytes > limits.bytes_all {
            // Of entries, or of bytes: whichever there are too many of.
            let too_many = self.count >= limits.all;
            let most = self
                .keys
                .iter()
                .max_by_key(|(_, share)| if too_many { share.by_id.len() } else { share.bytes })
                .map(|(key, _)| key.clone());
            if !most.is_some_and(|most| self.remove_oldest(&most)) {
                return;
            }
        }
    }

    fn sweep(&mut self, now: u64, kept_ms: u64) {
        if self.swept_ms.saturating_add(SWEEP_MS) > now {
            return;
        }
        self.swept_ms = now;
        let gone: Vec<(KeyId, String)> = self
            .keys
            .iter()
            .flat_map(|(key, share)| share.by_id.iter().map(move |(id, entry)| (key, id, entry)))
            .filter(|(.., entry)| entry.at_ms.saturating_add(kept_ms) <= now)
            .map(|(key, id, _)| (key.clone(), id.clone()))
            .collect();
        for (key, id) in gone {
            self.remove(&key, &id);
        }
    }
}

impl<T: Clone> Kept<T> {
    /// With nothing in it.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let table = Table { keys: HashMap::new(), count: 0, bytes: 0, newest: 0, swept_ms: now_ms() };
        Self { limits, table: Arc::new(Mutex::new(table)) }
    }

    fn table(&self) -> MutexGuard<'_, Table<T>> {
        // The maps stay usable when a task panics while it holds the lock.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a thing of a key that takes so many bytes, in place of an earlier one with this id. Says whether it did: one
    /// that alone is more than a key may have is not kept.
    #[must_use]
    pub fn put(&self, key: &KeyId, id: &str, bytes: usize, what: T) -> bool {
        let (now, limits) = (now_ms(), &self.limits);
        let mut table = self.table();
        table.sweep(now, limits.kept_ms);
        table.remove(key, id);
        if bytes > limits.bytes_of_key {
            return false;
        }
        table.make_room(key, bytes, limits);
        table.newest += 1;
        table.count += 1;
        table.bytes += bytes;
        let number = table.newest;
        let nothing = || Share { by_id: HashMap::new(), by_age: BTreeMap::new(), bytes: 0 };
        let share = table.keys.entry(key.clone()).or_insert_with(nothing);
        share.bytes += bytes;
        share.by_age.insert(number, id.to_owned());
        share.by_id.insert(id.to_owned(), Entry { number, at_ms: now, bytes, what });
        true
    }

    /// What a key has under this id.
    #[must_use]
    pub fn get(&self, key: &KeyId, id: &str) -> Option<T> {
        let now = now_ms();
        let table = self.table();
        let entry = table.keys.get(key)?.by_id.get(id)?;
        (entry.at_ms.saturating_add(self.limits.kept_ms) > now).then(|| entry.what.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { kept_ms: u64::MAX, of_key: 4, all: 6, bytes_of_key: 100, bytes_all: 150 };

    fn kept() -> (Kept<u32>, [KeyId; 2]) {
        (Kept::new(LIMITS), [1, 2].map(|number| KeyId::from_parts(1, number)))
    }

    #[test]
    fn a_key_has_so_much_and_its_oldest_go() {
        let (kept, [one, other]) = kept();
        for number in 0..5 {
            assert!(kept.put(&one, &number.to_string(), 1, number));
        }
        assert_eq!((kept.get(&one, "0"), kept.get(&one, "4")), (None, Some(4)));
        assert_eq!(kept.get(&other, "4"), None, "each key has its own");
        assert!(kept.put(&one, "large", 99, 9));
        assert_eq!((kept.get(&one, "3"), kept.get(&one, "4")), (None, Some(4)));
        assert!(!kept.put(&one, "large", 101, 9));
        assert_eq!(kept.get(&one, "large"), None);
    }

    #[test]
    fn who_has_the_most_loses_the_oldest() {
        let (kept, [one, other]) = kept();
        assert!(kept.put(&other, "small", 30, 7));
        for number in 0..10 {
            assert!(kept.put(&one, &number.to_string(), 90, number));
        }
        assert!(kept.put(&other, "second", 60, 8));
        assert_eq!((kept.get(&other, "small"), kept.get(&other, "second")), (Some(7), Some(8)));
        assert_eq!(kept.get(&one, "9"), None);
    }
}
