//! A pool of things that are slow to make and quick to hand out: network namespaces, disks, user
//! namespaces.
//!
//! One thread per pool keeps `min` of them ready. [`Pool::claim`] never waits for that thread: when nothing is ready
//! it makes one itself, so a pool bounds latency, not capacity. Nor does that thread get in the way of the claimer: as
//! long as half of them are ready it begins only [`HOLD_OFF`] later. On a host with few processors it would otherwise
//! take the time that the claimer needs now. The things in a pool must vanish with the process (anonymous kernel
//! objects): a pool is never written down.
//!
//! When making fails the thread tries again after [`RETRY_AFTER`]; the caller of `claim` sees the error
//! of its own attempt.
//!
//! Who has used a thing and knows that it is as new may give it back ([`Pool::give_back`]): then the next claimer has it,
//! and none is made. A pool that is to have some for a burst keeps more of these than its minimum ([`Keep`]). The last one
//! that came back goes first, so that those which nobody needs are the same ones all the time, and are dropped.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the filling thread rests after a failure.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long the filling thread leaves the host's processors to the caller that has just claimed a thing.
pub const HOLD_OFF: Duration = Duration::from_millis(8);

/// How many of the things that are given back a pool keeps beyond its minimum, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// So many at most.
    pub max_count: usize,
    /// One beyond the minimum that nobody claimed for so long is dropped, by the pool's thread.
    pub unclaimed_for: Duration,
}

impl Keep {
    /// What is given back is kept only where the minimum is not reached.
    pub const NOTHING: Self = Self { max_count: 0, unclaimed_for: Duration::ZERO };
}

type Make<T, E> = Box<dyn Fn() -> Result<T, E> + Send + Sync>;

struct Shared<T, E> {
    name: &'static str,
    min: usize,
    keep: Keep,
    make: Make<T, E>,
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    /// Made and never claimed; the oldest goes first.
    made: VecDeque<T>,
    /// Given back, and when; the latest goes first.
    returned: VecDeque<(Instant, T)>,
    closing: bool,
}

impl<T> State<T> {
    fn ready(&self) -> usize {
        self.made.len() + self.returned.len()
    }

    fn take(&mut self) -> Option<T> {
        self.returned.pop_back().map(|(_, thing)| thing).or_else(|| self.made.pop_front())
    }
}

impl<T, E> Shared<T, E> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_room(&self, state: &State<T>) -> bool {
        state.ready() < self.min.saturating_add(self.keep.max_count)
    }

    /// How long the one that waits longest may still wait; `None` when there is none beyond the minimum.
    fn patience(&self, state: &State<T>) -> Option<Duration> {
        let beyond = state.ready() > self.min;
        let (since, _) = state.returned.front().filter(|_| beyond)?;
        Some(self.keep.unclaimed_for.saturating_sub(since.elapsed()))
    }
}

/// Keeps things of one kind ready. Dropping it stops the thread and drops what was ready.
pub struct Pool<T, E> {
    shared: Arc<Shared<T, E>>,
    filler: Option<JoinHandle<()>>,
}

impl<T, E> fmt::Debug for Pool<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ready = self.shared.lock().ready();
        f.debug_struct("Pool").field("name", &self.shared.name).field("ready", &ready).finish()
    }
}

impl<T, E> Pool<T, E>
where
    T: Send + 'static,
    E: std::error::Error + 'static,
{
    /// Starts the thread `name` that keeps `min` things made by `make` ready; 0 makes each on demand.
    ///
    /// # Errors
    /// When the host cannot start a thread.
    pub fn start(
        name: &'static str,
        min: usize,
        make: impl Fn() -> Result<T, E> + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        Self::start_keeping(name, min, Keep::NOTHING, make)
    }

    /// The same, of a pool that keeps some of what is given back beyond its minimum.
    ///
    /// # Errors
    /// When the host cannot start a thread.
    pub fn start_keeping(
        name: &'static str,
        min: usize,
        keep: Keep,
        make: impl Fn() -> Result<T, E> + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let state = State { made: VecDeque::with_capacity(min), returned: VecDeque::new(), closing: false };
        let shared = Arc::new(Shared {
            name,
            min,
            keep,
            make: Box::new(make),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let filler = if min == 0 && keep.max_count == 0 {
            None
        } else {
            let shared = Arc::clone(&shared);
            Some(std::thread::Builder::new().name(name.to_owned()).spawn(move || fill(&shared))?)
        };
        Ok(Self { shared, filler })
    }

    /// Takes a ready one, or makes one on this thread: may block for as long as making takes.
    ///
    /// # Errors
    /// What making failed with.
    pub fn claim(&self) -> Result<T, E> {
        let ready = self.shared.lock().take();
        self.shared.changed.notify_all();
        ready.map_or_else(|| (self.shared.make)(), Ok)
    }

    /// Whether one that is given back now would be kept. Another may take the place in between.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.shared.has_room(&self.shared.lock())
    }

    /// Takes back a thing that is as if it had just been made; what makes sure of that is the caller's. Gives it back
    /// when the pool has enough: then it is the caller's to drop, which may take long.
    #[must_use = "what the pool does not keep is dropped here"]
    pub fn give_back(&self, thing: T) -> Option<T> {
        let shared = &self.shared;
        let mut state = shared.lock();
        if !shared.has_room(&state) {
            return Some(thing);
        }
        state.returned.push_back((Instant::now(), thing));
        // The thread has to know of the first one beyond the minimum: from then on it looks at how long they wait.
        let first_beyond = state.ready() == shared.min + 1;
        drop(state);
        if first_beyond {
            shared.changed.notify_all();
        }
        None
    }

    /// How many are ready.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.shared.lock().ready()
    }
}

impl<T, E> Drop for Pool<T, E> {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        if let Some(filler) = self.filler.take() {
            // A panic of the thread has been reported by the panic hook; there is nothing to undo.
            drop(filler.join());
        }
    }
}

/// An error with all its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// What the thread does next.
enum Next<T> {
    /// There are fewer than there should be.
    Make,
    /// Nobody needed this one.
    Drop(T),
    /// The pool is gone.
    End,
}

fn fill<T, E: std::error::Error + 'static>(shared: &Shared<T, E>) {
    loop {
        match next(shared) {
            Next::End => return,
            Next::Drop(unneeded) => drop(unneeded),
            Next::Make => make(shared),
        }
    }
}

fn make<T, E: std::error::Error + 'static>(shared: &Shared<T, E>) {
    match (shared.make)() {
        Ok(made) => shared.lock().made.push_back(made),
        Err(error) => {
            tracing::warn!(pool = shared.name, error = chain(&error), "cannot fill the pool; trying again");
            let rest = shared.changed.wait_timeout_while(shared.lock(), RETRY_AFTER, |s| !s.closing);
            drop(rest.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// Waits until there is something to do.
fn next<T, E>(shared: &Shared<T, E>) -> Next<T> {
    let mut state = shared.lock();
    // Whoever makes one after the other need not hold off: the claimer has what it wanted for long.
    let mut was_full = false;
    loop {
        if state.closing {
            return Next::End;
        }
        let patience = shared.patience(&state);
        if patience.is_some_and(|left| left.is_zero())
            && let Some((_, unneeded)) = state.returned.pop_front()
        {
            return Next::Drop(unneeded);
        }
        if state.ready() < shared.min {
            if !was_full {
                return Next::Make;
            }
            was_full = false;
            let enough = |state: &mut State<T>| !state.closing && state.ready() * 2 >= shared.min;
            let held = shared.changed.wait_timeout_while(state, HOLD_OFF, enough);
            state = held.unwrap_or_else(PoisonError::into_inner).0;
            continue;
        }
        was_full = true;
        state = match patience {
            Some(left) => shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            None => shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn until(mut done: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !done() {
            assert!(Instant::now() < deadline, "did not happen in time");
            std::thread::yield_now();
        }
    }

    #[test]
    fn keeps_the_minimum_and_makes_more_on_demand() {
        let made = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&made);
        let make = move || Ok::<_, fmt::Error>(counter.fetch_add(1, Ordering::SeqCst));
        let pool = Pool::start("atoll-test", 2, make).unwrap();
        until(|| pool.ready() == 2);
        assert_eq!(pool.claim().unwrap(), 0, "the oldest goes first");
        until(|| pool.ready() == 2);

        let empty = Pool::start("atoll-test", 0, || Ok::<_, fmt::Error>(7)).unwrap();
        assert_eq!((empty.claim().unwrap(), empty.ready()), (7, 0));
    }

    #[test]
    fn a_failure_reaches_the_claimer_and_dropping_does_not_wait_for_the_retry() {
        let pool = Pool::start("atoll-test", 1, || Err::<(), _>(fmt::Error)).unwrap();
        assert_eq!(pool.claim().unwrap_err(), fmt::Error);
        drop(pool);
    }

    #[test]
    fn dropping_drops_what_was_ready() {
        let token = Arc::new(());
        let copy = Arc::clone(&token);
        let pool = Pool::start("atoll-test", 3, move || Ok::<_, fmt::Error>(Arc::clone(&copy))).unwrap();
        until(|| pool.ready() == 3);
        drop(pool);
        assert_eq!(Arc::strong_count(&token), 1);
    }

    /// A pool whose things are their numbers, from 0 in the order in which they were made.
    fn numbered(min: usize, keep: Keep) -> Pool<usize, fmt::Error> {
        let made = AtomicUsize::new(0);
        let make = move || Ok::<_, fmt::Error>(made.fetch_add(1, Ordering::SeqCst));
        Pool::start_keeping("atoll-test", min, keep, make).unwrap()
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn what_is_given_back_is_claimed_before_what_was_made_and_the_latest_first() {
        let pool = numbered(1, Keep { max_count: 8, unclaimed_for: LONG });
        until(|| pool.ready() == 1);
        assert_eq!((pool.give_back(70), pool.give_back(71)), (None, None));
        assert_eq!(pool.ready(), 3);
        let claimed: Vec<_> = (0..3).map(|_| pool.claim().unwrap()).collect();
        assert_eq!(claimed, [71, 70, 0]);
    }

    #[test]
    fn no_more_is_kept_than_the_bound_beyond_the_minimum() {
        let pool = numbered(2, Keep { max_count: 3, unclaimed_for: LONG });
        until(|| pool.ready() == 2);
        assert!(pool.has_room());
        let refused: Vec<_> = (70..75).filter_map(|thing| pool.give_back(thing)).collect();
        assert_eq!((refused, pool.ready(), pool.has_room()), (vec![73, 74], 5, false));
    }

    #[test]
    fn a_pool_that_keeps_nothing_takes_back_what_its_minimum_lacks() {
        let pool = Pool::start("atoll-test", 2, || Err::<u32, _>(fmt::Error)).unwrap();
        assert_eq!((pool.give_back(70), pool.give_back(71)), (None, None));
        assert_eq!(pool.give_back(72), Some(72));
        assert_eq!(pool.claim().unwrap(), 71);
        let empty = Pool::start("atoll-test", 0, || Ok::<_, fmt::Error>(7)).unwrap();
        assert_eq!(empty.give_back(70), Some(70));
    }

    #[test]
    fn nothing_is_made_while_enough_is_given_back() {
        let pool = numbered(1, Keep { max_count: 8, unclaimed_for: LONG });
        until(|| pool.ready() == 1);
        assert_eq!(pool.give_back(70), None);
        for _ in 0..100 {
            let claimed = pool.claim().unwrap();
            assert_eq!(claimed, 70, "the minimum was there all the time");
            assert_eq!(pool.give_back(claimed), None);
        }
        assert_eq!(pool.ready(), 2);
    }

    #[test]
    fn what_nobody_claims_is_dropped_but_for_the_minimum() {
        for min in [0, 2] {
            let pool = numbered(min, Keep { max_count: 100, unclaimed_for: Duration::from_millis(1) });
            until(|| pool.ready() == min);
            for thing in 70..170 {
                // It may be dropped at once, and then there is room for the next; it is never refused.
                assert_eq!(pool.give_back(thing), None);
            }
            until(|| pool.ready() == min);
        }
    }

    #[test]
    fn dropping_drops_what_was_given_back() {
        let token = Arc::new(());
        let keep = Keep { max_count: 3, unclaimed_for: LONG };
        let pool = Pool::start_keeping("atoll-test", 0, keep, || Err::<Arc<()>, _>(fmt::Error)).unwrap();
        assert!(pool.give_back(Arc::clone(&token)).is_none());
        assert_eq!(Arc::strong_count(&token), 2);
        drop(pool);
        assert_eq!(Arc::strong_count(&token), 1);
    }
}
