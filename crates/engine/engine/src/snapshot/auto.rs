//! Checkpoints that a sandbox takes by itself.

use std::sync::Arc;

use atoll_core::Result;
use atoll_core::id::ExecId;
use atoll_core::snapshot::Purpose;

use crate::authorize::Caller;
use crate::engine::{Engine, Inner};
use crate::sandbox::SandboxShared;

use super::SnapshotOrder;

/// Takes a checkpoint after an exec, if the sandbox wants that. What fails is logged: the exec has ended all the
/// same.
pub(crate) async fn after_exec(inner: &Arc<Inner>, sandbox: &Arc<SandboxShared>, exec: &ExecId) {
    let engine = Engine::of(inner);
    if let Err(error) = engine.checkpoint_by_itself(sandbox, &format!("after {exec}")).await {
        tracing::warn!(sandbox = %sandbox.id, %exec, %error, "no checkpoint was taken after an exec");
    }
}

impl Engine {
    /// Takes a checkpoint and removes the oldest of its kind, if the sandbox wants that.
    pub(crate) async fn checkpoint_by_itself(&self, sandbox: &Arc<SandboxShared>, why: &str) -> Result<()> {
        let Some(auto) = sandbox.published().spec.auto_checkpoints else { return Ok(()) };
        if sandbox.dead.is_cancelled() {
            return Ok(());
        }
        let purpose = Purpose::AutoCheckpoint(0);
        let order = SnapshotOrder::without_name(purpose, Some(why.to_owned()));
        self.take_snapshot(sandbox, order, &Caller::system()).await?;
        let all = self.inner.checkpoints_of(&sandbox.id).await?.into_iter();
        self.keep(all.filter(|found| matches!(found.purpose, Purpose::AutoCheckpoint(_))), auto.keep).await
    }
}
