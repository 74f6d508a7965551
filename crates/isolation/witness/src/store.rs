//! The objects in the kernel: maps, programs, links, and the table of sandboxes, all pinned.

mod programs;
mod rings;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use atoll_core::id::SandboxId;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::gate::{self, ExecKey, Gate, Key, TRACED};
use crate::level::Missing;
use crate::object::{self, BOX_BYTES, Hook, Maps, PROGRAMS, START_KEY_BYTES};
use crate::pins::Pins;
use crate::ring::{Counters, Ring};
use crate::watched::Watched;
use crate::{beside, bpf, lock};

pub(crate) use rings::{put_ring, ring_of};

/// Where a box has its flags, the depth of its pid namespace, and its sandbox's id.
const FLAGS_AT: usize = 4;
const LEVEL_AT: usize = 8;
const ID_AT: usize = 16;
/// Bytes of that id.
const ID_BYTES: usize = 40;
/// Largest file of facts, bytes.
const FACTS_MAX_BYTES: u64 = 16 << 20;
/// What most have at most, so that one is read at once, bytes.
const FACTS_USUAL_BYTES: usize = 4096;

/// Execs of one sandbox that may be starting at a time: a share of the room in the table of all sandboxes.
const STARTING_MAX_COUNT: usize = 128;

/// A sandbox's row of the kernel's table.
type Row = [u8; BOX_BYTES as usize];

/// All of it, open.
#[derive(Debug)]
pub(crate) struct Store {
    pins: Pins,
    set: PathBuf,
    facts: PathBuf,
    maps: Maps,
    counters: Counters,
    /// The programs of tracepoints and of cgroups, to ask how many events they missed.
    programs: Vec<OwnedFd>,
    /// Cgroups of sandboxes that were taken over from programs of another version.
    carried: BTreeSet<u64>,
}

impl Store {
    /// Takes up what is pinned in `dir`, or makes it.
    pub(crate) fn open(dir: &Path) -> Result<Self, Missing> {
        let pins = Pins::open(dir)?;
        let facts = beside(dir);
        let refused = |error| Missing::refused("keep what is known of sandboxes", error);
        std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&facts).map_err(refused)?;
        let set = pins.set();
        let opened = match programs::take_up(&set) {
            Ok(opened) => Ok(opened),
            Err(error) => {
                tracing::debug!(%error, "no programs to take up");
                programs::make(&set)
            }
        };
        if opened.is_err() && pins.is_empty() {
            pins.close();
        }
        let (maps, programs) = opened?;
        let counters = Counters::open(&maps.counters, object::SLOTS_MAX)
            .map_err(|error| Missing::refused("map the counters", error))?;
        let mut store = Self { pins, set, facts, maps, counters, programs, carried: BTreeSet::new() };
        store
            .replace_others()
            .map_err(|error| Missing::refused("replace what an older server pinned", error))?;
        Ok(store)
    }

    /// Takes over from programs of other versions, then ends them. Before they are ended, the new programs hold back
    /// everything that they hold back; when that fails the old ones stay.
    fn replace_others(&mut self) -> io::Result<()> {
        for other in self.pins.others()? {
            self.carried.extend(self.carry_over(&other)?);
            std::fs::remove_dir_all(&other)?;
            tracing::warn!(
                "programs of another version were replaced: what they had seen and nobody read is lost"
            );
        }
        Ok(())
    }

    fn carry_over(&self, other: &Path) -> io::Result<Vec<u64>> {
        let mut carried = Vec::new();
        // That version's table is missing: it was half made, or has no gates.
        let Ok(boxes) = bpf::open_pin(&other.join("map_boxes")) else { return Ok(carried) };
        if bpf::value_bytes(&boxes)? != BOX_BYTES {
            return Ok(carried);
        }
        for (name, map) in [
            ("map_rules", &self.maps.rules),
            ("map_senders", &self.maps.senders),
            ("map_steps", &self.maps.steps),
        ] {
            let Ok(theirs) = bpf::open_pin(&other.join(name)) else { continue };
            for (key, value) in rows::<24, 4>(&theirs)? {
                bpf::update(map, &key, &value, false)?;
            }
        }
        if let Ok(theirs) = bpf::open_pin(&other.join("map_exec_marks")) {
            for (key, value) in rows::<{ START_KEY_BYTES as usize }, 4>(&theirs)? {
                bpf::update(&self.maps.exec_marks, &key, &value, false)?;
            }
        }
        let own = rows::<8, { BOX_BYTES as usize }>(&self.maps.boxes)?;
        let mut taken: BTreeSet<u32> = own.iter().map(|(_, row)| number(row, 0)).collect();
        for (cgroup, mut row) in rows::<8, { BOX_BYTES as usize }>(&boxes)? {
            if number(&row, FLAGS_AT) & gate::GATED == 0 || own.iter().any(|(known, _)| *known == cgroup) {
                continue;
            }
            let slot = (0..object::SLOTS_MAX).find(|slot| !taken.contains(slot));
            let slot = slot.ok_or_else(|| io::Error::other("too many sandboxes"))?;
            taken.insert(slot);
            if ring_of(&self.maps.rings, slot)?.is_none() {
                put_ring(&self.maps.rings, slot, &object::make_ring(object::RING_BYTES)?)?;
            }
            row[..4].copy_from_slice(&slot.to_ne_bytes());
            bpf::update(&self.maps.boxes, &cgroup, &row, false)?;
            carried.push(u64::from_ne_bytes(cgroup));
        }
        Ok(carried)
    }

    /// Whether a sandbox was taken over from programs of another version, whose last records no server may have read.
    pub(crate) fn was_carried(&self, cgroup: u64) -> bool {
        self.carried.contains(&cgroup)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.set
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The map of rings.
    pub(crate) fn rings(&self) -> &OwnedFd {
        &self.maps.rings
    }

    /// Another descriptor of the map of rings, for the thread that makes rings.
    pub(crate) fn maps_for_rings(&self) -> Result<OwnedFd, Missing> {
        self.maps.rings.try_clone().map_err(|error| Missing::refused("copy a descriptor", error))
    }

    /// How often the kernel did not run a program although its event happened.
    pub(crate) fn missed(&self) -> io::Result<u64> {
        self.programs.iter().map(bpf::missed).sum()
    }

    /// Attaches the programs of connections to a cgroup.
    pub(crate) fn hook(&self, cgroup: BorrowedFd<'_>) -> Result<(), Missing> {
        let refused = |error: io::Error| Missing::refused("attach a program to a cgroup", error);
        let number = rustix::fs::fstat(cgroup).map_err(|error| refused(error.into()))?.st_ino;
        for (name, hook) in PROGRAMS {
            let Hook::Cgroup(_) = hook else { continue };
            let path = self.set.join(format!("link_{name}-{number}"));
            if let Ok(link) = bpf::open_pin(&path)
                && bpf::link_info(&link).is_ok_and(|info| info.cgroup == number)
            {
                continue;
            }
            // Absent, or of a cgroup that is gone.
            drop(std::fs::remove_file(&path));
            let program = bpf::open_pin(&self.set.join(format!("prog_{name}"))).map_err(refused)?;
            let link = object::attach(hook, &program, cgroup).map_err(refused)?;
            bpf::pin(&link, &path).map_err(refused)?;
        }
        Ok(())
    }

    /// Cgroup, slot and id of every sandbox in the table.
    pub(crate) fn boxes(&self) -> Result<Vec<(u64, u32, SandboxId)>, Missing> {
        let mut found = Vec::new();
        let refused = |error| Missing::refused("read the table of sandboxes", error);
        for (cgroup, row) in rows::<8, { BOX_BYTES as usize }>(&self.maps.boxes).map_err(refused)? {
            let id = String::from_utf8_lossy(&row[ID_AT..ID_AT + ID_BYTES]).trim_end_matches('\0').to_owned();
            match id.parse() {
                Ok(sandbox) => found.push((u64::from_ne_bytes(cgroup), number(&row, 0), sandbox)),
                Err(_unknown) => tracing::error!(id, "the table of sandboxes has what is no id"),
            }
        }
        Ok(found)
    }

    fn row(&self, cgroup: u64) -> io::Result<Option<Row>> {
        let mut row = [0; BOX_BYTES as usize];
        Ok(bpf::look_up(&self.maps.boxes, &cgroup.to_ne_bytes(), &mut row)?.then_some(row))
    }

    /// Whether the program of starts has seen one of a sandbox.
    pub(crate) fn saw_a_start(&self, cgroup: u64) -> io::Result<bool> {
        Ok(self.row(cgroup)?.is_some_and(|row| number(&row, LEVEL_AT) != 0))
    }

    /// Whether the kernel's programs can tell which files are the image's.
    pub(crate) fn knows_overlays(&self) -> bool {
        let mut config = [0; object::CONFIG_BYTES as usize];
        let read = bpf::look_up(&self.maps.config, &object::CONFIG_KEY, &mut config);
        read.is_ok_and(|there| there) && number(&config, 0) != 0
    }

    /// The rows that a gate has in the kernel's tables.
    fn tables(&self, cgroup: u64, gate: &Gate) -> [(&OwnedFd, BTreeMap<Key, u32>); 3] {
        [
            (&self.maps.rules, gate.rows(cgroup)),
            (&self.maps.senders, gate.sender_rows(cgroup)),
            (&self.maps.steps, gate.step_rows(cgroup)),
        ]
    }

    /// Puts the rules and senders of a sandbox's gate beside those that are there.
    fn add_rules(&self, cgroup: u64, gate: &Gate) -> io::Result<()> {
        for (map, rows) in self.tables(cgroup, gate) {
            put(map, rows)?;
        }
        put(&self.maps.exec_marks, gate.exec_rows(cgroup))
    }

    /// Removes a sandbox's rules and senders, but for those of a gate.
    fn remove_rules(&self, cgroup: u64, but: &Gate) -> io::Result<()> {
        for (map, keep) in self.tables(cgroup, but) {
            take_out(map, cgroup, &keep)?;
        }
        take_out(&self.maps.exec_marks, cgroup, &but.exec_rows(cgroup))
    }

    /// Changes what may run in a sandbox, from its next start of a program on. Each file is under the old gate or the new one
    /// at every moment.
    pub(crate) fn change_gate(&self, watched: &Watched, gate: &Gate) -> Result<(), Missing> {
        let refused = |error| Missing::refused("change which programs may run", error);
        self.add_rules(watched.cgroup, gate).map_err(refused)?;
        let row = self.row(watched.cgroup).map_err(refused)?;
        let mut row = row.ok_or_else(|| refused(io::ErrorKind::NotFound.into()))?;
        let flags = number(&row, FLAGS_AT) & (TRACED | gate::AGENT_RUNS) | gate.flags();
        row[FLAGS_AT..FLAGS_AT + 4].copy_from_slice(&flags.to_ne_bytes());
        bpf::update(&self.maps.boxes, &watched.cgroup.to_ne_bytes(), &row, false).map_err(refused)?;
        self.remove_rules(watched.cgroup, gate).map_err(refused)?;
        self.keep(&watched.sandbox, "gate", gate)
    }

    /// Tells the kernel's programs in which profile the exec whose cgroup has this name begins.
    pub(crate) fn exec_starts(&self, watched: &Watched, exec: &str, profile: u32) -> io::Result<()> {
        let mut starting = lock(&watched.starting);
        let starting = starting.as_mut().ok_or(io::ErrorKind::NotFound)?;
        if starting.len() >= STARTING_MAX_COUNT && !starting.contains(exec) {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!(
                    "{STARTING_MAX_COUNT} of its execs are about to start, and its guest says of none that it has"
                ),
            ));
        }
        let key = start_key(watched.cgroup, exec)?;
        bpf::update(&self.maps.starts, &key, &profile.to_ne_bytes(), false)?;
        starting.insert(exec.to_owned());
        Ok(())
    }

    /// Takes that back.
    pub(crate) fn exec_started(&self, watched: &Watched, exec: &str) -> io::Result<()> {
        let mut starting = lock(&watched.starting);
        bpf::delete(&self.maps.starts, &start_key(watched.cgroup, exec)?)?;
        if let Some(starting) = starting.as_mut() {
            starting.remove(exec);
        }
        Ok(())
    }

    /// Execs whose start an earlier server announced and, because it was killed, never took back: by their sandbox's
    /// cgroup.
    pub(crate) fn starting(&self) -> Result<HashMap<u64, BTreeSet<String>>, Missing> {
        let told = rows::<{ START_KEY_BYTES as usize }, 4>(&self.maps.starts)
            .map_err(|error| Missing::refused("read which execs start", error))?;
        let mut starting = HashMap::<u64, BTreeSet<String>>::new();
        for (key, _) in told {
            let (cgroup, name) = key.split_at(8);
            let name = std::ffi::CStr::from_bytes_until_nul(name).ok().and_then(|name| name.to_str().ok());
            if let (Ok(cgroup), Some(name)) = (<[u8; 8]>::try_from(cgroup), name) {
                starting.entry(u64::from_ne_bytes(cgroup)).or_default().insert(name.to_owned());
            }
        }
        Ok(starting)
    }

    /// Makes a slot as new.
    pub(crate) fn reset(&self, slot: u32, ring: &Ring) {
        ring.discard();
        self.counters.reset(slot);
    }

    /// Enters a sandbox into the table: from now on it is watched.
    pub(crate) fn enter(&self, watched: &Watched, gate: &Gate, agent_runs: bool) -> Result<(), Missing> {
        let refused = |error| Missing::refused("enter a sandbox into the table", error);
        self.add_rules(watched.cgroup, gate).map_err(refused)?;
        let runs = if agent_runs { gate::AGENT_RUNS } else { 0 };
        let mut value = Vec::with_capacity(BOX_BYTES as usize);
        for number in [watched.slot, TRACED | runs | gate.flags(), 0, watched.facts.first_id] {
            value.extend(number.to_ne_bytes());
        }
        value.extend(watched.sandbox.as_str().bytes().take(ID_BYTES));
        value.resize(ID_AT + ID_BYTES, 0);
        let (device, inode) = watched.facts.bound_root.unwrap_or_default();
        value.extend(inode.to_ne_bytes());
        value.extend(gate::kernel_device(device).to_ne_bytes());
        value.extend([0; 4]);
        let until_ns = watched.facts.image_until_ms.unwrap_or(0).saturating_mul(1_000_000);
        value.extend(until_ns.to_ne_bytes());
        bpf::update(&self.maps.boxes, &watched.cgroup.to_ne_bytes(), &value, false).map_err(refused)
    }

    /// Takes it out.
    pub(crate) fn leave(&self, watched: &Watched) -> Result<(), Missing> {
        let refused = |error| Missing::refused("take a sandbox out of the table", error);
        let cgroup = watched.cgroup;
        bpf::delete(&self.maps.boxes, &cgroup.to_ne_bytes()).map(drop).map_err(refused)?;
        let gate = lock(&watched.gate);
        for (map, rows) in self.tables(cgroup, &gate) {
            for key in rows.keys() {
                bpf::delete(map, key).map_err(refused)?;
            }
        }
        for key in gate.exec_rows(cgroup).keys() {
            bpf::delete(&self.maps.exec_marks, key).map_err(refused)?;
        }
        drop(gate);
        let mut starting = lock(&watched.starting);
        for exec in starting.iter().flatten() {
            let key = start_key(cgroup, exec).map_err(refused)?;
            bpf::delete(&self.maps.starts, &key).map_err(refused)?;
        }
        *starting = None;
        Ok(())
    }

    fn file(&self, sandbox: &SandboxId, what: &str) -> PathBuf {
        self.facts.join(format!("{sandbox}.{what}"))
    }

    /// Writes down facts that the kernel does not hold, for the next server.
    pub(crate) fn keep<T: Serialize>(
        &self,
        sandbox: &SandboxId,
        what: &str,
        value: &T,
    ) -> Result<(), Missing> {
        let refused = |error| Missing::refused("write down what is known of a sandbox", error);
        let text = serde_json::to_vec(value).map_err(io::Error::other).map_err(refused)?;
        std::fs::write(self.file(sandbox, what), text).map_err(refused)
    }

    /// The value that was written down; the default when the file is torn or absent.
    pub(crate) fn kept<T: DeserializeOwned + Default>(&self, sandbox: &SandboxId, what: &str) -> T {
        let mut text = Vec::with_capacity(FACTS_USUAL_BYTES);
        let read = File::open(self.file(sandbox, what))
            .and_then(|file| file.take(FACTS_MAX_BYTES).read_to_end(&mut text));
        // What is longer is cut off, and so torn.
        read.ok().and_then(|_count| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// Removes it.
    pub(crate) fn forget_facts(&self, sandbox: &SandboxId) {
        for what in ["json", "gate"] {
            // An error is ignored: absent is as good.
            drop(std::fs::remove_file(self.file(sandbox, what)));
        }
    }

    /// Removes everything.
    pub(crate) fn close(&self) {
        self.pins.close();
    }
}

/// A key of the tables of execs.
fn start_key(cgroup: u64, exec: &str) -> io::Result<ExecKey> {
    gate::exec_key(cgroup, exec).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Puts rows into a map, beside those that are there.
fn put<const K: usize>(map: &OwnedFd, rows: BTreeMap<[u8; K], u32>) -> io::Result<()> {
    for (key, value) in rows {
        bpf::update(map, &key, &value.to_ne_bytes(), false)?;
    }
    Ok(())
}

/// Removes a sandbox's rows of a map, but for some.
fn take_out<const K: usize>(map: &OwnedFd, cgroup: u64, but: &BTreeMap<[u8; K], u32>) -> io::Result<()> {
    for (key, _) in rows::<K, 4>(map)? {
        if key[..8] == cgroup.to_ne_bytes() && !but.contains_key(&key) {
            bpf::delete(map, &key)?;
        }
    }
    Ok(())
}

/// Everything in a map: keys and values.
fn rows<const K: usize, const V: usize>(map: &OwnedFd) -> io::Result<Vec<([u8; K], [u8; V])>> {
    let mut found = Vec::new();
    let (mut key, mut next) = (None::<[u8; K]>, [0; K]);
    while bpf::next_key(map, key.as_ref().map(<[u8; K]>::as_slice), &mut next)? {
        let mut value = [0; V];
        if bpf::look_up(map, &next, &mut value)? {
            found.push((next, value));
        }
        key = Some(next);
    }
    Ok(found)
}

fn number(row: &[u8], at: usize) -> u32 {
    row.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_ne_bytes)
}
