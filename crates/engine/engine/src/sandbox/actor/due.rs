//! What a sandbox does by itself while nobody uses it, and when its time or a budget is used up.

use atoll_core::exec::ExitReason;
use atoll_core::sandbox::PauseMode;
use atoll_core::usage::OnExhausted;
use atoll_recorder::What;

use super::*;
use crate::travel::begin_copy;
use crate::usage;

/// Shortest and longest time between two looks at a budget. Bytes may leave as fast as the network is.
const BUDGET_LOOK_MIN_MS: u64 = 50;
const BUDGET_LOOK_MAX_MS: u64 = 30_000;
const BUDGET_LOOK_EGRESS_MS: u64 = 1000;

/// What is due next, by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Delete,
    Pause(PauseMode),
    Doze,
    Budget,
    /// To be copied to the object store while it runs.
    Copy,
}

impl Actor {
    /// When what is due, milliseconds since the epoch: the earliest.
    pub(super) fn next_due(&self) -> Option<(u64, Due)> {
        let spec = &self.record.spec;
        let running = self.record.state == SandboxState::Running;
        let idle = running && !self.shared.is_busy();
        let after_idle =
            |ms: Option<u64>| ms.filter(|_| idle).map(|ms| self.shared.last_active_ms().saturating_add(ms));
        let idle_end = match spec.idle.on_idle.pause() {
            None => Due::Delete,
            Some(mode) => Due::Pause(mode),
        };
        let paused = self.record.state == SandboxState::Paused;
        let frozen = paused && self.record.paused == Some(PauseMode::Frozen);
        let since_pause = |ms: u64| self.record.paused_ms.unwrap_or_default().saturating_add(ms);
        let hibernate = spec.idle.hibernate_after_ms.filter(|_| frozen);
        let doze = spec.idle.freeze_ms.filter(|_| !self.shared.freezer.is_frozen());
        let over = running && spec.budget.exhausted(&self.shared.meter.lifetime()).is_some();
        [
            self.record.expires_ms.and_then(|at| Some((at, self.at_end()?))),
            after_idle(spec.idle_timeout_ms).map(|at| (at, idle_end)),
            after_idle(doze).map(|at| (at, Due::Doze)),
            hibernate.map(|ms| (since_pause(ms), Due::Pause(PauseMode::Filesystem))),
            spec.idle.delete_paused_after_ms.filter(|_| paused).map(|ms| (since_pause(ms), Due::Delete)),
            (running && spec.budget.limits()).then_some((if over { 0 } else { self.budget_ms }, Due::Budget)),
            self.next_copy().map(|at| (at, Due::Copy)),
        ]
        .into_iter()
        .flatten()
        .min_by_key(|(at, _)| *at)
    }

    /// What the end of its time to live means now.
    fn at_end(&self) -> Option<Due> {
        match (self.record.spec.idle.pause_at_end, self.record.state) {
            (None, _) => Some(Due::Delete),
            (Some(mode), SandboxState::Running) => Some(Due::Pause(mode)),
            (Some(_), _) => None,
        }
    }

    /// Does what is due. Says whether the sandbox is gone.
    pub(super) async fn do_due(&mut self, due: Due) -> bool {
        let id = self.record.id.clone();
        let outcome = match due {
            Due::Delete => {
                tracing::info!(sandbox = %id, "its time has come");
                match self.delete().await {
                    Ok(()) => return true,
                    Err(error) => Err(error),
                }
            }
            Due::Pause(mode) => self.pause(mode, None).await.map(drop),
            Due::Doze => self.shared.doze().await.map(drop),
            Due::Copy => {
                self.copied_ms = self.inner.now_ms();
                begin_copy(&self.inner, &self.shared);
                Ok(())
            }
            Due::Budget => match self.look_at_budget().await {
                Ok(true) => return true,
                other => other.map(drop),
            },
        };
        if let Err(error) = outcome {
            tracing::error!(sandbox = %id, %error, ?due, "could not be done, trying again later");
            self.not_before_ms = self.inner.now_ms().saturating_add(DELETE_AGAIN_MS);
        }
        false
    }

    // === budgets ===

    /// Measures, and stops the sandbox when a budget is used up. Says whether it is gone.
    async fn look_at_budget(&mut self) -> Result<bool> {
        let used = usage::measure(&self.inner, &self.shared).await;
        let spec = &self.record.spec;
        let Some(why) = spec.budget.exhausted(&used) else {
            let soonest = spec.budget.check_again_ms(&used, spec.resources.cpu_millis);
            let longest = match spec.budget.egress_bytes {
                Some(_) => BUDGET_LOOK_EGRESS_MS,
                None => BUDGET_LOOK_MAX_MS,
            };
            let pause = soonest.unwrap_or(longest).clamp(BUDGET_LOOK_MIN_MS, longest);
            self.budget_ms = self.inner.now_ms().saturating_add(pause);
            return Ok(false);
        };
        tracing::info!(sandbox = %self.record.id, why, "a budget is used up");
        self.shared.trace.note(&self.record.id, What::BudgetExhausted { reason: why.clone() });
        let on_exhausted = spec.budget.on_exhausted;
        self.kill_execs(ExitReason::BudgetExhausted).await;
        match on_exhausted {
            OnExhausted::Delete => self.delete().await.map(|()| true),
            OnExhausted::Pause => self.pause(PauseMode::Frozen, Some(&why)).await.map(|_| false),
        }
    }
}
