//! Room for transfers: each has one thread or two for as long as it waits for its client or for a registry, and the process
//! has 512 of these.
//!
//! So a key has [`OF_KEY_MAX_COUNT`] of them at once, and all keys [`MAX_COUNT`]. Further ones wait, without a thread. The
//! server itself, which alone comes without a key, has as many as a key, beside those of the keys: no client keeps it
//! waiting.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};

use atoll_core::id::KeyId;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::authorize::Caller;
use crate::boxed;
use crate::engine::Engine;

/// Transfers of all keys at once.
const MAX_COUNT: usize = 64;
/// Transfers of one key at once.
const OF_KEY_MAX_COUNT: usize = 8;

/// Who transfers something.
#[derive(Debug)]
pub(crate) struct Transfers {
    all: Arc<Semaphore>,
    /// Of the server itself.
    without_key: Arc<Semaphore>,
    /// Of the keys that transfer something, or wait to.
    keys: Mutex<HashMap<KeyId, Weak<Semaphore>>>,
}

impl Default for Transfers {
    fn default() -> Self {
        let without_key = Arc::new(Semaphore::new(OF_KEY_MAX_COUNT));
        Self { all: Arc::new(Semaphore::new(MAX_COUNT)), without_key, keys: Mutex::default() }
    }
}

/// Room for one transfer, until it is dropped.
#[derive(Debug)]
pub struct Room {
    _own: Option<OwnedSemaphorePermit>,
    _all: Option<OwnedSemaphorePermit>,
}

impl Room {
    /// A stream that takes the room for as long as it is there.
    pub fn around<S>(self, stream: S) -> InRoom<S> {
        InRoom { stream, _room: self }
    }
}

/// A stream that is read, and its room.
#[derive(Debug)]
pub struct InRoom<S> {
    stream: S,
    _room: Room,
}

impl<S: AsyncRead + Unpin> AsyncRead for InRoom<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl Transfers {
    /// Waits for room for one transfer of this key, or of the server itself.
    pub(crate) async fn room(&self, key: Option<&KeyId>) -> Room {
        // None of the three is ever closed.
        let Some(key) = key else {
            return Room { _own: Arc::clone(&self.without_key).acquire_owned().await.ok(), _all: None };
        };
        // First that of the key: what waits for it is in nobody's way.
        let own = self.of_key(key).acquire_owned().await.ok();
        let all = Arc::clone(&self.all).acquire_owned().await.ok();
        Room { _own: own, _all: all }
    }

    fn of_key(&self, key: &KeyId) -> Arc<Semaphore> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = keys.get(key).and_then(Weak::upgrade) {
            return own;
        }
        keys.retain(|_, own| own.strong_count() > 0);
        let own = Arc::new(Semaphore::new(OF_KEY_MAX_COUNT));
        keys.insert(key.clone(), Arc::downgrade(&own));
        own
    }
}

impl Engine {
    /// Waits until this caller may transfer something that holds a thread while its client, or a registry, is waited for.
    /// Whoever waits here must hold no thread.
    #[boxed]
    pub async fn room_to_transfer(&self, caller: &Caller) -> Room {
        self.inner.transfers.room(caller.key.as_ref()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_has_a_part_of_the_room_and_gives_it_back() {
        let transfers = Transfers::default();
        const KEYS: usize = MAX_COUNT / OF_KEY_MAX_COUNT;
        let keys: Vec<_> = (0..=KEYS as u64).map(|n| KeyId::from_parts(1, n)).collect();
        let mut first = Vec::new();
        for _ in 0..OF_KEY_MAX_COUNT {
            first.push(transfers.room(Some(&keys[0])).await.around(io::empty()));
        }
        let mut ninth = Box::pin(transfers.room(Some(&keys[0])));
        assert!(futures::poll!(&mut ninth).is_pending());
        let mut others = Vec::new();
        for key in &keys[1..KEYS] {
            for _ in 0..OF_KEY_MAX_COUNT {
                others.push(transfers.room(Some(key)).await);
            }
        }
        let mut beyond = Box::pin(transfers.room(Some(&keys[KEYS])));
        assert!(futures::poll!(&mut beyond).is_pending(), "all room is taken");
        // The server itself has some of its own, and no more than that.
        let mut without_key = Vec::new();
        for _ in 0..OF_KEY_MAX_COUNT {
            without_key.push(transfers.room(None).await);
        }
        let mut one_more = Box::pin(transfers.room(None));
        assert!(futures::poll!(&mut one_more).is_pending());
        drop(without_key);
        drop(one_more.await);
        drop(others.pop());
        drop(beyond.await);
        drop(first.pop());
        drop(ninth.await);
        drop((first, others));
        drop(transfers.room(Some(&keys[KEYS])).await);
        assert_eq!(transfers.keys.lock().unwrap().len(), 1, "keys are forgotten");
    }
}
