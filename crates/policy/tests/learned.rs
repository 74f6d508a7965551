//! What was learned allows what it was learned from, and nothing in it is too much.
#![expect(clippy::tests_outside_test_module, reason = "an integration test")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use atoll_core::execution::ExecutionPolicy;
use atoll_core::id::ExecId;
use atoll_core::policy::EgressPolicy;
use atoll_policy::{Options, Policies, Trace, learn, replay};
use atoll_recorder::event::{
    Destination, Dns, Http, Lost, Origin, PolicyDecision, Process, ProcessStarted, Program, Socket, Transport,
};
use atoll_recorder::{Event, Numbered, What, Witness};
use proptest::prelude::*;

fn exec() -> ExecId {
    ExecId::from_parts(1, 1)
}

/// An event of a process when `pid` is given, else of the gateway.
fn event(number: u64, pid: Option<u32>, what: What) -> Numbered {
    let process = pid.map(|pid| Process { pid, start_ns: 7 });
    let witness = if pid.is_some() { Witness::Host } else { Witness::Gateway };
    let exec = pid.map(|_| exec());
    Numbered { number, event: Event { at_us: number * 1000, witness, exec, process, what } }
}

fn numbered(all: Vec<(Option<u32>, What)>) -> Vec<Numbered> {
    let numbers = 1_u64..;
    numbers.zip(all).map(|(number, (pid, what))| event(number, pid, what)).collect()
}

fn started(path: &str, origin: Origin) -> What {
    let digest = Some(format!("blake3:{}", "0a".repeat(32)));
    let file = Some(Program { device: 1, inode: 2, origin, digest, layer: None });
    What::ProcessStarted(ProcessStarted { path: path.to_owned(), file, ..ProcessStarted::default() })
}

fn to(name: Option<&str>, ip: IpAddr, port: u16) -> Destination {
    let names = name.iter().map(ToString::to_string).collect();
    Destination { names, address: Some(SocketAddr::new(ip, port)), ..Destination::default() }
}

fn connected(to: Destination) -> What {
    let to = Some(Box::new(to));
    What::Policy(PolicyDecision { allowed: true, stage: "connect".into(), to, ..PolicyDecision::default() })
}

fn requested(to: Destination, method: &str, path: &str) -> What {
    let to = Some(Box::new(to));
    What::Http(Http { method: method.into(), path: path.into(), to, ..Http::default() })
}

fn looked_up(name: &str) -> What {
    let addresses = vec![public(9)];
    What::Dns(Dns {
        name: name.into(),
        record: "A".into(),
        answer: "NOERROR".into(),
        addresses,
        observed: false,
    })
}

const fn public(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(93, 184, 0, last))
}

fn trace(events: &[Numbered]) -> Trace {
    Trace::read(events.iter().map(|event| ("sbx", event)))
}

fn texts(policies: &Policies) -> (Vec<String>, Vec<String>) {
    let egress = policies.egress.iter().flat_map(|policy| &policy.rules).map(ToString::to_string).collect();
    let execution =
        policies.execution.iter().flat_map(|policy| &policy.rules).map(ToString::to_string).collect();
    (egress, execution)
}

#[test]
fn a_job_becomes_its_rules() {
    let events = numbered(vec![
        (Some(10), started("/usr/bin/dash", Origin::Image)),
        (Some(11), started("/usr/bin/curl", Origin::Image)),
        (None, looked_up("api.example.com")),
        (None, looked_up("only.example.com")),
        (
            Some(11),
            What::Connect(Socket {
                protocol: Transport::Tcp,
                local: None,
                peer: Some(SocketAddr::new(public(1), 443)),
            }),
        ),
        (None, connected(Destination { tls: true, ..to(Some("api.example.com"), public(1), 443) })),
        (None, requested(to(Some("web.example.com"), public(2), 80), "GET", "/a/b")),
        (None, requested(to(Some("web.example.com"), public(2), 80), "HEAD", "/a/b")),
        (None, connected(to(None, "10.1.2.3".parse().unwrap(), 5432))),
        (None, connected(to(Some("db.corp.example"), "10.1.2.4".parse().unwrap(), 5432))),
    ]);
    let trace = trace(&events);
    let learned = learn(&trace, &Policies::default(), Options::default()).unwrap();
    assert_eq!(learned.notes, Vec::<String>::new());
    let (egress, execution) = texts(&learned.policies);
    assert_eq!(
        egress,
        [
            "allow api.example.com:443",
            "allow db.corp.example at 10.1.2.4:5432",
            "allow 10.1.2.3:5432",
            "allow GET HEAD web.example.com:80 /a/b",
            "\"looked up, never reached\": allow only.example.com at 192.0.2.0/24",
        ]
    );
    assert_eq!(execution, ["allow /usr/bin/curl", "allow /usr/bin/dash"]);
    let replayed = replay(&learned.policies, &trace);
    assert_eq!((replayed.refused.len(), replayed.unclear.len(), replayed.unused.len()), (0, 0, 0));
    // With digests each is named with its content.
    let learned =
        learn(&trace, &Policies::default(), Options { digests: true, ..Options::default() }).unwrap();
    assert!(
        learned
            .policies
            .execution
            .unwrap()
            .rules
            .iter()
            .all(|rule| rule.digest.is_some() && rule.path.is_some())
    );
}

#[test]
fn what_was_refused_is_not_learned_and_what_was_observed_is() {
    let decided = |allowed, observed| {
        What::Policy(PolicyDecision { allowed, observed, stage: "exec".into(), ..PolicyDecision::default() })
    };
    let refused = |name: &str| {
        let to = Some(Box::new(to(Some(name), public(3), 443)));
        What::Policy(PolicyDecision { stage: "connect".into(), to, ..PolicyDecision::default() })
    };
    let events = numbered(vec![
        (Some(10), started("/usr/bin/a", Origin::Image)),
        (Some(11), started("/usr/bin/b", Origin::Image)),
        (Some(11), decided(false, false)),
        (Some(12), started("/usr/bin/c", Origin::Image)),
        (Some(12), decided(true, true)),
        (None, refused("evil.example")),
    ]);
    let trace = trace(&events);
    let learned = learn(&trace, &Policies::default(), Options::default()).unwrap();
    let (egress, execution) = texts(&learned.policies);
    assert_eq!(
        (egress.len(), execution),
        (0, vec!["allow /usr/bin/a".to_owned(), "allow /usr/bin/c".to_owned()])
    );
    let replayed = replay(&learned.policies, &trace);
    assert_eq!((replayed.refused.len(), replayed.still_refused.len()), (0, 2));
    let open = Policies {
        egress: Some(EgressPolicy::open()),
        execution: Some(ExecutionPolicy::default()),
        about: None,
    };
    assert_eq!(replay(&open, &trace).opened.len(), 2);
}

#[test]
fn what_the_gateway_only_observed_is_learned_and_counted_once() {
    let observed = |stage: &str, to: Destination| {
        let (stage, to) = (stage.to_owned(), Some(Box::new(to)));
        What::Policy(PolicyDecision {
            allowed: true,
            observed: true,
            stage,
            to,
            times: 1,
            ..PolicyDecision::default()
        })
    };
    let web = to(Some("web.example"), public(2), 80);
    let request = Destination { method: Some("GET".into()), path: Some("/a".into()), ..web.clone() };
    let What::Http(http) = requested(web, "GET", "/a") else { unreachable!() };
    let http = What::Http(Http { observed: true, ..http });
    let What::Dns(dns) = looked_up("web.example") else { unreachable!() };
    let dns = What::Dns(Dns { observed: true, ..dns });
    let events = numbered(vec![
        (None, observed("dns", Destination { names: vec!["web.example".into()], ..Destination::default() })),
        (None, dns),
        (None, observed("request", request)),
        (None, http.clone()),
        (None, http),
        (None, observed("connect", to(Some("db.example"), public(3), 5432))),
    ]);
    let trace = trace(&events);
    let learned = learn(&trace, &Policies::default(), Options::default()).unwrap();
    assert_eq!(texts(&learned.policies).0, ["allow db.example:5432", "allow GET web.example:80 /a"]);
    // The policy that observed would have refused all of it: its mode does not count here.
    let mode = serde_json::from_str(r#"{"internet":"rules","mode":"observe"}"#).unwrap();
    let replayed = replay(&Policies { egress: Some(mode), ..Policies::default() }, &trace);
    let refused: Vec<_> = replayed.refused.iter().map(|one| (one.what.as_str(), one.times)).collect();
    assert_eq!(
        refused,
        [("GET http://web.example/a", 2), ("lookup web.example", 1), ("connect db.example:5432", 1)]
    );
    assert!(replayed.opened.is_empty() && replayed.still_refused.is_empty());
}

#[test]
fn what_was_written_inside_opens_everything_or_is_left_out() {
    let events = numbered(vec![
        (Some(10), started("/usr/bin/a", Origin::Image)),
        (Some(11), started("/tmp/x", Origin::Written)),
    ]);
    let trace = trace(&events);
    let open = learn(&trace, &Policies::default(), Options::default()).unwrap();
    assert!(
        open.policies.execution.unwrap().is_open() && open.notes[0].contains("/tmp/x"),
        "{:?}",
        open.notes
    );
    let options = Options { without_written: true, ..Options::default() };
    let locked = learn(&trace, &Policies::default(), options).unwrap();
    assert_eq!(texts(&locked.policies).1, ["allow /usr/bin/a"]);
    assert!(
        locked.notes.iter().any(|note| note.contains("would be refused: exec /tmp/x")),
        "{:?}",
        locked.notes
    );
    assert_eq!(replay(&locked.policies, &trace).refused[0].what, "exec /tmp/x");
}

#[test]
fn wildcards_stand_for_many_and_are_told() {
    let mut all = Vec::new();
    for n in 0..8 {
        all.push((None, connected(to(Some(&format!("s{n}.cdn.example.com")), public(n), 443))));
        all.push((None, connected(to(Some(&format!("{n}.github.io")), public(n), 443))));
        all.push((
            None,
            requested(to(Some("web.example.org"), public(2), 80), "GET", &format!("/files/{n}")),
        ));
        all.push((Some(20 + u32::from(n)), started(&format!("/opt/t/p{n}"), Origin::Image)));
        all.push((Some(40 + u32::from(n)), started(&format!("/usr/bin/p{n}"), Origin::Image)));
    }
    let trace = trace(&numbered(all));
    let learned = learn(&trace, &Policies::default(), Options::default()).unwrap();
    let (egress, execution) = texts(&learned.policies);
    assert!(egress.contains(&"allow *.cdn.example.com:443".to_owned()), "{egress:?}");
    assert!(egress.contains(&"allow GET web.example.org:80 /files/*".to_owned()), "{egress:?}");
    assert_eq!((egress.len(), execution.len()), (10, 9), "{egress:?} {execution:?}");
    assert_eq!(learned.folds.len(), 3, "{:?}", learned.folds);
    let none = learn(&trace, &Policies::default(), Options { fold: 0, ..Options::default() }).unwrap();
    assert_eq!((texts(&none.policies).0.len(), none.folds.len()), (24, 0));
    // No wildcard covers a name that the base policy denies.
    let base = Policies::read(
        r#"{"egress":{"internet":"on","rules":[{"action":"deny","domain":"x.cdn.example.com"}]}}"#,
    );
    let careful = learn(&trace, &base.unwrap(), Options::default()).unwrap();
    assert!(!texts(&careful.policies).0.iter().any(|rule| rule.contains('*')), "{careful:?}");
}

#[test]
fn gaps_are_in_the_policy_and_the_replay() {
    let lost = What::Lost(Lost { count: Some(3), reason: "the queue was full".into() });
    let old = What::Http(Http { host: "a.example".into(), port: 80, ..Http::default() });
    let events = numbered(vec![(Some(10), started("/usr/bin/a", Origin::Image)), (None, lost), (None, old)]);
    let trace = trace(&events);
    assert_eq!(trace.gaps.len(), 2);
    let learned = learn(&trace, &Policies::default(), Options::default()).unwrap();
    assert!(learned.policies.about.unwrap().missing[0].contains("3 events: the queue was full"));
    assert_eq!(replay(&Policies::default(), &trace).gaps.len(), 2);
}

#[test]
fn who_connected_is_found_by_address_and_time() {
    let connect = |pid| {
        let peer = Some(SocketAddr::new(public(1), 443));
        (Some(pid), What::Connect(Socket { protocol: Transport::Tcp, local: None, peer }))
    };
    let gateway = || (None, connected(to(Some("git.example"), public(1), 443)));
    let policies = Policies::read(
        r#"{"internet":"rules","rules":[{"action":"allow","domain":"git.example","from":{"program":"/usr/lib/git-core/*"}}]}"#,
    )
    .unwrap();
    let git = (Some(10), started("/usr/lib/git-core/git-remote-http", Origin::Image));
    let curl = (Some(11), started("/usr/bin/curl", Origin::Image));
    let replayed = |all: Vec<_>| replay(&policies, &trace(&numbered(all)));
    assert_eq!(replayed(vec![git.clone(), connect(10), gateway()]).refused, []);
    let found = replayed(vec![git, curl, connect(10), gateway(), connect(11), gateway()]);
    assert_eq!((found.refused.len(), found.refused[0].by.as_deref()), (1, Some("/usr/bin/curl")));
    // Where no kernel says which program it was, the outcome is unclear.
    let found = replayed(vec![gateway()]);
    assert_eq!((found.refused.len(), found.unclear.len()), (0, 1));
}

fn something() -> impl Strategy<Value = (Option<u32>, What)> {
    let name = (0..6_u8, 0..4_u8).prop_map(|(host, domain)| {
        let domain = ["cdn.example.com", "example.org", "co.uk", "a.b.example.net"][usize::from(domain)];
        format!("h{host}.{domain}")
    });
    let ip = prop_oneof![
        (0..20_u8).prop_map(public),
        (0..3_u8).prop_map(|n| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n))),
    ];
    let port = prop::sample::select(vec![22, 80, 443, 8080, 53]);
    let place = (prop::option::of(name.clone()), ip, port, any::<bool>(), any::<bool>())
        .prop_map(|(name, ip, port, tls, own)| Destination { tls, own, ..to(name.as_deref(), ip, port) });
    let path = prop::sample::select(vec![
        "/", "/a", "/a/1", "/a/2", "/a/3", "/a/b/c", "/A/1", "/a/../b", "/a%2fb", "/x*y", "/ü", "/a;b", "//x",
    ]);
    let method = prop::sample::select(vec!["GET", "POST", "get", "M-SEARCH"]);
    let program = (0..6_u8, 0..4_u8, 0..8_u8).prop_map(|(program, dir, origin)| {
        let dir = ["/usr/bin", "/opt/t", "/opt/t/x", "/o d[d]"][usize::from(dir)];
        let origin = if origin == 0 { Origin::Other } else { Origin::Image };
        (format!("{dir}/p{program}"), origin)
    });
    prop_oneof![
        (1..9_u32, program).prop_map(|(pid, (path, origin))| (Some(pid), started(&path, origin))),
        place.clone().prop_map(|place| (None, connected(place))),
        (place, method, path).prop_map(|(place, method, path)| (None, requested(place, method, path))),
        name.prop_map(|name| (None, looked_up(&name))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_learned_policy_refuses_nothing_of_its_trace_and_has_no_rule_too_many(
        all in prop::collection::vec(something(), 0..40),
        fold in prop::sample::select(vec![0_usize, 2, 3, 8]),
        digests in any::<bool>(),
    ) {
        let trace = trace(&numbered(all));
        let options = Options { digests, fold, without_written: false };
        let learned = learn(&trace, &Policies::default(), options).unwrap();
        let found = replay(&learned.policies, &trace);
        prop_assert_eq!(&found.refused, &vec![]);
        prop_assert_eq!(&found.unclear, &vec![]);
        prop_assert_eq!(&found.unused, &Vec::<String>::new());
        let text = serde_json::to_string(&learned.policies).unwrap();
        prop_assert_eq!(Policies::read(&text).unwrap(), learned.policies.clone());
        // Without any one of its rules it refuses something, or cannot say.
        let fails = |policies: &Policies| {
            let found = replay(policies, &trace);
            !found.refused.is_empty() || !found.unclear.is_empty()
        };
        if let Some(egress) = &learned.policies.egress {
            for at in 0..egress.rules.len() {
                let mut less = learned.policies.clone();
                less.egress.as_mut().unwrap().rules.remove(at);
                prop_assert!(fails(&less), "{:?} is not needed", egress.rules[at]);
            }
        }
        if let Some(execution) = &learned.policies.execution {
            for at in 0..execution.rules.len() {
                let mut less = learned.policies.clone();
                less.execution.as_mut().unwrap().rules.remove(at);
                prop_assert!(fails(&less), "{:?} is not needed", execution.rules[at]);
            }
        }
    }
}
