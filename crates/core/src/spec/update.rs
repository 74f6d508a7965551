//! Changes of a sandbox that lives.

use std::collections::BTreeMap;

use super::check;
use super::resources::{Caps, Resources, ResourcesDraft};
use super::sandbox::secrets;
use crate::error::{Error, Result};
use crate::execution::ExecutionPolicy;
use crate::id::KeyId;
use crate::idle::IdleUpdate;
use crate::layer::check_layers;
use crate::policy::EgressPolicy;
use crate::secret::Secret;
use crate::usage::Budget;

/// What can change while a sandbox lives. Absent fields stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxUpdate {
    /// A new name. The host name inside stays.
    pub name: Option<String>,
    /// Sets (`Some`) or removes (`None`) variables in the environment of later execs.
    pub env: BTreeMap<String, Option<String>>,
    /// New default user of later execs.
    pub user: Option<String>,
    /// New default working directory of later execs; `Some(None)` is the user's home.
    pub workdir: Option<Option<String>>,
    /// Sets (`Some`) or removes (`None`) annotations.
    pub annotations: BTreeMap<String, Option<String>>,
    /// Replaces all labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// New end, this long from now; `Some(None)` removes it.
    pub ttl_ms: Option<Option<u64>>,
    /// New idle timeout; `Some(None)` removes it.
    pub idle_timeout_ms: Option<Option<u64>>,
    /// New limits. The disk's cannot change.
    pub resources: ResourcesDraft,
    /// New values for secrets of this sandbox alone, by name.
    pub secrets: BTreeMap<String, Secret>,
    /// The API key that asks: secrets that are for some keys only are refused to other keys.
    pub asked_by: Option<KeyId>,
    /// Replaces what it may reach. Connections that are no longer allowed are cut.
    pub egress: Option<EgressPolicy>,
    /// Changes of what it does while no client uses it.
    pub idle: IdleUpdate,
    /// Replaces the budget. What was used stays used.
    pub budget: Option<Budget>,
    /// Replaces which programs may run. What runs already goes on.
    pub execution: Option<ExecutionPolicy>,
    /// Mounts (`Some`) other images as agent layers, or takes layers away (`None`), by name.
    pub layers: BTreeMap<String, Option<String>>,
}

impl SandboxUpdate {
    /// Checks the update and gives the limits that follow from it.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] naming the field.
    pub fn validate(&self, current: Resources, caps: &Caps) -> Result<Resources> {
        if let Some(name) = &self.name {
            check::name("name", name)?;
        }
        if let Some(user) = &self.user {
            check::user("user", user)?;
        }
        if let Some(Some(workdir)) = &self.workdir {
            check::path("workdir", workdir)?;
        }
        if let Some(labels) = &self.labels {
            check::labels("labels", labels)?;
        }
        if let Some(Some(ms)) = self.ttl_ms {
            check::duration("ttl_ms", ms)?;
        }
        if let Some(Some(ms)) = self.idle_timeout_ms {
            check::duration("idle_timeout_ms", ms)?;
        }
        secrets(&self.secrets)?;
        if let Some(egress) = &self.egress {
            egress.validate("egress")?;
        }
        if let Some(budget) = &self.budget {
            budget.validate()?;
        }
        if let Some(execution) = &self.execution {
            execution.validate("execution")?;
        }
        check_layers(self.layers.iter().map(|(name, image)| (name, image.as_ref())))?;
        let resources = self.resources.over(current);
        resources.validate(caps)?;
        if resources.disk_bytes != current.disk_bytes {
            return Err(Error::invalid("resources.disk_bytes", "cannot change while the sandbox lives"));
        }
        Ok(resources)
    }

    /// The environment of later execs, given the present one.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] naming the variable.
    pub fn env(&self, current: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>> {
        let next = changed(current, &self.env);
        check::env("env", &next)?;
        Ok(next)
    }

    /// The annotations, given the present ones.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] naming the key.
    pub fn annotations(&self, current: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>> {
        let next = changed(current, &self.annotations);
        check::annotations("annotations", &next)?;
        Ok(next)
    }
}

/// `current` with `changes` made to it.
fn changed(
    current: &BTreeMap<String, String>,
    changes: &BTreeMap<String, Option<String>>,
) -> BTreeMap<String, String> {
    let mut next = current.clone();
    for (key, value) in changes {
        match value {
            Some(value) => drop(next.insert(key.clone(), value.clone())),
            None => drop(next.remove(key)),
        }
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_does_not_change() {
        let current = Resources::default();
        let asked = ResourcesDraft { disk_bytes: Some(current.disk_bytes * 2), ..ResourcesDraft::default() };
        let update = SandboxUpdate { resources: asked, ..SandboxUpdate::default() };
        assert!(update.validate(current, &Caps::default()).is_err());
        assert_eq!(SandboxUpdate::default().validate(current, &Caps::default()).unwrap(), current);
    }
}
