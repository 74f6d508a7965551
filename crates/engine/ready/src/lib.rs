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

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the filling thread rests after a failure.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long the filling thread leaves the host's processors to the caller that has just claimed a thing.
pub const HOLD_OFF: Duration = Duration::from_millis(8);

type Make<T, E> = Box<dyn Fn() -> Result<T, E> + Send + Sync>;

struct Shared<T, E> {
    name: &'static str,
    min: usize,
    make: Make<T, E>,
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    ready: VecDeque<T>,
    closing: bool,
}

impl<T, E> Shared<T, E> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps things of one kind ready. Dropping it stops the thread and drops what was ready.
pub struct Pool<T, E> {
    shared: Arc<Shared<T, E>>,
    filler: Option<JoinHandle<()>>,
}

impl<T, E> fmt::Debug for Pool<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ready = self.shared.lock().ready.len();
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
        let state = State { ready: VecDeque::with_capacity(min), closing: false };
        let shared = Arc::new(Shared {
            name,
            min,
            make: Box::new(make),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let filler = if min == 0 {
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
        let ready = self.shared.lock().ready.pop_front();
        self.shared.changed.notify_all();
        ready.map_or_else(|| (self.shared.make)(), Ok)
    }

    /// How many are ready.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.shared.lock().ready.len()
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

fn fill<T, E: std::error::Error + 'static>(shared: &Shared<T, E>) {
    loop {
        if wait(shared).closing {
            return;
        }
        match (shared.make)() {
            Ok(made) => shared.lock().ready.push_back(made),
            Err(error) => {
                tracing::warn!(
                    pool = shared.name,
                    error = chain(&error),
                    "cannot fill the pool; trying again"
                );
                let rest = shared.changed.wait_timeout_while(shared.lock(), RETRY_AFTER, |s| !s.closing);
                drop(rest.unwrap_or_else(PoisonError::into_inner));
            }
        }
    }
}

/// Waits until there is something to make.
fn wait<T, E>(shared: &Shared<T, E>) -> MutexGuard<'_, State<T>> {
    let full = |state: &mut State<T>| !state.closing && state.ready.len() >= shared.min;
    let enough = |state: &mut State<T>| !state.closing && state.ready.len() * 2 >= shared.min;
    let mut state = shared.lock();
    if !full(&mut state) {
        return state;
    }
    let state = shared.changed.wait_while(state, full).unwrap_or_else(PoisonError::into_inner);
    let held = shared.changed.wait_timeout_while(state, HOLD_OFF, enough);
    held.unwrap_or_else(PoisonError::into_inner).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

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
}
