//! When the host's disk is full: every sandbox stands still, nothing new begins, and what removes something works.
//!
//! The guard of the disk ([`HostDisk`]) stops the sandboxes and lets them go on. Here is what follows from it: clocks
//! stand still with the sandboxes, uses are refused with [`Code::HostDiskFull`] instead of waiting for an answer that
//! cannot come, and sandboxes and refusals say why.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::{Code, Error, Result};
use atoll_isolation::{Check, DiskSpace, HostDisk, Status};
use atoll_store::Lease;
use tokio::sync::watch;

use crate::engine::{Engine, Inner};

/// What a sandbox says of itself meanwhile.
const STANDS_STILL: &str = "the host's disk is full: it stands still until there is room";
/// What it says where the node does not know whether another has taken over.
const NODE_AWAY: &str = "its node does not reach the database: it stands still until it does";
/// How often sandboxes that came into being meanwhile are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Whether everything stands still: as the host's disk is full, or as a node of a cluster does not know whether another has
/// taken over. Clones look at the same.
#[derive(Debug, Clone)]
pub(crate) struct DiskState {
    full: Option<watch::Receiver<bool>>,
    away: Option<watch::Receiver<bool>>,
}

impl DiskState {
    pub(crate) fn of(disk: Option<&Arc<dyn HostDisk>>, lease: Option<&Lease>) -> Self {
        Self { full: disk.map(|disk| disk.full()), away: lease.map(Lease::away) }
    }

    fn is_set(state: Option<&watch::Receiver<bool>>) -> bool {
        state.is_some_and(|state| *state.borrow())
    }

    fn is_away(&self) -> bool {
        Self::is_set(self.away.as_ref())
    }

    /// Whether sandboxes stand still, for either reason.
    pub(crate) fn is_full(&self) -> bool {
        Self::is_set(self.full.as_ref()) || self.is_away()
    }

    /// What a sandbox says of itself while it stands still.
    pub(crate) fn reason(&self) -> &'static str {
        if self.is_away() { NODE_AWAY } else { STANDS_STILL }
    }

    /// Refuses what would have to write.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_full() { Err(self.refusal()) } else { Ok(()) }
    }

    fn refusal(&self) -> Error {
        if self.is_away() {
            return Error::new(Code::StoreUnavailable, NODE_AWAY)
                .hint("it goes on by itself when the database answers");
        }
        Error::new(Code::HostDiskFull, "the host's disk is full: sandboxes stand still until there is room").hint(
            "remove sandboxes, snapshots, volumes or images, or free space on the host; they go on by themselves",
        )
    }

    /// Does work that waits for a guest that is being made. When the disk gets full meanwhile the work is broken off:
    /// the guest stands still, and the caller would wait for it. The caller undoes what there is of it.
    pub(crate) async fn unless_full<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            done = work => done,
            () = self.wait_for(true) => Err(self.refusal()),
        }
    }

    /// Waits until they stand still, or do not.
    pub(crate) async fn wait_for(&self, full: bool) {
        let (mut disk, mut away) = (self.full.clone(), self.away.clone());
        loop {
            // Both are marked as seen before they are judged: what changes after that wakes.
            if (seen(&mut disk) | seen(&mut away)) == full {
                return;
            }
            tokio::select! {
                () = changed(&mut disk) => {}
                () = changed(&mut away) => {}
            }
        }
    }
}

fn seen(state: &mut Option<watch::Receiver<bool>>) -> bool {
    state.as_mut().is_some_and(|state| *state.borrow_and_update())
}

/// Waits for a change; for ever where nothing watches the state, or where the watcher has stopped with the server.
async fn changed(state: &mut Option<watch::Receiver<bool>>) {
    if let Some(state) = state
        && state.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

impl Inner {
    /// Before something is removed: what must be written down for that has to fit.
    pub(crate) fn make_room(&self) {
        if let Some(disk) = &self.config.disk {
            disk.make_room();
        }
    }
}

impl Engine {
    /// Whether the host's disk is so full that every sandbox stands still.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        DiskState::is_set(self.inner.disk.full.as_ref())
    }

    /// What there is on the host's disk, if a guard keeps watch over it.
    #[must_use]
    pub fn disk_space(&self) -> Vec<DiskSpace> {
        self.inner.config.disk.as_ref().map(|disk| disk.space()).unwrap_or_default()
    }

    /// Measures the output that an earlier process kept.
    pub(crate) async fn measure_logs(&self) {
        let logs = Arc::clone(&self.inner.logs);
        if let Err(error) = tokio::task::spawn_blocking(move || logs.measure()).await {
            tracing::error!(%error, "what output takes is not known");
        }
    }

    pub(crate) fn check_logs(&self) -> Check {
        let logs = &self.inner.logs;
        let (has, max) = (logs.bytes() >> 20, logs.max_bytes() >> 20);
        Check::new("output_logs", Status::Ok, format!("{has} of {max} MiB kept; beyond that the oldest goes"))
    }

    pub(crate) fn check_disk(&self) -> Option<Check> {
        let spaces = self.disk_space();
        let host = spaces.iter().min_by_key(|space| space.free_bytes)?;
        let room = format!("{} of {} MiB free", host.free_bytes >> 20, host.total_bytes >> 20);
        Some(if self.is_disk_full() {
            let detail = format!("full: every sandbox stands still and nothing new begins; {room}");
            Check::new("host_disk", Status::Missing, detail)
                .hint("remove sandboxes, snapshots, volumes or images, or free space on the host")
        } else {
            let detail = format!("sandboxes are stopped before it is full; {room}");
            Check::new("host_disk", Status::Ok, detail)
        })
    }
}

/// Starts the task that keeps the sandboxes' clocks with the disk.
pub(crate) fn start(inner: &Arc<Inner>) {
    let (inner, shutdown) = (Arc::clone(inner), inner.shutdown.clone());
    inner.tracker.clone().spawn(async move {
        shutdown.run_until_cancelled(keep_still(&inner)).await;
    });
}

async fn keep_still(inner: &Inner) {
    loop {
        inner.disk.wait_for(true).await;
        tracing::error!("sandboxes stand still: {}", inner.disk.reason());
        while inner.disk.is_full() {
            for sandbox in inner.all_sandboxes() {
                sandbox.hold_still().await;
            }
            // The outcome does not matter: the loop looks again either way.
            drop(tokio::time::timeout(LOOK_EVERY, inner.disk.wait_for(false)).await);
        }
        for sandbox in inner.all_sandboxes() {
            sandbox.let_go_on().await;
        }
        tracing::info!("sandboxes go on");
    }
}
