//! The server itself: what it is, whether it works, what it counts.

use std::sync::OnceLock;

use atoll_api::{Doctor, Health, LeakList, ServerInfo};
use atoll_core::{Code, Error};
use axum::extract::State;
use axum::response::IntoResponse;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};

use crate::auth::{self, Admin, Caller, Read};
use crate::certificate;
use crate::convert;
use crate::error::ApiResult;
use crate::extract::Json;
use crate::openapi;
use crate::shared::App;

/// Media type of certificates.
const PEM: &str = "application/x-pem-file";
/// Media type of the exposition format.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What this server is and has.
#[utoipa::path(get, path = "/v1/info", tag = "system", security(("key" = ["read"])),
    responses((status = 200, body = ServerInfo)))]
pub(crate) async fn get_info(_: Caller<Read>, State(app): State<App>) -> Json<ServerInfo> {
    Json(ServerInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        installation: app.config.installation.clone(),
        isolation: app.engine.isolation_levels().iter().map(ToString::to_string).collect(),
        accelerator: app.engine.accelerator(),
        sandboxes: app.engine.stats().sandboxes.values().sum(),
        sandboxes_max: app.engine.sandboxes_max() as u64,
    })
}

/// What this host enforces. Probes anew each time.
#[utoipa::path(get, path = "/v1/doctor", tag = "system", security(("key" = ["read"])),
    responses((status = 200, body = Doctor)))]
pub(crate) async fn run_doctor(_: Caller<Read>, State(app): State<App>) -> Json<Doctor> {
    let mut checks = app.engine.doctor().await;
    let tls = app.config.tls.as_deref();
    checks.extend(tls.and_then(|tls| certificate::check(tls, app.engine.now_ms())));
    Json(Doctor { checks })
}

/// Things on the host that belong to no known sandbox or snapshot.
#[utoipa::path(get, path = "/v1/leaks", tag = "system", security(("key" = ["admin"])),
    responses((status = 200, body = LeakList)))]
pub(crate) async fn list_leaks(_: Caller<Admin>, State(app): State<App>) -> ApiResult<Json<LeakList>> {
    let leaks = app.engine.leaks().await?.into_iter().map(|leak| convert::leak(leak, false));
    let artifacts = app.engine.leaked_artifacts().await?;
    let artifacts = artifacts.into_iter().map(|id| convert::leaked_artifact(id, false));
    Ok(Json(LeakList { items: leaks.chain(artifacts).collect() }))
}

/// Removes what belongs to no known sandbox or snapshot; answers with what it was.
#[utoipa::path(delete, path = "/v1/leaks", tag = "system", security(("key" = ["admin"])),
    responses((status = 200, body = LeakList)))]
pub(crate) async fn remove_leaks(_: Caller<Admin>, State(app): State<App>) -> ApiResult<Json<LeakList>> {
    let leaks = app.engine.remove_leaks().await?.into_iter().map(|leak| convert::leak(leak, true));
    let artifacts = app.engine.remove_leaked_artifacts().await?;
    let artifacts = artifacts.into_iter().map(|id| convert::leaked_artifact(id, true));
    Ok(Json(LeakList { items: leaks.chain(artifacts).collect() }))
}

/// The authority that clients of this server must trust, PEM, when the server has one of its own. Needs no key.
#[utoipa::path(get, path = "/v1/ca", tag = "system",
    responses((status = 200, content_type = "application/x-pem-file", body = String)))]
pub(crate) async fn get_ca(State(app): State<App>) -> ApiResult<impl IntoResponse> {
    let pem = app.config.tls.as_ref().and_then(|tls| tls.ca_pem()).ok_or_else(|| {
        Error::new(Code::RouteNotFound, "this server has no authority of its own")
            .hint("'atoll serve --tls' makes one")
    })?;
    Ok(([(CONTENT_TYPE, PEM)], pem.to_owned()))
}

/// Whether the process answers. Needs no key.
#[utoipa::path(get, path = "/healthz", tag = "system", responses((status = 200, body = Health)))]
pub(crate) async fn healthz() -> Json<Health> {
    Json(Health { status: "ok".to_owned() })
}

/// Whether it takes work: 503 while it stops, and while it cannot store anything. While the host's disk is full it says
/// so and answers 200 all the same, so that what removes something still gets through. Needs no key.
#[utoipa::path(get, path = "/readyz", tag = "system",
    responses((status = 200, body = Health), (status = 503, body = Health)))]
pub(crate) async fn readyz(State(app): State<App>) -> (StatusCode, Json<Health>) {
    let (status, text) = if app.draining.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining")
    } else if !app.engine.may_serve() || !app.engine.can_store().await {
        (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable")
    } else if app.engine.is_disk_full() {
        (StatusCode::OK, "host_disk_full")
    } else {
        (StatusCode::OK, "ok")
    };
    (status, Json(Health { status: text.to_owned() }))
}

/// Numbers for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "system", security(("key" = ["read"])),
    responses((status = 200, content_type = "text/plain", body = String)))]
pub(crate) async fn get_prometheus(
    State(app): State<App>,
    headers: HeaderMap,
) -> ApiResult<impl IntoResponse> {
    if !app.config.metrics_public {
        // Every key may read.
        auth::verify(&headers, &app)?;
    }
    Ok(([(CONTENT_TYPE, OPENMETRICS)], metrics_text(&app)))
}

/// The same, for whoever sends them elsewhere.
pub(crate) fn metrics_text(app: &App) -> String {
    let engine = &app.engine;
    app.metrics.certificate.set(app.config.tls.as_deref());
    let (pools, spans) = (engine.pools(), app.config.spans.as_deref());
    app.metrics.text(&engine.stats(), &engine.egress_stats(), &pools, engine.accelerator(), spans)
}

/// This description. Needs no key.
#[utoipa::path(get, path = "/openapi.json", tag = "system",
    responses((status = 200, content_type = "application/json", body = String)))]
pub(crate) async fn get_openapi() -> impl IntoResponse {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = TEXT.get_or_init(openapi::openapi).as_str();
    ([(CONTENT_TYPE, "application/json")], text)
}
