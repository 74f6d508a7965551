//! A sandbox as the clients read it. Generated clients insist on every required field and its type: numbers of cores and
//! GiB are whole ones.

use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::spec::IsolationLevel;
use atoll_dialect_kit::{time, uuid};
use atoll_store::SandboxRecord;
use serde_json::{Value, json};

use crate::extras::{self, Extras};
use crate::request::Root;

/// The region that clients see, when they named none.
pub(crate) const TARGET: &str = "local";
/// The one organisation of all clients.
pub(crate) const ORGANIZATION: &str = "atoll";
/// The version that the toolbox tells. Clients choose by it which calls they make.
pub(crate) const DAEMON_VERSION: &str = "0.226.1";

const GIB: u64 = 1 << 30;
const MINUTE_MS: u64 = 60_000;
/// Minutes after which a stopped sandbox counts as archived, when the client gives no number.
pub(crate) const AUTO_ARCHIVE_MIN: u64 = 7 * 24 * 60;
/// No interval.
const NEVER: i64 = -1;

/// The state in the protocol's words.
pub(crate) fn state(record: &SandboxRecord) -> &'static str {
    let keeps_memory = record.paused.is_some_and(PauseMode::keeps_processes);
    match record.state {
        SandboxState::Creating => "creating",
        SandboxState::Running => "started",
        SandboxState::Pausing if keeps_memory => "pausing",
        SandboxState::Pausing => "stopping",
        SandboxState::Paused if keeps_memory => "paused",
        SandboxState::Paused if is_archived(record) => "archived",
        SandboxState::Paused => "stopped",
        SandboxState::Resuming if keeps_memory => "resuming",
        SandboxState::Resuming => "starting",
        SandboxState::Deleting => "destroying",
        SandboxState::Failed => "error",
    }
}

fn is_archived(record: &SandboxRecord) -> bool {
    let extras = Extras::of(record);
    let after_ms = extras.auto_archive.unwrap_or(AUTO_ARCHIVE_MIN).saturating_mul(MINUTE_MS);
    let since = record.paused_ms.unwrap_or(u64::MAX);
    extras.archived || since.saturating_add(after_ms) <= time::now_ms()
}

fn desired(state: &str) -> &'static str {
    match state {
        "stopped" | "stopping" => "stopped",
        "archived" => "archived",
        "paused" | "pausing" => "paused",
        "destroying" | "destroyed" => "destroyed",
        _ => "started",
    }
}

fn class(level: IsolationLevel) -> &'static str {
    match level {
        IsolationLevel::Microvm => "linux-vm",
        IsolationLevel::Container | IsolationLevel::Gvisor => "container",
    }
}

fn minutes(ms: Option<u64>, none: i64) -> i64 {
    ms.map_or(none, |ms| i64::try_from(ms.div_ceil(MINUTE_MS)).unwrap_or(i64::MAX))
}

/// The name, or the id where there is none.
pub(crate) fn name(record: &SandboxRecord) -> String {
    record.name.clone().unwrap_or_else(|| uuid::of_sandbox(&record.id))
}

/// One sandbox.
pub(crate) fn sandbox(record: &SandboxRecord, root: &Root) -> Value {
    in_state(record, root, state(record))
}

/// The same, in a state that it has just reached.
pub(crate) fn in_state(record: &SandboxRecord, root: &Root, state: &str) -> Value {
    let (extras, spec) = (Extras::of(record), &record.spec);
    let (resources, idle) = (&spec.resources, &spec.idle);
    let stops = idle.on_idle.pause() != Some(PauseMode::Frozen);
    let idle_min = minutes(spec.idle_timeout_ms, 0);
    let delete_min = if extras.ephemeral { 0 } else { minutes(idle.delete_paused_after_ms, NEVER) };
    let volumes = spec.volumes.iter().map(|mount| match &mount.subpath {
        Some(subpath) => json!({"volumeId": mount.id, "mountPath": mount.path, "subpath": subpath}),
        None => json!({"volumeId": mount.id, "mountPath": mount.path}),
    });
    json!({
        "id": uuid::of_sandbox(&record.id),
        "organizationId": ORGANIZATION,
        "name": name(record),
        "snapshot": extras.snapshot.clone().unwrap_or_else(|| spec.image.clone()),
        "user": spec.user,
        "env": extras.env,
        "labels": extras::labels(record),
        "public": extras.public,
        "networkBlockAll": extras.network_block_all,
        "networkAllowList": extras.network_allow_list,
        "domainAllowList": extras.domain_allow_list,
        "kvm": spec.isolation == IsolationLevel::Microvm,
        "target": extras.target.as_deref().unwrap_or(TARGET),
        "cpu": resources.cpu_millis.div_ceil(1000),
        "gpu": 0,
        "memory": resources.memory_bytes.div_ceil(GIB),
        "disk": resources.disk_bytes.div_ceil(GIB),
        "state": state,
        "desiredState": desired(state),
        "errorReason": record.reason,
        "recoverable": false,
        "autoStopInterval": if stops { idle_min } else { 0 },
        "autoPauseInterval": if stops { 0 } else { idle_min },
        "autoArchiveInterval": extras.auto_archive.unwrap_or(AUTO_ARCHIVE_MIN),
        "autoDeleteInterval": delete_min,
        "autoDestroyAt": record.expires_ms.map(time::iso),
        "volumes": volumes.collect::<Vec<_>>(),
        "createdAt": time::iso(record.created_ms),
        "updatedAt": time::iso(record.paused_ms.unwrap_or(record.created_ms).max(record.created_ms)),
        "lastActivityAt": time::iso(record.last_active_ms.max(record.created_ms)),
        "sandboxClass": class(spec.isolation),
        "daemonVersion": DAEMON_VERSION,
        "toolboxProxyUrl": root.toolbox(),
    })
}
