//! Memory for output that was read and that a client has not taken yet: a bound for all readers, and a [share](Shares) of it
//! for each key. A reader that finds no room takes [`READ_LEAST_BYTES`](super::READ_LEAST_BYTES) at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::KeyId;
use atoll_core::shares::Shares;

/// Bytes that all readers of output may hold together, and who holds them.
#[derive(Debug)]
pub(crate) struct Reading {
    max_bytes: usize,
    /// `None` stands for the server itself.
    bytes: Mutex<Shares<Option<KeyId>>>,
}

/// Bytes that one reader holds, until it is dropped.
#[derive(Debug)]
pub(crate) struct Holding {
    reading: Arc<Reading>,
    key: Option<KeyId>,
    bytes: usize,
}

impl Reading {
    pub(crate) fn new(max_bytes: usize) -> Arc<Self> {
        Arc::new(Self { max_bytes, bytes: Mutex::default() })
    }

    /// Room for so many bytes, if the share of this key has it.
    pub(crate) fn hold(self: &Arc<Self>, key: Option<&KeyId>, bytes: usize) -> Option<Holding> {
        let key = key.cloned();
        let taken = self.bytes().take(&key, bytes, self.max_bytes);
        taken.then(|| Holding { reading: Arc::clone(self), key, bytes })
    }

    fn bytes(&self) -> MutexGuard<'_, Shares<Option<KeyId>>> {
        // Counts: a panic leaves them usable as they are.
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Holding {
    /// Gives back all but so many bytes.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let rest = self.bytes.saturating_sub(bytes);
        self.bytes -= rest;
        self.reading.bytes().give_back(&self.key, rest);
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.reading.bytes().give_back(&self.key, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_read_is_given_back_and_the_rest_later() {
        const MAX_BYTES: usize = 64;
        let reading = Reading::new(MAX_BYTES);
        let key = KeyId::from_parts(1, 1);
        let mut most = reading.hold(Some(&key), MAX_BYTES / 2).unwrap();
        assert!(reading.hold(Some(&key), 1).is_none());
        assert!(reading.hold(None, MAX_BYTES / 4).is_some(), "the server itself has a share");
        most.shrink_to(1);
        most.shrink_to(MAX_BYTES);
        assert_eq!(reading.bytes().taken(), 1);
        drop(most);
        assert_eq!(reading.bytes().taken(), 0);
    }
}
