//! Addresses that a client can give away: of ports (`service-url`), of files (`download-url`).
//!
//! Both are the engine's accesses. A client of the SDK reaches a port below the data plane's own address, with
//! the token in a header; a browser gets the address by host name, where the port has an origin of its own.

use std::collections::BTreeMap;

use atoll_core::access::{AccessDraft, Target};
use atoll_core::{Code, Error};
use atoll_engine::{Access, Grant};
use atoll_server::Forward;
use atoll_server::dialect::ClientGone;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use http::header::HOST;
use http::{HeaderMap, HeaderName, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{Failure, Result};
use crate::ids;
use crate::request::{Caller, Exec, Json, Query, Read, Root};
use crate::time::iso;
use crate::{App, PREFIX};

/// Header that carries the token of a service.
const TOKEN: HeaderName = HeaderName::from_static("x-langsmith-sandbox-service-token");
/// Name of the accesses to ports, by which they are found again.
const NAME: &str = "langsmith service";
/// Life of a token when the client gives none, seconds.
const EXPIRES_DEFAULT_S: u64 = 600;
/// Longest life of a service's token, seconds.
const EXPIRES_MAX_S: u64 = 86_400;

fn fail(error: &Error) -> Failure {
    Failure::control(error)
}

fn host_of(headers: &HeaderMap) -> Option<&str> {
    headers.get(HOST).and_then(|host| host.to_str().ok())
}

/// A link to a port.
#[derive(Debug, Deserialize)]
pub(crate) struct ServiceRequest {
    port: u16,
    expires_in_seconds: Option<u64>,
    access: Option<String>,
}

/// The addresses of a port, and the token for it.
#[derive(Debug, Serialize)]
pub(crate) struct Service {
    port: u16,
    browser_url: String,
    service_url: String,
    token: String,
    expires_at: String,
}

/// The address of a port for the SDK.
fn service_url(root: &Root, id: &str, port: u16) -> String {
    root.url(&format!("/{id}/services/{port}"))
}

/// Makes a link to a port.
pub(crate) async fn service(
    caller: Caller<Exec>,
    root: Root,
    State(app): State<App>,
    headers: HeaderMap,
    Json(request): Json<ServiceRequest>,
) -> Result<Json<Service>> {
    if request.access.as_deref().is_some_and(|access| access != "off") {
        let why = "services behind a login are not supported by this server; leave it out for a token";
        return Err(Failure::field("access", why));
    }
    let seconds = request.expires_in_seconds.unwrap_or(EXPIRES_DEFAULT_S);
    if !(1..=EXPIRES_MAX_S).contains(&seconds) {
        return Err(Failure::field("expires_in_seconds", "must lie between 1 and 86400"));
    }
    let draft = AccessDraft {
        target: Target::Port(request.port),
        public: false,
        name: Some(NAME.to_owned()),
        ttl_ms: Some(seconds * 1000),
    };
    let (access, token) = access(&app, draft, &caller).await?;
    let browser = app.host.ingress().access_url(&access, host_of(&headers)).map_err(|error| fail(&error))?;
    Ok(Json(Service {
        port: request.port,
        browser_url: with_token(&browser, &token),
        service_url: service_url(&root, &ids::of_sandbox(&access.sandbox), request.port),
        token,
        expires_at: iso(access.expires_ms.unwrap_or_default()),
    }))
}

async fn access<S>(app: &App, draft: AccessDraft, caller: &Caller<S>) -> Result<(Access, String)> {
    let sandbox = caller.sandbox().map_err(|error| fail(&error))?;
    let made = app.host.engine().create_access(sandbox, draft, caller.engine()).await;
    let made = made.map_err(|error| fail(&error))?;
    let token = made.token.ok_or_else(|| fail(&Error::new(Code::Internal, "an access without a token")))?;
    Ok((made.record, token.reveal().to_owned()))
}

fn with_token(url: &str, token: &str) -> String {
    format!("{url}?atoll_token={token}")
}

/// The port of an access that this dialect made.
fn port_of(access: &Access) -> Option<u16> {
    match access.target {
        Target::Port(port) if access.name.as_deref() == Some(NAME) => Some(port),
        Target::Port(_) | Target::Ports | Target::File { .. } => None,
    }
}

/// Lists the ports that have links.
pub(crate) async fn services(
    caller: Caller<Read>,
    root: Root,
    State(app): State<App>,
) -> Result<Json<Value>> {
    let accesses =
        caller.sandbox().and_then(|id| app.host.engine().accesses(id)).map_err(|error| fail(&error))?;
    // If a port has several links, the last one in the engine's list is shown.
    let by_port: BTreeMap<u16, &Access> =
        accesses.iter().filter_map(|access| Some((port_of(access)?, access))).collect();
    let items: Vec<Value> = by_port
        .into_iter()
        .map(|(port, access)| {
            let url = service_url(&root, &ids::of_sandbox(&access.sandbox), port);
            json!({"port": port, "service_url": url, "expires_at": access.expires_ms.map(iso)})
        })
        .collect();
    Ok(Json(json!({"items": items, "next_cursor": null})))
}

/// The port that the client names.
#[derive(Debug, Deserialize)]
pub(crate) struct OfPort {
    port: u16,
}

/// Revokes every link to a port.
pub(crate) async fn revoke(
    caller: Caller<Exec>,
    State(app): State<App>,
    Query(query): Query<OfPort>,
) -> Result<StatusCode> {
    let engine = app.host.engine();
    let sandbox = caller.sandbox().map_err(|error| fail(&error))?;
    for access in engine.accesses(sandbox).map_err(|error| fail(&error))? {
        if port_of(&access) == Some(query.port) {
            match engine.revoke_access(sandbox, access.id.as_str()).await {
                Err(error) if error.code != Code::AccessNotFound => return Err(fail(&error)),
                _ => {}
            }
        }
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Passes a request on to a port, if its token is for that.
pub(crate) async fn forward(
    State(app): State<App>,
    Path(path): Path<BTreeMap<String, String>>,
    mut request: Request,
) -> Result<Response> {
    let unauthorized = || fail(&Error::new(Code::Unauthorized, "Authentication required"));
    let (id, port) = (path.get("id").ok_or_else(unauthorized)?, path.get("port").ok_or_else(unauthorized)?);
    let port: u16 = port.parse().map_err(|_malformed| Failure::field("port", "is not a port"))?;
    let token = request.headers_mut().remove(TOKEN).ok_or_else(unauthorized)?;
    let engine = app.host.engine();
    // The token is checked first, and everything that does not fit gets the same answer: a client without a token for
    // the sandbox does not learn whether there is such a sandbox.
    let access = engine.verify_access(token.to_str().unwrap_or_default()).map_err(|_why| unauthorized())?;
    let sandbox = access.sandbox().clone();
    if !engine.is_called(&sandbox, &ids::sandbox(id)) || !access.target().covers_port(port) {
        return Err(unauthorized());
    }
    // The server inside must not see this server's credentials.
    let (mut parts, body) = request.into_parts();
    app.host.ingress().strip_credentials(&mut parts);
    let mut request = Request::from_parts(parts, body);
    // The address as the client knows it: answers are confined to paths below it.
    let above = format!("{PREFIX}/v2/sandboxes");
    let prefix = format!("{above}/{id}/services/{port}");
    let uri = format!("{above}{}", request.uri());
    *request.uri_mut() = uri.parse().map_err(|_malformed| Failure::field("path", "is malformed"))?;
    let grant = Grant::of_link(access);
    let to = Forward { sandbox, port, prefix: Some(prefix), keep_host: false, tls: false, grant };
    let (ingress, headers) = (app.host.ingress(), request.headers().clone());
    // When the client goes, the forwarded request ends.
    let client = ClientGone::of(request.extensions());
    let forwarding = Box::pin(ingress.forward(request, to));
    let forwarded = client.unless_gone(forwarding).await.map_err(|error| fail(&error))?;
    Ok(forwarded.unwrap_or_else(|error| ingress.page(error, &headers)))
}

/// A link to a file.
#[derive(Debug, Deserialize)]
pub(crate) struct DownloadRequest {
    path: String,
    expires_in_seconds: Option<u64>,
    content_type: Option<String>,
    content_disposition: Option<String>,
}

/// Makes a link to a file.
pub(crate) async fn download(
    caller: Caller<Exec>,
    State(app): State<App>,
    headers: HeaderMap,
    Json(request): Json<DownloadRequest>,
) -> Result<Json<Value>> {
    let draft = AccessDraft {
        target: Target::File {
            path: request.path,
            media_type: request.content_type,
            inline: request.content_disposition.as_deref() == Some("inline"),
        },
        public: false,
        name: None,
        ttl_ms: request.expires_in_seconds.map(|seconds| seconds.saturating_mul(1000)),
    };
    let (access, token) = access(&app, draft, &caller).await?;
    let url = app.host.ingress().access_url(&access, host_of(&headers)).map_err(|error| fail(&error))?;
    Ok(Json(json!({
        "download_url": with_token(&url, &token),
        "token": token,
        "expires_at": access.expires_ms.map(iso),
    })))
}
