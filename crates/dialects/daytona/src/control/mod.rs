//! The control plane: `/api`.

mod builds;
mod create;
mod lifecycle;
mod list;
mod network;
mod origin;
mod other;
mod pools;
mod ports;
mod secrets;
mod settings;
mod snapshots;
mod ssh;
mod volumes;

use axum::Router;
use axum::extract::State;
use axum::routing::{any, get, patch, post, put};
use serde_json::Value;

use crate::App;
use crate::error::Result;
use crate::objects;
use crate::request::{Json, Root};
use crate::view;
use crate::who::{On, Read};

/// The routes.
pub(crate) fn routes() -> Router<App> {
    sandboxes().merge(around()).merge(refused())
}

fn sandboxes() -> Router<App> {
    Router::new()
        .route("/sandbox", post(create::create).get(list::list))
        .route("/sandbox/{sandbox}", get(read).delete(lifecycle::remove))
        .route("/sandbox/{sandbox}/start", post(lifecycle::start))
        .route("/sandbox/{sandbox}/stop", post(lifecycle::stop))
        .route("/sandbox/{sandbox}/pause", post(lifecycle::pause))
        .route("/sandbox/{sandbox}/recover", post(lifecycle::recover))
        .route("/sandbox/{sandbox}/archive", post(lifecycle::archive))
        .route("/sandbox/{sandbox}/labels", put(settings::labels))
        .route("/sandbox/{sandbox}/resize", post(settings::resize))
        .route("/sandbox/{sandbox}/autostop/{minutes}", post(settings::auto_stop))
        .route("/sandbox/{sandbox}/autopause/{minutes}", post(settings::auto_pause))
        .route("/sandbox/{sandbox}/autoarchive/{minutes}", post(settings::auto_archive))
        .route("/sandbox/{sandbox}/autodelete/{minutes}", post(settings::auto_delete))
        .route("/sandbox/{sandbox}/ttl/{minutes}", post(settings::ttl))
        .route("/sandbox/{sandbox}/public/{public}", post(ports::set_public))
        .route("/sandbox/{sandbox}/network-settings", post(network::update))
        .route("/sandbox/{sandbox}/last-activity", post(settings::touch))
        .route("/sandbox/{sandbox}/toolbox-proxy-url", get(ports::toolbox_url))
        .route("/sandbox/{sandbox}/signing-key", get(ports::signing_key))
        .route("/sandbox/{sandbox}/signing-key/rotate", post(ports::rotate_signing_key))
        .route("/sandbox/{sandbox}/ports/{port}/preview-url", get(ports::preview))
        .route("/sandbox/{sandbox}/ports/{port}/signed-preview-url", get(ports::signed))
        .route("/sandbox/{sandbox}/ports/{port}/signed-preview-url/{token}/expire", post(ports::expire))
        .route("/sandbox/{sandbox}/ssh-access", post(ssh::create).delete(ssh::revoke))
        .route("/sandbox/ssh-access/validate", get(ssh::validate))
        .route("/sandbox/{sandbox}/secrets", put(secrets::replace))
        .route("/sandbox/{sandbox}/fork", post(other::fork))
        .route("/sandbox/{sandbox}/snapshot", post(snapshots::of_sandbox))
}

fn around() -> Router<App> {
    Router::new()
        .route("/snapshots", post(snapshots::create).get(snapshots::list))
        .route("/snapshots/{name}", get(snapshots::read).delete(snapshots::remove))
        .route("/snapshots/{name}/activate", post(snapshots::activate))
        .route("/snapshots/{name}/build-logs-url", get(builds::log_url))
        .route("/snapshots/{name}/build-logs", get(builds::log))
        .route("/volumes", post(volumes::create).get(volumes::list))
        .route("/volumes/{volume}", get(volumes::read).delete(volumes::remove))
        .route("/volumes/by-name/{volume}", get(volumes::read))
        .route("/secret", post(secrets::create).get(secrets::list))
        .route("/secret/paginated", get(secrets::page))
        .route("/secret/{secret}", get(secrets::read).patch(secrets::update).delete(secrets::remove))
        .route("/object-storage/push-access", get(objects::push_access))
        .route("/warm-pools", post(pools::create).get(pools::list))
        .route("/warm-pools/{pool}", patch(pools::update).delete(pools::remove))
        .route("/config", get(other::config))
        .route("/health", get(other::health))
        .route("/health/ready", get(other::health))
}

/// Routes that this server does not support; the answers say so.
fn refused() -> Router<App> {
    Router::new().route("/sandbox/{sandbox}/telemetry/{*rest}", any(other::no_telemetry))
}

/// One sandbox.
async fn read(on: On<Read>, root: Root, State(app): State<App>) -> Result<Json<Value>> {
    let record = app.host.engine().sandbox(&on.id)?;
    Ok(Json(view::sandbox(&record, &root)))
}
