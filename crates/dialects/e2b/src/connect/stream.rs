//! Streams of answers.

use std::convert::Infallible;
use std::io;

use atoll_server::dialect::Refused;
use axum::Extension;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use serde_json::{Value, json};

use super::envelope::{END, pack};
use super::{Codec, Fault, Requests, unsupported};
use crate::wire::Message;

/// The source of a streaming call's answer, one message after the other.
pub(crate) trait Answer: Send + 'static {
    type Item: Message;

    /// The next message; `Ok(None)` ends the stream well, an error ends it with a fault or cuts it. Cancelling the wait
    /// loses nothing.
    fn next(&mut self) -> impl Future<Output = Result<Option<Self::Item>, Ending>> + Send;
}

/// How a stream ends that does not end well.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The last envelope tells the client.
    Fault(Fault),
    /// The connection breaks: the sandbox no longer answers, and the client looks whether the sandbox is gone.
    Cut,
}

impl From<Fault> for Ending {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Answers a call whose request is one or more enveloped messages with a stream. An error of `begin` is told in the
/// stream, as the protocol wants it.
pub(crate) async fn streamed<M: Message, A: Answer>(
    request: Request,
    begin: impl AsyncFnOnce(Requests<M>) -> Result<A, Fault>,
) -> Response {
    let (parts, body) = request.into_parts();
    let Some(codec) = Codec::of(&parts.headers, "application/connect+") else { return unsupported() };
    let begun = match Requests::new(codec, &parts.headers, body) {
        Ok(requests) => begin(requests).await,
        Err(fault) => Err(fault),
    };
    let headers = [(CONTENT_TYPE, codec.content_type(true)), (CACHE_CONTROL, "no-store")];
    match begun {
        Ok(answer) => (headers, messages(codec, answer)).into_response(),
        Err(fault) => (Extension(Refused), headers, Body::from(end(Some(&fault)))).into_response(),
    }
}

/// The last envelope.
fn end(fault: Option<&Fault>) -> Bytes {
    if let Some(fault) = fault {
        tracing::info!(code = ?fault.kind, message = fault.message, "stream ended");
    }
    let payload = fault
        .map_or_else(|| Value::Object(serde_json::Map::new()), |fault| json!({"error": fault.to_json()}));
    pack(END, payload.to_string().as_bytes())
}

fn messages<A: Answer>(codec: Codec, answer: A) -> Body {
    Body::from_stream(stream::unfold(Some(answer), move |answer| async move {
        let mut answer = answer?;
        let message = match answer.next().await {
            Ok(Some(message)) => codec.encode(&message).map_err(Ending::Fault),
            Ok(None) => return Some((Ok(end(None)), None)),
            Err(ending) => Err(ending),
        };
        match message {
            Ok(payload) => Some((Ok(pack(0, &payload)), Some(answer))),
            Err(Ending::Fault(fault)) => Some((Ok(end(Some(&fault))), None)),
            Err(Ending::Cut) => {
                Some((Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the sandbox is gone")), None))
            }
        }
    }))
}

/// The single message that answers a stream of requests.
pub(crate) struct Once<M>(pub(crate) Option<M>);

impl<M: Message> Answer for Once<M> {
    type Item = M;

    async fn next(&mut self) -> Result<Option<M>, Ending> {
        Ok::<_, Infallible>(self.0.take()).map_err(|never| match never {})
    }
}
