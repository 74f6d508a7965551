//! Prints one event of every kind in the form of OCSF, for the comparison with the published schema.

#![expect(clippy::print_stdout, reason = "the lines are what it is for")]

use atoll_core::id::ExecId;
use atoll_recorder::event::{
    Call, Connection, Created, Dns, ExecEnded, ExecStarted, FileAction, FileEvent, Http, KINDS, Lost,
    PolicyDecision, Process, ProcessExited, ProcessStarted, RecorderEvent, Socket, Transport,
};
use atoll_recorder::{Event, Numbered, What, Witness, ocsf};

fn main() {
    let mut kinds = std::collections::BTreeSet::new();
    for (number, what) in (1..).zip(all()) {
        kinds.insert(what.kind());
        let (exec, process) = (Some(ExecId::from_parts(1, 1)), Some(Process { pid: 7, start_ns: 1 }));
        let at_us = 1_700_000_000_000_000 + number;
        let whole = Event { at_us, witness: Witness::Host, exec, process, what };
        let bare = Event { exec: None, process: None, ..whole.clone() };
        for event in [whole, bare] {
            let line = ocsf::convert("sb00000000000000000000", &Numbered { number, event });
            println!("{line}");
        }
    }
    assert_eq!(kinds, KINDS.into_iter().collect(), "every kind");
}

fn all() -> Vec<What> {
    let end = |text: &str| text.parse().ok();
    let socket =
        Socket { protocol: Transport::Tcp, local: end("10.0.0.2:4000"), peer: end("93.184.216.34:443") };
    let nobody = Socket { protocol: Transport::Other, local: None, peer: None };
    let text = || "x".to_owned();
    vec![
        What::ProcessStarted(ProcessStarted {
            argv: vec!["/bin/ls".into(), "-l".into()],
            path: "/bin/ls".into(),
            parent: Some(Process { pid: 1, start_ns: 0 }),
            ..ProcessStarted::default()
        }),
        What::ProcessStarted(ProcessStarted::default()),
        What::ProcessForked { parent: Process { pid: 1, start_ns: 0 } },
        What::ProcessExited(ProcessExited { signal: Some(9), ..ProcessExited::default() }),
        What::Connect(socket.clone()),
        What::Accept(socket.clone()),
        What::Listen(nobody),
        What::File(FileEvent {
            action: FileAction::Renamed,
            path: "/a/b".into(),
            to: Some("/a/c".into()),
            digest: None,
        }),
        What::Dns(Dns {
            name: "a.example".into(),
            record: "A".into(),
            answer: "NOERROR".into(),
            addresses: "1.2.3.4".parse().into_iter().collect(),
            observed: false,
        }),
        What::Http(Http {
            method: "GET".into(),
            scheme: "https".into(),
            host: "a.example".into(),
            port: 443,
            path: "/x".into(),
            status: Some(200),
            ..Http::default()
        }),
        What::Http(Http { method: "PROPFIND".into(), ..Http::default() }),
        What::Connection(Connection {
            host: Some("a.example".into()),
            address: socket.peer,
            ..Connection::default()
        }),
        What::Connection(Connection::default()),
        What::Policy(PolicyDecision { allowed: true, ..PolicyDecision::default() }),
        What::Policy(PolicyDecision {
            subject: "a.example:443".into(),
            rule: text(),
            ..PolicyDecision::default()
        }),
        What::Call(Call {
            protocol: "atoll".into(),
            method: "POST".into(),
            path: "/v1/x".into(),
            key: Some(text()),
            status: 201,
            ..Call::default()
        }),
        What::Call(Call { method: "PUT".into(), status: 404, ..Call::default() }),
        What::TerminalInput { by: None, bytes: 3 },
        What::Created(Created::default()),
        What::State { state: "running".into(), mode: None, reason: None },
        What::State { state: "paused".into(), mode: Some("frozen".into()), reason: Some(text()) },
        What::Snapshot { snapshot: text(), purpose: text() },
        What::Forked { child: text() },
        What::RolledBack { snapshot: text() },
        What::Limits { changed: vec![text()], policy_revision: 1 },
        What::OutOfMemory,
        What::BudgetExhausted { reason: text() },
        What::ExecStarted(ExecStarted { argv: vec!["ls".into()], ..ExecStarted::default() }),
        What::ExecEnded(ExecEnded { code: Some(1), reason: "exited".into(), ..ExecEnded::default() }),
        What::Lost(Lost { count: Some(3), reason: text() }),
        What::Recorder(RecorderEvent::Ended),
        What::Recorder(RecorderEvent::WentOn { clean: false }),
    ]
}
