//! Bytes that the gateway holds for sandboxes: what it has read and the other side has not taken yet.
//!
//! Each sandbox has [`BUFFERED_OWN_BYTES`] that no other sandbox can take, and holds more out of what all share, up to
//! a part of it. A connection waits while there is no room: it is not read from, so the sender stops sending, and
//! nothing fails. What makes connections fast and is held for long (windows of HTTP/2, pipes) comes out of half of
//! each share only; without it a connection is slower.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::{
    BUFFERED_HOST_PART, BUFFERED_OF_ONE_MAX_BYTES, BUFFERED_OWN_BYTES, FRAME_COST_BYTES, HEADS_MAX_BYTES,
    HTTP_BUFFER_MAX_BYTES, SHARE_OF_ONE,
};

/// Most bytes of one piece of a body: as many as are read at once.
#[expect(clippy::cast_possible_truncation, reason = "a constant of 64 KiB")]
const FRAME_MAX_BYTES: u32 = HTTP_BUFFER_MAX_BYTES as u32;

/// The bytes that all sandboxes share.
#[derive(Debug, Clone)]
pub(crate) struct Common {
    bytes: Arc<Semaphore>,
    lasting: Arc<Semaphore>,
    of_one: usize,
}

impl Common {
    pub(crate) fn new(bytes: usize) -> Self {
        let bytes = bytes.min(Semaphore::MAX_PERMITS);
        let of_one = (bytes / SHARE_OF_ONE).min(BUFFERED_OF_ONE_MAX_BYTES);
        Self { bytes: semaphore(bytes), lasting: semaphore(bytes / 2), of_one }
    }

    /// A part of the host's memory.
    pub(crate) fn of_host() -> Self {
        let host = rustix::system::sysinfo();
        let bytes = host.totalram.saturating_mul(u64::from(host.mem_unit));
        Self::new(usize::try_from(bytes).unwrap_or(usize::MAX) / BUFFERED_HOST_PART)
    }
}

/// The bytes of one sandbox.
#[derive(Debug)]
pub(crate) struct Budget {
    own: Arc<Semaphore>,
    more: Arc<Semaphore>,
    lasting: Arc<Semaphore>,
    heads: Arc<Semaphore>,
    common: Common,
}

/// Bytes that are held until this is dropped.
#[derive(Debug)]
pub(crate) enum Held {
    Own(OwnedSemaphorePermit),
    Common { more: OwnedSemaphorePermit, all: OwnedSemaphorePermit },
}

impl Held {
    /// Gives back what is not needed.
    fn keep(&mut self, bytes: usize) {
        let give_back = |held: &mut OwnedSemaphorePermit| {
            drop(held.split(held.num_permits().saturating_sub(bytes)));
        };
        match self {
            Self::Own(held) => give_back(held),
            Self::Common { more, all } => {
                give_back(more);
                give_back(all);
            }
        }
    }
}

/// Bytes that are held for as long as a connection lasts.
#[derive(Debug)]
pub(crate) struct Lasting {
    _held: Held,
    _parts: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

/// The head of a request that has no whole answer yet.
#[derive(Debug)]
pub(crate) struct Head {
    _held: OwnedSemaphorePermit,
}

fn semaphore(bytes: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(bytes))
}

fn try_take(from: &Arc<Semaphore>, bytes: u32) -> Option<OwnedSemaphorePermit> {
    Arc::clone(from).try_acquire_many_owned(bytes).ok()
}

async fn take(from: &Arc<Semaphore>, bytes: u32) -> OwnedSemaphorePermit {
    match Arc::clone(from).acquire_many_owned(bytes).await {
        Ok(taken) => taken,
        // The gateway closes none.
        Err(_closed) => std::future::pending().await,
    }
}

impl Budget {
    pub(crate) fn new(common: &Common) -> Arc<Self> {
        Arc::new(Self {
            own: semaphore(BUFFERED_OWN_BYTES),
            more: semaphore(common.of_one),
            lasting: semaphore(common.of_one / 2),
            heads: semaphore(HEADS_MAX_BYTES),
            common: common.clone(),
        })
    }

    /// Holds bytes if there is room now. The sandbox's own come last, so that they are there when others have the rest.
    pub(crate) fn try_hold(&self, bytes: u32) -> Option<Held> {
        self.try_hold_common(bytes).or_else(|| try_take(&self.own, bytes).map(Held::Own))
    }

    fn try_hold_common(&self, bytes: u32) -> Option<Held> {
        let more = try_take(&self.more, bytes)?;
        Some(Held::Common { more, all: try_take(&self.common.bytes, bytes)? })
    }

    /// Holds bytes as soon as there is room; no more than [`BUFFERED_OWN_BYTES`], for which there always will be when the
    /// sandbox's other connections move.
    pub(crate) async fn hold(&self, bytes: u32) -> Held {
        if let Some(held) = self.try_hold(bytes) {
            return held;
        }
        let common = async {
            let more = take(&self.more, bytes).await;
            Held::Common { more, all: take(&self.common.bytes, bytes).await }
        };
        tokio::select! {
            held = common => held,
            own = take(&self.own, bytes) => Held::Own(own),
        }
    }

    /// Holds bytes for as long as a connection lasts, if there is room now. Half of every share is left to bytes on
    /// their way.
    pub(crate) fn try_hold_lasting(&self, bytes: u32) -> Option<Lasting> {
        let parts = (try_take(&self.lasting, bytes)?, try_take(&self.common.lasting, bytes)?);
        Some(Lasting { _held: self.try_hold_common(bytes)?, _parts: parts })
    }

    /// Holds the head of a request; `None` when the sandbox has too many already.
    pub(crate) fn try_hold_head<B>(&self, request: &http::Request<B>) -> Option<Head> {
        /// The path is in the request, in the connection's list of requests and in the record of the exchange.
        const COPIES: usize = 3;
        let headers = request.headers().iter();
        let headers = headers.map(|(name, value)| name.as_str().len() + value.len() + FRAME_COST_BYTES);
        let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
        let bytes = headers.sum::<usize>() + COPIES * path + FRAME_COST_BYTES;
        Some(Head { _held: try_take(&self.heads, u32::try_from(bytes).ok()?)? })
    }

    /// Bytes that are held now, out of every share.
    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> usize {
        let own = BUFFERED_OWN_BYTES - self.own.available_permits();
        own + self.common.of_one - self.more.available_permits()
    }
}

/// Bytes with the room that they take: they give it back when the last part of them was written.
struct Paid {
    bytes: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Paid {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The same bytes, which hold room for as long as some part of them is somewhere.
pub(crate) fn paid(bytes: Bytes, mut held: Held) -> Bytes {
    // Small pieces cost more than their bytes.
    held.keep(bytes.len() + FRAME_COST_BYTES);
    Bytes::from_owner(Paid { bytes, _held: held })
}

/// A body on its way through the gateway: it is read only while its sandbox has room for what comes.
pub(crate) struct Buffered<B> {
    body: B,
    budget: Arc<Budget>,
    waiting: Option<Pin<Box<dyn Future<Output = Held> + Send + Sync>>>,
}

impl<B> Buffered<B> {
    pub(crate) const fn new(body: B, budget: Arc<Budget>) -> Self {
        Self { body, budget, waiting: None }
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Held> {
        if self.waiting.is_none()
            && let Some(held) = self.budget.try_hold(FRAME_MAX_BYTES)
        {
            return Poll::Ready(held);
        }
        let budget = Arc::clone(&self.budget);
        let room =
            self.waiting.get_or_insert_with(|| Box::pin(async move { budget.hold(FRAME_MAX_BYTES).await }));
        let held = std::task::ready!(room.as_mut().poll(cx));
        self.waiting = None;
        Poll::Ready(held)
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Buffered<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let held = std::task::ready!(self.poll_room(cx));
        // What is not used is given back: a body that has nothing to say holds nothing.
        Pin::new(&mut self.body)
            .poll_frame(cx)
            .map_ok(|frame| frame.map_data(|data| if data.is_empty() { data } else { paid(data, held) }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    const FRAME: usize = FRAME_MAX_BYTES as usize;

    /// A body without an end, of the largest pieces.
    fn endless(budget: &Arc<Budget>) -> impl Body<Data = Bytes, Error = Infallible> + Unpin + use<> {
        let frame = || Ok(Frame::data(Bytes::from(vec![7; FRAME - FRAME_COST_BYTES])));
        Buffered::new(StreamBody::new(futures::stream::repeat_with(frame)), Arc::clone(budget))
    }

    /// Reads until the body waits for room; gives what nobody took.
    async fn fill(body: &mut (impl Body<Data = Bytes, Error = Infallible> + Unpin)) -> Vec<Bytes> {
        let mut unread = Vec::new();
        while let Some(frame) = futures::FutureExt::now_or_never(body.frame()) {
            unread.push(frame.unwrap().unwrap().into_data().unwrap());
        }
        unread
    }

    #[tokio::test]
    async fn a_body_waits_while_its_sandbox_holds_its_share_and_goes_on_when_something_was_written() {
        let common = Common::new(64 * FRAME);
        let budget = Budget::new(&common);
        let mut body = endless(&budget);
        let mut unread = fill(&mut body).await;
        assert_eq!(
            unread.len() * FRAME,
            16 * FRAME + BUFFERED_OWN_BYTES,
            "its part of the whole and its own"
        );
        assert_eq!(budget.held_bytes(), unread.len() * FRAME);
        // Bodies that wait get room in the order in which they began to: this one is read no more.
        drop(body);

        let mut other = endless(&budget);
        assert_eq!(fill(&mut other).await.len(), 0, "over all its bodies");
        let waits = tokio::spawn(async move { other.frame().await.unwrap().unwrap() });
        tokio::task::yield_now().await;
        // Half of a piece that is still to be written holds the whole piece.
        let half = unread.pop().unwrap().split_off(FRAME / 2);
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        drop(half);
        drop(waits.await.unwrap());
        drop(unread);
        assert_eq!(budget.held_bytes(), 0, "nothing is lost");
    }

    #[tokio::test]
    async fn what_others_took_leaves_a_sandbox_its_own_and_comes_back_to_it() {
        let common = Common::new(64 * FRAME);
        let mut greedy = Vec::new();
        for _ in 0..4 {
            let budget = Budget::new(&common);
            greedy.push(fill(&mut endless(&budget)).await);
        }
        assert_eq!(common.bytes.available_permits(), 0, "all of it is gone");
        let budget = Budget::new(&common);
        let mut body = endless(&budget);
        let unread = fill(&mut body).await;
        assert_eq!(unread.len() * FRAME, BUFFERED_OWN_BYTES);
        let waits = tokio::spawn(async move { body.frame().await.unwrap().unwrap() });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        drop(greedy.pop());
        drop(waits.await.unwrap());
    }

    #[tokio::test]
    async fn a_body_that_says_nothing_holds_nothing_and_little_pieces_cost_more_than_their_bytes() {
        let budget = Budget::new(&Common::new(64 * FRAME));
        let silent = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, Infallible>>());
        let mut silent = Buffered::new(silent, Arc::clone(&budget));
        assert_eq!(fill(&mut silent).await.len(), 0);
        assert_eq!(budget.held_bytes(), 0);
        let held = budget.try_hold(FRAME_MAX_BYTES).unwrap();
        let one = paid(Bytes::from_static(b"x"), held);
        assert_eq!(budget.held_bytes(), 1 + FRAME_COST_BYTES);
        drop(one);
        assert_eq!(budget.held_bytes(), 0);
    }

    #[tokio::test]
    async fn what_lasts_leaves_half_to_what_is_on_its_way() {
        let common = Common::new(64 * FRAME);
        let budget = Budget::new(&common);
        let lasting: Vec<_> = std::iter::from_fn(|| budget.try_hold_lasting(FRAME_MAX_BYTES)).collect();
        assert_eq!(lasting.len(), 8, "half of a quarter");
        assert_eq!(fill(&mut endless(&budget)).await.len() * FRAME, 8 * FRAME + BUFFERED_OWN_BYTES);
        let others: Vec<_> = (0..8).map(|_| Budget::new(&common)).collect();
        let more = others.iter().flat_map(|one| std::iter::from_fn(|| one.try_hold_lasting(FRAME_MAX_BYTES)));
        let more: Vec<_> = more.collect();
        assert_eq!(lasting.len() + more.len(), 32, "half of all");
        drop((lasting, more));
        assert!(budget.try_hold_lasting(FRAME_MAX_BYTES).is_some());
    }

    #[test]
    fn heads_of_requests_have_a_share_that_others_do_not_touch() {
        let budget = Budget::new(&Common::new(0));
        let request = http::Request::get("/x").header("cookie", "c".repeat(60 << 10)).body(()).unwrap();
        let heads: Vec<_> = std::iter::from_fn(|| budget.try_hold_head(&request)).collect();
        assert!((HEADS_MAX_BYTES / (64 << 10)..=HEADS_MAX_BYTES / (60 << 10)).contains(&heads.len()));
        drop(heads);
        assert!(budget.try_hold_head(&request).is_some());
    }
}
