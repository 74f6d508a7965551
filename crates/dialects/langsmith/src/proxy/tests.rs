//! Configurations go in as clients send them, and policies come out: each test asks the policy which hosts it lets pass.
//! What is not understood must be refused, and no secret may be in what is kept or shown.

use atoll_core::policy::{Destination, Http};

use super::*;

/// The configuration that Open SWE sends.
fn github() -> Value {
    json!({"rules": [
        {"name": "github-api", "match_hosts": ["api.github.com"],
         "headers": [{"name": "Authorization", "type": "opaque", "value": "Bearer sesame"}],
         "env_vars": {"GH_TOKEN": "proxy-injected"}},
        {"name": "github", "match_hosts": ["github.com", "*.github.com"],
         "headers": [{"name": "Authorization", "type": "opaque", "value": "Basic sesame"}]},
    ]})
}

#[test]
fn secrets_go_to_the_vault_and_nowhere_else() {
    let plan = plan(&github(), &EgressPolicy::open(), None).unwrap();
    let values: Vec<&str> = plan.secrets.values().map(Secret::reveal).collect();
    assert_eq!(values, ["Bearer sesame", "Basic sesame"]);
    assert!(!serde_json::to_string(&plan.policy).unwrap().contains("sesame"));
    assert_eq!(plan.policy.inject.len(), 2);
    assert_eq!(plan.policy.inject[0].env["GH_TOKEN"], "proxy-injected");
    assert!(plan.policy.rules.is_empty() && plan.policy.internet == Internet::On && plan.opened.is_none());
    plan.policy.validate("egress").unwrap();
    let shown = redacted(&github()).to_string();
    assert!(!shown.contains("sesame") && shown.contains("\"is_set\":true"), "{shown}");
}

#[test]
fn a_second_configuration_replaces_the_first_and_keeps_what_is_left_out() {
    let first = plan(&github(), &EgressPolicy::open(), None).unwrap();
    let mut config = github();
    config["rules"][1]["headers"][0].as_object_mut().unwrap().remove("value");
    let second = plan(&config, &first.policy, first.opened).unwrap();
    assert_eq!(second.policy, first.policy);
    assert_eq!(second.secrets.len(), 1);
    let none = plan(&json!({}), &second.policy, second.opened).unwrap();
    assert_eq!(none.policy, EgressPolicy::open());
}

#[test]
fn what_a_configuration_opened_is_closed_with_it_unless_somebody_changed_it() {
    let mirror = EgressPolicy::only(vec![Rule::parse_domain(Action::Allow, "mirror.example").unwrap()]);
    for base in [EgressPolicy::default(), mirror] {
        for config in [github(), json!({"access_control": {"deny_list": ["a.example"]}})] {
            let opened = plan(&config, &base, None).unwrap();
            let closed = plan(&Value::Null, &opened.policy, opened.opened).unwrap();
            assert_eq!(closed.policy, base);
            let changed = EgressPolicy { internet: Internet::Off, ..opened.policy };
            let kept = plan(&Value::Null, &changed, opened.opened).unwrap();
            assert_eq!(kept.policy.internet, Internet::Off);
        }
    }
}

fn allows(policy: &EgressPolicy, host: &str, port: u16) -> bool {
    let host = host.parse().unwrap();
    let to = Destination {
        name: Some(&host),
        address: "93.184.216.34".parse().unwrap(),
        port,
        own: false,
        closed: None,
        sender: None,
    };
    policy.decide(&to, Http::Unknown).allowed
}

#[test]
fn lists_of_hosts() {
    let hosts =
        ["api.example.org", "*.example.com", "db.example.org:5432", "192.0.2.0/24", "[2001:db8::1]:8443"];
    let mut config = github();
    config["access_control"] = json!({ "allow_list": hosts });
    let mirror = Rule::parse_domain(Action::Allow, "mirror.example").unwrap();
    for base in [EgressPolicy::open(), EgressPolicy::default(), EgressPolicy::only(vec![mirror])] {
        let policy = plan(&config, &base, None).unwrap().policy;
        policy.validate("egress").unwrap();
        assert!(allows(&policy, "api.example.org", 443) && allows(&policy, "a.example.com", 80));
        assert!(allows(&policy, "db.example.org", 5432) && !allows(&policy, "db.example.org", 443));
        for other in ["example.com", "mirror.example", "github.com"] {
            assert!(!allows(&policy, other, 443), "{other}");
        }
    }
    let config = json!({"access_control": {"deny_list": ["*.example.com"]}});
    let policy = plan(&config, &EgressPolicy::default(), None).unwrap().policy;
    assert!(allows(&policy, "example.org", 443) && !allows(&policy, "a.example.com", 443));
}

#[test]
fn a_list_that_denies_everything_leaves_nothing() {
    let lists = [json!(["*"]), json!(["a.example", "*"]), json!(["0.0.0.0/0"]), json!(["::/0"])];
    for list in lists {
        let mut config = github();
        config["access_control"] = json!({ "deny_list": list });
        let mirror = Rule::parse_domain(Action::Allow, "mirror.example").unwrap();
        for base in [EgressPolicy::open(), EgressPolicy::default(), EgressPolicy::only(vec![mirror])] {
            let policy = plan(&config, &base, None).unwrap().policy;
            policy.validate("egress").unwrap();
            for host in ["example.org", "mirror.example", "api.github.com"] {
                assert!(!policy.may_resolve(&host.parse().unwrap()).allowed, "{list}: {host}");
                for port in [22, 53, 80, 443, 8443] {
                    assert!(!allows(&policy, host, port), "{list}: {host}:{port}");
                }
            }
            for address in ["8.8.8.8", "2606:4700::1"] {
                let to = Destination {
                    name: None,
                    address: address.parse().unwrap(),
                    port: 22,
                    own: false,
                    closed: None,
                    sender: None,
                };
                assert!(!policy.decide(&to, Http::Unknown).allowed, "{list}: {address}");
            }
        }
    }
}

#[test]
fn what_is_denied_without_a_port_is_denied_on_all() {
    let config =
        json!({"access_control": {"deny_list": ["a.example", "*.b.example", "8.8.8.0/24", "c.example:22"]}});
    let policy = plan(&config, &EgressPolicy::default(), None).unwrap().policy;
    for port in [22, 80, 443, 8443] {
        assert!(!allows(&policy, "a.example", port) && !allows(&policy, "x.b.example", port));
        assert_eq!(allows(&policy, "c.example", port), port != 22);
        let host = "d.example".parse().unwrap();
        let to = Destination {
            name: Some(&host),
            address: "8.8.8.8".parse().unwrap(),
            port,
            own: false,
            closed: None,
            sender: None,
        };
        assert!(!policy.decide(&to, Http::Unknown).allowed);
    }
    assert!(!policy.may_resolve(&"a.example".parse().unwrap()).allowed);
}

#[test]
fn a_pattern_that_is_not_understood_is_refused() {
    for bad in [
        "",
        " ",
        "*.",
        "**",
        "*.*",
        "*a.example",
        "a.*",
        "a.example/",
        "https://a.example",
        "a.example:",
        "a.example:0",
        "a.example:x",
        "a.example:1-9",
        "a.example:65536",
        "10.0.0.0/33",
        "10.0.0.*",
        "1.2.3.4-9",
        "[::1",
        "a b",
        "~.*",
        "!a.example",
        "a.example,b.example",
    ] {
        for list in ["allow_list", "deny_list"] {
            let config = json!({"access_control": {list: [bad]}});
            assert!(plan(&config, &EgressPolicy::open(), None).is_err(), "{list}: {bad:?}");
        }
    }
    for unknown in [
        json!({"access_control": {"deny": ["*"]}}),
        json!({"access_controls": {"deny_list": ["*"]}}),
        json!({"rules": [{"match_hosts": ["a.example"], "match_methods": ["GET"]}]}),
    ] {
        assert!(plan(&unknown, &EgressPolicy::open(), None).is_err(), "{unknown}");
    }
    let said = json!({"no_proxy": ["x"], "description": "y", "rules": [{"match_hosts": ["a.example"], "aws": null}]});
    plan(&said, &EgressPolicy::open(), None).unwrap();
}

#[test]
fn what_is_not_supported_is_refused() {
    for bad in [
        json!({"access_control": {"allow_list": ["a"], "deny_list": ["b"]}}),
        json!({"access_control": {"allow_list": ["~a.*"]}}),
        json!({"callbacks": [{"url": "https://x"}]}),
        json!({"rules": [{"type": "aws", "match_hosts": ["a.example"]}]}),
        json!({"rules": [{"match_hosts": ["a.example"], "match_headers": {"a": "b"}}]}),
        json!({"rules": [{"match_hosts": ["a.example"], "rewrite": {"host": "b"}}]}),
        json!({"rules": [{"match_hosts": ["a.example"], "headers": [{"name": "A", "value": "{secret:X}"}]}]}),
        json!({"rules": [{"match_hosts": ["a.example"], "headers": [{"name": "A", "type": "other", "value": "x"}]}]}),
    ] {
        assert!(plan(&bad, &EgressPolicy::open(), None).is_err(), "{bad}");
    }
    let disabled = json!({"rules": [{"type": "aws", "enabled": false}]});
    assert!(plan(&disabled, &EgressPolicy::open(), None).unwrap().policy.inject.is_empty());
}

#[test]
fn a_closed_sandbox_is_opened_for_its_rules_only() {
    let policy = plan(&github(), &EgressPolicy::default(), None).unwrap().policy;
    assert_eq!(policy.internet, Internet::Rules);
    assert!(allows(&policy, "api.github.com", 443) && !allows(&policy, "example.com", 443));
}

#[test]
fn ports_and_paths() {
    let config = json!({"rules": [{"name": "a", "match_hosts": ["a.example", "b.example:8443"],
        "match_paths": ["/v1/*", "/x"], "env_vars": {"A": "1"},
        "headers": [{"name": "X-Team", "type": "plaintext", "value": "blue"}]}]});
    let policy = plan(&config, &EgressPolicy::open(), None).unwrap().policy;
    policy.validate("egress").unwrap();
    let [any, one] = &policy.inject[..] else { panic!("{policy:?}") };
    assert_eq!((any.paths.join(" ").as_str(), any.ports.len(), one.ports[0]), ("/v1 /x", 0, 8443));
    assert_eq!((any.env.len(), one.env.len()), (1, 0));
}

#[test]
fn references_to_secrets() {
    assert_eq!(references("Bearer {TOKEN}"), "Bearer {secret:TOKEN}");
    assert_eq!(references("{A}{B} {not a key} {"), "{secret:A}{secret:B} {not a key} {");
}
