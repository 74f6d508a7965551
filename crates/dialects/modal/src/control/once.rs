//! `x-idempotency-key`: a client that sends a call again, because it lost the answer, gets the first call's answer.
//!
//! Answers are in memory for an hour: clients send again for some minutes at most. A restarted server still finds the
//! things that were made: the key is kept with a sandbox ([`kept`]), and the id of a snapshot is written down before it
//! is taken ([`Once::promise`]).

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::id::{KeyId, SandboxId};
use atoll_core::spec::RequestKey;
use atoll_dialect_kit::promise::{Promise, Shelf};
use atoll_dialect_kit::status::Status;
use atoll_dialect_kit::time::now_ms;
use atoll_engine::Engine;
use atoll_server::dialect::Undo;
use futures::future::{BoxFuture, FutureExt as _, Shared};

use crate::auth::Asker;
use crate::grpc::{Fault, Result};

/// Header that carries the key.
pub(super) const HEADER: &str = "x-idempotency-key";
const KEY_MAX_BYTES: usize = 255;
/// Most answers that are kept.
const ANSWERS_MAX: usize = 10_000;
/// How long, milliseconds.
const KEPT_MS: u64 = 3600 * 1000;

/// The key of a call as it is kept with the sandbox that it makes, if it has one; `asked` is the request.
pub(super) fn kept(asker: &Asker, what: &str, asked: &[u8]) -> Option<RequestKey> {
    let key = key(asker).filter(|key| is_key(key))?;
    Some(RequestKey { key: format!("modal {what} {key}"), digest: blake3::hash(asked).to_hex().to_string() })
}

fn key(asker: &Asker) -> Option<&str> {
    asker.head.text(HEADER)
}

fn is_key(key: &str) -> bool {
    (1..=KEY_MAX_BYTES).contains(&key.len())
}

/// Deletes a sandbox that a call without a key made, unless the client takes the answer: no retry finds the sandbox.
pub(super) fn undo(asker: &Asker, made: &SandboxId) -> Option<Undo> {
    let found_again = key(asker).is_some_and(is_key);
    (!found_again).then(|| asker.app.host.undo(vec![made.clone()]))
}

type Answer = Shared<BoxFuture<'static, Result<String>>>;
/// Answers by API key and the client's key, each with the time when its call began, in milliseconds.
type Answers = HashMap<(KeyId, String), (u64, Answer)>;

/// The name of the shelf of promises.
const DIR: &str = "modal-promises";

/// The calls that were begun. Clones share them.
#[derive(Clone)]
pub(crate) struct Once {
    answers: Arc<Mutex<Answers>>,
    promises: Shelf<Promise>,
}

impl std::fmt::Debug for Once {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Once")
    }
}

impl Once {
    pub(super) fn new(engine: &Engine) -> Self {
        Self { answers: Arc::default(), promises: Shelf::new(engine, DIR, KEPT_MS) }
    }

    /// The promise for the call with this key: if an earlier server made one, that one.
    ///
    /// # Errors
    /// `INTERNAL` when the host has no randomness, or its disk fails.
    pub(super) async fn promise(&self, key: &KeyId, what: &str, client_key: &str) -> Result<Promise> {
        let of = (key.clone(), format!("{what} {client_key}"));
        let shelf = Some(self.promises.clone()).filter(|_| is_key(client_key));
        let promise = tokio::task::spawn_blocking(move || {
            let Some(shelf) = shelf else { return Promise::new() };
            if let Some(known) = shelf.find(&of) {
                return Ok(known.again());
            }
            let promise = Promise::new()?;
            shelf.save(&of, promise.clone())?;
            Ok(promise)
        });
        let promise = promise.await.map_err(std::io::Error::other).and_then(|promise| promise);
        promise.map_err(|error| {
            tracing::error!(%error, "what a call makes cannot be written down before");
            Fault::new(Status::Internal, "what is to be made cannot be written down before")
        })
    }

    /// Removes a promise: the thing was not made.
    pub(super) async fn forget(&self, key: &KeyId, what: &str, client_key: &str) {
        let (shelf, of) = (self.promises.clone(), (key.clone(), format!("{what} {client_key}")));
        // If this fails, the promise is kept for an hour.
        drop(tokio::task::spawn_blocking(move || shelf.remove(&of)).await);
    }

    /// Runs `make` once for a client's key, and gives the id that it made. Without a key each call makes another.
    /// `what` keeps calls apart that have the same key.
    pub(super) async fn make(
        &self,
        asker: &Asker,
        what: &str,
        make: impl Future<Output = Result<String>> + Send + 'static,
    ) -> Result<String> {
        let key = key(asker).unwrap_or_default();
        self.make_for(asker, what, key, make).await
    }

    /// The same, for a key that the client sends elsewhere in the call.
    pub(super) async fn make_for(
        &self,
        asker: &Asker,
        what: &str,
        key: &str,
        make: impl Future<Output = Result<String>> + Send + 'static,
    ) -> Result<String> {
        if !is_key(key) {
            return make.await;
        }
        let id = (asker.key().clone(), format!("{what} {key}"));
        let answer = self.enter(&id, make);
        let made = answer.await;
        if made.is_err() {
            // The next attempt may succeed.
            self.table().remove(&id);
        }
        made
    }

    fn enter(
        &self,
        id: &(KeyId, String),
        make: impl Future<Output = Result<String>> + Send + 'static,
    ) -> Answer {
        let now = now_ms();
        let mut table = self.table();
        if table.len() >= ANSWERS_MAX {
            table.retain(|_, (at, _)| at.saturating_add(KEPT_MS) > now);
        }
        if let Some((_, answer)) = table.get(id).filter(|(at, _)| at.saturating_add(KEPT_MS) > now) {
            return answer.clone();
        }
        // The task runs to its end, even if no client waits any more.
        let task = tokio::spawn(make);
        let answer = async move {
            task.await.unwrap_or_else(|_panicked| Err(Fault::new(Status::Internal, "the call failed")))
        };
        let answer = answer.boxed().shared();
        if table.len() < ANSWERS_MAX {
            table.insert(id.clone(), (now, answer.clone()));
        }
        answer
    }

    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<(KeyId, String), (u64, Answer)>> {
        // The map stays usable when a task panics while it holds the lock.
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
