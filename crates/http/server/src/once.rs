//! `Idempotency-Key`: the same request sent again gets the first one's answer, and nothing is done twice.
//!
//! For requests that make something, and for requests that must not arrive twice, such as standard input. An exec's key
//! stands in its body and is kept with it; a sandbox's key is kept with it, too ([`RequestKey`]), so that a creation
//! whose answer a crash swallowed is not done again. The answers here are kept in memory, and a server that was started
//! anew does not know them. Only successes are kept: a request that was refused changed nothing, and may be sent again.
//! A repetition that comes while the first request is under way waits for its answer.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atoll_core::id::KeyId;
use atoll_core::limits::{IDEMPOTENCY_KEY_MAX_BYTES, JSON_BODY_MAX_BYTES};
use atoll_core::spec::RequestKey;
use atoll_core::{Code, Error};
use axum::body::{Body, to_bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use crate::auth;
use crate::body::read_all;
use crate::error::{ApiError, ApiResult};
use crate::hangup::ClientGone;
use crate::shared::App;

/// Carries the key.
pub(crate) const HEADER: &str = "idempotency-key";
/// Stands in an answer that was given before.
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// How long answers are kept.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// How often answers that are older are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);
/// Answers that are kept for one API key; the oldest go first.
pub(crate) const ANSWERS_MAX: usize = 1000;
/// Bytes of them.
pub(crate) const ANSWERS_MAX_BYTES: usize = 4 << 20;

/// The routes that take it, with POST.
pub(crate) const ROUTES: [&str; 12] = [
    "/v1/builds",
    "/v1/sandboxes",
    "/v1/sandboxes/batch",
    "/v1/sandboxes/{sandbox}/checkpoints",
    "/v1/sandboxes/{sandbox}/contexts",
    "/v1/sandboxes/{sandbox}/execs/{exec}/signal",
    "/v1/sandboxes/{sandbox}/execs/{exec}/stdin",
    "/v1/sandboxes/{sandbox}/fork",
    "/v1/sandboxes/{sandbox}/rollback",
    "/v1/sandboxes/{sandbox}/snapshots",
    "/v1/templates",
    "/v1/volumes",
];

/// Those of them whose key is kept with the sandboxes that they make, too.
pub(crate) const KEPT_WITH_SANDBOXES: [&str; 2] = ["/v1/sandboxes", "/v1/sandboxes/batch"];

/// The answers of all callers.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    callers: Mutex<Callers>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Callers {
    by_key: HashMap<KeyId, Caller>,
    /// When old answers were removed last; also those of keys that come no more.
    swept: Option<Instant>,
}

impl Callers {
    fn sweep(&mut self, now: Instant) {
        if self.swept.is_some_and(|at| now.duration_since(at) < SWEEP_EVERY) {
            return;
        }
        self.swept = Some(now);
        self.by_key.retain(|_, caller| {
            caller.entries.retain(|_, entry| {
                Arc::strong_count(entry) > 1 || now.saturating_duration_since(entry.at) < KEPT
            });
            caller.order.retain(|key| caller.entries.contains_key(key));
            !caller.entries.is_empty()
        });
    }
}

#[derive(Debug, Default)]
struct Caller {
    entries: HashMap<String, Arc<Entry>>,
    /// Keys, oldest first.
    order: VecDeque<String>,
}

#[derive(Debug)]
struct Entry {
    /// The hash of route and body.
    print: u64,
    at: Instant,
    /// Locked while a request is under way. A request that gets the lock and finds no answer does the work.
    answer: tokio::sync::Mutex<Option<Answer>>,
    bytes: std::sync::atomic::AtomicUsize,
}

#[derive(Debug, Clone)]
struct Answer {
    status: StatusCode,
    media_type: Option<HeaderValue>,
    body: Bytes,
}

impl Entry {
    fn len(&self) -> usize {
        self.bytes.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl Caller {
    /// Makes room for one more. The map alone holds an entry that no request uses.
    fn make_room(&mut self) -> Result<(), Error> {
        let mut bytes: usize = self.entries.values().map(|entry| entry.len()).sum();
        for _ in 0..self.order.len() {
            let Some(oldest) = self.order.front().and_then(|key| self.entries.get(key)) else { break };
            let full = self.order.len() >= ANSWERS_MAX || bytes > ANSWERS_MAX_BYTES;
            if !full && oldest.at.elapsed() < KEPT {
                return Ok(());
            }
            let (used, len) = (Arc::strong_count(oldest) > 1, oldest.len());
            let Some(key) = self.order.pop_front() else { break };
            if used {
                self.order.push_back(key);
            } else {
                self.entries.remove(&key);
                bytes -= len;
            }
        }
        if self.order.len() < ANSWERS_MAX {
            return Ok(());
        }
        Err(Error::new(Code::LimitExceeded, "too many requests with an idempotency key are under way"))
    }
}

impl Answers {
    fn callers(&self) -> MutexGuard<'_, Callers> {
        // The map is usable even if a task panicked while it held the lock.
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry of a key: the one that is there, or a new one.
    fn entry(&self, caller: &KeyId, key: &str, print: u64) -> Result<Arc<Entry>, Error> {
        let mut callers = self.callers();
        callers.sweep(Instant::now());
        let caller = callers.by_key.entry(caller.clone()).or_default();
        if let Some(entry) = caller.entries.get(key).filter(|entry| entry.at.elapsed() < KEPT) {
            if entry.print == print {
                return Ok(Arc::clone(entry));
            }
            return Err(Error::new(
                Code::IdempotencyMismatch,
                "the idempotency key was used before with another request",
            )
            .hint("use a new key for a new request"));
        }
        if caller.entries.remove(key).is_some() {
            caller.order.retain(|other| other != key);
        }
        caller.make_room()?;
        let entry = Arc::new(Entry {
            print,
            at: Instant::now(),
            answer: tokio::sync::Mutex::default(),
            bytes: std::sync::atomic::AtomicUsize::default(),
        });
        caller.order.push_back(key.to_owned());
        caller.entries.insert(key.to_owned(), Arc::clone(&entry));
        Ok(entry)
    }
}

/// The key of a request.
fn key(headers: &HeaderMap) -> Result<Option<&str>, Error> {
    let mut all = headers.get_all(HEADER).iter();
    let Some(first) = all.next() else { return Ok(None) };
    let text = first.to_str().ok().filter(|text| {
        (1..=IDEMPOTENCY_KEY_MAX_BYTES).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
    });
    match text {
        Some(text) if all.next().is_none() => Ok(Some(text)),
        _ => Err(Error::invalid(HEADER, "must be one value of 1 to 128 printable ASCII characters")),
    }
}

/// The layer around the handlers: does what a request asks for unless it was done already.
pub(crate) async fn once(State(app): State<App>, request: Request, next: Next) -> Response {
    if !request.headers().contains_key(HEADER) {
        return next.run(request).await;
    }
    answered(&app, request, next).await.unwrap_or_else(ApiError::into_response)
}

async fn answered(app: &App, request: Request, next: Next) -> ApiResult<Response> {
    // A request without a valid API key looks nothing up, and no caller gets an answer that another caller was given.
    let caller = auth::identify(request.headers(), request.extensions(), app)?.id;
    let Some(key) = key(request.headers())?.map(str::to_owned) else { return Ok(next.run(request).await) };
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    if request.method() != Method::POST || !ROUTES.contains(&route) {
        return Err(Error::invalid(HEADER, "this route does not take one")
            .hint("see /openapi.json; the key of an exec stands in its body, as 'idempotency_key'")
            .into());
    }
    let gone = ClientGone::of(request.extensions());
    let (parts, body) = request.into_parts();
    let body = read_all(body, JSON_BODY_MAX_BYTES).await?;
    let print = app.answers.hasher.hash_one((parts.uri.path(), parts.uri.query(), &body));
    let entry = app.answers.entry(&caller, &key, print)?;
    let mut answer = gone.unless_gone(entry.answer.lock()).await?;
    if let Some(kept) = &*answer {
        return Ok(kept.clone().into_response());
    }
    let mut request = Request::from_parts(parts, Body::from(body.clone()));
    let path = request.uri().path_and_query().map_or("", http::uri::PathAndQuery::as_str);
    let digest = blake3::Hasher::new().update(path.as_bytes()).update(b"\0").update(&body).finalize();
    request.extensions_mut().insert(RequestKey { key, digest: digest.to_hex().to_string() });
    let response = next.run(request).await;
    if !response.status().is_success() {
        return Ok(response);
    }
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, usize::MAX).await.map_err(|error| {
        tracing::error!(%error, "an answer that is to be kept broke off");
        Error::new(Code::Internal, "the answer broke off")
    })?;
    entry.bytes.store(body.len(), std::sync::atomic::Ordering::Relaxed);
    let media_type = parts.headers.get(CONTENT_TYPE).cloned();
    *answer = Some(Answer { status: parts.status, media_type, body: body.clone() });
    Ok(Response::from_parts(parts, Body::from(body)))
}

impl axum::response::IntoResponse for Answer {
    fn into_response(self) -> Response {
        let mut response = (self.status, [(REPLAYED, "true")], self.body).into_response();
        response.headers_mut().remove(CONTENT_TYPE);
        if let Some(media_type) = self.media_type {
            response.headers_mut().insert(CONTENT_TYPE, media_type);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_for_the_newest() {
        let answers = Answers::default();
        let (one, other) = (KeyId::from_parts(1, 1), KeyId::from_parts(1, 2));
        let held = answers.entry(&one, "held", 1).unwrap();
        for number in 0..2 * ANSWERS_MAX {
            drop(answers.entry(&one, &number.to_string(), 1).unwrap());
        }
        assert!(Arc::ptr_eq(&held, &answers.entry(&one, "held", 1).unwrap()), "it is under way");
        assert_eq!(answers.entry(&one, "held", 2).unwrap_err().code, Code::IdempotencyMismatch);
        assert!(answers.entry(&other, "held", 2).is_ok(), "another caller's keys are its own");
        let callers = answers.callers();
        assert_eq!(
            (callers.by_key[&one].entries.len(), callers.by_key[&one].order.len()),
            (ANSWERS_MAX, ANSWERS_MAX)
        );
        assert!(!callers.by_key[&one].entries.contains_key("0"));
    }

    #[test]
    fn large_answers_push_older_ones_out() {
        let answers = Answers::default();
        let caller = KeyId::from_parts(1, 1);
        for number in 0..20 {
            let entry = answers.entry(&caller, &number.to_string(), 1).unwrap();
            entry.bytes.store(1 << 20, std::sync::atomic::Ordering::Relaxed);
        }
        let callers = answers.callers();
        let bytes: usize = callers.by_key[&caller].entries.values().map(|entry| entry.len()).sum();
        assert!(bytes <= ANSWERS_MAX_BYTES + (1 << 20), "{bytes}");
    }

    #[test]
    fn answers_of_a_key_that_comes_no_more_go() {
        let answers = Answers::default();
        let caller = |number| KeyId::from_parts(1, number);
        drop(answers.entry(&caller(1), "a", 1).unwrap());
        let held = answers.entry(&caller(2), "b", 1).unwrap();
        let mut callers = answers.callers();
        let begun = callers.swept.unwrap();
        callers.sweep(begun + KEPT / 2);
        assert_eq!(callers.by_key.len(), 2);
        callers.sweep(begun + KEPT + SWEEP_EVERY);
        assert_eq!(callers.by_key.keys().collect::<Vec<_>>(), [&caller(2)], "a request under way stays");
        drop(held);
        callers.sweep(begun + KEPT + 2 * SWEEP_EVERY);
        assert!(callers.by_key.is_empty());
    }

    #[test]
    fn keys() {
        let of = |text: &str| {
            let value = HeaderValue::try_from(text).unwrap();
            key(&HeaderMap::from_iter([(HeaderName::from_static(HEADER), value)]))
                .map(|key| key.map(str::to_owned))
        };
        assert_eq!(of("a-1").unwrap().as_deref(), Some("a-1"));
        assert!(of("").is_err() && of("a b").is_err() && of(&"a".repeat(129)).is_err());
        assert_eq!(key(&HeaderMap::new()).unwrap(), None);
    }
}
