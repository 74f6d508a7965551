//! Requests that a client may send twice and that are done once: the answers that this server gave, in memory.
//!
//! ```text
//! authorise ─▶ begin ─┬─▶ First: do it ─▶ answer ─┬─ kept
//!                     │                           └─ refused or failed: gone when it was answered
//!                     ├─▶ Again: the first one's answer, or wait for it
//!                     └─▶ Other: the key belongs to another request
//! ```
//!
//! Only successes are kept, as a refused request changed nothing: what a client is refused takes no room. A dialect asks
//! for the caller's right before it enters a request. Each API key has a share of requests and of bytes; what is too much
//! of it goes, the oldest first. When the table is full, the oldest of the key that has the most go. So a new request is
//! never refused for want of room, and no key pushes out what a key with fewer has.
//!
//! Every request is entered with its digest: a client's key that was used for one request is no key for another.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::KeyId;
use tokio::sync::watch;

use crate::promise::Of;
use crate::time::now_ms;

/// How often answers that are too old are looked for, milliseconds.
const SWEEP_MS: u64 = 60_000;

/// Bytes of the answers of one API key, for dialects that need no other number.
pub const BYTES_OF_KEY: usize = 4 << 20;
/// Bytes of the answers of all keys, likewise.
pub const BYTES_ALL: usize = 64 << 20;

/// How much is kept, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long an answer is kept, milliseconds.
    pub kept_ms: u64,
    /// Requests of one API key.
    pub of_key: usize,
    /// Requests of all keys.
    pub all: usize,
    /// Bytes of the answers of one API key.
    pub bytes_of_key: usize,
    /// Bytes of the answers of all keys.
    pub bytes_all: usize,
}

/// The digest of a request, by which another one with the same key is told from a repetition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Print(blake3::Hash);

impl Print {
    /// The digest of all parts of a request.
    #[must_use]
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            let len = u64::try_from(part.len()).unwrap_or(u64::MAX);
            hasher.update(&len.to_le_bytes()).update(part);
        }
        Self(hasher.finalize())
    }

    /// The one with these hexadecimal digits.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        blake3::Hash::from_hex(text).ok().map(Self)
    }

    /// As hexadecimal digits.
    #[must_use]
    pub fn to_hex(self) -> String {
        self.0.to_hex().to_string()
    }
}

impl From<blake3::Hash> for Print {
    fn from(hash: blake3::Hash) -> Self {
        Self(hash)
    }
}

/// The requests that were begun, with their answers. Clones share them.
#[derive(Debug)]
pub struct Once<A> {
    limits: Limits,
    table: Arc<Mutex<Table<A>>>,
}

impl<A> Clone for Once<A> {
    fn clone(&self) -> Self {
        Self { limits: self.limits, table: Arc::clone(&self.table) }
    }
}

#[derive(Debug)]
struct Table<A> {
    /// How many bytes an answer has.
    bytes_of: fn(&A) -> usize,
    keys: HashMap<KeyId, Share<A>>,
    /// Requests of all keys.
    count: usize,
    /// Bytes of all answers that are kept.
    bytes: usize,
    /// The number of the newest request.
    newest: u64,
    swept_ms: u64,
}

/// What one API key has.
#[derive(Debug)]
struct Share<A> {
    by_id: HashMap<String, Entry<A>>,
    /// By their numbers: the oldest first.
    by_age: BTreeMap<u64, String>,
    /// Of its answers that are kept.
    bytes: usize,
}

#[derive(Debug)]
struct Entry<A> {
    number: u64,
    at_ms: u64,
    print: Print,
    answer: watch::Receiver<Option<A>>,
    /// Of the answer, once it is kept.
    bytes: usize,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Begun<A> {
    /// It is the first with its key: the caller does it.
    First(First<A>),
    /// It was begun before.
    Again(Again<A>),
    /// Another request was begun with its key.
    Other,
}

/// The first request with a key. When this goes without an answer, the key is free, and repetitions that wait begin anew.
#[derive(Debug)]
pub struct First<A> {
    limits: Limits,
    table: Arc<Mutex<Table<A>>>,
    of: Of,
    number: u64,
    tell: watch::Sender<Option<A>>,
    /// The answer stays.
    is_kept: bool,
    /// The requests that went to make room for this one.
    pub gone: Vec<Of>,
}

/// A repetition.
#[derive(Debug)]
pub struct Again<A>(watch::Receiver<Option<A>>);

impl<A: Clone> Again<A> {
    /// The first one's answer, if it is there.
    #[must_use]
    pub fn now(&self) -> Option<A> {
        self.0.borrow().clone()
    }

    /// The first one's answer, once it is there. `None`: it was not answered, and the key is free again.
    pub async fn wait(mut self) -> Option<A> {
        let answer = self.0.wait_for(Option::is_some).await.ok()?;
        answer.clone()
    }
}

impl<A> First<A> {
    /// Answers those that wait. Only a success is kept for later ones: `keeps` says whether it is one. Gives the requests
    /// that went to make room for the answer.
    pub fn answer(mut self, answer: A, keeps: bool) -> Vec<Of> {
        self.is_kept = keeps;
        let mut table = lock(&self.table);
        let gone = if keeps { table.keep(&self.of, self.number, &answer, &self.limits) } else { Vec::new() };
        // Still under the lock: what counts as kept is there to go.
        self.tell.send_replace(Some(answer));
        drop(table);
        gone
    }
}

impl<A> Drop for First<A> {
    fn drop(&mut self) {
        if !self.is_kept {
            lock(&self.table).remove(&self.of, Some(self.number));
        }
    }
}

fn lock<A>(table: &Mutex<Table<A>>) -> MutexGuard<'_, Table<A>> {
    // The maps stay usable when a task panics while it holds the lock.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<A> Table<A> {
    fn insert(&mut self, (key, id): Of, at_ms: u64, print: Print, answer: watch::Receiver<Option<A>>) -> u64 {
        self.newest += 1;
        let number = self.newest;
        let nothing = || Share { by_id: HashMap::new(), by_age: BTreeMap::new(), bytes: 0 };
        let share = self.keys.entry(key).or_insert_with(nothing);
        share.by_age.insert(number, id.clone());
        if let Some(before) = share.by_id.insert(id, Entry { number, at_ms, print, answer, bytes: 0 }) {
            share.by_age.remove(&before.number);
            share.bytes -= before.bytes;
            self.bytes -= before.bytes;
        } else {
            self.count += 1;
        }
        number
    }

    /// Removes a request; with `number` only if it is the one with that.
    fn remove(&mut self, (key, id): &Of, number: Option<u64>) {
        let Some(share) = self.keys.get_mut(key) else { return };
        let Some((found, bytes)) = share.by_id.get(id).map(|entry| (entry.number, entry.bytes)) else {
            return;
        };
        if number.is_some_and(|number| number != found) {
            return;
        }
        share.by_id.remove(id);
        share.by_age.remove(&found);
        share.bytes -= bytes;
        self.bytes -= bytes;
        self.count -= 1;
        if share.by_id.is_empty() {
            self.keys.remove(key);
        }
    }

    /// Removes what is too old.
    fn sweep(&mut self, now: u64, kept_ms: u64) {
        if self.swept_ms.saturating_add(SWEEP_MS) > now {
            return;
        }
        self.swept_ms = now;
        let (mut count, mut all_bytes) = (0, 0);
        self.keys.retain(|_, share| {
            let Share { by_id, by_age, bytes } = share;
            by_id.retain(|_, entry| entry.at_ms.saturating_add(kept_ms) > now);
            by_age.retain(|_, id| by_id.contains_key(id.as_str()));
            *bytes = by_id.values().map(|entry| entry.bytes).sum();
            count += by_id.len();
            all_bytes += *bytes;
            !by_id.is_empty()
        });
        self.count = count;
        self.bytes = all_bytes;
    }

    /// Removes the oldest request of a key: one that was answered, unless all are under way. Those that wait for one
    /// that goes are answered all the same.
    fn remove_oldest(&mut self, key: &KeyId) -> Option<Of> {
        self.remove_oldest_answered(key).or_else(|| {
            let of = (key.clone(), self.keys.get(key)?.by_age.values().next()?.clone());
            self.remove(&of, None);
            Some(of)
        })
    }

    /// Removes the oldest request of a key that was answered.
    fn remove_oldest_answered(&mut self, key: &KeyId) -> Option<Of> {
        let share = self.keys.get(key)?;
        let is_answered =
            |id: &&String| share.by_id.get(*id).is_some_and(|entry| entry.answer.borrow().is_some());
        let of = (key.clone(), share.by_age.values().find(is_answered)?.clone());
        self.remove(&of, None);
        Some(of)
    }

    /// Counts the answer of a request, which was not answered yet, and makes room for it: others that were answered go.
    fn keep(&mut self, of: &Of, number: u64, answer: &A, limits: &Limits) -> Vec<Of> {
        let (key, id) = of;
        let mut gone = Vec::new();
        let known = self.keys.get(key).and_then(|share| share.by_id.get(id));
        if known.is_none_or(|entry| entry.number != number) {
            return gone;
        }
        let bytes = (self.bytes_of)(answer);
        while self.keys.get(key).is_some_and(|share| share.bytes + bytes > limits.bytes_of_key) {
            let Some(of) = self.remove_oldest_answered(key) else { break };
            gone.push(of);
        }
        while self.bytes + bytes > limits.bytes_all {
            let most = self.keys.iter().max_by_key(|(_, share)| share.bytes);
            let Some(most) = most.map(|(key, _)| key.clone()) else { break };
            let Some(of) = self.remove_oldest_answered(&most) else { break };
            gone.push(of);
        }
        if let Some(share) = self.keys.get_mut(key)
            && let Some(entry) = share.by_id.get_mut(id)
        {
            entry.bytes = bytes;
            share.bytes += bytes;
            self.bytes += bytes;
        }
        gone
    }

    /// Makes room for one more request of a key.
    fn make_room(&mut self, key: &KeyId, limits: &Limits) -> Vec<Of> {
        let mut gone = Vec::new();
        while self.keys.get(key).is_some_and(|share| share.by_id.len() >= limits.of_key) {
            let Some(of) = self.remove_oldest(key) else { break };
            gone.push(of);
        }
        while self.count >= limits.all {
            let most = self.keys.iter().max_by_key(|(_, share)| share.by_id.len());
            let Some(most) = most.map(|(key, _)| key.clone()) else { break };
            let Some(of) = self.remove_oldest(&most) else { break };
            gone.push(of);
        }
        gone
    }
}

impl<A: Clone> Once<A> {
    /// With nothing in it. `bytes_of` says how many bytes an answer has.
    #[must_use]
    pub fn new(limits: Limits, bytes_of: fn(&A) -> usize) -> Self {
        let table =
            Table { bytes_of, keys: HashMap::new(), count: 0, bytes: 0, newest: 0, swept_ms: now_ms() };
        Self { limits, table: Arc::new(Mutex::new(table)) }
    }

    /// Puts in an answer that was given earlier, as by the last server. Begin with the oldest.
    pub fn put(&self, of: Of, at_ms: u64, print: Print, answer: A) {
        let (tell, told) = watch::channel(None);
        let mut table = lock(&self.table);
        table.make_room(&of.0, &self.limits);
        let number = table.insert(of.clone(), at_ms, print, told);
        table.keep(&of, number, &answer, &self.limits);
        tell.send_replace(Some(answer));
    }

    /// Enters a request, or finds the one that was begun before with its key. The caller is authorised already.
    #[must_use]
    pub fn begin(&self, of: &Of, print: Print) -> Begun<A> {
        let now = now_ms();
        let mut table = lock(&self.table);
        table.sweep(now, self.limits.kept_ms);
        let known = table.keys.get(&of.0).and_then(|share| share.by_id.get(&of.1));
        if let Some(known) = known.filter(|known| known.at_ms.saturating_add(self.limits.kept_ms) > now) {
            if known.print != print {
                return Begun::Other;
            }
            return Begun::Again(Again(known.answer.clone()));
        }
        table.remove(of, None);
        let gone = table.make_room(&of.0, &self.limits);
        let (tell, answer) = watch::channel(None);
        let number = table.insert(of.clone(), now, print, answer);
        Begun::First(First {
            limits: self.limits,
            table: Arc::clone(&self.table),
            of: of.clone(),
            number,
            tell,
            is_kept: false,
            gone,
        })
    }

    /// The answers that a key was given, in no particular order.
    #[must_use]
    pub fn of_key(&self, key: &KeyId) -> Vec<A> {
        let table = lock(&self.table);
        let entries = table.keys.get(key).into_iter().flat_map(|share| share.by_id.values());
        entries.filter_map(|entry| entry.answer.borrow().clone()).collect()
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests;
