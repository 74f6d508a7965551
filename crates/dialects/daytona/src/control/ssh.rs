//! SSH by token: `ssh TOKEN@HOST` at the server's own port.

use atoll_core::Code;
use atoll_core::limits::DURATION_MAX_MS;
use atoll_dialect_kit::request::Caller;
use atoll_dialect_kit::{time, uuid};
use axum::extract::State;
use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::error::{Failure, Result};
use crate::request::{Json, Query, Root};
use crate::view::{self, ORGANIZATION};
use crate::who::{Exec, On, Read};

/// Name of the accesses behind tokens.
const NAME: &str = "daytona ssh";
/// How long a token is good when the client gives no time, minutes.
const LIFE_MIN: u64 = 60;
const MINUTE_MS: u64 = 60_000;
/// Names an organisation. The Python SDK (0.205 to 0.226) puts the token to be revoked here, and nowhere else.
const ORGANIZATION_HEADER: &str = "x-daytona-organization-id";

/// How long a token is good.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Life {
    #[serde(rename = "expiresInMinutes")]
    minutes: Option<u64>,
}

/// Makes a token.
pub(super) async fn create(
    on: On<Exec>,
    root: Root,
    State(app): State<App>,
    Query(life): Query<Life>,
) -> Result<Json<Value>> {
    if !app.host.has_ssh() {
        return Err(crate::unsupported("SSH access", "it was started with --no-ssh"));
    }
    let ttl_ms = life.minutes.unwrap_or(LIFE_MIN).saturating_mul(MINUTE_MS);
    if !(MINUTE_MS..=DURATION_MAX_MS).contains(&ttl_ms) {
        return Err(Failure::bad("expiresInMinutes: must lie between 1 minute and one year"));
    }
    let made = app.host.engine().create_ssh_token(&on.id, NAME, ttl_ms, on.caller.engine()).await?;
    let (access, token) = (&made.access, made.token.reveal());
    let (host, port) = root.host_and_port();
    Ok(Json(json!({
        "id": access.id,
        "sandboxId": uuid::of_sandbox(&on.id),
        "token": token,
        "expiresAt": time::iso(access.expires_ms.unwrap_or_default()),
        "createdAt": time::iso(access.created_ms),
        "updatedAt": time::iso(access.created_ms),
        "sshCommand": format!("ssh -p {port} {token}@{host}"),
    })))
}

/// The token that the client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Which {
    token: Option<String>,
}

/// Ends a token, or all tokens that this key made. Clients that have logged in with it are cut off.
pub(super) async fn revoke(
    on: On<Exec>,
    root: Root,
    State(app): State<App>,
    headers: HeaderMap,
    Query(which): Query<Which>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    let misplaced = headers.get(ORGANIZATION_HEADER).and_then(|value| value.to_str().ok());
    let misplaced = misplaced.filter(|text| *text != ORGANIZATION).map(str::to_owned);
    let ours = match which.token.or(misplaced).filter(|token| !token.is_empty()) {
        Some(token) => {
            let unknown = || Failure::not_found("this SSH token is not there, or has expired");
            let (_, access) = engine.verify_ssh_token(&token).map_err(|_over| unknown())?;
            if *access.sandbox() != on.id {
                return Err(unknown());
            }
            vec![access.id().clone()]
        }
        None => {
            let own = on.caller.key();
            let all = engine.accesses(&on.id)?.into_iter();
            let ours =
                all.filter(|one| one.name.as_deref() == Some(NAME) && one.created_by.as_ref() == Some(&own));
            ours.map(|one| one.id).collect()
        }
    };
    for id in ours {
        match engine.revoke_access(&on.id, id.as_str()).await {
            Err(error) if error.code != Code::AccessNotFound => return Err(error.into()),
            _ => {}
        }
    }
    Ok(Json(view::sandbox(&engine.sandbox(&on.id)?, &root)))
}

/// Whether a token is good, and for which sandbox. A client that has the token may log in, and so may know this.
pub(super) async fn validate(
    _: Caller<Read>,
    State(app): State<App>,
    Query(which): Query<Which>,
) -> Json<Value> {
    let found = app.host.engine().verify_ssh_token(which.token.as_deref().unwrap_or_default());
    let sandbox = found.as_ref().map(|(_, access)| uuid::of_sandbox(access.sandbox())).unwrap_or_default();
    Json(json!({"valid": found.is_ok(), "sandboxId": sandbox}))
}
