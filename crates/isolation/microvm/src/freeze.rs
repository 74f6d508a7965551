//! Standing still and going on. A task that changes that, or relies on it, holds [`Machine::alone`]: a snapshot of a
//! machine that stands still lets it run for a moment, and writes that down first.

use std::sync::Arc;

use atoll_core::id::SandboxId;
use atoll_failpoint::fail_point;
use atoll_guest_protocol::control::Question;
use atoll_isolation::IsolationError;

use crate::machine::{ANSWER_TIMEOUT, Machine};
use crate::{Inner, vmm};

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

    /// One small write to a file in memory, which does not wait: not worth another thread.
    pub(crate) async fn thaw(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let machine = self.living(id)?;
        let _alone = machine.alone().await;
        self.living(id)?;
        self.cgroups.thaw(id)
    }

    /// Does `work` with the help of the machine's own kernel: a machine that stands still runs for as long as that
    /// takes. The caller holds [`Machine::alone`].
    pub(crate) async fn while_awake<T>(
        self: &Arc<Self>,
        id: &SandboxId,
        work: impl Future<Output = Result<T, IsolationError>>,
    ) -> Result<T, IsolationError> {
        let record = self.record(id);
        let stood_still = self.cgroups.is_frozen(id)?;
        if stood_still {
            record.awake().set()?;
            self.cgroups.thaw(id)?;
            fail_point!("microvm::snapshot::awake");
        }
        // On the heap: it is large, and would be a part of every future around it.
        let done = self.unthrottled(id, Box::pin(work)).await;
        if stood_still {
            self.freeze_again(id).await?;
        }
        done
    }

    async fn freeze_again(self: &Arc<Self>, id: &SandboxId) -> Result<(), IsolationError> {
        let id = id.clone();
        self.blocking(move |inner| {
            inner.cgroups.freeze(&id)?;
            inner.record(&id).awake().clear()
        })
        .await
    }

    /// Brings a machine back to what it was, after the process that copied it was killed: lets it go on if it was
    /// stopped, limits its disks again, and makes it stand still again if it ran only for a snapshot.
    pub(crate) async fn settle_left_over(
        self: &Arc<Self>,
        id: &SandboxId,
        machine: &Machine,
    ) -> Result<(), IsolationError> {
        self.forget_copy(id)?;
        let record = self.record(id);
        let (stopped, awake, unthrottled) =
            (record.stopped().is_set(), record.awake().is_set(), record.unthrottled().is_set());
        if !stopped && !awake && !unthrottled {
            return Ok(());
        }
        let _alone = machine.alone().await;
        self.cgroups.thaw(id)?;
        if stopped {
            vmm::go_on_again(&mut vmm::monitor(&record).await?).await?;
            machine.ask(Question::Halt(false), ANSWER_TIMEOUT).await?;
            record.stopped().clear()?;
        }
        self.throttle_again(id).await?;
        if awake {
            // Before it stands still: it might not notice that the process which held its disk is gone.
            machine.ask(Question::Still(false), ANSWER_TIMEOUT).await?;
            self.freeze_again(id).await?;
        }
        Ok(())
    }
}
