//! What is in the kernel: maps, programs, links, and the table of sandboxes, all pinned.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use atoll_core::id::SandboxId;
use aya_obj::btf::Btf;

use crate::level::{Missing, chain};
use crate::object::{self, BOX_BYTES, Hook, Maps, PROGRAMS, RING_BYTES};
use crate::pins::Pins;
use crate::ring::{Counters, Ring};
use crate::watched::{Facts, Watched};
use crate::{beside, bpf};

/// What a box's flags say: its events are wanted.
const TRACED: u32 = 1;
/// Bytes of a sandbox's id in a box.
const ID_BYTES: usize = 40;
/// Largest file of facts, bytes.
const FACTS_MAX_BYTES: u64 = 1 << 20;

/// All of it, open.
#[derive(Debug)]
pub(crate) struct Store {
    pins: Pins,
    set: PathBuf,
    facts: PathBuf,
    maps: Maps,
    counters: Counters,
    /// Those of tracepoints and of cgroups, for what they missed.
    programs: Vec<OwnedFd>,
}

impl Store {
    /// Takes up what is pinned in `dir`, or makes it.
    pub(crate) fn open(dir: &Path) -> Result<Self, Missing> {
        let pins = Pins::open(dir)?;
        let facts = beside(dir);
        let refused = |error| Missing::refused("keep what is known of sandboxes", error);
        std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&facts).map_err(refused)?;
        let set = pins.set();
        if pins
            .remove_others()
            .map_err(|error| Missing::refused("remove what an older server pinned", error))?
        {
            tracing::warn!(
                "programs of another version were replaced: what they had seen and nobody read is lost"
            );
        }
        let opened = match take_up(&set) {
            Ok(opened) => Ok(opened),
            Err(error) => {
                tracing::debug!(%error, "no programs to take up");
                make(&set)
            }
        };
        if opened.is_err() && pins.is_empty() {
            pins.close();
        }
        let (maps, programs) = opened?;
        let counters = Counters::open(&maps.counters, object::SLOTS_MAX)
            .map_err(|error| Missing::refused("map the counters", error))?;
        Ok(Self { pins, set, facts, maps, counters, programs })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.set
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The map of rings, once more, for whoever makes them.
    pub(crate) fn maps_for_rings(&self) -> Result<OwnedFd, Missing> {
        self.maps.rings.try_clone().map_err(|error| Missing::refused("copy a descriptor", error))
    }

    /// How often a program did not run, though something happened.
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
        let (mut key, mut next) = (None::<[u8; 8]>, [0; 8]);
        while bpf::next_key(&self.maps.boxes, key.as_ref().map(<[u8; 8]>::as_slice), &mut next)
            .map_err(refused)?
        {
            let mut value = [0; BOX_BYTES as usize];
            if bpf::look_up(&self.maps.boxes, &next, &mut value).map_err(refused)? {
                let id = String::from_utf8_lossy(&value[16..]).trim_end_matches('\0').to_owned();
                let slot = u32::from_ne_bytes([value[0], value[1], value[2], value[3]]);
                match id.parse() {
                    Ok(sandbox) => found.push((u64::from_ne_bytes(next), slot, sandbox)),
                    Err(_unknown) => tracing::error!(id, "the table of sandboxes has what is no id"),
                }
            }
            key = Some(next);
        }
        Ok(found)
    }

    /// The ring of a slot.
    pub(crate) fn ring(&self, slot: u32) -> Result<Ring, Missing> {
        let found = ring_of(&self.maps.rings, slot)
            .and_then(|ring| ring.ok_or_else(|| io::ErrorKind::NotFound.into()));
        found.map_err(|error| Missing::refused("open a ring", error))
    }

    /// Makes a slot as new.
    pub(crate) fn reset(&self, slot: u32, ring: &Ring) {
        ring.discard();
        self.counters.reset(slot);
    }

    /// Enters a sandbox into the table: from now on it is watched.
    pub(crate) fn enter(&self, watched: &Watched) -> Result<(), Missing> {
        let mut value = Vec::with_capacity(BOX_BYTES as usize);
        for number in [watched.slot, TRACED, 0, watched.facts.first_id] {
            value.extend(number.to_ne_bytes());
        }
        value.extend(watched.sandbox.as_str().bytes().take(ID_BYTES));
        value.resize(BOX_BYTES as usize, 0);
        bpf::update(&self.maps.boxes, &watched.cgroup.to_ne_bytes(), &value, false)
            .map_err(|error| Missing::refused("enter a sandbox into the table", error))
    }

    /// Takes it out.
    pub(crate) fn leave(&self, cgroup: u64) -> Result<(), Missing> {
        bpf::delete(&self.maps.boxes, &cgroup.to_ne_bytes())
            .map(drop)
            .map_err(|error| Missing::refused("take a sandbox out of the table", error))
    }

    fn facts_file(&self, sandbox: &SandboxId) -> PathBuf {
        self.facts.join(format!("{sandbox}.json"))
    }

    /// Writes down what the kernel does not know, for the next server.
    pub(crate) fn keep_facts(&self, sandbox: &SandboxId, facts: &Facts) -> Result<(), Missing> {
        let refused = |error| Missing::refused("write down what is known of a sandbox", error);
        let text = serde_json::to_vec(facts).map_err(io::Error::other).map_err(refused)?;
        std::fs::write(self.facts_file(sandbox), text).map_err(refused)
    }

    /// What was written down; nothing of a torn file.
    pub(crate) fn facts(&self, sandbox: &SandboxId) -> Facts {
        let path = self.facts_file(sandbox);
        let small = std::fs::metadata(&path).is_ok_and(|meta| meta.len() <= FACTS_MAX_BYTES);
        let text = small.then(|| std::fs::read(path).ok()).flatten().unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Removes it.
    pub(crate) fn forget_facts(&self, sandbox: &SandboxId) {
        // Absent is as good.
        drop(std::fs::remove_file(self.facts_file(sandbox)));
    }

    /// Removes everything.
    pub(crate) fn close(&self) {
        self.pins.close();
    }
}

/// The ring that a slot has.
pub(crate) fn ring_of(rings: &OwnedFd, slot: u32) -> io::Result<Option<Ring>> {
    let mut id = [0; 4];
    if !bpf::look_up(rings, &slot.to_ne_bytes(), &mut id)? {
        return Ok(None);
    }
    let map = bpf::map_by_id(u32::from_ne_bytes(id))?;
    Ring::open(map, RING_BYTES as usize).map(Some)
}

/// What an earlier server pinned: all of it, or an error.
fn take_up(set: &Path) -> io::Result<(Maps, Vec<OwnedFd>)> {
    let maps = Maps::each(|name| bpf::open_pin(&set.join(format!("map_{name}"))))?;
    let mut programs = Vec::new();
    for (name, hook) in PROGRAMS {
        programs.push(bpf::open_pin(&set.join(format!("prog_{name}")))?);
        if let Hook::Tracepoint(_) = hook {
            bpf::open_pin(&set.join(format!("link_{name}")))?;
        }
    }
    Ok((maps, programs))
}

/// Loads, attaches and pins everything; what is half there is removed first, and when it fails.
fn make(set: &Path) -> Result<(Maps, Vec<OwnedFd>), Missing> {
    let refused = |error| Missing::refused("pin the programs", error);
    let remove = || match std::fs::remove_dir_all(set) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    remove().map_err(refused)?;
    std::fs::create_dir(set).map_err(refused)?;
    let made = load(set);
    if made.is_err()
        && let Err(error) = remove()
    {
        tracing::warn!(%error, "cannot remove what was pinned in vain");
    }
    made
}

fn load(set: &Path) -> Result<(Maps, Vec<OwnedFd>), Missing> {
    let refused = |error| Missing::refused("pin the programs", error);
    let kernel = Btf::from_sys_fs().map_err(|error| Missing::NoTypes(chain(&error)))?;
    let maps = object::make_maps()?;
    for (name, map) in maps.iter() {
        bpf::pin(map, &set.join(format!("map_{name}"))).map_err(refused)?;
    }
    let mut programs = Vec::new();
    for (name, hook, program) in object::load(&kernel, &maps)?.programs {
        bpf::pin(&program, &set.join(format!("prog_{name}"))).map_err(refused)?;
        if let Hook::Tracepoint(event) = hook {
            let link = bpf::attach_tracepoint(&program)
                .map_err(|error| Missing::refused(&format!("attach to the tracepoint {event}"), error))?;
            bpf::pin(&link, &set.join(format!("link_{name}"))).map_err(refused)?;
        }
        programs.push(program);
    }
    Ok((maps, programs))
}
