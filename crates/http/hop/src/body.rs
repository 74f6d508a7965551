//! Bodies that end before they should.
//!
//! hyper's server closes a connection at once when the body of an answer fails, with what it has not written yet: when
//! the failure comes together with the head, as it does of a server inside that sends all at once and goes, the client
//! gets nothing at all and may believe that its request was never seen. So every answer whose body may fail goes
//! through here: the failure is told one turn later, and by then hyper has written what came before it.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};

/// A body that fails only after what it gave, and the head of its message, could be written.
#[derive(Debug)]
pub struct SendFirst<B: Body> {
    body: B,
    failed: Option<B::Error>,
}

impl<B: Body> SendFirst<B> {
    /// The body, its failure held back for a turn.
    pub const fn new(body: B) -> Self {
        Self { body, failed: None }
    }
}

impl<B> Body for SendFirst<B>
where
    B: Body + Unpin,
    B::Error: Unpin,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Some(Err(error)));
        }
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Err(error))) => {
                self.failed = Some(error);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            polled => polled,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.failed.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::io;

    use bytes::Bytes;
    use futures::stream;
    use http_body_util::{BodyExt as _, Empty, StreamBody};
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};

    use super::*;

    type Said = Vec<Result<&'static str, io::ErrorKind>>;

    /// What a client hears of an answer whose body is this: its status, its bytes, and whether it ended as it should.
    async fn heard(said: Said, http2: bool) -> (u16, String, bool) {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let service = service_fn(move |_| {
            let frames = said.clone().into_iter().map(|one| match one {
                Ok(text) => Ok(Frame::data(Bytes::from_static(text.as_bytes()))),
                Err(kind) => Err(io::Error::from(kind)),
            });
            let body = StreamBody::new(stream::iter(frames));
            async { Ok::<_, Infallible>(http::Response::new(SendFirst::new(body))) }
        });
        let (io, theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
        let request = http::Request::get("http://box/").body(Empty::<Bytes>::new()).unwrap();
        let response = if http2 {
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(theirs, service));
            let (mut sender, driver) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
            tokio::spawn(driver);
            sender.send_request(request).await.unwrap()
        } else {
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(theirs, service));
            let (mut sender, driver) = hyper::client::conn::http1::handshake(io).await.unwrap();
            tokio::spawn(driver);
            sender.send_request(request).await.unwrap()
        };
        let (status, mut body) = (response.status().as_u16(), response.into_body());
        let mut text = String::new();
        loop {
            match body.frame().await {
                Some(Ok(frame)) => text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap()),
                Some(Err(_)) => return (status, text, false),
                None => return (status, text, true),
            }
        }
    }

    #[tokio::test]
    async fn what_came_before_a_failure_arrives_first() {
        const CUT: Result<&str, io::ErrorKind> = Err(io::ErrorKind::UnexpectedEof);
        for http2 in [false, true] {
            assert_eq!(heard(vec![Ok("whole")], http2).await, (200, "whole".to_owned(), true));
            assert_eq!(heard(vec![CUT], http2).await, (200, String::new(), false), "the head");
            assert_eq!(heard(vec![Ok("a"), Ok("b"), CUT], http2).await, (200, "ab".to_owned(), false));
        }
    }
}
