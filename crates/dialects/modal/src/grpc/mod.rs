//! gRPC on the server's one port: messages with a prefix of five bytes in the body, the status in the trailers.
//!
//! A path says only the name of a call, so the two services need no router: [`Requests`] reads the messages that the
//! client sends, and the server answers with one message, with many, or with a [`Fault`].

mod fault;
mod frames;
mod weighed;

use std::mem;

use atoll_core::Error;
use atoll_dialect_kit::memory::{Held, Memory};
use atoll_engine::Caller;
use atoll_server::dialect::Pieces;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt as _};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use http_body_util::StreamBody;
use prost::Message;

pub(crate) use fault::{Fault, Result};
use frames::Frames;

/// Content type of the answers.
pub(crate) const GRPC: HeaderValue = HeaderValue::from_static("application/grpc+proto");

/// Messages as a client sends them.
#[derive(Debug)]
pub(crate) struct Requests {
    pieces: Pieces,
    frames: Frames,
    ended: bool,
    /// Memory for what has come and was not given yet, and for the bytes of the message that was given last.
    arrived: Held,
    /// How many those are.
    given: usize,
    /// Memory for that message as it was read.
    read: Held,
}

impl Requests {
    /// The messages in a body, which take of the caller's share of this memory until the next one is asked for, and
    /// the last one until this is dropped.
    pub(crate) fn new(body: Body, memory: &Memory, caller: &Caller) -> Self {
        let (arrived, read) = (memory.hold(caller), memory.hold(caller));
        Self { pieces: Pieces::new(body), frames: Frames::default(), ended: false, arrived, given: 0, read }
    }

    /// The next message; `None` at the proper end.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a message that cannot be read or that breaks off; `RESOURCE_EXHAUSTED` when the caller's
    /// messages take too much together.
    pub(crate) async fn next<M: Message + Default>(&mut self) -> Result<Option<M>> {
        self.read.give_back(usize::MAX);
        self.arrived.give_back(mem::take(&mut self.given));
        loop {
            if let Some(frame) = self.frames.next()? {
                self.given = frames::HEAD_BYTES + frame.len();
                return weighed::read(frame, &mut self.read).map(Some);
            }
            if self.ended {
                self.frames.end()?;
                return Ok(None);
            }
            match self.pieces.next().await? {
                Some(piece) => {
                    self.arrived.grow(piece.len())?;
                    self.frames.push(piece);
                }
                None => self.ended = true,
            }
        }
    }

    /// The one message of a call that has one.
    ///
    /// # Errors
    /// As [`Self::next`]; `INVALID_ARGUMENT` when there is none.
    pub(crate) async fn one<M: Message + Default>(&mut self) -> Result<M> {
        self.next().await?.ok_or_else(|| Fault::invalid("the request has no message"))
    }
}

fn ok() -> HeaderMap {
    HeaderMap::from_iter([(fault::STATUS, HeaderValue::from_static("0"))])
}

/// Answers with one message.
pub(crate) fn answer<M: Message>(message: Result<M>) -> Response {
    match message {
        Ok(message) => {
            let frame = Ok::<_, Error>(Frame::data(frames::encode(&message)));
            let body = StreamBody::new(stream::iter([frame, Ok(Frame::trailers(ok()))]));
            ([(CONTENT_TYPE, GRPC)], Body::new(body)).into_response()
        }
        Err(fault) => fault.into_response(),
    }
}

/// Answers with messages as they come; the first fault ends them.
pub(crate) fn stream<M: Message + 'static>(
    messages: Result<impl Stream<Item = Result<M>> + Send + 'static>,
) -> Response {
    let messages = match messages {
        Ok(messages) => messages,
        Err(fault) => return fault.into_response(),
    };
    // After a fault, the stream of messages is not polled again.
    let frames = messages.map(Some).chain(stream::iter([None])).scan(false, |over, item| {
        if *over {
            return futures::future::ready(None);
        }
        let frame = match item {
            Some(Ok(message)) => Frame::data(frames::encode(&message)),
            Some(Err(fault)) => {
                *over = true;
                Frame::trailers(fault.headers())
            }
            None => Frame::trailers(ok()),
        };
        futures::future::ready(Some(Ok::<Frame<Bytes>, Error>(frame)))
    });
    ([(CONTENT_TYPE, GRPC)], Body::new(StreamBody::new(frames))).into_response()
}

/// The answer to a call that is not served; it says what this server is.
pub(crate) fn unimplemented(method: &str) -> Fault {
    let method = atoll_core::error::shorten(method);
    Fault::new(
        atoll_dialect_kit::status::Status::Unimplemented,
        format!(
            "'{method}' is not served: this is Atoll, which runs sandboxes on this machine. It has Modal's sandboxes, \
             with their images, files, volumes and snapshots, and no functions, classes, web endpoints or schedules"
        ),
    )
}

#[cfg(test)]
mod tests {
    use std::io;

    use atoll_dialect_kit::status::Status;

    use super::*;
    use crate::wire::apps::MountPutFileRequest;

    /// A body with messages that have so many bytes of content, each of which comes by itself.
    fn body(sizes: &[usize]) -> Body {
        let pieces = sizes.iter().map(|size| {
            let data = Some(Bytes::from(vec![b'x'; *size]));
            let message = MountPutFileRequest { data, ..MountPutFileRequest::default() };
            Ok::<_, io::Error>(frames::encode(&message))
        });
        Body::from_stream(stream::iter(pieces.collect::<Vec<_>>()))
    }

    #[tokio::test]
    async fn messages_that_come_take_of_a_callers_memory_until_the_next_one() {
        let (memory, caller) = (Memory::new(400_000), Caller::system());
        let mut requests = Requests::new(body(&[100_000; 20]), &memory, &caller);
        for _ in 0..20 {
            let message = requests.one::<MountPutFileRequest>().await.unwrap();
            assert_eq!(message.data.unwrap().len(), 100_000);
        }
        // The last one is still in use.
        let mut others = Requests::new(body(&[100_000]), &memory, &caller);
        let fault = others.one::<MountPutFileRequest>().await.unwrap_err();
        assert_eq!(fault.status, Status::ResourceExhausted);
        drop((requests, others));
        let mut others = Requests::new(body(&[100_000]), &memory, &caller);
        assert!(others.one::<MountPutFileRequest>().await.is_ok());
    }
}
