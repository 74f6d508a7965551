//! SSH: a key for one devbox. It works at the address by which the client reached the API, for as long as the devbox
//! and the API key that asked for it exist.

use atoll_core::limits::DURATION_MAX_MS;
use atoll_server::dialect::Origin;
use axum::extract::State;
use serde_json::{Value, json};

use super::usable;
use crate::App;
use crate::error::{Failure, Result};
use crate::ids;
use crate::request::{Caller, Exec, Json, Path};

/// Name of the accesses behind keys.
const NAME: &str = "runloop ssh";

/// `POST /v1/devboxes/{devbox}/create_ssh_key`.
pub(super) async fn create(
    caller: Caller<Exec>,
    State(app): State<App>,
    Path(id): Path<String>,
    origin: Origin,
) -> Result<Json<Value>> {
    let record = usable(&app, &caller, &id)?;
    if !app.host.has_ssh() {
        return Err(Failure::unsupported("create_ssh_key: the server was started with --no-ssh"));
    }
    let engine = app.host.engine();
    let made = engine.create_ssh_key_for(&record.id, NAME, DURATION_MAX_MS, caller.engine()).await;
    let made = made.map_err(|error| Failure::of(&error))?;
    let broken = || Failure::of(&atoll_core::Error::new(atoll_core::Code::Internal, "no key could be made"));
    let key = app.host.ssh_private_key(&made.seed).ok_or_else(broken)?;
    Ok(Json(json!({
        "id": ids::of_sandbox(&record.id),
        "ssh_private_key": key.reveal(),
        "ssh_user": made.login,
        "url": origin.host_and_port().0,
    })))
}
