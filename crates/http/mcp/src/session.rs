//! What one session of a client has: its sandboxes, and the rules that these are made by.

use std::sync::Arc;
use std::time::Duration;

use atoll_api::{CreateSandbox, Sandbox};
use atoll_client::{Client, ClientError};
use atoll_core::Code;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::error::{Result, ToolError};

/// A sandbox of a session that ended without being able to remove it goes after this long without use, milliseconds.
pub const ABANDONED_AFTER_MS: u64 = 60 * 60 * 1000;
/// Most sandboxes of a session where nothing else is said.
pub(crate) const SANDBOXES_MAX_COUNT: usize = 4;
/// Longest wait for the sandboxes of an ended session to be gone.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

/// What the user said when the program was started, or in the address under which the session is opened. No tool
/// changes it.
#[derive(Debug, Clone)]
pub struct Preset {
    /// What every sandbox is made of, and what it may reach.
    pub sandbox: CreateSandbox,
    /// Sandboxes that were there before, by id or name, that the tools may use; the first is used unless another is
    /// named. They are never removed.
    pub given: Vec<String>,
    /// Most sandboxes that a session has at a time, besides the given ones.
    pub max_sandboxes: usize,
    /// Leave the session's sandboxes when it ends.
    pub keep: bool,
}

/// One session.
#[derive(Debug)]
pub(crate) struct Session {
    /// The server, with the caller's key.
    pub(crate) client: Client,
    preset: Preset,
    /// Cancelled when the client has gone: commands that still run for it are given up.
    pub(crate) ended: CancellationToken,
    /// Ids of the sandboxes that it made. Held while one is made, so that nothing is made twice or forgotten.
    own: Arc<Mutex<Own>>,
}

#[derive(Debug, Default)]
struct Own {
    ids: Vec<String>,
    /// The sandbox that is used when a tool names none.
    default: Option<String>,
    closed: bool,
}

impl Session {
    /// A session without sandboxes, which ends with `stopped` at the latest.
    pub(crate) fn new(client: Client, preset: Preset, stopped: &CancellationToken) -> Arc<Self> {
        Arc::new(Self { client, preset, ended: stopped.child_token(), own: Arc::default() })
    }

    /// The sandbox that a tool is about: the named one if it is one of this session's, or the session's default, which
    /// is made now if there is none.
    pub(crate) async fn sandbox(&self, named: Option<&str>) -> Result<String> {
        if let Some(name) = named {
            return self.allowed(name).await;
        }
        if let Some(given) = self.preset.given.first() {
            return Ok(given.clone());
        }
        let own = Arc::clone(&self.own).lock_owned().await;
        if let Some(id) = &own.default {
            return Ok(id.clone());
        }
        self.make(own, None, true).await.map(|sandbox| sandbox.id)
    }

    /// Makes a further sandbox, and tells whether it is now the default.
    pub(crate) async fn create(&self, name: Option<String>) -> Result<(Sandbox, bool)> {
        let own = Arc::clone(&self.own).lock_owned().await;
        let default = own.default.is_none() && self.preset.given.is_empty();
        Ok((self.make(own, name, default).await?, default))
    }

    async fn allowed(&self, name: &str) -> Result<String> {
        if self.preset.given.iter().any(|given| given == name)
            || self.own.lock().await.ids.iter().any(|id| id == name)
        {
            return Ok(name.to_owned());
        }
        Err(ToolError::new(
            Code::SandboxNotFound,
            format!("'{}' is not a sandbox of this session", atoll_core::error::shorten(name)),
            "list_sandboxes shows those that there are, by id; leave 'sandbox' out to use the session's own",
        ))
    }

    /// A task of its own makes it and notes it down: the request that asked may be given up meanwhile.
    async fn make(
        &self,
        mut own: tokio::sync::OwnedMutexGuard<Own>,
        name: Option<String>,
        default: bool,
    ) -> Result<Sandbox> {
        if own.closed {
            return Err(ToolError::new(Code::ShuttingDown, "the session has ended", "start a new one"));
        }
        if own.ids.len() >= self.preset.max_sandboxes {
            return Err(ToolError::new(
                Code::LimitExceeded,
                format!("this session may have {} sandboxes at a time", self.preset.max_sandboxes),
                "use one that there is (list_sandboxes), or delete one",
            ));
        }
        let mut request = self.preset.sandbox.clone();
        if name.is_some() || !own.ids.is_empty() {
            // Names are unique: the preset's is for one.
            request.name = name;
        }
        let client = self.client.clone();
        let making = tokio::spawn(async move {
            let made = client.create_sandbox(&request).await?;
            own.ids.push(made.id.clone());
            if default {
                own.default = Some(made.id.clone());
            }
            Ok::<_, ClientError>(made)
        });
        match making.await {
            Ok(made) => Ok(made?),
            Err(died) => {
                tracing::error!(%died, "the task that made a sandbox died");
                Err(ToolError::new(Code::Internal, "the sandbox was not made", "try again"))
            }
        }
    }

    /// Removes one of the session's sandboxes. Those that were given stay.
    pub(crate) async fn delete(&self, id: &str) -> Result<()> {
        self.allowed(id).await?;
        if self.preset.given.iter().any(|given| given == id) {
            return Err(ToolError::new(
                Code::PermissionDenied,
                format!("the sandbox '{id}' was there before this session"),
                "whoever runs the server removes it",
            ));
        }
        match self.client.delete_sandbox(id).await {
            Ok(()) => {}
            Err(error) if error.code() == Some(Code::SandboxNotFound) => {}
            Err(error) => return Err(error.into()),
        }
        self.forget(id).await;
        Ok(())
    }

    /// The sandboxes that the tools may use, with whether it is the default.
    pub(crate) async fn list(&self) -> Result<Vec<(Sandbox, bool)>> {
        let (ids, default) = {
            let own = self.own.lock().await;
            let default = self.preset.given.first().or(own.default.as_ref()).cloned();
            (self.preset.given.iter().chain(&own.ids).cloned().collect::<Vec<_>>(), default)
        };
        let mut list = Vec::new();
        for id in ids {
            match self.client.get_sandbox(&id).await {
                Ok(sandbox) => list.push((sandbox, default.as_ref() == Some(&id))),
                Err(error) if error.code() == Some(Code::SandboxNotFound) => self.forget(&id).await,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(list)
    }

    /// Makes of an error about `sandbox` what the model is told: one that is gone is forgotten, so that the next call
    /// without a name makes a new one.
    pub(crate) async fn explain(&self, sandbox: &str, error: impl Into<ToolError>) -> ToolError {
        let error = error.into();
        if error.code() != Code::SandboxNotFound || self.preset.given.iter().any(|given| given == sandbox) {
            return error;
        }
        self.forget(sandbox).await;
        error.advise("it ended, perhaps because nobody used it for long, and its files are gone; the next call without 'sandbox' makes a new one")
    }

    async fn forget(&self, id: &str) {
        let mut own = self.own.lock().await;
        own.ids.retain(|known| known != id);
        if own.default.as_deref() == Some(id) {
            own.default = None;
        }
    }

    /// Ends the session: its sandboxes are removed, unless they are to be kept. Returns the ids of those that are left.
    pub(crate) async fn close(&self) -> Vec<String> {
        self.ended.cancel();
        close(self.client.clone(), Arc::clone(&self.own), self.preset.keep).await
    }
}

async fn close(client: Client, own: Arc<Mutex<Own>>, keep: bool) -> Vec<String> {
    // Waits for one that is being made.
    let ids = {
        let mut own = own.lock().await;
        own.closed = true;
        std::mem::take(&mut own.ids)
    };
    if keep {
        return ids;
    }
    let delete = |id: String| {
        let client = &client;
        async move {
            match tokio::time::timeout(CLOSE_TIMEOUT, client.delete_sandbox(&id)).await {
                Ok(Ok(())) => None,
                Ok(Err(error)) if error.code() == Some(Code::SandboxNotFound) => None,
                Ok(Err(error)) => {
                    tracing::warn!(sandbox = %id, %error, "a sandbox was not removed");
                    Some(id)
                }
                Err(_late) => {
                    tracing::warn!(sandbox = %id, "a sandbox was not removed in time");
                    Some(id)
                }
            }
        }
    };
    futures::future::join_all(ids.into_iter().map(delete)).await.into_iter().flatten().collect()
}

impl Drop for Session {
    /// A session over HTTP ends by being dropped: a task removes its sandboxes.
    fn drop(&mut self) {
        self.ended.cancel();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn(close(self.client.clone(), Arc::clone(&self.own), self.preset.keep)));
        }
    }
}
