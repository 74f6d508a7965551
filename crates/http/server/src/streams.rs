//! Answers that go on or are long: output that is followed, files, archives, pages of output, WebSockets. The server holds
//! bytes of each for a client that does not read, on a connection of HTTP/2 for hundreds at once, so a key has only so
//! many places for them, and so have the links to a sandbox's files, or to one object of a dialect, together. Of the places
//! that there are for all links, those to what one project or owner has have a share, and of that share those to one sandbox's
//! files, or to one object: anybody may have a link, and leaves places for the others. When many have ended, the memory that
//! they had goes back to the kernel.
//!
//! Each request has a [`Turn`]. When the request's right becomes known ([`GrantSlot::fill`](crate::revocation::GrantSlot::fill)) and the request may change
//! something, or asks for another protocol, it takes a place: a request that gets none has done nothing. It gives the
//! place back when its answer turns out to be short, else with the answer's body, or with the task that serves the
//! switched connection: that holds the connection's [`Slot`](crate::serve::Slot), which holds the turn. A request that only reads takes its
//! place when its answer turns out to be long.
//!
//! What a node of a cluster passes on to another is counted at both: each holds bytes for the client.
//!
//! SSH connections and their sessions have places among these, too ([`SshPlaces`](crate::ssh::SshPlaces)): a [`Lasting`] each.

mod links;
mod turn;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use atoll_core::id::KeyId;
use atoll_core::{Code, Error};
use atoll_engine::Grant;
use tokio::sync::Notify;

use links::{LinkPlace, Links};
pub(crate) use links::{Linked, Owner};
pub(crate) use turn::{Elsewhere, Turn};

/// As many counts are kept before those of which nothing is open are removed.
const COUNTS_MIN: usize = 1024;
/// So many open answers are worth that memory is given back after them.
const MANY_COUNT: usize = 64;
/// Pause before memory is given back: when many answers have ended, others are ending.
const ENDING: Duration = Duration::from_secs(1);
/// How often memory is given back at most.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(10);

/// Whose answers are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Whose {
    Key(KeyId),
    /// Anybody has these. They do not take the places of the key that made them.
    LinksTo(Linked),
}

impl Whose {
    fn of(grant: &Grant) -> Option<Self> {
        match grant.caller() {
            Some(caller) => caller.key().cloned().map(Self::Key),
            None => grant.sandbox().cloned().map(Linked::Sandbox).map(Self::LinksTo),
        }
    }

    fn refused(&self, most: usize) -> Error {
        let (whose, others) = match self {
            Self::Key(_) => ("the key has", "another key has places of its own"),
            Self::LinksTo(Linked::Sandbox(_)) => {
                ("the links to this sandbox have", "a key has places of its own")
            }
            Self::LinksTo(Linked::Object(_)) => {
                ("the addresses of this object have", "a key has places of its own")
            }
        };
        let message = format!("{whose} {most} answers open that go on or are long");
        Error::new(Code::LimitExceeded, message)
            .hint(format!("read or close some of those streams and downloads; {others}"))
    }
}

/// How many such answers are open.
#[derive(Debug, Clone, Default)]
pub(crate) struct Streams(Arc<All>);

#[derive(Debug, Default)]
struct All {
    table: RwLock<Counts>,
    /// Places that links have.
    links: Links,
    /// Places that are taken.
    open: AtomicUsize,
    /// The most that there were since memory was given back.
    most: AtomicUsize,
    /// Most of many answers have ended.
    many_ended: Notify,
}

#[derive(Debug, Default)]
struct Counts {
    counts: HashMap<Whose, Arc<AtomicUsize>>,
    /// So many were left when they were swept last.
    left: usize,
}

/// One of the places, until it is dropped.
#[derive(Debug)]
struct Place {
    count: Arc<AtomicUsize>,
    all: Arc<All>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        let open = self.all.open.fetch_sub(1, Ordering::Relaxed).saturating_sub(1);
        let most = self.all.most.load(Ordering::Relaxed);
        if most >= MANY_COUNT && open <= most / 4 {
            self.all.most.store(open, Ordering::Relaxed);
            self.all.many_ended.notify_one();
        }
    }
}

/// A place that no request has.
#[derive(Debug)]
pub(crate) struct Lasting {
    _own: Place,
    _link: Option<LinkPlace>,
}

impl Streams {
    /// A place of a key that no request has. `most` are those of a key.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`].
    pub(crate) fn hold(&self, key: &KeyId, most: usize) -> Result<Lasting, Error> {
        let whose = Whose::Key(key.clone());
        let own = self.take(&whose, most).ok_or_else(|| whose.refused(most))?;
        Ok(Lasting { _own: own, _link: None })
    }

    /// The same for who came by a link to this, which this owner has.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`].
    pub(crate) fn hold_by_link(
        &self,
        linked: &Linked,
        owner: Owner<'_>,
        most: usize,
    ) -> Result<Lasting, Error> {
        let (own, link) = self.take_for_link(linked, owner, most)?;
        Ok(Lasting { _own: own, _link: Some(link) })
    }

    fn take(&self, whose: &Whose, most: usize) -> Option<Place> {
        let count = self.count(whose);
        let before = count.fetch_add(1, Ordering::Relaxed);
        let open = self.0.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.most.fetch_max(open, Ordering::Relaxed);
        // Dropped, and so given back, if it is one too many.
        let place = Place { count, all: Arc::clone(&self.0) };
        (before < most).then_some(place)
    }

    /// The places of a link to this, which this owner has. `most` are the places of a key.
    fn take_for_link(
        &self,
        linked: &Linked,
        owner: Owner<'_>,
        most: usize,
    ) -> Result<(Place, LinkPlace), Error> {
        let whose = Whose::LinksTo(linked.clone());
        let own = self.take(&whose, most).ok_or_else(|| whose.refused(most))?;
        let link = self.0.links.take(linked, owner, most).ok_or_else(|| {
            let message = match linked {
                Linked::Sandbox(_) => {
                    "the links to files of this sandbox, or of its owner's, have all downloads open that they may"
                }
                Linked::Object(_) => {
                    "the addresses of this object, or of its owner's, have all requests open that they may"
                }
            };
            Error::new(Code::LimitExceeded, message).hint("try again when some of these have ended")
        })?;
        Ok((own, link))
    }

    /// Calls `give_back` each time when most of many answers have ended.
    pub(crate) async fn give_memory_back(&self, give_back: fn()) {
        loop {
            self.0.many_ended.notified().await;
            tokio::time::sleep(ENDING).await;
            if let Err(error) = tokio::task::spawn_blocking(give_back).await {
                tracing::error!(%error, "memory is not given back");
            }
            tokio::time::sleep(GIVE_BACK_EVERY).await;
        }
    }

    fn count(&self, whose: &Whose) -> Arc<AtomicUsize> {
        // One map: a panic leaves it usable as it is.
        let known = self.0.table.read().unwrap_or_else(PoisonError::into_inner).counts.get(whose).cloned();
        if let Some(count) = known {
            return count;
        }
        let mut table = self.0.table.write().unwrap_or_else(PoisonError::into_inner);
        if table.counts.len() >= COUNTS_MIN.max(2 * table.left) {
            // The map alone has the counts of which no place is taken.
            table.counts.retain(|_, count| Arc::strong_count(count) > 1);
            table.left = table.counts.len();
        }
        Arc::clone(table.counts.entry(whose.clone()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::id::SandboxId;

    #[test]
    fn places_are_given_back_and_counts_of_nobody_are_removed() {
        let streams = Streams::default();
        let whose = |n: u64| Whose::Key(KeyId::from_parts(n, n));
        let (first, second) = (streams.take(&whose(0), 2), streams.take(&whose(0), 2));
        assert!(first.is_some() && second.is_some() && streams.take(&whose(0), 2).is_none());
        assert!(streams.take(&whose(1), 2).is_some(), "another key");
        drop(first);
        assert!(streams.take(&whose(0), 2).is_some());
        for n in 1..=COUNTS_MIN as u64 {
            assert!(streams.take(&whose(n), 1).is_some());
        }
        let kept = streams.0.table.read().unwrap().counts.len();
        assert!(kept < COUNTS_MIN, "{kept}");
        let one_more = streams.take(&whose(0), 2);
        assert!(one_more.is_some() && streams.take(&whose(0), 2).is_none(), "what is open is still counted");
    }

    #[test]
    fn what_no_request_has_takes_places_of_the_same() {
        let streams = Streams::default();
        let (key, sandbox) = (KeyId::from_parts(1, 1), SandboxId::from_parts(1, 1));
        let (whose, linked) = (Whose::Key(key.clone()), Linked::Sandbox(sandbox));
        let owner = Owner { key: Some(&key), project: None };
        let connection = streams.hold(&key, 2).unwrap();
        let answer = streams.take(&whose, 2);
        assert!(answer.is_some());
        assert_eq!(streams.hold(&key, 2).unwrap_err().code, Code::LimitExceeded);
        let by_token = streams.hold_by_link(&linked, owner, 2).unwrap();
        assert_eq!(streams.hold_by_link(&linked, owner, 1).unwrap_err().code, Code::LimitExceeded);
        drop((connection, by_token));
        assert!(streams.hold(&key, 2).is_ok() && streams.hold_by_link(&linked, owner, 1).is_ok());
    }
}
