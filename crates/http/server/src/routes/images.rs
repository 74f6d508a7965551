//! Images.

use atoll_api::{Image, ImageList, PruneResult, RemovedImage};
use atoll_core::Result;
use atoll_image::ImageError;
use axum::extract::State;

use crate::auth::{Caller, ManageCommon, Read};
use crate::convert;
use crate::error::ApiResult;
use crate::extract::{Json, Path};
use crate::shared::App;

/// Lists the images that are here.
#[utoipa::path(get, path = "/v1/images", tag = "images", security(("key" = ["read"])),
    responses((status = 200, body = ImageList)))]
pub(crate) async fn list_images(_: Caller<Read>, State(app): State<App>) -> Json<ImageList> {
    let images: Vec<Image> = app.engine.images().list().iter().map(|image| convert::image(image)).collect();
    Json(ImageList { items: images })
}

/// Removes a name of an image, and the image with its last name; given a digest, the image with all its
/// names. Refused while a sandbox or template uses it.
#[utoipa::path(delete, path = "/v1/images/{*name}", tag = "images", security(("key" = ["manage"])),
    params(("name" = String, Path, description = "Name, reference or digest; may contain slashes")),
    responses((status = 200, body = RemovedImage)))]
pub(crate) async fn remove_image(
    _: Caller<ManageCommon>,
    State(app): State<App>,
    Path(name): Path<String>,
) -> ApiResult<Json<RemovedImage>> {
    let used = app.engine.images_in_use().await?;
    let removed = app.engine.images().remove(&name, &used).await.map_err(image_error)?;
    Ok(Json(RemovedImage { removed: removed.image.is_some(), freed_bytes: removed.freed_bytes }))
}

/// Removes images that have no name and that nothing uses, and what interrupted pulls left.
#[utoipa::path(post, path = "/v1/images/prune", tag = "images", security(("key" = ["manage"])),
    responses((status = 200, body = PruneResult)))]
pub(crate) async fn prune_images(
    _: Caller<ManageCommon>,
    State(app): State<App>,
) -> ApiResult<Json<PruneResult>> {
    Ok(Json(prune(&app).await?))
}

async fn prune(app: &App) -> Result<PruneResult> {
    let images = app.engine.images();
    let used = app.engine.images_in_use().await?;
    let before = images.list();
    let freed_bytes = images.prune(&used).await.map_err(image_error)?;
    let left = images.list();
    let gone = before.iter().filter(|image| left.iter().all(|other| other.digest != image.digest));
    Ok(PruneResult { removed: gone.map(|image| image.digest.to_string()).collect(), freed_bytes })
}

/// A failure of the image store, as the product's error; the chain goes to the log.
pub(super) fn image_error(error: ImageError) -> atoll_core::Error {
    let source = std::error::Error::source(&error).map(ToString::to_string);
    tracing::info!(%error, source, "an image operation failed");
    error.to_core()
}
