//! Rooms: of something that lasts and that may wait for a client, a registry or a sandbox, there are so many at once.
//!
//! They are [shared](atoll_core::shares): a project has no more rooms than it leaves to others, as has a key of no project,
//! and of a project's rooms a key has no more than it leaves to the project's other keys. Besides, one key has only so many.
//! So whoever comes later finds a room, however many those have who came before. Those that find none wait in a queue, first
//! come, first served; whoever may have none is passed over. However many requests of one key wait, the first of them alone is
//! looked at.
//!
//! A room that is held by a client that hardly sends or takes anything is given up for those that wait: see [`Pace`].

mod pace;
mod queue;

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::{KeyId, ProjectId};
use atoll_core::shares::{Step, Tree, steps};
use tokio::sync::oneshot;

use crate::authorize::Caller;

pub(crate) use pace::Pace;
use queue::Queue;

/// How many rooms there are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Of all together.
    pub(crate) all: usize,
    /// Of one key, at most.
    pub(crate) of_key: usize,
}

/// Who takes a room. Nothing that belongs to a key does so, but the key itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Who(Vec<Step<Infallible>>);

impl Who {
    /// A key, and the project that it belongs to; without either, the server itself.
    pub(crate) fn new(key: Option<&KeyId>, project: Option<&ProjectId>) -> Self {
        Self(steps(key, project))
    }

    pub(crate) fn of(caller: &Caller) -> Self {
        Self::new(caller.key(), caller.project())
    }

    pub(crate) fn is_server(&self) -> bool {
        self.0 == [Step::Nobody]
    }

    /// The steps to it in a tree of [shares](atoll_core::shares).
    pub(crate) fn steps(&self) -> &[Step<Infallible>] {
        &self.0
    }
}

/// The rooms. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Rooms(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    limits: Limits,
    taken: Taken,
    queue: Queue<Place>,
}

/// What is taken.
#[derive(Debug, Clone, Default)]
struct Taken(Tree<Step<Infallible>>);

impl Taken {
    fn take(&mut self, who: &Who, limits: Limits) -> bool {
        let Limits { all, of_key } = limits;
        self.0.own(&who.0) < of_key && self.0.take(&who.0, 1, all)
    }

    fn give_back(&mut self, who: &Who) {
        self.0.give_back(&who.0, 1);
    }
}

/// One room, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    rooms: Rooms,
    who: Who,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.rooms.give_back(&self.who);
    }
}

impl Place {
    /// Whether another key waits for a room, and would have one without this.
    pub(crate) fn is_wanted(&self) -> bool {
        let state = self.rooms.state();
        let mut waiting = state.queue.those().filter(|who| **who != self.who).peekable();
        if waiting.peek().is_none() {
            return false;
        }
        let mut without = state.taken.clone();
        without.give_back(&self.who);
        waiting.any(|who| without.take(who, state.limits))
    }
}

impl Rooms {
    pub(crate) fn new(limits: Limits) -> Self {
        Self(Arc::new(Mutex::new(State { limits, taken: Taken::default(), queue: Queue::default() })))
    }

    /// Waits for a room. Nothing is left of a wait that is given up.
    pub(crate) async fn wait(&self, who: Who) -> Place {
        loop {
            let (tell, told) = oneshot::channel();
            let ticket = {
                let mut state = self.state();
                let State { limits, taken, queue } = &mut *state;
                // Those that wait may have none now, so whoever comes takes none from them.
                if !queue.has(&who) && taken.take(&who, *limits) {
                    return self.place(who);
                }
                queue.push(&who, tell)
            };
            let _waits = Waits { rooms: self, who: &who, ticket };
            // It stays in the queue until it is told.
            if let Ok(place) = told.await {
                return place;
            }
        }
    }

    /// A room, if there is one for `who` now.
    pub(crate) fn take(&self, who: &Who) -> Option<Place> {
        let mut state = self.state();
        let limits = state.limits;
        state.taken.take(who, limits).then(|| self.place(who.clone()))
    }

    fn place(&self, who: Who) -> Place {
        Place { rooms: self.clone(), who }
    }

    /// Takes back the room that `who` had, and gives rooms to those that wait and may have one. Meanwhile nobody comes who
    /// would be before them.
    fn give_back(&self, who: &Who) {
        let mut unwanted = Vec::new();
        let mut state = self.state();
        let State { limits, taken, queue } = &mut *state;
        taken.give_back(who);
        let mut from = 0;
        while let Some((ticket, who)) = queue.next(from) {
            from = ticket.saturating_add(1);
            if !taken.take(who, *limits) {
                continue;
            }
            let who = who.clone();
            let tell = queue.remove(&who, ticket);
            let place = self.place(who);
            unwanted.extend(match tell {
                Some(tell) => tell.send(place).err(),
                None => Some(place),
            });
        }
        drop(state);
        // Each is given back, which needs the lock, and serves others.
        drop(unwanted);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Counts, and a queue of which each change is one step: a panic leaves them usable as they are.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One that waits: it leaves the queue when the wait ends, or is given up.
struct Waits<'a> {
    rooms: &'a Rooms,
    who: &'a Who,
    ticket: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        // What it takes out holds no room.
        drop(self.rooms.state().queue.remove(self.who, self.ticket));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { all: 64, of_key: 8 };

    fn key(n: u64) -> KeyId {
        KeyId::from_parts(1, n)
    }

    fn of_project(n: u64, project: u64) -> Who {
        Who::new(Some(&key(n)), Some(&ProjectId::from_parts(1, project)))
    }

    fn fill(rooms: &Rooms, who: &Who) -> Vec<Place> {
        std::iter::from_fn(|| rooms.take(who)).collect()
    }

    #[test]
    fn many_keys_of_one_project_leave_rooms_to_others() {
        let rooms = Rooms::new(LIMITS);
        let mut held: Vec<_> = (0..20).map(|n| fill(&rooms, &of_project(n, 1))).collect();
        assert_eq!(held[0].len(), LIMITS.of_key);
        let of_the_project: usize = held.iter().map(Vec::len).sum();
        assert_eq!(of_the_project, LIMITS.all / 2, "half of all, however many keys ask");
        let alone = fill(&rooms, &Who::new(Some(&key(100)), None));
        assert_eq!(alone.len(), LIMITS.of_key, "a key of no project");
        let second = fill(&rooms, &of_project(200, 2));
        assert_eq!(second.len(), 6, "one key has half of what its project may have by now");
        drop((alone, second));
        held.clear();
        assert_eq!(rooms.state().taken.0.taken(), 0, "all is given back");
    }

    #[test]
    fn eight_keys_of_no_project_do_not_hold_all_rooms() {
        let rooms = Rooms::new(LIMITS);
        let held: Vec<_> = (0..8).map(|n| fill(&rooms, &Who::new(Some(&key(n)), None))).collect();
        assert!(held.iter().all(|places| !places.is_empty()));
        assert!(rooms.take(&Who::new(Some(&key(8)), None)).is_some(), "a ninth finds one");
        assert!(rooms.take(&of_project(9, 1)).is_some());
    }

    #[tokio::test]
    async fn those_that_wait_come_in_turn_and_who_may_have_none_is_passed_over() {
        let rooms = Rooms::new(Limits { all: 4, of_key: 2 });
        let who = |n| Who::new(Some(&key(n)), None);
        let mut first = fill(&rooms, &who(0));
        assert_eq!(first.len(), 2);
        let mut own = Box::pin(rooms.wait(who(0)));
        assert!(futures::poll!(&mut own).is_pending());
        assert!(!first[0].is_wanted(), "its own requests are no other's");
        let second = rooms.wait(who(1)).await;
        let mut third = Box::pin(rooms.wait(who(2)));
        let mut given_up = Box::pin(rooms.wait(who(3)));
        assert!(futures::poll!(&mut third).is_pending() && futures::poll!(&mut given_up).is_pending());
        assert!(first[0].is_wanted());
        drop(given_up);
        first.pop();
        let std::task::Poll::Ready(third) = futures::poll!(&mut third) else { panic!("it is its turn") };
        assert!(!third.is_wanted(), "who waits has its part");
        assert!(futures::poll!(&mut own).is_pending(), "others have what was its part");
        drop((first, second, third));
        drop(own.await);
        let state = rooms.state();
        assert_eq!((state.taken.0.taken(), state.queue.those().count()), (0, 0), "nothing is left");
    }

    #[tokio::test]
    async fn however_many_of_one_key_wait_one_is_looked_at_and_each_comes_in_its_turn() {
        let rooms = Rooms::new(Limits { all: 4, of_key: 1 });
        let who = |n| Who::new(Some(&key(n)), None);
        let (first, second) = (rooms.wait(who(0)).await, rooms.wait(who(1)).await);
        let third = rooms.wait(who(2)).await;
        let mut greedy: Vec<_> = (0..500).map(|_| Box::pin(rooms.wait(who(0)))).collect();
        let mut late = Box::pin(rooms.wait(who(3)));
        for one in &mut greedy {
            assert!(futures::poll!(one).is_pending());
        }
        assert!(futures::poll!(&mut late).is_pending());
        assert_eq!(rooms.state().queue.those().count(), 2, "each key is looked at once");
        drop(second);
        let std::task::Poll::Ready(late) = futures::poll!(&mut late) else { panic!("it has a share") };
        // The one in front is given up, and the next one is in its place.
        drop(greedy.remove(0));
        drop((first, third, late));
        assert!(futures::poll!(&mut greedy[1]).is_pending(), "its key may have one, and another came before");
        let std::task::Poll::Ready(own) = futures::poll!(&mut greedy[0]) else { panic!("it is its turn") };
        drop(own);
        drop(greedy.remove(1).await);
        drop(greedy);
        let state = rooms.state();
        assert_eq!((state.taken.0.taken(), state.queue.those().count()), (0, 0), "nothing is left");
    }
}
