//! A clock of the engine that a test moves by hand: nothing is late, nothing is early, and no test sleeps for it.

use std::sync::Arc;
use std::time::Duration;

use atoll_engine::{Clock, Time};
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::Instant;

/// Stands still until it is moved. Clones are the same clock.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Hands>);

#[derive(Debug)]
struct Hands {
    start_ms: u64,
    start: Instant,
    /// The time that has passed since `start`.
    passed: watch::Sender<Duration>,
}

impl ManualClock {
    /// One that shows this, milliseconds since the epoch.
    #[must_use]
    pub fn at(start_ms: u64) -> Self {
        Self(Arc::new(Hands { start_ms, start: Instant::now(), passed: watch::Sender::new(Duration::ZERO) }))
    }

    /// The same clock, as the engine takes it.
    #[must_use]
    pub fn clock(&self) -> Clock {
        Clock::new(Arc::new(self.clone()))
    }

    /// The time that it shows.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        Time::now_ms(self)
    }

    /// Moves it, and wakes each task that waited for a moment which has come by that.
    pub fn advance(&self, time: Duration) {
        self.0.passed.send_modify(|passed| *passed += time);
    }

    /// The same, to the time that it shows then.
    pub fn advance_to_ms(&self, at_ms: u64) {
        self.0.passed.send_modify(|passed| {
            *passed = (*passed).max(Duration::from_millis(at_ms.saturating_sub(self.0.start_ms)));
        });
    }
}

impl Time for ManualClock {
    fn now_ms(&self) -> u64 {
        let passed = u64::try_from(self.0.passed.borrow().as_millis()).unwrap_or(u64::MAX);
        self.0.start_ms.saturating_add(passed)
    }

    fn instant(&self) -> Instant {
        self.0.start + *self.0.passed.borrow()
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<'static, ()> {
        let hands = Arc::clone(&self.0);
        Box::pin(async move {
            let mut passed = hands.passed.subscribe();
            // The sender lives as long as this sleep.
            drop(passed.wait_for(|passed| hands.start + *passed >= at).await);
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const START_MS: u64 = 1_000_000;

    #[test]
    fn it_passes_when_it_is_moved_and_wakes_who_waited() {
        let clock = ManualClock::at(START_MS);
        let begin = clock.instant();
        let soon = clock.sleep_until(begin + Duration::from_millis(10));
        let mut late = clock.sleep_until(begin + Duration::from_millis(11));
        assert_eq!((&mut late).now_or_never(), None);
        clock.advance(Duration::from_millis(10));
        assert_eq!((clock.now_ms(), clock.instant() - begin), (START_MS + 10, Duration::from_millis(10)));
        assert_eq!((soon.now_or_never(), (&mut late).now_or_never()), (Some(()), None));
        clock.advance_to_ms(START_MS + 11);
        assert_eq!(late.now_or_never(), Some(()));
        clock.advance_to_ms(START_MS);
        assert_eq!(clock.now_ms(), START_MS + 11, "it never goes back");
    }

    #[test]
    fn who_waits_on_another_thread_is_woken() {
        let clock = ManualClock::at(START_MS);
        let waiter = clock.clone();
        let at = clock.instant() + Duration::from_millis(5);
        let waits = std::thread::spawn(move || {
            futures::executor::block_on(waiter.sleep_until(at));
            waiter.now_ms()
        });
        clock.advance(Duration::from_millis(2));
        clock.advance(Duration::from_secs(1));
        assert!(waits.join().unwrap() > START_MS + 2);
    }
}
