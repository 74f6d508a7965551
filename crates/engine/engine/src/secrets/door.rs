//! The door through which the gateway gets secrets, and asks whether a sandbox may send a request to a model. The
//! gateway is there before the engine is; until then the door is shut.

use std::sync::{Arc, OnceLock, Weak};

use async_trait::async_trait;
use atoll_core::id::{SandboxId, SessionId};
use atoll_core::policy::{HostName, SecretRef};
use atoll_core::{Code, Error, Result};
use atoll_egress::intercept::{ModelMeter, OpenedSecret, SecretSource, SecretUsed, Tally};

use crate::engine::{Engine, Inner};

/// Gives the gateway the secrets of an engine. Copies are the same door.
#[derive(Debug, Clone, Default)]
pub struct SecretDoor {
    engine: Arc<OnceLock<Weak<Inner>>>,
}

impl SecretDoor {
    /// Opens the door to an engine that has started. Only the first counts.
    pub fn open_to(&self, engine: &Engine) {
        if self.engine.set(Arc::downgrade(&engine.inner)).is_err() {
            tracing::error!("a door to secrets leads to an engine already");
        }
    }

    fn inner(&self) -> Result<Arc<Inner>> {
        let there = self.engine.get().and_then(Weak::upgrade);
        there.ok_or_else(|| Error::new(Code::ShuttingDown, "the server is starting or stopping"))
    }
}

#[async_trait]
impl SecretSource for SecretDoor {
    fn open(&self, sandbox: &SandboxId, secret: &SecretRef, host: &HostName) -> Result<OpenedSecret> {
        self.inner()?.open_secret(sandbox, secret, host)
    }

    async fn used(&self, used: SecretUsed) -> Result<()> {
        self.inner()?.record_secret_use(used).await
    }
}

impl ModelMeter for SecretDoor {
    fn ask(&self, sandbox: &SandboxId, session: Option<&SessionId>) -> Result<Option<Tally>, String> {
        self.inner().map_err(|error| error.message)?.ask_model(sandbox, session)
    }
}
