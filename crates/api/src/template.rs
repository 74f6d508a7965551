//! Templates.

use std::collections::BTreeMap;

use atoll_core::Result;
use atoll_core::build::{CommandText, Ready};
use atoll_core::execution::ExecutionPolicy;
use atoll_core::id::SnapshotId;
use atoll_core::policy::EgressPolicy;
use atoll_core::pool::PoolSpec;
use atoll_core::profile::Profiles;
use atoll_core::service::Restart;
use atoll_core::spec::{IsolationLevel, ResourcesDraft, TemplateSpec};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::CreateService;

/// Makes a template, or the next version of an existing one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTemplate {
    /// Its name: lower-case letters, digits, `-` and `_`.
    pub name: String,
    /// The image. Leave it out when there is a snapshot.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub image: String,
    /// The snapshot that its sandboxes begin with: id, `name` or `name:tag`, looked up once, now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// The isolation level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<IsolationLevel>,
    /// Limits.
    #[serde(default)]
    pub resources: ResourcesDraft,
    /// Environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Labels that every sandbox of it gets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Default user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Default working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Time to live of its sandboxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Idle timeout of its sandboxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_ms: Option<u64>,
    /// How many of its sandboxes wait warm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolSpec>,
    /// What its sandboxes may reach; the server's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressPolicy>,
    /// What runs in every sandbox from its creation on: a line for the shell, or program and arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<CommandText>,
    /// When a sandbox is ready: its creation waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
    /// When what runs in every sandbox is started again after it ended; never when absent. Each boot starts it anyway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// Boot one sandbox until it is ready, and let the others go on from its memory. Needs a start command, and an
    /// isolation level that can copy sandboxes with their memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// Which programs may run in its sandboxes; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<ExecutionPolicy>,
    /// Profiles of the processes of its sandboxes; none when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiles: Option<Profiles>,
    /// Services that every sandbox of it begins with: its creation waits until they have settled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<CreateService>,
}

impl CreateTemplate {
    /// Name and recipe, for the id of the snapshot that was named.
    ///
    /// # Errors
    /// As [`CreateService::into_specs`].
    pub fn into_parts(self, snapshot: Option<SnapshotId>) -> Result<(String, TemplateSpec)> {
        let spec = TemplateSpec {
            image: self.image,
            snapshot,
            isolation: self.isolation,
            resources: self.resources,
            env: self.env,
            labels: self.labels,
            user: self.user,
            workdir: self.workdir,
            ttl_ms: self.ttl_ms,
            idle_timeout_ms: self.idle_timeout_ms,
            pool: self.pool,
            egress: self.egress,
            start: self.start,
            ready: self.ready,
            restart: self.restart,
            memory: self.memory,
            execution: self.execution,
            profiles: self.profiles,
            services: CreateService::into_specs(self.services)?,
        };
        Ok((self.name, spec))
    }
}

/// Where a tag points.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SetTemplateTag {
    /// The version; the newest when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
}

/// A name for one version of a template: `NAME:TAG` stands wherever `NAME:VERSION` can.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateTag {
    /// The tag.
    pub tag: String,
    /// The version that it means.
    pub version: u32,
    /// When it was pointed there.
    pub set_at_ms: u64,
}

/// The tags of a template, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateTagList {
    /// The tags.
    pub items: Vec<TemplateTag>,
}

/// One version of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Template {
    /// Id of this version.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its version, from 1.
    pub version: u32,
    /// The image.
    pub image: String,
    /// Id of the snapshot that its sandboxes begin with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// The isolation level.
    pub isolation: Option<IsolationLevel>,
    /// Limits.
    pub resources: ResourcesDraft,
    /// Environment.
    pub env: BTreeMap<String, String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Default user.
    pub user: Option<String>,
    /// Default working directory.
    pub workdir: Option<String>,
    /// Time to live of its sandboxes.
    pub ttl_ms: Option<u64>,
    /// Idle timeout of its sandboxes.
    pub idle_timeout_ms: Option<u64>,
    /// How many of its sandboxes wait warm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolSpec>,
    /// What its sandboxes may reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressPolicy>,
    /// What runs in every sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<CommandText>,
    /// When a sandbox is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
    /// When what runs in every sandbox is started again after it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// Which programs may run in its sandboxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<ExecutionPolicy>,
    /// Profiles of the processes of its sandboxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiles: Option<Profiles>,
    /// Services that every sandbox begins with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<CreateService>,
    /// The memory that its sandboxes go on from, where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<TemplateMemory>,
    /// When this version was made.
    pub created_at_ms: u64,
}

/// The memory that sandboxes of a template go on from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateMemory {
    /// Where it is.
    pub state: TemplateMemoryState,
    /// What failed last. Sandboxes boot then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// When it was saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_at_ms: Option<u64>,
    /// What it takes on the host, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u64>,
}

/// Where the memory of a template is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TemplateMemoryState {
    /// It is being saved, or soon will be. Sandboxes boot.
    Saving,
    /// Sandboxes go on from it.
    Saved,
    /// Saving it, or going on from it, failed; it is saved again later. Sandboxes boot.
    Failed,
    /// Only the newest version has one. Sandboxes of this version boot.
    Superseded,
}

/// Templates, newest version of each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateList {
    /// The templates.
    pub items: Vec<Template>,
}
