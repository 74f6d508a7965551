//! `Idempotency-Key`: a client that asks for the same creation again gets the first one's answer.
//!
//! Answers are kept in memory, for a day. A restarted server does not know them any more, but finds the sandbox by the
//! key, which is kept with it ([`kept`]); a creation that was interrupted has been undone.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::id::KeyId;
use atoll_core::spec::RequestKey;
use atoll_engine::Asked;
use axum::body::{Body, to_bytes};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};

use crate::error::Failure;
use crate::time::now_ms;

/// Header that carries the key.
const HEADER: &str = "idempotency-key";
const KEY_MAX_BYTES: usize = 255;
/// Most answers that are kept.
const ANSWERS_MAX: usize = 10_000;
/// Most answers of one API key: no key uses up the room that all share.
const OF_CALLER_MAX: usize = 2000;
/// How long, milliseconds.
const KEPT_MS: u64 = 24 * 3600 * 1000;
/// Bytes of an answer that is kept.
const ANSWER_MAX_BYTES: usize = 64 << 10;

/// The answers. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answers(Arc<Mutex<HashMap<(KeyId, String), Kept>>>);

#[derive(Debug, Clone)]
struct Kept {
    print: String,
    at_ms: u64,
    /// Absent while the request is under way.
    answer: Option<(StatusCode, Bytes)>,
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
    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<(KeyId, String), Kept>> {
        // The map stays usable when a task panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a request, or gives the answer for it if there is one.
    fn begin(&self, id: &(KeyId, String), print: &str) -> Option<Response> {
        let now = now_ms();
        let mut table = self.table();
        if table.len() >= ANSWERS_MAX {
            table.retain(|_, kept| kept.at_ms.saturating_add(KEPT_MS) > now);
        }
        match table.get(id).filter(|kept| kept.at_ms.saturating_add(KEPT_MS) > now) {
            Some(kept) if kept.print != print => Some(mismatch().into_response()),
            Some(Kept { answer: None, .. }) => Some(
                Failure::conflict("the first request with this Idempotency-Key is under way")
                    .with_code("idempotency_in_progress")
                    .into_response(),
            ),
            Some(Kept { answer: Some((status, body)), .. }) => Some(replayed(*status, body.clone())),
            None if table.len() >= ANSWERS_MAX
                || table.keys().filter(|(caller, _)| *caller == id.0).count() >= OF_CALLER_MAX =>
            {
                let message = "too many Idempotency-Keys were used today";
                Some(Failure::new(StatusCode::TOO_MANY_REQUESTS, message).into_response())
            }
            None => {
                table.insert(id.clone(), Kept { print: print.to_owned(), at_ms: now, answer: None });
                None
            }
        }
    }

    /// Runs `make` once for a key, whether the client waits or not.
    pub(super) async fn once(
        &self,
        caller: &KeyId,
        key: &str,
        print: &str,
        make: impl Future<Output = Response> + Send + 'static,
    ) -> Response {
        let id = (caller.clone(), key.to_owned());
        if let Some(answer) = self.begin(&id, print) {
            return answer;
        }
        let answers = self.clone();
        let making = atoll_engine::spawn(async move {
            let (parts, body) = make.await.into_parts();
            let body = to_bytes(body, ANSWER_MAX_BYTES).await.unwrap_or_default();
            if !parts.status.is_success() && Asked::may_be_for_another() {
                answers.table().remove(&id);
            } else if let Some(kept) = answers.table().get_mut(&id) {
                kept.answer = Some((parts.status, body.clone()));
            }
            Response::from_parts(parts, Body::from(body))
        });
        making.await.unwrap_or_else(|_panicked| {
            Failure::new(StatusCode::UNPROCESSABLE_ENTITY, "how the request ended is not known")
                .with_code("idempotency_outcome_unknown")
                .into_response()
        })
    }
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
