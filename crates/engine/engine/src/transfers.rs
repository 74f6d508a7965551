//! Room for transfers: imports and exports of snapshots, loads, imports and pulls of images. Each has one thread or two for
//! as long as it waits for its client or for a registry, and the process has 512 of these.
//!
//! So there are [`MAX_COUNT`] of them at once, a key has [`OF_KEY_MAX_COUNT`] of these, and projects and keys leave
//! [rooms](crate::rooms) to each other. Further transfers wait, without a thread. A client that hardly sends or takes
//! anything gives its room up when another key waits for one ([`Pace`]); of a registry the image's crate asks a pace whether
//! somebody waits or not. The server itself, which alone comes without a key, has as many as a key, beside those of the keys:
//! no client keeps it waiting.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use atoll_core::Result;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::authorize::{Caller, gone};
use crate::boxed;
use crate::engine::Engine;
use crate::rooms::{Limits, Pace, Place, Rooms, Who};

/// Transfers of all keys at once.
const MAX_COUNT: usize = 64;
/// Transfers of one key at once.
const OF_KEY_MAX_COUNT: usize = 8;

/// Who transfers something.
#[derive(Debug)]
pub(crate) struct Transfers {
    /// Of the server itself.
    without_key: Arc<Semaphore>,
    of_keys: Rooms,
}

impl Default for Transfers {
    fn default() -> Self {
        let limits = Limits { all: MAX_COUNT, of_key: OF_KEY_MAX_COUNT };
        Self { without_key: Arc::new(Semaphore::new(OF_KEY_MAX_COUNT)), of_keys: Rooms::new(limits) }
    }
}

/// Room for one transfer. Clones are the same room: it is free when the last of them is dropped.
#[derive(Debug, Clone)]
pub struct Room {
    /// Among those of the keys.
    place: Option<Arc<Place>>,
    /// Among the server's own.
    _own: Option<Arc<OwnedSemaphorePermit>>,
}

impl Room {
    /// A stream that takes the room for as long as it is there. It ends with an error (that of [`Code::Timeout`]) when hardly
    /// anything comes and another key waits for room.
    ///
    /// [`Code::Timeout`]: atoll_core::Code::Timeout
    pub fn around<S>(self, stream: S) -> InRoom<S> {
        let pace = self.pace();
        InRoom { stream, pace, _room: self }
    }

    /// The pace of the client that this transfer waits for.
    pub(crate) fn pace(&self) -> Pace {
        Pace::new(self.place.clone())
    }
}

/// A stream that is read, and its room.
#[derive(Debug)]
pub struct InRoom<S> {
    stream: S,
    pace: Pace,
    _room: Room,
}

impl<S: AsyncRead + Unpin> AsyncRead for InRoom<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        match Pin::new(&mut this.stream).poll_read(context, buffer) {
            Poll::Ready(read) => {
                this.pace.moved(buffer.filled().len().saturating_sub(before));
                Poll::Ready(read)
            }
            Poll::Pending => this.pace.poll_given_up(context).map(Err),
        }
    }
}

impl Transfers {
    /// Waits for room for one transfer.
    pub(crate) async fn room(&self, who: Who) -> Room {
        if who.is_server() {
            // It is never closed.
            let own = Arc::clone(&self.without_key).acquire_owned().await.ok();
            return Room { place: None, _own: own.map(Arc::new) };
        }
        Room { place: Some(Arc::new(self.of_keys.wait(who).await)), _own: None }
    }
}

impl Engine {
    /// Waits until this caller may transfer something that holds a thread while its client, or a registry, is waited for.
    /// Whoever waits here must hold no thread.
    ///
    /// # Errors
    /// [`Code::Unauthorized`] when the caller's key has ended meanwhile: it may have waited for long, with many requests.
    ///
    /// [`Code::Unauthorized`]: atoll_core::Code::Unauthorized
    #[boxed]
    pub async fn room_to_transfer(&self, caller: &Caller) -> Result<Room> {
        let room = self.inner.transfers.room(Who::of(caller)).await;
        self.caller_now(caller).map(|_still| room).ok_or_else(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::id::{KeyId, ProjectId};
    use atoll_core::{Code, Error};
    use tokio::io::AsyncReadExt as _;

    fn key(n: u64) -> Who {
        Who::new(Some(&KeyId::from_parts(1, n)), None)
    }

    /// As many rooms as `who` gets without waiting.
    async fn fill(transfers: &Transfers, who: &Who) -> Vec<Room> {
        let mut rooms = Vec::new();
        loop {
            let mut next = Box::pin(transfers.room(who.clone()));
            match futures::poll!(&mut next) {
                Poll::Ready(room) => rooms.push(room),
                Poll::Pending => return rooms,
            }
        }
    }

    #[tokio::test]
    async fn a_key_has_a_part_of_the_room_and_gives_it_back() {
        let transfers = Transfers::default();
        let mut first = fill(&transfers, &key(0)).await;
        assert_eq!(first.len(), OF_KEY_MAX_COUNT);
        let mut ninth = Box::pin(transfers.room(key(0)));
        assert!(futures::poll!(&mut ninth).is_pending());
        // A clone is the same room.
        let same = first[0].clone();
        drop(first.remove(0));
        assert!(futures::poll!(&mut ninth).is_pending());
        drop(same);
        drop(ninth.await);
        // The server itself has some of its own, and no more than that.
        let server = Who::new(None, None);
        let without_key = fill(&transfers, &server).await;
        assert_eq!(without_key.len(), OF_KEY_MAX_COUNT);
        let mut one_more = Box::pin(transfers.room(server.clone()));
        assert!(futures::poll!(&mut one_more).is_pending());
        drop(without_key);
        drop(one_more.await);
    }

    #[tokio::test]
    async fn keys_that_wait_for_their_clients_leave_room_to_others() {
        let transfers = Transfers::default();
        let mut held = Vec::new();
        for n in 0..8 {
            held.extend(fill(&transfers, &key(n)).await);
        }
        let ninth = fill(&transfers, &key(8)).await;
        assert!(!ninth.is_empty(), "eight keys have all but {}", MAX_COUNT - held.len());
        held.clear();
        let project = ProjectId::from_parts(1, 1);
        for n in 10..30 {
            held.extend(fill(&transfers, &Who::new(Some(&KeyId::from_parts(1, n)), Some(&project))).await);
        }
        assert!(
            held.len() <= MAX_COUNT / 2,
            "a project has no more than it leaves to others: {}",
            held.len()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_hardly_comes_gives_its_room_to_another_key() {
        let transfers = Transfers::default();
        // All there is for keys of no project.
        let mut held = Vec::new();
        for n in 0..20 {
            held.extend(fill(&transfers, &key(n)).await);
        }
        let mut next = Box::pin(transfers.room(key(100)));
        assert!(futures::poll!(&mut next).is_pending());
        let (silent, _client) = tokio::io::duplex(16);
        let mut body = held.remove(0).around(silent);
        let error = body.read_u8().await.unwrap_err();
        let told = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        assert_eq!(told.map(|error| error.code), Some(Code::Timeout), "{error:?}");
        drop(body);
        drop(next.await);
    }
}
