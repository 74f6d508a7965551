//! Every change runs to its end once it has begun, even when the client hangs up.
//!
//! hyper drops the future that answers a request when the client goes. A change that is dropped half way leaves the
//! store, the memory and the host in three different states. So the handler of a request that may change something runs
//! as a task of the server, and the connection only waits for its answer. The bodies still end with the client: the
//! request's body breaks off, and the answer's body is dropped.
//!
//! A handler that only waits, or passes bytes on, asks [`ClientGone`] and ends by itself. A handler that makes
//! something whose id no other client can know gives its answer an [`Undo`]: the sandboxes of a request without an
//! idempotency key, unless the client gave them a name.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::id::SandboxId;
use atoll_core::{Code, Error};
use atoll_engine::{Asked, Engine};
use axum::response::{IntoResponse as _, Response};
use futures::future::BoxFuture;
use http::{Extensions, Method};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::error::ApiError;

/// Tells a handler that the client which asked has gone: nobody takes the answer any more.
#[derive(Debug, Clone, Default)]
pub struct ClientGone(CancellationToken);

impl ClientGone {
    /// The one of the request to which `extensions` belong. Never fires for a request that ends with its client anyway.
    #[must_use]
    pub fn of(extensions: &Extensions) -> Self {
        extensions.get::<Self>().cloned().unwrap_or_default()
    }

    /// Waits for `work`. When the client goes, gives `work` up and answers with an error that nobody will read.
    ///
    /// # Errors
    /// [`Code::Timeout`] when the client went.
    pub async fn unless_gone<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let gone = || Error::new(Code::Timeout, "the client went before the answer");
        self.0.run_until_cancelled(work).await.ok_or_else(gone)
    }
}

/// Undoes what a handler made, unless the client takes the answer that carries this.
#[derive(Clone)]
pub struct Undo(Arc<Armed>);

struct Armed {
    work: Mutex<Option<BoxFuture<'static, ()>>>,
    tasks: TaskTracker,
}

impl Undo {
    /// Deletes sandboxes that a request made.
    pub(crate) fn creations(tasks: &TaskTracker, engine: &Engine, made: Vec<SandboxId>) -> Self {
        let engine = engine.clone();
        let work = async move {
            for id in made {
                delete_untold(&engine, &id).await;
            }
        };
        Self(Arc::new(Armed { work: Mutex::new(Some(Box::pin(work))), tasks: tasks.clone() }))
    }
}

/// Deletes a sandbox of which no client was told.
pub async fn delete_untold(engine: &Engine, id: &SandboxId) {
    match engine.delete_sandbox(id).await {
        Err(error) if error.code != Code::SandboxNotFound => {
            tracing::warn!(sandbox = %id, %error, "a sandbox that no client was told of could not be deleted");
        }
        _ => {}
    }
}

impl fmt::Debug for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Undo")
    }
}

impl Armed {
    fn take(&self) -> Option<BoxFuture<'static, ()>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        // The answer went unread with the client that had asked.
        if let Some(work) = self.take()
            && tokio::runtime::Handle::try_current().is_ok()
        {
            tracing::info!("a client went before it was answered; what was made for it is undone");
            drop(self.tasks.spawn(work.in_current_span()));
        }
    }
}

/// Whether a request may change something.
pub(crate) fn may_change(method: &Method) -> bool {
    !method.is_safe()
}

/// Runs `answer`, which `extensions` belong to, as a task and waits for it. It goes on when the waiting is given up;
/// [`ClientGone`] tells it of that.
pub(crate) async fn to_its_end<F>(tasks: &TaskTracker, gone: ClientGone, answer: F) -> Response
where
    F: Future<Output = Response> + Send + 'static,
{
    let hung_up = gone.0.drop_guard();
    let answered = match Asked::current() {
        None => tasks.spawn(answer.in_current_span()).await,
        Some(asked) => tasks.spawn(asked.scope(answer).in_current_span()).await,
    };
    drop(hung_up.disarm());
    match answered {
        Ok(mut response) => {
            if let Some(undo) = response.extensions_mut().remove::<Undo>() {
                drop(undo.0.take());
            }
            response
        }
        // It catches its own panics: the runtime is going down.
        Err(_ended) => ApiError(crate::shared::shutting_down()).into_response(),
    }
}
