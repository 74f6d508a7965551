//! Answers that go on or are long: output that is followed, files, archives, pages of output. The server holds bytes of
//! each for a client that does not read, on a connection of HTTP/2 for hundreds at once, so a key has only so many.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::KeyId;
use atoll_core::{Code, Error};
use axum::body::{Body, HttpBody as _};
use axum::response::{IntoResponse as _, Response};
use http_body_util::BodyExt as _;

use crate::error::ApiError;
use crate::revocation::GrantSlot;

/// Answers of at most so many bytes are not counted: they are there as a whole, and soon gone.
const SHORT_MAX_BYTES: u64 = 64 << 10;

/// How many such answers each key has open.
#[derive(Debug, Clone, Default)]
pub(crate) struct Streams(Arc<Mutex<HashMap<KeyId, usize>>>);

/// One of them, until it is dropped.
struct Open {
    streams: Streams,
    key: KeyId,
}

impl Streams {
    fn table(&self) -> MutexGuard<'_, HashMap<KeyId, usize>> {
        // One map: a panic leaves it usable as it is.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, key: &KeyId, most: usize) -> Option<Open> {
        let mut table = self.table();
        let count = table.entry(key.clone()).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Open { streams: self.clone(), key: key.clone() })
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
        let mut table = self.streams.table();
        if let Some(count) = table.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                table.remove(&self.key);
            }
        }
    }
}
