//! The tunnel of a sandbox.

use atoll_core::limits::TUNNEL_LISTENERS_MAX_COUNT;
use atoll_core::{Code, Error};
use axum::Extension;
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::auth::{Exec, OnSandbox};
use crate::error::{ApiError, ApiResult};
use crate::extract::Query;
use crate::ingress::tunnel;
use crate::serve::Slot;
use crate::shared::App;

/// Largest message of the client, bytes.
const MESSAGE_MAX_BYTES: usize = 1 << 20;

/// What is shown inside.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct OpenTunnel {
    /// A port of the sandbox's loopback whose connections come to the client (repeatable).
    #[serde(default)]
    listen: Vec<u16>,
}

/// Opens a tunnel: TCP connections to ports of a sandbox, and from inside to the client, over one WebSocket.
///
/// The binary messages carry one byte stream, yamux. The client opens a stream for each connection and
/// begins it with three bytes: 1, and the port, big-endian; the server answers with one byte: 0 connected,
/// 1 not allowed, 2 refused, 3 another version. With `listen` the server opens streams towards the client in
/// the same way, for connections that processes inside make to that port.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/tunnel", tag = "ports", security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name"), OpenTunnel),
    responses((status = 101, description = "A WebSocket")))]
pub(crate) async fn open_tunnel(
    caller: OnSandbox<Exec>,
    State(app): State<App>,
    Query(query): Query<OpenTunnel>,
    slot: Option<Extension<Slot>>,
    upgrade: std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> ApiResult<Response> {
    let upgrade = upgrade.map_err(|rejection| {
        ApiError(
            Error::new(Code::InvalidArgument, format!("not a WebSocket request: {rejection}"))
                .hint("connect with a WebSocket client, such as 'atoll tunnel'"),
        )
    })?;
    if query.listen.len() > TUNNEL_LISTENERS_MAX_COUNT || query.listen.contains(&0) {
        return Err(Error::invalid(
            "listen",
            format_args!("takes at most {TUNNEL_LISTENERS_MAX_COUNT} ports from 1 to 65535"),
        )
        .into());
    }
    let id = caller.sandbox().clone();
    let mut listeners = Vec::with_capacity(query.listen.len());
    for port in query.listen {
        listeners.push(app.engine.guest(&id).await?.listen_port(port).await?);
    }
    Ok(upgrade.max_message_size(MESSAGE_MAX_BYTES).max_frame_size(MESSAGE_MAX_BYTES).on_upgrade(
        move |socket| async move {
            let _held = (slot, app.tasks.token());
            let bytes = tunnel::bytes_of(socket, app.clone());
            let grant = caller.grant().clone();
            tunnel::serve(&app, bytes, tunnel::Ends { sandbox: id, grant, listeners }).await;
        },
    ))
}
