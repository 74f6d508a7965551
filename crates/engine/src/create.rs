//! Making a sandbox: from what was asked to a record, then to the actor that runs the saga.

use atoll_core::sandbox::SandboxState;
use atoll_core::spec::{ImageDefaults, SandboxDraft, SandboxSpec, TemplateSpec};
use atoll_core::{Code, Error, Result};
use atoll_isolation::{Plan, RootFs};
use atoll_store::SandboxRecord;

use crate::clock::{now_ms, random};
use crate::engine::{Caller, Engine, Inner};
use crate::sandbox::{self, Origin, SandboxShared};

impl Engine {
    /// Makes a sandbox and gives its record once it runs.
    ///
    /// When the caller stops waiting, the saga goes on to its end.
    ///
    /// # Errors
    /// Whatever is wrong with the draft; [`Code::LimitExceeded`]; [`Code::NameTaken`]; what the host
    /// refuses. Nothing is left of a sandbox that could not be made.
    pub async fn create_sandbox(&self, draft: SandboxDraft, caller: &Caller) -> Result<SandboxRecord> {
        if self.inner.shutdown.is_cancelled() {
            return Err(Error::new(Code::ShuttingDown, "the server is shutting down"));
        }
        draft.validate()?;
        let (record, plan) = self.plan(&draft, caller).await?;
        let shared = SandboxShared::new(record, &self.inner)?;
        self.inner.enter(&shared, true)?;
        sandbox::spawn(&self.inner, &shared, Origin::Create(plan));
        shared.made().await
    }

    async fn plan(&self, draft: &SandboxDraft, caller: &Caller) -> Result<(SandboxRecord, Plan)> {
        let inner: &Inner = &self.inner;
        let template = match &draft.template {
            Some(name) => Some(self.find_template(name).await?),
            None => None,
        };
        let recipe: Option<(String, &TemplateSpec)> =
            template.as_ref().map(|record| (format!("{}:{}", record.name, record.version), &record.spec));
        let image_name = draft.image_name(recipe.as_ref().map(|(_, spec)| *spec));
        let (root, image, image_digest) = if image_name == "host" {
            (RootFs::Host, ImageDefaults::default(), None)
        } else {
            let image = inner.images.resolve(image_name).map_err(|error| error.to_core())?;
            (RootFs::Layers(image.layers.clone()), image.defaults.clone(), Some(image.digest.to_string()))
        };
        let named = recipe.as_ref().map(|(name, spec)| (name.as_str(), *spec));
        let spec = SandboxSpec::resolve(draft, named, &image, &inner.config.caps)?;
        inner.driver(spec.isolation)?;

        let created_ms = now_ms();
        let id = Inner::new_sandbox_id(created_ms)?;
        let ttl_ms = draft.ttl_ms.or_else(|| recipe.as_ref().and_then(|(_, spec)| spec.ttl_ms));
        let mut labels = recipe.map(|(_, spec)| spec.labels.clone()).unwrap_or_default();
        labels.extend(draft.labels.clone());
        let plan = Plan {
            id: id.clone(),
            root,
            resources: spec.resources,
            hostname: draft.name.clone().unwrap_or_else(|| id.to_string()),
        };
        let record = SandboxRecord {
            id,
            name: draft.name.clone(),
            state: SandboxState::Creating,
            reason: None,
            spec,
            labels,
            image_digest,
            owner: caller.key.clone(),
            created_ms,
            expires_ms: ttl_ms.map(|ttl| created_ms.saturating_add(ttl)),
            last_active_ms: created_ms,
            paused: None,
            paused_ms: None,
            pauses_ms: 0,
            boot_id: Inner::new_boot_id()?,
            generation: 1,
        };
        Ok((record, plan))
    }
}

impl Inner {
    /// What a sandbox that was put to disk is started from again.
    pub(crate) fn plan_of(&self, record: &SandboxRecord) -> Result<Plan> {
        let root = match &record.image_digest {
            None => RootFs::Host,
            Some(digest) => {
                let image = self.images.resolve(digest).map_err(|error| error.to_core())?;
                RootFs::Layers(image.layers.clone())
            }
        };
        Ok(Plan {
            id: record.id.clone(),
            root,
            resources: record.spec.resources,
            hostname: record.name.clone().unwrap_or_else(|| record.id.to_string()),
        })
    }

    /// A name for a boot of a sandbox.
    pub(crate) fn new_boot_id() -> Result<String> {
        Ok(format!("{:016x}", random()?))
    }
}
