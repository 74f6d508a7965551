//! Sandboxes that are being made when the host's disk gets full: they are ended, not stopped.
//!
//! A sandbox that runs can stand still for as long as it takes. One that is being made cannot: the task that makes it
//! waits for its first process, and would wait for just as long. So each making is registered under the id of its
//! sandbox ([`Making`]): the guard refuses new makings before it stops anything, and kills the processes of those under
//! way, which makes them fail at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::SandboxId;
use atoll_isolation::IsolationError;

use crate::step::failed;

/// The makings of one server.
#[derive(Debug, Default)]
pub(crate) struct Makings {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    shut: bool,
    /// How many are under way for each sandbox: one that failed can still be ending when the next begins.
    under_way: BTreeMap<SandboxId, usize>,
}

impl Makings {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses new makings from here on, or lets them begin again.
    pub(crate) fn shut(&self, shut: bool) {
        self.state().shut = shut;
    }

    /// The sandboxes that are being made.
    pub(crate) fn under_way(&self) -> Vec<SandboxId> {
        self.state().under_way.keys().cloned().collect()
    }

    pub(crate) fn begin(self: &Arc<Self>, id: &SandboxId) -> Result<Making, IsolationError> {
        let mut state = self.state();
        if state.shut {
            return Err(no_room());
        }
        *state.under_way.entry(id.clone()).or_default() += 1;
        Ok(Making { makings: Arc::clone(self), id: id.clone() })
    }
}

/// A sandbox that is being made, until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Making {
    makings: Arc<Makings>,
    id: SandboxId,
}

impl Making {
    /// Gives how the making ended: [`IsolationError::HostFull`], in place of `made`, when the guard ended it.
    ///
    /// # Errors
    /// [`IsolationError::HostFull`]; the error in `made`.
    pub fn end<T>(self, made: Result<T, IsolationError>) -> Result<T, IsolationError> {
        self.check().and(made)
    }

    /// Fails when the guard ends the making.
    ///
    /// # Errors
    /// [`IsolationError::HostFull`].
    pub fn check(&self) -> Result<(), IsolationError> {
        if self.makings.state().shut { Err(no_room()) } else { Ok(()) }
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let mut state = self.makings.state();
        if let Some(count) = state.under_way.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                state.under_way.remove(&self.id);
            }
        }
    }
}

fn no_room() -> IsolationError {
    failed("keep room for the disks that are in use".to_owned(), rustix::io::Errno::NOSPC.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_begins_while_it_is_full_and_those_under_way_fail_for_that() {
        let makings = Arc::new(Makings::default());
        let [first, second] = [1, 2].map(|random| SandboxId::from_parts(0, random));
        let making = makings.begin(&first).unwrap();
        let again = makings.begin(&first).unwrap();
        assert!(again.end(Ok(())).is_ok());
        assert_eq!(makings.under_way(), std::slice::from_ref(&first));
        makings.shut(true);
        assert!(matches!(makings.begin(&second), Err(IsolationError::HostFull { .. })));
        assert!(matches!(making.end(Ok(())), Err(IsolationError::HostFull { .. })));
        assert!(makings.under_way().is_empty());
        makings.shut(false);
        drop(makings.begin(&second).unwrap());
    }
}
