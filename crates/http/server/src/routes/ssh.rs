//! SSH: keys, and the way for clients that cannot reach the port itself.

use std::sync::Arc;

use atoll_api::{CreateSshKey, SshInfo, SshKey, SshKeyList};
use atoll_core::key::Scope;
use atoll_core::{Code, Error};
use atoll_engine::VerifiedKey;
use atoll_store::SshKeyRecord;
use axum::Extension;
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::response::Response;
use http::StatusCode;

use crate::auth::{Caller, Exec};
use crate::error::{ApiError, ApiResult};
use crate::extract::{Json, Path};
use crate::ingress::tunnel;
use crate::serve::{Peer, Slot};
use crate::shared::App;
use crate::ssh::{Ssh, SshClient};

fn enabled(app: &App) -> ApiResult<&Ssh> {
    app.ssh.get().ok_or_else(|| {
        ApiError(
            Error::new(Code::InvalidState, "this server has SSH switched off")
                .hint("start it without --no-ssh"),
        )
    })
}

/// What SSH clients need to know about this server.
#[utoipa::path(get, path = "/v1/ssh", tag = "ssh", security(("key" = ["exec"])),
    responses((status = 200, body = SshInfo)))]
pub(crate) async fn get_ssh(_: Caller<Exec>, State(app): State<App>) -> ApiResult<Json<SshInfo>> {
    let Ssh { host_key, host_key_alias, .. } = enabled(&app)?.clone();
    Ok(Json(SshInfo { host_key, host_key_alias }))
}

/// A connection for an SSH client over a WebSocket, for when a proxy in front knows only HTTP: binary messages
/// carry its bytes. The client logs in as over any other connection.
#[utoipa::path(get, path = "/v1/ssh/connect", tag = "ssh", security(("key" = ["exec"])),
    responses((status = 101, description = "A WebSocket")))]
pub(crate) async fn connect_ssh(
    caller: Caller<Exec>,
    State(app): State<App>,
    peer: Option<Extension<Peer>>,
    slot: Option<Extension<Slot>>,
    upgrade: std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> ApiResult<Response> {
    let door = Arc::clone(&enabled(&app)?.door);
    let upgrade = upgrade.map_err(|rejection| {
        ApiError(
            Error::new(Code::InvalidArgument, format!("not a WebSocket request: {rejection}"))
                .hint("connect with a WebSocket client, such as 'atoll ssh'"),
        )
    })?;
    let peer = peer.map(|Extension(Peer(address))| address);
    Ok(upgrade.on_upgrade(move |socket| async move {
        let _held = (slot, app.tasks.token());
        let bytes = tunnel::bytes_of(socket, app.clone());
        // The SSH server checks the login; this tunnel to it is opened by the caller's right, and ends with that.
        tokio::select! {
            () = door(SshClient::new(&app, Box::new(bytes), peer)) => {}
            () = app.engine.until_revoked(caller.grant()) => {}
        }
    }))
}

fn convert(record: SshKeyRecord) -> SshKey {
    SshKey {
        id: record.id.into(),
        name: record.name,
        public_key: record.public_key,
        fingerprint: record.fingerprint,
        owner: record.owner.into(),
        created_at_ms: record.created_ms,
        expires_at_ms: record.expires_ms,
    }
}

/// Of whom a caller may see and remove keys: its own; an admin's, all.
fn of(caller: &Caller<Exec>) -> Option<&VerifiedKey> {
    if caller.has(Scope::Admin) { None } else { Some(caller.key()) }
}

/// Registers an SSH public key: who logs in with it may do what the API key of this request may. Registering
/// it again replaces its name and end.
#[utoipa::path(post, path = "/v1/ssh-keys", tag = "ssh", security(("key" = ["exec"])),
    request_body = CreateSshKey, responses((status = 201, body = SshKey)))]
pub(crate) async fn add_ssh_key(
    caller: Caller<Exec>,
    State(app): State<App>,
    Json(request): Json<CreateSshKey>,
) -> ApiResult<(StatusCode, Json<SshKey>)> {
    let CreateSshKey { name, public_key, ttl_ms } = request;
    let record = app.engine.add_ssh_key(&name, &public_key, ttl_ms, caller.key()).await?;
    Ok((StatusCode::CREATED, Json(convert(record))))
}

/// Lists the SSH keys of the API key of this request; those of all for an admin.
#[utoipa::path(get, path = "/v1/ssh-keys", tag = "ssh", security(("key" = ["exec"])),
    responses((status = 200, body = SshKeyList)))]
pub(crate) async fn list_ssh_keys(
    caller: Caller<Exec>,
    State(app): State<App>,
) -> ApiResult<Json<SshKeyList>> {
    let records = app.engine.ssh_keys(of(&caller)).await?;
    Ok(Json(SshKeyList { items: records.into_iter().map(convert).collect() }))
}

/// Removes an SSH key: no new login works with it, and those that are open end.
#[utoipa::path(delete, path = "/v1/ssh-keys/{id}", tag = "ssh", security(("key" = ["exec"])),
    params(("id" = String, Path)), responses((status = 204)))]
pub(crate) async fn remove_ssh_key(
    caller: Caller<Exec>,
    State(app): State<App>,
    Path(id): Path<String>,
) -> ApiResult<StatusCode> {
    app.engine.remove_ssh_key(&id, of(&caller)).await?;
    Ok(StatusCode::NO_CONTENT)
}
