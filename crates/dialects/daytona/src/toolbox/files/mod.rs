//! Files of a sandbox.

mod bulk;
mod change;
mod download;
mod entry;
mod look;
pub(crate) mod paths;
mod signed;
mod upload;

use atoll_core::Error;
use atoll_dialect_kit::sandboxes;
use atoll_engine::GuestLease;
use axum::Router;
use axum::routing::{get, post};

use crate::App;
use crate::error::{Failure, Result};
use crate::who::Inside;

/// The routes.
pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/files", get(look::list).delete(change::remove))
        .route("/files/info", get(look::info))
        .route("/files/search", get(look::search))
        .route("/files/find", get(look::find))
        .route("/files/folder", post(change::make_folder))
        .route("/files/move", post(change::rename))
        .route("/files/permissions", post(change::permissions))
        .route("/files/replace", post(change::replace))
        .route("/files/bulk-upload", post(upload::bulk))
        .route("/files/upload-v2", post(upload::one))
        .route("/files/upload", post(upload::one))
        .route("/files/bulk-download", post(bulk::download))
        .route("/files/download", get(download::download))
}

fn fail(error: Error) -> Failure {
    Failure::of_file(&error)
}

/// The guest agent of the sandbox. Wakes the sandbox if need be.
async fn guest(inside: &Inside) -> Result<GuestLease> {
    let guest = sandboxes::awake(inside.engine(), inside.id()).await.map_err(fail)?;
    Ok(if inside.is_signed { guest.of_anybody() } else { guest })
}

/// The user that owns new files.
fn owner(inside: &Inside) -> Result<String> {
    Ok(inside.record()?.spec.user)
}

async fn resolve(inside: &Inside, path: &str) -> Result<String> {
    paths::absolute(inside, path).await.map_err(fail)
}
