//! The host's kernel as a witness: which processes ran in a sandbox, what they executed, and which connections they
//! asked for or accepted, seen from outside, where root in the sandbox can neither falsify nor hide them.
//!
//! ```text
//! programs in the kernel (bpf/witness.bpf.c)     exec, fork, exit, connect, listen, accept: of sandboxes' cgroups only
//!        │ one ring for each sandbox: a flood loses only that sandbox's records, and they are counted
//!        │         ▲
//!        │         └── the thread `witness-grow`: one that is busy gets a larger ring, once
//!        ▼
//! the thread `witness` ── looks every 20 ms ── events ── Sink (the recorder) ── "written" ── room is given back
//! ```
//!
//! Programs, rings and the table of sandboxes are pinned in a bpf file system of the installation. When the server is
//! killed they go on, and the next server reads on behind the last record whose room was given back. It recognises
//! records that were already written down, and does not write them twice.
//!
//! Of a container the host's kernel sees the sandbox's own processes. Of gVisor or a virtual machine it sees only one
//! process, the sentry or the VMM, however many run inside: those are not watched here, and their own kernels are other
//! witnesses.

mod bpf;
mod convert;
mod digest;
mod epoll;
mod fitted;
mod gate;
mod growth;
mod level;
mod object;
mod overlay;
mod pins;
mod reader;
mod record;
mod ring;
mod slots;
mod store;
mod watched;

use std::collections::{BTreeSet, HashMap};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use atoll_core::id::SandboxId;
use atoll_core::policy::Origin;
use atoll_ready::Pool;
use atoll_recorder::event::Event;

pub use gate::{Gate, Profile, Programs, Rule, SENDERS_MAX, Sender};
pub use level::Missing;
pub use pins::{close as close_pins, is_mounted};
pub use watched::{Facts, Layer};

use growth::Growth;
use reader::Doorbell;
use slots::{Free, Slot};
use store::Store;
use watched::{Reading, Rings, Watched};

/// Rings that are kept ready: making one takes as long as the kernel needs to forget the last state of a map.
const READY_COUNT: usize = 4;

/// Takes the events (the recorder). The thread `witness` calls it.
pub trait Sink: Send + Sync + std::fmt::Debug {
    /// Whether a sandbox is recorded, now. While it is not, its records wait in its ring.
    fn takes(&self, sandbox: &SandboxId) -> bool;

    /// Takes an event.
    fn record(&self, sandbox: &SandboxId, event: Event);

    /// Waits until all recorded events of a sandbox will survive this process, or until it is clear that they cannot.
    fn written(&self, sandbox: &SandboxId);

    /// The last events of the host's kernel that are recorded of a sandbox, but for losses: at most so many, oldest first.
    fn last(&self, sandbox: &SandboxId, max: usize) -> Vec<Event>;
}

/// The programs in the kernel, and the thread that reads their records. Dropping it leaves the programs running, for
/// the next server, while a sandbox is watched.
#[derive(Debug)]
pub struct Witness {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    store: Store,
    /// By cgroup.
    watched: Mutex<HashMap<u64, Arc<Watched>>>,
    free: Arc<Free>,
    rings: Pool<Slot, Missing>,
    bell: Doorbell,
    growth: Growth,
    stop: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves no data behind these locks half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Witness {
    /// Loads the programs, or takes up those that an earlier server left in `dir`, and starts to read. `dir` becomes
    /// the mount of a bpf file system; files that cannot be in there are kept in the directory of the same name with
    /// `.d` at its end.
    ///
    /// # Errors
    /// [`Missing`] says why the kernel of this host cannot be a witness. Sandboxes run all the same.
    pub fn open(dir: &Path, sink: Arc<dyn Sink>) -> Result<Self, Missing> {
        let store = Store::open(dir)?;
        let free = Arc::new(Free::default());
        let refused = |error| Missing::refused("make an epoll", error);
        let (bell, growth) = (Doorbell::new().map_err(refused)?, Growth::new().map_err(refused)?);
        let watched = Mutex::new(take_up(&store, &free, &bell, &growth)?);
        let rings = {
            let (free, maps) = (Arc::clone(&free), store.maps_for_rings()?);
            let make = move || slots::make(&free, &maps);
            Pool::start("witness-rings", READY_COUNT, make)
                .map_err(|error| Missing::refused("start the thread witness-rings", error))?
        };
        let stop = AtomicBool::new(false);
        let shared = Arc::new(Shared { store, watched, free, rings, bell, growth, stop });
        // When the second thread cannot be started, dropping this ends the first.
        let witness = Self { shared: Arc::clone(&shared), threads: Mutex::default() };
        let grows = Arc::clone(&shared);
        witness.start("witness-grow", move || growth::run(&grows))?;
        witness.start("witness", move || reader::run(&shared, &*sink))?;
        Ok(witness)
    }

    fn start(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Missing> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        let thread = thread.map_err(|error| Missing::refused(&format!("start the thread {name}"), error))?;
        lock(&self.threads).push(thread);
        Ok(())
    }

    /// Attaches the programs for connections to a cgroup and all below it: the parent of sandboxes' cgroups.
    /// Idempotent.
    ///
    /// # Errors
    /// [`Missing`].
    pub fn hook(&self, cgroup: BorrowedFd<'_>) -> Result<(), Missing> {
        self.shared.store.hook(cgroup)
    }

    /// Begins to watch a sandbox, before its first process runs, and to hold back programs that its gate does not let
    /// run. `cgroup` is the number of its cgroup of version 2: the inode of the directory. Idempotent.
    ///
    /// # Errors
    /// [`Missing`]: it will not be watched, and nothing is held back.
    pub fn watch(&self, sandbox: &SandboxId, cgroup: u64, facts: Facts, gate: Gate) -> Result<(), Missing> {
        self.begin(sandbox, cgroup, facts, gate, false)
    }

    fn begin(
        &self,
        sandbox: &SandboxId,
        cgroup: u64,
        facts: Facts,
        gate: Gate,
        late: bool,
    ) -> Result<(), Missing> {
        if lock(&self.shared.watched).contains_key(&cgroup) {
            return self.change_gate(sandbox, &gate);
        }
        let slot = self.shared.rings.claim()?;
        if let Err(missing) = self.prepare(sandbox, cgroup, &facts, &gate, &slot) {
            self.shared.store.forget_facts(sandbox);
            self.give_back(slot);
            return Err(missing);
        }
        let watched = Arc::new(Watched {
            sandbox: sandbox.clone(),
            cgroup,
            slot: slot.number,
            facts,
            rings: Mutex::new(Rings::of(slot.ring)),
            may_grow: Mutex::new(true),
            reading: Mutex::new(Reading { late, ..Reading::default() }),
            gate: Mutex::new(gate.clone()),
            starting: Mutex::new(Some(BTreeSet::new())),
        });
        lock(&self.shared.watched).insert(cgroup, Arc::clone(&watched));
        self.shared.store.enter(&watched, &gate, late)
    }

    /// Empties a slot for a sandbox and writes down what the next server needs to know of it.
    fn prepare(
        &self,
        sandbox: &SandboxId,
        cgroup: u64,
        facts: &Facts,
        gate: &Gate,
        slot: &Slot,
    ) -> Result<(), Missing> {
        let Shared { store, bell, growth, .. } = &*self.shared;
        store.reset(slot.number, &slot.ring);
        store.keep(sandbox, "json", facts)?;
        store.keep(sandbox, "gate", gate)?;
        listen(bell, growth, &Rings::of(Arc::clone(&slot.ring)), cgroup)
    }

    /// Changes what may run in a sandbox, from its next start of a program on.
    ///
    /// # Errors
    /// [`Missing`]: nothing, or a part of it, has changed; calling again, with this gate or another, continues. Until then
    /// [`Self::gate`] has no revision where a part may have changed.
    pub fn change_gate(&self, sandbox: &SandboxId, gate: &Gate) -> Result<(), Missing> {
        let watched = self.find(sandbox).ok_or_else(|| {
            Missing::refused("change which programs may run", std::io::ErrorKind::NotFound.into())
        })?;
        let mut kept = lock(&watched.gate);
        let gate = gate.after(&kept);
        // Until all is done the kernel may have a part of each gate: so neither is recognised, by this server after a failure or
        // by the next one when this is killed in between.
        let unsettled = Gate { revision: String::new(), ..kept.clone() };
        self.shared.store.keep(sandbox, "gate", &unsettled)?;
        *kept = unsettled;
        self.shared.store.change_gate(&watched, &gate)?;
        *kept = gate;
        Ok(())
    }

    /// The facts that the caller gave when the sandbox began to be watched.
    #[must_use]
    pub fn facts(&self, sandbox: &SandboxId) -> Option<Facts> {
        self.find(sandbox).map(|watched| watched.facts.clone())
    }

    /// Which of the programs that a gate tells apart made a connection, by its mark; `None` when that is not known.
    #[must_use]
    pub fn origins(&self, sandbox: &SandboxId, mark: u32) -> Option<Vec<Origin>> {
        self.find(sandbox).and_then(|watched| lock(&watched.gate).origins(mark))
    }

    /// Tells the kernel's programs in which profile the exec whose cgroup has this name begins, before its first
    /// process is forked. `false` when the sandbox has no such profile, or is not watched.
    ///
    /// # Errors
    /// [`Missing`].
    pub fn exec_starts(&self, sandbox: &SandboxId, exec: &str, profile: &str) -> Result<bool, Missing> {
        let Some(watched) = self.find(sandbox) else { return Ok(false) };
        let Some(number) = lock(&watched.gate).profile(profile) else { return Ok(false) };
        let told = self.shared.store.exec_starts(&watched, exec, number);
        told.map(|()| true).map_err(|error| Missing::refused("say in which profile an exec begins", error))
    }

    /// Takes that back: the exec whose cgroup has this name has begun, or will not begin.
    ///
    /// # Errors
    /// [`Missing`].
    pub fn exec_started(&self, sandbox: &SandboxId, exec: &str) -> Result<(), Missing> {
        let Some(watched) = self.find(sandbox) else { return Ok(()) };
        let taken = self.shared.store.exec_started(&watched, exec);
        taken.map_err(|error| Missing::refused("take back in which profile an exec begins", error))
    }

    /// What may run in a sandbox; `None` for one that is not watched.
    #[must_use]
    pub fn gate(&self, sandbox: &SandboxId) -> Option<Gate> {
        self.find(sandbox).map(|watched| lock(&watched.gate).clone())
    }

    /// Whether the programs in the kernel have seen a sandbox start a program, so that there is no doubt that they see all.
    ///
    /// # Errors
    /// [`Missing`].
    pub fn saw_a_start(&self, sandbox: &SandboxId) -> Result<bool, Missing> {
        let Some(watched) = self.find(sandbox) else { return Ok(false) };
        let saw = self.shared.store.saw_a_start(watched.cgroup);
        saw.map_err(|error| Missing::refused("read the table of sandboxes", error))
    }

    /// Whether the kernel describes overlayfs: otherwise its programs cannot tell which files are the image's.
    #[must_use]
    pub fn knows_overlays(&self) -> bool {
        self.shared.store.knows_overlays()
    }

    /// Bytes of the ring to which the kernel's programs write of a sandbox: a busy one has been given a larger one. `None`
    /// for one that is not watched.
    #[must_use]
    pub fn ring_bytes(&self, sandbox: &SandboxId) -> Option<usize> {
        self.find(sandbox).map(|watched| lock(&watched.rings).last().bytes())
    }

    fn find(&self, sandbox: &SandboxId) -> Option<Arc<Watched>> {
        lock(&self.shared.watched).values().find(|watched| watched.sandbox == *sandbox).cloned()
    }

    /// The same as [`Self::watch`] for a sandbox that runs already and was not watched: its events until now are
    /// missing, and processes that run belong to no exec.
    ///
    /// # Errors
    /// As [`Self::watch`].
    pub fn watch_running(
        &self,
        sandbox: &SandboxId,
        cgroup: u64,
        facts: Facts,
        gate: Gate,
    ) -> Result<(), Missing> {
        self.begin(sandbox, cgroup, facts, gate, true)
    }

    /// Whether a sandbox is watched.
    #[must_use]
    pub fn watches(&self, sandbox: &SandboxId) -> bool {
        self.find(sandbox).is_some()
    }

    /// Ends watching a sandbox whose processes have ended; the records that they left in the ring are read first.
    /// Idempotent.
    ///
    /// # Errors
    /// [`Missing`] when the kernel keeps it; calling again continues.
    pub fn forget(&self, sandbox: &SandboxId) -> Result<(), Missing> {
        let found: Vec<_> =
            lock(&self.shared.watched).values().filter(|w| w.sandbox == *sandbox).cloned().collect();
        for watched in found {
            self.shared.store.leave(&watched)?;
            // Before the thread empties the ring for the last time: it must not come back to it as this sandbox's when the
            // ring is another's, whose records it would throw away as late ones.
            lock(&self.shared.watched).remove(&watched.cgroup);
            // Waits for who is giving it a larger ring just now; from then on nobody does: the slot may be another's soon.
            *lock(&watched.may_grow) = false;
            self.shared.bell.drain(&watched);
            let rings = lock(&watched.rings).clone();
            deafen(&self.shared.bell, &self.shared.growth, &rings);
            self.shared.store.forget_before(watched.slot);
            self.give_back(Slot { number: watched.slot, ring: Arc::clone(rings.last()) });
        }
        self.shared.store.forget_facts(sandbox);
        Ok(())
    }

    /// Makes a slot free. Where its ring is a larger one, or many rings are now of no sandbox, a thread that lives for
    /// nothing else removes some.
    fn give_back(&self, slot: Slot) {
        if !self.shared.free.give_back(slot) {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let clear_away = move || {
            let stop = || shared.stop.load(Ordering::Acquire);
            slots::clear_away(&shared.free, shared.store.rings(), stop);
        };
        if let Err(error) = std::thread::Builder::new().name("witness-away".to_owned()).spawn(clear_away) {
            tracing::warn!(%error, "rings of sandboxes that are gone stay for now");
            self.shared.free.not_cleared();
        }
    }

    /// Every sandbox that is in the kernel's table, with the name under which `bpftool` finds it.
    #[must_use]
    pub fn sandboxes(&self) -> Vec<(SandboxId, String)> {
        let name = |watched: &Arc<Watched>| {
            let place = format!("{}/map_boxes: {}", self.shared.store.dir().display(), watched.cgroup);
            (watched.sandbox.clone(), place)
        };
        lock(&self.shared.watched).values().map(name).collect()
    }

    /// Stops reading; when no sandbox is left, removes programs, rings and the mount. Dropping the witness does this,
    /// too; a second call does nothing.
    pub fn close(&self) {
        // The next server may have opened the same place since the first time.
        let threads = std::mem::take(&mut *lock(&self.threads));
        if threads.is_empty() {
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        self.shared.bell.ring();
        self.shared.growth.wake();
        for thread in threads {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                tracing::error!(name, "a thread of the witness panicked");
            }
        }
        if lock(&self.shared.watched).is_empty() {
            self.shared.store.close();
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.close();
    }
}

/// The sandboxes that an earlier server watched, by cgroup, each with what waits in its rings.
fn take_up(
    store: &Store,
    free: &Free,
    bell: &Doorbell,
    growth: &Growth,
) -> Result<HashMap<u64, Arc<Watched>>, Missing> {
    let (mut watched, mut starting, mut slots) = (HashMap::new(), store.starting()?, BTreeSet::new());
    for (cgroup, slot, sandbox) in store.boxes()? {
        free.take(slot);
        slots.insert(slot);
        let rings = store.rings_of(slot)?;
        listen(bell, growth, &rings, cgroup)?;
        let carried = store.was_carried(cgroup);
        let one = Watched {
            cgroup,
            slot,
            facts: store.kept(&sandbox, "json"),
            may_grow: Mutex::new(rings.are_small()),
            rings: Mutex::new(rings),
            reading: Mutex::new(Reading { taken_over: !carried, late: carried, ..Reading::default() }),
            gate: Mutex::new(store.kept(&sandbox, "gate")),
            starting: Mutex::new(Some(starting.remove(&cgroup).unwrap_or_default())),
            sandbox,
        };
        watched.insert(cgroup, Arc::new(one));
    }
    let forgotten = store.forget_before_of_others(&slots);
    forgotten.map_err(|error| Missing::refused("remove rings of sandboxes that are gone", error))?;
    Ok(watched)
}

/// Lets the thread `witness` hear of a sandbox's rings, and the thread `witness-grow` of a small one.
fn listen(bell: &Doorbell, growth: &Growth, rings: &Rings, cgroup: u64) -> Result<(), Missing> {
    let mut added = rings.iter().try_for_each(|ring| bell.add(ring));
    if added.is_ok() && rings.are_small() {
        added = growth.add(&rings.now, cgroup);
    }
    added.map_err(|error| {
        deafen(bell, growth, rings);
        Missing::refused("watch a ring", error)
    })
}

/// Ends that.
fn deafen(bell: &Doorbell, growth: &Growth, rings: &Rings) {
    for ring in rings.iter() {
        bell.remove(ring);
        growth.remove(ring);
    }
}

/// Where facts are kept: beside the mount.
fn beside(dir: &Path) -> PathBuf {
    let mut name = dir.as_os_str().to_owned();
    name.push(".d");
    PathBuf::from(name)
}
