//! The rest of the control plane: forks, the clients' questions about the server, and routes that it does not support.

use atoll_core::spec::{IsolationLevel, SandboxUpdate};
use atoll_dialect_kit::request::Caller;
use atoll_dialect_kit::sandboxes::finish;
use atoll_engine::{ForkOrder, Made};
use atoll_server::dialect::Undo;
use axum::Extension;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::error::{Failure, Result};
use crate::extras::{self, Extras};
use crate::request::{Json, Root};
use crate::view::{self, DAEMON_VERSION, TARGET};
use crate::who::{Manage, On, Read};

/// Longest time until a stopped sandbox counts as archived, minutes.
pub(super) const MAX_AUTO_ARCHIVE_MIN: u64 = 30 * 24 * 60;

/// The fork that a client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Fork {
    name: Option<String>,
}

/// Makes a sandbox that goes on from the state of this one: with its processes in virtual machines, with its files
/// elsewhere.
pub(super) async fn fork(
    on: On<Manage>,
    root: Root,
    State(app): State<App>,
    Json(asked): Json<Fork>,
) -> Result<(Extension<Undo>, Json<Value>)> {
    let (engine, by) = (app.host.engine(), on.caller.engine());
    let parent = engine.sandbox(&on.id)?;
    let order = ForkOrder {
        count: 1,
        name: asked.name.filter(|name| !name.is_empty()),
        memory: parent.spec.isolation == IsolationLevel::Microvm,
        ..ForkOrder::default()
    };
    let made = engine.fork_sandbox(&on.id, &order, by).await?;
    let child = made.into_iter().next().ok_or_else(|| Failure::internal("the fork made nothing"))??;
    // The parent's open ports do not make the child's ports open.
    let extras = Extras { public: false, ..Extras::of(&parent) };
    let annotations = [(extras::KEY.to_owned(), Some(extras.text()?))].into();
    let update = SandboxUpdate { annotations, ..SandboxUpdate::default() };
    let told = finish(engine, by, Made::New(child), |child| async move {
        engine.update_sandbox(&child.id, update).await.map_err(|error| Failure::of(&error))
    });
    let child = told.await?.into_record();
    let undo = app.host.undo(vec![child.id.clone()]);
    Ok((Extension(undo), Json(view::in_state(&child, &root, "started"))))
}

/// Whether the server is there.
pub(super) async fn health() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// The server's settings that the clients ask for.
pub(super) async fn config(_: Caller<Read>, root: Root, State(app): State<App>) -> Json<Value> {
    Json(json!({
        "version": DAEMON_VERSION,
        "proxyTemplateUrl": format!("{}://{{{{PORT}}}}-{{{{sandboxId}}}}.{}", root.scheme(), app.host.ports_domain()),
        "proxyToolboxUrl": root.toolbox(),
        "defaultSnapshot": super::origin::DEFAULT,
        "defaultRegion": TARGET,
        "environment": "production",
        // As the protocol spells it.
        "maintananceMode": false,
        "oidc": {"issuer": "", "clientId": "", "audience": "", "provider": ""},
        "linkedAccountsEnabled": false,
        "announcements": {},
        "dashboardUrl": root.url(""),
        "maxAutoArchiveInterval": MAX_AUTO_ARCHIVE_MIN,
    }))
}

pub(super) async fn no_telemetry(_: On<Read>) -> Failure {
    let instead = "ask the toolbox for /system/metrics, or the server for /metrics";
    crate::unsupported("telemetry", instead)
}
