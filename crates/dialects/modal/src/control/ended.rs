//! How sandboxes ended that are gone: clients ask after the end, for the exit code.
//!
//! It is in memory, of the sandboxes that were made or asked about through this dialect; the oldest is forgotten first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::id::{KeyId, SandboxId};
use atoll_store::SandboxRecord;

use crate::auth::now_ms;
use crate::wire::common::GenericResult;

/// Sandboxes that are remembered.
const REMEMBERED_MAX: usize = 10_000;
/// Ends this close to the time limit are the time limit's, milliseconds.
const SLACK_MS: u64 = 500;

/// `GenericResult.GenericStatus`.
pub(crate) mod status {
    pub(crate) const SUCCESS: i32 = 1;
    pub(crate) const FAILURE: i32 = 2;
    pub(crate) const TERMINATED: i32 = 3;
    pub(crate) const TIMEOUT: i32 = 4;
    pub(crate) const INTERNAL_FAILURE: i32 = 6;
    pub(crate) const IDLE_TIMEOUT: i32 = 7;
    pub(crate) const OUT_OF_MEMORY: i32 = 10;
}

#[derive(Debug, Clone)]
struct Known {
    owner: Option<KeyId>,
    app: String,
    expires_ms: Option<u64>,
    idle_timeout_ms: Option<u64>,
    last_active_ms: u64,
    result: Option<GenericResult>,
}

/// What is remembered. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ended(Arc<Mutex<BTreeMap<SandboxId, Known>>>);

impl Ended {
    fn table(&self) -> std::sync::MutexGuard<'_, BTreeMap<SandboxId, Known>> {
        // A map is usable whatever panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a sandbox that is there.
    pub(crate) fn note(&self, record: &SandboxRecord, app: &str) {
        let mut table = self.table();
        let result = table.get(&record.id).and_then(|known| known.result.clone());
        let known = Known {
            owner: record.owner.clone(),
            app: app.to_owned(),
            expires_ms: record.expires_ms,
            idle_timeout_ms: record.spec.idle_timeout_ms,
            last_active_ms: record.last_active_ms,
            result,
        };
        table.insert(record.id.clone(), known);
        if table.len() > REMEMBERED_MAX {
            // Ids sort by age.
            table.pop_first();
        }
    }

    /// Notes how it ended; the first time counts.
    pub(crate) fn over(&self, sandbox: &SandboxId, result: GenericResult) {
        if let Some(known) = self.table().get_mut(sandbox) {
            known.result.get_or_insert(result);
        }
    }

    /// The end of a sandbox that is not there any more, and its app, if this is its maker's to know.
    pub(crate) fn of(
        &self,
        sandbox: &SandboxId,
        may_use: impl Fn(&KeyId) -> bool,
    ) -> Option<(GenericResult, String)> {
        let mut table = self.table();
        let known = table.get_mut(sandbox)?;
        if !known.owner.as_ref().is_some_and(may_use) {
            return None;
        }
        let now = now_ms();
        let passed = |end: Option<u64>| end.is_some_and(|end| now.saturating_add(SLACK_MS) >= end);
        let idle_end = known.idle_timeout_ms.map(|idle| known.last_active_ms.saturating_add(idle));
        let status = if passed(known.expires_ms) {
            status::TIMEOUT
        } else if passed(idle_end) {
            status::IDLE_TIMEOUT
        } else {
            status::TERMINATED
        };
        let result = known.result.get_or_insert(GenericResult { status, ..GenericResult::default() });
        Some((result.clone(), known.app.clone()))
    }
}
