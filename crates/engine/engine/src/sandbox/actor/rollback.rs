//! Putting a sandbox back to a snapshot, under the same id.
//!
//! | step | row says | at the next start |
//! |---|---|---|
//! | journalled | `running`, a rollback under way | put back |
//! | the new disk is made | the same | the same |
//! | the old one is gone, the new one runs | the same | the same, once more |
//! | recorded | `running` | taken up |
//!
//! Until the new disk is made nothing of the old one is touched: what fails for want of room fails before. From
//! then on it is put back or it has failed.

use atoll_core::exec::{Exit, ExitReason};
use atoll_core::id::SnapshotId;
use atoll_isolation::{DiskSource, IsolationError};
use atoll_recorder::What;
use atoll_store::StoreError;

use super::*;
use crate::usage;

/// Pause before telling the store again when it does not answer.
const STORE_PAUSE: Duration = Duration::from_secs(1);

impl Actor {
    /// Puts it back; what runs in it ends, and says why.
    pub(super) async fn rollback(&mut self, to: &SnapshotId) -> Result<SandboxRecord> {
        if self.record.state != SandboxState::Running {
            admit(self.record.state, Wish::Use, self.record.reason.as_deref())?;
            return Err(Error::new(Code::InvalidState, format!("the sandbox is {}", self.record.state))
                .hint("'atoll resume' it first"));
        }
        self.inner.disk.check()?;
        let id = self.record.id.clone();
        self.inner.store.begin_rollback(&id, to).await.map_err(store_error)?;
        atoll_failpoint::fail_point!("engine.rollback.journalled");
        // It may stand still for want of use.
        let outcome = match self.shared.thaw().await {
            Ok(()) => {
                usage::settle(&self.inner, &self.shared).await;
                self.put_back(to).await
            }
            Err(error) => Err(error),
        };
        // A server that stops in the middle finishes this at its next start.
        if outcome.is_err() && !self.inner.shutdown.is_cancelled() {
            self.end_rollback().await;
        }
        outcome?;
        self.shared.trace.note(&id, What::RolledBack { snapshot: to.to_string() });
        atoll_failpoint::fail_point!("engine.rollback.recorded");
        Ok(self.shared.record())
    }

    /// Finishes what an earlier process began.
    pub(super) async fn take_up_rollback(&mut self, to: &SnapshotId) {
        let id = self.record.id.clone();
        tracing::info!(sandbox = %id, snapshot = %to, "finishing to put a sandbox back");
        let taken_up = async {
            match self.shared.driver().adopt(&id).await {
                Ok(()) => drop(self.shared.driver().thaw(&id).await),
                Err(IsolationError::Gone) => {}
                Err(error) => return Err(isolation_error(&error)),
            }
            usage::load(&self.inner, &self.shared, &self.record).await?;
            let ended = self.inner.store.end_execs(&id, &Exit::rolled_back(), self.inner.now_ms()).await;
            ended.map_err(store_error)
        };
        let outcome = match taken_up.await {
            Ok(_ended) => self.put_back(to).await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => {}
            Err(_) if self.inner.shutdown.is_cancelled() => {}
            // It is not known whether the disk that is there is whole.
            Err(error) if self.record.state != SandboxState::Failed => self.fail(&error.message).await,
            Err(_) => {}
        }
    }

    /// Writes down, in one, that it is put back and that no rollback is under way any more. Tries until that is
    /// stored: a rollback that is found under way at the next start is done again, and would destroy the work since.
    async fn record_rollback(&self, next: &SandboxRecord) -> Result<i64> {
        loop {
            let error = match self.inner.store.finish_rollback(next, &[SandboxState::Running]).await {
                Ok(generation) => return Ok(generation),
                Err(error @ StoreError::Unavailable { .. }) => error,
                Err(error) => return Err(store_error(error)),
            };
            self.wait_for_store(&error).await?;
        }
    }

    /// Writes down that a rollback which changed nothing is not under way any more.
    async fn end_rollback(&self) {
        while let Err(error) = self.inner.store.end_rollback(&self.record.id).await {
            if self.wait_for_store(&error).await.is_err() {
                return;
            }
        }
    }

    async fn wait_for_store(&self, error: &StoreError) -> Result<()> {
        tracing::error!(sandbox = %self.record.id, %error, "how a rollback ended is not recorded yet");
        tokio::select! {
            () = tokio::time::sleep(STORE_PAUSE) => Ok(()),
            () = self.inner.shutdown.cancelled() => {
                Err(Error::new(Code::ShuttingDown, "the server is shutting down"))
            }
        }
    }

    async fn put_back(&mut self, to: &SnapshotId) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let engine = Engine::of(&inner);
        let plan = engine.plan_for(&self.record, DiskSource::Artifact(to.clone()))?;
        let stopping = || Error::new(Code::ShuttingDown, "the server is shutting down");
        let _turn = inner.creates.acquire().await.or(Err(stopping()))?;
        let (tell, told) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        let committed = Box::new(move || {
            for exec in shared.live_execs() {
                exec.blame(ExitReason::RolledBack);
            }
            // The actor waits for it.
            drop(tell.send(shared.end_boot()));
        });
        let replaced = self.shared.driver().replace(&plan, committed).await;
        let ended = told.await.ok();
        if let Some(ended) = &ended {
            futures::future::join_all(ended.iter().map(|exec| exec.over())).await;
        }
        match replaced {
            Ok(()) => {}
            Err(error) if ended.is_none() => return Err(isolation_error(&error)),
            Err(error) => {
                let error = isolation_error(&error);
                self.fail(&format!("it could not be put back: {}", error.message)).await;
                return Err(error);
            }
        }
        atoll_failpoint::fail_point!("engine.rollback.replaced");
        inner.gateway.detach(&self.record.id);
        let begun = async {
            inner.open_network(&self.shared).await?;
            let client = tokio::select! {
                // It cannot go back any more: should the disk get full now, it waits for room.
                client = link::connect_awake(&self.shared) => client?,
                () = inner.shutdown.cancelled() => return Err(stopping()),
            };
            self.introduce(&client, &plan).await?;
            Ok(client)
        };
        match begun.await {
            Ok(client) => {
                let next = SandboxRecord { boot_id: Inner::new_boot_id()?, ..self.record.clone() };
                self.record.generation = self.record_rollback(&next).await?;
                self.record = SandboxRecord { generation: self.record.generation, ..next };
                self.shared.set_woken();
                self.shared.publish(self.record.clone());
                usage::measure(&inner, &self.shared).await;
                self.start_link(client);
                self.shared.touch();
                Ok(())
            }
            // The next process finishes it.
            Err(error) if inner.shutdown.is_cancelled() => Err(error),
            Err(error) => {
                self.fail(&format!("it could not be put back: {}", error.message)).await;
                Err(error)
            }
        }
    }
}
