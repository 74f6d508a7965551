//! Sandboxes.

use std::collections::BTreeMap;

use atoll_core::execution::ExecutionPolicy;
use atoll_core::idle::{IdlePolicy, IdleUpdate, OnIdle};
use atoll_core::layer::Layer;
use atoll_core::policy::EgressPolicy;
use atoll_core::profile::Profiles;
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::secret::Secret;
use atoll_core::sharing::Visibility;
use atoll_core::snapshot::{AutoCheckpoints, Durability};
use atoll_core::spec::{
    Accelerator, IsolationLevel, Resources, ResourcesDraft, SandboxDraft, SandboxUpdate, client_annotations,
    present,
};
use atoll_core::trace::{TraceFiles, TraceMode};
use atoll_core::usage::Budget;
use atoll_core::volume::{VolumeMount, VolumeMountDraft};
use atoll_core::{Error, Result};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{CreateService, ErrorBody};

/// Makes a sandbox. Everything is optional: `{}` makes one from the image `host`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateSandbox {
    /// Who sees it, from its first moment on: `private` is you, administrators, and whom you grant a role. When
    /// absent: `private` if it goes on from a private snapshot, else the server's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Visibility>,
    /// A name, unique among existing sandboxes: a DNS label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The image: `host`, or one that was pulled, loaded or imported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// A template: `name` for its newest version, or `name:version`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// A snapshot to begin with: its id, `name` or `name:tag`. It brings its image, environment and limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Go on from the snapshot's memory, too: its processes run in the new sandbox. The snapshot must have been taken with memory,
    /// on this host with these programs; limits can be lower than its own and not higher.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// Take checkpoints by itself: when it is made, and after every exec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_checkpoints: Option<AutoCheckpoints>,
    /// On a server of several with an object store: how it outlives its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// How strongly it is cut off. Never silently downgraded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<IsolationLevel>,
    /// In a cluster: labels that the node must have on which it is made.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_labels: BTreeMap<String, String>,
    /// Limits.
    pub resources: ResourcesDraft,
    /// Environment of every exec.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Labels, to find it again.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Texts kept beside it for you: at most 32 keys, 128 KiB together; never interpreted.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Default user of execs: name or id, optionally `:group`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Default working directory; made when it is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Delete it this long after creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Delete it after this long without a running exec or a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout_ms: Option<u64>,
    /// Secrets for this sandbox alone, by name: its injection rules find them before the server's. Never returned.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", serialize_with = "crate::secret::reveal_all")]
    #[schema(value_type = BTreeMap<String, String>)]
    pub secrets: BTreeMap<String, Secret>,
    /// What it may reach; the template's, or the server's default, when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressPolicy>,
    /// Volumes to mount.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeMountDraft>,
    /// What the end of the idle timeout means; `delete` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_idle: Option<OnIdle>,
    /// Freeze it after this long without a running exec or a request. The next use thaws it; its state stays
    /// `running`. Processes that execs left behind stand still meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_freeze_ms: Option<u64>,
    /// Pause it as `filesystem` when it has been paused as `frozen` for this long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hibernate_after_ms: Option<u64>,
    /// Delete it when it has been paused, in whatever mode, for this long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete_paused_after_ms: Option<u64>,
    /// Hard limits on what it may use in its whole life.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// How much of what it does is recorded; as the server says when absent, and never less than that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceMode>,
    /// Files of which the journal tells when they change, by the word of the sandbox's agent. Needs a sandbox that is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_files: Option<TraceFiles>,
    /// Which programs may run; as the template says, or all, when absent. Needs a sandbox that is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution: Option<ExecutionPolicy>,
    /// Agent layers, by name: the image that is mounted read-only at `/opt/agents/NAME`. It has one layer, as those that
    /// `atoll agent build` and `POST /v1/images/import` make.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub layers: BTreeMap<String, String>,
    /// Profiles of its processes; the template's, or none, when absent. They stay as they are. Containers only, and a sandbox that is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profiles: Option<Profiles>,
    /// Services that it begins with, beside its template's: its creation waits until they have settled. One with the name of a
    /// template's stands in its place.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<CreateService>,
}

impl TryFrom<CreateSandbox> for SandboxDraft {
    type Error = Error;

    /// Fails as [`client_annotations`] and [`CreateService::into_specs`].
    fn try_from(request: CreateSandbox) -> Result<Self> {
        client_annotations("annotations", request.annotations.keys())?;
        Ok(Self {
            name: request.name,
            image: request.image,
            template: request.template,
            snapshot: request.snapshot,
            memory: request.memory,
            auto_checkpoints: request.auto_checkpoints,
            durability: request.durability,
            isolation: request.isolation,
            node_labels: request.node_labels,
            resources: request.resources,
            env: request.env,
            labels: request.labels,
            annotations: request.annotations,
            user: request.user,
            workdir: request.workdir,
            ttl_ms: request.ttl_ms,
            idle_timeout_ms: request.idle_timeout_ms,
            secrets: request.secrets,
            egress: request.egress,
            volumes: request.volumes,
            idle: IdlePolicy {
                on_idle: request.on_idle.unwrap_or_default(),
                freeze_ms: request.idle_freeze_ms,
                hibernate_after_ms: request.hibernate_after_ms,
                delete_paused_after_ms: request.delete_paused_after_ms,
                pause_at_end: None,
            },
            budget: request.budget.unwrap_or_default(),
            trace: request.trace,
            trace_files: request.trace_files,
            execution: request.execution,
            layers: request.layers,
            profiles: request.profiles,
            services: CreateService::into_specs(request.services)?,
            visibility: request.visibility,
            ..Self::default()
        })
    }
}

/// A sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    /// Its id.
    pub id: String,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Where it is in its life.
    pub state: SandboxState,
    /// Why it failed, was paused by Atoll, or was woken without the memory that it was paused with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How it is paused, while it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<PauseMode>,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_at_ms: Option<u64>,
    /// Since when everything that it needs to be woken on another node is in the object store, too. Absent while it runs, as long as
    /// it is not, and where there are no nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_at_ms: Option<u64>,
    /// Names the boot it is in. Another one means that every process in it was started anew.
    #[serde(default)]
    pub boot_id: String,
    /// The image as it was named.
    pub image: String,
    /// Digest of the image's manifest; absent for `host`.
    pub image_digest: Option<String>,
    /// The template version it came from.
    pub template: Option<String>,
    /// Id of the snapshot it began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Checkpoints that it takes by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_checkpoints: Option<AutoCheckpoints>,
    /// How it outlives its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// Its node died, and it was brought back from a copy of this moment: what was done afterwards is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored_from_ms: Option<u64>,
    /// When that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored_at_ms: Option<u64>,
    /// The isolation level.
    pub isolation: IsolationLevel,
    /// What executes its machine, at the level `microvm`: `kvm`, or `emulated`, which is no security boundary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<Accelerator>,
    /// Limits.
    pub resources: Resources,
    /// Environment of every exec.
    pub env: BTreeMap<String, String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Texts kept beside it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Default user of execs.
    pub user: String,
    /// Default working directory of execs.
    pub workdir: Option<String>,
    /// When it was made.
    pub created_at_ms: u64,
    /// When it will be deleted at the latest.
    pub expires_at_ms: Option<u64>,
    /// See [`CreateSandbox::idle_timeout_ms`].
    pub idle_timeout_ms: Option<u64>,
    /// What it may reach.
    #[serde(default)]
    pub egress: EgressPolicy,
    /// Which programs may run.
    #[serde(default)]
    pub execution: ExecutionPolicy,
    /// Profiles of its processes.
    #[serde(default, skip_serializing_if = "Profiles::is_empty")]
    pub profiles: Profiles,
    /// See [`CreateSandbox::on_idle`].
    #[serde(default)]
    pub on_idle: OnIdle,
    /// See [`CreateSandbox::idle_freeze_ms`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_freeze_ms: Option<u64>,
    /// See [`CreateSandbox::hibernate_after_ms`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hibernate_after_ms: Option<u64>,
    /// See [`CreateSandbox::delete_paused_after_ms`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_paused_after_ms: Option<u64>,
    /// See [`CreateSandbox::budget`].
    #[serde(default)]
    pub budget: Budget,
    /// When it was last used.
    pub last_active_at_ms: u64,
    /// Id of the key that made it.
    pub owner: Option<String>,
    /// Id of the project that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// Volumes that are mounted in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeMount>,
    /// Agent layers that are mounted in it below `/opt/agents`, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub layers: BTreeMap<String, Layer>,
}

/// A page of sandboxes, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxList {
    /// The page.
    pub items: Vec<Sandbox>,
    /// Pass it as `cursor` for the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Changes a sandbox. Absent fields stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateSandbox {
    /// A new name. The host name inside stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Sets variables of later execs; `null` removes one.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Option<String>>,
    /// New default user of later execs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// New default working directory of later execs. `null` is the user's home.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub workdir: Option<Option<String>>,
    /// Sets annotations; `null` removes one.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, Option<String>>,
    /// Replaces all labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Extends (or shortens) its life: it ends this long from now. `null` removes the end.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub ttl_ms: Option<Option<u64>>,
    /// New idle timeout. `null` removes it.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub idle_timeout_ms: Option<Option<u64>>,
    /// New limits; the disk's cannot change.
    pub resources: ResourcesDraft,
    /// Adds secrets for this sandbox alone, or gives them new values. Never returned.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", serialize_with = "crate::secret::reveal_all")]
    #[schema(value_type = BTreeMap<String, String>)]
    pub secrets: BTreeMap<String, Secret>,
    /// Replaces what it may reach, at once: connections that are no longer allowed are cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressPolicy>,
    /// What the end of the idle timeout means.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_idle: Option<OnIdle>,
    /// Freeze it after this long without use. `null` removes it.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub idle_freeze_ms: Option<Option<u64>>,
    /// Pause it as `filesystem` when it has been paused as `frozen` for this long. `null` removes it.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub hibernate_after_ms: Option<Option<u64>>,
    /// Delete it when it has been paused for this long. `null` removes it.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub delete_paused_after_ms: Option<Option<u64>>,
    /// Replaces the budget. What was used stays used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Replaces which programs may run, at once. What runs already goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution: Option<ExecutionPolicy>,
    /// Mounts other images as agent layers, at once: what is open in one that goes stays open. `null` takes one away. At the
    /// isolation level `gvisor` it has them when it is next started.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub layers: BTreeMap<String, Option<String>>,
}

impl TryFrom<UpdateSandbox> for SandboxUpdate {
    type Error = Error;

    /// Fails as [`client_annotations`].
    fn try_from(request: UpdateSandbox) -> Result<Self> {
        client_annotations("annotations", request.annotations.keys())?;
        Ok(Self {
            name: request.name,
            env: request.env,
            user: request.user,
            workdir: request.workdir,
            annotations: request.annotations,
            labels: request.labels,
            ttl_ms: request.ttl_ms,
            idle_timeout_ms: request.idle_timeout_ms,
            resources: request.resources,
            secrets: request.secrets,
            egress: request.egress,
            asked_by: None,
            idle: IdleUpdate {
                on_idle: request.on_idle,
                freeze_ms: request.idle_freeze_ms,
                hibernate_after_ms: request.hibernate_after_ms,
                delete_paused_after_ms: request.delete_paused_after_ms,
                pause_at_end: None,
            },
            budget: request.budget,
            execution: request.execution,
            layers: request.layers,
        })
    }
}

/// Makes several sandboxes at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchCreate {
    /// At most 256.
    pub sandboxes: Vec<CreateSandbox>,
}

/// One outcome of a batch: exactly one of the two is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BatchResult {
    /// The sandbox that was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    /// Why it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorBody>,
}

/// Outcomes of a batch, in the order of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BatchResults {
    /// One for each request.
    pub results: Vec<BatchResult>,
}

/// What a sandbox uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Metrics {
    /// CPU time since creation, microseconds.
    pub cpu_us: u64,
    /// Memory now, bytes.
    pub memory_bytes: u64,
    /// Highest memory so far, bytes.
    pub memory_peak_bytes: u64,
    /// Memory limit, bytes.
    pub memory_limit_bytes: u64,
    /// Processes and threads now.
    pub pids: u32,
    /// Times the kernel killed something because memory ran out.
    pub oom_kills: u64,
    /// Space of the writable disk on the host, bytes.
    pub disk_host_bytes: u64,
    /// Size of the file system as seen inside, bytes.
    pub disk_total_bytes: u64,
    /// Used of it, bytes.
    pub disk_used_bytes: u64,
    /// Seconds since the guest started.
    pub uptime_s: u64,
    /// What was read from its disks and written to them. Counted at the level `microvm` while it runs, and not while it
    /// is paused or copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_io: Option<DiskIo>,
}

/// What was read from the disks of a sandbox and written to them since it was last started: a wake begins at zero.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskIo {
    /// Bytes read, the image's included; what was in a cache inside is not read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_of_the_servers_own_are_not_for_clients() {
        let create = |key: &str| {
            let annotations = [(key.to_owned(), String::new())].into();
            SandboxDraft::try_from(CreateSandbox { annotations, ..CreateSandbox::default() })
        };
        let update = |key: &str, value: Option<&str>| {
            let annotations = [(key.to_owned(), value.map(str::to_owned))].into();
            SandboxUpdate::try_from(UpdateSandbox { annotations, ..UpdateSandbox::default() })
        };
        assert!(create("mine").is_ok() && update("mine", Some("")).is_ok() && update("mine", None).is_ok());
        assert!(create("atoll-unfinished").is_err());
        assert!(update("atoll-unfinished", Some("")).is_err(), "it is not set");
        assert!(update("atoll-unfinished", None).is_err(), "it is not removed");
    }
}
