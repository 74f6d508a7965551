//! The record of uses: which sandbox used which secret, when, and where it went. Never the value, never a query.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use atoll_core::limits::{PAGE_DEFAULT_COUNT, PAGE_MAX_COUNT, SECRET_USES_MAX_COUNT};
use atoll_core::{Code, Error, Result};
use atoll_egress::intercept::SecretUsed;
use atoll_store::SecretUse;
use tokio::sync::mpsc;

use crate::boxed;
use crate::clock::random;
use crate::engine::{Engine, Inner};
use crate::errors::store_error;

/// Uses that wait to be written; requests wait beyond it.
const QUEUE_MAX_COUNT: usize = 1024;
/// Uses written in one transaction.
const BATCH_MAX_COUNT: usize = 256;
/// Old uses are dropped after this many new ones.
const PRUNE_EVERY_COUNT: u64 = 1000;
/// Pause after the database refused.
const RETRY: Duration = Duration::from_secs(1);
/// Longest path that is kept, characters.
const PATH_MAX_CHARS: usize = 512;

/// Which uses to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UseQuery {
    /// Of this secret.
    pub secret: Option<String>,
    /// Of this sandbox, by id (it may be gone) or name.
    pub sandbox: Option<String>,
    /// At most this many, the newest.
    pub limit: Option<u32>,
}

/// The queue to the database.
#[derive(Debug)]
pub(crate) struct Recorder {
    queue: mpsc::Sender<SecretUse>,
    inbox: Mutex<Option<mpsc::Receiver<SecretUse>>>,
}

impl Default for Recorder {
    fn default() -> Self {
        let (queue, inbox) = mpsc::channel(QUEUE_MAX_COUNT);
        Self { queue, inbox: Mutex::new(Some(inbox)) }
    }
}

impl Engine {
    /// Recorded uses, newest first.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`], [`Code::SandboxNotFound`].
    #[boxed]
    pub async fn secret_uses(&self, query: &UseQuery) -> Result<Vec<SecretUse>> {
        let limit = query.limit.unwrap_or(PAGE_DEFAULT_COUNT);
        if !(1..=PAGE_MAX_COUNT).contains(&limit) {
            return Err(Error::invalid("limit", format_args!("must lie between 1 and {PAGE_MAX_COUNT}")));
        }
        let sandbox = match &query.sandbox {
            None => None,
            Some(text) => Some(match self.inner.resolve(text) {
                Ok(sandbox) => sandbox.id.clone(),
                Err(_gone) => text.parse()?,
            }),
        };
        let uses = self.inner.store.list_secret_uses(query.secret.as_deref(), sandbox.as_ref(), limit);
        uses.await.map_err(store_error)
    }

    /// Starts the task that writes the queue down. It ends with the server, after the last use.
    pub(crate) fn start_recorder(&self) {
        let inbox = &self.inner.secrets.recorder.inbox;
        let Some(inbox) = inbox.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let inner = std::sync::Arc::clone(&self.inner);
        self.inner.tracker.spawn(async move { write_down(&inner, inbox).await });
    }
}

impl Inner {
    /// Records a use; returns once it is in the queue.
    ///
    /// # Errors
    /// [`Code::ShuttingDown`]: then the secret must not be used.
    pub(crate) async fn record_secret_use(&self, used: SecretUsed) -> Result<()> {
        let at_ms = self.clock.now_ms();
        let record = SecretUse {
            // Digits only, so that it sorts by time.
            id: format!("{at_ms:015}-{:013x}", random()? >> 12),
            at_ms,
            secret: used.secret.name,
            version: used.version,
            project: self.find(&used.sandbox).and_then(|sandbox| sandbox.record().project),
            sandbox: used.sandbox,
            host: used.host.into(),
            method: used.method,
            path: used.path.chars().take(PATH_MAX_CHARS).collect(),
            rule: used.rule,
        };
        let refused = Err(Error::new(Code::ShuttingDown, "the server is shutting down"));
        self.secrets.recorder.queue.send(record).await.or(refused)
    }
}

async fn write_down(inner: &Inner, mut inbox: mpsc::Receiver<SecretUse>) {
    let mut since_pruned = 0;
    let mut uses = Vec::with_capacity(BATCH_MAX_COUNT);
    loop {
        tokio::select! {
            biased;
            count = inbox.recv_many(&mut uses, BATCH_MAX_COUNT) => if count == 0 { return },
            // Requests under way that ask now are refused; what is in the queue is written first.
            () = inner.shutdown.cancelled() => { inbox.close(); continue }
        }
        while let Err(error) = inner.store.insert_secret_uses(&uses).await {
            tracing::error!(%error, "uses of secrets cannot be recorded; requests that need one wait");
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = inner.shutdown.cancelled() => {
                    tracing::error!(count = uses.len(), "uses of secrets were not recorded");
                    return;
                }
            }
        }
        since_pruned += uses.len() as u64;
        uses.clear();
        if since_pruned >= PRUNE_EVERY_COUNT {
            since_pruned = 0;
            if let Err(error) = inner.store.prune_secret_uses(SECRET_USES_MAX_COUNT).await {
                tracing::warn!(%error, "old uses of secrets were not dropped");
            }
        }
    }
}
