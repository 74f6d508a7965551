//! What goes on in a sandbox: the execs that have not ended, the calls that use it, and what ends them all.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use atoll_core::id::ExecId;
use atoll_core::{Code, Error, Result};
use tokio_util::sync::CancellationToken;

use super::super::freezer::InUse;
use super::SandboxShared;
use crate::exec::ExecShared;

impl SandboxShared {
    /// Whether something goes on in it. What its template starts and its services are part of it, no use.
    pub(in crate::sandbox) fn is_busy(&self) -> bool {
        self.users.load(Ordering::SeqCst) > 0 || self.live_map().values().any(|exec| !exec.is_part())
    }

    pub(in crate::sandbox) fn enter_use(&self) {
        // In one order with the freezer's look.
        self.users.fetch_add(1, Ordering::SeqCst);
        self.touch();
    }

    pub(in crate::sandbox) fn leave_use(&self) {
        self.touch();
        self.users.fetch_sub(1, Ordering::SeqCst);
        self.say_idle();
    }

    /// Whether a call uses it at this moment.
    pub(in crate::sandbox) fn is_used(&self) -> bool {
        self.users.load(Ordering::SeqCst) > 0
    }

    fn say_idle(&self) {
        if self.watches_idle.load(Ordering::Relaxed) && !self.is_busy() {
            self.nudge.notify_one();
        }
    }

    /// Fires when what runs now ends with everything else.
    pub(crate) fn boot(&self) -> CancellationToken {
        self.boot.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends what runs now; gives the execs whose sessions end by that. What comes later belongs to the next boot.
    pub(in crate::sandbox) fn end_boot(&self) -> Vec<Arc<ExecShared>> {
        let live = self.live_map();
        let mut boot = self.boot.lock().unwrap_or_else(PoisonError::into_inner);
        boot.cancel();
        *boot = self.dead.child_token();
        live.values().cloned().collect()
    }

    /// What ends the connection that is about to be kept.
    pub(in crate::sandbox) fn new_link(&self) -> CancellationToken {
        self.unresponsive.store(false, Ordering::Relaxed);
        let token = self.boot().child_token();
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) = token.clone();
        token
    }

    /// Ends the connection to the guest, and nothing else: sessions wait for the next.
    pub(in crate::sandbox) fn end_link(&self) {
        self.link.lock().unwrap_or_else(PoisonError::into_inner).cancel();
    }

    /// Keeps it from being idle as long as the guard lives.
    pub(crate) fn in_use(self: &Arc<Self>) -> InUse {
        InUse::new(self)
    }

    fn live_map(&self) -> MutexGuard<'_, BTreeMap<ExecId, Arc<ExecShared>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Execs that have not ended, oldest first.
    pub(crate) fn live_execs(&self) -> Vec<Arc<ExecShared>> {
        self.live_map().values().cloned().collect()
    }

    /// The execs that run, but for what its template starts, services and agents.
    pub(crate) fn commands(&self) -> Vec<Arc<ExecShared>> {
        let mut execs = self.live_execs();
        execs.retain(|exec| !exec.is_part() && !exec.is_over());
        execs
    }

    pub(crate) fn live_exec(&self, id: &ExecId) -> Option<Arc<ExecShared>> {
        self.live_map().get(id).cloned()
    }

    /// Enters an exec, if there is room and the sandbox lives: a task that waits for the execs of a dead sandbox to end
    /// misses none.
    pub(crate) fn enter_exec(&self, exec: &Arc<ExecShared>, max: usize) -> Result<()> {
        let mut live = self.live_map();
        if self.dead.is_cancelled() {
            return Err(Error::new(Code::SandboxFailed, "the sandbox died"));
        }
        if live.len() >= max {
            return Err(Error::new(Code::LimitExceeded, format!("{max} execs run in this sandbox already"))
                .hint("wait for some to end, or kill them"));
        }
        exec.set_boot(self.boot());
        live.insert(exec.id().clone(), Arc::clone(exec));
        Ok(())
    }

    /// Counts an exec that has ended; gives how many there were before.
    pub(crate) fn count_ended(&self) -> u64 {
        self.ended.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn leave_exec(&self, id: &ExecId) {
        self.touch();
        self.live_map().remove(id);
        if self.record.borrow().spec.durability.is_some_and(|durability| durability.after_exec) {
            self.uncopied.store(true, Ordering::Release);
            self.nudge.notify_one();
        }
        self.say_idle();
    }
}
