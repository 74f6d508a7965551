//! Answers that go on or are long: output that is followed, files, archives, pages of output. The server holds bytes of
//! each for a client that does not read, on a connection of HTTP/2 for hundreds at once, so a key has only so many. When
//! many have ended, the memory that they had goes back to the kernel.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_core::id::KeyId;
use atoll_core::{Code, Error};
use axum::body::{Body, HttpBody as _};
use axum::response::{IntoResponse as _, Response};
use http_body_util::BodyExt as _;
use tokio::sync::Notify;

use crate::error::ApiError;
use crate::revocation::GrantSlot;

/// Answers of at most so many bytes are not counted: they are there as a whole, and soon gone.
const SHORT_MAX_BYTES: u64 = 64 << 10;

/// So many such answers are worth that memory is given back after them.
const MANY_COUNT: usize = 64;
/// Pause before memory is given back: when many answers have ended, others are ending.
const ENDING: Duration = Duration::from_secs(1);
/// How often memory is given back at most.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(10);

/// How many such answers each key has open.
#[derive(Debug, Clone, Default)]
pub(crate) struct Streams(Arc<All>);

#[derive(Debug, Default)]
struct All {
    counts: Mutex<Counts>,
    /// Most of many answers have ended.
    many_ended: Notify,
}

#[derive(Debug, Default)]
struct Counts {
    by_key: HashMap<KeyId, usize>,
    all: usize,
    /// The most that there were since memory was given back.
    most: usize,
}

/// One of them, until it is dropped.
struct Open {
    streams: Streams,
    key: KeyId,
}

impl Streams {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Numbers only: a panic leaves them usable as they are.
        self.0.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, key: &KeyId, most: usize) -> Option<Open> {
        let mut counts = self.counts();
        let count = counts.by_key.entry(key.clone()).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        counts.all += 1;
        counts.most = counts.most.max(counts.all);
        Some(Open { streams: self.clone(), key: key.clone() })
    }

    /// Calls `give_back` each time when most of many answers have ended.
    pub(crate) async fn give_memory_back(&self, give_back: fn()) {
        loop {
            self.0.many_ended.notified().await;
            tokio::time::sleep(ENDING).await;
            if let Err(error) = tokio::task::spawn_blocking(give_back).await {
                tracing::error!(%error, "memory is not given back");
            }
            tokio::time::sleep(GIVE_BACK_EVERY).await;
        }
    }

    /// The answer as it is; a refusal in its place when its key has `most` open that go on or are long.
    pub(crate) fn bounded(&self, response: Response, grant: &GrantSlot, most: usize) -> Response {
        let short = response.body().size_hint().exact().is_some_and(|bytes| bytes <= SHORT_MAX_BYTES);
        let key = grant.grant().and_then(|grant| grant.caller()?.key());
        let Some(key) = key.filter(|_| !short) else { return response };
        match self.open(key, most) {
            Some(open) => response.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    let _until_the_end = &open;
                    frame
                }))
            }),
            None => ApiError(
                Error::new(
                    Code::LimitExceeded,
                    format!("the key has {most} answers open that go on or are long"),
                )
                .hint("read or close some of those streams and downloads; another key has places of its own"),
            )
            .into_response(),
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut counts = self.streams.counts();
        if let Some(count) = counts.by_key.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.by_key.remove(&self.key);
            }
        }
        counts.all = counts.all.saturating_sub(1);
        if counts.most >= MANY_COUNT && counts.all <= counts.most / 4 {
            counts.most = counts.all;
            self.streams.0.many_ended.notify_one();
        }
    }
}
