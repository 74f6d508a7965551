//! When the host's disk is full: every sandbox stands still, nothing new begins, and what removes something works.
//!
//! The guard of the disk ([`HostDisk`]) stops the sandboxes and lets them go on. Here is what follows from it: clocks
//! stand still with the sandboxes, uses are refused with [`Code::HostDiskFull`] instead of waiting for an answer that
//! cannot come, and everybody is told why.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::{Code, Error, Result};
use atoll_isolation::{Check, DiskSpace, HostDisk, Status};
use tokio::sync::watch;

use crate::engine::{Engine, Inner};

/// What a sandbox says of itself meanwhile.
pub(crate) const STANDS_STILL: &str = "the host's disk is full: it stands still until there is room";
/// How often sandboxes that came into being meanwhile are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Whether the host's disk is full. Clones look at the same.
#[derive(Debug, Clone)]
pub(crate) struct DiskState(Option<watch::Receiver<bool>>);

impl DiskState {
    pub(crate) fn of(disk: Option<&Arc<dyn HostDisk>>) -> Self {
        Self(disk.map(|disk| disk.full()))
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.as_ref().is_some_and(|full| *full.borrow())
    }

    /// Refuses what would have to write.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_full() { Err(is_full()) } else { Ok(()) }
    }

    /// Does what waits for a guest that is being made. When the disk gets full meanwhile it is broken off: the guest
    /// stands still, and so would whoever waits. What there is of it is for the caller to undo.
    pub(crate) async fn unless_full<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            done = work => done,
            () = self.wait_for(true) => Err(is_full()),
        }
    }

    /// Waits until it is full, or is not.
    pub(crate) async fn wait_for(&self, full: bool) {
        let Some(mut state) = self.0.clone() else {
            if full {
                std::future::pending::<()>().await;
            }
            return;
        };
        if state.wait_for(|now| *now == full).await.is_err() {
            // Nobody looks any more: the server stops.
            std::future::pending::<()>().await;
        }
    }
}

fn is_full() -> Error {
    Error::new(Code::HostDiskFull, "the host's disk is full: sandboxes stand still until there is room").hint(
        "remove sandboxes, snapshots, volumes or images, or free space on the host; they go on by themselves",
    )
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
        self.inner.disk.is_full()
    }

    /// What there is on the host's disk, if anybody keeps watch over it.
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
        tracing::error!("the host's disk is full: only what removes something is done");
        while inner.disk.is_full() {
            for sandbox in inner.all_sandboxes() {
                sandbox.hold_still().await;
            }
            // Nobody misses it: the look goes on either way.
            drop(tokio::time::timeout(LOOK_EVERY, inner.disk.wait_for(false)).await);
        }
        for sandbox in inner.all_sandboxes() {
            sandbox.let_go_on().await;
        }
        tracing::info!("there is room on the host's disk again");
    }
}
