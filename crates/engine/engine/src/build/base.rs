//! What the stages of a build begin with and copy from: images, pulled if they are not here; templates; other stages.
//!
//! A template stands where an image can: `FROM template://NAME`, `template://NAME:TAG`. The build goes on from the disk
//! of the template's sandboxes, and the new template has what the old one says of them where the build says nothing:
//! environment, user, working directory, start command. So does a snapshot: `FROM snapshot://ID`, `snapshot://NAME:TAG`.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_build::graph::{self, Graph, Origin};
use atoll_build::key::Key;
use atoll_build::place::Place;
use atoll_build::plan::State;
use atoll_core::build::{SNAPSHOT_SCHEME, TEMPLATE_SCHEME};
use atoll_core::sharing::Needs;
use atoll_core::snapshot::Manifest;
use atoll_core::spec::{DEFAULT_PATH, ImageDefaults, TemplateSpec};
use atoll_core::{Code, Error, Result};
use atoll_image::{Credentials, NoProgress, PullOptions};
use tokio::runtime::Handle;

use super::cache::Kept;
use super::live::ImageLogin;
use super::run::Run;

/// A file system that a stage has or begins with.
#[derive(Debug, Clone)]
pub(super) struct FileSystem {
    /// The image, as it is named.
    pub(super) image: String,
    /// What was made on top of it.
    pub(super) kept: Option<Kept>,
}

/// What a stage begins with or copies from that is no stage.
#[derive(Debug, Clone)]
pub(super) struct Base {
    /// What it is exactly, for the keys of the cache.
    identity: String,
    pub(super) files: FileSystem,
    defaults: ImageDefaults,
    entrypoint: Vec<String>,
    cmd: Vec<String>,
    /// The recipe, of a template.
    pub(super) recipe: Option<Box<TemplateSpec>>,
}

impl Base {
    /// The key that the keys of its steps are made of.
    fn key(&self, isolation: &str) -> Key {
        Key::base(&self.identity, isolation)
    }

    /// What holds before the first step.
    pub(super) fn state(&self, isolation: &str) -> State {
        let mut state = State::new(self.key(isolation));
        state.env = BTreeMap::from([("PATH".to_owned(), DEFAULT_PATH.to_owned())]);
        state.env.extend(self.defaults.env.clone());
        state.user.clone_from(&self.defaults.user);
        state.workdir.clone_from(&self.defaults.workdir);
        state.entrypoint.clone_from(&self.entrypoint);
        state.cmd.clone_from(&self.cmd);
        state
    }
}

/// The file systems that steps can take files from.
#[derive(Debug)]
pub(super) struct Sources<'p> {
    pub(super) bases: &'p BTreeMap<String, Base>,
    /// Of the stages that are done.
    pub(super) stages: BTreeMap<usize, FileSystem>,
}

impl Sources<'_> {
    pub(super) fn of(&self, origin: &Origin) -> Result<FileSystem> {
        let found = match origin {
            Origin::Image(name) => self.bases.get(name).map(|base| base.files.clone()),
            Origin::Stage(stage) => self.stages.get(stage).cloned(),
        };
        found.ok_or_else(|| Error::new(Code::Internal, "a stage was not built"))
    }
}

impl Run<'_> {
    /// Every base that the needed stages begin with or copy from; images are pulled if they are not here.
    pub(super) async fn bases(&self, graph: &Graph) -> Result<BTreeMap<String, Base>> {
        let mut bases = BTreeMap::new();
        for index in graph.needed.iter().copied() {
            let stage = &self.recipe.stages[index];
            let mut wanted = vec![(stage.place, graph.bases[index].clone())];
            for instruction in &stage.instructions {
                for from in instruction.action.takes_from() {
                    let place = instruction.place;
                    wanted.push((place, graph::source(self.recipe, index, place, from)?));
                }
            }
            for (place, origin) in wanted {
                if let Origin::Image(name) = origin
                    && !bases.contains_key(&name)
                {
                    let base = if let Some(template) = name.strip_prefix(TEMPLATE_SCHEME) {
                        self.template_base(place, template).await?
                    } else if let Some(snapshot) = name.strip_prefix(SNAPSHOT_SCHEME) {
                        self.snapshot_base(place, snapshot).await?
                    } else {
                        self.image(place, &name).await?
                    };
                    bases.insert(name, base);
                }
            }
        }
        Ok(bases)
    }

    async fn template_base(&self, place: Place, name: &str) -> Result<Base> {
        let at = |error: Error| {
            let message = format!("{place}: FROM {TEMPLATE_SCHEME}…: {}", error.message);
            Error { message, ..error }
        };
        let found = self.engine.find_template(name).await.map_err(at)?;
        let recipe = found.spec;
        let mut base = match &recipe.snapshot {
            None => self.image(place, &recipe.image).await?,
            Some(id) => {
                let kept = self.engine.keep_base(id).await.map_err(at)?;
                Base {
                    identity: format!("snapshot {id}"),
                    files: FileSystem { image: kept.image.clone(), kept: Some(kept) },
                    defaults: ImageDefaults::default(),
                    entrypoint: Vec::new(),
                    cmd: Vec::new(),
                    recipe: None,
                }
            }
        };
        base.defaults.env.extend(recipe.env.clone());
        base.defaults.user = recipe.user.clone().or(base.defaults.user);
        base.defaults.workdir = recipe.workdir.clone().or(base.defaults.workdir);
        Ok(Base { recipe: Some(Box::new(recipe)), ..base })
    }

    /// A snapshot: what is on its disk, and how its sandbox was. Every key that uses the template gets what is in it:
    /// so the caller must be one that may change the snapshot.
    async fn snapshot_base(&self, place: Place, name: &str) -> Result<Base> {
        let at = |error: Error| {
            let message = format!("{place}: FROM {SNAPSHOT_SCHEME}…: {}", error.message);
            Error { message, ..error }
        };
        let found = self.engine.usable_snapshot(name, Needs::MANAGE, self.caller).await.map_err(at)?;
        let kept = self.engine.keep_base(&found.id).await.map_err(at)?;
        let Manifest { env, user, workdir, .. } = found.manifest;
        Ok(Base {
            identity: format!("snapshot {}", found.id),
            files: FileSystem { image: kept.image.clone(), kept: Some(kept) },
            defaults: ImageDefaults { env, user: Some(user), workdir },
            entrypoint: Vec::new(),
            cmd: Vec::new(),
            recipe: None,
        })
    }

    async fn image(&self, place: Place, name: &str) -> Result<Base> {
        let files = FileSystem { image: name.to_owned(), kept: None };
        if name == "host" {
            return Ok(Base {
                identity: "host".to_owned(),
                files,
                defaults: ImageDefaults::default(),
                entrypoint: Vec::new(),
                cmd: Vec::new(),
                recipe: None,
            });
        }
        let images = self.engine.images();
        if let Err(error) = self.engine.obtain_image(name).await {
            tracing::warn!(%error, "an image comes from its registry instead");
        }
        let image = match images.resolve(name).map_err(|error| error.to_core()) {
            Ok(image) => image,
            Err(error) if error.code == Code::ImageNotFound => {
                self.note(format!("pulling {name}")).await?;
                let started = self.clock().instant();
                let image = self.pull(name).await.map_err(|error| placed(place, name, error))?;
                self.note(format!("pulled {name} in {:.1} s", self.clock().since(started).as_secs_f32()))
                    .await?;
                image
            }
            Err(error) => return Err(placed(place, name, error)),
        };
        Ok(Base {
            identity: image.digest.to_string(),
            files,
            defaults: image.defaults.clone(),
            entrypoint: image.entrypoint.clone(),
            cmd: image.cmd.clone(),
            recipe: None,
        })
    }

    /// Pulls with what the build was told of the registry, or with its stored credentials. On a thread of its own, which a cancelled build ends.
    async fn pull(&self, name: &str) -> Result<Arc<atoll_image::Image>> {
        let host = atoll_image::registry_of(name).map_err(|error| error.to_core())?;
        let stored = self.engine.registry_credentials(&host).await?;
        // Only the operator says which addresses may be reached: the caller of a build does not.
        let known = stored.is_some();
        let told = self.live.login.as_ref().filter(|(registry, _)| *registry == host);
        let credentials = match told {
            Some((_, login)) => {
                let ImageLogin { username, password, .. } = login.clone();
                Some(Credentials::Basic { username, password })
            }
            None => stored,
        };
        let (images, name) = (self.engine.images().clone(), name.to_owned());
        let stop = self.live.cancel.child_token();
        let _stops_with_this = stop.clone().drop_guard();
        let runtime = Handle::current();
        let pulling = tokio::task::spawn_blocking(move || {
            let options = PullOptions { known, credentials, ..PullOptions::default() };
            runtime.block_on(stop.run_until_cancelled(images.pull(&name, &options, &NoProgress)))
        });
        match pulling.await {
            Ok(Some(pulled)) => pulled.map_err(|error| error.to_core()),
            Ok(None) => Err(Error::new(Code::BuildCancelled, "the build was cancelled")),
            Err(error) => {
                tracing::error!(%error, "a pull panicked");
                Err(Error::new(Code::Internal, "the image could not be pulled"))
            }
        }
    }
}

fn placed(place: Place, name: &str, error: Error) -> Error {
    let name = atoll_core::error::shorten(name);
    let message = format!("{place}: the image '{name}': {}", error.message);
    let error = Error { message, ..error };
    match error.hint {
        Some(_) => error,
        None => error.hint(
            "FROM takes an image of a registry, one that was loaded, 'host', a template as template://NAME, or a snapshot as snapshot://NAME",
        ),
    }
}
