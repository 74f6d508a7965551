//! Copies a sandbox that runs, so that another node can go on from there when this one dies.
//!
//! Its disk becomes an artifact in a moment, as for any snapshot, and the artifact is sent: what did not change since
//! the copy before is not sent again. One at a time for each sandbox; all that is asked for meanwhile leads to one more
//! afterwards.
//!
//! A sandbox that is to move is sent in the same way before it stands still: not for a copy of that moment, but so that the
//! copy with which it goes has less to send.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::sandbox::SandboxState;
use atoll_core::snapshot::{Purpose, SnapshotState};
use atoll_core::{Error, Result};
use atoll_store::{SandboxRecord, SnapshotRecord};
use tokio_util::sync::CancellationToken;

use super::drain::LOOK_EVERY;
use super::send::{Of, Upload};
use super::{Travel, bound_here, owner_of};
use crate::engine::{Engine, Inner};
use crate::errors::isolation_error;
use crate::sandbox::SandboxShared;
use crate::snapshot::manifest;

/// The name that holds the artifact of a sandbox that is copied.
pub(crate) const HOLDER: &str = "a copy that is made";
/// Pause before what failed is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Begins to copy a sandbox that runs, in the background. It says itself when it is done, see [`SandboxShared::is_copied`].
pub(crate) fn begin(inner: &Arc<Inner>, sandbox: &Arc<SandboxShared>) {
    let Some(travel) = inner.travel.clone() else { return };
    let (engine, sandbox) = (Engine::of(inner), Arc::clone(sandbox));
    sandbox.begin_copy();
    inner.tracker.spawn(async move {
        let shutdown = engine.inner.shutdown.clone();
        let copying = async {
            let copied = travel.copy_running(&engine, &sandbox).await;
            if let Err(error) = &copied {
                tracing::warn!(sandbox = %sandbox.id, %error, "a sandbox that runs is not copied yet");
                tokio::time::sleep(RETRY).await;
            }
            copied.is_ok()
        };
        let copied = shutdown.run_until_cancelled(copying).await;
        sandbox.is_copied(copied.unwrap_or(false));
    });
}

/// Refuses the durability of a sandbox that cannot outlive this node.
pub(crate) fn check(inner: &Inner, record: &SandboxRecord) -> Result<()> {
    if record.spec.durability.is_none() {
        return Ok(());
    }
    if inner.travel.is_none() {
        return Err(Error::invalid("durability", "this server has no other nodes, or no object store")
            .hint("see 'atoll node ls', and start the nodes with --objects s3://bucket/prefix"));
    }
    match bound_here(record) {
        Some(why) => Err(Error::invalid("durability", why)),
        None => Ok(()),
    }
}

impl Travel {
    async fn copy_running(&self, engine: &Engine, sandbox: &Arc<SandboxShared>) -> Result<()> {
        let record = sandbox.record();
        if record.state != SandboxState::Running {
            return Ok(());
        }
        let taken_ms = engine.now_ms();
        let mut artifact = held(&record, HOLDER, taken_ms)?;
        engine.begin_snapshot(&mut artifact).await?;
        let copied = async {
            let driver = sandbox.driver();
            driver.snapshot(&sandbox.id, &artifact.id).await?;
            let _room = self.checking.wait(owner_of(&record)).await;
            driver.seal_artifact(&artifact.id).await?;
            driver.read_artifact(&artifact.id).await
        };
        let copied = match copied.await {
            Ok(disk) => {
                let of = Of::Moment { disk, taken_ms };
                self.send(&engine.inner, &record, of, &engine.inner.shutdown).await.map(drop)
            }
            Err(error) => Err(isolation_error(&error)),
        };
        engine.undo_snapshot(&artifact).await;
        copied
    }

    async fn send_running_ahead(
        &self,
        engine: &Engine,
        sandbox: &Arc<SandboxShared>,
        stop: &CancellationToken,
    ) -> Result<Option<Box<Upload>>> {
        let record = sandbox.record();
        let mut artifact = held(&record, HOLDER, engine.now_ms())?;
        engine.begin_snapshot(&mut artifact).await?;
        let cloned = async {
            let driver = sandbox.driver();
            driver.snapshot(&sandbox.id, &artifact.id).await?;
            // As it is, and not put in order: that would change what the disk itself does not have changed.
            driver.read_artifact(&artifact.id).await
        };
        let sent = match cloned.await {
            Ok(disk) => self.send_ahead(&engine.inner, &record, disk, stop).await,
            Err(error) => Err(isolation_error(&error)),
        };
        engine.undo_snapshot(&artifact).await;
        sent
    }
}

impl Engine {
    /// Sends what a sandbox that runs has on its disk, before it stands still to move. It moves without, too. One with a
    /// durability has a copy already. That ends when the node is drained no more, or the sandbox is taken apart.
    pub(super) async fn send_ahead(&self, sandbox: &Arc<SandboxShared>) -> Option<Box<Upload>> {
        let travel = self.inner.travel.clone()?;
        let record = sandbox.record();
        if record.state != SandboxState::Running || record.spec.durability.is_some() {
            return None;
        }
        let (stop, over) = (self.inner.shutdown.child_token(), CancellationToken::new());
        let sending = async {
            let sent = Box::pin(travel.send_running_ahead(self, sandbox, &stop)).await;
            over.cancel();
            sent
        };
        let watching = async {
            if over.run_until_cancelled(self.until_it_stays(sandbox)).await.is_some() {
                stop.cancel();
            }
        };
        let (sent, ()) = tokio::join!(sending, watching);
        let sent = sent.unwrap_or_else(|error| {
            tracing::warn!(sandbox = %sandbox.id, %error, "all of a sandbox that moves is sent while it stands still");
            None
        });
        atoll_failpoint::fail_point!("engine.move.ahead");
        sent
    }

    /// Waits until there is no reason any more to send it ahead.
    async fn until_it_stays(&self, sandbox: &SandboxShared) {
        while self.is_draining() && !sandbox.dead.is_cancelled() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Has nothing belong to what was sent of a sandbox ahead of a move that does not come.
    pub(super) async fn give_ahead_up(&self, sandbox: &SandboxShared, ahead: Option<Box<Upload>>) {
        if let (Some(travel), Some(upload)) = (&self.inner.travel, ahead) {
            travel.give_up(&self.inner, &sandbox.id, &upload).await;
        }
    }
}

/// The row of an artifact that is there for a while.
pub(super) fn held(sandbox: &SandboxRecord, holder: &str, created_ms: u64) -> Result<SnapshotRecord> {
    Ok(SnapshotRecord {
        id: Inner::new_snapshot_id(created_ms)?,
        state: SnapshotState::Creating,
        sandbox: Some(sandbox.id.clone()),
        purpose: Purpose::Held(holder.to_owned()),
        comment: None,
        manifest: manifest(&sandbox.spec, sandbox.image_digest.clone()),
        digest: None,
        stored_bytes: 0,
        paused_us: None,
        method: None,
        created_ms,
        created_by: None,
        project: sandbox.project.clone(),
        private: true,
        tags: Vec::new(),
    })
}
