//! A request's body that can be sent once more, as far as it was read.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use atoll_engine::Asked;
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http_body::{Frame, SizeHint};

/// Most bytes that are kept of what was read; once more than this was read, the body cannot be sent again.
const KEPT_MAX_BYTES: usize = 4 << 20;

/// The body as a handler reads it, and what is needed to begin anew.
pub(super) struct Replay {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    /// Taken away when the body is sent elsewhere: a handler that still reads here reads an end.
    rest: Option<Body>,
    kept: Vec<Bytes>,
    kept_bytes: usize,
    /// Whether everything that was read is kept.
    whole: bool,
    asked: Arc<Asked>,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // A panic leaves the fields whole.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Replay {
    /// Keeps the bytes that are read until it is clear that the request stays here.
    pub(super) fn new(body: Body, asked: &Arc<Asked>) -> (Body, Self) {
        let asked = Arc::clone(asked);
        let shared = Shared { rest: Some(body), kept: Vec::new(), kept_bytes: 0, whole: true, asked };
        let shared = Arc::new(Mutex::new(shared));
        (Body::new(Reading(Arc::clone(&shared))), Self { shared })
    }

    /// The body is not needed again.
    pub(super) fn forget(&self) {
        lock(&self.shared).drop_kept();
    }

    /// The body from its beginning; `None` when too much of it was read.
    pub(super) fn again(self) -> Option<Body> {
        let mut shared = lock(&self.shared);
        let rest = shared.rest.take();
        if !shared.whole {
            return None;
        }
        let kept = std::mem::take(&mut shared.kept);
        Some(match rest {
            Some(rest) if kept.is_empty() => rest,
            rest => Body::new(Again { kept: kept.into(), rest }),
        })
    }
}

impl Shared {
    fn drop_kept(&mut self) {
        self.whole = false;
        self.kept = Vec::new();
    }

    fn keep(&mut self, frame: &Frame<Bytes>) {
        if !self.whole {
            return;
        }
        match frame.data_ref() {
            // The object is here: the body, however long, will not be sent again and is not kept.
            _ if self.asked.is_here() => self.drop_kept(),
            Some(data) if self.kept_bytes + data.len() <= KEPT_MAX_BYTES => {
                self.kept_bytes += data.len();
                self.kept.push(data.clone());
            }
            // Too much, or trailers, which end it anyway.
            _ => self.drop_kept(),
        }
    }
}

/// The body that a handler reads.
struct Reading(Arc<Mutex<Shared>>);

impl HttpBody for Reading {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut shared = lock(&self.0);
        let Some(rest) = &mut shared.rest else { return Poll::Ready(None) };
        let polled = Pin::new(rest).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => shared.keep(frame),
            Poll::Ready(Some(Err(_))) => shared.drop_kept(),
            Poll::Ready(None) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        lock(&self.0).rest.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        lock(&self.0).rest.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

/// The body once more: the bytes that were read, then the rest.
struct Again {
    kept: std::collections::VecDeque<Bytes>,
    rest: Option<Body>,
}

impl HttpBody for Again {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(data) = self.kept.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        match &mut self.rest {
            Some(rest) => Pin::new(rest).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.kept.is_empty() && self.rest.as_ref().is_none_or(HttpBody::is_end_stream)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    async fn read(body: Body) -> Vec<u8> {
        body.collect().await.unwrap().to_bytes().to_vec()
    }

    fn pieces(count: u8) -> Body {
        let pieces = (0..count).map(|n| Ok::<_, std::io::Error>(Bytes::from(vec![n; 1 << 20])));
        Body::from_stream(futures::stream::iter(pieces))
    }

    #[tokio::test]
    async fn what_was_read_is_sent_again() {
        for read_first in 0..4 {
            let (mut body, replay) = Replay::new(pieces(3), &Arc::default());
            for _ in 0..read_first {
                let _frame = body.frame().await;
            }
            let again = read(replay.again().unwrap()).await;
            assert_eq!(again, read(pieces(3)).await, "{read_first}");
            assert!(read(body).await.is_empty(), "who read first reads no more");
        }
    }

    #[tokio::test]
    async fn more_than_is_kept_is_not_sent_again() {
        let (mut body, replay) = Replay::new(pieces(6), &Arc::default());
        for _ in 0..5 {
            let _frame = body.frame().await;
        }
        assert!(replay.again().is_none());
        let (body, replay) = Replay::new(pieces(6), &Arc::default());
        replay.forget();
        assert_eq!(read(body).await.len(), 6 << 20, "nothing is kept, all is read");
    }
}
