//! `x-idempotency-key`: a client that sends a call again, because it lost the answer, gets the first call's answer.
//!
//! Answers are in memory for an hour: clients send again for some minutes at most. A restarted server still finds the
//! things that were made: the key is kept with a sandbox ([`Call::kept`]), and the id of a snapshot is written down before
//! it is taken ([`Once::promise`]).

use atoll_core::id::{KeyId, SandboxId};
use atoll_core::spec::RequestKey;
use atoll_core::{Code, Error};
use atoll_dialect_kit::once::{self, BYTES_ALL, BYTES_OF_KEY, Begun, Limits, Print};
use atoll_dialect_kit::promise::{Promise, Shelf};
use atoll_dialect_kit::status::Status;
use atoll_engine::Engine;
use atoll_server::dialect::Undo;

use serde::{Deserialize, Serialize};

use crate::auth::Asker;
use crate::grpc::{Fault, Result};

/// Header that carries the key.
pub(super) const HEADER: &str = "x-idempotency-key";
const KEY_MAX_BYTES: usize = 255;
/// What is kept of answers, which are ids.
const LIMITS: Limits = Limits {
    kept_ms: 3600 * 1000,
    of_key: 2000,
    all: 10_000,
    bytes_of_key: BYTES_OF_KEY,
    bytes_all: BYTES_ALL,
};

/// A call that makes a thing.
#[derive(Debug, Clone)]
pub(super) struct Call {
    /// Keeps calls apart that have the same key.
    what: String,
    /// The client's key.
    key: String,
    /// Of all that the client asked for.
    print: Print,
}

impl Call {
    /// The call with the key in the head. `asked` is all that the client asked for.
    pub(super) fn of(asker: &Asker, what: &str, asked: &[&[u8]]) -> Self {
        Self::with_key(what, key(asker).unwrap_or_default(), asked)
    }

    /// The same, with a key that stands elsewhere in the call.
    pub(super) fn with_key(what: &str, key: &str, asked: &[&[u8]]) -> Self {
        Self { what: what.to_owned(), key: key.to_owned(), print: Print::of(asked) }
    }

    /// Whether the client can send it again to get the same thing.
    fn has_key(&self) -> bool {
        is_key(&self.key)
    }

    fn name(&self) -> String {
        format!("{} {}", self.what, self.key)
    }

    /// The key as it is kept with the sandbox that the call makes, if it has one.
    pub(super) fn kept(&self) -> Option<RequestKey> {
        let kept = || RequestKey { key: format!("modal {}", self.name()), digest: self.print.to_hex() };
        self.has_key().then(kept)
    }
}

fn key(asker: &Asker) -> Option<&str> {
    asker.head.text(HEADER)
}

fn is_key(key: &str) -> bool {
    (1..=KEY_MAX_BYTES).contains(&key.len())
}

/// Deletes a sandbox that a call without a key made, unless the client takes the answer: no retry finds the sandbox.
pub(super) fn undo(asker: &Asker, call: &Call, made: &SandboxId) -> Option<Undo> {
    (!call.has_key()).then(|| asker.app.host.undo(vec![made.clone()]))
}

/// The name of the shelf of promises.
const DIR: &str = "modal-promises";

/// The calls that were begun. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Once {
    answers: once::Once<Result<String>>,
    promises: Shelf<Promised>,
}

/// The file on the shelf for a call.
#[derive(Debug, Serialize, Deserialize)]
struct Promised {
    print: String,
    promise: Promise,
}

impl Once {
    pub(super) fn new(engine: &Engine) -> Self {
        let bytes_of = |made: &Result<String>| made.as_ref().map_or(0, String::len);
        Self { answers: once::Once::new(LIMITS, bytes_of), promises: Shelf::new(engine, DIR, LIMITS.kept_ms) }
    }

    /// The promise for a call: if an earlier server made one, that one.
    ///
    /// # Errors
    /// `INTERNAL` when the host has no randomness, or its disk fails; for a key that was used for another call.
    pub(super) async fn promise(&self, key: &KeyId, call: &Call) -> Result<Promise> {
        let (of, print) = ((key.clone(), call.name()), call.print.to_hex());
        let shelf = Some(self.promises.clone()).filter(|_| call.has_key());
        let promise = tokio::task::spawn_blocking(move || {
            let Some(shelf) = shelf else { return Promise::new().map(Some) };
            if let Some(known) = shelf.find(&of) {
                return Ok((known.print == print).then(|| known.promise.again()));
            }
            let promise = Promise::new()?;
            shelf.save(&of, Promised { print, promise: promise.clone() })?;
            Ok(Some(promise))
        });
        let promise = promise.await.map_err(std::io::Error::other).and_then(|promise| promise);
        let promise = promise.map_err(|error| {
            tracing::error!(%error, "what a call makes cannot be written down before");
            Fault::new(Status::Internal, "what is to be made cannot be written down before")
        });
        promise?.ok_or_else(mismatch)
    }

    /// Removes a promise: the thing was not made.
    pub(super) async fn forget(&self, key: &KeyId, call: &Call) {
        let (shelf, of) = (self.promises.clone(), (key.clone(), call.name()));
        // If this fails, the promise is kept for an hour.
        drop(tokio::task::spawn_blocking(move || shelf.remove(&of)).await);
    }

    /// Runs `make` once for a client's key, and gives the id that it made. Without a key each call makes another. The
    /// caller is authorised already.
    ///
    /// # Errors
    /// As `make`; for a key that was used for another call.
    pub(super) async fn make(
        &self,
        key: &KeyId,
        call: &Call,
        make: impl Future<Output = Result<String>> + Send + 'static,
    ) -> Result<String> {
        if !call.has_key() {
            return make.await;
        }
        let of = (key.clone(), call.name());
        let first = loop {
            match self.answers.begin(&of, call.print) {
                Begun::First(first) => break first,
                Begun::Other => return Err(mismatch()),
                // Without an answer the task that did it panicked: the call is done again.
                Begun::Again(again) => {
                    if let Some(made) = again.wait().await {
                        return made;
                    }
                }
            }
        };
        // The task runs to its end, even if no client waits any more.
        let task = tokio::spawn(async move {
            let made = make.await;
            let keeps = made.is_ok();
            first.answer(made.clone(), keeps);
            made
        });
        task.await.unwrap_or_else(|_panicked| Err(Fault::new(Status::Internal, "the call failed")))
    }
}

/// The key belongs to another call.
fn mismatch() -> Fault {
    let message = "the idempotency key was used before with another request";
    Fault::of(&Error::new(Code::IdempotencyMismatch, message).hint("use a new key for a new request"))
}
