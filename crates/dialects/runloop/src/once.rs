//! `x-request-id`: a client that sends a request again gets the first one's answer, also while that is under way.
//!
//! The clients make the id for every request that is no GET, and send it with each attempt. Answers of requests that were
//! done are kept for an hour, which is longer than any client goes on trying. A request that was refused, or whose caller
//! has no right to it, is not entered. They are kept in memory; those of requests that made a thing are also on disk, before the client is told. A restarted server reads them. It also finds things that were made
//! before their client was answered: devboxes and executions by the id of the request, which is kept with them
//! ([`RequestKey`]); all others by their own id, which was written down before they were made ([`Promise`]).

use atoll_core::id::KeyId;
use atoll_core::limits::JSON_BODY_MAX_BYTES;
use atoll_core::spec::RequestKey;
use atoll_dialect_kit::once::{BYTES_ALL, BYTES_OF_KEY, Begun, Limits, Once, Print};
use atoll_dialect_kit::promise::{Of, Promise, Shelf};
use atoll_dialect_kit::time::now_ms;
use atoll_engine::{Asked, Engine};
use atoll_failpoint::fail_point;
use atoll_server::dialect::read_all;
use axum::body::{Body, to_bytes};
use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::App;
use crate::disk;
use crate::error::{Failure, Result};
use crate::request::{Caller, Requires};

/// Header that carries the id.
pub(crate) const HEADER: &str = "x-request-id";
const ID_MAX_BYTES: usize = 255;
/// The name of the shelf.
const DIR: &str = "runloop-answers";
/// What is kept of answers.
const LIMITS: Limits = Limits {
    kept_ms: 3600 * 1000,
    of_key: 2000,
    all: 10_000,
    bytes_of_key: BYTES_OF_KEY,
    bytes_all: BYTES_ALL,
};
/// Bytes of an answer that is kept.
const ANSWER_MAX_BYTES: usize = 256 << 10;

/// The answers. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Answers {
    kept: Once<(StatusCode, Bytes)>,
    /// The promises and answers that outlive the server.
    shelf: Option<Shelf<Written>>,
}

/// The file on the shelf for a request.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    /// Hash of the request.
    print: String,
    promise: Promise,
    answer: Option<Answered>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Answered {
    status: u16,
    body: String,
}

/// The id of a request, if it has one that can be used.
pub(crate) fn id(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(HEADER)?.to_str().ok()?;
    (1..=ID_MAX_BYTES).contains(&text.len()).then_some(text)
}

/// The id belongs to another request.
pub(crate) fn mismatch() -> Failure {
    Failure::bad(format!("{HEADER}: was used before with another request"))
}

/// Whether the engine itself keeps the id with the thing that a request makes.
fn is_kept_with_it(path: &str) -> bool {
    let last = path.rsplit('/').next().unwrap_or_default();
    matches!(last, "devboxes" | "create_and_await_running" | "execute" | "execute_async" | "execute_sync")
}

fn bytes_of((_, body): &(StatusCode, Bytes)) -> usize {
    body.len()
}

impl Answers {
    /// Begins with the answers of an earlier run of the server.
    pub(crate) fn read(engine: &Engine) -> Self {
        let shelf = Shelf::new(engine, DIR, LIMITS.kept_ms);
        let (kept, now) = (Once::new(LIMITS, bytes_of), now_ms());
        // The shelf gives the newest first.
        for (of, at_ms, Written { print, answer, .. }) in
            shelf.all(LIMITS.all, LIMITS.bytes_all).into_iter().rev()
        {
            let Some(Answered { status, body }) = answer else { continue };
            let parsed = (Print::from_hex(&print), StatusCode::from_u16(status));
            if let (Some(print), Ok(status)) = parsed
                && at_ms <= now
            {
                kept.put(of, at_ms, print, (status, Bytes::from(body)));
            }
        }
        Self { kept, shelf: Some(shelf) }
    }

    #[cfg(test)]
    fn empty() -> Self {
        Self { kept: Once::new(LIMITS, bytes_of), shelf: None }
    }

    /// The promise for a request, written down before the request is handled; if an earlier server made one, that one.
    async fn promise(&self, of: &Of, print: Print) -> Result<Promise> {
        let (of, print) = (of.clone(), print.to_hex());
        let shelf = self.shelf.clone();
        let promise = disk::work(move || {
            let known = shelf.as_ref().and_then(|shelf| shelf.find(&of));
            if let Some(Written { print: before, promise, .. }) = known {
                return Ok((before == print).then_some(promise.again()));
            }
            let promise = Promise::new()?;
            if let Some(shelf) = shelf {
                shelf.save(&of, Written { print, promise: promise.clone(), answer: None })?;
            }
            Ok(Some(promise))
        });
        let promise = promise.await?.ok_or_else(mismatch)?;
        fail_point!("runloop.promised");
        Ok(promise)
    }

    /// Writes down an answer. A refused request made nothing: its promise is removed.
    async fn write(&self, of: &Of, print: Print, promise: Promise, status: StatusCode, body: &Bytes) {
        fail_point!("runloop.made");
        let Some(shelf) = self.shelf.clone() else { return };
        let (of, body) = (of.clone(), String::from_utf8_lossy(body).into_owned());
        let answer = Some(Answered { status: status.as_u16(), body });
        let written = Written { print: print.to_hex(), promise, answer };
        let writing = disk::work(move || {
            if status.is_success() {
                return shelf.save(&of, written);
            }
            shelf.remove(&of);
            Ok(())
        });
        // If this fails, the thing is made all the same, and found by its promise; the failure is in the log.
        drop(writing.await);
    }

    /// Removes the files of requests that went to make room: a key's answers on disk are no more than those in memory.
    fn forget(&self, gone: Vec<Of>) {
        if let Some(shelf) = self.shelf.clone().filter(|_| !gone.is_empty()) {
            drop(tokio::task::spawn_blocking(move || gone.iter().for_each(|of| shelf.remove(of))));
        }
    }

    /// The answer to a key whose `id` is this one, also from an earlier server.
    pub(crate) fn told(&self, key: &KeyId, id: &str) -> Option<Value> {
        self.kept.of_key(key).into_iter().find_map(|(_, body)| {
            let told: Value = serde_json::from_slice(&body).ok()?;
            (told["id"] == id).then_some(told)
        })
    }

    /// Runs `make` once for an id, whether the client waits or not. A refusal is told to those that wait, and not kept: the
    /// next attempt runs `make` again. The caller is authorised already.
    async fn once<F>(
        &self,
        of: Of,
        print: Print,
        written: bool,
        make: impl FnOnce(Option<Promise>) -> F + Send + 'static,
    ) -> Response
    where
        F: Future<Output = Response> + Send,
    {
        let mut first = loop {
            match self.kept.begin(&of, print) {
                Begun::First(first) => break first,
                Begun::Other => return mismatch().into_response(),
                // Without an answer another node must answer the request, and this one asks there, too; or the task that
                // handled it panicked, and it is done again.
                Begun::Again(again) => {
                    if let Some((status, body)) = again.wait().await {
                        return (status, [(CONTENT_TYPE, "application/json")], body).into_response();
                    }
                }
            }
        };
        self.forget(std::mem::take(&mut first.gone));
        let answers = self.clone();
        let making = atoll_engine::spawn(async move {
            let promise = match written {
                true => answers.promise(&of, print).await.map(Some),
                false => Ok(None),
            };
            let (response, promised) = match promise {
                Ok(promise) => (make(promise.clone()).await, promise),
                Err(failure) => (failure.into_response(), None),
            };
            let (parts, body) = response.into_parts();
            let body = to_bytes(body, ANSWER_MAX_BYTES).await.unwrap_or_default();
            let is_done = parts.status.is_success();
            let goes = !is_done && Asked::may_be_for_another();
            if let Some(promise) = promised {
                answers.write(&of, print, promise, parts.status, &body).await;
            }
            if goes {
                drop(first);
            } else {
                let gone = first.answer((parts.status, body.clone()), is_done);
                answers.forget(gone);
            }
            Response::from_parts(parts, Body::from(body))
        });
        making.await.unwrap_or_else(|_panicked| unknown())
    }
}

fn unknown() -> Response {
    Failure::of(&atoll_core::Error::new(atoll_core::Code::Internal, "how the request ended is not known"))
        .into_response()
}

/// The layer around routes that make a thing, and that need the right `S`. It asks for that right before it reads the body.
pub(crate) async fn layer<S>(State(app): State<App>, request: Request, next: Next) -> Response
where
    S: Requires + Send + 'static,
{
    let Some(id) = id(request.headers()).map(str::to_owned) else { return next.run(request).await };
    let (mut parts, body) = request.into_parts();
    let key = match Caller::<S>::from_request_parts(&mut parts, &app).await {
        Ok(caller) => caller.key(),
        Err(failure) => return failure.into_response(),
    };
    let bytes = match read_all(body, JSON_BODY_MAX_BYTES).await {
        Ok(bytes) => bytes,
        Err(error) => return Failure::of(&error).into_response(),
    };
    let mut print = blake3::Hasher::new();
    print.update(parts.uri.path().as_bytes()).update(b"\n").update(&bytes);
    let print = Print::from(print.finalize());
    let mut request = Request::from_parts(parts, Body::from(bytes));
    // Apart from the keys of the same caller's requests in other protocols.
    let kept = RequestKey { key: format!("runloop {id}"), digest: print.to_hex() };
    request.extensions_mut().insert(kept);
    let written = !is_kept_with_it(request.uri().path());
    let make = |promise: Option<Promise>| async move {
        if let Some(promise) = promise {
            request.extensions_mut().insert(promise);
        }
        next.run(request).await
    };
    app.answers.once((key, id), print, written, make).await
}

/// The promise for a request that makes a thing; a request without an id gets a new one.
#[derive(Debug)]
pub(crate) struct Promised(pub(crate) Promise);

impl<S: Sync> FromRequestParts<S> for Promised {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        let promise = parts.extensions.remove::<Promise>().map_or_else(Promise::new, Ok);
        promise.map(Self).map_err(|error| disk::broken(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(answers: &Answers, key: &KeyId, print: &str, make: Response) -> (StatusCode, Bytes) {
        let print = Print::of(&[print.as_bytes()]);
        let response = answers.once((key.clone(), "k".to_owned()), print, false, |_| async { make }).await;
        let status = response.status();
        (status, to_bytes(response.into_body(), 1000).await.unwrap())
    }

    #[tokio::test]
    async fn once_for_an_id() {
        let answers = Answers::empty();
        let (one, other) = (KeyId::from_parts(1, 1), KeyId::from_parts(1, 2));
        assert_eq!(ask(&answers, &one, "a", "first".into_response()).await.1, "first");
        assert_eq!(ask(&answers, &one, "a", "second".into_response()).await.1, "first");
        assert_eq!(ask(&answers, &one, "b", "third".into_response()).await.0, StatusCode::BAD_REQUEST);
        assert_eq!(ask(&answers, &other, "a", "fourth".into_response()).await.1, "fourth");
    }

    #[tokio::test]
    async fn what_may_pass_is_done_again() {
        let answers = Answers::empty();
        let key = KeyId::from_parts(1, 1);
        let busy = StatusCode::SERVICE_UNAVAILABLE.into_response();
        assert_eq!(ask(&answers, &key, "a", busy).await.0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(ask(&answers, &key, "a", "now".into_response()).await.1, "now");
    }

    /// However many requests are refused, with however many keys: what others were told stays.
    #[tokio::test]
    async fn refusals_are_not_kept() {
        let answers = Answers::empty();
        let (one, other) = (KeyId::from_parts(1, 1), KeyId::from_parts(1, 2));
        assert_eq!(ask(&answers, &one, "a", "told".into_response()).await.1, "told");
        for _ in 0..2 {
            let refused = StatusCode::FORBIDDEN.into_response();
            assert_eq!(ask(&answers, &other, "a", refused).await.0, StatusCode::FORBIDDEN);
        }
        assert!(answers.kept.of_key(&other).is_empty());
        assert_eq!(ask(&answers, &other, "a", "now".into_response()).await.1, "now");
        assert_eq!(ask(&answers, &one, "a", "again".into_response()).await.1, "told");
    }

    #[tokio::test]
    async fn a_second_attempt_waits_for_the_first() {
        let answers = Answers::empty();
        let of = (KeyId::from_parts(1, 1), "k".to_owned());
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let print = Print::of(&[b"a"]);
        let slow = async move {
            drop(gone.await);
            "slow".into_response()
        };
        let first = tokio::spawn({
            let (answers, of) = (answers.clone(), of.clone());
            async move { answers.once(of, print, false, |_| slow).await }
        });
        while matches!(answers.kept.begin(&of, print), Begun::First(_)) {
            tokio::task::yield_now().await;
        }
        // The first client goes away; its request is done all the same.
        first.abort();
        let second = tokio::spawn({
            let (answers, of) = (answers.clone(), of.clone());
            async move { answers.once(of, print, false, |_| async { "twice".into_response() }).await }
        });
        go.send(()).unwrap();
        let body = to_bytes(second.await.unwrap().into_body(), 1000).await.unwrap();
        assert_eq!(body, "slow");
    }
}
