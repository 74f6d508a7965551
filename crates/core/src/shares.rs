//! Shares of something that several have together, and of which there is only so much: memory, places.
//!
//! Whoever takes some may have as much as is left to others after that. So one alone has half of all, several who want
//! more than there is have equal parts, and one that comes later finds something, however much the others would take.
//! Nobody waits here: what is refused is for the caller to do without, or to ask for again.
//!
//! [`Tree`] has several steps: projects have shares of all, keys have shares of their project's, and what belongs to a key has
//! shares of the key's.

use std::collections::HashMap;
use std::hash::Hash;

use crate::id::{KeyId, ProjectId};

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

/// A step on the way to whoever takes something: see [`Tree`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Step<T> {
    /// A project.
    Project(ProjectId),
    /// A key.
    Key(KeyId),
    /// What belongs to no key.
    Nobody,
    /// What belongs to these.
    Of(T),
}

/// The steps to a key: one of a project has a share of the project's, and one of none has a share of all. Without a key they
/// lead to what belongs to none.
#[must_use]
pub fn steps<T>(key: Option<&KeyId>, project: Option<&ProjectId>) -> Vec<Step<T>> {
    let key = key.map_or(Step::Nobody, |key| Step::Key(key.clone()));
    project.map(|project| Step::Project(project.clone())).into_iter().chain([key]).collect()
}

/// Shares of shares. At each step those that are there leave as much to each other as [`Shares`] say, of what the step before
/// may have: many keys of one project have no more together than a project, and many things of a key no more than a key.
/// Whoever is at the last step may have all that the one before may have.
#[derive(Debug, Clone)]
pub struct Tree<K> {
    taken: usize,
    /// Of those that have some.
    below: HashMap<K, Self>,
}

impl<K> Default for Tree<K> {
    fn default() -> Self {
        Self { taken: 0, below: HashMap::new() }
    }
}

impl<K: Eq + Hash + Clone> Tree<K> {
    /// Takes so much for whoever is at the end of these steps, of `max` that there is for all; says whether there was enough.
    /// If not, nothing is taken. No steps may go on from where others end.
    #[must_use]
    pub fn take(&mut self, steps: &[K], count: usize, max: usize) -> bool {
        let Some(taken) = self.taken.checked_add(count).filter(|taken| *taken <= max) else { return false };
        if let Some((next, rest)) = steps.split_first() {
            let own = self.below.get(next).map_or(0, |below| below.taken);
            if own.checked_add(count).is_none_or(|own| own > max - taken) {
                return false;
            }
            // As much more as is asked for, so that of an odd number one has the larger half: of one place, that one.
            let most = (max - (self.taken - own)) / 2;
            let below = self.below.entry(next.clone()).or_default();
            let is_taken = below.take(rest, count, most.saturating_add(count));
            if below.taken == 0 {
                self.below.remove(next);
            }
            if !is_taken {
                return false;
            }
        }
        self.taken = taken;
        true
    }

    /// How much is taken at the end of these steps, and beyond.
    #[must_use]
    pub fn own(&self, steps: &[K]) -> usize {
        match steps.split_first() {
            None => self.taken,
            Some((next, rest)) => self.below.get(next).map_or(0, |below| below.own(rest)),
        }
    }

    /// Gives back what was taken at the end of these steps, or a part of it.
    pub fn give_back(&mut self, steps: &[K], count: usize) {
        let count = count.min(self.own(steps));
        self.taken -= count;
        let Some((next, rest)) = steps.split_first() else { return };
        let Some(below) = self.below.get_mut(next) else { return };
        below.give_back(rest, count);
        if below.taken == 0 {
            self.below.remove(next);
        }
    }

    /// How much is taken.
    #[must_use]
    pub const fn taken(&self) -> usize {
        self.taken
    }

    /// How many at the first step have some of it: those that gave all back are forgotten.
    #[must_use]
    pub fn takers(&self) -> usize {
        self.below.len()
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
    fn what_belongs_to_one_leaves_some_to_the_others_of_the_same_and_to_others() {
        let mut tree = Tree::<u8>::default();
        let mut fill =
            |steps: &[u8]| std::iter::from_fn(|| tree.take(steps, 2, MAX).then_some(2)).sum::<usize>();
        assert_eq!(fill(&[1, 1]), MAX / 4, "half of what its owner may have");
        assert_eq!(fill(&[1, 2]), MAX / 8);
        let rest: usize = (3..9).map(|who| fill(&[1, who])).sum();
        assert_eq!(MAX / 4 + MAX / 8 + rest, MAX / 2, "together they have what one owner may have");
        assert_eq!(fill(&[2, 1]), MAX / 8, "half of the half that is another owner's");
        assert!(!tree.take(&[3, 1], MAX, MAX) && !tree.take(&[3, 1], usize::MAX, usize::MAX));
        assert_eq!(tree.takers(), 2, "whoever got nothing is not kept");
        for steps in (1..9).map(|who| [1, who]).chain([[2, 1], [3, 1]]) {
            tree.give_back(&steps, MAX);
        }
        assert_eq!((tree.taken(), tree.takers()), (0, 0));
        assert!(tree.take(&[1, 1], 1, 2) && !tree.take(&[1, 1], 1, 2), "of one place, that one");
        tree.give_back(&[1, 1], 1);
        assert!(tree.take(&[1], MAX / 2, MAX) && !tree.take(&[1], 1, MAX));
        assert_eq!((tree.own(&[1]), tree.own(&[1, 1])), (MAX / 2, 0), "where it ends, all that one may have");
    }

    #[test]
    fn many_keys_of_a_project_have_what_one_project_may_have() {
        let (project, key) = (ProjectId::from_parts(1, 1), |n| KeyId::from_parts(1, n));
        let mut tree = Tree::<Step<u8>>::default();
        let mut fill = |key: Option<&KeyId>, project: Option<&ProjectId>, what: u8| {
            let mut steps = steps(key, project);
            steps.push(Step::Of(what));
            std::iter::from_fn(|| tree.take(&steps, 1, MAX).then_some(())).count()
        };
        assert_eq!(
            fill(Some(&key(1)), Some(&project), 1),
            MAX / 8,
            "of a key's half of the project's half, a half"
        );
        let of_project: usize = (2..40).map(|n| fill(Some(&key(n)), Some(&project), 1)).sum();
        assert!(MAX / 8 + of_project <= MAX / 2, "{of_project}");
        assert!(fill(Some(&key(100)), None, 1) >= MAX / 8, "a key of no project has its share");
        assert!(fill(None, None, 1) > 0, "and so has what is nobody's");
    }
}
