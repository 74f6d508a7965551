//! What is kept of a service: its runs, and why it does not run.

use serde::{Deserialize, Serialize};

use crate::exec::Exit;
use crate::limits::SERVICE_RUNS_KEPT_MAX_COUNT;

/// One run of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRun {
    /// Counts from 1.
    pub number: u64,
    /// Where its output begins in the log of the service.
    pub base: u64,
    /// One past its last byte in that log, once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<u64>,
}

/// Why a service that should run is not started any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceOutcome {
    /// It failed.
    pub failed: bool,
    /// In words.
    pub reason: String,
}

/// The state of a service that is kept beside its definition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// A user stopped it.
    #[serde(default)]
    pub stopped: bool,
    /// It is not started any more.
    #[serde(default)]
    pub outcome: Option<ServiceOutcome>,
    /// Its last runs, the oldest first.
    #[serde(default)]
    pub runs: Vec<ServiceRun>,
    /// The current run is to make way for another one when no client uses it: its program is another one now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub renew: bool,
    /// The boot of the sandbox in which the last run began, or goes on from memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// Early ends in a row.
    #[serde(default)]
    pub early: u32,
    /// How the last run that has ended did.
    #[serde(default)]
    pub last_exit: Option<Exit>,
}

impl ServiceStatus {
    /// The run that has begun and not ended.
    #[must_use]
    pub fn current(&self) -> Option<&ServiceRun> {
        self.runs.last().filter(|run| run.end.is_none())
    }

    /// Begins another run; the oldest is forgotten when there are too many.
    pub fn begin_run(&mut self, boot: &str) {
        self.boot = Some(boot.to_owned());
        let (number, base) =
            self.runs.last().map_or((1, 0), |run| (run.number + 1, run.end.unwrap_or(run.base)));
        self.runs.push(ServiceRun { number, base, end: None });
        let surplus = self.runs.len().saturating_sub(SERVICE_RUNS_KEPT_MAX_COUNT);
        self.runs.drain(..surplus);
    }

    /// Notes that its process goes on from memory in this boot, as no run.
    pub fn go_on_from_memory(&mut self, boot: &str) {
        let reason = "its process goes on from memory, and is no run of it".to_owned();
        self.boot = Some(boot.to_owned());
        self.outcome = Some(ServiceOutcome { failed: false, reason });
    }

    /// Ends the current run, which wrote this much.
    pub fn end_run(&mut self, output_bytes: u64) {
        self.renew = false;
        if let Some(run) = self.runs.last_mut().filter(|run| run.end.is_none()) {
            run.end = Some(run.base.saturating_add(output_bytes));
        }
    }

    /// The last run whose output begins at or before an offset; the first that is known when that was forgotten.
    #[must_use]
    pub fn run_at(&self, offset: u64) -> usize {
        self.runs.partition_point(|run| run.base <= offset).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_goes_on_over_runs() {
        let mut status = ServiceStatus::default();
        for bytes in [10, 0, 5] {
            status.begin_run("b");
            assert!(status.current().is_some());
            status.end_run(bytes);
            status.end_run(99);
        }
        let bases: Vec<_> = status.runs.iter().map(|run| (run.number, run.base, run.end)).collect();
        assert_eq!(bases, [(1, 0, Some(10)), (2, 10, Some(10)), (3, 10, Some(15))]);
        assert_eq!([0, 9, 10, 14, 99].map(|offset| status.run_at(offset)), [0, 0, 2, 2, 2]);
        for _ in 0..SERVICE_RUNS_KEPT_MAX_COUNT {
            status.begin_run("b");
            status.end_run(1);
        }
        assert_eq!(status.runs.len(), SERVICE_RUNS_KEPT_MAX_COUNT);
        assert_eq!((status.runs[0].number, status.run_at(0)), (4, 0));
    }
}
