//! `x-request-id`: a client that sends a request again gets the first one's answer, also while that is under way.
//!
//! The clients make the id for every request that is no GET, and send it with each attempt. Answers are kept for an
//! hour, which is longer than any client goes on trying. They are kept in memory; those of requests that made a thing
//! are also on disk, before the client is told. A restarted server reads them. It also finds things that were made
//! before their client was answered: devboxes and executions by the id of the request, which is kept with them
//! ([`RequestKey`]); all others by their own id, which was written down before they were made ([`Promise`]).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::id::KeyId;
use atoll_core::limits::JSON_BODY_MAX_BYTES;
use atoll_core::spec::RequestKey;
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
use tokio::sync::watch;

use crate::App;
use crate::error::{Failure, Result};
use crate::{disk, request};

/// Header that carries the id.
pub(crate) const HEADER: &str = "x-request-id";
const ID_MAX_BYTES: usize = 255;
/// The name of the shelf.
const DIR: &str = "runloop-answers";
/// Most answers that are kept.
const ANSWERS_MAX_COUNT: usize = 10_000;
/// Most answers of one API key: no key uses up the room that all share.
const OF_KEY_MAX_COUNT: usize = 2000;
/// How long, milliseconds.
const KEPT_MS: u64 = 3600 * 1000;
/// Bytes of an answer that is kept.
const ANSWER_MAX_BYTES: usize = 256 << 10;

/// An answer, once it is there.
type Answer = Option<(StatusCode, Bytes)>;

type Table = HashMap<Of, Kept>;

/// The answers. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answers {
    table: Arc<Mutex<Table>>,
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

#[derive(Debug, Clone)]
struct Kept {
    /// Hash of the request.
    print: blake3::Hash,
    at_ms: u64,
    answer: watch::Receiver<Answer>,
}

enum Begun {
    /// The first request: the task that handles it sends the answer here.
    First(watch::Sender<Answer>),
    Again(watch::Receiver<Answer>),
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

impl Answers {
    /// Begins with the answers of an earlier run of the server.
    pub(crate) fn read(engine: &Engine) -> Self {
        let shelf = Shelf::new(engine, DIR, KEPT_MS);
        let now = now_ms();
        let mut table = Table::new();
        for (of, at_ms, Written { print, answer, .. }) in shelf.all(ANSWERS_MAX_COUNT) {
            let Some(Answered { status, body }) = answer else { continue };
            let parsed = (blake3::Hash::from_hex(&print), StatusCode::from_u16(status));
            if let (Ok(print), Ok(status)) = parsed
                && at_ms <= now
            {
                let answer = watch::channel(Some((status, Bytes::from(body)))).1;
                table.insert(of, Kept { print, at_ms, answer });
            }
        }
        Self { table: Arc::new(Mutex::new(table)), shelf: Some(shelf) }
    }

    /// The promise for a request, written down before the request is handled; if an earlier server made one, that one.
    async fn promise(&self, of: &Of, print: blake3::Hash) -> Result<Promise> {
        let (of, print) = (of.clone(), print.to_hex().to_string());
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
    async fn write(&self, of: &Of, print: blake3::Hash, promise: Promise, status: StatusCode, body: &Bytes) {
        fail_point!("runloop.made");
        let Some(shelf) = self.shelf.clone() else { return };
        let (of, body) = (of.clone(), String::from_utf8_lossy(body).into_owned());
        let answer = Some(Answered { status: status.as_u16(), body });
        let written = Written { print: print.to_hex().to_string(), promise, answer };
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

    fn table(&self) -> std::sync::MutexGuard<'_, Table> {
        // The map stays usable when a task panics while it holds the lock.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to a key whose `id` is this one, also from an earlier server.
    pub(crate) fn told(&self, key: &KeyId, id: &str) -> Option<Value> {
        let table = self.table();
        table.iter().filter(|((owner, _), _)| owner == key).find_map(|(_, kept)| {
            let answer = kept.answer.borrow();
            let told: Value = serde_json::from_slice(&answer.as_ref()?.1).ok()?;
            (told["id"] == id).then_some(told)
        })
    }

    fn begin(&self, of: &Of, print: blake3::Hash) -> Result<Begun> {
        let now = now_ms();
        let is_kept = |kept: &Kept| kept.at_ms.saturating_add(KEPT_MS) > now;
        let mut table = self.table();
        if let Some(kept) = table.get(of).filter(|kept| is_kept(kept)) {
            if kept.print != print {
                return Err(mismatch());
            }
            return Ok(Begun::Again(kept.answer.clone()));
        }
        if table.len() >= ANSWERS_MAX_COUNT {
            table.retain(|_, kept| is_kept(kept));
        }
        let of_key = || table.iter().filter(|(known, kept)| known.0 == of.0 && is_kept(kept));
        if of_key().count() >= OF_KEY_MAX_COUNT || table.len() >= ANSWERS_MAX_COUNT {
            // The oldest answer is the one least likely to be asked for again.
            let oldest = of_key().min_by_key(|(_, kept)| kept.at_ms).map(|(known, _)| known.clone());
            match oldest {
                Some(oldest) => {
                    drop(table.remove(&oldest));
                    // So a key's answers on disk are no more than those in memory.
                    if let Some(shelf) = self.shelf.clone() {
                        drop(tokio::task::spawn_blocking(move || shelf.remove(&oldest)));
                    }
                }
                None => return Err(Failure::bad(format!("{HEADER}: too many are in use"))),
            }
        }
        let (tell, answer) = watch::channel(None);
        table.insert(of.clone(), Kept { print, at_ms: now, answer });
        Ok(Begun::First(tell))
    }

    /// Runs `make` once for an id, whether the client waits or not. An answer that failed for a reason that may pass is
    /// not kept: the next attempt runs `make` again.
    async fn once<F>(
        &self,
        of: Of,
        print: blake3::Hash,
        written: bool,
        make: impl FnOnce(Option<Promise>) -> F + Send + 'static,
    ) -> Response
    where
        F: Future<Output = Response> + Send,
    {
        loop {
            let tell = match self.begin(&of, print) {
                Err(failure) => return failure.into_response(),
                Ok(Begun::First(tell)) => tell,
                Ok(Begun::Again(mut waiting)) => match waiting.wait_for(Option::is_some).await {
                    Ok(answer) => {
                        return answer.clone().map_or_else(unknown, |(status, body)| {
                            (status, [(CONTENT_TYPE, "application/json")], body).into_response()
                        });
                    }
                    // Another node must answer the request: this one asks there, too.
                    Err(_closed) if !self.table().contains_key(&of) => continue,
                    // The task that handled the request panicked.
                    Err(_closed) => return unknown(),
                },
            };
            let answers = self.clone();
            let making = atoll_engine::spawn(async move {
                let promise = match written {
                    true => answers.promise(&of, print).await.map(Some),
                    false => Ok(None),
                };
                let promised_nothing = promise.is_err();
                let (response, promised) = match promise {
                    Ok(promise) => (make(promise.clone()).await, promise),
                    Err(failure) => (failure.into_response(), None),
                };
                let (parts, body) = response.into_parts();
                let body = to_bytes(body, ANSWER_MAX_BYTES).await.unwrap_or_default();
                let passes = parts.status.is_server_error() || parts.status == StatusCode::TOO_MANY_REQUESTS;
                let goes = !parts.status.is_success() && Asked::may_be_for_another();
                if let Some(promise) = promised {
                    answers.write(&of, print, promise, parts.status, &body).await;
                }
                if passes || promised_nothing || goes {
                    answers.table().remove(&of);
                }
                if !goes {
                    tell.send_replace(Some((parts.status, body.clone())));
                }
                Response::from_parts(parts, Body::from(body))
            });
            return making.await.unwrap_or_else(|_panicked| unknown());
        }
    }
}

fn unknown() -> Response {
    Failure::of(&atoll_core::Error::new(atoll_core::Code::Internal, "how the request ended is not known"))
        .into_response()
}

/// The layer around routes that make a thing.
pub(crate) async fn layer(State(app): State<App>, request: Request, next: Next) -> Response {
    let Some(id) = id(request.headers()).map(str::to_owned) else { return next.run(request).await };
    let key = match request::key(&app, request.headers()) {
        Ok(key) => key,
        Err(failure) => return failure.into_response(),
    };
    let (parts, body) = request.into_parts();
    let bytes = match read_all(body, JSON_BODY_MAX_BYTES).await {
        Ok(bytes) => bytes,
        Err(error) => return Failure::of(&error).into_response(),
    };
    let mut print = blake3::Hasher::new();
    print.update(parts.uri.path().as_bytes()).update(b"\n").update(&bytes);
    let print = print.finalize();
    let mut request = Request::from_parts(parts, Body::from(bytes));
    // Apart from the keys of the same caller's requests in other protocols.
    let kept = RequestKey { key: format!("runloop {id}"), digest: print.to_hex().to_string() };
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
        let print = blake3::hash(print.as_bytes());
        let response = answers.once((key.clone(), "k".to_owned()), print, false, |_| async { make }).await;
        let status = response.status();
        (status, to_bytes(response.into_body(), 1000).await.unwrap())
    }

    #[tokio::test]
    async fn once_for_an_id() {
        let answers = Answers::default();
        let (one, other) = (KeyId::from_parts(1, 1), KeyId::from_parts(1, 2));
        assert_eq!(ask(&answers, &one, "a", "first".into_response()).await.1, "first");
        assert_eq!(ask(&answers, &one, "a", "second".into_response()).await.1, "first");
        assert_eq!(ask(&answers, &one, "b", "third".into_response()).await.0, StatusCode::BAD_REQUEST);
        assert_eq!(ask(&answers, &other, "a", "fourth".into_response()).await.1, "fourth");
    }

    #[tokio::test]
    async fn what_may_pass_is_done_again() {
        let answers = Answers::default();
        let key = KeyId::from_parts(1, 1);
        let busy = StatusCode::SERVICE_UNAVAILABLE.into_response();
        assert_eq!(ask(&answers, &key, "a", busy).await.0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(ask(&answers, &key, "a", "now".into_response()).await.1, "now");
    }

    #[tokio::test]
    async fn a_second_attempt_waits_for_the_first() {
        let answers = Answers::default();
        let of = (KeyId::from_parts(1, 1), "k".to_owned());
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let print = blake3::hash(b"a");
        let slow = async move {
            drop(gone.await);
            "slow".into_response()
        };
        let first = tokio::spawn({
            let (answers, of) = (answers.clone(), of.clone());
            async move { answers.once(of, print, false, |_| slow).await }
        });
        while answers.table().is_empty() {
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

    #[test]
    fn one_key_cannot_use_up_all() {
        let answers = Answers::default();
        let key = KeyId::from_parts(1, 1);
        for n in 0..OF_KEY_MAX_COUNT + 10 {
            assert!(answers.begin(&(key.clone(), n.to_string()), blake3::hash(b"a")).is_ok());
        }
        assert_eq!(answers.table().len(), OF_KEY_MAX_COUNT);
    }
}
