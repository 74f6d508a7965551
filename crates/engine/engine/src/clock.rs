//! Time and randomness: the engine takes them here and nowhere else.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use atoll_core::{Code, Error, Result};

/// How fast the engine's clock goes towards the wall clock when that was set: at most by a part of so many of the
/// time that passes.
const SLEW: u32 = 20;

/// Milliseconds since the epoch. Never goes back, and passes as time does: when the wall clock is set, this one
/// follows slowly, so that no lifetime, budget or lease is used up or stretched by it.
pub(crate) fn now_ms() -> u64 {
    static CLOCK: LazyLock<Mutex<Steady>> =
        LazyLock::new(|| Mutex::new(Steady { passed: Instant::now(), shows: wall() }));
    let mut clock = CLOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let shows = clock.look(Instant::now(), wall());
    u64::try_from(shows.as_millis()).unwrap_or(u64::MAX)
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
