//! The compiled programs and their maps: made, loaded once they fit the running kernel (`fitted.rs`), attached.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::bpf::{self, MapSpec, Program};
use crate::fitted::{Fitted, FittedProgram};
use crate::level::Missing;
use crate::ring::COUNTER_BYTES;

/// `make -C bpf` makes it of `witness.bpf.c`.
pub(crate) static OBJECT: &[u8] = include_bytes!("../bpf/witness.bpf.o");

/// Sandboxes that can be watched at a time.
pub(crate) const SLOTS_MAX: u32 = 4096;
/// Bytes of the ring that each sandbox begins with: about 250 records. The kernel sets all of it aside when it is made, for
/// a sandbox that does nothing, too. It is no less than a page of any host, and the longest record goes into it seven times.
pub(crate) const RING_BYTES: u32 = 1 << 16;
/// Bytes of the ring that a busy sandbox is given in its place: about a thousand records, which is what a busy build makes
/// in a second.
pub(crate) const GROWN_BYTES: u32 = 1 << 18;
/// The reader is woken when more than so much waits in one ring, bytes. A sandbox is busy of which more than that waits, or
/// comes within a second.
pub(crate) const WAKE_ABOVE_BYTES: u64 = 1 << 14;
/// Bytes of the programs' `struct box`, `struct known`, `struct listener`, `struct executed`, `struct config`.
pub(crate) const BOX_BYTES: u32 = 80;
const KNOWN_BYTES: u32 = 72;
const LISTENER_BYTES: u32 = 88;
const EXECUTED_BYTES: u32 = 8376;
pub(crate) const CONFIG_BYTES: u32 = 40;
/// Where `struct config` has [`WAKE_ABOVE_BYTES`], which goes to its end.
pub(crate) const WAKE_ABOVE_AT: usize = 32;
/// The only key of the map `config`.
pub(crate) const CONFIG_KEY: [u8; 4] = [0; 4];
/// Bytes of the programs' `struct rule_key` and `struct step_key`, and rules of all sandboxes together.
const RULE_KEY_BYTES: u32 = 24;
const RULES_MAX: u32 = 1 << 18;
/// Bytes of the programs' `struct start_key`, and execs of all sandboxes that start at a time.
pub(crate) const START_KEY_BYTES: u32 = 56;
const STARTS_MAX: u32 = 1 << 14;
/// Execs of all sandboxes that rules of the network name: as many as those can.
const EXEC_MARKS_MAX: u32 = SLOTS_MAX * 24;

const HASH: u32 = 1;
const ARRAY: u32 = 2;
const PERCPU_ARRAY: u32 = 6;
const ARRAY_OF_MAPS: u32 = 12;
const SK_STORAGE: u32 = 24;
const RINGBUF: u32 = 27;
const TASK_STORAGE: u32 = 29;
const NO_PREALLOC: u32 = 1;
const CLONE: u32 = 1 << 9;
const MMAPABLE: u32 = 1 << 10;

const PROG_CGROUP_SOCK_ADDR: u32 = 18;
const PROG_TRACING: u32 = 26;
const ATTACH_CONNECT4: u32 = 10;
const ATTACH_CONNECT6: u32 = 11;
const ATTACH_RAW_TP: u32 = 23;

/// Where a program is attached.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Hook {
    /// A tracepoint of the kernel, for everything on the host.
    Tracepoint(&'static str),
    /// A cgroup and those below, by the kernel's number of the event.
    Cgroup(u32),
}

/// Programs by the name of their function.
pub(crate) const PROGRAMS: [(&str, Hook); 6] = [
    ("on_exec", Hook::Tracepoint("sched_process_exec")),
    ("on_fork", Hook::Tracepoint("sched_process_fork")),
    ("on_exit", Hook::Tracepoint("sched_process_exit")),
    ("on_state", Hook::Tracepoint("inet_sock_set_state")),
    ("on_connect4", Hook::Cgroup(ATTACH_CONNECT4)),
    ("on_connect6", Hook::Cgroup(ATTACH_CONNECT6)),
];

/// Maps by name. All are pinned: the next server goes on with them.
pub(crate) const MAPS: [&str; 12] = [
    "rings",
    "boxes",
    "counters",
    "origins",
    "listeners",
    "scratch",
    "config",
    "rules",
    "senders",
    "starts",
    "steps",
    "exec_marks",
];

/// The maps, in the order of [`MAPS`].
#[derive(Debug)]
pub(crate) struct Maps {
    pub(crate) rings: OwnedFd,
    pub(crate) boxes: OwnedFd,
    pub(crate) counters: OwnedFd,
    pub(crate) origins: OwnedFd,
    pub(crate) listeners: OwnedFd,
    pub(crate) scratch: OwnedFd,
    pub(crate) config: OwnedFd,
    pub(crate) rules: OwnedFd,
    pub(crate) senders: OwnedFd,
    pub(crate) starts: OwnedFd,
    pub(crate) steps: OwnedFd,
    pub(crate) exec_marks: OwnedFd,
}

impl Maps {
    /// Each map once, by name.
    pub(crate) fn each<E>(mut make: impl FnMut(&'static str) -> Result<OwnedFd, E>) -> Result<Self, E> {
        let [
            rings,
            boxes,
            counters,
            origins,
            listeners,
            scratch,
            config,
            rules,
            senders,
            starts,
            steps,
            exec_marks,
        ] = MAPS;
        Ok(Self {
            rings: make(rings)?,
            boxes: make(boxes)?,
            counters: make(counters)?,
            origins: make(origins)?,
            listeners: make(listeners)?,
            scratch: make(scratch)?,
            config: make(config)?,
            rules: make(rules)?,
            senders: make(senders)?,
            starts: make(starts)?,
            steps: make(steps)?,
            exec_marks: make(exec_marks)?,
        })
    }

    /// All of them with their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, &OwnedFd)> {
        let fds = [
            &self.rings,
            &self.boxes,
            &self.counters,
            &self.origins,
            &self.listeners,
            &self.scratch,
            &self.config,
            &self.rules,
            &self.senders,
            &self.starts,
            &self.steps,
            &self.exec_marks,
        ];
        MAPS.into_iter().zip(fds)
    }
}

/// A ring for one sandbox, of so many bytes: a power of two, and whole pages. The kernel charges it to the memory cgroup of
/// this process.
pub(crate) fn make_ring(bytes: u32) -> io::Result<OwnedFd> {
    let name = bpf::name("atoll_ring");
    bpf::create_map(&MapSpec { kind: RINGBUF, entries: bytes, name, ..MapSpec::default() })
}

/// Makes the maps. `config` is the programs' `struct config`.
pub(crate) fn make_maps(config: &[u8]) -> Result<Maps, Missing> {
    let template = make_ring(RING_BYTES).map_err(|error| Missing::refused("make a ring buffer", error))?;
    let maps = Maps::each(|name| {
        make_map(name, &template).map_err(|error| Missing::refused(&format!("make the map of {name}"), error))
    })?;
    bpf::update(&maps.config, &CONFIG_KEY, config, false)
        .map_err(|error| Missing::refused("configure the programs", error))?;
    Ok(maps)
}

/// The map of this name. Rings in the map of rings are like `template`, but for their size, of which each may have its own.
pub(crate) fn make_map(name: &str, template: &OwnedFd) -> io::Result<OwnedFd> {
    let spec = |kind, key_bytes, value_bytes, entries, flags| MapSpec {
        kind,
        key_bytes,
        value_bytes,
        entries,
        flags,
        name: bpf::name(&format!("atoll_{name}")),
        ..MapSpec::default()
    };
    let counter = u32::try_from(COUNTER_BYTES).map_err(io::Error::other)?;
    let with_type = |spec: MapSpec| {
        // Memory that belongs to a task or a socket wants its types described.
        let btf = bpf::load_btf(&bytes_btf(spec.value_bytes))?;
        let btf_fd = btf.as_raw_fd().cast_unsigned();
        bpf::create_map(&MapSpec { btf_fd, btf_key: 1, btf_value: 3, ..spec })
    };
    match name {
        "rings" => {
            let inner_fd = template.as_raw_fd().cast_unsigned();
            bpf::create_map(&MapSpec { inner_fd, ..spec(ARRAY_OF_MAPS, 4, 4, SLOTS_MAX, 0) })
        }
        "boxes" => bpf::create_map(&spec(HASH, 8, BOX_BYTES, SLOTS_MAX, 0)),
        "counters" => bpf::create_map(&spec(ARRAY, 4, counter, SLOTS_MAX, MMAPABLE)),
        "origins" => with_type(spec(TASK_STORAGE, 4, KNOWN_BYTES, 0, NO_PREALLOC)),
        "listeners" => with_type(spec(SK_STORAGE, 4, LISTENER_BYTES, 0, NO_PREALLOC | CLONE)),
        "scratch" => bpf::create_map(&spec(PERCPU_ARRAY, 4, EXECUTED_BYTES, 1, 0)),
        "starts" => bpf::create_map(&spec(HASH, START_KEY_BYTES, 4, STARTS_MAX, NO_PREALLOC)),
        "exec_marks" => bpf::create_map(&spec(HASH, START_KEY_BYTES, 4, EXEC_MARKS_MAX, NO_PREALLOC)),
        "rules" | "senders" | "steps" => {
            bpf::create_map(&spec(HASH, RULE_KEY_BYTES, 4, RULES_MAX, NO_PREALLOC))
        }
        _ => bpf::create_map(&spec(ARRAY, 4, CONFIG_BYTES, 1, 0)),
    }
}

/// Types for a map whose keys are integers and whose values are `bytes` bytes: 1 is `int`, 2 a byte, 3 an array of them.
fn bytes_btf(bytes: u32) -> Vec<u8> {
    const INT: u32 = 1 << 24;
    const ARRAY_TYPE: u32 = 3 << 24;
    const SIGNED: u32 = 1 << 24;
    let strings = b"\0int\0u8\0";
    let types = [1, INT, 4, SIGNED | 32, 5, INT, 1, 8, 0, ARRAY_TYPE, 0, 2, 1, bytes];
    let types_bytes = u32::try_from(size_of_val(&types)).unwrap_or(0);
    let strings_bytes = u32::try_from(strings.len()).unwrap_or(0);
    let mut btf = 0xeb9f_u16.to_ne_bytes().to_vec();
    btf.extend([1, 0]);
    for number in [24, 0, types_bytes, types_bytes, strings_bytes].into_iter().chain(types) {
        btf.extend(number.to_ne_bytes());
    }
    btf.extend(strings);
    btf
}

/// Loads the programs, over these maps.
pub(crate) fn load(fitted: &Fitted, maps: &Maps) -> Result<Vec<(&'static str, Hook, OwnedFd)>, Missing> {
    PROGRAMS
        .into_iter()
        .map(|(name, hook)| {
            let program =
                fitted.programs.get(name).ok_or_else(|| Missing::Unfit(format!("no program {name}")))?;
            Ok((name, hook, load_one(program, maps, name, hook)?))
        })
        .collect()
}

fn load_one(program: &FittedProgram, maps: &Maps, name: &str, hook: Hook) -> Result<OwnedFd, Missing> {
    let (kind, attach_type) = match hook {
        Hook::Cgroup(attach_type) => (PROG_CGROUP_SOCK_ADDR, attach_type),
        Hook::Tracepoint(_) => (PROG_TRACING, ATTACH_RAW_TP),
    };
    let instructions =
        program.over(maps).ok_or_else(|| Missing::Unfit(format!("{name} uses an unknown map")))?;
    let program = Program {
        name,
        kind,
        attach_type,
        attach_btf_id: program.attach_btf_id,
        instructions: &instructions,
        license: c"Dual MIT/GPL",
    };
    bpf::load(&program).map_err(|error| Missing::refused(&format!("load the program {name}"), error))
}

/// Attaches a program; `cgroup` is for those that want one.
pub(crate) fn attach(hook: Hook, program: &OwnedFd, cgroup: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    match hook {
        Hook::Tracepoint(_) => bpf::attach_tracepoint(program),
        Hook::Cgroup(event) => bpf::attach_cgroup(program, cgroup, event),
    }
}
