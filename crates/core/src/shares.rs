//! Shares of something that several have together, and of which there is only so much: memory, places.
//!
//! Whoever takes some may have as much as is left to others after that. So one alone has half of all, several who want
//! more than there is have equal parts, and one that comes later finds something, however much the others would take.
//! Nobody waits here: what is refused is for the caller to do without, or to ask for again.
//!
//! [`Nested`] has two steps: owners have shares of all, and what belongs to an owner has shares of the owner's.

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
        let own = self.own(who);
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
        let own = self.own(who);
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

    /// How much `who` has now.
    #[must_use]
    pub fn own(&self, who: &K) -> usize {
        self.of.get(who).copied().unwrap_or_default()
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

/// Shares of which each belongs to an owner: an owner leaves as much to the others as [`Shares`] say, and of what the owner
/// may have, each of its own leaves as much to its others.
#[derive(Debug, Clone)]
pub struct Nested<O, K> {
    owners: Shares<O>,
    /// What each of these owners has, by what belongs to it.
    own: HashMap<O, Shares<K>>,
}

impl<O, K> Default for Nested<O, K> {
    fn default() -> Self {
        Self { owners: Shares::default(), own: HashMap::new() }
    }
}

impl<O: Eq + Hash + Clone, K: Eq + Hash + Clone> Nested<O, K> {
    /// Takes so much for `who`, which belongs to `owner`, of `max` that there is for all; says whether there was enough. If
    /// not, nothing is taken.
    #[must_use]
    pub fn take(&mut self, owner: &O, who: &K, count: usize, max: usize) -> bool {
        // As much more as is asked for, so that of an odd number one has the larger half: of one place, that one.
        let of_owner = self.owners.most(owner, max).saturating_add(count);
        if !self.owners.take(owner, count, max) {
            return false;
        }
        // The first that belongs to an owner always gets it here, so that no owner is kept that has nothing.
        let taken = self.own.entry(owner.clone()).or_default().take(who, count, of_owner);
        if !taken {
            self.owners.give_back(owner, count);
        }
        taken
    }

    /// The same for `who` that is the only one of its owner: it may have all that the owner may have.
    #[must_use]
    pub fn take_alone(&mut self, owner: &O, who: &K, count: usize, max: usize) -> bool {
        // What is not there for the owner is not there for it; of what is, it leaves nothing to others that there are none of.
        self.owners.take(owner, count, max)
            && self.own.entry(owner.clone()).or_default().take(who, count, usize::MAX)
    }

    /// How much `who` has now.
    #[must_use]
    pub fn own(&self, owner: &O, who: &K) -> usize {
        self.own.get(owner).map_or(0, |own| own.own(who))
    }

    /// Gives back what `who` had taken, or a part of it.
    pub fn give_back(&mut self, owner: &O, who: &K, count: usize) {
        let Some(own) = self.own.get_mut(owner) else { return };
        let count = count.min(own.own(who));
        own.give_back(who, count);
        if own.taken() == 0 {
            self.own.remove(owner);
        }
        self.owners.give_back(owner, count);
    }

    /// How much is taken.
    #[must_use]
    pub const fn taken(&self) -> usize {
        self.owners.taken()
    }

    /// How many owners have some of it: those that gave all back are forgotten.
    #[must_use]
    pub fn owners(&self) -> usize {
        self.own.len()
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

    #[test]
    fn what_belongs_to_one_owner_leaves_some_to_the_owners_others_and_to_other_owners() {
        let mut nested = Nested::<u8, u8>::default();
        let mut fill =
            |owner, who| std::iter::from_fn(|| nested.take(&owner, &who, 2, MAX).then_some(2)).sum::<usize>();
        assert_eq!(fill(1, 1), MAX / 4, "half of what its owner may have");
        assert_eq!(fill(1, 2), MAX / 8);
        let rest: usize = (3..9).map(|who| fill(1, who)).sum();
        assert_eq!(MAX / 4 + MAX / 8 + rest, MAX / 2, "together they have what one owner may have");
        assert_eq!(fill(2, 1), MAX / 8, "half of the half that is another owner's");
        assert!(!nested.take(&3, &1, MAX, MAX));
        assert_eq!(nested.owners(), 2, "whoever got nothing is not kept");
        for (owner, who) in (1..9).map(|who| (1, who)).chain([(2, 1), (3, 1)]) {
            nested.give_back(&owner, &who, MAX);
        }
        assert_eq!((nested.taken(), nested.owners()), (0, 0));
        assert!(nested.take(&1, &1, 1, 2) && !nested.take(&1, &1, 1, 2), "of one place, that one");
        nested.give_back(&1, &1, 1);
        assert!(nested.take_alone(&1, &1, MAX / 2, MAX) && !nested.take_alone(&1, &1, 1, MAX));
        assert_eq!((nested.own(&1, &1), nested.taken()), (MAX / 2, MAX / 2), "all of its owner's");
    }
}
