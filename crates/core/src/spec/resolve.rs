//! How a draft becomes a spec. [`SandboxSpec::resolve`] takes each value from the first that says something: the caller's
//! [`SandboxDraft`], the template, the [`Base`] that the sandbox is built on (an image or a snapshot), the default. What needs
//! look-ups the engine fills in afterwards: volumes, the layers that were asked for, which files count as the image's.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::check;
use super::isolation::IsolationLevel;
use super::resources::{Caps, Resources};
use super::sandbox::{ImageDefaults, SandboxDraft, SandboxSpec};
use super::template::TemplateSpec;
use crate::error::{Code, Error, Result};
use crate::id::SnapshotId;
use crate::layer::Layer;
use crate::service::{Services, check_services, check_start};
use crate::snapshot::Manifest;

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

impl<'a> Base<'a> {
    /// What it says about how to run it.
    fn defaults(self) -> Cow<'a, ImageDefaults> {
        match self {
            Self::Image { defaults, .. } => Cow::Borrowed(defaults),
            Self::Snapshot(_, manifest) => Cow::Owned(ImageDefaults {
                env: manifest.env.clone(),
                user: Some(manifest.user.clone()),
                workdir: manifest.workdir.clone(),
            }),
        }
    }

    /// The limits where neither draft nor template says any.
    fn resources(self) -> Resources {
        match self {
            Self::Image { .. } => Resources::default(),
            Self::Snapshot(_, manifest) => manifest.resources,
        }
    }

    fn image(self) -> String {
        match self {
            Self::Image { name, .. } => name.to_owned(),
            Self::Snapshot(_, manifest) => manifest.image.clone(),
        }
    }

    fn snapshot(self) -> Option<SnapshotId> {
        match self {
            Self::Image { .. } => None,
            Self::Snapshot(id, _) => Some(id.clone()),
        }
    }

    /// The agent layers that it brings. Those that were asked for are filled in by the caller, which knows the images.
    fn layers(self) -> BTreeMap<String, Layer> {
        match self {
            Self::Image { .. } => BTreeMap::new(),
            Self::Snapshot(_, manifest) => manifest.layers.clone(),
        }
    }

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
        let (image, least) = (base.defaults(), base.resources());
        image.validate()?;
        let recipe = template.map(|(_, spec)| spec);
        let resources = draft.resources.over(recipe.map_or(least, |t| t.resources.over(least)));
        resources.validate(caps)?;
        let isolation = base.isolation(draft.isolation.or_else(|| recipe.and_then(|t| t.isolation)))?;
        base.check_disk(resources.disk_bytes)?;
        let env = environment(draft, recipe, &image)?;
        if let Some(files) = &draft.trace_files {
            files.validate("trace_files")?;
        }

        let pick = |own: &Option<String>, theirs: Option<&Option<String>>, last: &Option<String>| {
            own.clone().or_else(|| theirs.cloned().flatten()).or_else(|| last.clone())
        };
        Ok(Self {
            image: base.image(),
            template: template.map(|(name, _)| name.to_owned()),
            snapshot: base.snapshot(),
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
            egress: either(draft.egress.as_ref(), recipe.and_then(|t| t.egress.as_ref())),
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
            execution: either(draft.execution.as_ref(), recipe.and_then(|t| t.execution.as_ref())),
            profiles: either(draft.profiles.as_ref(), recipe.and_then(|t| t.profiles.as_ref())),
            // Filled in by the caller, which knows what the disk begins with.
            image_until_ms: None,
            ttl_ms: draft.ttl_ms.or_else(|| recipe.and_then(|t| t.ttl_ms)),
            layers: base.layers(),
            services: services(draft, recipe)?,
        })
    }
}

/// The whole environment: the caller's variables over the template's over the image's.
fn environment(
    draft: &SandboxDraft,
    recipe: Option<&TemplateSpec>,
    image: &ImageDefaults,
) -> Result<BTreeMap<String, String>> {
    let mut env = BTreeMap::from([("PATH".to_owned(), DEFAULT_PATH.to_owned())]);
    env.extend(image.env.clone());
    env.extend(recipe.map(|t| t.env.clone()).unwrap_or_default());
    env.extend(draft.env.clone());
    check::env("env", &env)?;
    Ok(env)
}

/// What the caller said, else the template, else the default.
fn either<T: Clone + Default>(own: Option<&T>, theirs: Option<&T>) -> T {
    own.or(theirs).cloned().unwrap_or_default()
}

/// The template's services, and those that were asked for.
fn services(draft: &SandboxDraft, recipe: Option<&TemplateSpec>) -> Result<Services> {
    let mut all = recipe.map(|t| t.services.clone()).unwrap_or_default();
    all.extend(draft.services.clone());
    check_services(&all)?;
    check_start(recipe.is_some_and(|t| t.start.is_some()), None, &all)?;
    Ok(all)
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
    use super::super::resources::ResourcesDraft;
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
}
