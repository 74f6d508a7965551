//! A page of a list that is read in an order that is not quite the list's: the newest of what was read, and no more.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::devboxes::PAGE_MAX_BYTES;

/// The newest items until now, by ids that sort by age.
#[derive(Debug)]
pub(crate) struct Newest<K> {
    limit: usize,
    /// Each with its length as a text.
    kept: BTreeMap<K, (Value, usize)>,
    bytes: usize,
    more: bool,
}

impl<K: Ord> Newest<K> {
    /// So many at most, at least one.
    pub(crate) const fn new(limit: usize) -> Self {
        Self { limit, kept: BTreeMap::new(), bytes: 0, more: false }
    }

    /// Takes an item, and lets older ones go that the page has no room for: it ends with the one with which it has
    /// [`PAGE_MAX_BYTES`].
    pub(crate) fn take(&mut self, id: K, view: Value) {
        let bytes = view.to_string().len();
        self.bytes += bytes;
        self.kept.insert(id, (view, bytes));
        while let Some((_, (_, oldest))) = self.kept.first_key_value() {
            let without = self.bytes - *oldest;
            if self.kept.len() <= self.limit && without < PAGE_MAX_BYTES {
                break;
            }
            self.kept.pop_first();
            (self.bytes, self.more) = (without, true);
        }
    }

    /// The items, newest first, and whether there are older ones.
    pub(crate) fn page(self) -> (Vec<Value>, bool) {
        (self.kept.into_values().rev().map(|(view, _)| view).collect(), self.more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(limit: usize, items: &[(u32, &str)]) -> (Vec<Value>, bool) {
        let mut newest = Newest::new(limit);
        for (id, view) in items {
            newest.take(*id, (*view).into());
        }
        newest.page()
    }

    #[test]
    fn the_newest_are_kept_in_any_order() {
        assert_eq!(page(2, &[]), (Vec::new(), false));
        let (one, two, three) = ((1, "one"), (2, "two"), (3, "three"));
        assert_eq!(page(2, &[two, one]), (vec!["two".into(), "one".into()], false));
        for items in [[one, two, three], [three, one, two], [two, three, one]] {
            assert_eq!(page(2, &items), (vec!["three".into(), "two".into()], true));
            assert_eq!(page(3, &items).0.len(), 3);
        }
    }

    #[test]
    fn a_page_has_so_many_bytes_and_one_at_least() {
        let (half, large) = ("x".repeat(PAGE_MAX_BYTES / 2), "y".repeat(2 * PAGE_MAX_BYTES));
        let halves = [1, 2, 3].map(|id| (id, half.as_str()));
        let (items, more) = page(100, &halves);
        assert_eq!((items.len(), more), (2, true));
        assert_eq!(page(100, &[(2, large.as_str()), (1, "x")]), (vec![large.as_str().into()], true));
        assert_eq!(page(100, &[(2, "x"), (1, large.as_str())]).0.len(), 2);
    }
}
