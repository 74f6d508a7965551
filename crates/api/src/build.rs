//! Builds of templates.

use std::collections::BTreeMap;

use atoll_core::build::{BuildEvent, BuildFailure, BuildSpec, BuildState, Ready, StartFrom, Step};
use atoll_core::policy::EgressPolicy;
use atoll_core::secret::Secret;
use atoll_core::service::Restart;
use atoll_core::spec::{IsolationLevel, ResourcesDraft};
use atoll_core::{Error, Result};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::CreateService;

/// Builds the next version of a template, from a Dockerfile or a step list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateBuild {
    /// Name of the template: lower-case letters, digits, `-` and `_`.
    pub name: String,
    /// Tags that point to the version that it makes: names for versions, as in `name:tag`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The Dockerfile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dockerfile: Option<String>,
    /// The step list, instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<Vec<Step>>,
    /// What to leave out of the context, as in a `.dockerignore`; the one in the context when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore: Option<String>,
    /// Values of `ARG`s.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, String>,
    /// Values for `RUN --mount=type=secret`, by their `id`. Kept nowhere, and in no answer.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", serialize_with = "crate::secret::reveal_all")]
    #[schema(value_type = BTreeMap<String, String>)]
    pub secrets: BTreeMap<String, Secret>,
    /// The stage that is wanted, by name or number; the last when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Do every step again.
    pub no_cache: bool,
    /// What runs in every sandbox of the template: `{"command": …}`, or `"image"` for `ENTRYPOINT` and `CMD`.
    /// Nothing when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<StartFrom>,
    /// When a sandbox is ready: its creation waits for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
    /// When what the template starts is started again after it ended; never when absent. Each boot starts it anyway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// Start what the template starts once, in a sandbox that is deleted again, and wait until it is ready: what fails then
    /// fails the build, and not the first creation.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub verify: bool,
    /// Boot one sandbox of the template until it is ready, and let the others go on from its memory.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// Isolation level of the build and of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<IsolationLevel>,
    /// Limits of the steps' sandbox and of the template.
    pub resources: ResourcesDraft,
    /// Labels that every sandbox of the template gets.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What the steps may reach; the server's default when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressPolicy>,
    /// What sandboxes of the template may reach; the server's default when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template_egress: Option<EgressPolicy>,
    /// Time to live of the template's sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Idle timeout of the template's sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout_ms: Option<u64>,
    /// Give up after this long; one hour when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Services that every sandbox of the template begins with; those of the template that it is built on when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<CreateService>,
}

impl TryFrom<CreateBuild> for BuildSpec {
    type Error = Error;

    /// Fails as [`CreateService::into_specs`].
    fn try_from(request: CreateBuild) -> Result<Self> {
        Ok(Self {
            name: request.name,
            tags: request.tags,
            dockerfile: request.dockerfile,
            steps: request.steps,
            ignore: request.ignore,
            args: request.args,
            target: request.target,
            no_cache: request.no_cache,
            start: request.start,
            ready: request.ready,
            restart: request.restart,
            verify: request.verify,
            memory: request.memory,
            isolation: request.isolation,
            resources: request.resources,
            labels: request.labels,
            egress: request.egress,
            template_egress: request.template_egress,
            ttl_ms: request.ttl_ms,
            idle_timeout_ms: request.idle_timeout_ms,
            timeout_ms: request.timeout_ms,
            services: CreateService::into_specs(request.services)?,
        })
    }
}

/// A build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Build {
    /// Its id.
    pub id: String,
    /// Name of the template of which it makes a version.
    pub name: String,
    /// Where it is in its life.
    pub state: BuildState,
    /// Whether it copies files of a context: send it with `PUT …/context`.
    pub needs_context: bool,
    /// What it made, as `name:version`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Why it made nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<BuildFailure>,
    /// When it was asked for.
    pub created_at_ms: u64,
    /// When its work began.
    pub started_at_ms: Option<u64>,
    /// When it ended.
    pub ended_at_ms: Option<u64>,
    /// Id of the key that asked for it.
    pub created_by: Option<String>,
}

/// A page of builds, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BuildList {
    /// The page.
    pub items: Vec<Build>,
    /// Pass it as `cursor` for the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A piece of a build's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BuildLogPage {
    /// Entries, in order.
    pub entries: Vec<BuildEvent>,
    /// Pass it as `offset` to go on.
    pub next_offset: u64,
    /// Where the build is.
    pub state: BuildState,
    /// Whether there is nothing more, and never will be.
    pub over: bool,
}

/// One entry of the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BuildCacheEntry {
    /// Its key.
    pub key: String,
    /// The step, as it is shown.
    pub step: String,
    /// What it takes on the host, bytes. Entries share it with each other: all together count more than there is.
    pub size_bytes: u64,
    /// How long the step took.
    pub took_ms: u64,
    /// When it was made.
    pub created_at_ms: u64,
    /// When a build last used it.
    pub used_at_ms: u64,
    /// Whether a template stands on it.
    pub in_template: bool,
}

/// The cache, the longest unused first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BuildCacheList {
    /// The entries.
    pub items: Vec<BuildCacheEntry>,
}

/// How much of the cache to keep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PruneBuildCache {
    /// The longest unused entries go until the rest has this many bytes; 0 removes all.
    pub keep_bytes: u64,
}

/// What pruning did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BuildCachePruned {
    /// Entries that are gone.
    pub removed: u64,
    /// What they took on the host, bytes. They share it: the disk may gain less.
    pub freed_bytes: u64,
}
