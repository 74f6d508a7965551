//! A token bucket that is paid afterwards: a caller takes what it needs, and rests until that is paid.
//!
//! All that was taken before has to be paid first. So however many connections of a sandbox share a bucket, together
//! they have no more than its rate.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Longest rest at a time: a changed rate is felt within this.
const REST_MAX: Duration = Duration::from_secs(1);
/// Nothing is owed for longer.
const OWED_MAX: Duration = Duration::from_hours(24);

#[derive(Debug)]
struct State {
    /// Units per second; `None` is no limit.
    rate: Option<u64>,
    /// Units that may be saved up.
    burst: u64,
    /// Units that are there, or owed when it is negative.
    balance: i64,
    at: Instant,
    /// How often the rate was changed.
    changes: u64,
}

/// When what a caller took is paid, and it may go on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Due {
    at: Instant,
    /// The rate's number: under another one nothing is owed.
    changes: u64,
}

/// A limit of units per second.
#[derive(Debug)]
pub(crate) struct Bucket(Mutex<State>);

impl Bucket {
    /// Begins full.
    pub(crate) fn new(rate: Option<u64>, burst: u64) -> Self {
        Self(Mutex::new(State { rate, burst, balance: signed(burst), at: Instant::now(), changes: 0 }))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the rate from now on. A debt under the old rate is forgotten.
    pub(crate) fn set(&self, rate: Option<u64>, burst: u64) {
        let mut state = self.lock();
        if (state.rate, state.burst) != (rate, burst) {
            let changes = state.changes.wrapping_add(1);
            *state = State { rate, burst, balance: signed(burst), at: Instant::now(), changes };
        }
    }

    /// Takes `units`, which were used already. Gives when they are paid, if they are not already.
    pub(crate) fn charge(&self, units: usize) -> Option<Due> {
        if units == 0 {
            return None;
        }
        let mut state = self.lock();
        let rate = state.rate?;
        refill(&mut state, rate);
        state.balance = state.balance.saturating_sub(i64::try_from(units).unwrap_or(i64::MAX));
        let owed = u64::try_from(state.balance.saturating_neg()).unwrap_or(0);
        let rest = Duration::from_micros(owed.saturating_mul(1_000_000) / rate.max(1)).min(OWED_MAX);
        (!rest.is_zero()).then(|| Due { at: Instant::now() + rest, changes: state.changes })
    }

    /// How long to rest now before it is looked again, at most [`REST_MAX`]; nothing when it is paid.
    pub(crate) fn rest(&self, due: Due) -> Duration {
        if self.lock().changes != due.changes {
            return Duration::ZERO;
        }
        due.at.saturating_duration_since(Instant::now()).min(REST_MAX)
    }

    /// Rests until it is paid.
    pub(crate) async fn wait(&self, due: Option<Due>) {
        let Some(due) = due else { return };
        loop {
            let rest = self.rest(due);
            if rest.is_zero() {
                return;
            }
            tokio::time::sleep(rest).await;
        }
    }

    /// Takes one unit if there is one.
    pub(crate) fn take(&self) -> bool {
        let mut state = self.lock();
        let Some(rate) = state.rate else { return true };
        refill(&mut state, rate);
        let there = state.balance > 0;
        state.balance -= i64::from(there);
        there
    }

    /// Most units to use at once so that the flow is even; `None` when there is no limit.
    pub(crate) fn portion(&self) -> Option<usize> {
        let rate = self.lock().rate?;
        Some(usize::try_from(rate / 20).unwrap_or(usize::MAX).max(512))
    }
}

fn signed(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}

fn refill(state: &mut State, rate: u64) {
    let now = Instant::now();
    let passed = now.duration_since(state.at).as_micros();
    let earned = u128::from(rate) * passed / 1_000_000;
    if earned > 0 {
        let earned = i64::try_from(earned).unwrap_or(i64::MAX);
        state.balance = state.balance.saturating_add(earned).min(signed(state.burst));
        state.at = now;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_rate_holds_over_time_and_nothing_is_saved_beyond_the_burst() {
        let bucket = Bucket::new(Some(1000), 100);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let begin = Instant::now();
        let mut used = 0;
        while begin.elapsed() < Duration::from_secs(10) {
            used += 50;
            bucket.wait(bucket.charge(50)).await;
        }
        assert!((10_000..=10_200).contains(&used), "{used}");
        assert!(Bucket::new(None, 0).charge(usize::MAX).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn many_connections_have_no_more_together_than_one() {
        const CONNECTIONS: usize = 100;
        let (bucket, used) = (Arc::new(Bucket::new(Some(1000), 100)), Arc::new(AtomicUsize::new(0)));
        let mut connections = tokio::task::JoinSet::new();
        for _ in 0..CONNECTIONS {
            let (bucket, used) = (Arc::clone(&bucket), Arc::clone(&used));
            connections.spawn(async move {
                loop {
                    used.fetch_add(50, Ordering::Relaxed);
                    bucket.wait(bucket.charge(50)).await;
                }
            });
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        connections.abort_all();
        let used = used.load(Ordering::Relaxed);
        // Each has begun once, and paid for that later.
        assert!((55_000..=60_100 + CONNECTIONS * 50).contains(&used), "{used}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_debt_is_forgotten_when_the_rate_changes() {
        let bucket = Bucket::new(Some(10), 0);
        let due = bucket.charge(1_000_000);
        assert_eq!(due.map(|due| bucket.rest(due)), Some(REST_MAX));
        bucket.set(Some(1000), 0);
        assert_eq!(due.map(|due| bucket.rest(due)), Some(Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn single_units_run_out_and_come_back() {
        let bucket = Bucket::new(Some(10), 5);
        assert_eq!((0..20).filter(|_| bucket.take()).count(), 5);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!((0..20).filter(|_| bucket.take()).count(), 2);
    }
}
