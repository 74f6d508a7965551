//! From a record of the kernel to an event of the recorder.

use atoll_core::execution::ProgramBasis;
use atoll_core::id::ExecId;
use atoll_recorder::event::{
    Event, Origin, PolicyDecision, Process, ProcessExited, ProcessStarted, Program, Socket, Transport,
    What as Happened, Witness,
};

use crate::digest::Digests;
use crate::gate::Gate;
use crate::lock;
use crate::record::{Ends, Executed, File, Pid, Record, Refused, What, Why};
use crate::watched::{Facts, Watched};

/// What a cgroup of an exec is called: this and the exec's id.
pub(crate) const EXEC_PREFIX: &str = "exec-";
/// Users of a sandbox.
const IDS_COUNT: u32 = 1 << 16;
/// The id that an event shows for an id that is none of the sandbox's.
const NOBODY: u32 = 65_534;
/// Bits of a status of `wait` that are a signal.
const SIGNAL_BITS: u32 = 0x7f;

/// Microseconds since the epoch at the boot clock's zero.
pub(crate) fn boot_us() -> i128 {
    let us =
        |time: rustix::time::Timespec| i128::from(time.tv_sec) * 1_000_000 + i128::from(time.tv_nsec) / 1000;
    let wall = us(rustix::time::clock_gettime(rustix::time::ClockId::Realtime));
    wall - us(rustix::time::clock_gettime(rustix::time::ClockId::Boottime))
}

/// What happens to a program at the gate is a decision at this stage.
const STAGE: &str = "exec";

/// The events of a record, in order: for a program that was refused one event says that it started, the next that it
/// was refused.
pub(crate) fn events(
    record: Record,
    watched: &Watched,
    boot_us: i128,
    digests: &mut Digests,
) -> impl Iterator<Item = Event> {
    let decision = match &record.what {
        What::Executed(executed) => decision(executed, watched),
        _ => None,
    };
    let gate = lock(&watched.gate);
    let profile = gate.profile_name(record.profile).map(str::to_owned);
    let is_own = matches!(&record.what, What::Executed(executed) if gate.is_own(&executed.file));
    drop(gate);
    let mut started = event(record, &watched.facts, boot_us, digests);
    if let Happened::ProcessStarted(started) = &mut started.what {
        started.profile = profile;
        if let Some(file) = started.file.as_mut().filter(|_| is_own) {
            file.origin = Origin::Atoll;
        }
    }
    let decided = decision.map(|decision| Event { what: Happened::Policy(decision), ..started.clone() });
    std::iter::once(started).chain(decided)
}

fn decision(executed: &Executed, watched: &Watched) -> Option<PolicyDecision> {
    let refused = executed.refused?;
    let file = (executed.file.device, executed.file.inode);
    let gate = lock(&watched.gate);
    Some(PolicyDecision {
        allowed: refused.observed,
        stage: STAGE.to_owned(),
        subject: executed.path.clone(),
        rule: words(refused, file, &gate),
        policy_revision: revision(&gate),
        observed: refused.observed,
        ..PolicyDecision::default()
    })
}

/// Which policy decided: the first 48 bits of what the gate is known by, which is a digest.
fn revision(gate: &Gate) -> u64 {
    gate.revision.get(..12).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or_default()
}

/// The rule in words.
fn words(refused: Refused, file: (u64, u64), gate: &Gate) -> String {
    let why = match refused.why {
        Why::Written => ProgramBasis::Written.to_string(),
        Why::Elsewhere => ProgramBasis::Elsewhere.to_string(),
        Why::Loader => ProgramBasis::Loader.to_string(),
        Why::Unlisted => ProgramBasis::Unlisted.to_string(),
        Why::NotDown => "this profile may not be asked for from here".to_owned(),
        Why::Rule => gate
            .rule(file)
            .map_or_else(|| "a rule that was changed since".to_owned(), |rule| rule.text.clone()),
    };
    match refused {
        Refused { observed: true, .. } => format!("would be refused: {why}"),
        Refused { failed: true, .. } => format!("{why}; the kernel did not kill it"),
        Refused { .. } => why,
    }
}

/// The event that a record tells of.
fn event(record: Record, facts: &Facts, boot_us: i128, digests: &mut Digests) -> Event {
    let process = process(record.process);
    let uid = inside(record.uid, facts.first_id);
    let what = match record.what {
        What::Executed(executed) => {
            Happened::ProcessStarted(started(*executed, record.process, uid, facts, digests))
        }
        What::Forked { parent } => Happened::ProcessForked { parent: self::process(parent) },
        What::Exited { status, cpu_ns, peak_pages } => {
            Happened::ProcessExited(exited(status, cpu_ns, peak_pages))
        }
        What::Connect(ends) => Happened::Connect(Socket { local: None, ..socket(ends) }),
        What::Accept(ends) => Happened::Accept(socket(ends)),
        What::Listen(ends) => Happened::Listen(Socket { peer: None, ..socket(ends) }),
    };
    let at_us = boot_us + i128::from(record.at_ns / 1000);
    Event {
        at_us: u64::try_from(at_us).unwrap_or(0),
        witness: Witness::Host,
        exec: record.exec.strip_prefix(EXEC_PREFIX).and_then(|id| id.parse::<ExecId>().ok()),
        process: Some(process),
        what,
    }
}

const fn process(pid: Pid) -> Process {
    Process { pid: pid.pid, start_ns: pid.start_ns }
}

fn inside(uid: u32, first_id: u32) -> u32 {
    uid.checked_sub(first_id).filter(|uid| *uid < IDS_COUNT).unwrap_or(NOBODY)
}

fn started(executed: Executed, pid: Pid, uid: u32, facts: &Facts, digests: &mut Digests) -> ProcessStarted {
    let parent = Pid { pid: executed.parent_pid, start_ns: executed.parent_start_ns };
    let origin = origin(&executed.file, facts);
    let layer = layer(&executed.file, facts).filter(|_| origin == Origin::Image);
    let digest = digests.of(&executed, pid, facts);
    ProcessStarted {
        argv: executed.argv,
        cut: executed.cut,
        cwd: executed.cwd,
        uid,
        path: executed.path,
        file: Some(Program {
            device: executed.file.device,
            inode: executed.file.inode,
            origin,
            digest,
            layer: layer.map(|layer| layer.name.clone()),
        }),
        parent: Some(process(parent)),
        profile: None,
    }
}

/// Unchanged in a layer or as the template left it, or in what is bound read-only from the host; written above the layers; or neither.
fn origin(file: &File, facts: &Facts) -> Origin {
    match file {
        File { on_overlay: true, upper: true, .. } if !is_templates(file, facts) => Origin::Written,
        File { on_overlay: true, .. } => Origin::Image,
        File { read_only_mount: true, unlinked: false, device, .. } if facts.bound.contains(device) => {
            Origin::Image
        }
        _ => Origin::Other,
    }
}

/// Whether a file above the layers is as the sandbox's template left it, as the gate asks.
fn is_templates(file: &File, facts: &Facts) -> bool {
    let (s, ns) = file.changed;
    let until_ns = i128::from(facts.image_until_ms.unwrap_or_default()) * 1_000_000;
    s != 0 && i128::from(s) * 1_000_000_000 + i128::from(ns) < until_ns
}

/// The layer that has a file.
pub(crate) fn layer<'a>(file: &File, facts: &'a Facts) -> Option<&'a crate::watched::Layer> {
    if !file.on_overlay || file.upper {
        return None;
    }
    // The kernel counts from the topmost, which is 1.
    let below_top = usize::try_from(file.layer).ok()?.checked_sub(1)?;
    facts.layers.iter().rev().nth(below_top)
}

fn exited(status: u32, cpu_ns: u64, peak_pages: u64) -> ProcessExited {
    let signal = status & SIGNAL_BITS;
    let code = status >> 8 & 0xff;
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    ProcessExited {
        code: (signal == 0).then_some(code.cast_signed()),
        signal: (signal != 0).then_some(signal.cast_signed()),
        cpu_us: cpu_ns / 1000,
        memory_peak_bytes: peak_pages.saturating_mul(page),
    }
}

const fn socket(ends: Ends) -> Socket {
    let protocol = match ends.protocol {
        // MPTCP is TCP to whom it may concern.
        6 | 262 => Transport::Tcp,
        17 => Transport::Udp,
        _ => Transport::Other,
    };
    Socket { protocol, local: Some(ends.local), peer: Some(ends.peer) }
}
