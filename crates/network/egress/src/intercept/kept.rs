//! The body of an answer on its way to the sandbox, with the values that have to last as long as it does.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::meter::Counted;
use super::{Admitted, BoxError, OutBody};
use crate::budget::Head;

/// Tells the course of a request, where the gateway records it.
pub(super) fn traced(admitted: &Admitted, tell: impl FnOnce(&crate::connection::Admitted)) {
    if let Some(admitted) = admitted.downcast_ref() {
        tell(admitted);
    }
}

/// A body that keeps its request admitted, and counted, and the room of its head.
pub(super) struct Kept {
    pub(super) body: OutBody,
    pub(super) admitted: Admitted,
    pub(super) counted: Option<Counted>,
    pub(super) _head: Head,
}

impl http_body::Body for Kept {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            traced(&self.admitted, |admitted| admitted.passed(frame.data_ref().map_or(0, Bytes::len)));
            if let (Some(counted), Some(data)) = (&mut self.counted, frame.data_ref()) {
                counted.passed(data);
            }
        }
        let ended = matches!(polled, Poll::Ready(None)) || self.body.is_end_stream();
        if let Some(counted) = self.counted.as_mut().filter(|_| ended) {
            counted.ended();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}
