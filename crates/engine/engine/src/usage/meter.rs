//! The meter of one sandbox: what was used and not yet recorded, and what was used in its whole life.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use atoll_core::id::KeyId;
use atoll_core::usage::Usage;
use atoll_store::UsageMark;

const MS_PER_S: u64 = 1000;

#[derive(Debug, Default)]
struct State {
    lifetime: Usage,
    pending: BTreeMap<Option<KeyId>, Usage>,
    /// Up to where it was measured.
    mark: Option<UsageMark>,
    /// What did not make a whole byte-second yet, byte-milliseconds.
    memory_rest: u64,
    disk_rest: u64,
    /// How long it stood still up to then, as the freezer counts.
    stood_still_ms: u64,
    /// Memory as last measured, bytes.
    memory_bytes: u64,
    /// What the gateway had counted when it was last asked, bytes.
    egress_seen: u64,
}

/// One look at a sandbox.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) at_ms: u64,
    /// It runs, or dozes.
    pub(super) running: bool,
    pub(super) stood_still_ms: u64,
    pub(super) cpu_us: u64,
    pub(super) memory_bytes: u64,
    pub(super) disk_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Meter {
    /// The key on whose account usage goes that belongs to no key in particular.
    owner: Option<KeyId>,
    state: Mutex<State>,
}

impl Meter {
    pub(crate) fn new(owner: Option<KeyId>) -> Self {
        Self { owner, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Plain numbers: usable as they are after a panic elsewhere.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, key: Option<&KeyId>, used: &Usage) {
        let mut state = self.lock();
        state.lifetime.add(used);
        state.pending.entry(key.cloned()).or_default().add(used);
    }

    /// Begins where an earlier measurement, perhaps of another process, ended.
    pub(super) fn begin(&self, mark: UsageMark, lifetime: &Usage) {
        let mut state = self.lock();
        state.mark = Some(mark);
        state.lifetime.add(lifetime);
    }

    /// Whether something that began then is not in what was recorded.
    pub(crate) fn is_after_mark(&self, began_ms: u64) -> bool {
        self.lock().mark.is_some_and(|mark| began_ms > mark.at_ms)
    }

    /// Leaves out what the gateway has counted up to now.
    pub(super) fn skip_egress(&self, sent: u64) {
        self.lock().egress_seen = sent;
    }

    /// What it used in its whole life, as far as was measured.
    pub(crate) fn lifetime(&self) -> Usage {
        self.lock().lifetime
    }

    /// Its memory as last measured, bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.lock().memory_bytes
    }

    pub(crate) fn count_request(&self) {
        self.count(self.owner.as_ref(), &Usage { requests: 1, ..Usage::default() });
    }

    pub(crate) fn count_exec(&self, key: Option<&KeyId>) {
        self.count(key, &Usage { execs: 1, ..Usage::default() });
    }

    pub(crate) fn count_exec_cpu(&self, key: Option<&KeyId>, exec_cpu_us: u64) {
        self.count(key, &Usage { exec_cpu_us, ..Usage::default() });
    }

    /// Takes note of what the gateway has counted; it begins anew with each network.
    pub(super) fn see_egress(&self, sent: u64) {
        let mut state = self.lock();
        let seen = std::mem::replace(&mut state.egress_seen, sent);
        let egress_bytes = if sent < seen { sent } else { sent - seen };
        if egress_bytes > 0 {
            let used = Usage { egress_bytes, ..Usage::default() };
            state.lifetime.add(&used);
            state.pending.entry(self.owner.clone()).or_default().add(&used);
        }
    }

    /// Counts what was used since the look before.
    pub(super) fn measure(&self, look: Look) {
        let mut state = self.lock();
        let mark = state.mark.replace(UsageMark { cpu_us: look.cpu_us, at_ms: look.at_ms });
        state.memory_bytes = look.memory_bytes;
        let still_ms = look.stood_still_ms.saturating_sub(state.stood_still_ms);
        state.stood_still_ms = look.stood_still_ms;
        let Some(mark) = mark else { return };
        let ms = look.at_ms.saturating_sub(mark.at_ms);
        let memory = look.memory_bytes.saturating_mul(ms).saturating_add(state.memory_rest);
        let disk = look.disk_bytes.saturating_mul(ms).saturating_add(state.disk_rest);
        (state.memory_rest, state.disk_rest) = (memory % MS_PER_S, disk % MS_PER_S);
        let used = Usage {
            // A sandbox that was put to disk and woken begins with 0 again.
            cpu_us: if look.cpu_us < mark.cpu_us { look.cpu_us } else { look.cpu_us - mark.cpu_us },
            memory_byte_seconds: memory / MS_PER_S,
            disk_byte_seconds: disk / MS_PER_S,
            running_ms: if look.running { ms.saturating_sub(still_ms) } else { 0 },
            ..Usage::default()
        };
        let owner = self.owner.clone();
        state.lifetime.add(&used);
        state.pending.entry(owner).or_default().add(&used);
    }

    /// Takes what is to be recorded.
    pub(super) fn take(&self) -> (BTreeMap<Option<KeyId>, Usage>, Option<UsageMark>) {
        let mut state = self.lock();
        (std::mem::take(&mut state.pending), state.mark)
    }

    /// Gives back what could not be recorded.
    pub(super) fn give_back(&self, unrecorded: BTreeMap<Option<KeyId>, Usage>) {
        let mut state = self.lock();
        for (key, used) in unrecorded {
            state.pending.entry(key).or_default().add(&used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(at_ms: u64, cpu_us: u64) -> Look {
        Look { at_ms, running: true, stood_still_ms: 0, cpu_us, memory_bytes: 1500, disk_bytes: 10 }
    }

    #[test]
    fn looks_add_up_and_lose_no_remainder() {
        let meter = Meter::new(None);
        meter.begin(UsageMark { cpu_us: 0, at_ms: 1000 }, &Usage::default());
        for at in 1..=10 {
            meter.measure(look(1000 + at * 100, at * 7));
        }
        let used = meter.lifetime();
        assert_eq!((used.cpu_us, used.memory_byte_seconds, used.disk_byte_seconds), (70, 1500, 10));
        assert_eq!(used.running_ms, 1000);
        let (pending, mark) = meter.take();
        assert_eq!(pending[&None], used);
        assert_eq!(mark, Some(UsageMark { cpu_us: 70, at_ms: 2000 }));
        meter.give_back(pending);
        assert_eq!(meter.take().0[&None], used);
        assert_eq!(meter.take().0, BTreeMap::new());
    }

    #[test]
    fn bytes_are_counted_over_networks() {
        let meter = Meter::new(None);
        for sent in [5, 5, 9, 2, 3] {
            meter.see_egress(sent);
        }
        assert_eq!(meter.lifetime().egress_bytes, 9 + 3);
    }

    #[test]
    fn what_stands_still_does_not_run_and_a_new_boot_counts_from_zero() {
        let meter = Meter::new(None);
        meter.begin(UsageMark { cpu_us: 500, at_ms: 0 }, &Usage { running_ms: 5, ..Usage::default() });
        meter.measure(Look { stood_still_ms: 60, ..look(100, 600) });
        meter.measure(Look { running: false, stood_still_ms: 60, ..look(200, 0) });
        meter.measure(Look { stood_still_ms: 60, ..look(300, 30) });
        let used = meter.lifetime();
        assert_eq!((used.running_ms, used.cpu_us), (5 + 40 + 100, 100 + 30));
    }
}
