//! Standing still and going on. Who changes that, or relies on it, is alone in it ([`Machine::alone`]): a snapshot of a
//! machine that stands still lets it run for a moment, and writes that down first.

use std::sync::Arc;

use atoll_core::id::SandboxId;
use atoll_guest_protocol::control::Question;
use atoll_isolation::IsolationError;
use fail::fail_point;

use crate::Inner;
use crate::machine::{ANSWER_TIMEOUT, Machine};

impl Inner {
    pub(crate) async fn freeze(self: &Arc<Self>, id: &SandboxId) -> Result<(), IsolationError> {
        let machine = self.living(id)?;
        let alone = machine.alone().await;
        self.living(id)?;
        let id = id.clone();
        self.blocking(move |inner| {
            let _alone = alone;
            inner.cgroups.freeze(&id)
        })
        .await
    }

    /// One small write to a file in memory, for which nothing waits: not worth another thread.
    pub(crate) async fn thaw(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let machine = self.living(id)?;
        let _alone = machine.alone().await;
        self.living(id)?;
        self.cgroups.thaw(id)
    }

    /// Does something with the help of the machine's own kernel: one that stands still runs for as long as that
    /// takes. The caller is alone.
    pub(crate) async fn while_awake<T>(
        self: &Arc<Self>,
        id: &SandboxId,
        work: impl Future<Output = Result<T, IsolationError>>,
    ) -> Result<T, IsolationError> {
        if !self.cgroups.is_frozen(id)? {
            return work.await;
        }
        let record = self.record(id);
        record.mark_awake()?;
        self.cgroups.thaw(id)?;
        fail_point!("microvm::snapshot::awake");
        let done = work.await;
        self.freeze_again(id).await?;
        done
    }

    async fn freeze_again(self: &Arc<Self>, id: &SandboxId) -> Result<(), IsolationError> {
        let id = id.clone();
        self.blocking(move |inner| {
            inner.cgroups.freeze(&id)?;
            inner.record(&id).unmark_awake()
        })
        .await
    }

    /// Makes a machine stand still again that a process let run for a snapshot, and which was then killed.
    pub(crate) async fn freeze_left_over(
        self: &Arc<Self>,
        id: &SandboxId,
        machine: &Machine,
    ) -> Result<(), IsolationError> {
        if !self.record(id).is_awake() {
            return Ok(());
        }
        let _alone = machine.alone().await;
        self.cgroups.thaw(id)?;
        // Before it stands still: it might not notice that who held its disk is gone.
        machine.ask(Question::Still(false), ANSWER_TIMEOUT).await?;
        self.freeze_again(id).await
    }
}
