//! The Connect protocol, as much of it as a server has to know: unary calls, streams of answers, streams of
//! requests; JSON and protobuf; bodies as they are or gzipped.
//!
//! ```text
//! unary    body = message                      answer: 200 and a message, or a status and `{"code","message"}`
//! streams  body = envelope (flags, length, message)*
//!          answer: 200, envelopes, and at the end one with flag 2: `{}` or `{"error":{…}}`
//! ```
//!
//! Bodies are bounded before they are kept; compressed ones also by their unpacked size.

mod envelope;
mod fault;
mod stream;

use std::io::Read as _;
use std::time::Duration;

use atoll_server::dialect::read_all;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::wire::Message;

pub(crate) use envelope::Requests;
pub(crate) use fault::{Fault, Kind};
pub(crate) use stream::{Answer, Ending, Once, streamed};

/// Longest message that a client may send, bytes: one message carries the input for a process.
const MESSAGE_MAX_BYTES: usize = 8 << 20;
/// Longest time that a client may allow, milliseconds: ten digits.
const TIMEOUT_MAX_MS: u64 = 9_999_999_999;

/// How messages are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codec {
    Json,
    Proto,
}

impl Codec {
    /// Of a content type below a prefix: `application/json`, `application/connect+proto`, ….
    fn of(headers: &HeaderMap, prefix: &str) -> Option<Self> {
        let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
        match kind.split(';').next()?.trim().strip_prefix(prefix)? {
            "json" => Some(Self::Json),
            "proto" => Some(Self::Proto),
            _ => None,
        }
    }

    fn encode<M: Message>(self, message: &M) -> Result<Bytes, Fault> {
        match self {
            Self::Proto => Ok(message.encode_to_vec().into()),
            Self::Json => serde_json::to_vec(message).map(Bytes::from).map_err(|error| {
                tracing::error!(%error, "a message cannot be written as JSON");
                Fault::new(Kind::Internal, "the answer cannot be written")
            }),
        }
    }

    fn decode<M: Message>(self, bytes: &Bytes) -> Result<M, Fault> {
        let wrong = |error: &dyn std::fmt::Display| {
            let error: String = error.to_string().chars().take(200).collect();
            Fault::new(Kind::InvalidArgument, format!("the message cannot be read: {error}"))
        };
        match self {
            // An empty body is a message with no field set.
            Self::Json if bytes.is_empty() => Ok(M::default()),
            Self::Json => serde_json::from_slice(bytes).map_err(|error| wrong(&error)),
            Self::Proto => M::decode(bytes.clone()).map_err(|error| wrong(&error)),
        }
    }

    const fn content_type(self, streaming: bool) -> &'static str {
        match (self, streaming) {
            (Self::Json, false) => "application/json",
            (Self::Proto, false) => "application/proto",
            (Self::Json, true) => "application/connect+json",
            (Self::Proto, true) => "application/connect+proto",
        }
    }
}

/// How bodies or envelopes are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Identity,
    Gzip,
}

impl Encoding {
    fn of(headers: &HeaderMap, name: &str) -> Result<Self, Fault> {
        match headers.get(name).map(HeaderValue::as_bytes) {
            None | Some(b"" | b"identity") => Ok(Self::Identity),
            Some(b"gzip") => Ok(Self::Gzip),
            Some(_) => Err(Fault::new(
                Kind::Unimplemented,
                "unknown compression: supported encodings are gzip and identity",
            )),
        }
    }

    fn open(self, bytes: Bytes) -> Result<Bytes, Fault> {
        if self == Self::Identity {
            return Ok(bytes);
        }
        let mut plain = Vec::new();
        let mut reader = flate2::read::MultiGzDecoder::new(&bytes[..]).take(MESSAGE_MAX_BYTES as u64 + 1);
        reader.read_to_end(&mut plain).map_err(|error| {
            Fault::new(Kind::InvalidArgument, format!("the message is not gzip: {error}"))
        })?;
        if plain.len() > MESSAGE_MAX_BYTES {
            return Err(too_large());
        }
        Ok(plain.into())
    }
}

fn too_large() -> Fault {
    Fault::new(Kind::ResourceExhausted, format!("the message is larger than {MESSAGE_MAX_BYTES} bytes"))
}

/// How long the client allows the call to take, if it says so.
///
/// # Errors
/// For a text that is no number of milliseconds.
pub(crate) fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, Fault> {
    let Some(value) = headers.get("connect-timeout-ms") else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse::<u64>().ok());
    match number.filter(|ms| *ms <= TIMEOUT_MAX_MS) {
        Some(ms) => Ok(Some(Duration::from_millis(ms))),
        None => Err(Fault::new(Kind::InvalidArgument, "Connect-Timeout-Ms: not a number of milliseconds")),
    }
}

/// Answers a request whose content type is none of the protocol's.
fn unsupported() -> Response {
    let accept = "application/json, application/proto, application/connect+json, application/connect+proto";
    (StatusCode::UNSUPPORTED_MEDIA_TYPE, [("accept-post", accept)]).into_response()
}

/// Answers one call: a message for a message.
pub(crate) async fn unary<M: Message, A: Message>(
    request: Request,
    call: impl AsyncFnOnce(M) -> Result<A, Fault>,
) -> Response {
    let (parts, body) = request.into_parts();
    let Some(codec) = Codec::of(&parts.headers, "application/") else { return unsupported() };
    let answered = async {
        let encoding = Encoding::of(&parts.headers, CONTENT_ENCODING.as_str())?;
        let limit = timeout(&parts.headers)?;
        let call = async {
            let bytes = read_all(body, MESSAGE_MAX_BYTES).await.map_err(|error| Fault::of(&error))?;
            let message = codec.decode(&encoding.open(bytes)?)?;
            codec.encode(&call(message).await?)
        };
        match limit {
            None => call.await,
            Some(limit) => tokio::time::timeout(limit, call).await.unwrap_or_else(|_| Err(Fault::deadline())),
        }
    };
    match answered.await {
        Ok(bytes) => ([(CONTENT_TYPE, codec.content_type(false))], bytes).into_response(),
        Err(fault) => fault.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn content_types() {
        let of = |text, prefix| Codec::of(&headers(&[("content-type", text)]), prefix);
        assert_eq!(of("application/json; charset=utf-8", "application/"), Some(Codec::Json));
        assert_eq!(of("application/proto", "application/"), Some(Codec::Proto));
        assert_eq!(of("application/connect+proto", "application/connect+"), Some(Codec::Proto));
        assert_eq!(of("application/connect+json", "application/"), None);
        assert_eq!(of("text/plain", "application/"), None);
    }

    #[test]
    fn timeouts() {
        let of = |text| timeout(&headers(&[("connect-timeout-ms", text)]));
        assert_eq!(of("1500").unwrap(), Some(Duration::from_millis(1500)));
        assert_eq!(timeout(&HeaderMap::new()).unwrap(), None);
        assert!(of("99999999999").is_err() && of("-1").is_err() && of("x").is_err());
    }

    #[test]
    fn what_unpacks_to_too_much_is_refused() {
        use std::io::Write as _;
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packed.write_all(&vec![0; MESSAGE_MAX_BYTES + 1]).unwrap();
        let fault = Encoding::Gzip.open(packed.finish().unwrap().into()).unwrap_err();
        assert_eq!(fault.kind, Kind::ResourceExhausted);
        assert!(Encoding::Gzip.open(Bytes::from_static(b"plain")).is_err());
    }
}
