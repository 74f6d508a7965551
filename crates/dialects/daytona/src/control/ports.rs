//! Addresses of ports and of the toolbox, and which clients may use them.

use atoll_core::Code;
use atoll_core::access::{AccessDraft, Target, parse_port};
use atoll_core::limits::DURATION_MAX_MS;
use atoll_dialect_kit::uuid;
use axum::extract::State;
use http::header::HOST;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::create::{PUBLIC, open_ports};
use crate::App;
use crate::error::{Failure, Result};
use crate::preview::{self, Signed};
use crate::request::{Json, Path, Query, Root};
use crate::view;
use crate::who::{self, Exec, Manage, On, Read};

/// Name of the accesses behind signed addresses.
const SIGNED: &str = "daytona signed preview";
/// Life of a signed address when the client gives none, seconds.
const SIGNED_S: u64 = 60;

fn host_of(headers: &HeaderMap) -> Option<&str> {
    headers.get(HOST).and_then(|host| host.to_str().ok())
}

fn port_of(text: &str) -> Result<u16> {
    parse_port(text).ok_or_else(|| Failure::bad("port: must be a number between 1 and 65535"))
}

/// The address of a port, for clients that have an API key or the token.
pub(super) async fn preview(
    on: On<Exec>,
    State(app): State<App>,
    headers: HeaderMap,
    Path((_, port)): Path<(String, String)>,
) -> Result<Json<Value>> {
    let port = port_of(&port)?;
    let url = preview::address(
        &app,
        &format!("{port}-{}", uuid::of_sandbox(&on.id)),
        &on.id,
        port,
        host_of(&headers),
    )?;
    let token = who::token_of(app.host.engine(), &on.caller.key(), &on.id);
    Ok(Json(json!({"sandboxId": uuid::of_sandbox(&on.id), "url": url, "token": token})))
}

/// How long a signed address is good for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Life {
    #[serde(rename = "expiresInSeconds")]
    seconds: Option<u64>,
}

/// An address that needs no token.
pub(super) async fn signed(
    on: On<Exec>,
    State(app): State<App>,
    headers: HeaderMap,
    Path((_, port)): Path<(String, String)>,
    Query(life): Query<Life>,
) -> Result<Json<Value>> {
    let port = port_of(&port)?;
    let ttl_ms = life.seconds.unwrap_or(SIGNED_S).saturating_mul(1000);
    if !(1000..=DURATION_MAX_MS).contains(&ttl_ms) {
        return Err(Failure::bad("expiresInSeconds: must lie between 1 second and one year"));
    }
    let draft = AccessDraft {
        target: Target::Port(port),
        public: false,
        name: Some(SIGNED.to_owned()),
        ttl_ms: Some(ttl_ms),
    };
    let made = app.host.engine().create_access(&on.id, draft, on.caller.engine()).await?;
    let token = who::sign(app.host.engine(), &on.caller.key(), &made.record, port).label();
    let url = preview::address(&app, &format!("{port}-{token}"), &on.id, port, host_of(&headers))?;
    Ok(Json(json!({"sandboxId": uuid::of_sandbox(&on.id), "port": port, "token": token, "url": url})))
}

/// Ends a signed address.
pub(super) async fn expire(
    on: On<Exec>,
    State(app): State<App>,
    Path((_, port, token)): Path<(String, String, String)>,
) -> Result<StatusCode> {
    let (engine, port) = (app.host.engine(), port_of(&port)?);
    let unknown = || Failure::not_found("this signed preview URL is not there, or has expired");
    let signed = Signed::parse(&token).filter(|signed| signed.sandbox == on.id).ok_or_else(unknown)?;
    who::by_signed(engine, &signed, port).await.map_err(|_over| unknown())?;
    engine.revoke_access(&on.id, signed.access.as_str()).await?;
    Ok(StatusCode::OK)
}

/// Opens the ports for every client, or only for those with a key or token.
pub(super) async fn set_public(
    on: On<Manage>,
    root: Root,
    State(app): State<App>,
    Path((_, public)): Path<(String, bool)>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    let record = engine.sandbox(&on.id)?;
    let ours = engine.accesses(&on.id)?.into_iter();
    let ours: Vec<_> = ours.filter(|access| access.name.as_deref() == Some(PUBLIC)).collect();
    if public && ours.is_empty() {
        open_ports(engine, &record, on.caller.engine()).await?;
    }
    for access in ours.iter().filter(|_| !public) {
        match engine.revoke_access(&on.id, access.id.as_str()).await {
            Err(error) if error.code != Code::AccessNotFound => return Err(error.into()),
            _ => {}
        }
    }
    let record = super::lifecycle::note(engine, &record, |extras| extras.public = public).await?;
    Ok(Json(view::sandbox(&record, &root)))
}

/// The address of its toolbox.
pub(super) async fn toolbox_url(_: On<Read>, root: Root) -> Json<Value> {
    Json(json!({"url": root.toolbox()}))
}

/// The key with which a client signs addresses of files: it stands for the API key that asks.
pub(super) async fn signing_key(on: On<Exec>, State(app): State<App>) -> Result<Json<String>> {
    let record = app.host.engine().sandbox(&on.id)?;
    Ok(Json(who::signing_key(app.host.engine(), &on.caller.key(), &record)))
}

/// Makes all addresses invalid that were signed so far.
pub(super) async fn rotate_signing_key(on: On<Manage>, State(app): State<App>) -> Result<Json<String>> {
    let engine = app.host.engine();
    let record = engine.sandbox(&on.id)?;
    let record = super::lifecycle::note(engine, &record, |extras| extras.signing += 1).await?;
    Ok(Json(who::signing_key(engine, &on.caller.key(), &record)))
}
