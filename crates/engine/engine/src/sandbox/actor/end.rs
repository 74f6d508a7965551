//! How a sandbox ends. When it has died, what is left of it on the host is removed, and its record and output stay; when it
//! is deleted, all of that goes. Both are written down before anything is removed.

use super::*;

impl Actor {
    /// The instance is dead, or as good as: remove what is left of it, keep the record and the output.
    pub(super) async fn fail(&mut self, why: &str) {
        let id = self.record.id.clone();
        tracing::warn!(sandbox = %id, why, "a sandbox died");
        self.shared.dead.cancel();
        // While its state still says that there is something to measure.
        usage::settle(&self.inner, &self.shared).await;
        self.inner.gateway.detach(&id);
        while let Err(error) = self.move_to(SandboxState::Failed, Some(why)).await {
            tracing::error!(sandbox = %id, %error, "failed to record a death, trying again");
            tokio::select! {
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
                () = self.inner.shutdown.cancelled() => return,
            }
        }
        usage::settle(&self.inner, &self.shared).await;
        self.remove_remains().await;
    }

    pub(super) async fn remove_remains(&self) {
        if let Err(error) = destroy(self.shared.driver().as_ref(), &self.record.id).await {
            tracing::error!(sandbox = %self.record.id, %error, "failed to remove what was left of a dead sandbox");
        }
    }

    pub(super) async fn delete(&mut self) -> Result<()> {
        self.inner.make_room();
        let had_objects = self.stop_keeping().await || self.record.spec.durability.is_some();
        if self.record.state != SandboxState::Deleting {
            self.move_to(SandboxState::Deleting, None).await?;
        }
        atoll_failpoint::fail_point!("engine.delete.marked");
        usage::settle(&self.inner, &self.shared).await;
        self.shared.dead.cancel();
        self.inner.gateway.detach(&self.record.id);
        exec::wait_ended(&self.shared).await;
        remove(&self.inner, self.shared.driver().as_ref(), &self.record.id).await?;
        // What its execs told with their ends.
        usage::settle(&self.inner, &self.shared).await;
        self.inner.leave(&self.record.id);
        if had_objects {
            self.forget_objects();
        }
        // Callers that asked for the same meanwhile have it, too. All others are told that the sandbox is gone.
        for message in self.inbox.close() {
            if let Message::Delete(reply) = message {
                answer(reply, Ok(()));
            }
        }
        Ok(())
    }
}
