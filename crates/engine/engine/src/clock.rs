//! Time and randomness: the engine takes them here and nowhere else.
//!
//! A [`Clock`] comes in with the engine's [`Config`](crate::Config) and lies where a part of the engine looks anyway: in
//! `Inner`, in a sandbox, in an exec. Everything that happens at a moment which the engine sets or promises waits for
//! it by that clock: the end of a time to live, of idleness, of an exec's time, of a lease or a credential; schedules
//! and budgets; the rest after something failed; the rounds in which things are looked after. A test that holds the
//! clock by hand sees each of them at its moment and not before it.
//!
//! Patience with guests, processes, hosts, stores and clients is on tokio's time: a guest that has to answer, a process
//! that was told to end, a store or a host that is asked again, a client that waits for news. Nothing is promised to
//! happen at the end of it, and it must end also while a test's clock stands still.
//!
//! Tokio's own paused time is of no use for those tests: it jumps ahead as soon as no task can go on, and so while a
//! thread works on the database.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_core::{Code, Error, Result};
use futures::future::BoxFuture;
use tokio::time::Instant;

/// How fast the engine's clock goes towards the wall clock when that was set: at most by a part of so many of the
/// time that passes.
const SLEW: u32 = 20;
/// Longest sleep until a moment of the clock, which may go slower or faster than the timer meanwhile.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Where time comes from. One that a test moves by hand is in `crates/testing/clock`.
pub trait Time: fmt::Debug + Send + Sync {
    /// Milliseconds since the epoch. Never goes back.
    fn now_ms(&self) -> u64;

    /// This moment, to measure by.
    fn instant(&self) -> Instant;

    /// Ends at a moment.
    fn sleep_until(&self, at: Instant) -> BoxFuture<'static, ()>;
}

/// The engine's clock. Clones are the same clock.
#[derive(Debug, Clone)]
pub struct Clock(Arc<dyn Time>);

impl Default for Clock {
    /// The real one: it follows the host's wall clock, never goes back, and passes as time does. When the wall clock is
    /// set, this one follows slowly, so that no lifetime, budget or lease is used up or stretched by it.
    fn default() -> Self {
        Self::new(Arc::new(SteadyTime::default()))
    }
}

impl Clock {
    /// One that shows another time.
    #[must_use]
    pub fn new(time: Arc<dyn Time>) -> Self {
        Self(time)
    }

    /// Milliseconds since the epoch.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.0.now_ms()
    }

    /// This moment, to measure by.
    pub(crate) fn instant(&self) -> Instant {
        self.0.instant()
    }

    /// How long ago a moment was.
    pub(crate) fn since(&self, moment: Instant) -> Duration {
        self.instant().saturating_duration_since(moment)
    }

    /// Ends after a time.
    pub(crate) async fn sleep(&self, time: Duration) {
        match self.instant().checked_add(time) {
            Some(at) => self.0.sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Ends at a moment; never where there is none.
    pub(crate) async fn sleep_until(&self, at: Option<Instant>) {
        match at {
            Some(at) => self.0.sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Ends when the clock shows this, milliseconds since the epoch.
    pub(crate) async fn sleep_until_ms(&self, at_ms: u64) {
        loop {
            // In this order: what passes between the two makes the sleep end too early, and so be repeated.
            let now = self.instant();
            let left = Duration::from_millis(at_ms.saturating_sub(self.now_ms()));
            if left.is_zero() {
                return;
            }
            self.0.sleep_until(now + left.min(LOOK_AGAIN)).await;
        }
    }

    /// Works until a time is over; `None` when it was.
    pub(crate) async fn timeout<T>(&self, time: Duration, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.sleep(time) => None,
        }
    }
}

/// The host's time.
#[derive(Debug)]
struct SteadyTime(Mutex<Steady>);

impl Default for SteadyTime {
    fn default() -> Self {
        Self(Mutex::new(Steady { passed: Instant::now(), shows: wall() }))
    }
}

impl Time for SteadyTime {
    fn now_ms(&self) -> u64 {
        let mut steady = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shows = steady.look(Instant::now(), wall());
        u64::try_from(shows.as_millis()).unwrap_or(u64::MAX)
    }

    fn instant(&self) -> Instant {
        Instant::now()
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep_until(at))
    }
}

/// A wall clock before 1970 counts as 1970.
fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// What it showed when it was looked at last, and when that was.
#[derive(Debug)]
struct Steady {
    passed: Instant,
    shows: Duration,
}

impl Steady {
    fn look(&mut self, now: Instant, wall: Duration) -> Duration {
        let passed = now.saturating_duration_since(self.passed);
        self.passed = now;
        let due = self.shows + passed;
        let most = passed / SLEW;
        self.shows = if wall > due { wall.min(due + most) } else { wall.max(due.saturating_sub(most)) };
        self.shows
    }
}

/// Random bits for an id.
///
/// # Errors
/// [`Code::Internal`] when the kernel gives no randomness.
pub(crate) fn random() -> Result<u64> {
    getrandom::u64().map_err(|error| {
        tracing::error!(%error, "the kernel gave no randomness");
        Error::new(Code::Internal, "the host's random generator failed")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1_000_000);

    /// What the clock shows after each second while the wall clock is off by `error`.
    fn after(seconds: u64, error: i64) -> Duration {
        let begin = Instant::now();
        let mut clock = Steady { passed: begin, shows: START };
        for second in 1..=seconds {
            let passed = Duration::from_secs(second);
            let wall = (START + passed).as_secs().checked_add_signed(error).unwrap();
            clock.look(begin + passed, Duration::from_secs(wall));
        }
        clock.shows.checked_sub(START).unwrap()
    }

    #[test]
    fn a_wall_clock_that_is_set_changes_no_duration_by_much() {
        assert_eq!(after(100, 0), Duration::from_secs(100));
        assert_eq!(after(100, 4000), Duration::from_secs(105));
        assert_eq!(after(100, -4000), Duration::from_secs(95));
        // In the end it is right.
        assert_eq!(after(1000, 40), Duration::from_secs(1040));
        assert_eq!(after(2000, -60), Duration::from_secs(1940));
    }

    #[test]
    fn it_never_goes_back() {
        let begin = Instant::now();
        let mut clock = Steady { passed: begin, shows: START };
        for wall in [0, 5_000_000, 1] {
            let before = clock.shows;
            assert!(clock.look(begin, Duration::from_secs(wall)) >= before, "{wall}");
        }
    }
}
