//! The compiled programs: fitted to the running kernel, loaded, attached.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use aya_obj::Object;
use aya_obj::btf::{Btf, BtfKind};
use aya_obj::generated::bpf_insn;

use crate::bpf::{self, MapSpec, Program};
use crate::level::Missing;
use crate::overlay;
use crate::ring::COUNTER_BYTES;

/// `make -C bpf` makes it of `witness.bpf.c`.
pub(crate) static OBJECT: &[u8] = include_bytes!("../bpf/witness.bpf.o");

/// Sandboxes that can be watched at a time.
pub(crate) const SLOTS_MAX: u32 = 4096;
/// Bytes of a sandbox's ring: about four thousand records, which is what a busy build makes in four seconds.
pub(crate) const RING_BYTES: u32 = 1 << 20;
/// The reader is woken when so much waits in one ring, bytes.
const WAKE_ABOVE_BYTES: u64 = 1 << 18;
/// Bytes of the programs' `struct box`, `struct known`, `struct listener`, `struct executed`, `struct config`.
pub(crate) const BOX_BYTES: u32 = 80;
const KNOWN_BYTES: u32 = 72;
const LISTENER_BYTES: u32 = 88;
const EXECUTED_BYTES: u32 = 8376;
pub(crate) const CONFIG_BYTES: u32 = 40;
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

/// A ring for one sandbox.
pub(crate) fn make_ring() -> io::Result<OwnedFd> {
    let spec =
        MapSpec { kind: RINGBUF, entries: RING_BYTES, name: bpf::name("atoll_ring"), ..MapSpec::default() };
    bpf::create_map(&spec)
}

/// Makes the maps.
pub(crate) fn make_maps() -> Result<Maps, Missing> {
    let template = make_ring().map_err(|error| Missing::refused("make a ring buffer", error))?;
    let maps = Maps::each(|name| {
        make_map(name, &template).map_err(|error| Missing::refused(&format!("make the map of {name}"), error))
    })?;
    let config = overlay::config(WAKE_ABOVE_BYTES);
    bpf::update(&maps.config, &0_u32.to_ne_bytes(), &config, false)
        .map_err(|error| Missing::refused("configure the programs", error))?;
    Ok(maps)
}

fn make_map(name: &str, template: &OwnedFd) -> io::Result<OwnedFd> {
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

/// The programs, loaded.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) programs: Vec<(&'static str, Hook, OwnedFd)>,
}

/// Fits the programs to this kernel and loads them, over these maps.
pub(crate) fn load(kernel: &Btf, maps: &Maps) -> Result<Loaded, Missing> {
    let unfit = |error: &dyn std::fmt::Display| Missing::Unfit(error.to_string());
    let mut object = Object::parse(OBJECT).map_err(|error| unfit(&error))?;
    object.relocate_btf(kernel).map_err(|error| Missing::Unfit(crate::level::chain(&error)))?;
    let known = object.maps.clone();
    let found = maps.iter().filter_map(|(name, fd)| Some((name, fd.as_raw_fd(), known.get(name)?)));
    let text: HashSet<usize> =
        object.functions.values().filter(|f| !f.name.starts_with("on_")).map(|f| f.section_index.0).collect();
    object.relocate_maps(found, &text).map_err(|error| Missing::Unfit(crate::level::chain(&error)))?;
    object.relocate_calls(&text).map_err(|error| Missing::Unfit(crate::level::chain(&error)))?;
    let programs = PROGRAMS
        .into_iter()
        .map(|(name, hook)| Ok((name, hook, load_one(kernel, &object, name, hook)?)))
        .collect::<Result<_, Missing>>()?;
    Ok(Loaded { programs })
}

fn load_one(kernel: &Btf, object: &Object, name: &str, hook: Hook) -> Result<OwnedFd, Missing> {
    let program = object.programs.get(name).ok_or_else(|| Missing::Unfit(format!("no program {name}")))?;
    let function = object
        .functions
        .get(&program.function_key())
        .ok_or_else(|| Missing::Unfit(format!("no instructions of {name}")))?;
    let (kind, attach_type, attach_btf_id) = match hook {
        Hook::Cgroup(attach_type) => (PROG_CGROUP_SOCK_ADDR, attach_type, 0),
        Hook::Tracepoint(event) => {
            let id = kernel
                .id_by_type_name_kind(&format!("btf_trace_{event}"), BtfKind::Typedef)
                .map_err(|_absent| Missing::Unfit(format!("this kernel has no tracepoint {event}")))?;
            (PROG_TRACING, ATTACH_RAW_TP, id)
        }
    };
    let instructions: Vec<u8> = function.instructions.iter().flat_map(encode).collect();
    let program = Program {
        name,
        kind,
        attach_type,
        attach_btf_id,
        instructions: &instructions,
        license: c"Dual MIT/GPL",
    };
    bpf::load(&program).map_err(|error| Missing::refused(&format!("load the program {name}"), error))
}

/// An instruction as it lies in memory.
fn encode(instruction: &bpf_insn) -> [u8; 8] {
    let registers = if cfg!(target_endian = "little") {
        instruction.dst_reg() | instruction.src_reg() << 4
    } else {
        instruction.dst_reg() << 4 | instruction.src_reg()
    };
    let [o0, o1] = instruction.off.to_ne_bytes();
    let [i0, i1, i2, i3] = instruction.imm.to_ne_bytes();
    [instruction.code, registers, o0, o1, i0, i1, i2, i3]
}

/// Attaches a program; `cgroup` is for those that want one.
pub(crate) fn attach(hook: Hook, program: &OwnedFd, cgroup: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    match hook {
        Hook::Tracepoint(_) => bpf::attach_tracepoint(program),
        Hook::Cgroup(event) => bpf::attach_cgroup(program, cgroup, event),
    }
}
