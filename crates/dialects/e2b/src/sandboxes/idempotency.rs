//! `Idempotency-Key`: a client that asks for the same creation again gets the first one's answer.
//!
//! Answers of requests that made a sandbox are kept in memory, for a day. A restarted server does not know them any more, but finds the sandbox by the
//! key, which is kept with it ([`kept`]); a creation that was interrupted has been undone.

use atoll_core::id::KeyId;
use atoll_core::spec::RequestKey;
use atoll_dialect_kit::once::{BYTES_ALL, BYTES_OF_KEY, Begun, Limits, Once, Print};
use axum::body::{Body, to_bytes};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};

use crate::error::Failure;

/// Header that carries the key.
const HEADER: &str = "idempotency-key";
const KEY_MAX_BYTES: usize = 255;
/// What is kept of answers.
const LIMITS: Limits = Limits {
    kept_ms: 24 * 3600 * 1000,
    of_key: 2000,
    all: 10_000,
    bytes_of_key: BYTES_OF_KEY,
    bytes_all: BYTES_ALL,
};
/// Bytes of an answer that is kept.
const ANSWER_MAX_BYTES: usize = 64 << 10;

/// The answers. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Answers(Once<(StatusCode, Bytes)>);

impl Default for Answers {
    fn default() -> Self {
        Self(Once::new(LIMITS, |(_, body): &(StatusCode, Bytes)| body.len()))
    }
}

/// The key of a request, if it has one.
///
/// # Errors
/// 400 for a key that is not valid.
pub(super) fn key(headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let mut all = headers.get_all(HEADER).iter();
    let Some(first) = all.next() else { return Ok(None) };
    let form = |text: &&str| {
        (1..=KEY_MAX_BYTES).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    match first.to_str().ok().filter(form) {
        Some(text) if all.next().is_none() => Ok(Some(text.to_owned())),
        _ => Err(Failure::bad(
            "Idempotency-Key: must be one value of 1 to 255 lower-case letters, digits and hyphens",
        )),
    }
}

/// The key as it is kept with the sandbox: apart from the keys of the same caller's native requests.
pub(super) fn kept(key: &str, print: &str) -> RequestKey {
    RequestKey { key: format!("e2b {key}"), digest: blake3::hash(print.as_bytes()).to_hex().to_string() }
}

/// The key belongs to another request.
pub(super) fn mismatch() -> Failure {
    Failure::conflict("the Idempotency-Key was used before with another request")
        .with_code("idempotency_request_mismatch")
}

impl Answers {
    /// Runs `make` once for a key, whether the client waits or not. A refusal is not kept. The caller is authorised already.
    pub(super) async fn once(
        &self,
        caller: &KeyId,
        key: &str,
        print: &str,
        make: impl Future<Output = Response> + Send + 'static,
    ) -> Response {
        let of = (caller.clone(), key.to_owned());
        let first = match self.0.begin(&of, Print::of(&[print.as_bytes()])) {
            Begun::First(first) => first,
            Begun::Other => return mismatch().into_response(),
            Begun::Again(again) => {
                return again.now().map_or_else(under_way, |(status, body)| replayed(status, body));
            }
        };
        let making = atoll_engine::spawn(async move {
            let (parts, body) = make.await.into_parts();
            let body = to_bytes(body, ANSWER_MAX_BYTES).await.unwrap_or_default();
            first.answer((parts.status, body.clone()), parts.status.is_success());
            Response::from_parts(parts, Body::from(body))
        });
        making.await.unwrap_or_else(|_panicked| {
            Failure::new(StatusCode::UNPROCESSABLE_ENTITY, "how the request ended is not known")
                .with_code("idempotency_outcome_unknown")
                .into_response()
        })
    }
}

fn under_way() -> Response {
    Failure::conflict("the first request with this Idempotency-Key is under way")
        .with_code("idempotency_in_progress")
        .into_response()
}

fn replayed(status: StatusCode, body: Bytes) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn once_for_a_key() {
        let answers = Answers::default();
        let (one, other) = (KeyId::from_parts(1, 1), KeyId::from_parts(1, 2));
        let ask = async |key: &KeyId, print: &str, text: &'static str| {
            let response = answers.once(key, "k", print, async move { text.into_response() }).await;
            let status = response.status();
            (status, to_bytes(response.into_body(), 1000).await.unwrap())
        };
        assert_eq!(ask(&one, "a", "first").await.1, "first");
        assert_eq!(ask(&one, "a", "second").await.1, "first");
        assert_eq!(ask(&one, "b", "third").await.0, StatusCode::CONFLICT);
        assert_eq!(ask(&other, "a", "fourth").await.1, "fourth");
    }

    /// However many requests are refused, with however many keys: no other key is refused, and each may try again.
    #[tokio::test]
    async fn refusals_are_not_kept() {
        let answers = Answers::default();
        let (one, other) = (KeyId::from_parts(1, 1), KeyId::from_parts(1, 2));
        let ask = async |caller: &KeyId, key: &str, status: StatusCode| {
            answers.once(caller, key, "a", async move { status.into_response() }).await.status()
        };
        for number in 0..2 * LIMITS.of_key {
            assert_eq!(
                ask(&one, &number.to_string(), StatusCode::BAD_REQUEST).await,
                StatusCode::BAD_REQUEST
            );
        }
        for caller in [&one, &other] {
            assert_eq!(ask(caller, "0", StatusCode::CREATED).await, StatusCode::CREATED);
            assert_eq!(ask(caller, "0", StatusCode::CONFLICT).await, StatusCode::CREATED, "it is kept");
        }
    }

    #[test]
    fn keys() {
        let of = |text: &str| {
            let value = http::HeaderValue::try_from(text).unwrap();
            key(&HeaderMap::from_iter([(http::HeaderName::from_static(HEADER), value)]))
        };
        assert_eq!(of("a-1").unwrap().as_deref(), Some("a-1"));
        assert!(of("A").is_err() && of("").is_err() && of(&"a".repeat(256)).is_err());
        assert_eq!(key(&HeaderMap::new()).unwrap(), None);
    }
}
