//! A devbox as the clients read it.

use atoll_core::sandbox::SandboxState;
use atoll_store::SandboxRecord;
use serde_json::{Value, json};

use crate::App;
use crate::extras::{self, Extras, Phase};
use crate::ids;

/// The word for the state of a devbox.
pub(crate) fn status(app: &App, record: &SandboxRecord) -> &'static str {
    match record.state {
        SandboxState::Creating => "provisioning",
        SandboxState::Running => match Extras::of(record).phase {
            Some(Phase::Initializing) if app.setups.is_live(&record.id) => "initializing",
            // The task that set it up is gone: the server stopped.
            Some(Phase::Initializing | Phase::Failed) => "failure",
            None => "running",
        },
        SandboxState::Pausing => "suspending",
        SandboxState::Paused => "suspended",
        SandboxState::Resuming => "resuming",
        SandboxState::Deleting => "shutdown",
        SandboxState::Failed => "failure",
    }
}

/// The whole answer about one devbox. It is remembered for the time after the devbox's end.
pub(crate) fn view(app: &App, record: &SandboxRecord) -> Value {
    let value = render(app, record);
    app.ended.note(record, &value);
    value
}

fn render(app: &App, record: &SandboxRecord) -> Value {
    let extras = Extras::of(record);
    let status = status(app, record);
    let id = ids::of_sandbox(&record.id);
    let mut transitions = vec![json!({"status": "provisioning", "transition_time_ms": record.created_ms})];
    let now = match record.paused_ms.filter(|_| status == "suspended") {
        Some(at_ms) => json!({"status": status, "transition_time_ms": at_ms}),
        None => json!({"status": status}),
    };
    if status != "provisioning" {
        transitions.push(now);
    }
    let mut view = json!({
        "id": id,
        "name": extras.name.clone().or_else(|| record.name.clone()).unwrap_or_else(|| id.clone()),
        "status": status,
        "create_time_ms": record.created_ms,
        "end_time_ms": null,
        "metadata": extras::metadata(record),
        "launch_parameters": launch_parameters(record, &extras),
        "state_transitions": transitions,
        "capabilities": [],
        "initiator_type": "api",
        "blueprint_id": extras.blueprint_id,
        "snapshot_id": extras.snapshot_id,
        "gateway_specs": extras.gateway_specs,
        "tunnel": extras.tunnel.as_ref().map(|tunnel| tunnel.view(app.host.engine(), &record.id, None)),
    });
    if status == "failure" {
        let out_of_memory = record.reason.as_deref().is_some_and(|why| why.contains("memory"));
        view["failure_reason"] = if out_of_memory { "out_of_memory" } else { "execution_failed" }.into();
    }
    view
}

/// The parameters that the client gave, and the values in force for those that it left out.
fn launch_parameters(record: &SandboxRecord, extras: &Extras) -> Value {
    let mut shown = extras.launch_parameters.clone().filter(Value::is_object).unwrap_or_else(|| json!({}));
    if shown.get("keep_alive_time_seconds").is_none_or(Value::is_null)
        && let Some(seconds) = extras.keep_alive_s
    {
        shown["keep_alive_time_seconds"] = seconds.into();
    }
    if shown.get("user_parameters").is_none_or(Value::is_null) && record.spec.user == "root" {
        shown["user_parameters"] = json!({"username": "root", "uid": 0});
    }
    shown
}
