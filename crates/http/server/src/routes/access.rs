//! Ports, and who may reach them without an API key.

use atoll_api::{Access, AccessCreated, AccessFile, AccessList, CreateAccess, Port, PortList};
use atoll_core::access::{AccessDraft, Target};
use atoll_core::key::Scope;
use atoll_core::secret::Secret;
use atoll_core::{Code, Error};
use atoll_engine::guest_error;
use axum::extract::State;
use axum::response::Response;
use http::header::HOST;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::auth::{Exec, OnSandbox, Read, forbidden};
use crate::error::ApiResult;
use crate::extract::{Json, Path, Query};
use crate::ingress::{Ingress, urls};
use crate::shared::App;

fn host(headers: &HeaderMap) -> Option<&str> {
    headers.get(HOST).and_then(|host| host.to_str().ok())
}

/// TCP ports on which something listens inside, and where they are reached.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/ports", tag = "ports", security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    responses((status = 200, body = PortList)))]
pub(crate) async fn list_ports(
    caller: OnSandbox<Read>,
    State(app): State<App>,
    headers: HeaderMap,
) -> ApiResult<Json<PortList>> {
    let guest = app.engine.guest(caller.sandbox()).await?;
    let ports = guest.ports().await.map_err(guest_error)?;
    let record = app.engine.sandbox(caller.sandbox())?;
    let item = |port| Port {
        port,
        url: urls::port(&app, &record, port, host(&headers)),
        public: app.engine.public_access(&record.id, port).is_some(),
    };
    Ok(Json(PortList { items: ports.into_iter().map(item).collect() }))
}

fn convert(app: &App, record: atoll_engine::Access, headers: &HeaderMap) -> ApiResult<Access> {
    let url = urls::access(app, &record, host(headers))?;
    let (port, all_ports, file) = match record.target {
        Target::Port(port) => (Some(port), false, None),
        Target::Ports => (None, true, None),
        Target::File { path, media_type, inline } => {
            (None, false, Some(AccessFile { path, media_type, inline }))
        }
    };
    Ok(Access {
        id: record.id.into(),
        sandbox: record.sandbox.into(),
        port,
        all_ports,
        file,
        public: record.hash.is_none(),
        name: record.name,
        url,
        created_at_ms: record.created_ms,
        created_by: record.created_by.map(Into::into),
        expires_at_ms: record.expires_ms,
    })
}

/// Lets clients without an API key reach a port or file: the answer holds a link and its token, this once.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/access", tag = "ports", security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    request_body = CreateAccess, responses((status = 201, body = AccessCreated)))]
pub(crate) async fn create_access(
    caller: OnSandbox<Exec>,
    State(app): State<App>,
    headers: HeaderMap,
    Json(request): Json<CreateAccess>,
) -> ApiResult<(StatusCode, Json<AccessCreated>)> {
    if request.public && !caller.has(Scope::Manage) {
        return Err(forbidden().into());
    }
    let new =
        app.engine.create_access(caller.sandbox(), AccessDraft::try_from(request)?, caller.engine()).await?;
    let access = convert(&app, new.record, &headers)?;
    let link = match &new.token {
        Some(token) => urls::with_token(&access.url, token.reveal()),
        None => access.url.clone(),
    };
    Ok((StatusCode::CREATED, Json(AccessCreated { access, token: new.token, link: Secret::new(link) })))
}

/// Lists the accesses of a sandbox, without their tokens.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/access", tag = "ports", security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    responses((status = 200, body = AccessList)))]
pub(crate) async fn list_accesses(
    caller: OnSandbox<Read>,
    State(app): State<App>,
    headers: HeaderMap,
) -> ApiResult<Json<AccessList>> {
    let records = app.engine.accesses(caller.sandbox())?;
    let items = records.into_iter().map(|record| convert(&app, record, &headers));
    Ok(Json(AccessList { items: items.collect::<ApiResult<_>>()? }))
}

/// Takes an access back: its token stops working at once, and connections through it are cut.
#[utoipa::path(delete, path = "/v1/sandboxes/{sandbox}/access/{access}", tag = "ports",
    security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("access" = String, Path)),
    responses((status = 204)))]
pub(crate) async fn revoke_access(
    caller: OnSandbox<Exec>,
    State(app): State<App>,
    Path((_sandbox, access)): Path<(String, String)>,
) -> ApiResult<StatusCode> {
    app.engine.revoke_access(caller.sandbox(), &access).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The token of the access.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DownloadFile {
    /// From the link.
    atoll_token: Option<String>,
}

/// The bytes of the file that an access is to. Needs no key: the token is in the link, or in
/// `X-Atoll-Token`. Takes `Range` with one range.
#[utoipa::path(get, path = "/v1/download/{name}", tag = "ports", security(("token" = [])),
    params(("name" = String, Path, description = "For people and for the name of what is saved"), DownloadFile),
    responses(
        (status = 200, content_type = "application/octet-stream", body = Vec<u8>),
        (status = 206, content_type = "application/octet-stream", body = Vec<u8>),
    ))]
pub(crate) async fn download_file(
    State(app): State<App>,
    Path(_name): Path<String>,
    headers: HeaderMap,
    Query(query): Query<DownloadFile>,
) -> ApiResult<Response> {
    let token = match &query.atoll_token {
        Some(token) => Some(token.as_str()),
        None => headers.get(crate::ingress::TOKEN_HEADER).and_then(|value| value.to_str().ok()),
    };
    let token = token.ok_or_else(|| {
        Error::new(Code::Unauthorized, "the token is missing").hint("use the whole link, with 'atoll_token'")
    })?;
    Ok(Ingress { app }.download(token, &headers).await?)
}
