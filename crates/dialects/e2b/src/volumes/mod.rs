//! Volumes: the control plane makes, lists and removes them; the files in them are read and written with a token of the
//! volume's own.

mod auth;
mod content;

use atoll_core::id::VolumeId;
use atoll_core::volume::{VolumeDraft, VolumeState};
use atoll_core::{Code, Error};
use atoll_engine::{Engine, Resource, Target, VolumeChange};
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_LENGTH;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::App;
use crate::error::{Failure, Result, sentence};
use crate::request::{Caller, Json, Manage, Path, Read, Requires};

/// The routes.
pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/volumes", get(list).post(create))
        .route("/volumes/{volume}", get(one).delete(remove))
        .route(
            "/volumecontent/{volume}/path",
            get(content::stat).patch(content::change).delete(content::remove),
        )
        .route("/volumecontent/{volume}/dir", get(content::list).post(content::make_directory))
        .route("/volumecontent/{volume}/file", get(content::read).put(content::write))
}

/// An error about the files in a volume, in that API's own form: its code is a word.
pub(crate) async fn answer(request: Request, next: Next) -> Response {
    let about_content = request.uri().path().starts_with("/volumecontent/");
    let mut response = next.run(request).await;
    if about_content && let Some(failure) = response.extensions().get::<Failure>() {
        let words = failure.status.canonical_reason().unwrap_or("error").to_ascii_lowercase();
        let code = failure.code.map_or_else(|| words.replace([' ', '-'], "_"), str::to_owned);
        let body = json!({"code": code, "message": failure.message}).to_string();
        response.headers_mut().remove(CONTENT_LENGTH);
        *response.body_mut() = body.into();
    }
    response
}

/// The engine's error about a volume, or about a file in one.
fn told(error: &Error) -> Failure {
    let status = match error.code {
        Code::VolumeNotFound | Code::FileNotFound => StatusCode::NOT_FOUND,
        Code::FileExists => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::DiskFull => StatusCode::INSUFFICIENT_STORAGE,
        _ => return Failure::of(error),
    };
    Failure::new(status, sentence(error))
}

#[derive(Debug, Deserialize)]
struct Create {
    name: String,
}

/// A volume as it is listed.
#[derive(Debug, Serialize)]
struct Listed {
    #[serde(rename = "volumeID")]
    volume_id: VolumeId,
    name: String,
}

/// A volume, with the token that opens it.
#[derive(Debug, Serialize)]
struct Opened {
    #[serde(flatten)]
    volume: Listed,
    token: String,
}

impl Opened {
    fn new<S>(engine: &Engine, caller: &Caller<S>, volume_id: VolumeId, name: String) -> Self {
        let token = auth::token(engine, &caller.key(), &volume_id);
        Self { volume: Listed { volume_id, name }, token }
    }
}

/// The volume that a path names. By its id alone: a name may pass to another volume.
async fn found<S: Requires>(engine: &Engine, caller: &Caller<S>, text: &str) -> Result<VolumeId> {
    let missing = || told(&VolumeId::not_found(text));
    text.parse::<VolumeId>().map_err(|_malformed| missing())?;
    let grant = engine.authorize(caller.engine(), S::NEEDS, Target::Volume(text)).await;
    match grant.map_err(|error| told(&error))?.resource() {
        Resource::Volume(id) => Ok(id.clone()),
        _ => Err(missing()),
    }
}

async fn create(
    caller: Caller<Manage>,
    State(app): State<App>,
    Json(request): Json<Create>,
) -> Result<(StatusCode, axum::Json<Opened>)> {
    let engine = app.host.engine();
    let draft = VolumeDraft { name: request.name, ..VolumeDraft::default() };
    let made = engine.create_volume(draft, caller.engine()).await.map_err(|error| match error.code {
        // The clients expect 400 for a name that is taken.
        Code::NameTaken => Failure::bad(sentence(&error)),
        _ => told(&error),
    })?;
    // The clients expect that every user in a sandbox may remove everything; these volumes are open like `/tmp`.
    let open = VolumeChange { mode: Some(0o777), ..VolumeChange::default() };
    if let Err(error) = engine.change_in_volume(&made.record.id, "/", open).await {
        // The client is told that there is no volume, so it must be able to ask for the name again.
        engine.delete_volume(&made.record.id, caller.engine()).await.map_err(|error| told(&error))?;
        return Err(told(&error));
    }
    let opened = Opened::new(engine, &caller, made.record.id, made.record.name);
    Ok((StatusCode::CREATED, axum::Json(opened)))
}

async fn list(caller: Caller<Read>, State(app): State<App>) -> axum::Json<Vec<Listed>> {
    let ready = app.host.engine().volumes(caller.engine()).into_iter();
    let ready = ready.map(|view| view.record).filter(|record| record.state == VolumeState::Ready);
    axum::Json(ready.map(|record| Listed { volume_id: record.id, name: record.name }).collect())
}

async fn one(
    caller: Caller<Read>,
    State(app): State<App>,
    Path(named): Path<String>,
) -> Result<axum::Json<Opened>> {
    let engine = app.host.engine();
    let id = found(engine, &caller, &named).await?;
    let view = engine.volume(&id, caller.engine()).await.map_err(|error| told(&error))?;
    Ok(axum::Json(Opened::new(engine, &caller, view.record.id, view.record.name)))
}

async fn remove(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(named): Path<String>,
) -> Result<StatusCode> {
    let engine = app.host.engine();
    let id = found(engine, &caller, &named).await?;
    engine.delete_volume(&id, caller.engine()).await.map_err(|error| told(&error))?;
    Ok(StatusCode::NO_CONTENT)
}
