//! A sandbox as the clients read it.

use std::collections::BTreeMap;

use atoll_core::idle::OnIdle;
use atoll_core::sandbox::SandboxState;
use atoll_store::SandboxRecord;
use serde::Serialize;
use serde_json::Value;

use crate::extras::{Extras, RunConfig};
use crate::ids;
use crate::request::Root;
use crate::time::iso;

/// The sandbox object.
#[derive(Debug, Serialize)]
pub(crate) struct Sandbox {
    id: String,
    name: String,
    status: &'static str,
    status_message: Option<String>,
    /// It is there in every state and always the same: clients keep it over a stop and a start.
    dataplane_url: String,
    created_at: String,
    updated_at: String,
    stopped_at: Option<String>,
    idle_ttl_seconds: u64,
    delete_after_stop_seconds: u64,
    snapshot_id: Option<String>,
    vcpus: u32,
    cpu_millicores: u32,
    mem_bytes: u64,
    fs_capacity_bytes: u64,
    labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    volumes: Vec<Volume>,
    run_config: RunConfig,
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy_config: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    access_delegation: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag_value_ids: Option<Value>,
    persistent: bool,
    preserve_memory_on_stop: bool,
    created_by: Option<String>,
}

/// A volume that is mounted.
#[derive(Debug, Serialize)]
struct Volume {
    volume: String,
    mount_path: String,
    read_only: bool,
}

/// The word for a state, and the reason, if there is one. The clients have no words for a sandbox that is about to stop
/// or to start. The first counts as stopped, because the next use has to wake it; the second is not ready yet.
pub(crate) fn status(record: &SandboxRecord) -> (&'static str, Option<String>) {
    let word = match record.state {
        SandboxState::Creating | SandboxState::Resuming => "provisioning",
        SandboxState::Running => "ready",
        SandboxState::Pausing | SandboxState::Paused => "stopped",
        SandboxState::Deleting => "deleting",
        SandboxState::Failed => "failed",
    };
    (word, record.reason.clone())
}

/// The name by which the clients know a sandbox: its name, or its id when another API gave it none.
pub(crate) fn name(record: &SandboxRecord) -> String {
    record.name.clone().unwrap_or_else(|| record.id.to_string())
}

impl Sandbox {
    pub(crate) fn new(record: SandboxRecord, root: &Root) -> Self {
        let extras = Extras::of(&record);
        let (status, status_message) = status(&record);
        let name = name(&record);
        let id = ids::of_sandbox(&record.id);
        let (resources, idle) = (record.spec.resources, record.spec.idle);
        let volumes = record.spec.volumes.into_iter().map(|mount| Volume {
            volume: mount.name,
            mount_path: mount.path,
            read_only: mount.read_only,
        });
        Self {
            status,
            status_message,
            dataplane_url: root.url(&format!("/{id}")),
            id,
            name,
            created_at: iso(record.created_ms),
            updated_at: iso(extras.updated_ms.unwrap_or(record.created_ms)),
            stopped_at: record.paused_ms.filter(|_| status == "stopped").map(iso),
            idle_ttl_seconds: record.spec.idle_timeout_ms.unwrap_or_default() / 1000,
            delete_after_stop_seconds: idle.delete_paused_after_ms.unwrap_or_default() / 1000,
            snapshot_id: record.spec.snapshot.as_ref().map(ids::of_snapshot),
            vcpus: resources.cpu_millis.div_ceil(1000),
            cpu_millicores: resources.cpu_millis,
            mem_bytes: resources.memory_bytes,
            fs_capacity_bytes: resources.disk_bytes,
            labels: record.labels,
            volumes: volumes.collect(),
            run_config: extras.run_config,
            proxy_config: extras.proxy_config,
            access_delegation: extras.access_delegation,
            tag_value_ids: extras.tag_value_ids,
            // Files survive every stop.
            persistent: true,
            preserve_memory_on_stop: idle.on_idle == OnIdle::Freeze,
            created_by: record.owner.map(Into::into),
        }
    }
}
