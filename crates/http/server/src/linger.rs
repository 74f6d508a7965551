//! Takes what a client still sends after the server has refused its request.
//!
//! The server takes the rest of a body that no handler reads any more, and throws it away, within limits: so the client
//! gets its answer, and the connection is good for more requests. When a body is beyond the limits, the connection ends
//! as every connection does ([`crate::closing`]). The layer is around all others, also around the one that passes requests on
//! to another node: when a body is thrown away, no layer needs it again.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;

/// Most bytes of a body that are thrown away.
const LINGER_MAX_BYTES: usize = 64 << 20;
/// How long that may take.
const LINGER_MAX: Duration = Duration::from_secs(10);

/// The layer.
pub(crate) async fn linger(request: Request) -> Request {
    request.map(|body| Body::new(Lingering(Some(body))))
}

/// A body whose rest is thrown away when it is dropped.
struct Lingering(Option<Body>);

impl HttpBody for Lingering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(body) = &mut self.0 else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.0 = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        let Some(body) = self.0.take().filter(|body| !body.is_end_stream()) else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // Ends by itself.
            drop(runtime.spawn(tokio::time::timeout(LINGER_MAX, throw_away(body))));
        }
    }
}

async fn throw_away(mut body: Body) {
    let mut left = LINGER_MAX_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else { return };
        left = rest;
    }
}
