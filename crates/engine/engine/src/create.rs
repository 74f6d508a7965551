//! Making a sandbox: from what was asked to a record, then to the actor that runs the saga.

use atoll_core::id::{SandboxId, SnapshotId};
use atoll_core::policy::EgressPolicy;
use atoll_core::pool::Mold;
use atoll_core::sandbox::SandboxState;
use atoll_core::sharing::{Needs, Visibility};
use atoll_core::snapshot::Manifest;
use atoll_core::spec::{Accelerator, Base, ImageDefaults, SandboxDraft, SandboxSpec, TemplateSpec};
use atoll_core::{Code, Error, Result};
use atoll_isolation::{DiskSource, Plan, RootFs};
use atoll_store::{SandboxRecord, TemplateRecord, Whereabouts};

use crate::authorize::Caller;
use crate::boxed;
use crate::clock::random;
use crate::cluster;
use crate::engine::{Engine, Inner};
use crate::errors::{isolation_error, limit_error};
use crate::execution::execution;
use crate::pool::Claim;
use crate::projects::stored_in;
use crate::sandbox::{self, Message, Origin, SandboxShared};
use crate::service::{Declared, check_declared};
use crate::snapshot::check_memory;
use crate::start::starts_ahead;
use crate::travel::check_durability;

/// A sandbox on paper.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) record: SandboxRecord,
    pub(crate) plan: Plan,
    /// Which members of pools it could be.
    pub(crate) mold: Mold,
    /// Whether other keys will see it; the server's default when absent.
    pub(crate) visibility: Option<Visibility>,
}

impl Planned {
    /// It becomes what exists already under this id.
    fn take_id(&mut self, id: &SandboxId) {
        if self.record.name.is_none() {
            self.plan.hostname = id.to_string();
        }
        self.plan.id.clone_from(id);
        self.record.id.clone_from(id);
    }
}

impl Engine {
    /// Makes a sandbox and gives its record once it runs.
    ///
    /// When the caller stops waiting, the saga goes on to its end. If the caller repeats the request, the answer is the
    /// sandbox that the first one made, as long as it exists.
    ///
    /// # Errors
    /// An error in the draft; [`Code::LimitExceeded`]; [`Code::NameTaken`]; [`Code::IdempotencyMismatch`]; a refusal of
    /// the host. Nothing is left of a sandbox that could not be made.
    #[boxed]
    pub async fn create_sandbox(&self, draft: SandboxDraft, caller: &Caller) -> Result<SandboxRecord> {
        Box::pin(self.create_from(draft, None, caller)).await
    }

    /// The same. `template` stands in the place of the one that the draft names: a build tries out what is no version yet.
    pub(crate) async fn create_from(
        &self,
        mut draft: SandboxDraft,
        template: Option<TemplateRecord>,
        caller: &Caller,
    ) -> Result<SandboxRecord> {
        if self.inner.shutdown.is_cancelled() {
            return Err(Error::new(Code::ShuttingDown, "the server is shutting down"));
        }
        if let Some(request) = &draft.request
            && let Some(before) = self.inner.made_for(caller.key.as_ref(), request)?
        {
            if before.state() != SandboxState::Deleting {
                before.made().await?;
                return Ok(before.record());
            }
            // It is being taken apart, as after a crash in the middle of its making: it is no answer, and its key and name are
            // free when it is gone.
            match before.ask(Message::Delete).await {
                Err(error) if error.code != Code::SandboxNotFound => return Err(error),
                _gone => {}
            }
        }
        if let (Some(request), Some(owner)) = (&draft.request, caller.key.as_ref()) {
            // Another node may have made it, or make it at this moment.
            let at = Whereabouts::Request(owner.clone(), request.key.clone());
            cluster::missing(at.clone());
            let made = || Error::new(Code::NodeUnavailable, "another node was asked for this sandbox");
            self.inner.must_be_here(at, made()).await?;
        }
        draft.validate()?;
        let template = match (template, &draft.template) {
            (None, Some(name)) => Some(self.find_template(name).await?),
            (template, _) => template,
        };
        let recipe = template.as_ref().map(|record| &record.spec);
        if let Some(project) = self.settings_of(caller.project())? {
            project.defaults.fill(&mut draft, recipe);
        }
        // A build's sandboxes are where the build is.
        let bound = if draft.build.is_none() {
            self.place(&draft, recipe)?;
            self.check_bound(&draft, recipe)
        } else {
            Ok(())
        };
        self.inner.disk.check()?;
        let mut planned = self.plan_from(&draft, template, caller).await?;
        // Only now that it is clear that it would be made here.
        bound?;
        // Before a member of a pool is taken, which would be lost.
        let room = self.inner.store.check_new(&planned.record).await;
        room.map_err(|error| stored_in(planned.record.project.as_ref(), error))?;
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
        let (mounts, created_ms) = (record.spec.volumes.clone(), record.created_ms);
        let shared = SandboxShared::new(record, &self.inner)?;
        let services = Declared::enter(&shared, draft.memory)?;
        // Set before a caller can look it up.
        self.inner.acl.hold(&shared.id, visibility);
        let entered = self.inner.enter(&shared, true);
        let entered = entered.inspect_err(|_refused| self.inner.acl.forget(&shared.id)).and_then(|()| {
            // Checked only now that the sandbox counts as a user of its volumes: from here on they cannot be removed.
            self.inner.check_volumes(&mounts).inspect_err(|_gone| self.inner.leave(&shared.id))
        });
        let entered = match entered {
            Ok(()) => {
                let prepared = self.inner.prepare_volumes(&mounts).await;
                prepared.inspect_err(|_refused| self.inner.leave(&shared.id))
            }
            refused => refused,
        };
        // A creation that was refused is no reason to keep its kind ready.
        if let (Some(kind), Ok(())) = (kind, &entered) {
            pools.wanted(kind, member.is_some(), created_ms);
        }
        let origin = match (member, entered) {
            (None, entered) => entered.map(|()| Origin::Create(plan, saved)),
            (Some(member), Err(error)) => {
                pools.give_back(member);
                Err(error)
            }
            (Some(member), Ok(())) => {
                pools.forget(&member.id);
                Ok(Origin::Claim(Box::new(member), plan))
            }
        }?;
        self.inner.secrets.hold(&shared.id, draft.secrets, None);
        sandbox::spawn(&self.inner, &shared, origin);
        shared.made().await?;
        self.started(&shared, services).await?;
        // The first state to go back to.
        if let Err(error) = self.checkpoint_by_itself(&shared, "when it was made").await {
            self.give_up(&shared.id, &error, "has no first checkpoint").await;
            return Err(error);
        }
        Ok(shared.record())
    }

    pub(crate) async fn plan(&self, draft: &SandboxDraft, caller: &Caller) -> Result<Planned> {
        let template = match &draft.template {
            Some(name) => Some(self.find_template(name).await?),
            None => None,
        };
        self.plan_from(draft, template, caller).await
    }

    async fn plan_from(
        &self,
        draft: &SandboxDraft,
        template: Option<TemplateRecord>,
        caller: &Caller,
    ) -> Result<Planned> {
        let inner: &Inner = &self.inner;
        let recipe: Option<(String, &TemplateSpec)> =
            template.as_ref().map(|record| (format!("{}:{}", record.name, record.version), &record.spec));
        let mut disk = None;
        let snapshot = match (&draft.snapshot, recipe.as_ref().and_then(|(_, spec)| spec.snapshot.as_ref())) {
            (Some(text), _) => {
                // The cache of build steps is the server's, no matter which key's build filled it.
                let system = Caller::system();
                let by = if draft.build.is_some() { &system } else { caller };
                Some(self.usable_snapshot(text, Needs::READ, by).await?)
            }
            (None, Some(id)) if draft.image.is_none() => {
                let (found, here) = self.template_disk(id).await?;
                disk = Some(here);
                Some(found)
            }
            (None, _) => None,
        };
        // What a template put on top of its image is as good as the image's.
        let image_until_ms = match (&draft.snapshot, &template, &snapshot) {
            (None, Some(template), Some(_)) => Some(template.created_ms),
            _ => None,
        };
        if draft.memory {
            let none = || Error::invalid("memory", "there is no snapshot to go on from");
            check_memory(snapshot.as_ref().ok_or_else(none)?)?;
        }
        // A private snapshot must not become visible to all keys because a sandbox goes on from it.
        let inherited = snapshot.as_ref().filter(|found| self.is_private_snapshot(found));
        let usual = self.settings_of(caller.project())?.and_then(|project| project.defaults.visibility);
        let visibility = draft.visibility.or_else(|| inherited.map(|_| Visibility::Private)).or(usual);
        // An administrator is of no project. A sandbox that it makes from a project's snapshot stays in that project.
        let named = draft.snapshot.as_ref().and(snapshot.as_ref()).filter(|_| caller.is_admin());
        let project = caller.project().or(named.and_then(|found| found.project.as_ref())).cloned();
        let named = recipe.as_ref().map(|(name, spec)| (name.as_str(), *spec));
        let (root, image_digest, mut spec) = match &snapshot {
            Some(snapshot) => {
                let Manifest { image_digest, layers, .. } = &snapshot.manifest;
                self.obtain_exactly(image_digest.as_deref(), layers).await?;
                let (root, digest) = self.root_of(&snapshot.manifest)?;
                let base = Base::Snapshot(&snapshot.id, &snapshot.manifest);
                (root, digest, SandboxSpec::resolve(draft, named, base, &inner.config.caps)?)
            }
            None => {
                let unasked = &inner.config.defaults;
                let name = draft.image_name(named.map(|(_, spec)| spec)).unwrap_or(&unasked.image);
                self.obtain_image(name).await?;
                let (root, defaults, digest) = self.root(name)?;
                let base = Base::Image { name, defaults: &defaults, isolation: unasked.isolation };
                (root, digest, SandboxSpec::resolve(draft, named, base, &inner.config.caps)?)
            }
        };
        if let Some(egress) = &draft.egress {
            egress.check_no_execs("egress")?;
        }
        let told = draft.egress.is_some() || named.is_some_and(|(_, spec)| spec.egress.is_some());
        inner.default_egress(&mut spec.egress, told);
        let driver = inner.driver(spec.isolation)?;
        driver.check_limits(&spec.resources).map_err(|error| limit_error(&error))?;
        let accelerator = driver.accelerator();
        let volumes = inner.mounts(caller, &draft.volumes)?;
        if !volumes.is_empty() {
            driver.check_volumes().map_err(|error| isolation_error(&error))?;
        }
        let mut spec = SandboxSpec { volumes, accelerator, image_until_ms, ..spec };
        for image in draft.layers.values() {
            self.obtain_image(image).await?;
        }
        spec.layers =
            inner.change_layers(&spec, draft.layers.iter().map(|(name, image)| (name, Some(image))))?;
        inner.check_execution(&spec)?;
        check_declared(&spec)?;

        let created_ms = inner.now_ms();
        let id = Inner::new_sandbox_id(created_ms)?;
        let ttl_ms = spec.ttl_ms;
        let mut labels = recipe.map(|(_, spec)| spec.labels.clone()).unwrap_or_default();
        labels.extend(draft.labels.clone());
        let mold = Mold {
            image: image_digest.clone(),
            isolation: spec.isolation,
            disk_bytes: spec.resources.disk_bytes,
            origin: origin(snapshot.as_ref().map(|snapshot| &snapshot.id), &spec)?,
            volumes: spec.volumes.len(),
        };
        let plan = Plan {
            id: id.clone(),
            root,
            resources: spec.resources,
            hostname: draft.name.clone().unwrap_or_else(|| id.to_string()),
            disk: match snapshot {
                Some(snapshot) if draft.memory => DiskSource::WithMemory(snapshot.id, None),
                Some(snapshot) => DiskSource::Artifact(disk.unwrap_or(snapshot.id)),
                None => DiskSource::Empty,
            },
            volumes: inner.planned_volumes(&spec.volumes),
            execution: execution(&spec),
            layers: inner.planned_layers(&spec.layers)?,
        };
        let mut record = SandboxRecord {
            id,
            name: draft.name.clone(),
            project,
            state: SandboxState::Creating,
            reason: None,
            spec,
            labels,
            annotations: draft.annotations.clone(),
            image_digest,
            owner: caller.key.clone(),
            request: caller.key.as_ref().and(draft.request.clone()),
            created_ms,
            expires_ms: ttl_ms.map(|ttl| created_ms.saturating_add(ttl)),
            last_active_ms: created_ms,
            paused: None,
            paused_ms: None,
            pauses_ms: 0,
            boot_id: Inner::new_boot_id()?,
            kept_ms: None,
            restored: None,
            generation: 1,
        };
        let mut egress = record.spec.egress.clone();
        inner.prepare_rules(&record, caller.key(), &mut egress, &EgressPolicy::default(), &draft.secrets)?;
        record.spec.egress = egress;
        check_durability(inner, &record)?;
        Ok(Planned { record, plan, mold, visibility })
    }

    /// The root of an image, what it says about how to run it, and what it is exactly.
    fn root(&self, image: &str) -> Result<(RootFs, ImageDefaults, Option<String>)> {
        if image == "host" {
            return Ok((RootFs::Host, ImageDefaults::default(), None));
        }
        let image = self.inner.images.resolve(image).map_err(|error| error.to_core())?;
        self.inner.image_is_used(&image.digest);
        Ok((RootFs::Layers(image.layers.clone()), image.defaults.clone(), Some(image.digest.to_string())))
    }

    /// The root that a snapshot was taken on: exactly that, or none.
    pub(crate) fn root_of(&self, manifest: &Manifest) -> Result<(RootFs, Option<String>)> {
        let root = self.exact_root(manifest.image_digest.as_deref(), &manifest.image)?;
        Ok((root, manifest.image_digest.clone()))
    }

    /// The root of an image by its digest, `host` without. A disk fits no other.
    pub(crate) fn exact_root(&self, digest: Option<&str>, name: &str) -> Result<RootFs> {
        let Some(digest) = digest else { return Ok(RootFs::Host) };
        let image = self.inner.images.resolve(digest).map_err(|_missing| {
            Error::new(
                Code::SnapshotIncompatible,
                format!("the snapshot stands on the image {name} ({digest}), which is not here"),
            )
            .hint("pull or load exactly that image first")
        })?;
        self.inner.image_is_used(&image.digest);
        Ok(RootFs::Layers(image.layers.clone()))
    }
}

/// What a sandbox of a pool was made from, for [`Mold::origin`]. Where something is started in it ahead, that
/// has seen its surroundings from the beginning, so they belong to it.
fn origin(snapshot: Option<&SnapshotId>, spec: &SandboxSpec) -> Result<Option<String>> {
    let SandboxSpec { start, ready, env, user, workdir, egress, execution, profiles, layers, .. } = spec;
    let unwritable = |error: serde_json::Error| {
        tracing::error!(%error, "a spec cannot be written as JSON");
        Error::new(Code::Internal, "the request cannot be planned")
    };
    // What may run in a member was decided before its first program did.
    let (word, text) = if !layers.is_empty() {
        // No pool keeps any with layers.
        ("layered", serde_json::to_vec(&(snapshot, layers)).map_err(unwritable)?)
    } else if starts_ahead(spec) {
        let made = (snapshot, start, ready, env, user, workdir, egress, execution, profiles);
        ("started", serde_json::to_vec(&made).map_err(unwritable)?)
    } else if !execution.is_open() || !egress.origins().is_empty() || !profiles.is_empty() {
        let made = (snapshot, execution, egress.origins(), profiles);
        ("locked", serde_json::to_vec(&made).map_err(unwritable)?)
    } else {
        return Ok(snapshot.map(ToString::to_string));
    };
    Ok(Some(format!("{word} {}", blake3::hash(&text).to_hex())))
}

impl Inner {
    /// The plan by which a sandbox that was put to disk is started again. Refused where it would be isolated less than
    /// it was.
    pub(crate) fn plan_of(&self, record: &SandboxRecord) -> Result<Plan> {
        let accelerator = self.driver(record.spec.isolation)?.accelerator();
        if accelerator < record.spec.accelerator {
            let text = |of: Option<Accelerator>| of.map_or("nothing", Accelerator::as_str);
            let (was, is) = (text(record.spec.accelerator), text(accelerator));
            let why = format!("its machine ran on {was}, and this server has {is}");
            return Err(Error::new(Code::IsolationUnavailable, why).hint("'atoll doctor' says why"));
        }
        let root = match &record.image_digest {
            None => RootFs::Host,
            Some(digest) => {
                let image = self.images.resolve(digest).map_err(|error| error.to_core())?;
                self.image_is_used(&image.digest);
                RootFs::Layers(image.layers.clone())
            }
        };
        Ok(Plan {
            id: record.id.clone(),
            root,
            resources: record.spec.resources,
            hostname: record.name.clone().unwrap_or_else(|| record.id.to_string()),
            disk: DiskSource::Empty,
            volumes: self.planned_volumes(&record.spec.volumes),
            execution: execution(&record.spec),
            layers: self.planned_layers(&record.spec.layers)?,
        })
    }

    /// A name for a boot of a sandbox.
    pub(crate) fn new_boot_id() -> Result<String> {
        Ok(format!("{:016x}", random()?))
    }
}
