//! Those that wait for a room, in the order in which they came.
//!
//! One key can have thousands of requests that wait. What the first of them may not have, its others may not have either: so
//! whoever looks for the next one passes over each key once.

use std::collections::{BTreeMap, HashMap};

use tokio::sync::oneshot;

use super::Who;

/// The queue. Who is in it is told of a `T`.
#[derive(Debug)]
pub(super) struct Queue<T> {
    /// Tickets that were given so far.
    given: u64,
    /// Those that wait, by who they are.
    of: HashMap<Who, BTreeMap<u64, oneshot::Sender<T>>>,
    /// The first ticket of each.
    first: BTreeMap<u64, Who>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { given: 0, of: HashMap::new(), first: BTreeMap::new() }
    }
}

impl<T> Queue<T> {
    /// Takes one more in, as the last. Gives its ticket.
    pub(super) fn push(&mut self, who: &Who, tell: oneshot::Sender<T>) -> u64 {
        let ticket = self.given;
        self.given = ticket.saturating_add(1);
        let own = self.of.entry(who.clone()).or_default();
        if own.is_empty() {
            self.first.insert(ticket, who.clone());
        }
        own.insert(ticket, tell);
        ticket
    }

    /// Takes one out, if it is still there.
    pub(super) fn remove(&mut self, who: &Who, ticket: u64) -> Option<oneshot::Sender<T>> {
        let own = self.of.get_mut(who)?;
        let tell = own.remove(&ticket)?;
        let next = own.keys().next().copied();
        if self.first.remove(&ticket).is_some()
            && let Some(next) = next
        {
            self.first.insert(next, who.clone());
        }
        if next.is_none() {
            self.of.remove(who);
        }
        Some(tell)
    }

    /// Whether some of `who` wait.
    pub(super) fn has(&self, who: &Who) -> bool {
        self.of.contains_key(who)
    }

    /// The first with this ticket or a later one, of those that are the first of theirs.
    pub(super) fn next(&self, from: u64) -> Option<(u64, &Who)> {
        self.first.range(from..).next().map(|(ticket, who)| (*ticket, who))
    }

    /// Each of those that wait once, in the order in which they came.
    pub(super) fn those(&self) -> impl Iterator<Item = &Who> {
        self.first.values()
    }
}
