//! Images.

use atoll_api::{ImageList, PruneResult, RemovedImage};
use atoll_image::ImageError;
use axum::extract::State;

use crate::auth::{Caller, ManageCommon, Read};
use crate::convert;
use crate::error::ApiResult;
use crate::extract::{Json, Path};
use crate::shared::App;

/// Lists the images that are here; in a cluster with an object store those that any node can have.
#[utoipa::path(get, path = "/v1/images", tag = "images", security(("key" = ["read"])),
    responses((status = 200, body = ImageList)))]
pub(crate) async fn list_images(_: Caller<Read>, State(app): State<App>) -> ApiResult<Json<ImageList>> {
    let items = app.engine.list_images().await?.iter().map(convert::listed_image).collect();
    Ok(Json(ImageList { items }))
}

/// Removes a name of an image, and the image with its last name; given a digest, the image with all its
/// names. Refused while a sandbox or template uses it. In a cluster with an object store it goes from every node.
#[utoipa::path(delete, path = "/v1/images/{*name}", tag = "images", security(("key" = ["manage"])),
    params(("name" = String, Path, description = "Name, reference or digest; may contain slashes")),
    responses((status = 200, body = RemovedImage)))]
pub(crate) async fn remove_image(
    _: Caller<ManageCommon>,
    State(app): State<App>,
    Path(name): Path<String>,
) -> ApiResult<Json<RemovedImage>> {
    let removed = app.engine.remove_image(&name).await?;
    Ok(Json(RemovedImage { removed: removed.image.is_some(), freed_bytes: removed.freed_bytes }))
}

/// Removes images that have no name and that nothing uses, and what interrupted pulls left.
#[utoipa::path(post, path = "/v1/images/prune", tag = "images", security(("key" = ["manage"])),
    responses((status = 200, body = PruneResult)))]
pub(crate) async fn prune_images(
    _: Caller<ManageCommon>,
    State(app): State<App>,
) -> ApiResult<Json<PruneResult>> {
    let (removed, freed_bytes) = app.engine.prune_images().await?;
    Ok(Json(PruneResult { removed: removed.iter().map(ToString::to_string).collect(), freed_bytes }))
}

/// A failure of the image store, as the product's error; the chain goes to the log.
pub(super) fn image_error(error: ImageError) -> atoll_core::Error {
    let source = std::error::Error::source(&error).map(ToString::to_string);
    tracing::info!(%error, source, "an image operation failed");
    error.to_core()
}
