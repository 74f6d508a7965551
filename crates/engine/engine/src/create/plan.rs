//! A sandbox on paper: its record, and the driver's plan, from what was asked, its template, and its image or snapshot.
//!
//! ```text
//! draft, template ──▶ Beginning     which snapshot its disk goes on from, if any
//!                 ──▶ resolved      the root, and a spec without holes
//!                 ──▶ complete      what only this server knows: the driver, volumes, agent layers, rules
//!                 ──▶ Planned       record, plan, mold
//! ```

use atoll_core::id::{ProjectId, SandboxId, SnapshotId};
use atoll_core::policy::EgressPolicy;
use atoll_core::pool::Mold;
use atoll_core::sharing::{Needs, Visibility};
use atoll_core::snapshot::Manifest;
use atoll_core::spec::{Accelerator, Base, ImageDefaults, SandboxDraft, SandboxSpec, TemplateSpec};
use atoll_core::{Code, Error, Result};
use atoll_isolation::{DiskSource, Plan, RootFs};
use atoll_store::{SandboxRecord, SnapshotRecord, TemplateRecord};

use super::record::NewSandbox;
use crate::authorize::Caller;
use crate::clock::random;
use crate::engine::{Engine, Inner};
use crate::errors::{isolation_error, limit_error};
use crate::execution::execution;
use crate::service::check_declared;
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
    pub(super) fn take_id(&mut self, id: &SandboxId) {
        if self.record.name.is_none() {
            self.plan.hostname = id.to_string();
        }
        self.plan.id.clone_from(id);
        self.record.id.clone_from(id);
    }
}

/// The snapshot that a new sandbox's disk goes on from; none when it begins with an image.
struct Beginning {
    snapshot: Option<SnapshotRecord>,
    /// This node's copy of it, where another node made the template.
    copy: Option<SnapshotId>,
}

impl Beginning {
    fn disk(self, with_memory: bool) -> DiskSource {
        match self.snapshot {
            Some(snapshot) if with_memory => DiskSource::WithMemory(snapshot.id, None),
            Some(snapshot) => DiskSource::Artifact(self.copy.unwrap_or(snapshot.id)),
            None => DiskSource::Empty,
        }
    }
}

/// A template's `name:version`, and what it says.
type Named<'a> = Option<(&'a str, &'a TemplateSpec)>;

impl Engine {
    pub(crate) async fn plan(&self, draft: &SandboxDraft, caller: &Caller) -> Result<Planned> {
        let template = match &draft.template {
            Some(name) => Some(self.find_template(name).await?),
            None => None,
        };
        self.plan_from(draft, template, caller).await
    }

    pub(super) async fn plan_from(
        &self,
        draft: &SandboxDraft,
        template: Option<TemplateRecord>,
        caller: &Caller,
    ) -> Result<Planned> {
        let inner: &Inner = &self.inner;
        let recipe = template.as_ref().map(|record| &record.spec);
        let name = template.as_ref().map(|record| format!("{}:{}", record.name, record.version));
        let named: Named<'_> = name.as_deref().zip(recipe);
        let beginning = self.beginning(draft, recipe, caller).await?;
        let snapshot = beginning.snapshot.as_ref();
        let (visibility, project) = self.audience(draft, snapshot, caller)?;
        let (root, image_digest, mut spec) = self.resolved(draft, named, snapshot).await?;
        // What a template put on top of its image is as good as the image's.
        spec.image_until_ms = match (&draft.snapshot, &template, snapshot) {
            (None, Some(template), Some(_)) => Some(template.created_ms),
            _ => None,
        };
        let spec = self.complete(spec, draft, recipe, caller).await?;

        let mold = mold(image_digest.as_deref(), snapshot, &spec)?;
        let mut labels = recipe.map(|spec| spec.labels.clone()).unwrap_or_default();
        labels.extend(draft.labels.clone());
        let new = NewSandbox {
            name: draft.name.clone(),
            project,
            spec,
            labels,
            annotations: draft.annotations.clone(),
            image_digest,
            owner: caller.key.clone(),
            // `plan_here` notes the request.
            request: None,
        };
        let mut record = new.record(inner.now_ms())?;
        let plan = inner.plan_with(&record, root, beginning.disk(draft.memory))?;
        let mut egress = record.spec.egress.clone();
        inner.prepare_rules(&record, caller.key(), &mut egress, &EgressPolicy::default(), &draft.secrets)?;
        record.spec.egress = egress;
        check_durability(inner, &record)?;
        Ok(Planned { record, plan, mold, visibility })
    }

    /// The draft's snapshot, or that of its template unless the draft names an image.
    async fn beginning(
        &self,
        draft: &SandboxDraft,
        recipe: Option<&TemplateSpec>,
        caller: &Caller,
    ) -> Result<Beginning> {
        let (snapshot, copy) = match (&draft.snapshot, recipe.and_then(|spec| spec.snapshot.as_ref())) {
            (Some(text), _) => {
                // The cache of build steps is the server's, no matter which key's build filled it.
                let system = Caller::system();
                let by = if draft.build.is_some() { &system } else { caller };
                (Some(self.usable_snapshot(text, Needs::READ, by).await?), None)
            }
            (None, Some(id)) if draft.image.is_none() => {
                let (found, here) = self.template_disk(id).await?;
                (Some(found), Some(here))
            }
            (None, _) => (None, None),
        };
        if draft.memory {
            let none = || Error::invalid("memory", "there is no snapshot to go on from");
            check_memory(snapshot.as_ref().ok_or_else(none)?)?;
        }
        Ok(Beginning { snapshot, copy })
    }

    /// Who will see the sandbox, and in which project it is.
    fn audience(
        &self,
        draft: &SandboxDraft,
        snapshot: Option<&SnapshotRecord>,
        caller: &Caller,
    ) -> Result<(Option<Visibility>, Option<ProjectId>)> {
        // A private snapshot must not become visible to all keys because a sandbox goes on from it.
        let inherited = snapshot.filter(|found| self.is_private_snapshot(found));
        let usual = self.settings_of(caller.project())?.and_then(|project| project.defaults.visibility);
        let visibility = draft.visibility.or_else(|| inherited.map(|_| Visibility::Private)).or(usual);
        // An administrator is of no project. A sandbox that it makes from a project's snapshot stays in that project.
        let named = draft.snapshot.as_ref().and(snapshot).filter(|_| caller.is_admin());
        let project = caller.project().or(named.and_then(|found| found.project.as_ref())).cloned();
        Ok((visibility, project))
    }

    /// The root of the snapshot or image, which is fetched if it is elsewhere; its digest; the spec without holes.
    async fn resolved(
        &self,
        draft: &SandboxDraft,
        named: Named<'_>,
        snapshot: Option<&SnapshotRecord>,
    ) -> Result<(RootFs, Option<String>, SandboxSpec)> {
        let config = &self.inner.config;
        if let Some(SnapshotRecord { id, manifest, .. }) = snapshot {
            self.obtain_exactly(manifest.image_digest.as_deref(), &manifest.layers).await?;
            let (root, digest) = self.root_of(manifest)?;
            let spec = SandboxSpec::resolve(draft, named, Base::Snapshot(id, manifest), &config.caps)?;
            return Ok((root, digest, spec));
        }
        let unasked = &config.defaults;
        let name = draft.image_name(named.map(|(_, spec)| spec)).unwrap_or(&unasked.image);
        self.obtain_image(name).await?;
        let (root, defaults, digest) = self.root(name)?;
        let base = Base::Image { name, defaults: &defaults, isolation: unasked.isolation };
        let spec = SandboxSpec::resolve(draft, named, base, &config.caps)?;
        Ok((root, digest, spec))
    }

    /// The spec with what only this server knows, checked against what its driver can do.
    async fn complete(
        &self,
        mut spec: SandboxSpec,
        draft: &SandboxDraft,
        recipe: Option<&TemplateSpec>,
        caller: &Caller,
    ) -> Result<SandboxSpec> {
        let inner = &self.inner;
        if let Some(egress) = &draft.egress {
            egress.check_no_execs("egress")?;
        }
        let told = draft.egress.is_some() || recipe.is_some_and(|spec| spec.egress.is_some());
        inner.default_egress(&mut spec.egress, told);
        let driver = inner.driver(spec.isolation)?;
        driver.check_limits(&spec.resources).map_err(|error| limit_error(&error))?;
        spec.accelerator = driver.accelerator();
        spec.volumes = inner.mounts(caller, &draft.volumes)?;
        if !spec.volumes.is_empty() {
            driver.check_volumes().map_err(|error| isolation_error(&error))?;
        }
        for image in draft.layers.values() {
            self.obtain_image(image).await?;
        }
        spec.layers =
            inner.change_layers(&spec, draft.layers.iter().map(|(name, image)| (name, Some(image))))?;
        inner.check_execution(&spec)?;
        check_declared(&spec)?;
        Ok(spec)
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

/// Which members of pools could become it.
fn mold(image: Option<&str>, snapshot: Option<&SnapshotRecord>, spec: &SandboxSpec) -> Result<Mold> {
    Ok(Mold {
        image: image.map(ToOwned::to_owned),
        isolation: spec.isolation,
        disk_bytes: spec.resources.disk_bytes,
        origin: origin(snapshot.map(|snapshot| &snapshot.id), spec)?,
        volumes: spec.volumes.len(),
    })
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
        self.plan_with(record, root, DiskSource::Empty)
    }

    /// The driver's plan for a record.
    fn plan_with(&self, record: &SandboxRecord, root: RootFs, disk: DiskSource) -> Result<Plan> {
        Ok(Plan {
            id: record.id.clone(),
            root,
            resources: record.spec.resources,
            hostname: record.name.clone().unwrap_or_else(|| record.id.to_string()),
            disk,
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
