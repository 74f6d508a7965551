//! What a sandbox is made of: [`SandboxDraft`] as asked, [`SandboxSpec`] as it will be made.
//!
//! A draft is checked by itself here. How it becomes a spec, with what its template and its image say, is in
//! [`resolve`](super::resolve).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::check;
use super::isolation::{Accelerator, IsolationLevel};
use super::resources::{Resources, ResourcesDraft};
use super::template::TemplateSpec;
use crate::build::{CommandText, Ready};
use crate::error::{Error, Result};
use crate::execution::ExecutionPolicy;
use crate::id::{BuildId, SnapshotId};
use crate::idle::IdlePolicy;
use crate::layer::{Layer, check_layers};
use crate::limits::SECRETS_PRIVATE_MAX_COUNT;
use crate::node;
use crate::policy::EgressPolicy;
use crate::profile::Profiles;
use crate::secret::Secret;
use crate::service::{Restart, Services, check_services};
use crate::sharing::Visibility;
use crate::snapshot::{AutoCheckpoints, Durability};
use crate::trace::{TraceFiles, TraceMode};
use crate::usage::Budget;
use crate::volume::{VolumeMount, VolumeMountDraft, check_mounts};

/// What an image says about how to run it. Hostile text: validated like a caller's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageDefaults {
    /// The image's environment.
    pub env: BTreeMap<String, String>,
    /// The image's user.
    pub user: Option<String>,
    /// The image's working directory.
    pub workdir: Option<String>,
}

/// The idempotency key of a request, so that the sandbox is made once however often it is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestKey {
    /// As its caller chose it.
    pub key: String,
    /// Of the whole request, to tell a retry from a key that is used twice.
    pub digest: String,
}

/// What a caller asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxDraft {
    /// A name, unique among the living.
    pub name: Option<String>,
    /// The image; the template's, or the server's default, when absent.
    pub image: Option<String>,
    /// Template as `name` (newest version) or `name:version`.
    pub template: Option<String>,
    /// Snapshot to begin with: its id, or `name:tag`. Excludes an image.
    pub snapshot: Option<String>,
    /// Go on from the snapshot's memory, too: its processes.
    pub memory: bool,
    /// Checkpoints that it takes by itself.
    pub auto_checkpoints: Option<AutoCheckpoints>,
    /// How it outlives its node.
    pub durability: Option<Durability>,
    /// The isolation level; the template's, or the server's default, when absent.
    pub isolation: Option<IsolationLevel>,
    /// Labels that the node must have on which it is made.
    pub node_labels: BTreeMap<String, String>,
    /// Limits.
    pub resources: ResourcesDraft,
    /// Variables on top of the image's and the template's.
    pub env: BTreeMap<String, String>,
    /// Labels, to find it again.
    pub labels: BTreeMap<String, String>,
    /// Texts kept beside it for the key that made it; never interpreted.
    pub annotations: BTreeMap<String, String>,
    /// Default user of execs.
    pub user: Option<String>,
    /// Default working directory of execs; made when it is absent.
    pub workdir: Option<String>,
    /// Delete it this long after creation.
    pub ttl_ms: Option<u64>,
    /// Delete it after this long without a running exec or a request.
    pub idle_timeout_ms: Option<u64>,
    /// Secrets for this sandbox alone, by name.
    pub secrets: BTreeMap<String, Secret>,
    /// What it may reach; the template's, or the server's default, when absent.
    pub egress: Option<EgressPolicy>,
    /// Volumes to mount.
    pub volumes: Vec<VolumeMountDraft>,
    /// What it does while no client uses it.
    pub idle: IdlePolicy,
    /// Hard limits on what it may use.
    pub budget: Budget,
    /// Which keys see it, from its first moment on; the server's default when absent.
    pub visibility: Option<Visibility>,
    /// The build whose steps it runs.
    pub build: Option<BuildId>,
    /// How it is recorded; as the server says when absent.
    pub trace: Option<TraceMode>,
    /// Files of which is told when they change.
    pub trace_files: Option<TraceFiles>,
    /// Which programs may run; as the template says, or all, when absent.
    pub execution: Option<ExecutionPolicy>,
    /// Agent layers to mount: the image of each, by its name.
    pub layers: BTreeMap<String, String>,
    /// Its profiles; the template's, or none, when absent.
    pub profiles: Option<Profiles>,
    /// Services that it begins with, beside its template's; one of the same name stands in the place of the template's.
    pub services: Services,
}

/// What will be made, complete. Kept by the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxSpec {
    /// The image as it was named.
    pub image: String,
    /// The template version it came from, as `name:version`.
    pub template: Option<String>,
    /// The snapshot it began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// Checkpoints that it takes by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_checkpoints: Option<AutoCheckpoints>,
    /// How it outlives its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// The isolation level.
    pub isolation: IsolationLevel,
    /// What executes its machine, at a level that has machines; a weaker one never does. Known to the server only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<Accelerator>,
    /// Limits.
    pub resources: Resources,
    /// The whole environment of execs.
    pub env: BTreeMap<String, String>,
    /// Default user of execs.
    pub user: String,
    /// Default working directory of execs; `None` is the user's home.
    pub workdir: Option<String>,
    /// Delete it after this long without a running exec or a request, milliseconds.
    pub idle_timeout_ms: Option<u64>,
    /// What it may reach.
    #[serde(default)]
    pub egress: EgressPolicy,
    /// Volumes that are mounted in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeMount>,
    /// What it does while no client uses it.
    #[serde(default)]
    pub idle: IdlePolicy,
    /// Hard limits on what it may use.
    #[serde(default)]
    pub budget: Budget,
    /// What runs in it from its creation on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<CommandText>,
    /// When it is ready: its creation waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
    /// When what runs in it from its creation on is started again in the same boot; never when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// The build whose steps it runs: it goes with that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildId>,
    /// How it is recorded; as the server says when absent, and never less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceMode>,
    /// Files of which is told when they change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_files: Option<TraceFiles>,
    /// Which programs may run.
    #[serde(default, skip_serializing_if = "ExecutionPolicy::is_open")]
    pub execution: ExecutionPolicy,
    /// What its processes may do, each with less than the sandbox.
    #[serde(default, skip_serializing_if = "Profiles::is_empty")]
    pub profiles: Profiles,
    /// A file on its disk that was changed last before this moment was put there by its template: it counts as the
    /// image's. Known to the server only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_until_ms: Option<u64>,
    /// How long it was given to live, milliseconds, when it was made or when that was changed last; without an end when
    /// absent. Earlier versions kept the end only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Agent layers that are mounted in it, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub layers: BTreeMap<String, Layer>,
    /// Services that it begins with. What became of them is not said here.
    #[serde(default, skip_serializing_if = "Services::is_empty")]
    pub services: Services,
}

/// Checks names and sizes of secrets that are given with a sandbox. No error repeats a value.
pub(super) fn secrets(values: &BTreeMap<String, Secret>) -> Result<()> {
    if values.len() > SECRETS_PRIVATE_MAX_COUNT {
        return Err(Error::invalid("secrets", format_args!("more than {SECRETS_PRIVATE_MAX_COUNT}")));
    }
    for (name, value) in values {
        crate::policy::secret_name("secrets", name)?;
        crate::policy::secret_value(&format!("secrets.{name}"), value)?;
    }
    Ok(())
}

impl SandboxDraft {
    /// Checks the form of everything that does not need a look-up, so that bad input is refused
    /// before anything is touched.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Code::InvalidArgument) or [`PathInvalid`](crate::Code::PathInvalid) naming the field.
    pub fn validate(&self) -> Result<()> {
        if let Some(name) = &self.name {
            check::name("name", name)?;
        }
        if let Some(image) = &self.image {
            check::image_reference("image", image)?;
            if self.snapshot.is_some() {
                return Err(Error::invalid(
                    "image",
                    "a snapshot brings its own image: leave one of them out",
                ));
            }
        }
        self.auto_checkpoints.map_or(Ok(()), AutoCheckpoints::validate)?;
        self.durability.map_or(Ok(()), Durability::validate)?;
        check::env("env", &self.env)?;
        check::labels("labels", &self.labels)?;
        node::validate_labels("node_labels", &self.node_labels)?;
        check::annotations("annotations", &self.annotations)?;
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
        secrets(&self.secrets)?;
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
        if self.memory && !self.services.is_empty() {
            let why = "a sandbox that goes on from memory has its processes already";
            return Err(
                Error::invalid("services", why).hint("add them once it runs, with 'atoll service add'")
            );
        }
        check_mounts(&self.volumes)?;
        check_layers(self.layers.iter().map(|(name, image)| (name, Some(image))))?;
        self.idle.validate()?;
        self.budget.validate()?;
        Ok(())
    }

    /// The image this draft means, given its template; none when it leaves that to the server.
    #[must_use]
    pub fn image_name<'a>(&'a self, template: Option<&'a TemplateSpec>) -> Option<&'a str> {
        self.image.as_deref().or_else(|| template.map(|t| t.image.as_str()))
    }
}

impl SandboxSpec {
    /// What every command finds in its environment: its own variables over those of its injection rules.
    #[must_use]
    pub fn exec_env(&self) -> BTreeMap<String, String> {
        let mut env = crate::policy::inject::env(&self.egress);
        env.extend(self.env.clone());
        env
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn an_id_is_no_name() {
        let id = crate::id::SandboxId::from_parts(1, 1);
        let draft = SandboxDraft { name: Some(id.to_string()), ..SandboxDraft::default() };
        assert!(draft.validate().is_err());
    }

    #[test]
    fn what_goes_on_from_memory_begins_no_services() {
        let service = crate::service::ServiceSpec::new(CommandText::Shell("x".into()));
        let draft = SandboxDraft { services: [("web".into(), service)].into(), ..SandboxDraft::default() };
        assert_eq!(draft.validate(), Ok(()));
        let error = SandboxDraft { memory: true, ..draft }.validate().unwrap_err();
        assert!(error.code == Code::InvalidArgument && error.message.contains("services"), "{error}");
    }
}
