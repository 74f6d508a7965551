//! The gate of an instance's network: the one of the slot that it was made with, or one opened anew in the namespace of
//! an instance that an earlier server made.
//!
//! The slot of an instance that has ended may be another's ([`SlotPool::give_back`]). For that two things must have
//! happened, in either order: the gateway no longer serves its gate, and no process of it is left ([`Home`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use atoll_core::id::SandboxId;
use atoll_core::policy::Sender;
use atoll_isolation::{Attribution, Gate, IsolationError, Keeper, Plan};
use atoll_isolation_host::gate;
use atoll_network::SlotPool;
use atoll_witness::Witness;
use rustix::fs::{Mode, OFlags};

use crate::Inner;
use crate::live::Instance;
use crate::step::Step;
use crate::sys;

/// Reads the mark that the kernel's programs put on a connection when it was made.
#[derive(Debug)]
struct ByWitness {
    witness: Arc<Witness>,
    sandbox: SandboxId,
}

impl Attribution for ByWitness {
    fn sender(&self, connection: BorrowedFd<'_>) -> Option<Sender> {
        let mark = sys::mark(connection).ok()?;
        self.witness.origins(&self.sandbox, mark).map(Sender::new)
    }
}

/// Where the gate of an instance's slot is, unless the gateway serves it. Dropping it closes what is there.
#[derive(Debug)]
pub(crate) struct Home {
    /// Where the slot goes at the end; leads nowhere when no other sandbox may have it.
    slots: Weak<SlotPool>,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// It is here: nobody asked for it yet, or it came back.
    Here(atoll_network::Gate),
    /// It is served.
    Away,
    /// No process of the instance is left. When the gate comes back its slot goes on to the pool.
    Ended,
    /// Another gate was opened in its place, or there was none. What comes back is closed.
    Replaced,
}

impl Home {
    /// Of the gate of a slot in which an instance with this plan is made.
    ///
    /// Of an instance with volumes the slot is not used again: over a Unix socket on a volume a program can hand a file
    /// of `/proc/net` to another sandbox, which would see in it what the next sandbox in this namespace does. Without
    /// volumes nothing that can be written to is shared, and all that was open has ended with the processes.
    pub(crate) fn new(gate: atoll_network::Gate, plan: &Plan, slots: &Arc<SlotPool>) -> Self {
        let slots = if plan.volumes.is_empty() { Arc::downgrade(slots) } else { Weak::new() };
        Self { slots, state: Mutex::new(State::Here(gate)) }
    }

    /// Of an instance that another server made, with its gate.
    pub(crate) fn without_gate() -> Self {
        Self { slots: Weak::new(), state: Mutex::new(State::Replaced) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in it is left half changed by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(self: &Arc<Self>) -> Option<Gate> {
        let mut state = self.state();
        if !matches!(*state, State::Here(_)) {
            return None;
        }
        let State::Here(gate) = std::mem::replace(&mut *state, State::Away) else { return None };
        let keeper = (self.slots.strong_count() > 0).then(|| -> Arc<dyn Keeper> { Arc::<Self>::clone(self) });
        Some(Gate { keeper, ..gate::convert(gate) })
    }

    /// Another gate leads out of the namespace from now on, and no other sandbox gets that. `false` when the instance has
    /// ended: then the namespace may be another's, and nobody may open a gate in it.
    fn replace(&self) -> bool {
        let mut state = self.state();
        if matches!(*state, State::Ended) {
            return false;
        }
        let replaced = std::mem::replace(&mut *state, State::Replaced);
        drop(state);
        // It is closed without the lock.
        drop(replaced);
        true
    }

    /// Says that no process of the instance is left.
    pub(crate) fn ended(&self) {
        let mut state = self.state();
        let gate = match std::mem::replace(&mut *state, State::Ended) {
            State::Here(gate) => Some(gate),
            State::Away | State::Ended => None,
            State::Replaced => {
                *state = State::Replaced;
                None
            }
        };
        drop(state);
        self.pass_on(gate);
    }

    fn pass_on(&self, gate: Option<atoll_network::Gate>) {
        if let Some(gate) = gate
            && let Some(slots) = self.slots.upgrade()
        {
            slots.give_back(gate);
        }
    }
}

impl Keeper for Home {
    fn take_back(&self, gate: Gate) {
        let Some(gate) = gate::revert(gate) else { return };
        let mut state = self.state();
        let for_pool = match *state {
            State::Away => {
                *state = State::Here(gate);
                None
            }
            State::Ended => Some(gate),
            State::Here(_) | State::Replaced => return,
        };
        drop(state);
        self.pass_on(for_pool);
    }
}

impl Inner {
    /// The gate that the instance was made with, if it is still here, or is here again.
    pub(crate) fn ready_gate(&self, id: &SandboxId) -> Result<Option<Gate>, IsolationError> {
        let gate = self.living(id)?.home().take();
        Ok(gate.map(|gate| self.attributed(id, gate)))
    }

    /// The same gate, which also tells which programs make connections, where the host's kernel knows.
    fn attributed(&self, id: &SandboxId, gate: Gate) -> Gate {
        let by_witness = |witness: &Arc<Witness>| -> Box<dyn Attribution> {
            Box::new(ByWitness { witness: Arc::clone(witness), sandbox: id.clone() })
        };
        Gate { attribution: self.witness.as_ref().ok().map(by_witness), ..gate }
    }

    /// Opens a new gate. Blocks for half a millisecond.
    pub(crate) fn new_gate(&self, id: &SandboxId) -> Result<Gate, IsolationError> {
        // Both of one instance: while a task puts the sandbox back to a snapshot, another has this id from one moment to
        // the next.
        let instance = self.living(id)?;
        let netns = netns_of(&instance)?;
        if !instance.home().replace() {
            return Err(IsolationError::Gone);
        }
        Ok(self.attributed(id, gate::open(netns.as_fd())?))
    }
}

/// The network namespace of an instance that lives.
fn netns_of(instance: &Instance) -> Result<OwnedFd, IsolationError> {
    let path = format!("/proc/{}/ns/net", instance.pid());
    let netns = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .step("open the network namespace of a sandbox")?;
    // A process that lives now has had its number all the time: what was opened is its own.
    if instance.is_dead() {
        return Err(IsolationError::Gone);
    }
    Ok(netns)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use atoll_network::Steering;

    use super::*;

    fn home() -> Arc<Home> {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let gate = atoll_network::Gate { tcp, dns: None, steering: Steering::Redirect };
        Arc::new(Home { slots: Weak::new(), state: Mutex::new(State::Here(gate)) })
    }

    #[test]
    fn a_gate_is_replaced_while_its_instance_lives_and_none_is_opened_when_it_has_ended() {
        let living = home();
        assert!(living.replace() && living.take().is_none());
        for is_served in [false, true] {
            let ended = home();
            let served = is_served.then(|| ended.take().unwrap());
            ended.ended();
            assert!(!ended.replace(), "its namespace may be another's");
            drop(served);
        }
    }
}
