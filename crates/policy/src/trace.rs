//! The actions of sandboxes that a policy decides about.

use std::collections::HashMap;
use std::net::SocketAddr;

use atoll_core::execution::{ProgramFile, ProgramOrigin};
use atoll_core::policy::{Cidr, HostName};
use atoll_recorder::event::{
    Destination, Dns, Event, Http, Origin, PolicyDecision, Process, ProcessStarted, RecorderEvent, Socket,
    What as Happened, Witness,
};
use atoll_recorder::{Numbered, event};
use serde::Serialize;

/// Most different things that are told apart; more are counted as a gap.
const ASKED_MAX_COUNT: usize = 200_000;
/// Connections of which it is remembered which program made them.
const CONNECTS_MAX_COUNT: usize = 1_000_000;

/// A program's file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Program {
    /// Its path without links.
    pub path: String,
    /// Where it comes from.
    pub origin: ProgramOrigin,
    /// Its content, where that is known.
    pub digest: Option<String>,
    /// The layer that brought it, where that is known.
    pub layer: Option<String>,
}

impl Program {
    /// As decisions take it.
    #[must_use]
    pub fn file(&self) -> ProgramFile<'_> {
        ProgramFile {
            path: &self.path,
            origin: self.origin,
            digest: self.digest.as_deref(),
            layer: self.layer.as_deref(),
        }
    }
}

/// Something that a policy decides about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Asked {
    /// Names that are meant, or may be.
    pub names: Vec<HostName>,
    /// The address; none for a lookup.
    pub address: Option<SocketAddr>,
    /// Whether it is the host's own, or leads to the server.
    pub own: bool,
    /// The network that the operator closed and that has it.
    pub closed: Option<Cidr>,
    /// Whether it is TLS.
    pub tls: bool,
    /// Which program connected, where a kernel says so.
    pub by: Option<Program>,
    /// What was asked for.
    pub what: What,
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum What {
    /// To run a program.
    Program(Program),
    /// The address of a name.
    Lookup,
    /// A connection whose content the gateway does not read.
    Connect,
    /// An HTTP request.
    Request {
        /// Its method.
        method: String,
        /// Its path, without the query.
        path: String,
    },
}

/// Where something is written: a sandbox and the number of the event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The sandbox.
    pub sandbox: String,
    /// The event's number.
    pub number: u64,
}

/// How often something was asked, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// How often it passed.
    pub allowed: u64,
    /// How often it was refused.
    pub refused: u64,
    /// How often it passed although the policy would refuse it, because the policy's mode is to observe.
    pub observed: u64,
    /// Where it was written first.
    pub first: Place,
}

impl Seen {
    /// How often it was asked.
    #[must_use]
    pub const fn times(&self) -> u64 {
        self.allowed.saturating_add(self.refused).saturating_add(self.observed)
    }

    /// Whether it ever passed.
    #[must_use]
    pub const fn passed(&self) -> bool {
        self.allowed > 0 || self.observed > 0
    }
}

/// Something that journals lack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gap {
    /// Where that is written.
    pub place: Place,
    /// What is missing and why.
    pub what: String,
}

/// What came of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Was {
    Allowed,
    Refused,
    Observed,
}

/// All of it.
#[derive(Debug, Default)]
pub struct Trace {
    asked: Vec<(Asked, Seen)>,
    index: HashMap<Asked, usize>,
    boxes: HashMap<String, Sandbox>,
    /// Sandboxes in the order in which they came.
    pub sandboxes: Vec<String>,
    /// Events that were read.
    pub events: u64,
    /// What is missing.
    pub gaps: Vec<Gap>,
    /// Whether a kernel was a witness of what ran.
    pub has_programs: bool,
}

/// What is remembered of one sandbox while its events are read.
#[derive(Debug, Default)]
struct Sandbox {
    last: u64,
    programs: HashMap<Process, Program>,
    /// The last start of each process, until it is known whether that was refused.
    started: HashMap<Process, (Program, Place)>,
    connects: HashMap<SocketAddr, Vec<(u64, Program)>>,
    connects_count: usize,
    /// What the gateway saw, until it is known which program it was.
    network: Vec<(u64, Asked, Was, u64, Place)>,
}

impl Trace {
    /// Reads events to their end. Those of one sandbox come in their order; sandboxes may alternate.
    pub fn read<'a>(events: impl IntoIterator<Item = (&'a str, &'a Numbered)>) -> Self {
        let mut trace = Self::default();
        for (sandbox, event) in events {
            trace.add(sandbox, event);
        }
        trace.finish();
        trace
    }

    /// One more event.
    pub fn add(&mut self, sandbox: &str, Numbered { number, event }: &Numbered) {
        self.events += 1;
        let place = Place { sandbox: sandbox.to_owned(), number: *number };
        if !self.boxes.contains_key(sandbox) {
            self.sandboxes.push(sandbox.to_owned());
        }
        let own = self.boxes.entry(sandbox.to_owned()).or_default();
        own.last = *number;
        if event.witness == Witness::Host && matches!(event.what, Happened::ProcessStarted(_)) {
            self.has_programs = true;
        }
        if let Some(what) = missing(&event.what) {
            self.gaps.push(Gap { place, what });
            return;
        }
        if let Some((program, place)) = own.add(event, place) {
            self.count(asked_program(program), Was::Allowed, 1, place);
        }
    }

    /// All events were read.
    pub fn finish(&mut self) {
        for sandbox in self.sandboxes.clone() {
            let Some(own) = self.boxes.get_mut(&sandbox) else { continue };
            let started = std::mem::take(&mut own.started);
            let (network, connects) = (std::mem::take(&mut own.network), std::mem::take(&mut own.connects));
            let mut started: Vec<_> = started.into_values().collect();
            started.sort_by_key(|(_, place)| place.number);
            for (program, place) in started {
                self.count(asked_program(program), Was::Allowed, 1, place);
            }
            for (at_us, asked, was, times, place) in network {
                if let What::Program(_) = asked.what {
                    self.count(asked, was, times, place);
                    continue;
                }
                let made = asked.address.and_then(|address| connects.get(&address));
                let by = made.and_then(|made| made.iter().rev().find(|(at, _)| *at <= at_us));
                let asked = Asked { by: by.map(|(_, program)| program.clone()), ..asked };
                self.count(asked, was, times, place);
            }
        }
        self.index.clear();
        self.boxes.clear();
        self.asked.sort_by(|(_, one), (_, other)| {
            (&one.first.sandbox, one.first.number).cmp(&(&other.first.sandbox, other.first.number))
        });
    }

    /// Everything that was asked, each once, in the order of the journals.
    #[must_use]
    pub fn asked(&self) -> &[(Asked, Seen)] {
        &self.asked
    }

    fn count(&mut self, asked: Asked, was: Was, times: u64, place: Place) {
        let at = match self.index.get(&asked) {
            Some(at) => *at,
            None if self.asked.len() >= ASKED_MAX_COUNT => {
                if self.asked.len() == ASKED_MAX_COUNT && !self.gaps.iter().any(|gap| gap.what == MANY) {
                    self.gaps.push(Gap { place, what: MANY.to_owned() });
                }
                return;
            }
            None => {
                let seen = Seen { allowed: 0, refused: 0, observed: 0, first: place };
                self.index.insert(asked.clone(), self.asked.len());
                self.asked.push((asked, seen));
                self.asked.len() - 1
            }
        };
        let Some((_, seen)) = self.asked.get_mut(at) else { return };
        let count = match was {
            Was::Allowed => &mut seen.allowed,
            Was::Refused => &mut seen.refused,
            Was::Observed => &mut seen.observed,
        };
        *count = count.saturating_add(times);
    }
}

/// What is said when there is too much to be told apart.
const MANY: &str =
    "more different programs and requests than can be told apart: what came later is not looked at";

/// What an event says is missing.
fn missing(what: &Happened) -> Option<String> {
    match what {
        Happened::Lost(event::Lost { count, reason }) => {
            let count = count.map_or_else(|| "an unknown number of".to_owned(), |count| count.to_string());
            Some(format!("{count} events: {reason}"))
        }
        Happened::Recorder(RecorderEvent::WentOn { clean: false }) => {
            Some("what happened while no server ran, but for programs of containers".to_owned())
        }
        Happened::Recorder(RecorderEvent::Repaired { bytes }) => {
            Some(format!("{bytes} bytes at the torn end of the journal"))
        }
        Happened::Recorder(RecorderEvent::Dropped { before }) => {
            Some(format!("everything before event {before}: the journal was too large or too old"))
        }
        Happened::Policy(PolicyDecision { stage, to: None, .. })
            if matches!(stage.as_str(), "connect" | "request") =>
        {
            Some("where a connection led: an older server wrote this event".to_owned())
        }
        Happened::Http(Http { to: None, .. }) => {
            Some("where a request led: an older server wrote this event".to_owned())
        }
        _ => None,
    }
}

fn asked_program(program: Program) -> Asked {
    Asked {
        names: Vec::new(),
        address: None,
        own: false,
        closed: None,
        tls: false,
        by: None,
        what: What::Program(program),
    }
}

impl Sandbox {
    /// Takes one event in. Gives the start of a program that turned out to be allowed: the same process started another.
    fn add(&mut self, event: &Event, place: Place) -> Option<(Program, Place)> {
        match (&event.what, event.process) {
            (Happened::ProcessStarted(started), Some(process)) if event.exec.is_some() => {
                let program = program(started)?;
                self.programs.insert(process, program.clone());
                return self.started.insert(process, (program, place));
            }
            (Happened::ProcessForked { parent }, Some(process)) => {
                if let Some(program) = self.programs.get(parent).cloned() {
                    self.programs.insert(process, program);
                }
            }
            (Happened::ProcessExited(_), Some(process)) => {
                self.programs.remove(&process);
                return self.started.remove(&process);
            }
            (Happened::Connect(Socket { peer: Some(peer), .. }), Some(process)) => {
                if let Some(program) = self.programs.get(&process)
                    && self.connects_count < CONNECTS_MAX_COUNT
                {
                    self.connects_count += 1;
                    self.connects.entry(*peer).or_default().push((event.at_us, program.clone()));
                }
            }
            (Happened::Policy(decision), Some(process)) if decision.stage == "exec" => {
                if let Some((program, place)) = self.started.remove(&process) {
                    self.network.push((event.at_us, asked_program(program), was(decision), 1, place));
                }
            }
            (Happened::Policy(decision), None) => {
                let to = decision.to.as_deref()?;
                let asked = asked(to)?;
                // Lookups and requests that were only observed are counted by their own events, which tell of each.
                let counted = decision.observed && decision.stage != "connect";
                let times = if counted { 0 } else { decision.times.max(1) };
                self.network.push((event.at_us, asked, was(decision), times, place));
            }
            (Happened::Http(http), None) => {
                let to = http.to.as_deref()?;
                let what = What::Request { method: http.method.clone(), path: http.path.clone() };
                let asked = Asked { what, ..asked(to)? };
                let was = if http.observed { Was::Observed } else { Was::Allowed };
                self.network.push((event.at_us, asked, was, 1, place));
            }
            (Happened::Dns(dns), None) => self.looked_up(dns, event.at_us, place),
            _ => {}
        }
        None
    }

    /// A name that has addresses. For the program that asks, any other name is as good as refused.
    fn looked_up(&mut self, dns: &Dns, at_us: u64, place: Place) {
        if let Ok(name) = dns.name.parse::<HostName>()
            && !dns.addresses.is_empty()
        {
            let asked = Asked { names: vec![name], ..nothing() };
            let was = if dns.observed { Was::Observed } else { Was::Allowed };
            self.network.push((at_us, asked, was, 1, place));
        }
    }
}

const fn was(decision: &PolicyDecision) -> Was {
    match (decision.observed, decision.allowed) {
        (true, _) => Was::Observed,
        (false, true) => Was::Allowed,
        (false, false) => Was::Refused,
    }
}

const fn nothing() -> Asked {
    Asked {
        names: Vec::new(),
        address: None,
        own: false,
        closed: None,
        tls: false,
        by: None,
        what: What::Lookup,
    }
}

fn asked(to: &Destination) -> Option<Asked> {
    let names: Vec<HostName> = to.names.iter().filter_map(|name| name.parse().ok()).collect();
    let what = match (&to.method, &to.path, to.address) {
        (Some(method), Some(path), _) => What::Request { method: method.clone(), path: path.clone() },
        (_, _, Some(_)) => What::Connect,
        (_, _, None) => What::Lookup,
    };
    if matches!(what, What::Lookup) && names.is_empty() {
        return None;
    }
    let closed = to.closed.as_ref().and_then(|closed| closed.parse().ok());
    Some(Asked { names, address: to.address, own: to.own, closed, tls: to.tls, by: None, what })
}

fn program(started: &ProcessStarted) -> Option<Program> {
    let file = started.file.as_ref()?;
    let origin = match file.origin {
        Origin::Image => ProgramOrigin::Image,
        Origin::Written => ProgramOrigin::Written,
        Origin::Other => ProgramOrigin::Elsewhere,
        // It runs under every policy.
        Origin::Atoll => return None,
    };
    let (digest, layer) = (file.digest.clone(), file.layer.clone());
    Some(Program { path: started.path.clone(), origin, digest, layer })
}
