//! Shares of something that several have together, and of which there is only so much: memory, places.
//!
//! Whoever takes some may have as much as is left to others after that. So one alone has half of all, several who want
//! more than there is have equal parts, and one that comes later finds something, however much the others would take.
//! Nobody waits: what is refused is for the caller to do without.

use std::collections::HashMap;
use std::hash::Hash;

/// How much of something is taken, and by whom.
#[derive(Debug, Clone)]
pub struct Shares<K> {
    taken: usize,
    /// Of those that have some.
    of: HashMap<K, usize>,
}

impl<K> Default for Shares<K> {
    fn default() -> Self {
        Self { taken: 0, of: HashMap::new() }
    }
}

impl<K: Eq + Hash + Clone> Shares<K> {
    /// Takes so much for `who`, of `max` that there is for all; says whether there was enough. If not, nothing is taken.
    #[must_use]
    pub fn take(&mut self, who: &K, count: usize, max: usize) -> bool {
        let own = self.of.get(who).copied().unwrap_or_default();
        let (Some(taken), Some(own)) = (self.taken.checked_add(count), own.checked_add(count)) else {
            return false;
        };
        if max.checked_sub(taken).is_none_or(|left| own > left) {
            return false;
        }
        self.taken = taken;
        if own > 0 {
            self.of.insert(who.clone(), own);
        }
        true
    }

    /// How much `who` may have of `max` as long as the others have what they have, with what it has now.
    #[must_use]
    pub fn most(&self, who: &K, max: usize) -> usize {
        let own = self.of.get(who).copied().unwrap_or_default();
        max.saturating_sub(self.taken.saturating_sub(own)) / 2
    }

    /// Gives back what `who` had taken, or a part of it.
    pub fn give_back(&mut self, who: &K, count: usize) {
        let Some(own) = self.of.get_mut(who) else { return };
        let count = count.min(*own);
        *own -= count;
        self.taken -= count;
        if *own == 0 {
            self.of.remove(who);
        }
    }

    /// How much is taken.
    #[must_use]
    pub const fn taken(&self) -> usize {
        self.taken
    }

    /// How many have some of it: those that gave all back are forgotten.
    #[must_use]
    pub fn takers(&self) -> usize {
        self.of.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 64;

    fn fill(shares: &mut Shares<&'static str>, who: &'static str) -> usize {
        std::iter::from_fn(|| shares.take(&who, 1, MAX).then_some(())).count()
    }

    #[test]
    fn nobody_has_more_than_is_left_to_others() {
        let mut shares = Shares::default();
        assert_eq!(shares.most(&"first", MAX), MAX / 2);
        assert_eq!(fill(&mut shares, "first"), MAX / 2);
        assert_eq!(shares.most(&"first", MAX), MAX / 2, "with what it has");
        assert_eq!(shares.most(&"second", MAX), MAX / 4);
        assert_eq!(fill(&mut shares, "second"), MAX / 4, "half of what was left");
        assert!(!shares.take(&"first", 1, MAX), "it has more than its share by now");
        assert!(shares.take(&"third", MAX / 8, MAX), "there is some for one that comes later");
        assert_eq!((shares.taken(), shares.takers()), (MAX / 2 + MAX / 4 + MAX / 8, 3));
        shares.give_back(&"third", MAX / 8);
        shares.give_back(&"first", MAX / 2);
        assert_eq!(fill(&mut shares, "fourth"), (MAX - MAX / 4) / 2);
        for who in ["second", "fourth"] {
            shares.give_back(&who, MAX);
        }
        assert_eq!((shares.taken(), shares.takers()), (0, 0), "all is given back, and nobody is kept");
    }

    #[test]
    fn what_is_refused_takes_nothing() {
        let mut shares = Shares::default();
        for count in [MAX / 2 + 1, MAX, MAX + 1, usize::MAX] {
            assert!(!shares.take(&"greedy", count, MAX), "{count}");
        }
        assert!(shares.take(&"modest", 1, MAX) && !shares.take(&"greedy", usize::MAX, usize::MAX));
        shares.give_back(&"greedy", 1);
        assert_eq!((shares.taken(), shares.takers()), (1, 1));
    }
}
