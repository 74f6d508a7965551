use std::net::SocketAddr;

use atoll_recorder::event::{Destination, Socket, Transport};
use atoll_recorder::{Event, Witness};

use super::*;

const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const WEB: &str = "93.184.216.34:80";

fn exec() -> ExecId {
    ExecId::from_parts(1, 1)
}

fn process(pid: u32) -> Process {
    Process { pid, start_ns: 7 }
}

fn address() -> SocketAddr {
    WEB.parse().unwrap()
}

fn assembled(from: u64, events: Vec<(bool, Option<u32>, What)>) -> Vec<SpanData> {
    let mut assembler = Assembler::new(SandboxId::from_parts(1, 1), from);
    let now = Instant::now();
    for (number, (of_exec, pid, what)) in (1_u64..).zip(events) {
        let (exec, process) = (of_exec.then(exec), pid.map(process));
        let event = Event { at_us: number * 10_000, witness: Witness::Host, exec, process, what };
        assembler.take(Numbered { number, event }, now);
    }
    let (mut spans, _) = assembler.settle(Some(now));
    assert!(
        spans.iter().all(|span| span.span_kind == SpanKind::Internal),
        "the gateway's wait for the kernel's"
    );
    spans.extend(assembler.settle(Some(now + SETTLE)).0);
    spans
}

/// A shell that starts curl, which sends a request; the gateway is heard of before the kernel.
fn job(traceparent: Option<&str>) -> Vec<(bool, Option<u32>, What)> {
    let traceparent = traceparent.map(str::to_owned);
    let argv = vec!["/bin/sh".to_owned(), "-c".to_owned(), "curl".to_owned()];
    let program =
        |path: &str| What::ProcessStarted(ProcessStarted { path: path.into(), ..ProcessStarted::default() });
    let to = Some(Box::new(Destination { address: Some(address()), ..Destination::default() }));
    let http = Http { connection: 3, method: "GET".into(), status: Some(200), to, ..Http::default() };
    let connection = Connection {
        connection: 3,
        address: Some(address()),
        protocol: "http".into(),
        ..Connection::default()
    };
    let socket = Socket { protocol: Transport::Tcp, local: None, peer: Some(address()) };
    let exited = |peak| {
        What::ProcessExited(ProcessExited {
            code: Some(0),
            memory_peak_bytes: peak,
            ..ProcessExited::default()
        })
    };
    vec![
        (true, None, What::ExecStarted(ExecStarted { argv, traceparent, ..ExecStarted::default() })),
        (true, Some(10), What::ProcessForked { parent: process(1) }),
        (true, Some(10), program("/usr/bin/dash")),
        (true, Some(11), What::ProcessForked { parent: process(10) }),
        (true, Some(11), program("/usr/bin/curl")),
        (true, Some(11), What::Connect(socket)),
        (false, None, What::Http(http)),
        (false, None, What::Connection(connection)),
        (
            true,
            None,
            What::ExecEnded(ExecEnded { code: Some(0), reason: "exited".into(), ..ExecEnded::default() }),
        ),
        (true, Some(11), exited(5)),
        (true, Some(10), exited(9)),
    ]
}

fn find<'a>(spans: &'a [SpanData], name: &str) -> &'a SpanData {
    spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("{name}: {spans:#?}"))
}

#[test]
fn each_is_a_child_of_who_made_it() {
    let spans = assembled(1, job(Some(CALLER)));
    assert_eq!(spans.len(), 5, "{spans:#?}");
    let chain = ["sh", "dash", "curl", "connect 93.184.216.34:80", "GET"];
    for (parent, child) in chain.iter().zip(&chain[1..]) {
        assert_eq!(
            find(&spans, child).parent_span_id,
            find(&spans, parent).span_context.span_id(),
            "{child}"
        );
    }
    let root = find(&spans, "sh");
    assert_eq!(root.parent_span_id.to_string(), "00f067aa0ba902b7");
    assert!(root.parent_span_is_remote && !find(&spans, "dash").parent_span_is_remote);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    assert!(spans.iter().all(|span| span.span_context.trace_id().to_string() == trace));
    let peak = root.attributes.iter().find(|one| one.key.as_str() == "atoll.memory.peak").unwrap();
    assert_eq!(peak.value, Value::I64(9));
    // A server that goes on with the journal gives the same ids.
    let again = assembled(1, job(Some(CALLER)));
    assert_eq!(find(&again, "GET").span_context, find(&spans, "GET").span_context);
}

#[test]
fn who_is_no_caller_s_has_a_trace_of_its_own_and_who_is_not_wanted_none() {
    let spans = assembled(1, job(None));
    let root = find(&spans, "sh");
    assert!(root.parent_span_id == SpanId::INVALID && root.span_context.is_valid());
    assert!(assembled(1, job(Some(&CALLER.replace("-01", "-00")))).is_empty());
    // Spans that an earlier server sent are not made again.
    let later: Vec<_> = assembled(10, job(None)).iter().map(|span| span.name.to_string()).collect();
    assert_eq!(later, ["curl", "dash"]);
}

#[test]
fn a_connection_that_nobody_is_known_to_have_made_is_nobody_s() {
    let mut events = job(None);
    events.retain(|(_, _, what)| !matches!(what, What::Connect(_)));
    let names: Vec<_> = assembled(1, events).iter().map(|span| span.name.to_string()).collect();
    assert_eq!(names, ["curl", "dash", "sh"]);
}
