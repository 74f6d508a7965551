//! Snapshots of Docker images.
//!
//! ```text
//! POST /snapshots ─ task: pull (unless the image is here) ─ sandbox ─ snapshot ─ sandbox deleted
//!        │                                                     │
//!        └─ answers when done, or after a few seconds with `building` and an id that leads there later
//! ```
//!
//! What is under way is in memory only: a server that ends meanwhile forgets it, keeps the layers that came,
//! and leaves no sandbox behind, for that one has a time to live.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_core::id::SnapshotId;
use atoll_core::snapshot::{Purpose, Reference};
use atoll_core::spec::{self, ResourcesDraft, SandboxDraft};
use atoll_core::{Code, Error};
use atoll_engine::{Caller as EngineCaller, Engine, SnapshotOrder};
use atoll_image::{NoProgress, PullOptions};
use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use tokio::runtime::Handle;

use super::{Snapshot, reference};
use crate::App;
use crate::error::{Failure, Result, sentence};
use crate::extras::RunConfig;
use crate::ids;
use crate::registries;
use crate::request::{Caller, Json, Manage};
use crate::time::{iso, now_ms};

/// Within which time a client is answered.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Time to live of the sandbox that a snapshot is taken of.
const SANDBOX_TTL: Duration = Duration::from_secs(600);
/// Builds that are remembered after their end.
const REMEMBERED_MAX_COUNT: usize = 1000;
/// Builds at once.
const UNDER_WAY_MAX_COUNT: usize = 32;

/// A snapshot of an image.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Request {
    name: String,
    docker_image: String,
    fs_capacity_bytes: Option<u64>,
    tag: Option<String>,
    registry_id: Option<String>,
    run_config: Option<RunConfig>,
}

/// Where a build is.
#[derive(Debug, Clone)]
enum Build {
    UnderWay(Snapshot),
    Failed(Snapshot),
    Made(SnapshotId),
}

/// What an id of a build leads to.
#[expect(clippy::large_enum_variant, reason = "few of them exist at a time, and none is kept")]
#[derive(Debug)]
pub(crate) enum Found {
    /// Under way, or failed.
    UnderWay(Snapshot),
    Made(SnapshotId),
}

/// Builds of this process, by the UUID that their client was told.
#[derive(Debug, Clone, Default)]
pub(crate) struct Builds {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    by_id: BTreeMap<String, Build>,
    ended: VecDeque<String>,
}

impl Builds {
    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, snapshot: Snapshot) -> Result<()> {
        let mut inner = self.inner();
        let count = inner.by_id.values().filter(|build| matches!(build, Build::UnderWay(_))).count();
        if count >= UNDER_WAY_MAX_COUNT {
            let error = Error::new(Code::LimitExceeded, format!("{count} snapshots are being made already"));
            return Err(Failure::control(&error));
        }
        inner.by_id.insert(snapshot.id.clone(), Build::UnderWay(snapshot));
        Ok(())
    }

    fn end(&self, id: &str, outcome: &Result<SnapshotId, Error>) {
        let mut inner = self.inner();
        let Some(Build::UnderWay(snapshot)) = inner.by_id.get(id).cloned() else { return };
        let ended = match outcome {
            Ok(made) => Build::Made(made.clone()),
            Err(error) => Build::Failed(Snapshot {
                status: "failed",
                status_message: Some(sentence(error)),
                ..snapshot
            }),
        };
        inner.by_id.insert(id.to_owned(), ended);
        inner.ended.push_back(id.to_owned());
        if inner.ended.len() > REMEMBERED_MAX_COUNT
            && let Some(oldest) = inner.ended.pop_front()
        {
            inner.by_id.remove(&oldest);
        }
    }

    /// What a client means by this id, if it was a build's.
    pub(crate) fn find(&self, id: &str) -> Option<Found> {
        Some(match self.inner().by_id.get(id)?.clone() {
            Build::UnderWay(snapshot) | Build::Failed(snapshot) => Found::UnderWay(snapshot),
            Build::Made(id) => Found::Made(id),
        })
    }

    /// Those that have not ended.
    pub(crate) fn under_way(&self) -> Vec<Snapshot> {
        let inner = self.inner();
        let under_way = inner.by_id.values().filter_map(|build| match build {
            Build::UnderWay(snapshot) => Some(snapshot.clone()),
            Build::Failed(_) | Build::Made(_) => None,
        });
        under_way.collect()
    }
}

/// Makes a snapshot of an image.
pub(crate) async fn create(
    caller: Caller<Manage>,
    State(app): State<App>,
    Json(request): Json<Request>,
) -> Result<(StatusCode, Json<Snapshot>)> {
    spec::image_reference("docker_image", &request.docker_image).map_err(|error| Failure::control(&error))?;
    if let Some(registry) = request.registry_id.as_deref().filter(|id| !id.is_empty()) {
        // Its credentials are found by the image's host; this says early that there are none.
        registries::find(&app.host, registry).await?;
    }
    let tag = reference(&request.name, request.tag.as_deref().or_else(|| tag_of(&request.docker_image)))?;
    let snapshot = new(&request, &tag)?;
    let id = snapshot.id.clone();
    app.builds.begin(snapshot.clone())?;
    let (engine, builds) = (app.host.engine().clone(), app.builds.clone());
    let caller = caller.engine();
    let building = tokio::spawn(async move {
        let outcome = make(&engine, request, tag, &caller).await;
        if let Err(error) = &outcome {
            tracing::info!(%error, "a snapshot of an image could not be made");
        }
        builds.end(&id, &outcome);
        outcome
    });
    match tokio::time::timeout(ANSWER_WITHIN, building).await {
        Ok(Ok(Ok(made))) => {
            let record = app.host.engine().snapshot(made.as_str()).await;
            let record = record.map_err(|error| Failure::control(&error))?;
            Ok((StatusCode::CREATED, Json(Snapshot::new(record))))
        }
        // The client polls, and is told there what failed.
        _ => Ok((StatusCode::ACCEPTED, Json(snapshot))),
    }
}

/// The tag of an image reference, if it has one.
fn tag_of(image: &str) -> Option<&str> {
    let name = image.rsplit('/').next()?;
    let name = name.split('@').next()?;
    name.split_once(':').map(|(_, tag)| tag)
}

fn new(request: &Request, tag: &Reference) -> Result<Snapshot> {
    let now = now_ms();
    let random = getrandom::u64().map_err(|error| {
        tracing::error!(%error, "no randomness for an id");
        Failure::control(&Error::new(Code::Internal, "the host's random generator failed"))
    })?;
    Ok(Snapshot {
        id: ids::of_snapshot(&SnapshotId::from_parts(now, random)),
        name: tag.name.clone(),
        status: "building",
        status_message: None,
        fs_capacity_bytes: request.fs_capacity_bytes.unwrap_or_default(),
        fs_used_bytes: 0,
        docker_image: Some(request.docker_image.clone()),
        image_digest: None,
        source_sandbox_id: None,
        tags: vec![tag.tag.clone()],
        run_config: request.run_config.clone().unwrap_or_default(),
        created_by: None,
        created_at: iso(now),
        updated_at: iso(now),
    })
}

async fn make(
    engine: &Engine,
    request: Request,
    tag: Reference,
    caller: &EngineCaller,
) -> Result<SnapshotId, Error> {
    pull(engine, &request.docker_image).await?;
    let run = request.run_config.unwrap_or_default();
    let ttl_ms = u64::try_from(SANDBOX_TTL.as_millis()).ok();
    let draft = SandboxDraft {
        image: Some(request.docker_image),
        resources: ResourcesDraft { disk_bytes: request.fs_capacity_bytes, ..ResourcesDraft::default() },
        env: run.env_vars.unwrap_or_default(),
        user: run.user,
        workdir: run.work_dir,
        ttl_ms,
        ..SandboxDraft::default()
    };
    let sandbox = engine.create_sandbox(draft, caller).await?.id;
    let order =
        SnapshotOrder { purpose: Purpose::Snapshot, comment: Some(tag.name.clone()), tags: vec![tag] };
    let taken = engine.create_snapshot(sandbox.as_str(), order, caller).await;
    if let Err(error) = engine.delete_sandbox(sandbox.as_str()).await {
        tracing::warn!(%sandbox, %error, "the sandbox of a snapshot stays until its time ends");
    }
    taken.map(|record| record.id)
}

/// Pulls an image unless it is here.
async fn pull(engine: &Engine, image: &str) -> Result<(), Error> {
    if image == "host" || engine.images().resolve(image).is_ok() {
        return Ok(());
    }
    let host = atoll_image::registry_of(image).map_err(|error| error.to_core())?;
    let credentials = engine.registry_credentials(&host).await?;
    let (images, image, runtime) = (engine.images().clone(), image.to_owned(), Handle::current());
    // Its future borrows across waits in ways that the compiler cannot prove to be `Send`.
    let pulled = tokio::task::spawn_blocking(move || {
        let options = PullOptions { credentials, ..PullOptions::default() };
        runtime.block_on(images.pull(&image, &options, &NoProgress)).map(drop)
    });
    let broken = |_| Error::new(Code::Internal, "the server failed to prepare the image");
    pulled.await.map_err(broken)?.map_err(|error| error.to_core())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_images() {
        assert_eq!(tag_of("python:3"), Some("3"));
        assert_eq!(tag_of("registry:5000/team/app"), None);
        assert_eq!(tag_of("registry:5000/team/app:1.2@sha256:00"), Some("1.2"));
    }
}
