//! A template: a named, versioned recipe for sandboxes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::check;
use super::isolation::IsolationLevel;
use super::resources::{Caps, Resources, ResourcesDraft};
use crate::build::{self, CommandText, Ready};
use crate::error::Result;
use crate::execution::ExecutionPolicy;
use crate::id::SnapshotId;
use crate::policy::EgressPolicy;
use crate::pool::PoolSpec;
use crate::profile::Profiles;
use crate::service::{Restart, Services, check_services, check_start};

/// The recipe. What it leaves open comes from the image or the defaults when a sandbox is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateSpec {
    /// The image.
    pub image: String,
    /// The snapshot that its sandboxes begin with; the image is the snapshot's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// The isolation level.
    pub isolation: Option<IsolationLevel>,
    /// Limits.
    pub resources: ResourcesDraft,
    /// Variables on top of the image's.
    pub env: BTreeMap<String, String>,
    /// Labels that every sandbox of this template gets.
    pub labels: BTreeMap<String, String>,
    /// Default user of execs.
    pub user: Option<String>,
    /// Default working directory of execs.
    pub workdir: Option<String>,
    /// Time to live, milliseconds.
    pub ttl_ms: Option<u64>,
    /// Idle timeout, milliseconds.
    pub idle_timeout_ms: Option<u64>,
    /// How many of it wait warm; none when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolSpec>,
    /// What its sandboxes may reach; the server's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressPolicy>,
    /// What runs in every sandbox from its creation on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<CommandText>,
    /// When a sandbox is ready: its creation waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
    /// When what runs in it from its creation on is started again in the same boot; never when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// Boot one sandbox until it is ready, and let the others go on from its memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// Which programs may run in its sandboxes; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<ExecutionPolicy>,
    /// Profiles of its sandboxes; none when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiles: Option<Profiles>,
    /// Services that every sandbox begins with.
    #[serde(default, skip_serializing_if = "Services::is_empty")]
    pub services: Services,
}

impl TemplateSpec {
    /// A recipe that only names an image.
    #[must_use]
    pub fn new(image: impl Into<String>) -> Self {
        Self {
            image: image.into(),
            snapshot: None,
            isolation: None,
            resources: ResourcesDraft::default(),
            env: BTreeMap::new(),
            labels: BTreeMap::new(),
            user: None,
            workdir: None,
            ttl_ms: None,
            idle_timeout_ms: None,
            pool: None,
            egress: None,
            start: None,
            ready: None,
            restart: None,
            memory: false,
            execution: None,
            profiles: None,
            services: Services::new(),
        }
    }

    /// Checks every field's form.
    ///
    /// # Errors
    /// [`crate::Code::InvalidArgument`] or [`crate::Code::PathInvalid`] naming the field.
    pub fn validate(&self) -> Result<()> {
        check::image_reference("image", &self.image)?;
        check::env("env", &self.env)?;
        check::labels("labels", &self.labels)?;
        self.resources.over(Resources::default()).validate(&Caps::default())?;
        if let Some(user) = &self.user {
            check::user("user", user)?;
        }
        if let Some(workdir) = &self.workdir {
            check::path("workdir", workdir)?;
        }
        if let Some(ms) = self.ttl_ms {
            check::duration("ttl_ms", ms)?;
        }
        if let Some(ms) = self.idle_timeout_ms {
            check::duration("idle_timeout_ms", ms)?;
        }
        if let Some(pool) = &self.pool {
            pool.validate("pool")?;
        }
        if let Some(egress) = &self.egress {
            egress.validate("egress")?;
        }
        if let Some(execution) = &self.execution {
            execution.validate("execution")?;
        }
        if let Some(profiles) = &self.profiles {
            profiles.validate("profiles")?;
        }
        check_services(&self.services)?;
        build::validate_start(self.start.as_ref(), self.ready.as_ref())?;
        check_start(self.start.is_some(), self.restart, &self.services)
    }
}
