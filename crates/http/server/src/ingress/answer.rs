//! Bodies on their way.

use std::pin::Pin;
use std::task::{Context, Poll};

use atoll_engine::GuestLease;
use axum::body::HttpBody;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::pool::{Key, Sender};
use crate::shared::App;

/// The body of an answer. Until its end it keeps the sandbox awake; then its connection may be used again.
/// Dropped before, it closes the connection.
pub(super) struct Streaming {
    app: App,
    body: Incoming,
    connection: Option<(Key, Sender)>,
    lease: Option<GuestLease>,
}

impl Streaming {
    pub(super) fn new(
        app: &App,
        body: Incoming,
        connection: Option<(Key, Sender)>,
        lease: GuestLease,
    ) -> Self {
        Self { app: app.clone(), body, connection, lease: Some(lease) }
    }

    fn finish(&mut self) {
        self.lease = None;
        if let Some((key, sender)) = self.connection.take() {
            self.app.ports.put(&key, sender);
        }
    }
}

impl HttpBody for Streaming {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => self.app.metrics.sent(frame.data_ref().map_or(0, Bytes::len)),
            Poll::Ready(None) => self.finish(),
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        polled.map_err(axum::Error::new)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        // A body whose end is known is not always asked for it.
        if self.body.is_end_stream() {
            self.finish();
        }
    }
}

/// A body whose bytes are told to `count` as they pass.
pub(super) fn counted<B>(
    body: B,
    count: impl Fn(usize) + Send + 'static,
) -> impl HttpBody<Data = Bytes, Error = B::Error> + Send + 'static
where
    B: HttpBody<Data = Bytes> + Send + 'static,
{
    body.map_frame(move |frame| {
        count(frame.data_ref().map_or(0, Bytes::len));
        frame
    })
}
