//! Sandboxes: `/sandboxes` and `/v2/sandboxes`, both generations of them over one implementation.

mod create;
mod fork;
pub(crate) mod idempotency;
pub(crate) mod lifecycle;
pub(crate) mod list;
mod logs;
pub(crate) mod metrics;
mod network;
mod snapshots;

use axum::Router;
use axum::extract::State;
use axum::routing::{get, post, put};

use crate::App;
use crate::error::{Failure, Result};
use crate::request::{Caller, Domain, Id, Read};
use crate::view::Detail;

/// The routes.
pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/sandboxes", post(create::v1).get(list::v1))
        .route("/v2/sandboxes", post(create::v2).get(list::v2))
        .route("/sandboxes/metrics", get(metrics::of_many))
        .route("/sandboxes/{sandbox}", get(read).delete(lifecycle::kill))
        .route("/sandboxes/{sandbox}/connect", post(lifecycle::connect))
        .route("/v2/sandboxes/{sandbox}/connect", post(lifecycle::connect))
        .route("/sandboxes/{sandbox}/resume", post(lifecycle::resume))
        .route("/sandboxes/{sandbox}/pause", post(lifecycle::pause))
        .route("/sandboxes/{sandbox}/timeout", post(lifecycle::timeout))
        .route("/sandboxes/{sandbox}/refreshes", post(lifecycle::refresh))
        .route("/sandboxes/{sandbox}/fork", post(fork::fork))
        .route("/sandboxes/{sandbox}/snapshots", post(snapshots::create))
        .route("/snapshots", get(snapshots::list))
        .route("/sandboxes/{sandbox}/network", put(network::update))
        .route("/sandboxes/{sandbox}/metrics", get(metrics::of_one))
        .route("/sandboxes/{sandbox}/logs", get(logs::v1))
        .route("/v2/sandboxes/{sandbox}/logs", get(logs::v2))
}

/// One sandbox.
async fn read(
    caller: Caller<Read>,
    State(app): State<App>,
    domain: Domain,
    Id(id): Id,
) -> Result<axum::Json<Detail>> {
    let engine = app.host.engine();
    let record = engine.sandbox(&id).map_err(|_missing| Failure::no_sandbox(id.as_str()))?;
    let detail = Detail::new(engine, &record, &caller.key(), domain);
    detail.map(axum::Json).ok_or_else(|| Failure::no_sandbox(id.as_str()))
}
