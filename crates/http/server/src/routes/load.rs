//! Images from archives that a client sends.

use std::sync::Arc;

use atoll_core::spec;
use atoll_engine::Room;
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use super::pull::{Board, with_progress};
use crate::auth::{Caller, ManageCommon};
use crate::body::reader;
use crate::error::ApiResult;
use crate::extract::Query;
use crate::hangup::ClientGone;
use crate::shared::App;

/// How to call it.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct LoadImages {
    /// A name for a single image that was saved without one.
    name: Option<String>,
}

/// Loads the images of a `docker save` archive or an OCI layout archive.
///
/// The answer is newline-delimited JSON (`ImageProgress`): a line `done` for each image at the end, or
/// `error`.
#[utoipa::path(post, path = "/v1/images/load", tag = "images", security(("key" = ["manage"])),
    params(LoadImages), request_body(content = Vec<u8>, content_type = "application/x-tar"),
    responses((status = 200, content_type = "application/x-ndjson", body = atoll_api::ImageProgress)))]
pub(crate) async fn load_images(
    caller: Caller<ManageCommon>,
    State(app): State<App>,
    Query(query): Query<LoadImages>,
    Extension(client): Extension<ClientGone>,
    body: Body,
) -> ApiResult<Response> {
    if let Some(name) = &query.name {
        spec::image_reference("name", name)?;
    }
    let images = app.engine.images().clone();
    let work = move |board: Arc<Board>, room: Room| async move {
        images.load_stream(room.around(reader(body)), query.name.as_deref(), &*board).await
    };
    with_progress(app, &caller, &client, work).await
}

/// How to call it.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ImportImage {
    /// The image's name.
    name: String,
    /// A further name that it gets, such as `agents.local/bot:latest`.
    also: Option<String>,
}

/// Makes an image of the archive of a root file system.
///
/// The answer is newline-delimited JSON (`ImageProgress`) with one line: `done` or `error`.
#[utoipa::path(post, path = "/v1/images/import", tag = "images", security(("key" = ["manage"])),
    params(ImportImage), request_body(content = Vec<u8>, content_type = "application/x-tar"),
    responses((status = 200, content_type = "application/x-ndjson", body = atoll_api::ImageProgress)))]
pub(crate) async fn import_image(
    caller: Caller<ManageCommon>,
    State(app): State<App>,
    Query(query): Query<ImportImage>,
    Extension(client): Extension<ClientGone>,
    body: Body,
) -> ApiResult<Response> {
    spec::image_reference("name", &query.name)?;
    if let Some(also) = &query.also {
        spec::image_reference("also", also)?;
    }
    let images = app.engine.images().clone();
    let work = move |_board: Arc<Board>, room: Room| async move {
        let image = images.import(&query.name, room.around(reader(body))).await?;
        match &query.also {
            Some(also) => images.tag(&image.digest, also).await.map(|image| vec![image]),
            None => Ok(vec![image]),
        }
    };
    with_progress(app, &caller, &client, work).await
}
