//! An event as one line for people.

use atoll_api::TraceEvent;
use atoll_recorder::event::{RecorderEvent, Socket};
use atoll_recorder::{Numbered, What, Witness};

use crate::printable::is_hostile;
use crate::units::{format_bytes, format_duration_ms};

/// What a line begins with, and what happened.
pub(super) fn line(event: &TraceEvent, numbered: &Numbered) -> String {
    let exec = numbered.event.exec.as_ref().map_or_else(String::new, |exec| format!(" {exec}"));
    let pid = numbered.event.process.map_or_else(String::new, |process| format!(" pid {}", process.pid));
    let (number, at, by) = (event.number, time(event.at_us), witness(numbered.event.witness));
    let line =
        format!("{number:>6} {at} {by:<7} {:<15}{exec}{pid}  {}", event.kind, what(&numbered.event.what));
    clean(line.trim_end())
}

/// Text that comes from a guest must not control the terminal.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || is_hostile(c) { ' ' } else { c }).collect()
}

/// The time of the day, UTC.
fn time(at_us: u64) -> String {
    let (ms, s) = (at_us / 1000 % 1000, at_us / 1_000_000);
    format!("{:02}:{:02}:{:02}.{ms:03}", s / 3600 % 24, s / 60 % 60, s % 60)
}

pub(super) const fn witness(witness: Witness) -> &'static str {
    match witness {
        Witness::Host => "host",
        Witness::Sentry => "sentry",
        Witness::Gateway => "gateway",
        Witness::Server => "server",
        Witness::Guest => "guest",
    }
}

/// A command line, in the form of a shell.
pub(super) fn command(argv: &[String]) -> String {
    let plain = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "-_./:=,@%+*".contains(c))
    };
    let words = argv.iter().map(|word| if plain(word) { word.clone() } else { format!("{word:?}") });
    words.collect::<Vec<_>>().join(" ")
}

fn socket(socket: &Socket) -> String {
    let end =
        |address: Option<std::net::SocketAddr>| address.map_or_else(|| "?".to_owned(), |a| a.to_string());
    format!("{} -> {}", end(socket.local), end(socket.peer))
}

fn end(code: Option<i32>, signal: Option<i32>) -> String {
    match (code, signal) {
        (_, Some(signal)) => format!("signal {signal}"),
        (Some(code), None) => format!("exit {code}"),
        (None, None) => String::new(),
    }
}

fn what(what: &What) -> String {
    match what {
        What::ProcessStarted(started) => command(&started.argv),
        What::ExecStarted(started) => {
            let by = started.by.as_deref().map_or_else(String::new, |by| format!("  (by {by})"));
            format!("{}{by}", command(&started.argv))
        }
        What::ProcessForked { parent } => format!("from {}", parent.pid),
        What::ProcessExited(exited) => end(exited.code, exited.signal),
        What::ExecEnded(ended) => format!("{} ({})", end(ended.code, ended.signal), ended.reason),
        What::Connect(ends) | What::Accept(ends) | What::Listen(ends) => socket(ends),
        What::File(file) => format!("{:?} {}", file.action, file.path).to_lowercase(),
        What::Dns(dns) => {
            let found: Vec<_> = dns.addresses.iter().map(ToString::to_string).collect();
            format!("{} {} {} {}", dns.record, dns.name, dns.answer, found.join(" "))
        }
        What::Http(http) => {
            let status = http.status.map_or_else(|| "no answer".to_owned(), |status| status.to_string());
            let secrets = if http.secrets.is_empty() {
                String::new()
            } else {
                format!("  secrets {}", http.secrets.join(" "))
            };
            let to = format!("{}://{}:{}{}", http.scheme, http.host, http.port, http.path);
            format!("{} {to} {status} {} ms{secrets}", http.method, http.latency_us / 1000)
        }
        What::Connection(connection) => {
            let to =
                connection.host.clone().or_else(|| connection.address.map(|address| address.to_string()));
            let (sent, received) =
                (format_bytes(connection.sent_bytes), format_bytes(connection.received_bytes));
            format!("{} {} sent {sent} received {received}", connection.protocol, to.unwrap_or_default())
        }
        What::Policy(decision) => {
            let word = if decision.allowed { "allowed" } else { "REFUSED" };
            let times = if decision.times > 1 { format!(" x{}", decision.times) } else { String::new() };
            format!("{word}{times} {}: {}", decision.subject, decision.rule)
        }
        What::Call(call) => {
            let by = call.key.as_deref().unwrap_or("nobody");
            format!("{} {} {} (by {by} over {})", call.method, call.path, call.status, call.protocol)
        }
        What::TerminalInput { bytes, .. } => format!("{bytes} bytes"),
        What::Created(created) => format!("{} from {}", created.isolation, created.source),
        What::State { state, reason, .. } => format!("{state} {}", reason.as_deref().unwrap_or_default()),
        What::Snapshot { snapshot, purpose } => format!("{snapshot} ({purpose})"),
        What::Forked { child } => child.clone(),
        What::RolledBack { snapshot } => format!("to {snapshot}"),
        What::Limits { changed, .. } => changed.join(", "),
        What::OutOfMemory => String::new(),
        What::BudgetExhausted { reason } => reason.clone(),
        What::Lost(lost) => {
            let count = lost.count.map_or_else(|| "unknown".to_owned(), |count| count.to_string());
            format!("MISSING {count}: {}", lost.reason)
        }
        What::Recorder(event) => recorder(event),
    }
}

/// What the recorder says of itself.
fn recorder(event: &RecorderEvent) -> String {
    match event {
        RecorderEvent::Began { mode } => format!("began to record ({mode})"),
        RecorderEvent::WentOn { clean: true } => "a new server goes on".to_owned(),
        RecorderEvent::WentOn { clean: false } => {
            "a new server goes on; the one before did not end cleanly".to_owned()
        }
        RecorderEvent::Repaired { bytes } => format!("cut off a torn end of {}", format_bytes(*bytes)),
        RecorderEvent::Dropped { before } => format!("dropped what is older than event {before}"),
        RecorderEvent::ClockSet { by_ms } => {
            let way = if *by_ms < 0 { "back" } else { "forward" };
            format!("the host's clock was set {way} by {}", format_duration_ms(by_ms.unsigned_abs()))
        }
        RecorderEvent::WatchesFiles { path } => format!("watches {path} from here on"),
        RecorderEvent::Paused => "the server ends".to_owned(),
        RecorderEvent::Ended => "the journal ends".to_owned(),
    }
}
