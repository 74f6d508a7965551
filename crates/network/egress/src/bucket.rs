//! A token bucket that is paid afterwards: a caller takes what it needs and is told how long to rest.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Longest rest at a time: a changed rate is felt within this.
const REST_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct State {
    /// Units per second; `None` is no limit.
    rate: Option<u64>,
    /// Units that may be saved up.
    burst: u64,
    /// Units that are there, or owed when it is negative.
    balance: i64,
    at: Instant,
}

/// A limit of units per second.
#[derive(Debug)]
pub(crate) struct Bucket(Mutex<State>);

impl Bucket {
    /// Begins full.
    pub(crate) fn new(rate: Option<u64>, burst: u64) -> Self {
        Self(Mutex::new(State { rate, burst, balance: signed(burst), at: Instant::now() }))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the rate from now on. A debt under the old rate is forgotten.
    pub(crate) fn set(&self, rate: Option<u64>, burst: u64) {
        let mut state = self.lock();
        if (state.rate, state.burst) != (rate, burst) {
            *state = State { rate, burst, balance: signed(burst), at: Instant::now() };
        }
    }

    /// Takes `units`, which were used already, and says how long to rest before using more.
    pub(crate) fn charge(&self, units: usize) -> Duration {
        let mut state = self.lock();
        let Some(rate) = state.rate else { return Duration::ZERO };
        refill(&mut state, rate);
        state.balance = state.balance.saturating_sub(i64::try_from(units).unwrap_or(i64::MAX));
        let owed = u64::try_from(state.balance.saturating_neg()).unwrap_or(0);
        Duration::from_micros(owed.saturating_mul(1_000_000) / rate.max(1)).min(REST_MAX)
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
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_rate_holds_over_time_and_nothing_is_saved_beyond_the_burst() {
        let bucket = Bucket::new(Some(1000), 100);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let begin = Instant::now();
        let mut used = 0;
        while begin.elapsed() < Duration::from_secs(10) {
            used += 50;
            tokio::time::sleep(bucket.charge(50)).await;
        }
        assert!((10_000..=10_200).contains(&used), "{used}");
        assert_eq!(Bucket::new(None, 0).charge(usize::MAX), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn single_units_run_out_and_come_back() {
        let bucket = Bucket::new(Some(10), 5);
        assert_eq!((0..20).filter(|_| bucket.take()).count(), 5);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!((0..20).filter(|_| bucket.take()).count(), 2);
    }
}
