//! Strict recording: a sandbox whose journal cannot be written stands still.

use std::sync::Arc;

use atoll_core::id::SandboxId;
use atoll_core::sandbox::{PauseMode, SandboxState};
use tokio::sync::mpsc;

use crate::engine::{Engine, Inner};
use crate::sandbox::Message;

impl Engine {
    /// Starts the task that freezes what cannot be recorded.
    pub(crate) fn start_strict(&self) {
        let failing = self.inner.config.trace.recorder.as_ref().and_then(atoll_recorder::Recorder::failing);
        let Some(failing) = failing else { return };
        let inner = Arc::clone(&self.inner);
        self.inner.tracker.spawn(freeze(inner, failing));
    }
}

async fn freeze(inner: Arc<Inner>, mut failing: mpsc::UnboundedReceiver<SandboxId>) {
    loop {
        let id = tokio::select! {
            id = failing.recv() => id,
            () = inner.shutdown.cancelled() => return,
        };
        let Some(id) = id else { return };
        let Some(sandbox) = inner.find(&id).filter(|sandbox| sandbox.state() == SandboxState::Running) else {
            continue;
        };
        // One that does not freeze at once must not keep others from it.
        inner.tracker.spawn(async move {
            tracing::error!(sandbox = %sandbox.id, "a sandbox stands still: its journal cannot be written");
            if let Err(error) = sandbox.ask(|reply| Message::Pause(PauseMode::Frozen, reply)).await {
                tracing::error!(sandbox = %sandbox.id, %error, "a sandbox that cannot be recorded goes on");
            }
        });
    }
}
