//! Snapshots that take long: of Docker images, and of sandboxes with large disks.
//!
//! ```text
//! POST /snapshots ─ task: pull (unless the image is here) ─ sandbox ─ snapshot ─ sandbox deleted
//!        │                                                     │
//!        └─ answers when done, or after a few seconds with `building` and the id that it will have
//! ```
//!
//! Work under way is noted in memory only. A server that ends meanwhile forgets it, keeps the layers that it pulled,
//! and leaves no sandbox behind, because the sandbox has a time to live.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::SnapshotId;
use atoll_core::sharing::Needs;
use atoll_core::snapshot::Reference;
use atoll_core::spec::{self, ResourcesDraft, SandboxDraft};
use atoll_core::{Code, Error};
use atoll_engine::{Asked, Begin, Caller as EngineCaller, Engine, Grant};
use atoll_image::{NoProgress, PullOptions};
use atoll_store::SnapshotRecord;
use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use tokio::runtime::Handle;

use super::{Snapshot, reference};
use crate::App;
use crate::boxes::ANSWER_WITHIN;
use crate::error::{Failure, Result};
use crate::extras::RunConfig;
use crate::registries;
use crate::request::{Caller, Json, Manage};

/// Time to live of the sandbox of which a snapshot is taken.
const SANDBOX_TTL: Duration = Duration::from_secs(600);

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

/// Makes a snapshot of an image.
pub(crate) async fn create(
    caller: Caller<Manage>,
    State(app): State<App>,
    Json(request): Json<Request>,
) -> Result<(StatusCode, Json<Snapshot>)> {
    spec::image_reference("docker_image", &request.docker_image).map_err(|error| Failure::control(&error))?;
    if let Some(registry) = request.registry_id.as_deref().filter(|id| !id.is_empty()) {
        // The credentials are found by the image's host; this tells the client early if there are none.
        registries::find(&app.host, registry).await?;
    }
    let tag = reference(&request.name, request.tag.as_deref().or_else(|| tag_of(&request.docker_image)))?;
    let engine = app.host.engine().clone();
    let id = engine.new_snapshot_id().map_err(|error| Failure::control(&error))?;
    let building = Snapshot {
        fs_capacity_bytes: request.fs_capacity_bytes.unwrap_or_default(),
        docker_image: Some(request.docker_image.clone()),
        run_config: request.run_config.clone().unwrap_or_default(),
        ..Snapshot::building(&id, &tag)
    };
    let (owner, grant, caller) = (caller.key(), caller.grant().clone(), caller.engine().clone());
    let making = async move { make(&engine, request, id, tag, &grant, &caller).await };
    let made = app.builds.run(building.clone(), owner, ANSWER_WITHIN, making).await;
    match made.map_err(|error| Failure::control(&error))? {
        Some(Ok(record)) => Ok((StatusCode::CREATED, Json(Snapshot::new(record)))),
        // The client polls, and learns the failure there.
        Some(Err(_)) | None => Ok((StatusCode::ACCEPTED, Json(building))),
    }
}

/// The tag of an image reference, if it has one.
fn tag_of(image: &str) -> Option<&str> {
    let name = image.rsplit('/').next()?;
    let name = name.split('@').next()?;
    name.split_once(':').map(|(_, tag)| tag)
}

async fn make(
    engine: &Engine,
    request: Request,
    id: SnapshotId,
    tag: Reference,
    grant: &Grant,
    caller: &EngineCaller,
) -> Result<SnapshotRecord, Error> {
    pull(engine, &request.docker_image, caller).await?;
    // That may have taken hours.
    engine.recheck(grant, Needs::MANAGE)?;
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
    // Creating the sandbox is part of the client's request.
    let making = Arc::new(Asked::part()).scope(engine.create_sandbox(draft, caller));
    let sandbox = making.await?.id;
    let order = super::order(id, tag, Begin::default());
    let taken = engine.create_snapshot(&sandbox, order, caller).await;
    if let Err(error) = engine.delete_sandbox(&sandbox).await {
        tracing::warn!(%sandbox, %error, "the sandbox of a snapshot stays until its time ends");
    }
    taken
}

/// Pulls an image, unless this node or another one has it. It takes part in the caller's transfers: a registry may take its
/// time, and has a thread meanwhile.
async fn pull(engine: &Engine, image: &str, caller: &EngineCaller) -> Result<(), Error> {
    engine.obtain_image(image).await?;
    if image == "host" || engine.images().resolve(image).is_ok() {
        return Ok(());
    }
    let host = atoll_image::registry_of(image).map_err(|error| error.to_core())?;
    let credentials = engine.registry_credentials(&host).await?;
    let (images, image, runtime) = (engine.images().clone(), image.to_owned(), Handle::current());
    let room = engine.room_to_transfer(caller).await?;
    // Its future borrows across waits in ways that the compiler cannot prove to be `Send`.
    let pulled = tokio::task::spawn_blocking(move || {
        let _room = room;
        let options = PullOptions { known: credentials.is_some(), credentials, ..PullOptions::default() };
        runtime.block_on(images.pull(&image, &options, &NoProgress)).map(drop)
    });
    let broken = |_| Error::new(Code::Internal, "the server failed to prepare the image");
    pulled.await.map_err(broken)?.map_err(|error| error.to_core())
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::key::Scope;
    use atoll_engine::Target;
    use atoll_walk::World;

    #[tokio::test]
    async fn a_key_that_was_deleted_while_its_image_came_gets_no_snapshot() {
        let world = World::new(&[crate::DIALECT]).await;
        let key = world.key(Scope::Manage).await;
        let engine = &world.engine;
        let grant = engine.authorize(&key.caller, Needs::MANAGE, Target::Installation).await.unwrap();
        let taken = async |name: &str| {
            let request = Request { docker_image: "host".to_owned(), ..Request::default() };
            let (id, tag) = (engine.new_snapshot_id().unwrap(), format!("{name}:latest").parse().unwrap());
            make(engine, request, id, tag, &grant, &key.caller).await
        };
        taken("before").await.unwrap();
        engine.delete_key(key.id.as_str()).await.unwrap();
        assert_eq!(taken("after").await.unwrap_err().code, Code::Unauthorized);
    }

    #[test]
    fn tags_of_images() {
        assert_eq!(tag_of("python:3"), Some("3"));
        assert_eq!(tag_of("registry:5000/team/app"), None);
        assert_eq!(tag_of("registry:5000/team/app:1.2@sha256:00"), Some("1.2"));
    }
}
