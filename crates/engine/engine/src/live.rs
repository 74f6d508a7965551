//! What every sandbox of this server uses at this moment, measured by the host, all together.
//!
//! No guest is asked, so that a guest which hangs holds no caller up, and a look wakes no sandbox. A caller that looks
//! within a moment of another gets what that one got: a thousand sandboxes and many callers cost as much as one caller.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::sandbox::{PauseMode, SandboxState};
use futures::StreamExt as _;
use tokio::time::Instant;

use crate::authorize::Caller;
use crate::boxed;
use crate::engine::{Engine, Inner};
use crate::sandbox::SandboxShared;

/// How long what was measured counts.
const COUNTS_FOR: Duration = Duration::from_millis(900);
/// Measured at once.
const AT_ONCE_MAX_COUNT: usize = 8;

/// What was measured last.
#[derive(Debug, Default)]
pub(crate) struct Live {
    last: tokio::sync::Mutex<Option<(Instant, Arc<Vec<LiveUsage>>)>>,
}

/// What one sandbox uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveUsage {
    /// Its id.
    pub id: SandboxId,
    /// Its name.
    pub name: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its state.
    pub state: SandboxState,
    /// How it is paused, while it is.
    pub paused: Option<PauseMode>,
    /// When it was asked for.
    pub created_ms: u64,
    /// When it was measured.
    pub at_ms: u64,
    /// Processor time since creation, microseconds.
    pub cpu_us: u64,
    /// Processor time that it may use in a second, thousandths of a processor.
    pub cpu_limit_millis: u32,
    /// Memory now, bytes.
    pub memory_bytes: u64,
    /// Memory that it may use, bytes.
    pub memory_limit_bytes: u64,
    /// Space of its disk on the host, bytes.
    pub disk_bytes: u64,
    /// Processes and threads.
    pub pids: u32,
    /// Commands that run.
    pub execs: u32,
    /// Bytes that left it, since this server took it up.
    pub sent_bytes: u64,
    /// Bytes that came into it.
    pub received_bytes: u64,
}

async fn measure(inner: &Inner, sandbox: &SandboxShared) -> LiveUsage {
    let record = sandbox.record();
    let is_there = matches!(
        record.state,
        SandboxState::Running | SandboxState::Pausing | SandboxState::Paused | SandboxState::Resuming
    );
    let usage = if is_there { sandbox.driver().usage(&sandbox.id).await.ok() } else { None };
    let (usage, carried) =
        (usage.unwrap_or_default(), inner.gateway.transferred(&sandbox.id).unwrap_or_default());
    LiveUsage {
        id: sandbox.id.clone(),
        cpu_limit_millis: record.spec.resources.cpu_millis,
        memory_limit_bytes: record.spec.resources.memory_bytes,
        execs: u32::try_from(sandbox.live_execs().len()).unwrap_or(u32::MAX),
        name: record.name,
        labels: record.labels,
        state: record.state,
        paused: record.paused,
        created_ms: record.created_ms,
        at_ms: inner.now_ms(),
        cpu_us: usage.cpu_us,
        memory_bytes: usage.memory_bytes,
        disk_bytes: usage.disk_bytes,
        pids: usage.pids,
        sent_bytes: carried.sent_bytes,
        received_bytes: carried.received_bytes,
    }
}

impl Engine {
    /// What the sandboxes of this server use that a caller may know of, the newest first; only those with all of these labels.
    #[boxed]
    pub async fn live_usage(&self, caller: &Caller, labels: &BTreeMap<String, String>) -> Vec<LiveUsage> {
        let all = self.measured().await;
        let wanted = all.iter().filter(|one| {
            labels.iter().all(|(name, value)| one.labels.get(name) == Some(value))
                && self.sees(caller, &one.id)
        });
        wanted.cloned().collect()
    }

    async fn measured(&self) -> Arc<Vec<LiveUsage>> {
        // A caller that comes meanwhile waits for this look and takes what it gave.
        let mut last = self.inner.live.last.lock().await;
        if let Some((at, all)) = &*last
            && self.inner.clock.since(*at) < COUNTS_FOR
        {
            return Arc::clone(all);
        }
        let sandboxes = futures::stream::iter(self.inner.all_sandboxes());
        let looks = sandboxes.map(|sandbox| async move { measure(&self.inner, &sandbox).await });
        let mut all: Vec<_> = looks.buffer_unordered(AT_ONCE_MAX_COUNT).collect().await;
        all.sort_by(|one, other| other.id.cmp(&one.id));
        let all = Arc::new(all);
        *last = Some((self.inner.clock.instant(), Arc::clone(&all)));
        all
    }
}
