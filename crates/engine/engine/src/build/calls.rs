//! What callers can do with builds.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_build::mounts::is_secret_id;
use atoll_build::recipe::Recipe;
use atoll_core::build::{BuildSpec, BuildState};
use atoll_core::error::shorten;
use atoll_core::id::BuildId;
use atoll_core::limits::{
    BUILD_SECRET_MAX_BYTES, BUILD_SECRETS_MAX_COUNT, BUILDS_KEPT_MAX_COUNT, BUILDS_OPEN_MAX_COUNT,
};
use atoll_core::{Code, Error, Result};
use atoll_store::{BuildRecord, Page, Whereabouts};
use tokio::io::AsyncRead;
use tokio_util::sync::CancellationToken;

use super::context::{self, Context};
use super::drive::drive;
use super::indexes::Share;
use super::journal::BuildLog;
use super::live::{BuildSecrets, Given, ImageLogin, Live};
use crate::authorize::Caller;
use crate::boxed;
use crate::clock::random;
use crate::engine::Engine;
use crate::errors::store_error;
use crate::query;
use crate::rooms::Who;

/// A build, for callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildView {
    /// The record.
    pub record: BuildRecord,
    /// Whether it copies files of a context, which has to be sent.
    pub needs_context: bool,
}

/// Reads what a build is asked to do.
pub(super) fn recipe(spec: &BuildSpec) -> Result<Recipe> {
    match (&spec.dockerfile, &spec.steps) {
        (Some(text), _) => atoll_build::parse(text),
        (None, Some(steps)) => atoll_build::from_steps(steps),
        (None, None) => Err(Error::invalid("dockerfile", "give either a Dockerfile or steps")),
    }
}

fn needs_context(recipe: &Recipe) -> bool {
    let mut instructions = recipe.stages.iter().flat_map(|stage| &stage.instructions);
    instructions.any(|instruction| instruction.action.takes_of_context())
}

/// Secrets are few and small, like those that a build's commands read from files.
fn check_secrets(secrets: &BuildSecrets) -> Result<()> {
    if secrets.len() > BUILD_SECRETS_MAX_COUNT {
        return Err(Error::invalid("secrets", format!("more than {BUILD_SECRETS_MAX_COUNT}")));
    }
    for (id, value) in secrets {
        let field = format!("secrets.{}", shorten(id));
        if !is_secret_id(id) {
            return Err(Error::invalid(
                &field,
                "a name has letters, digits, '-', '_' and '.', and does not begin with '.'",
            ));
        }
        if value.reveal().len() > BUILD_SECRET_MAX_BYTES {
            return Err(Error::invalid(&field, format!("longer than {} KiB", BUILD_SECRET_MAX_BYTES >> 10)));
        }
        // A variable cannot hold it, and a file that does is none that a person wrote.
        if value.reveal().contains('\0') {
            return Err(Error::invalid(&field, "it contains NUL"));
        }
    }
    Ok(())
}

/// A login with the registry that it is for.
fn with_host(login: ImageLogin) -> Result<(String, ImageLogin)> {
    crate::registries::check_login(&login.username, &login.password)?;
    let host = atoll_image::registry_of(&login.image).map_err(|error| error.to_core())?;
    Ok((host, login))
}

impl Engine {
    /// Begins a build. One that copies files waits for its context ([`Self::put_build_context`]).
    ///
    /// # Errors
    /// What is wrong with the request or its Dockerfile, with the place; [`Code::LimitExceeded`].
    #[boxed]
    pub async fn create_build(&self, spec: BuildSpec, caller: &Caller) -> Result<BuildView> {
        self.create_build_with(spec, None, BuildSecrets::new(), caller).await
    }

    /// The same, with an id that was chosen before, and that no build has: a caller that asks again looks for it first.
    ///
    /// # Errors
    /// As [`Self::create_build`].
    #[boxed]
    pub async fn create_build_as(&self, id: BuildId, spec: BuildSpec, caller: &Caller) -> Result<BuildView> {
        self.begin_build(Some(id), spec, None, BuildSecrets::new(), caller).await
    }

    /// As [`Self::create_build`], known to the registry of one image, and with secrets that its commands may mount.
    ///
    /// # Errors
    /// As [`Self::create_build`]; [`Code::InvalidArgument`] for a user name, password or secret that cannot be.
    #[boxed]
    pub async fn create_build_with(
        &self,
        spec: BuildSpec,
        login: Option<ImageLogin>,
        secrets: BuildSecrets,
        caller: &Caller,
    ) -> Result<BuildView> {
        self.begin_build(None, spec, login, secrets, caller).await
    }

    async fn begin_build(
        &self,
        id: Option<BuildId>,
        spec: BuildSpec,
        login: Option<ImageLogin>,
        secrets: BuildSecrets,
        caller: &Caller,
    ) -> Result<BuildView> {
        if self.inner.shutdown.is_cancelled() {
            return Err(Error::new(Code::ShuttingDown, "the server is shutting down"));
        }
        spec.validate()?;
        self.check_template_is_own(&spec.name, caller).await?;
        self.check_room_for_tags(&spec.name, &spec.tags).await?;
        if spec.memory {
            let level = spec.isolation.unwrap_or(self.inner.config.defaults.isolation);
            let starts = spec.start.is_some() && spec.ready.is_some();
            self.check_can_keep_memory(level, starts, spec.template_egress.as_ref())?;
        }
        let recipe = recipe(&spec)?;
        check_secrets(&secrets)?;
        let given = Given { login: login.map(with_host).transpose()?, secrets };
        let needs_context = needs_context(&recipe);
        let created_ms = self.inner.now_ms();
        let record = BuildRecord {
            id: id.map_or_else(|| Ok(BuildId::from_parts(created_ms, random()?)), Ok::<_, Error>)?,
            state: if needs_context { BuildState::Waiting } else { BuildState::Queued },
            spec,
            template_version: None,
            failure: None,
            created_ms,
            started_ms: None,
            ended_ms: None,
            created_by: caller.key.clone(),
        };
        let owner = Who::of(caller);
        let place = self.inner.builds.open.take(&owner).ok_or_else(too_many)?;
        let live = Live::new(&self.inner, owner, record.clone(), needs_context, given);
        self.inner.builds.live().insert(record.id.clone(), Arc::clone(&live));
        if let Err(error) = self.inner.store.insert_build(&record).await {
            self.inner.builds.live().remove(&record.id);
            return Err(store_error(error));
        }
        atoll_failpoint::fail_point!("engine.build.journalled");
        self.inner.tracker.spawn(drive(self.clone(), live, recipe, caller.clone(), place));
        self.prune_builds().await;
        Ok(BuildView { record, needs_context })
    }

    /// Sends the context of a build: a tar stream. The build begins when it is here.
    ///
    /// # Errors
    /// [`Code::BuildNotFound`]; [`Code::InvalidState`] when it does not wait for one, or ends before it is here;
    /// [`Code::BuildContextInvalid`], [`Code::TooLarge`], [`Code::HostDiskFull`], and [`Code::LimitExceeded`] when the contexts
    /// of other builds leave no memory for its index: then it still waits.
    pub async fn put_build_context(
        &self,
        id: &BuildId,
        stream: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<BuildView> {
        let live = self.inner.builds.live().get(id).cloned();
        let Some(live) = live.filter(|live| live.begin_upload()) else {
            // Whether there is such a build at all comes first.
            self.build(id).await?;
            return Err(Error::new(Code::InvalidState, "the build does not wait for a context"));
        };
        let dir = self.inner.build_dir(id).join("context");
        let end = UploadEnd { live: Arc::clone(&live), done: false };
        let share = self.inner.builds.indexes.begin(live.owner.clone());
        let outcome = take_context(&live, &dir, stream, share).await;
        end.end(&outcome);
        outcome?;
        Ok(BuildView { record: live.record(), needs_context: true })
    }

    /// A build as it is now.
    ///
    /// # Errors
    /// [`Code::BuildNotFound`].
    #[boxed]
    pub async fn build(&self, id: &BuildId) -> Result<BuildView> {
        let record = self.build_record(id).await?;
        let needs_context = recipe(&record.spec).is_ok_and(|recipe| needs_context(&recipe));
        Ok(BuildView { record, needs_context })
    }

    pub(crate) async fn build_record(&self, id: &BuildId) -> Result<BuildRecord> {
        let live = self.inner.builds.live().get(id).map(|live| live.record());
        if let Some(record) = live {
            return Ok(record);
        }
        let missing = || BuildId::not_found(id.as_str());
        let stored = self.inner.store.build(id).await.map_err(store_error)?.ok_or_else(missing)?;
        self.inner.must_be_here(Whereabouts::Build(id.clone()), missing()).await?;
        Ok(stored)
    }

    /// A page of the builds that a caller may know of, newest first.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for the cursor or the limit.
    #[boxed]
    pub async fn builds(
        &self,
        states: &[BuildState],
        cursor: Option<&str>,
        limit: Option<u32>,
        caller: &Caller,
    ) -> Result<Page<BuildRecord>> {
        let (after, limit) = (query::cursor(cursor)?, query::limit(limit)?);
        let own = caller.key().filter(|_| !self.is_shared_or_own(caller, None));
        self.inner.store.list_builds(states, own, after.as_ref(), limit).await.map_err(store_error)
    }

    /// The log of a build from an offset on.
    ///
    /// # Errors
    /// [`Code::BuildNotFound`].
    #[boxed]
    pub async fn build_log(&self, id: &BuildId, offset: u64) -> Result<BuildLog> {
        let dir = self.inner.build_log_dir(id);
        let live = self.inner.builds.live().get(id).cloned();
        if let Some(live) = live {
            return Ok(BuildLog::live(dir, offset, live.watch(), &live.journal));
        }
        let record = self.build_record(id).await?;
        Ok(BuildLog::ended(dir, offset, record))
    }

    /// Ends a build; returns when nothing of it is left. One that has ended is left as it is.
    ///
    /// # Errors
    /// [`Code::BuildNotFound`].
    #[boxed]
    pub async fn cancel_build(&self, id: &BuildId) -> Result<BuildView> {
        let live = self.inner.builds.live().get(id).cloned();
        if let Some(live) = live {
            live.cancel.cancel();
            let mut record = live.watch();
            // An error means that its task has ended: the store knows how.
            drop(record.wait_for(|record| record.state.is_final()).await);
        }
        self.build(id).await
    }

    /// Forgets the oldest builds. A failure is tried again with the next build.
    async fn prune_builds(&self) {
        match self.inner.store.prune_builds(BUILDS_KEPT_MAX_COUNT as u64).await {
            Ok(gone) => {
                for id in gone {
                    drop(tokio::fs::remove_dir_all(self.inner.build_dir(&id)).await);
                }
            }
            Err(error) => tracing::warn!(%error, "old builds could not be forgotten"),
        }
    }
}

fn too_many() -> Error {
    let message = format!(
        "too many builds have not ended yet: of {BUILDS_OPEN_MAX_COUNT}, a project or a key leaves as many to others as it has"
    );
    Error::new(Code::LimitExceeded, message).hint("wait for some to end, or cancel them")
}

/// Receives the context of a build into `dir`, until the build ends. Nothing is left there of one that is refused; of one whose
/// build ends meanwhile the build's task removes what there is, which waits for this.
async fn take_context(
    live: &Live,
    dir: &Path,
    stream: impl AsyncRead + Unpin,
    share: Share,
) -> Result<Arc<Context>> {
    let received = tokio::select! {
        biased;
        () = live.cancel.cancelled() => Err(context::ended()),
        received = context::receive(dir, stream) => received,
    };
    let unpacked = match received {
        Ok(archive) => unpack(dir.to_owned(), archive, share, live.cancel.clone()).await,
        Err(error) => Err(error),
    };
    if unpacked.is_err() {
        drop(tokio::fs::remove_dir_all(dir).await);
    }
    unpacked
}

async fn unpack(dir: PathBuf, archive: File, share: Share, stop: CancellationToken) -> Result<Arc<Context>> {
    let unpacked = tokio::task::spawn_blocking(move || {
        context::unpack(&dir, context::buffered(archive), share, &stop).map(Arc::new)
    });
    unpacked.await.unwrap_or_else(|error| {
        tracing::error!(%error, "unpacking a context panicked");
        Err(Error::new(Code::Internal, "the context could not be unpacked"))
    })
}

/// An upload whose caller goes away leaves the place free for another one.
struct UploadEnd {
    live: Arc<Live>,
    done: bool,
}

impl UploadEnd {
    fn end(mut self, outcome: &Result<Arc<Context>>) {
        self.done = true;
        self.live.end_upload(outcome);
    }
}

impl Drop for UploadEnd {
    fn drop(&mut self) {
        if !self.done {
            self.live.end_upload(&Err(Error::new(Code::InvalidArgument, "the upload broke off")));
        }
    }
}
