//! Making and unmaking one member.

use std::sync::Arc;

use atoll_core::id::SandboxId;
use atoll_core::pool::Mold;
use atoll_core::spec::IsolationLevel;
use atoll_core::{Code, Error, Result};
use atoll_guest_protocol::client::GuestClient;
use atoll_isolation::Plan;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::clock::now_ms;
use crate::engine::Inner;
use crate::errors::isolation_error;
use crate::sandbox::{connect, destroy};

/// How the members of a pool are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recipe {
    pub(crate) mold: Mold,
    /// The id and the host name are each member's own.
    pub(crate) plan: Plan,
    pub(crate) isolation: IsolationLevel,
    /// `name:version`, for a pool of a template.
    pub(crate) template: Option<String>,
}

/// A running, ready sandbox without an owner.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) id: SandboxId,
    pub(crate) client: GuestClient,
    pub(crate) recipe: Arc<Recipe>,
    pub(super) born_ms: u64,
    /// Ends the task that watches it, when it is claimed or dropped.
    pub(super) _watch: DropGuard,
}

/// Makes one. On error nothing is left.
pub(super) async fn make(
    inner: &Inner,
    recipe: &Arc<Recipe>,
    id: &SandboxId,
) -> Result<(Member, CancellationToken)> {
    let made = tokio::select! {
        made = try_make(inner, recipe, id) => made,
        () = inner.shutdown.cancelled() => Err(Error::new(Code::ShuttingDown, "the server is shutting down")),
    };
    let client = match made {
        Ok(client) => client,
        Err(error) => {
            unmake(inner, recipe.isolation, id).await;
            return Err(error);
        }
    };
    let watch = CancellationToken::new();
    let member = Member {
        id: id.clone(),
        client,
        recipe: Arc::clone(recipe),
        born_ms: now_ms(),
        _watch: watch.clone().drop_guard(),
    };
    Ok((member, watch))
}

async fn try_make(inner: &Inner, recipe: &Recipe, id: &SandboxId) -> Result<GuestClient> {
    let driver = inner.driver(recipe.isolation)?;
    let plan = Plan { id: id.clone(), hostname: id.to_string(), ..recipe.plan.clone() };
    driver.create(&plan).await.map_err(|error| isolation_error(&error))?;
    fail::fail_point!("engine.pool.isolated");
    connect(driver.as_ref(), id).await
}

/// Removes whatever there is of one.
pub(super) async fn unmake(inner: &Inner, isolation: IsolationLevel, id: &SandboxId) {
    let Ok(driver) = inner.driver(isolation) else { return };
    if let Err(error) = destroy(driver.as_ref(), id).await {
        // The next start, and `doctor --leaks`, find it: it has no row.
        tracing::error!(sandbox = %id, %error, "a member of a pool could not be removed");
    }
}
