//! Answers, for as long as they say that they count.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use atoll_core::policy::HostName;
use hickory_proto::rr::RecordType;
use tokio::time::Instant;

use super::Answer;
use crate::limits::DNS_CACHE_MAX_COUNT;

#[derive(Debug, Default)]
pub(crate) struct Cache(Mutex<HashMap<(HostName, RecordType), (Instant, Answer)>>);

impl Cache {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(HostName, RecordType), (Instant, Answer)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An answer with the rest of its time.
    pub(crate) fn get(&self, name: &HostName, kind: RecordType) -> Option<Answer> {
        let (until, mut answer) = self.lock().get(&(name.clone(), kind)).cloned()?;
        let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        answer.ttl = left;
        let seconds = u32::try_from(left.as_secs()).unwrap_or(u32::MAX);
        for record in &mut answer.records {
            record.ttl = record.ttl.min(seconds);
        }
        Some(answer)
    }

    pub(crate) fn put(&self, name: &HostName, kind: RecordType, answer: &Answer) {
        if answer.ttl < Duration::from_secs(1) {
            return;
        }
        let mut cache = self.lock();
        if cache.len() >= DNS_CACHE_MAX_COUNT {
            let now = Instant::now();
            cache.retain(|_, (until, _)| *until > now);
        }
        // Full of answers that still hold: all are dropped, since it is only a cache.
        if cache.len() >= DNS_CACHE_MAX_COUNT {
            cache.clear();
        }
        cache.insert((name.clone(), kind), (Instant::now() + answer.ttl, answer.clone()));
    }
}
