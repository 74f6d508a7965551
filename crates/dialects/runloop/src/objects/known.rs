//! What is known of all objects without reading them: whose they are, how old and how large, and when their time is over. It
//! is made of the directory when it is first asked for; only this server writes there.

use std::collections::BTreeMap;

use atoll_core::id::KeyId;

use super::shelf::Object;

/// What is known of the objects.
#[derive(Debug, Default)]
pub(super) struct Known(BTreeMap<String, Entry>);

#[derive(Debug)]
struct Entry {
    owner: String,
    created_at_ms: u64,
    bytes: u64,
    end_ms: Option<u64>,
}

/// Number and bytes of objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) count: usize,
    pub(crate) bytes: u64,
}

impl Totals {
    fn add(&mut self, entry: &Entry) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(entry.bytes);
    }
}

impl Entry {
    fn is_over(&self, now: u64) -> bool {
        self.end_ms.is_some_and(|end| now > end)
    }
}

impl Known {
    /// An object is there, or has changed.
    pub(super) fn note(&mut self, object: &Object) {
        let entry = Entry {
            owner: object.owner.clone(),
            created_at_ms: object.created_at_ms,
            bytes: object.size_bytes.unwrap_or(0),
            end_ms: object.end_ms(),
        };
        self.0.insert(object.id.clone(), entry);
    }

    /// There is something of an object, which is none any more, or not yet.
    pub(super) fn note_rest(&mut self, id: &str) {
        let rest = Entry { owner: String::new(), created_at_ms: 0, bytes: 0, end_ms: Some(0) };
        self.0.insert(id.to_owned(), rest);
    }

    pub(super) fn forget(&mut self, id: &str) {
        self.0.remove(id);
    }

    /// The ids of those whose time is over.
    pub(super) fn over(&self, now: u64) -> Vec<String> {
        self.0.iter().filter(|(_, entry)| entry.is_over(now)).map(|(id, _)| id.clone()).collect()
    }

    /// The ids of a key's objects, newest first.
    pub(super) fn ids(&self, owner: &KeyId, now: u64) -> Vec<String> {
        let own = self.0.iter().filter(|(_, entry)| entry.owner == owner.as_str() && !entry.is_over(now));
        let mut own: Vec<(u64, &String)> = own.map(|(id, entry)| (entry.created_at_ms, id)).collect();
        own.sort_unstable_by(|one, other| other.cmp(one));
        own.into_iter().map(|(_, id)| id.clone()).collect()
    }

    /// The totals of a key, and of all.
    pub(super) fn totals(&self, owner: &KeyId, now: u64) -> (Totals, Totals) {
        let (mut own, mut all) = (Totals::default(), Totals::default());
        for entry in self.0.values().filter(|entry| !entry.is_over(now)) {
            all.add(entry);
            if entry.owner == owner.as_str() {
                own.add(entry);
            }
        }
        (own, all)
    }
}
