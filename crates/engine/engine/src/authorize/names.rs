//! Finds sandboxes by id or name: among those of this node, for an administrator in the database too. A request that should
//! be decided about one that is on its way to another node waits here until it has arrived or stays. What is found gives
//! no right to anything; [`super`] decides about that.

use std::sync::Arc;

use atoll_core::id::{ProjectId, SandboxId, is_id_shaped};
use atoll_core::{Code, Error, Result};

use super::caller::Caller;
use crate::cluster;
use crate::engine::Engine;
use crate::errors::store_error;
use crate::sandbox::SandboxShared;

/// Sandboxes of one name that a refusal names.
const AMBIGUOUS_SHOWN_COUNT: usize = 5;

impl Engine {
    /// Finds a sandbox. While it is on its way to another node, this waits: once it has gone, it is not found here, and
    /// the request follows it.
    pub(super) async fn resolve_settled(&self, caller: &Caller, text: &str) -> Result<Arc<SandboxShared>> {
        let found = self.resolve_for(caller, text).await?;
        if !found.has_settled_here().await {
            return Ok(found);
        }
        self.inner.sandbox(&found.id).inspect_err(|_gone| cluster::left())
    }

    /// Finds what a caller means by an id or a name: a name in its project. An administrator, who is of none, may also mean
    /// that of a project, when it is the only one.
    async fn resolve_for(&self, caller: &Caller, text: &str) -> Result<Arc<SandboxShared>> {
        let missing = match self.inner.resolve(&caller.kept(text)) {
            // Others are not told of what may be private.
            Err(missing) if caller.is_admin() => self.inner.absent("sandboxes", text, missing),
            found => return found,
        };
        if is_id_shaped(text) || missing.code != Code::SandboxNotFound {
            return Err(missing);
        }
        let named = self.inner.store.sandboxes_named(text).await.map_err(store_error)?;
        let own = named.iter().find(|(project, _)| project.is_none());
        match (own, named.as_slice()) {
            (Some((_, id)), _) | (None, [(_, id)]) => self.inner.sandbox(id),
            (None, []) => Err(missing),
            (None, several) => {
                let one = |(project, id): &(Option<ProjectId>, SandboxId)| {
                    let project = project.as_ref().map(|project| self.project_name(project));
                    format!("{id} ({})", project.unwrap_or_default())
                };
                let ids: Vec<String> = several.iter().take(AMBIGUOUS_SHOWN_COUNT).map(one).collect();
                let why =
                    format!("{} projects have a sandbox of this name: {}", several.len(), ids.join(", "));
                Err(Error::invalid("sandbox", why).hint("say its id"))
            }
        }
    }

    /// Finds a sandbox that a caller may know of, by id or name.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`].
    pub(crate) async fn seen_sandbox(&self, caller: &Caller, text: &str) -> Result<Arc<SandboxShared>> {
        let found = self.resolve_for(caller, text).await?;
        self.on_sandbox(caller, &found).ok_or_else(|| SandboxId::not_found(text))?;
        Ok(found)
    }

    /// Whether a text is a sandbox's id, or its name within its project. It gives no right to anything.
    #[must_use]
    pub fn is_called(&self, sandbox: &SandboxId, text: &str) -> bool {
        let found = self.inner.find(sandbox);
        found.is_some_and(|found| found.id.as_str() == text || found.record().name.as_deref() == Some(text))
    }

    /// The id of the sandbox that has this name in a caller's project. It gives no right to anything.
    #[must_use]
    pub fn sandbox_called(&self, caller: &Caller, name: &str) -> Option<SandboxId> {
        self.inner.resolve(&caller.kept(name)).ok().map(|sandbox| sandbox.id.clone())
    }

    /// The id of the sandbox with this id or, if it belongs to no project, this name: there is no caller here whose
    /// project could be meant. It gives no right to anything, and a client that is given it must not learn from it
    /// whether the sandbox is there.
    #[must_use]
    pub fn resolve_sandbox(&self, text: &str) -> Option<SandboxId> {
        self.inner.resolve(text).ok().map(|sandbox| sandbox.id.clone())
    }
}
