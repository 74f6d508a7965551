use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;
use crate::policy::special::special;
use crate::policy::{Cidr, EgressMode, Origin, PathPattern, PortRange};

fn name(text: &str) -> HostName {
    text.parse().unwrap()
}

fn allow(text: &str) -> Rule {
    Rule::parse_domain(Action::Allow, text).unwrap()
}

fn deny(text: &str) -> Rule {
    Rule::parse_domain(Action::Deny, text).unwrap()
}

fn cidr(action: Action, text: &str) -> Rule {
    Rule::parse_cidr(action, text).unwrap()
}

fn to<'a>(name: Option<&'a HostName>, address: &str, port: u16) -> Destination<'a> {
    Destination { name, address: address.parse().unwrap(), port, own: false, closed: None, sender: None }
}

fn allowed(policy: &EgressPolicy, host: Option<&str>, address: &str, port: u16) -> bool {
    let host = host.map(name);
    policy.decide(&to(host.as_ref(), address, port), Http::Unknown).allowed
}

#[test]
fn the_first_rule_that_matches_decides_and_is_named() {
    let policy = EgressPolicy::only(vec![deny("bad.example.com"), allow("*.example.com:443")]);
    assert!(allowed(&policy, Some("a.example.com"), "1.1.1.1", 443));
    assert!(!allowed(&policy, Some("a.example.com"), "1.1.1.1", 80));
    let bad = name("bad.example.com");
    let decision = policy.decide(&to(Some(&bad), "1.1.1.1", 443), Http::Unknown);
    assert_eq!(decision, Decision { allowed: false, basis: Basis::Rule(0) });
    assert_eq!(policy.describe(decision.basis), "rule 1 (deny bad.example.com)");
}

#[test]
fn an_unknown_name_is_never_in_favour() {
    assert!(!allowed(&EgressPolicy::only(vec![allow("*")]), None, "1.1.1.1", 443));
    let mut policy = EgressPolicy::open();
    assert!(allowed(&policy, None, "1.1.1.1", 443));
    policy.rules = vec![deny("evil.example")];
    assert!(!allowed(&policy, None, "1.1.1.1", 443), "it could be evil.example");
    assert!(allowed(&policy, Some("good.example"), "1.1.1.1", 443));
}

#[test]
fn private_addresses_need_a_rule_about_them() {
    let mut policy = EgressPolicy::open();
    let lan = Some("lan.example");
    assert!(!allowed(&policy, lan, "10.0.0.1", 80));
    for wide in ["0.0.0.0/0", "8.0.0.0/5"] {
        policy.rules = vec![cidr(Action::Allow, wide), allow("lan.example"), Rule::any(Action::Allow)];
        assert!(!allowed(&policy, lan, "10.0.0.1", 80), "{wide}");
    }
    policy.rules = vec![cidr(Action::Allow, "10.0.0.0/8")];
    assert!(allowed(&policy, lan, "10.0.0.1", 80) && allowed(&policy, None, "10.0.0.1", 80));
    assert!(!allowed(&policy, lan, "169.254.169.254", 80) && !allowed(&policy, lan, "::ffff:127.0.0.1", 80));
    assert!(allowed(&policy, lan, "::ffff:10.0.0.1", 80));
}

#[test]
fn the_hosts_own_public_address_needs_a_rule_about_it() {
    let own = Destination { own: true, ..to(None, "8.8.8.8", 22) };
    let mut policy = EgressPolicy::open();
    assert!(!policy.decide(&own, Http::Unknown).allowed);
    policy.rules = vec![cidr(Action::Allow, "8.8.8.0/24")];
    assert!(!policy.decide(&own, Http::Unknown).allowed);
    policy.rules = vec![cidr(Action::Allow, "8.8.8.8")];
    assert!(policy.decide(&own, Http::Unknown).allowed);
}

#[test]
fn a_rule_for_a_network_does_not_open_the_host_in_it() {
    let policy = EgressPolicy { rules: vec![cidr(Action::Allow, "10.0.0.0/8")], ..EgressPolicy::open() };
    let there = to(None, "10.0.0.5", 22);
    assert!(policy.decide(&there, Http::Unknown).allowed);
    let own = Destination { own: true, ..there };
    assert!(!policy.decide(&own, Http::Unknown).allowed && !policy.could_allow(&own));
    let exact = EgressPolicy { rules: vec![cidr(Action::Allow, "10.0.0.5")], ..EgressPolicy::open() };
    assert!(exact.decide(&own, Http::Unknown).allowed);
    // The loopback is the host by name.
    let loopback = EgressPolicy { rules: vec![cidr(Action::Allow, "127.0.0.0/8")], ..EgressPolicy::open() };
    let to = Destination { own: true, ..to(None, "127.0.0.1", 22) };
    assert!(loopback.decide(&to, Http::Unknown).allowed);
}

#[test]
fn what_the_operator_closed_needs_a_rule_as_narrow() {
    let closed: Cidr = "93.184.0.0/16".parse().unwrap();
    let there = Destination { closed: Some(closed), ..to(None, "93.184.216.34", 443) };
    let with = |rules: Vec<Rule>| EgressPolicy { rules, ..EgressPolicy::open() };
    for (policy, opens) in [
        (with(Vec::new()), false),
        (with(vec![allow("*")]), false),
        (with(vec![cidr(Action::Allow, "93.0.0.0/8")]), false),
        (with(vec![cidr(Action::Allow, "93.184.0.0/16")]), true),
        (with(vec![cidr(Action::Allow, "93.184.216.34")]), true),
    ] {
        assert_eq!(policy.decide(&there, Http::Unknown).allowed, opens, "{policy:?}");
        assert_eq!(policy.could_allow(&there), opens, "{policy:?}");
    }
}

#[test]
fn nobody_connects_to_where_no_request_may_pass() {
    let no_posts = Rule { methods: vec!["POST".into()], ..Rule::any(Action::Deny) };
    let rebound = name("rebound.example");
    let policy = EgressPolicy { rules: vec![no_posts], ..EgressPolicy::open() };
    for address in ["127.0.0.1", "10.0.0.1", "169.254.169.254", "168.63.129.16"] {
        let to = to(Some(&rebound), address, 443);
        assert!(!policy.could_allow(&to) && !policy.needs_http(&to), "{address}");
    }
    let public = to(Some(&rebound), "93.184.216.34", 443);
    assert!(policy.could_allow(&public) && policy.needs_http(&public));
    assert!(!policy.could_allow(&Destination { port: 53, ..public }));
    assert!(
        policy.could_allow_among(&[], &public)
            && policy.could_allow_among(std::slice::from_ref(&rebound), &public)
    );
    let denied = EgressPolicy { rules: vec![deny("rebound.example")], ..EgressPolicy::open() };
    assert!(!denied.could_allow_among(std::slice::from_ref(&rebound), &public));
}

#[test]
fn a_path_that_is_denied_is_denied_however_it_is_written() {
    let no_admin = Rule { path: Some("/admin*".parse().unwrap()), ..Rule::any(Action::Deny) };
    let no_posts = Rule { methods: vec!["POST".into()], ..Rule::any(Action::Deny) };
    let policy = EgressPolicy { rules: vec![no_admin, no_posts], ..EgressPolicy::open() };
    let to = to(None, "93.184.216.34", 443);
    let ask = |method, path| policy.decide(&to, Http::Request { method, path }).allowed;
    for path in ["/admin", "/%61dmin", "/%41dmin", "/;/admin", "/ADMIN/x", "/a;b", "/%c1%a1dmin"] {
        assert!(!ask("GET", path), "{path}");
    }
    assert!(ask("GET", "/v1/a%20b") && !ask("POST", "/v1") && !ask("post", "/v1") && !ask("Post", "/v1"));
    // A request must be written as the rule says to be allowed.
    let only = Rule {
        methods: vec!["GET".into()],
        path: Some("/v1/*".parse().unwrap()),
        ..Rule::any(Action::Allow)
    };
    let policy = EgressPolicy::only(vec![only]);
    let ask = |method, path| policy.decide(&to, Http::Request { method, path }).allowed;
    assert!(
        ask("GET", "/v1/a;b%20c") && !ask("get", "/v1/a") && !ask("GET", "/V1/a") && !ask("GET", "/%761/a")
    );
}

#[test]
fn other_resolvers_need_a_rule() {
    let mut policy = EgressPolicy::open();
    assert!(!allowed(&policy, None, "8.8.8.8", 53) && !allowed(&policy, Some("dns.example"), "8.8.8.8", 853));
    policy.rules = vec![cidr(Action::Allow, "8.8.8.8:53")];
    assert!(allowed(&policy, None, "8.8.8.8", 53));
}

#[test]
fn methods_and_paths() {
    let read_only = Rule {
        methods: vec!["GET".into()],
        path: Some("/v1/*".parse::<PathPattern>().unwrap()),
        ..allow("api.example")
    };
    let policy = EgressPolicy::only(vec![read_only]);
    let api = name("api.example");
    let to = to(Some(&api), "1.1.1.1", 80);
    let ask = |method, path| policy.decide(&to, Http::Request { method, path }).allowed;
    assert!(ask("GET", "/v1/a"));
    assert!(!ask("POST", "/v1/a") && !ask("GET", "/v2") && !ask("GET", "/v1/../v2"));
    assert!(!policy.decide(&to, Http::Unknown).allowed, "what cannot be looked into is not allowed");
    assert!(policy.needs_http(&to) && policy.may_resolve(&api).allowed);
    let no_posts = Rule { methods: vec!["POST".into()], ..deny("api.example") };
    let policy = EgressPolicy { rules: vec![no_posts], ..EgressPolicy::open() };
    assert!(!policy.decide(&to, Http::Unknown).allowed, "it could be a POST");
    assert!(policy.decide(&to, Http::Request { method: "GET", path: "/" }).allowed);
}

#[test]
fn only_names_that_can_be_used_are_looked_up() {
    let resolves = |policy: &EgressPolicy, host: &str| policy.may_resolve(&name(host)).allowed;
    let policy = EgressPolicy::only(vec![allow("a.example:443"), cidr(Action::Allow, "10.0.0.0/8")]);
    assert!(resolves(&policy, "a.example") && !resolves(&policy, "b.example"));
    assert!(resolves(&EgressPolicy::only(vec![cidr(Action::Allow, "0.0.0.0/0")]), "b.example"));
    let policy =
        EgressPolicy { rules: vec![deny("b.example:25"), deny("c.example")], ..EgressPolicy::open() };
    assert!(resolves(&policy, "b.example") && !resolves(&policy, "c.example"));
}

#[test]
fn among_several_names() {
    let policy =
        EgressPolicy::only(vec![deny("b.example:22"), allow("a.example:22"), allow("b.example:443")]);
    let ask = |names: &[&str], port| {
        let names: Vec<_> = names.iter().map(|n| name(n)).collect();
        policy.decide_among(&names, &to(None, "1.1.1.1", port), Http::Unknown).allowed
    };
    assert!(ask(&["a.example"], 22) && ask(&["c.example", "a.example"], 22));
    assert!(!ask(&["a.example", "b.example"], 22), "a rule denies one of them");
    assert!(!ask(&[], 22) && !ask(&["c.example"], 22));
}

// === properties ===

const NAMES: [&str; 4] = ["a.example", "b.a.example", "c.test", "example"];
const PATTERNS: [&str; 4] = ["a.example", "*.example", "*", "c.test"];
const RANGES: [&str; 6] = ["0.0.0.0/0", "10.0.0.0/8", "1.1.1.0/24", "127.0.0.1", "8.0.0.0/5", "2000::/3"];
const ADDRESSES: [&str; 6] =
    ["1.1.1.1", "10.1.2.3", "127.0.0.1", "169.254.169.254", "2606::1", "::ffff:10.0.0.1"];
const PATHS: [&str; 4] = ["/", "/v1/a", "/v1/../x", "/x%2fy"];

fn rules() -> impl Strategy<Value = Rule> {
    let action = prop_oneof![Just(Action::Allow), Just(Action::Deny)];
    let domain = proptest::option::of(proptest::sample::select(&PATTERNS[..]));
    let range = proptest::option::of(proptest::sample::select(&RANGES[..]));
    let ports = proptest::option::of(proptest::sample::select(&[80_u16, 443][..]));
    let method = proptest::option::of(proptest::sample::select(&["GET", "POST"][..]));
    let path = proptest::option::of(proptest::sample::select(&["/v1/*", "/"][..]));
    (action, domain, range, ports, method, path).prop_map(|(action, domain, range, ports, method, path)| {
        Rule {
            action,
            name: None,
            domain: domain.map(|text| text.parse().unwrap()),
            cidr: range.map(|text| text.parse::<Cidr>().unwrap()),
            ports: ports.into_iter().map(PortRange::one).collect(),
            methods: method.into_iter().map(str::to_owned).collect(),
            path: path.map(|text| text.parse().unwrap()),
            from: None,
        }
    })
}

fn policies() -> impl Strategy<Value = EgressPolicy> {
    let internet = prop_oneof![Just(Internet::Off), Just(Internet::On), Just(Internet::Rules)];
    (internet, proptest::collection::vec(rules(), 0..5)).prop_map(|(internet, rules)| EgressPolicy {
        internet,
        rules,
        ..EgressPolicy::default()
    })
}

fn requests() -> impl Strategy<Value = (&'static str, &'static str)> {
    (proptest::sample::select(&["GET", "POST"][..]), proptest::sample::select(&PATHS[..]))
}

proptest! {
    #[test]
    fn knowing_less_never_allows_more(
        policy in policies(), host in proptest::sample::select(&NAMES[..]),
        address in proptest::sample::select(&ADDRESSES[..]),
        port in proptest::sample::select(&[80_u16, 443, 22][..]), (method, path) in requests(),
    ) {
        let host = name(host);
        let (known, unknown) = (to(Some(&host), address, port), to(None, address, port));
        let request = Http::Request { method, path };
        for http in [Http::Unknown, request] {
            prop_assert!(!policy.decide(&unknown, http).allowed || policy.decide(&known, http).allowed);
        }
        for to in [known, unknown] {
            prop_assert!(!policy.decide(&to, Http::Unknown).allowed || policy.decide(&to, request).allowed);
            if !policy.needs_http(&to) {
                let (before, then) = (policy.decide(&to, Http::Unknown), policy.decide(&to, request));
                prop_assert_eq!(before.allowed, then.allowed);
            }
            // Where any traffic may pass, the gateway may connect.
            if policy.decide(&to, request).allowed || policy.decide(&to, Http::Unknown).allowed {
                prop_assert!(policy.could_allow(&to));
            }
            if special(canonical(to.address)).is_some() && policy.could_allow(&to) {
                let named = |rule: &Rule| rule.cidr.is_some_and(|cidr| special(cidr.net().network()).is_some());
                prop_assert!(policy.rules.iter().any(|rule| rule.action == Action::Allow && named(rule)));
            }
        }
    }

    #[test]
    fn a_special_address_is_only_opened_by_a_rule_that_names_it(
        policy in policies(), address in proptest::sample::select(&ADDRESSES[..]),
        host in proptest::option::of(proptest::sample::select(&NAMES[..])),
    ) {
        let host = host.map(name);
        let to = to(host.as_ref(), address, 443);
        let decision = policy.decide(&to, Http::Unknown);
        let address = canonical(to.address);
        if decision.allowed && special(address).is_some() {
            let Basis::Rule(index) = decision.basis else { panic!("allowed by {:?}", decision.basis) };
            let net = policy.rules[index].cidr.unwrap().net();
            prop_assert!(net.contains(&address) && special(net.network()).is_some());
            prop_assert!(special(net.broadcast()).is_some());
        }
    }

    #[test]
    fn a_name_that_may_be_reached_may_be_looked_up(
        policy in policies(), host in proptest::sample::select(&NAMES[..]), (method, path) in requests(),
    ) {
        let host = name(host);
        let to = to(Some(&host), "1.1.1.1", 443);
        let decision = policy.decide(&to, Http::Request { method, path });
        let by_address_only = match decision.basis {
            Basis::Rule(index) => !speaks_of_names(&policy.rules[index]),
            Basis::Internet | Basis::Special(_) | Basis::Resolver => false,
        };
        prop_assert!(!decision.allowed || by_address_only || policy.may_resolve(&host).allowed);
    }

    #[test]
    fn off_is_off(policy in policies(), address in any::<[u8; 4]>()) {
        let policy = EgressPolicy { internet: Internet::Off, ..policy };
        let host = name("a.example");
        let to = Destination { name: Some(&host), address: Ipv4Addr::from(address).into(), port: 443, own: false, closed: None, sender: None };
        prop_assert!(!policy.decide(&to, Http::Unknown).allowed && !policy.may_resolve(&host).allowed);
        prop_assert!(!policy.needs_http(&to));
    }
}

#[test]
fn what_is_observed_passes_and_what_is_not_public_does_not() {
    let rules = vec![deny("bad.example"), allow("good.example:443"), cidr(Action::Allow, "10.1.0.0/16:5432")];
    let get = Rule { methods: vec!["GET".into()], ..cidr(Action::Allow, "10.2.0.0/16:80") };
    let policy = EgressPolicy::only([rules, vec![get]].concat());
    let watched = EgressPolicy { mode: EgressMode::Observe, ..policy.clone() };
    watched.validate("egress").unwrap();
    let post = Http::Request { method: "POST", path: "/" };
    let of = |policy: &EgressPolicy, host: Option<&str>, address, port, http| {
        let host = host.map(name);
        policy.observes(host.as_slice(), &to(host.as_ref(), address, port), http)
    };
    let observes =
        |policy: &EgressPolicy, host, address, port| of(policy, host, address, port, Http::Unknown);
    for (host, address, port) in
        [(Some("bad.example"), "1.1.1.1", 443), (Some("other.example"), "1.1.1.1", 22), (None, "1.1.1.1", 53)]
    {
        assert!(observes(&watched, host, address, port), "{host:?} {address}");
        assert!(!observes(&policy, host, address, port), "{host:?} {address}");
    }
    // Rules go by the request there: other requests pass, and traffic that is no request does not.
    let (host, address) = (Some("svc.example"), "10.2.0.1");
    assert!(of(&watched, host, address, 80, post) && !of(&policy, host, address, 80, post));
    assert!(!observes(&watched, host, address, 80) && !of(&watched, host, address, 81, post));
    for (address, port) in
        [("127.0.0.1", 80), ("169.254.169.254", 80), ("192.168.1.1", 443), ("10.1.0.1", 22), ("10.2.0.1", 81)]
    {
        assert!(
            !observes(&watched, None, address, port)
                && !observes(&watched, Some("bad.example"), address, port)
        );
    }
    let own = Destination { own: true, ..to(None, "93.184.216.34", 443) };
    let closed =
        Destination { closed: Some("93.184.0.0/16".parse().unwrap()), ..to(None, "93.184.216.34", 443) };
    assert!(!watched.observes(&[], &own, post) && !watched.observes(&[], &closed, post));
    // Rules say the same in either mode.
    let bad = name("bad.example");
    assert!(!watched.may_resolve(&bad).allowed && watched.observes_names() && !policy.observes_names());
    assert!(!watched.decide(&to(Some(&bad), "1.1.1.1", 443), Http::Unknown).allowed);
    let off = EgressPolicy { internet: Internet::Off, ..watched };
    assert!(!off.observes_names() && !observes(&off, None, "1.1.1.1", 443));
    assert!(off.validate("egress").unwrap_err().message.starts_with("egress.mode"));
}

#[test]
fn a_rule_for_one_program_is_for_nobody_else_and_for_nobody_unknown() {
    let git = Origin::Program("/usr/bin/git".into());
    let policy = EgressPolicy::only(vec![Rule { from: Some(git.clone()), ..allow("github.example") }]);
    policy.validate("egress").unwrap();
    let host = name("github.example");
    let unknown = to(Some(&host), "93.184.216.34", 443);
    let (is_git, is_other) =
        (Sender::new([git.clone()]), Sender::new([Origin::Program("/usr/bin/curl".into())]));
    let nobody = Sender::default();
    let ask = |sender| policy.decide(&Destination { sender, ..unknown }, Http::Unknown).allowed;
    assert!(ask(Some(&is_git)));
    assert!(!ask(Some(&is_other)) && !ask(Some(&nobody)) && !ask(None));
    assert!(
        !policy.could_allow(&unknown)
            && policy.could_allow(&Destination { sender: Some(&is_git), ..unknown })
    );
    // A name is looked up by the resolver, which does not know the sender.
    assert!(policy.may_resolve(&host).allowed);
    // The rules after it hold for other senders.
    let posts = Rule { methods: vec!["POST".into()], from: Some(git), ..allow("github.example") };
    let both =
        EgressPolicy::only(vec![posts, Rule { methods: vec!["GET".into()], ..allow("github.example") }]);
    let ask = |method, sender| {
        both.decide(&Destination { sender, ..unknown }, Http::Request { method, path: "/" }).allowed
    };
    assert!(ask("POST", Some(&is_git)) && ask("GET", Some(&is_git)));
    assert!(
        !ask("POST", Some(&is_other))
            && ask("GET", Some(&is_other))
            && !ask("POST", None)
            && ask("GET", None)
    );
    assert_eq!(both.rules[0].to_string(), "allow POST github.example from /usr/bin/git");
}

#[test]
fn who_is_named_has_a_form() {
    let rule = |text: &str| serde_json::from_str::<Rule>(text);
    let refused = |from: &str| {
        let rule = rule(&format!(r#"{{"action":"allow","from":{from}}}"#)).unwrap();
        EgressPolicy::only(vec![rule]).validate("egress").unwrap_err().message
    };
    assert!(refused(r#"{"program":"git"}"#).starts_with("egress.rules.0.from.program"));
    assert!(refused(r#"{"digest":"sha512:00"}"#).contains("algorithm 'sha512'"));
    for unknown in [r#"{"user":"root"}"#, r#"{}"#, r#""git""#, r#"{"program":"/a","digest":"sha256:0"}"#] {
        assert!(rule(&format!(r#"{{"action":"allow","from":{unknown}}}"#)).is_err(), "{unknown}");
    }
    let deny = rule(r#"{"action":"deny","from":{"program":"/usr/bin/curl"}}"#).unwrap();
    assert!(
        EgressPolicy::only(vec![deny]).validate("egress").unwrap_err().message.contains("could be copied")
    );
    let many =
        (0..25).map(|n| Rule { from: Some(Origin::Program(format!("/bin/{n}"))), ..allow("a.example") });
    let many = EgressPolicy::only(many.collect());
    assert!(many.validate("egress").unwrap_err().message.contains("more than 24"));
}
