//! How sandboxes ended that are gone: clients ask for the exit code after the end.
//!
//! The server remembers the sandboxes that were made or asked about through this dialect; the oldest is forgotten
//! first.

use atoll_core::id::{KeyId, SandboxId};
use atoll_dialect_kit::remembered::Remembered;
use atoll_engine::Engine;
use atoll_store::SandboxRecord;
use serde::{Deserialize, Serialize};

use crate::wire::common::GenericResult;

/// Most sandboxes that are remembered.
const REMEMBERED_MAX: usize = 10_000;
/// A sandbox that ends this close to its time limit ended by the limit, milliseconds.
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    owner: Option<KeyId>,
    app: String,
    expires_ms: Option<u64>,
    idle_timeout_ms: Option<u64>,
    last_active_ms: u64,
    result: Option<Over>,
}

/// A result, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Over {
    status: i32,
    exception: String,
    exitcode: i32,
}

impl From<GenericResult> for Over {
    fn from(GenericResult { status, exception, exitcode }: GenericResult) -> Self {
        Self { status, exception, exitcode }
    }
}

impl From<Over> for GenericResult {
    fn from(Over { status, exception, exitcode }: Over) -> Self {
        Self { status, exception, exitcode }
    }
}

/// The ends that are remembered. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Ended(Remembered<Known>);

impl Ended {
    pub(crate) fn new(engine: &Engine) -> Self {
        Self(Remembered::new(engine, "modal", REMEMBERED_MAX))
    }

    /// Notes a sandbox that is there.
    pub(crate) fn note(&self, record: &SandboxRecord, app: &str) {
        self.0.change(&record.id, |known| {
            Some(Known {
                owner: record.owner.clone(),
                app: app.to_owned(),
                expires_ms: record.expires_ms,
                idle_timeout_ms: record.spec.idle_timeout_ms,
                last_active_ms: record.last_active_ms,
                result: known.and_then(|known| known.result),
            })
        });
    }

    /// Notes how a sandbox ended; only the first note counts.
    pub(crate) fn over(&self, sandbox: &SandboxId, result: GenericResult) {
        self.0.change(sandbox, |known| {
            let known = known?;
            let result = known.result.unwrap_or_else(|| result.into());
            Some(Known { result: Some(result), ..known })
        });
    }

    /// The end of a sandbox that is not there any more, and its app, if the caller may use things of the sandbox's
    /// owner.
    pub(crate) fn of(
        &self,
        sandbox: &SandboxId,
        may_use: impl Fn(&KeyId) -> bool,
        now: u64,
    ) -> Option<(GenericResult, String)> {
        let known = self.0.get(sandbox)?;
        if !known.owner.as_ref().is_some_and(may_use) {
            return None;
        }
        let passed = |end: Option<u64>| end.is_some_and(|end| now.saturating_add(SLACK_MS) >= end);
        let idle_end = known.idle_timeout_ms.map(|idle| known.last_active_ms.saturating_add(idle));
        let status = if passed(known.expires_ms) {
            status::TIMEOUT
        } else if passed(idle_end) {
            status::IDLE_TIMEOUT
        } else {
            status::TERMINATED
        };
        self.over(sandbox, GenericResult { status, ..GenericResult::default() });
        let known = self.0.get(sandbox)?;
        Some((known.result?.into(), known.app))
    }
}
