//! What a sandbox is made of: [`SandboxDraft`] as asked, [`SandboxSpec`] as it will be made.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::check;
use super::isolation::{Accelerator, IsolationLevel};
use super::resources::{Caps, Resources, ResourcesDraft};
use super::template::TemplateSpec;
use crate::build::{CommandText, Ready};
use crate::error::{Code, Error, Result};
use crate::execution::ExecutionPolicy;
use crate::id::{BuildId, SnapshotId};
use crate::idle::IdlePolicy;
use crate::layer::{Layer, check_layers};
use crate::limits::SECRETS_PRIVATE_MAX_COUNT;
use crate::node;
use crate::policy::EgressPolicy;
use crate::profile::Profiles;
use crate::secret::Secret;
use crate::service::{Restart, Services, check_services, check_start};
use crate::sharing::Visibility;
use crate::snapshot::{AutoCheckpoints, Durability, Manifest};
use crate::trace::{TraceFiles, TraceMode};
use crate::usage::Budget;
use crate::volume::{VolumeMount, VolumeMountDraft, check_mounts};

/// What an image says about how to run it. Hostile text: validated like a caller's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageDefaults {
    /// The image's environment.
    pub env: BTreeMap<String, String>,
    /// The image's user.
    pub user: Option<String>,
    /// The image's working directory.
    pub workdir: Option<String>,
}

/// The idempotency key of a request, so that the sandbox is made once however often it is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestKey {
    /// As its caller chose it.
    pub key: String,
    /// Of the whole request, to tell a retry from a key that is used twice.
    pub digest: String,
}

/// What a caller asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxDraft {
    /// The caller's key for this request: the sandbox that it made is the answer, as long as there is that sandbox.
    pub request: Option<RequestKey>,
    /// A name, unique among the living.
    pub name: Option<String>,
    /// The image; the template's, or the server's default, when absent.
    pub image: Option<String>,
    /// Template as `name` (newest version) or `name:version`.
    pub template: Option<String>,
    /// Snapshot to begin with: its id, or `name:tag`. Excludes an image.
    pub snapshot: Option<String>,
    /// Go on from the snapshot's memory, too: its processes.
    pub memory: bool,
    /// Checkpoints that it takes by itself.
    pub auto_checkpoints: Option<AutoCheckpoints>,
    /// How it outlives its node.
    pub durability: Option<Durability>,
    /// The isolation level; the template's, or the server's default, when absent.
    pub isolation: Option<IsolationLevel>,
    /// Labels that the node must have on which it is made.
    pub node_labels: BTreeMap<String, String>,
    /// Limits.
    pub resources: ResourcesDraft,
    /// Variables on top of the image's and the template's.
    pub env: BTreeMap<String, String>,
    /// Labels, to find it again.
    pub labels: BTreeMap<String, String>,
    /// Texts kept beside it for the key that made it; never interpreted.
    pub annotations: BTreeMap<String, String>,
    /// Default user of execs.
    pub user: Option<String>,
    /// Default working directory of execs; made when it is absent.
    pub workdir: Option<String>,
    /// Delete it this long after creation.
    pub ttl_ms: Option<u64>,
    /// Delete it after this long without a running exec or a request.
    pub idle_timeout_ms: Option<u64>,
    /// Secrets for this sandbox alone, by name.
    pub secrets: BTreeMap<String, Secret>,
    /// What it may reach; the template's, or the server's default, when absent.
    pub egress: Option<EgressPolicy>,
    /// Volumes to mount.
    pub volumes: Vec<VolumeMountDraft>,
    /// What it does while no client uses it.
    pub idle: IdlePolicy,
    /// Hard limits on what it may use.
    pub budget: Budget,
    /// Which keys see it, from its first moment on; the server's default when absent.
    pub visibility: Option<Visibility>,
    /// The build whose steps it runs.
    pub build: Option<BuildId>,
    /// How it is recorded; as the server says when absent.
    pub trace: Option<TraceMode>,
    /// Files of which is told when they change.
    pub trace_files: Option<TraceFiles>,
    /// Which programs may run; as the template says, or all, when absent.
    pub execution: Option<ExecutionPolicy>,
    /// Agent layers to mount: the image of each, by its name.
    pub layers: BTreeMap<String, String>,
    /// Its profiles; the template's, or none, when absent.
    pub profiles: Option<Profiles>,
    /// Services that it begins with, beside its template's; one of the same name stands in the place of the template's.
    pub services: Services,
}

/// What will be made, complete. Kept by the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxSpec {
    /// The image as it was named.
    pub image: String,
    /// The template version it came from, as `name:version`.
    pub template: Option<String>,
    /// The snapshot it began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// Checkpoints that it takes by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_checkpoints: Option<AutoCheckpoints>,
    /// How it outlives its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// The isolation level.
    pub isolation: IsolationLevel,
    /// What executes its machine, at a level that has machines; a weaker one never does. Known to the server only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<Accelerator>,
    /// Limits.
    pub resources: Resources,
    /// The whole environment of execs.
    pub env: BTreeMap<String, String>,
    /// Default user of execs.
    pub user: String,
    /// Default working directory of execs; `None` is the user's home.
    pub workdir: Option<String>,
    /// Delete it after this long without a running exec or a request, milliseconds.
    pub idle_timeout_ms: Option<u64>,
    /// What it may reach.
    #[serde(default)]
    pub egress: EgressPolicy,
    /// Volumes that are mounted in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeMount>,
    /// What it does while no client uses it.
    #[serde(default)]
    pub idle: IdlePolicy,
    /// Hard limits on what it may use.
    #[serde(default)]
    pub budget: Budget,
    /// What runs in it from its creation on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<CommandText>,
    /// When it is ready: its creation waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
    /// When what runs in it from its creation on is started again in the same boot; never when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// The build whose steps it runs: it goes with that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildId>,
    /// How it is recorded; as the server says when absent, and never less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceMode>,
    /// Files of which is told when they change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_files: Option<TraceFiles>,
    /// Which programs may run.
    #[serde(default, skip_serializing_if = "ExecutionPolicy::is_open")]
    pub execution: ExecutionPolicy,
    /// What its processes may do, each with less than the sandbox.
    #[serde(default, skip_serializing_if = "Profiles::is_empty")]
    pub profiles: Profiles,
    /// A file on its disk that was changed last before this moment was put there by its template: it counts as the
    /// image's. Known to the server only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_until_ms: Option<u64>,
    /// How long it was given to live, milliseconds, when it was made or when that was changed last; without an end when
    /// absent. Earlier versions kept the end only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Agent layers that are mounted in it, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub layers: BTreeMap<String, Layer>,
    /// Services that it begins with. What became of them is not said here.
    #[serde(default, skip_serializing_if = "Services::is_empty")]
    pub services: Services,
}

/// What a sandbox is built on.
#[derive(Debug, Clone, Copy)]
pub enum Base<'a> {
    /// An image.
    Image {
        /// As it was named, by the draft, its template, or the server's default.
        name: &'a str,
        /// What it says about how to run it.
        defaults: &'a ImageDefaults,
        /// The isolation level where neither draft nor template says one.
        isolation: IsolationLevel,
    },
    /// A snapshot.
    Snapshot(&'a SnapshotId, &'a Manifest),
}

impl Base<'_> {
    fn isolation(self, asked: Option<IsolationLevel>) -> Result<IsolationLevel> {
        match self {
            Self::Image { isolation, .. } => Ok(asked.unwrap_or(isolation)),
            Self::Snapshot(_, manifest) if asked.is_none_or(|asked| asked == manifest.isolation) => {
                Ok(manifest.isolation)
            }
            Self::Snapshot(_, manifest) => Err(Error::new(
                Code::SnapshotIncompatible,
                format!("the snapshot was taken at the isolation level '{}'", manifest.isolation),
            )
            .hint("leave the isolation level out, or take a snapshot at the one you want")),
        }
    }

    fn check_disk(self, bytes: u64) -> Result<()> {
        match self {
            Self::Snapshot(_, manifest) if bytes < manifest.resources.disk_bytes => Err(Error::invalid(
                "resources.disk_bytes",
                format_args!(
                    "the snapshot's disk has {} bytes and cannot shrink",
                    manifest.resources.disk_bytes
                ),
            )
            .hint("leave the size out to get the snapshot's")),
            Self::Snapshot(..) | Self::Image { .. } => Ok(()),
        }
    }
}

/// Search path of a sandbox whose image does not set one.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Checks names and sizes of secrets that are given with a sandbox. No error repeats a value.
pub(super) fn secrets(values: &BTreeMap<String, Secret>) -> Result<()> {
    if values.len() > SECRETS_PRIVATE_MAX_COUNT {
        return Err(Error::invalid("secrets", format_args!("more than {SECRETS_PRIVATE_MAX_COUNT}")));
    }
    for (name, value) in values {
        crate::policy::secret_name("secrets", name)?;
        crate::policy::secret_value(&format!("secrets.{name}"), value)?;
    }
    Ok(())
}

impl SandboxDraft {
    /// Checks the form of everything that does not need a look-up, so that bad input is refused
    /// before anything is touched.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] or [`Code::PathInvalid`] naming the field.
    pub fn validate(&self) -> Result<()> {
        if let Some(name) = &self.name {
            check::name("name", name)?;
        }
        if let Some(image) = &self.image {
            check::image_reference("image", image)?;
            if self.snapshot.is_some() {
                return Err(Error::invalid(
                    "image",
                    "a snapshot brings its own image: leave one of them out",
                ));
            }
        }
        self.auto_checkpoints.map_or(Ok(()), AutoCheckpoints::validate)?;
        self.durability.map_or(Ok(()), Durability::validate)?;
        check::env("env", &self.env)?;
        check::labels("labels", &self.labels)?;
        node::validate_labels("node_labels", &self.node_labels)?;
        check::annotations("annotations", &self.annotations)?;
        if let Some(user) = &self.user {
            check::user("user", user)?;
        }
        if let Some(workdir) = &self.workdir {
            check::path("workdir", workdir)?;
        }
        if let Some(ms) = self.ttl_ms {
            check::duration("ttl_ms", ms)?;
        }
        if let Some(ms) = self.idle_timeout_ms {
            check::duration("idle_timeout_ms", ms)?;
        }
        secrets(&self.secrets)?;
        if let Some(egress) = &self.egress {
            egress.validate("egress")?;
        }
        if let Some(execution) = &self.execution {
            execution.validate("execution")?;
        }
        if let Some(profiles) = &self.profiles {
            profiles.validate("profiles")?;
        }
        check_services(&self.services)?;
        if self.memory && !self.services.is_empty() {
            let why = "a sandbox that goes on from memory has its processes already";
            return Err(
                Error::invalid("services", why).hint("add them once it runs, with 'atoll service add'")
            );
        }
        check_mounts(&self.volumes)?;
        check_layers(self.layers.iter().map(|(name, image)| (name, Some(image))))?;
        self.idle.validate()?;
        self.budget.validate()?;
        Ok(())
    }

    /// The image this draft means, given its template; none when it leaves that to the server.
    #[must_use]
    pub fn image_name<'a>(&'a self, template: Option<&'a TemplateSpec>) -> Option<&'a str> {
        self.image.as_deref().or_else(|| template.map(|t| t.image.as_str()))
    }
}

impl SandboxSpec {
    /// Fills every hole of a draft: what the caller said, else the template, else the image, else the default.
    /// A snapshot stands in the place of the image.
    ///
    /// `template` comes with its `name:version`.
    ///
    /// # Errors
    /// As [`SandboxDraft::validate`]; [`Code::ImageInvalid`] when the image's own configuration is unusable;
    /// [`Code::SnapshotIncompatible`] for another isolation level than the snapshot's.
    pub fn resolve(
        draft: &SandboxDraft,
        template: Option<(&str, &TemplateSpec)>,
        base: Base<'_>,
        caps: &Caps,
    ) -> Result<Self> {
        draft.validate()?;
        let of_snapshot;
        let (image, least) = match base {
            Base::Image { defaults, .. } => (defaults, Resources::default()),
            Base::Snapshot(_, manifest) => {
                of_snapshot = ImageDefaults {
                    env: manifest.env.clone(),
                    user: Some(manifest.user.clone()),
                    workdir: manifest.workdir.clone(),
                };
                (&of_snapshot, manifest.resources)
            }
        };
        image.validate()?;
        let recipe = template.map(|(_, spec)| spec);
        let resources = draft.resources.over(recipe.map_or(least, |t| t.resources.over(least)));
        resources.validate(caps)?;
        let isolation = base.isolation(draft.isolation.or_else(|| recipe.and_then(|t| t.isolation)))?;
        base.check_disk(resources.disk_bytes)?;

        let mut env = BTreeMap::from([("PATH".to_owned(), DEFAULT_PATH.to_owned())]);
        env.extend(image.env.clone());
        env.extend(recipe.map(|t| t.env.clone()).unwrap_or_default());
        env.extend(draft.env.clone());
        check::env("env", &env)?;
        if let Some(files) = &draft.trace_files {
            files.validate("trace_files")?;
        }

        let pick = |own: &Option<String>, theirs: Option<&Option<String>>, last: &Option<String>| {
            own.clone().or_else(|| theirs.cloned().flatten()).or_else(|| last.clone())
        };
        Ok(Self {
            image: match base {
                Base::Image { name, .. } => name.to_owned(),
                Base::Snapshot(_, manifest) => manifest.image.clone(),
            },
            template: template.map(|(name, _)| name.to_owned()),
            snapshot: match base {
                Base::Image { .. } => None,
                Base::Snapshot(id, _) => Some(id.clone()),
            },
            auto_checkpoints: draft.auto_checkpoints,
            durability: draft.durability,
            isolation,
            accelerator: None,
            resources,
            env,
            user: pick(&draft.user, recipe.map(|t| &t.user), &image.user)
                .unwrap_or_else(|| "root".to_owned()),
            workdir: pick(&draft.workdir, recipe.map(|t| &t.workdir), &image.workdir),
            idle_timeout_ms: draft.idle_timeout_ms.or_else(|| recipe.and_then(|t| t.idle_timeout_ms)),
            egress: draft
                .egress
                .clone()
                .or_else(|| recipe.and_then(|t| t.egress.clone()))
                .unwrap_or_default(),
            // Filled in by the caller, which knows the volumes.
            volumes: Vec::new(),
            idle: draft.idle,
            budget: draft.budget,
            start: recipe.and_then(|t| t.start.clone()),
            ready: recipe.and_then(|t| t.ready.clone()),
            restart: recipe.and_then(|t| t.restart),
            build: draft.build.clone(),
            trace: draft.trace,
            trace_files: draft.trace_files.clone(),
            execution: draft
                .execution
                .clone()
                .or_else(|| recipe.and_then(|t| t.execution.clone()))
                .unwrap_or_default(),
            profiles: draft
                .profiles
                .clone()
                .or_else(|| recipe.and_then(|t| t.profiles.clone()))
                .unwrap_or_default(),
            // Filled in by the caller, which knows what the disk begins with.
            image_until_ms: None,
            ttl_ms: draft.ttl_ms.or_else(|| recipe.and_then(|t| t.ttl_ms)),
            // The layers that were asked for are filled in by the caller, which knows the images.
            layers: match base {
                Base::Image { .. } => BTreeMap::new(),
                Base::Snapshot(_, manifest) => manifest.layers.clone(),
            },
            services: services(draft, recipe)?,
        })
    }
}

/// The template's services, and those that were asked for.
fn services(draft: &SandboxDraft, recipe: Option<&TemplateSpec>) -> Result<Services> {
    let mut all = recipe.map(|t| t.services.clone()).unwrap_or_default();
    all.extend(draft.services.clone());
    check_services(&all)?;
    check_start(recipe.is_some_and(|t| t.start.is_some()), None, &all)?;
    Ok(all)
}

impl SandboxSpec {
    /// What every command finds in its environment: its own variables over those of its injection rules.
    #[must_use]
    pub fn exec_env(&self) -> BTreeMap<String, String> {
        let mut env = crate::policy::inject::env(&self.egress);
        env.extend(self.env.clone());
        env
    }
}

impl ImageDefaults {
    fn validate(&self) -> Result<()> {
        let checked = check::env("env", &self.env)
            .and_then(|()| self.user.as_deref().map_or(Ok(()), |user| check::user("user", user)))
            .and_then(|()| self.workdir.as_deref().map_or(Ok(()), |dir| check::path("workdir", dir)));
        checked.map_err(|error| Error::new(Code::ImageInvalid, format!("the image's configuration: {error}")))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::limits::{MEMORY_MAX_BYTES, MEMORY_MIN_BYTES};

    fn image<'a>(name: &'a str, defaults: &'a ImageDefaults) -> Base<'a> {
        Base::Image { name, defaults, isolation: IsolationLevel::Container }
    }

    pub(crate) fn spec() -> SandboxSpec {
        let defaults = ImageDefaults::default();
        let draft = SandboxDraft::default();
        SandboxSpec::resolve(&draft, None, image("host", &defaults), &Caps::default()).unwrap()
    }

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn the_isolation_level_is_the_draft_s_then_the_template_s_then_the_server_s() {
        use IsolationLevel::{Container, Microvm};
        let level = |draft, template| {
            let draft = SandboxDraft { isolation: draft, ..SandboxDraft::default() };
            let template = TemplateSpec { isolation: template, ..TemplateSpec::new("img") };
            let base = Base::Image { name: "img", defaults: &ImageDefaults::default(), isolation: Microvm };
            SandboxSpec::resolve(&draft, Some(("t:1", &template)), base, &Caps::default()).unwrap().isolation
        };
        assert_eq!([level(None, None), level(None, Some(Container))], [Microvm, Container]);
        assert_eq!(level(Some(Microvm), Some(Container)), Microvm);
    }

    #[test]
    fn an_empty_draft_is_what_the_server_makes_it() {
        let spec = spec();
        assert_eq!((spec.image.as_str(), spec.user.as_str()), ("host", "root"));
        assert_eq!(spec.resources, Resources::default());
        assert!(spec.env.contains_key("PATH"));
    }

    #[test]
    fn caller_over_template_over_image() {
        let defaults = ImageDefaults {
            env: map(&[("A", "image"), ("B", "image"), ("C", "image")]),
            user: Some("image".into()),
            workdir: Some("/image".into()),
        };
        let template = TemplateSpec {
            env: map(&[("B", "template"), ("C", "template")]),
            user: Some("template".into()),
            resources: ResourcesDraft { pids: Some(77), ..ResourcesDraft::default() },
            ..TemplateSpec::new("img")
        };
        let draft = SandboxDraft { env: map(&[("C", "caller")]), ..SandboxDraft::default() };
        let spec =
            SandboxSpec::resolve(&draft, Some(("t:1", &template)), image("img", &defaults), &Caps::default())
                .unwrap();
        assert_eq!([&spec.env["A"], &spec.env["B"], &spec.env["C"]], ["image", "template", "caller"]);
        assert_eq!((spec.user.as_str(), spec.workdir.as_deref()), ("template", Some("/image")));
        assert_eq!((spec.resources.pids, spec.image.as_str()), (77, "img"));
        assert_eq!(spec.template.as_deref(), Some("t:1"));
    }

    #[test]
    fn limits_at_their_edges() {
        let try_memory = |bytes| {
            let draft = SandboxDraft {
                resources: ResourcesDraft { memory_bytes: Some(bytes), ..ResourcesDraft::default() },
                ..SandboxDraft::default()
            };
            SandboxSpec::resolve(&draft, None, image("host", &ImageDefaults::default()), &Caps::default())
        };
        assert!(try_memory(MEMORY_MIN_BYTES).is_ok());
        assert!(try_memory(MEMORY_MIN_BYTES - 1).unwrap_err().message.contains("resources.memory_bytes"));
        assert!(try_memory(MEMORY_MAX_BYTES).is_ok());
        assert!(try_memory(MEMORY_MAX_BYTES + 1).is_err());
    }

    #[test]
    fn a_hostile_image_configuration_is_the_images_fault() {
        let defaults = ImageDefaults { workdir: Some("relative".into()), ..ImageDefaults::default() };
        let base = image("img", &defaults);
        let error = SandboxSpec::resolve(&SandboxDraft::default(), None, base, &Caps::default()).unwrap_err();
        assert_eq!(error.code, Code::ImageInvalid);
    }

    #[test]
    fn an_id_is_no_name() {
        let id = crate::id::SandboxId::from_parts(1, 1);
        let draft = SandboxDraft { name: Some(id.to_string()), ..SandboxDraft::default() };
        assert!(draft.validate().is_err());
    }

    #[test]
    fn what_goes_on_from_memory_begins_no_services() {
        let service = crate::service::ServiceSpec::new(CommandText::Shell("x".into()));
        let draft = SandboxDraft { services: [("web".into(), service)].into(), ..SandboxDraft::default() };
        assert_eq!(draft.validate(), Ok(()));
        let error = SandboxDraft { memory: true, ..draft }.validate().unwrap_err();
        assert!(error.code == Code::InvalidArgument && error.message.contains("services"), "{error}");
    }
}
