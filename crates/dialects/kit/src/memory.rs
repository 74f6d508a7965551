//! Memory of the server for what a dialect has to hold as a whole: what a guest says that is read to its end, and what
//! waits for a client; or room on its disk for what is on its way there. There is so much for all callers, and who takes
//! some leaves as much to others: see [`atoll_core::shares`]. Whoever finds none is refused, and may ask again.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use atoll_core::shares::{Step, Tree, steps};
use atoll_core::{Code, Error};
use atoll_engine::Caller;
use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};

/// Most of an answer that its connection gets at once, bytes.
const PIECE_BYTES: usize = 64 << 10;

/// So much memory. Clones share it.
#[derive(Debug, Clone)]
pub struct Memory {
    max_bytes: usize,
    shares: Arc<Mutex<Tree<Step<()>>>>,
}

/// What one piece of work has of it. It is given back when this is dropped.
#[derive(Debug)]
pub struct Held {
    memory: Memory,
    steps: Vec<Step<()>>,
    bytes: usize,
}

impl Memory {
    /// So many bytes, for all callers together.
    #[must_use]
    pub fn new(max_bytes: usize) -> Self {
        Self { max_bytes, shares: Arc::default() }
    }

    /// For work of this caller: nothing yet.
    #[must_use]
    pub fn hold(&self, caller: &Caller) -> Held {
        Held { memory: self.clone(), steps: steps(caller.key(), caller.project()), bytes: 0 }
    }

    fn shares(&self) -> MutexGuard<'_, Tree<Step<()>>> {
        // The shares are whole after each change, so they stay usable when a task panics while it holds the lock.
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Takes so many bytes more.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`] when the caller would have more than it leaves to others: nothing is taken then.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Error> {
        if !self.memory.shares().take(&self.steps, bytes, self.memory.max_bytes) {
            let why = "what the server holds of this key while it is on its way is too much together";
            return Err(Error::new(Code::LimitExceeded, why).hint("do less at once, and try again"));
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Gives so many bytes back, or what there is.
    pub fn give_back(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.memory.shares().give_back(&self.steps, bytes);
        self.bytes -= bytes;
    }

    /// Gives all back but so many bytes.
    pub fn keep(&mut self, bytes: usize) {
        self.give_back(self.bytes.saturating_sub(bytes));
    }

    /// The body of an answer, for which the memory is held until the client has taken all of it, or has gone.
    pub fn body(self, bytes: Bytes) -> Body {
        Body::new(Answer { rest: bytes, _held: self })
    }
}

/// An answer that its client has not taken yet.
#[derive(Debug)]
struct Answer {
    rest: Bytes,
    _held: Held,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let count = self.rest.len().min(PIECE_BYTES);
        let piece = self.rest.split_to(count);
        Poll::Ready((!piece.is_empty()).then(|| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;

    #[test]
    fn what_is_held_is_given_back_and_no_more_is_had_than_is_left_to_others() {
        let memory = Memory::new(100);
        let caller = Caller::system();
        let (mut one, mut other) = (memory.hold(&caller), memory.hold(&caller));
        one.grow(40).unwrap();
        other.grow(10).unwrap();
        assert_eq!(other.grow(1).unwrap_err().code, Code::LimitExceeded);
        one.give_back(5);
        other.grow(5).unwrap();
        one.give_back(1000);
        other.grow(35).unwrap();
        drop(other);
        one.grow(50).unwrap();
        assert!(one.grow(usize::MAX).is_err());
    }

    #[tokio::test]
    async fn an_answer_has_its_memory_until_it_is_taken() {
        let (memory, caller) = (Memory::new(2 << 20), Caller::system());
        let mut held = memory.hold(&caller);
        held.grow(1 << 20).unwrap();
        held.keep(300_000);
        let sent = Bytes::from((0..300_000_u32).map(|n| n.to_le_bytes()[0]).collect::<Vec<u8>>());
        let mut body = held.body(sent.clone()).into_data_stream();
        let first = body.next().await.unwrap().unwrap();
        assert!(memory.hold(&caller).grow((1 << 20) - 300_000).is_ok());
        assert!(memory.hold(&caller).grow(1 << 20).is_err(), "the client has not taken all of it");
        let mut read = first.to_vec();
        while let Some(piece) = body.next().await {
            read.extend_from_slice(&piece.unwrap());
        }
        assert_eq!(read, sent);
        drop(body);
        assert!(memory.hold(&caller).grow(1 << 20).is_ok());
    }
}
