//! TCP connections to ports of a sandbox over one WebSocket: `tunnel`. The bytes are those of Atoll's own tunnels:
//! yamux, and for each stream three bytes of port and one byte of status.

use atoll_core::id::SandboxId;
use atoll_engine::Grant;
use atoll_server::dialect::Held;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::response::Response;
use http::StatusCode;

use crate::App;
use crate::boxes;
use crate::error::{Failure, Result};
use crate::request::{Caller, Exec};

/// Largest message that the server takes, bytes.
const MESSAGE_MAX_BYTES: usize = 16 << 20;

/// Opens a tunnel.
pub(crate) async fn attach(
    caller: Caller<Exec>,
    State(app): State<App>,
    upgrade: std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    request: http::Extensions,
) -> Result<Response> {
    let upgrade = upgrade.map_err(|rejection| {
        Failure::new(StatusCode::BAD_REQUEST, "InvalidRequest", format!("not a WebSocket: {rejection}"))
    })?;
    let engine = app.host.engine();
    let sandbox = caller.sandbox().map_err(|error| Failure::data("CommandError", &error))?.clone();
    drop(boxes::awake(engine, &sandbox).await.map_err(|error| Failure::data("CommandError", &error))?);
    let held = app.host.hold(&request);
    Ok(upgrade
        .max_message_size(MESSAGE_MAX_BYTES)
        .max_frame_size(MESSAGE_MAX_BYTES)
        .on_upgrade(move |socket| run(app, sandbox, caller.grant().clone(), socket, held)))
}

async fn run(app: App, sandbox: SandboxId, grant: Grant, socket: WebSocket, _held: Held) {
    app.host.ingress().tunnel_websocket(socket, sandbox, grant).await;
}
