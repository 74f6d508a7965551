//! Making a sandbox: from what was asked to a record (`plan.rs`, `record.rs`), then to the actor that runs the saga.

mod made;
mod plan;
mod record;

use std::sync::Arc;

use atoll_core::sandbox::SandboxState;
use atoll_core::sharing::{Needs, Visibility};
use atoll_core::spec::{RequestKey, SandboxDraft};
use atoll_core::{Code, Error, Result};
use atoll_store::{SandboxRecord, TemplateRecord, Whereabouts};

use crate::authorize::{Caller, Target};
use crate::boxed;
use crate::cluster;
use crate::engine::Engine;
use crate::pool::Claim;
use crate::projects::stored_in;
use crate::sandbox::{self, Origin, SandboxShared};
use crate::service::Declared;

pub use made::Made;
pub(crate) use plan::Planned;
pub(crate) use record::NewSandbox;

impl Engine {
    /// Makes a new sandbox and gives its record once it runs.
    ///
    /// When the caller stops waiting, the saga goes on to its end.
    ///
    /// # Errors
    /// An error in the draft; [`Code::LimitExceeded`]; [`Code::NameTaken`]; a refusal of the host. Nothing is left of a
    /// sandbox that could not be made.
    #[boxed]
    pub async fn create_sandbox(&self, draft: SandboxDraft, caller: &Caller) -> Result<SandboxRecord> {
        Box::pin(self.create_from(draft, None, None, caller)).await
    }

    /// The same, once for a request: if the caller repeats it, the answer is the sandbox that the first one made, as
    /// long as it exists, once it is made. The caller may read that sandbox still. `None` is a request without a key.
    ///
    /// # Errors
    /// As [`Self::create_sandbox`]; how the first request failed; [`Code::IdempotencyMismatch`] when that asked for
    /// something else; as [`Self::authorize`].
    #[boxed]
    pub async fn create_sandbox_once(
        &self,
        draft: SandboxDraft,
        request: Option<RequestKey>,
        caller: &Caller,
    ) -> Result<Made> {
        self.check_up()?;
        if let Some(request) = &request
            && let Some(before) = self.made_before(request, caller).await?
        {
            return Ok(Made::Before(before));
        }
        Box::pin(self.create_from(draft, None, request, caller)).await.map(Made::New)
    }

    fn check_up(&self) -> Result<()> {
        if self.inner.shutdown.is_cancelled() {
            return Err(Error::new(Code::ShuttingDown, "the server is shutting down"));
        }
        Ok(())
    }

    /// Makes a new sandbox, of a request with this key if it has one. `template` stands in the place of the one that the
    /// draft names: a build tries out what is no version yet.
    pub(crate) async fn create_from(
        &self,
        mut draft: SandboxDraft,
        template: Option<TemplateRecord>,
        request: Option<RequestKey>,
        caller: &Caller,
    ) -> Result<SandboxRecord> {
        self.check_up()?;
        draft.validate()?;
        let template = match (template, &draft.template) {
            (None, Some(name)) => Some(self.find_template(name).await?),
            (template, _) => template,
        };
        let planned = self.plan_here(&mut draft, template, request, caller).await?;
        let (shared, services) = self.begin(planned, draft).await?;
        shared.made().await?;
        self.started(&shared, services).await?;
        // The first state to go back to.
        if let Err(error) = self.checkpoint_by_itself(&shared, "when it was made").await {
            self.give_up(&shared.id, &error, "has no first checkpoint").await;
            return Err(error);
        }
        Ok(shared.record())
    }

    /// What an earlier request with the same idempotency key made, once it is made.
    ///
    /// # Errors
    /// How that failed; [`Code::IdempotencyMismatch`] when it asked for something else; [`Code::NodeUnavailable`] when
    /// another node may have it; as [`Self::authorize`] when the caller may not read it any more.
    async fn made_before(&self, request: &RequestKey, caller: &Caller) -> Result<Option<SandboxRecord>> {
        if let Some(before) = self.inner.made_for(caller.key.as_ref(), request)? {
            if before.state() != SandboxState::Deleting {
                before.made().await?;
                self.authorize(caller, Needs::READ, Target::Sandbox(before.id.as_str())).await?;
                return Ok(Some(before.record()));
            }
            // It is being taken apart, as after a crash in the middle of its making: it is no answer, and its key and name are
            // free when it is gone.
            match before.delete().await {
                Err(error) if error.code != Code::SandboxNotFound => return Err(error),
                _gone => {}
            }
        }
        if let Some(owner) = &caller.key {
            // Another node may have made it, or make it at this moment.
            let at = Whereabouts::Request(owner.clone(), request.key.clone());
            cluster::missing(at.clone());
            let made = || Error::new(Code::NodeUnavailable, "another node was asked for this sandbox");
            self.inner.must_be_here(at, made()).await?;
        }
        Ok(None)
    }

    /// The plan of a sandbox that this node is to run. Refused when another node is to, and when there is no room.
    async fn plan_here(
        &self,
        draft: &mut SandboxDraft,
        template: Option<TemplateRecord>,
        request: Option<RequestKey>,
        caller: &Caller,
    ) -> Result<Planned> {
        let recipe = template.as_ref().map(|record| &record.spec);
        if let Some(project) = self.settings_of(caller.project())? {
            project.defaults.fill(draft, recipe);
        }
        // A build's sandboxes are where the build is.
        let bound = if draft.build.is_none() {
            self.place(draft, recipe)?;
            self.check_bound(draft, recipe)
        } else {
            Ok(())
        };
        self.inner.disk.check()?;
        let mut planned = self.plan_from(draft, template, caller).await?;
        planned.record.request = caller.key.as_ref().and(request);
        // Only now that it is clear that it would be made here.
        bound?;
        // Before a member of a pool is taken, which would be lost.
        let room = self.inner.store.check_new(&planned.record).await;
        room.map_err(|error| stored_in(planned.record.project.as_ref(), error))?;
        Ok(planned)
    }

    /// Enters the sandbox where requests find it, and starts the actor that makes it, of a pool's member if there is one.
    async fn begin(
        &self,
        mut planned: Planned,
        draft: SandboxDraft,
    ) -> Result<(Arc<SandboxShared>, Declared)> {
        let pools = &self.inner.pools;
        // A sandbox that goes on from a snapshot's memory is made anew: it claims no member.
        let Claim { member, kind } = if draft.memory { Claim::default() } else { pools.claim(&planned) };
        if let Some(member) = &member {
            planned.take_id(&member.id);
        }
        let Planned { record, plan, mold, visibility } = planned;
        let saved = if member.is_none() && !draft.memory {
            self.inner.find_memory(&record.spec, &mold)
        } else {
            None
        };
        let created_ms = record.created_ms;
        let (shared, services) = match self.enter_new(record, visibility, draft.memory).await {
            Ok(entered) => entered,
            Err(error) => {
                if let Some(member) = member {
                    pools.give_back(member);
                }
                return Err(error);
            }
        };
        // A creation that was refused is no reason to keep its kind ready.
        if let Some(kind) = kind {
            pools.wanted(kind, member.is_some(), created_ms);
        }
        let origin = match member {
            None => Origin::Create(plan, saved),
            Some(member) => {
                pools.forget(&member.id);
                Origin::Claim(Box::new(member), plan)
            }
        };
        self.inner.secrets.hold(&shared.id, draft.secrets, None);
        sandbox::spawn(&self.inner, &shared, origin);
        Ok((shared, services))
    }

    /// Enters a sandbox where requests and the removal of volumes find it. Of one that is refused nothing is left.
    async fn enter_new(
        &self,
        record: SandboxRecord,
        visibility: Option<Visibility>,
        from_memory: bool,
    ) -> Result<(Arc<SandboxShared>, Declared)> {
        let inner = &self.inner;
        let mounts = record.spec.volumes.clone();
        let shared = SandboxShared::new(record, inner)?;
        let services = Declared::enter(&shared, from_memory)?;
        // Set before a caller can look it up.
        inner.acl.hold(&shared.id, visibility);
        inner.enter(&shared, true).inspect_err(|_refused| inner.acl.forget(&shared.id))?;
        // Checked only now that the sandbox counts as a user of its volumes: from here on they cannot be removed.
        inner.check_volumes(&mounts).inspect_err(|_gone| inner.leave(&shared.id))?;
        inner.prepare_volumes(&mounts).await.inspect_err(|_refused| inner.leave(&shared.id))?;
        Ok((shared, services))
    }
}
