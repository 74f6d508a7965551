//! Changing a sandbox.

use std::collections::BTreeMap;

use atoll_core::idle::{IdleUpdate, OnIdle};
use atoll_core::spec::SandboxUpdate;
use atoll_engine::Caller as EngineCaller;
use atoll_server::dialect::Host;
use atoll_store::SandboxRecord;
use axum::extract::State;
use serde::Deserialize;
use serde_json::Value;

use super::create::on_idle;
use super::{Size, find, ttl_ms};
use crate::error::{Failure, Result};
use crate::extras::{self, Extras, RunConfig};
use crate::proxy;
use crate::request::{Caller, Json, Manage, Root};
use crate::view::Sandbox;

/// A change. Absent fields stay as they are.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Update {
    name: Option<String>,
    #[serde(flatten)]
    size: Size,
    run_config: Option<RunConfig>,
    idle_ttl_seconds: Option<u64>,
    delete_after_stop_seconds: Option<u64>,
    proxy_config: Option<Value>,
    tag_value_ids: Option<Value>,
}

impl Update {
    fn apply(self, record: &SandboxRecord, caller: &EngineCaller) -> Result<SandboxUpdate> {
        let ttl = |field, seconds: Option<u64>| seconds.map(|seconds| ttl_ms(field, seconds)).transpose();
        let idle = IdleUpdate {
            // A client that sets an idle time wants the sandbox to stop then, not to be deleted.
            on_idle: (self.idle_ttl_seconds.is_some() && record.spec.idle.on_idle == OnIdle::Delete)
                .then(|| on_idle(false)),
            delete_paused_after_ms: ttl("delete_after_stop_seconds", self.delete_after_stop_seconds)?,
            ..IdleUpdate::default()
        };
        let mut extras = Extras::of(record);
        let before = extras.clone();
        if let Some(run_config) = self.run_config {
            extras.run_config = run_config;
        }
        let reach = match &self.proxy_config {
            Some(config) => {
                let plan = proxy::plan(config, &record.spec.egress, extras.opened)?;
                extras.opened = plan.opened;
                extras.proxy_config = Some(proxy::redacted(config));
                Some((plan.policy, plan.secrets))
            }
            None => None,
        };
        let (egress, secrets) = reach.unzip();
        extras.tag_value_ids = self.tag_value_ids.or(extras.tag_value_ids);
        extras.updated_ms = Some(crate::time::now_ms());
        let (old, new) = (before.run_config, &extras.run_config);
        let mut update = SandboxUpdate {
            name: self.name.filter(|name| record.name.as_ref() != Some(name)),
            env: difference(&old.env_vars.unwrap_or_default(), &new.env_vars.clone().unwrap_or_default()),
            user: new.user.clone(),
            workdir: new.work_dir.clone().map(Some),
            annotations: BTreeMap::from([(extras::KEY.to_owned(), Some(extras.text()?))]),
            resources: self.size.resources()?,
            idle_timeout_ms: ttl("idle_ttl_seconds", self.idle_ttl_seconds)?,
            idle,
            egress,
            secrets: secrets.unwrap_or_default(),
            asked_by: caller.key().cloned(),
            ..SandboxUpdate::default()
        };
        // The disk's size is the one limit that cannot change; the same size again is no change.
        if update.resources.disk_bytes == Some(record.spec.resources.disk_bytes) {
            update.resources.disk_bytes = None;
        }
        Ok(update)
    }
}

/// The changes that make `old` into `new`.
fn difference(
    old: &BTreeMap<String, String>,
    new: &BTreeMap<String, String>,
) -> BTreeMap<String, Option<String>> {
    let gone = old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), None));
    gone.chain(new.iter().map(|(key, value)| (key.clone(), Some(value.clone())))).collect()
}

/// Changes a sandbox.
pub(crate) async fn update(
    caller: Caller<Manage>,
    root: Root,
    State(host): State<Host>,
    Json(request): Json<Update>,
) -> Result<Json<Sandbox>> {
    let record = find(&host, &caller)?;
    let update = request.apply(&record, caller.engine())?;
    let record =
        host.engine().update_sandbox(&record.id, update).await.map_err(|error| Failure::control(&error))?;
    Ok(Json(Sandbox::new(record, &root)))
}
