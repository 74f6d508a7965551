//! `x-idempotency-key`: what is asked for again, because its answer was lost, gets the first one's answer.
//!
//! Answers are in memory for an hour: clients send again for some minutes at most. A server that was started anew finds
//! the sandbox that was made: the key is kept with it ([`kept`]).

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::id::KeyId;
use atoll_core::spec::RequestKey;
use atoll_dialect_kit::status::Status;
use futures::future::{BoxFuture, FutureExt as _, Shared};

use crate::auth::{Asker, now_ms};
use crate::grpc::{Fault, Result};

/// Carries the key.
pub(super) const HEADER: &str = "x-idempotency-key";
const KEY_MAX_BYTES: usize = 255;
/// Answers that are kept.
const ANSWERS_MAX: usize = 10_000;
/// How long, milliseconds.
const KEPT_MS: u64 = 3600 * 1000;

/// The key of a call as it is kept with the sandbox that it makes, if it has one; `asked` is what it asks for.
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

type Answer = Shared<BoxFuture<'static, Result<String>>>;
/// By whose key and the client's, with when it was begun, in milliseconds.
type Answers = HashMap<(KeyId, String), (u64, Answer)>;

/// What was begun. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Once(Arc<Mutex<Answers>>);

impl std::fmt::Debug for Once {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Once")
    }
}

impl Once {
    /// Makes something once for a key of the client, and gives its id. Without a key each call makes another. `what`
    /// tells calls apart that happen to have the same key.
    pub(super) async fn make(
        &self,
        asker: &Asker,
        what: &str,
        make: impl Future<Output = Result<String>> + Send + 'static,
    ) -> Result<String> {
        let key = key(asker).unwrap_or_default();
        self.make_for(asker, what, key, make).await
    }

    /// The same, for a key that stands elsewhere.
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
        // Also when nobody waits any more, it is brought to its end.
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
        // A map is usable whatever panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
