//! When to try again, and when to give up.

use std::time::{Duration, Instant};

/// How often a broken stream is opened again.
///
/// Attempts are counted since there last was progress: output, or a connection that held for
/// [`ResumePolicy::steady`]. So a stream on a bad network goes on as long as it gets anywhere.
#[derive(Debug, Clone, Copy)]
pub struct ResumePolicy {
    /// Attempts without progress before giving up.
    pub attempts_max: u32,
    /// Wait before the first attempt; each further one waits twice as long.
    pub backoff_first: Duration,
    /// Longest wait before an attempt.
    pub backoff_max: Duration,
    /// A connection that held this long counts as progress.
    pub steady: Duration,
}

impl Default for ResumePolicy {
    /// About a minute in all: enough for a server to be restarted.
    fn default() -> Self {
        Self {
            attempts_max: 16,
            backoff_first: Duration::from_millis(50),
            backoff_max: Duration::from_secs(6),
            steady: Duration::from_secs(30),
        }
    }
}

impl ResumePolicy {
    /// Never opens a stream again.
    #[must_use]
    pub fn never() -> Self {
        Self { attempts_max: 0, ..Self::default() }
    }
}

/// Counts attempts.
#[derive(Debug)]
pub(crate) struct Attempts {
    policy: ResumePolicy,
    failed: u32,
    connected: Option<Instant>,
}

impl Attempts {
    pub(crate) fn new(policy: ResumePolicy) -> Self {
        Self { policy, failed: 0, connected: None }
    }

    pub(crate) fn connected(&mut self) {
        self.connected = Some(Instant::now());
    }

    pub(crate) fn progressed(&mut self) {
        self.failed = 0;
    }

    /// How long to wait before the next attempt; `None` to give up.
    pub(crate) fn next(&mut self) -> Option<Duration> {
        if self.connected.take().is_some_and(|at| at.elapsed() >= self.policy.steady) {
            self.failed = 0;
        }
        if self.failed >= self.policy.attempts_max {
            return None;
        }
        let wait = self.policy.backoff_first.saturating_mul(1 << self.failed.min(16));
        self.failed += 1;
        Some(wait.min(self.policy.backoff_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_up_without_progress_and_not_with_it() {
        let policy = ResumePolicy { attempts_max: 3, ..ResumePolicy::default() };
        let mut attempts = Attempts::new(policy);
        let waits: Vec<_> = std::iter::from_fn(|| attempts.next()).collect();
        assert_eq!(waits, [50, 100, 200].map(Duration::from_millis));
        let mut attempts = Attempts::new(policy);
        for _ in 0..100 {
            assert!(attempts.next().is_some());
            attempts.progressed();
        }
        assert_eq!(Attempts::new(ResumePolicy::never()).next(), None);
    }
}
