//! Whose records there are, and how old they are: so a list reads those of its caller, and a new record none. It is made of
//! the directory when it is first asked for; only this server writes there.

use std::collections::{BTreeMap, BTreeSet};

use atoll_core::id::KeyId;

/// The records of one kind.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// When each was made, and its id, by the key that made it.
    of: BTreeMap<KeyId, BTreeSet<(u64, String)>>,
}

impl Index {
    /// Adds a record, unless it is known.
    pub(super) fn add(&mut self, owner: &KeyId, created_ms: u64, id: &str) {
        self.of.entry(owner.clone()).or_default().insert((created_ms, id.to_owned()));
    }

    pub(super) fn remove(&mut self, owner: &KeyId, created_ms: u64, id: &str) {
        if let Some(own) = self.of.get_mut(owner) {
            own.remove(&(created_ms, id.to_owned()));
            if own.is_empty() {
                self.of.remove(owner);
            }
        }
    }

    /// How many there are, of all keys and of one.
    pub(super) fn counts(&self, owner: &KeyId) -> (usize, usize) {
        (self.of.values().map(BTreeSet::len).sum(), self.of.get(owner).map_or(0, BTreeSet::len))
    }

    /// The ids of a key's records, or of all, newest first.
    pub(super) fn ids(&self, owner: Option<&KeyId>) -> Vec<String> {
        let own: Vec<&BTreeSet<_>> = match owner {
            Some(owner) => self.of.get(owner).into_iter().collect(),
            None => self.of.values().collect(),
        };
        let mut found: Vec<&(u64, String)> = own.into_iter().flatten().collect();
        found.sort_unstable_by(|one, other| other.cmp(one));
        found.into_iter().map(|(_, id)| id.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_a_key_newest_first() {
        let [one, other] = [1, 2].map(|random| KeyId::from_parts(1, random));
        let mut index = Index::default();
        for (owner, created_ms, id) in [(&one, 1, "a"), (&other, 2, "b"), (&one, 3, "c"), (&one, 3, "c")] {
            index.add(owner, created_ms, id);
        }
        assert_eq!(index.ids(Some(&one)), ["c", "a"]);
        assert_eq!(index.ids(None), ["c", "b", "a"]);
        assert_eq!((index.counts(&one), index.counts(&other)), ((3, 2), (3, 1)));
        index.remove(&other, 2, "b");
        index.remove(&other, 2, "b");
        assert!(index.ids(Some(&other)).is_empty());
        assert_eq!(index.counts(&other), (2, 0));
    }
}
