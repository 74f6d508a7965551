//! What was used, and how much may be: counters, budgets, and what memory pressure asks for. Pure.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::id::SandboxId;

/// What was used. Everything only grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Usage {
    /// CPU time of everything in the sandbox, microseconds, as the host's kernel counts it.
    pub cpu_us: u64,
    /// Memory charged to the sandbox × time: what is shared with others is charged to one of them.
    pub memory_byte_seconds: u64,
    /// Space of the writable disk on the host × time.
    pub disk_byte_seconds: u64,
    /// Wall time in which it ran, milliseconds. Paused time does not count.
    pub running_ms: u64,
    /// Bytes that left it through the egress gateway.
    pub egress_bytes: u64,
    /// Times that it was used: execs, files, ports.
    pub requests: u64,
    /// Execs started.
    pub execs: u64,
    /// CPU time of execs as the guest reports it, microseconds.
    pub exec_cpu_us: u64,
}

impl Usage {
    /// Adds another; nothing overflows.
    pub const fn add(&mut self, other: &Self) {
        self.cpu_us = self.cpu_us.saturating_add(other.cpu_us);
        self.memory_byte_seconds = self.memory_byte_seconds.saturating_add(other.memory_byte_seconds);
        self.disk_byte_seconds = self.disk_byte_seconds.saturating_add(other.disk_byte_seconds);
        self.running_ms = self.running_ms.saturating_add(other.running_ms);
        self.egress_bytes = self.egress_bytes.saturating_add(other.egress_bytes);
        self.requests = self.requests.saturating_add(other.requests);
        self.execs = self.execs.saturating_add(other.execs);
        self.exec_cpu_us = self.exec_cpu_us.saturating_add(other.exec_cpu_us);
    }

    /// Whether nothing was used.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// What happens to a sandbox whose budget is used up, after its execs were killed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum OnExhausted {
    /// It is paused as `frozen` and refuses to be used until the budget is raised.
    #[default]
    Pause,
    /// It is deleted.
    Delete,
}

/// Hard limits on what a sandbox may use over its whole life. Absent ones do not limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Budget {
    /// CPU time of everything in it, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// Wall time in which it runs, milliseconds. Paused time does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_ms: Option<u64>,
    /// Bytes that leave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_bytes: Option<u64>,
    /// What happens then.
    pub on_exhausted: OnExhausted,
}

impl Budget {
    /// Checks it: a budget of nothing would refuse everything for ever.
    ///
    /// # Errors
    /// [`crate::Code::InvalidArgument`] naming the field.
    pub fn validate(&self) -> Result<()> {
        let fields = [
            ("budget.cpu_ms", self.cpu_ms),
            ("budget.running_ms", self.running_ms),
            ("budget.egress_bytes", self.egress_bytes),
        ];
        match fields.iter().find(|(_, value)| *value == Some(0)) {
            Some((field, _)) => {
                Err(Error::invalid(field, "must be at least 1").hint("leave it out for no limit"))
            }
            None => Ok(()),
        }
    }

    /// Whether anything is limited.
    #[must_use]
    pub const fn limits(&self) -> bool {
        self.cpu_ms.is_some() || self.running_ms.is_some() || self.egress_bytes.is_some()
    }

    /// Which budget is used up, in words; `None` while there is something left of each.
    #[must_use]
    pub fn exhausted(&self, used: &Usage) -> Option<String> {
        let over = |name: &str, used: u64, budget: Option<u64>| {
            budget
                .filter(|budget| used >= *budget)
                .map(|budget| format!("{name}: {used} of {budget} are used"))
        };
        over("budget.cpu_ms", used.cpu_us / 1000, self.cpu_ms)
            .or_else(|| over("budget.running_ms", used.running_ms, self.running_ms))
            .or_else(|| over("budget.egress_bytes", used.egress_bytes, self.egress_bytes))
    }

    /// The soonest that a running sandbox can have used up its budget, in milliseconds, given its share of
    /// CPU in thousandths of a core. `None` when only bytes are limited, which are told as they leave.
    #[must_use]
    pub fn check_again_ms(&self, used: &Usage, cpu_millis: u32) -> Option<u64> {
        let cpu = self.cpu_ms.map(|budget| {
            let left = budget.saturating_sub(used.cpu_us / 1000);
            left.saturating_mul(1000) / u64::from(cpu_millis.max(1))
        });
        let wall = self.running_ms.map(|budget| budget.saturating_sub(used.running_ms));
        match (cpu, wall) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

/// A frozen sandbox, as far as memory pressure is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frozen {
    /// Which.
    pub id: SandboxId,
    /// Since when, milliseconds since the epoch.
    pub since_ms: u64,
    /// Its memory as last seen, bytes.
    pub memory_bytes: u64,
    /// Its memory was taken away since it was frozen.
    pub reclaimed: bool,
}

/// Which frozen sandboxes give their memory back when `available` bytes of the host's are left and `threshold`
/// should be: the longest frozen first, until what they hold fills the gap. None twice in one freeze.
#[must_use]
pub fn reclaim_order(available: u64, threshold: u64, mut frozen: Vec<Frozen>) -> Vec<SandboxId> {
    let mut gap = threshold.saturating_sub(available);
    frozen.retain(|one| !one.reclaimed && one.memory_bytes > 0);
    frozen.sort_by_key(|one| one.since_ms);
    let mut order = Vec::new();
    for one in frozen {
        if gap == 0 {
            break;
        }
        gap = gap.saturating_sub(one.memory_bytes);
        order.push(one.id);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_used_up_at_its_edge() {
        let budget = Budget { cpu_ms: Some(100), egress_bytes: Some(5), ..Budget::default() };
        let used = |cpu_us, egress_bytes| Usage { cpu_us, egress_bytes, ..Usage::default() };
        assert_eq!(budget.exhausted(&used(99_999, 4)), None);
        assert!(budget.exhausted(&used(100_000, 0)).unwrap().contains("budget.cpu_ms: 100 of 100"));
        assert!(budget.exhausted(&used(0, 5)).unwrap().contains("budget.egress_bytes"));
        assert_eq!(Budget::default().exhausted(&used(u64::MAX, u64::MAX)), None);
        assert!(Budget { cpu_ms: Some(0), ..budget }.validate().is_err());
    }

    #[test]
    fn a_check_comes_before_the_budget_can_be_used_up() {
        let budget = Budget { cpu_ms: Some(1000), ..Budget::default() };
        let used = Usage { cpu_us: 600_000, ..Usage::default() };
        assert_eq!(budget.check_again_ms(&used, 2000), Some(200));
        assert_eq!(budget.check_again_ms(&used, 0), Some(400_000));
        let both = Budget { running_ms: Some(50), ..budget };
        assert_eq!(both.check_again_ms(&used, 2000), Some(50));
        assert_eq!(Budget { egress_bytes: Some(1), ..Budget::default() }.check_again_ms(&used, 1), None);
    }

    #[test]
    fn the_longest_frozen_gives_first_and_only_what_is_needed() {
        let frozen = |n: u64, since_ms, memory_bytes, reclaimed| Frozen {
            id: SandboxId::from_parts(n, n),
            since_ms,
            memory_bytes,
            reclaimed,
        };
        let id = |n| SandboxId::from_parts(n, n);
        let all = vec![
            frozen(1, 30, 100, false),
            frozen(2, 10, 100, false),
            frozen(3, 20, 100, false),
            frozen(4, 5, 100, true),
            frozen(5, 1, 0, false),
        ];
        assert_eq!(reclaim_order(100, 100, all.clone()), []);
        assert_eq!(reclaim_order(0, 150, all.clone()), [id(2), id(3)]);
        assert_eq!(reclaim_order(0, u64::MAX, all), [id(2), id(3), id(1)]);
    }
}
