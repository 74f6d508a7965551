//! Events of one journal → spans: one for each exec, for each of its processes, and for what these connected to. Pure.
//!
//! ```text
//! the caller's span (traceparent) ─ exec ─ process ─ process ─ connection ─ request
//! ```
//!
//! Ids are derived from what they stand for, so that a server that goes on with a journal gives the same ones.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use atoll_core::id::{ExecId, SandboxId};
use atoll_core::traceparent::TraceParent;
use atoll_recorder::event::{
    Connection, Event, ExecEnded, ExecStarted, Http, Process, ProcessExited, ProcessStarted, RecorderEvent,
};
use atoll_recorder::{Numbered, What};
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{Array, InstrumentationScope, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

/// How long an end waits for late events of other witnesses about it: the kernel's events come through a ring.
const SETTLE: Duration = Duration::from_secs(1);
/// Execs of one sandbox that are followed at once.
const EXECS_MAX_COUNT: usize = 4096;
/// Processes of one sandbox that are followed at once.
const PROCESSES_MAX_COUNT: usize = 4096;
/// Connections whose processes are remembered.
const CONNECTS_MAX_COUNT: usize = 1024;
/// Ends that wait.
const WAITING_MAX_COUNT: usize = 16_384;
/// How far the gateway's clock may be behind the kernel's, microseconds: it reads milliseconds.
const SLACK_US: u64 = 5000;

/// A trace, and the span in it that an exec, a process or a connection has.
#[derive(Debug, Clone, Copy)]
struct Place {
    trace: TraceId,
    span: SpanId,
    /// Whether the caller keeps its trace.
    wanted: bool,
}

#[derive(Debug)]
struct Exec {
    place: Place,
    /// The caller's span.
    parent: Option<SpanId>,
    began_us: u64,
    argv: Vec<String>,
    /// Most memory that one of its processes had, bytes.
    peak: u64,
    /// Its span was made, and it is only remembered for the processes that it left behind.
    ended: bool,
}

/// A process that runs.
#[derive(Debug)]
struct Running {
    exec: ExecId,
    place: Place,
    parent: SpanId,
    began_us: u64,
    path: String,
    /// Shared with the processes that it forks.
    argv: Arc<[String]>,
}

/// A connection that a process asked for, until the gateway tells which of its own that is.
#[derive(Debug)]
struct Asked {
    at_us: u64,
    peer: SocketAddr,
    place: Place,
    exec: ExecId,
}

/// Which exec and which span a connection of the gateway belongs to.
#[derive(Debug, Clone)]
struct Whose {
    place: Place,
    parent: SpanId,
    exec: ExecId,
}

/// An exec, a request or a connection that ended.
#[derive(Debug)]
struct Ended {
    due: Instant,
    number: u64,
    at_us: u64,
    exec: Option<ExecId>,
    what: End,
}

#[derive(Debug)]
enum End {
    Exec(ExecEnded),
    Http(Box<Http>),
    Connection(Connection),
}

/// The state that is kept for one sandbox.
#[derive(Debug)]
pub(super) struct Assembler {
    sandbox: SandboxId,
    /// An earlier server sent the spans of everything that ended before this event.
    from: u64,
    execs: HashMap<ExecId, Exec>,
    processes: HashMap<Process, Running>,
    connects: VecDeque<Asked>,
    connections: HashMap<u64, Whose>,
    ended: VecDeque<Ended>,
    spans: Vec<SpanData>,
    /// How many execs, processes and ends were left out because there was no room.
    dropped: u64,
    /// Nothing follows in this journal.
    pub(super) over: bool,
}

/// An id that is the same for the same thing.
fn derived<const N: usize>(what: &str, parts: &[&[u8]]) -> [u8; N] {
    let mut hasher = blake3::Hasher::new_derive_key("atoll 2026-11-23 span ids v1");
    for part in [what.as_bytes()].iter().chain(parts) {
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    let mut id = [0; N];
    hasher.finalize_xof().fill(&mut id);
    id
}

fn time(at_us: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(at_us)
}

/// A program's name: the last part of its path.
fn name_of(path: &str) -> &str {
    path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("exec")
}

fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The arguments, as the journal has them: cut, and without the parts that look like secrets.
fn arguments(argv: &[String]) -> KeyValue {
    let argv = argv.iter().map(|argument| StringValue::from(argument.clone())).collect();
    KeyValue::new("process.command_args", Value::Array(Array::String(argv)))
}

#[expect(clippy::cast_precision_loss, reason = "seconds with a fraction")]
fn cpu(us: u64) -> KeyValue {
    KeyValue::new("process.cpu.time", us as f64 / 1e6)
}

impl Assembler {
    /// `from` is the event with which this server began to write the journal.
    pub(super) fn new(sandbox: SandboxId, from: u64) -> Self {
        Self {
            sandbox,
            from,
            execs: HashMap::new(),
            processes: HashMap::new(),
            connects: VecDeque::new(),
            connections: HashMap::new(),
            ended: VecDeque::new(),
            spans: Vec::new(),
            dropped: 0,
            over: false,
        }
    }

    /// Takes the next event of the journal in.
    pub(super) fn take(&mut self, Numbered { number, event }: Numbered, now: Instant) {
        let Event { at_us, exec, process, what, .. } = event;
        let mut end = |exec, what| {
            if self.ended.len() < WAITING_MAX_COUNT {
                self.ended.push_back(Ended { due: now + SETTLE, number, at_us, exec, what });
            } else {
                self.dropped += 1;
            }
        };
        match (what, exec, process) {
            (What::ExecEnded(ended), Some(exec), _) => end(Some(exec), End::Exec(ended)),
            (What::Http(http), ..) => end(None, End::Http(Box::new(http))),
            (What::Connection(connection), ..) => end(None, End::Connection(connection)),
            (What::ExecStarted(started), Some(exec), _) => self.begin(exec, at_us, started),
            (What::ProcessForked { parent }, Some(exec), Some(process)) => {
                self.fork(exec, process, Some(parent), at_us);
            }
            (What::ProcessStarted(started), Some(exec), Some(process)) => {
                self.start(exec, process, at_us, started);
            }
            (What::ProcessExited(exited), _, Some(process)) => self.exit(process, number, at_us, &exited),
            (What::Connect(socket), Some(exec), Some(process)) => {
                let asked = self.processes.get(&process).zip(socket.peer);
                if let Some((running, peer)) = asked {
                    if self.connects.len() == CONNECTS_MAX_COUNT {
                        self.connects.pop_front();
                    }
                    self.connects.push_back(Asked { at_us, peer, place: running.place, exec });
                }
            }
            (What::Recorder(RecorderEvent::Ended), ..) => self.over = true,
            _ => {}
        }
    }

    fn begin(&mut self, exec: ExecId, at_us: u64, started: ExecStarted) {
        if self.execs.len() >= EXECS_MAX_COUNT {
            self.dropped += 1;
            return;
        }
        // It was checked when it came in; a journal is read as strictly.
        let caller = started.traceparent.as_deref().and_then(|text| text.parse::<TraceParent>().ok());
        let id = exec.as_str().as_bytes();
        let trace = caller.map_or_else(|| derived("trace", &[id]), |caller| caller.trace);
        let place = Place {
            trace: TraceId::from_bytes(trace),
            span: SpanId::from_bytes(derived("exec", &[id])),
            wanted: caller.is_none_or(|caller| caller.sampled),
        };
        let parent = caller.map(|caller| SpanId::from_bytes(caller.span));
        let argv = started.argv;
        self.execs.insert(exec, Exec { place, parent, began_us: at_us, argv, peak: 0, ended: false });
    }

    /// A process was forked: it has the program of its parent.
    fn fork(&mut self, exec: ExecId, process: Process, parent: Option<Process>, at_us: u64) {
        let Some(of) = self.execs.get(&exec) else { return };
        if self.processes.len() >= PROCESSES_MAX_COUNT {
            self.dropped += 1;
            return;
        }
        let parent =
            parent.and_then(|parent| self.processes.get(&parent)).filter(|parent| parent.exec == exec);
        let (pid, start) = (process.pid.to_be_bytes(), process.start_ns.to_be_bytes());
        let span = SpanId::from_bytes(derived("process", &[exec.as_str().as_bytes(), &pid, &start]));
        let running = Running {
            place: Place { span, ..of.place },
            parent: parent.map_or(of.place.span, |parent| parent.place.span),
            began_us: at_us,
            path: parent.map(|parent| parent.path.clone()).unwrap_or_default(),
            argv: parent.map(|parent| Arc::clone(&parent.argv)).unwrap_or_default(),
            exec,
        };
        self.processes.insert(process, running);
    }

    fn start(&mut self, exec: ExecId, process: Process, at_us: u64, started: ProcessStarted) {
        if !self.processes.contains_key(&process) {
            self.fork(exec, process, started.parent, at_us);
        }
        if let Some(running) = self.processes.get_mut(&process) {
            running.path = started.path;
            running.argv = started.argv.into();
        }
    }

    fn exit(&mut self, process: Process, number: u64, at_us: u64, exited: &ProcessExited) {
        let Some(running) = self.processes.remove(&process) else { return };
        if let Some(exec) = self.execs.get_mut(&running.exec) {
            exec.peak = exec.peak.max(exited.memory_peak_bytes);
        }
        let mut attributes = vec![
            KeyValue::new("process.pid", i64::from(process.pid)),
            KeyValue::new("process.executable.path", running.path.clone()),
            arguments(&running.argv),
            cpu(exited.cpu_us),
            KeyValue::new("atoll.memory.peak", integer(exited.memory_peak_bytes)),
        ];
        attributes.extend(ending(exited.code, exited.signal));
        let (place, parent) = (running.place, Some(running.parent));
        let name = name_of(&running.path).to_owned();
        let exec = running.exec;
        self.span(
            number,
            &exec,
            place,
            parent,
            name,
            (running.began_us, at_us),
            attributes,
            SpanKind::Internal,
        );
        self.forget(&exec);
    }

    /// Forgets an exec of which nothing follows.
    fn forget(&mut self, exec: &ExecId) {
        if self.execs.get(exec).is_some_and(|of| of.ended)
            && !self.processes.values().any(|running| running.exec == *exec)
        {
            self.execs.remove(exec);
        }
    }

    /// Makes spans of the ends that are due at `now`; without a time, of all ends.
    pub(super) fn settle(&mut self, now: Option<Instant>) -> (Vec<SpanData>, u64) {
        while let Some(ended) = self.ended.pop_front_if(|ended| now.is_none_or(|now| ended.due <= now)) {
            let Ended { number, at_us, exec, what, .. } = ended;
            match (what, exec) {
                (End::Exec(ended), Some(exec)) => self.end_exec(&exec, number, at_us, &ended),
                (End::Http(http), _) => self.request(number, at_us, &http),
                (End::Connection(connection), _) => self.connection(number, at_us, &connection),
                (End::Exec(_), None) => {}
            }
        }
        (std::mem::take(&mut self.spans), std::mem::take(&mut self.dropped))
    }

    fn end_exec(&mut self, exec: &ExecId, number: u64, at_us: u64, ended: &ExecEnded) {
        let Some(of) = self.execs.get_mut(exec) else { return };
        of.ended = true;
        let program = of.argv.first().map(String::as_str).unwrap_or_default();
        let mut attributes = vec![
            KeyValue::new("process.executable.name", name_of(program).to_owned()),
            arguments(&of.argv),
            cpu(ended.cpu_us),
            KeyValue::new("atoll.exit.reason", ended.reason.clone()),
        ];
        if of.peak > 0 {
            attributes.push(KeyValue::new("atoll.memory.peak", integer(of.peak)));
        }
        attributes.extend(ending(ended.code, ended.signal));
        let (place, parent, began_us) = (of.place, of.parent, of.began_us);
        let name = name_of(program).to_owned();
        self.span(number, exec, place, parent, name, (began_us, at_us), attributes, SpanKind::Internal);
        self.forget(exec);
    }

    /// Finds the process that made a connection of the gateway: the kernel saw it ask for that address before.
    fn whose(&mut self, connection: u64, to: Option<SocketAddr>, began_us: u64) -> Option<Whose> {
        if let Some(known) = self.connections.get(&connection) {
            return Some(known.clone());
        }
        let made = |asked: &Asked| Some(asked.peer) == to && asked.at_us <= began_us.saturating_add(SLACK_US);
        let at = self.connects.iter().rposition(made)?;
        let Asked { at_us, place, exec, .. } = self.connects.remove(at)?;
        let parts = [exec.as_str().as_bytes(), &at_us.to_be_bytes(), &connection.to_be_bytes()];
        let span = SpanId::from_bytes(derived("connection", &parts));
        let whose = Whose { place: Place { span, ..place }, parent: place.span, exec };
        if self.connections.len() < CONNECTS_MAX_COUNT {
            self.connections.insert(connection, whose.clone());
        }
        Some(whose)
    }

    fn connection(&mut self, number: u64, at_us: u64, connection: &Connection) {
        let began_us = at_us.saturating_sub(connection.duration_us);
        let Some(whose) = self.whose(connection.connection, connection.address, began_us) else { return };
        self.connections.remove(&connection.connection);
        let address = connection.address.map(|address| address.ip().to_string()).unwrap_or_default();
        let host = connection.host.clone().unwrap_or_else(|| address.clone());
        let port = connection.address.map_or(0, |address| i64::from(address.port()));
        let name = format!("connect {host}:{port}");
        let attributes = vec![
            KeyValue::new("network.transport", "tcp"),
            KeyValue::new("network.protocol.name", connection.protocol.clone()),
            KeyValue::new("network.peer.address", address),
            KeyValue::new("network.peer.port", port),
            KeyValue::new("server.address", host),
            KeyValue::new("server.port", port),
            KeyValue::new("atoll.sent_bytes", integer(connection.sent_bytes)),
            KeyValue::new("atoll.received_bytes", integer(connection.received_bytes)),
        ];
        let (place, parent) = (whose.place, Some(whose.parent));
        self.span(number, &whose.exec, place, parent, name, (began_us, at_us), attributes, SpanKind::Client);
    }

    fn request(&mut self, number: u64, at_us: u64, http: &Http) {
        let began_us = at_us.saturating_sub(http.duration_us);
        let to = http.to.as_ref().and_then(|to| to.address);
        let Some(whose) = self.whose(http.connection, to, began_us) else { return };
        let id = derived("request", &[whose.exec.as_str().as_bytes(), &number.to_be_bytes()]);
        let place = Place { span: SpanId::from_bytes(id), ..whose.place };
        let url = format!("{}://{}:{}{}", http.scheme, http.host, http.port, http.path);
        let mut attributes = vec![
            KeyValue::new("http.request.method", http.method.clone()),
            KeyValue::new("url.full", url),
            KeyValue::new("server.address", http.host.clone()),
            KeyValue::new("server.port", i64::from(http.port)),
            KeyValue::new("http.request.body.size", integer(http.sent_bytes)),
            KeyValue::new("http.response.body.size", integer(http.received_bytes)),
            KeyValue::new("atoll.egress.rule", http.rule.clone()),
        ];
        attributes
            .extend(http.status.map(|status| KeyValue::new("http.response.status_code", i64::from(status))));
        let (name, parent) = (http.method.clone(), Some(whose.place.span));
        self.span(number, &whose.exec, place, parent, name, (began_us, at_us), attributes, SpanKind::Client);
    }

    #[expect(clippy::too_many_arguments, reason = "they are what a span is")]
    fn span(
        &mut self,
        number: u64,
        exec: &ExecId,
        place: Place,
        parent: Option<SpanId>,
        name: String,
        (began_us, ended_us): (u64, u64),
        mut attributes: Vec<KeyValue>,
        span_kind: SpanKind,
    ) {
        if number < self.from || !place.wanted {
            return;
        }
        attributes.push(KeyValue::new("atoll.sandbox.id", self.sandbox.to_string()));
        attributes.push(KeyValue::new("atoll.exec.id", exec.to_string()));
        let failed = attributes.iter().any(|one| one.key.as_str() == "error.type");
        self.spans.push(SpanData {
            span_context: SpanContext::new(
                place.trace,
                place.span,
                TraceFlags::SAMPLED,
                false,
                TraceState::NONE,
            ),
            parent_span_id: parent.unwrap_or(SpanId::INVALID),
            parent_span_is_remote: parent.is_some()
                && self.execs.get(exec).is_some_and(|of| of.parent == parent),
            span_kind,
            name: name.into(),
            start_time: time(began_us.min(ended_us)),
            end_time: time(ended_us),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: if failed { Status::error("") } else { Status::Unset },
            instrumentation_scope: InstrumentationScope::builder("atoll").build(),
        });
    }
}

/// How a process ended. One that did not end well has an `error.type`, as the conventions for programs say.
fn ending(code: Option<i32>, signal: Option<i32>) -> Vec<KeyValue> {
    let mut attributes = Vec::new();
    attributes.extend(code.map(|code| KeyValue::new("process.exit.code", i64::from(code))));
    attributes.extend(signal.map(|signal| KeyValue::new("atoll.exit.signal", i64::from(signal))));
    let failure = match (code, signal) {
        (_, Some(signal)) => Some(format!("signal {signal}")),
        (Some(0), None) => None,
        (Some(code), None) => Some(code.to_string()),
        (None, None) => Some("not_started".to_owned()),
    };
    attributes.extend(failure.map(|failure| KeyValue::new("error.type", failure)));
    attributes
}

#[cfg(test)]
#[path = "assemble_tests.rs"]
mod tests;
