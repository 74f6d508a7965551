//! Changes of a sandbox that a caller asks for.

use atoll_core::policy::EgressPolicy;
use atoll_core::sandbox::{PauseMode, SandboxState, Wish, admit};
use atoll_core::spec::SandboxUpdate;
use atoll_core::{Code, Error, Result};
use atoll_store::SandboxRecord;

use super::Actor;
use crate::errors::{isolation_error, limit_error, store_error};
use crate::execution::execution;

impl Actor {
    pub(super) async fn update(&mut self, update: &SandboxUpdate) -> Result<SandboxRecord> {
        admit(self.record.state, Wish::Update, self.record.reason.as_deref())?;
        let mut next = self.updated(update)?;
        let limits = next.spec.resources != self.record.spec.resources;
        // From here on something changes: what fails puts back what was done before it.
        let renamed = update.name.as_ref().filter(|name| self.record.name.as_ref() != Some(name));
        if let Some(name) = renamed {
            self.inner.enter_name(&next, name)?;
            next.name = Some(name.clone());
        }
        match self.apply(&next, limits, update).await {
            Ok(generation) => next.generation = generation,
            Err(error) => {
                if let Some(name) = renamed {
                    self.inner.leave_name(&next, name);
                }
                return Err(error);
            }
        }
        if update.budget.is_some() {
            self.budget_ms = 0;
        }
        let before = std::mem::replace(&mut self.record, next);
        if update.egress.is_some() {
            self.inner.gateway.update(&self.record.id, self.inner.gateway_policy(&self.record.spec));
        }
        self.shared.publish(self.record.clone());
        if let Some(old) = before.name.filter(|_| renamed.is_some()) {
            self.inner.leave_name(&self.record, &old);
        }
        self.shared.touch();
        Ok(self.shared.record())
    }

    /// The record with a change in it, but for the name. Refuses what cannot be, and changes nothing.
    fn updated(&self, update: &SandboxUpdate) -> Result<SandboxRecord> {
        let resources = update.validate(self.record.spec.resources, &self.inner.config.caps)?;
        self.shared.driver().check_limits(&resources).map_err(|error| limit_error(&error))?;
        let mut next = SandboxRecord { last_active_ms: self.inner.now_ms(), ..self.record.clone() };
        next.spec.env = update.env(&next.spec.env)?;
        next.annotations = update.annotations(&next.annotations)?;
        if let Some(user) = &update.user {
            next.spec.user.clone_from(user);
        }
        if let Some(workdir) = &update.workdir {
            next.spec.workdir.clone_from(workdir);
        }
        if let Some(labels) = &update.labels {
            next.labels.clone_from(labels);
        }
        if let Some(ttl) = update.ttl_ms {
            next.expires_ms = ttl.map(|ttl| self.inner.now_ms().saturating_add(ttl));
            next.spec.ttl_ms = ttl;
        }
        if let Some(idle) = update.idle_timeout_ms {
            next.spec.idle_timeout_ms = idle;
        }
        if let Some(egress) = &update.egress {
            next.spec.egress.clone_from(egress);
            let by = update.asked_by.as_ref();
            let before = &self.record.spec.egress;
            self.check_execs(before, egress)?;
            self.inner.prepare_rules(&self.record, by, &mut next.spec.egress, before, &update.secrets)?;
        }
        if let Some(execution) = &update.execution {
            next.spec.execution.clone_from(execution);
        }
        if update.execution.is_some() || update.egress.is_some() {
            self.inner.check_execution(&next.spec)?;
        }
        if !update.layers.is_empty() {
            let changes = update.layers.iter().map(|(name, image)| (name, image.as_ref()));
            next.spec.layers = self.inner.change_layers(&next.spec, changes)?;
        }
        next.spec.idle = update.idle.over(next.spec.idle)?;
        if let Some(budget) = update.budget {
            next.spec.budget = budget;
        }
        if resources != next.spec.resources && self.record.state != SandboxState::Running {
            return Err(Error::new(Code::InvalidState, "limits can only change while the sandbox runs"));
        }
        next.spec.resources = resources;
        Ok(next)
    }

    /// Makes a change that was found good: all of it, or none but for secrets, which a repeated request puts again.
    /// Gives the new generation.
    async fn apply(&self, next: &SandboxRecord, limits: bool, update: &SandboxUpdate) -> Result<i64> {
        if update.egress.is_some() {
            self.trust_anew(&next.spec.egress).await?;
        }
        let driver = self.shared.driver();
        if limits {
            // One that dozes cannot be told.
            self.shared.rouse().await?;
            let told = driver.update(&next.id, &next.spec.resources).await;
            told.map_err(|error| isolation_error(&error))?;
        }
        let held = execution(&next.spec) != execution(&self.record.spec) && self.has_instance();
        let layers = if next.spec.layers == self.record.spec.layers || !self.has_instance() {
            None
        } else {
            let planned = |layers| self.inner.planned_layers(layers);
            Some((planned(&next.spec.layers)?, planned(&self.record.spec.layers)))
        };
        let by = update.asked_by.as_ref();
        let stored = async {
            if let Some((layers, _)) = &layers {
                let told = driver.set_layers(&next.id, layers).await;
                told.map_err(|error| isolation_error(&error))?;
            }
            if held {
                let told = driver.set_execution(&next.id, &execution(&next.spec)).await;
                told.map_err(|error| isolation_error(&error))?;
            }
            self.inner.put_private_secrets(next, &update.secrets, by).await?;
            self.inner.store.update_sandbox(next).await.map_err(store_error)
        };
        let stored = stored.await;
        if limits
            && stored.is_err()
            && let Err(error) = driver.update(&next.id, &self.record.spec.resources).await
        {
            let id = &next.id;
            tracing::error!(sandbox = %id, %error, "limits that were not recorded could not be taken back");
        }
        if held
            && stored.is_err()
            && let Err(error) = driver.set_execution(&next.id, &execution(&self.record.spec)).await
        {
            let id = &next.id;
            tracing::error!(sandbox = %id, %error, "which programs may run was changed, and is not recorded");
        }
        if let (Err(_), Some((_, Ok(before)))) = (&stored, &layers)
            && let Err(error) = driver.set_layers(&next.id, before).await
        {
            tracing::error!(sandbox = %next.id, %error, "agent layers were changed, and are not recorded");
        }
        stored
    }

    /// Refuses new rules for execs that do not run here: they would never apply to an exec.
    fn check_execs(&self, before: &EgressPolicy, after: &EgressPolicy) -> Result<()> {
        let known = before.origins();
        for origin in after.origins().iter().filter(|origin| !known.contains(origin)) {
            let Some(text) = origin.exec() else { continue };
            if self.shared.live_exec(&text.parse()?).is_none() {
                let why = format_args!("no exec '{text}' runs in this sandbox");
                return Err(Error::invalid("egress: from.exec", why).hint("'atoll ps SANDBOX' lists them"));
            }
        }
        Ok(())
    }

    /// Whether there are processes of it, which may stand still.
    fn has_instance(&self) -> bool {
        match self.record.state {
            SandboxState::Running => true,
            SandboxState::Paused => self.record.paused == Some(PauseMode::Frozen),
            _ => false,
        }
    }
}
