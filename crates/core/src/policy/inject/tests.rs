use super::*;
use proptest::prelude::*;

fn rule(json: &str) -> InjectRule {
    serde_json::from_str(json).unwrap()
}

fn host(text: &str) -> HostName {
    text.parse().unwrap()
}

fn get<'a>(host: &'a HostName, path: &'a str) -> RequestFacts<'a> {
    RequestFacts { host, port: 443, encrypted: true, method: "GET", path, sender: None }
}

#[test]
fn matches_host_port_method_and_path() {
    let rule = rule(
        r#"{"name":"a","hosts":["api.x.org"],"methods":["GET"],"paths":["/v1","/files/"],
            "headers":{"X-Key":"{secret:K}"}}"#,
    );
    assert!(validate("inject", std::slice::from_ref(&rule)).is_ok());
    for (path, meant) in [
        ("/v1", true),
        ("/v1/models", true),
        ("/v10", false),
        ("/files/a", true),
        ("/files", false),
        ("/", false),
        ("/v1/../admin", false),
        ("/v1/%2e%2E/admin", false),
        ("/v1/..;/admin", false),
        ("/v1/..%2fadmin", false),
        ("/v1\\..\\admin", false),
        ("/v1/a.b/..c", true),
    ] {
        assert_eq!(rule.matches(&get(&host("api.x.org"), path)), meant, "{path}");
    }
    let (own, other) = (host("api.x.org"), host("x.org"));
    let good = get(&own, "/v1");
    assert!(rule.matches(&good));
    assert!(!rule.matches(&RequestFacts { host: &other, ..good }));
    assert!(!rule.matches(&RequestFacts { port: 8443, ..good }));
    assert!(!rule.matches(&RequestFacts { method: "POST", ..good }));
    // A rule for one program: it matches no other program, and no unknown sender.
    let git = Origin::Program("/usr/bin/git".into());
    let of_git = InjectRule { from: Some(git.clone()), ..rule };
    assert!(validate("inject", std::slice::from_ref(&of_git)).is_ok());
    let (is_git, other) = (Sender::new([git]), Sender::default());
    assert!(of_git.matches(&RequestFacts { sender: Some(&is_git), ..good }));
    assert!(!of_git.matches(&good) && !of_git.matches(&RequestFacts { sender: Some(&other), ..good }));
    let bad = InjectRule { from: Some(Origin::Program("git".into())), ..of_git };
    assert!(validate("inject", &[bad]).unwrap_err().message.starts_with("inject[0].from.program"));
}

#[test]
fn secrets_stay_off_plain_http_unless_the_rule_says_so() {
    let with_secret = rule(r#"{"name":"a","hosts":["x.org"],"bearer":"{secret:K}"}"#);
    let without = rule(r#"{"name":"a","hosts":["x.org"],"headers":{"x-env":"test"}}"#);
    let said = InjectRule { allow_plaintext: true, ..with_secret.clone() };
    assert!(
        !with_secret.covers(&host("x.org"), 80, false, None)
            && with_secret.covers(&host("x.org"), 443, true, None)
    );
    assert!(without.covers(&host("x.org"), 80, false, None) && said.covers(&host("x.org"), 80, false, None));
    let odd = InjectRule { ports: vec![8443], ..with_secret };
    assert!(odd.covers(&host("x.org"), 8443, true, None) && !odd.covers(&host("x.org"), 443, true, None));
}

#[test]
fn wrong_rules_are_refused_with_their_field() {
    for (json, field) in [
        (r#"{"name":"","hosts":["x.org"]}"#, "inject[0].name"),
        (r#"{"name":"a","hosts":[]}"#, "inject[0].hosts"),
        (r#"{"name":"a","hosts":["*"]}"#, "inject[0].hosts"),
        (r#"{"name":"a","hosts":["x.org"],"ports":[0]}"#, "inject[0].ports"),
        (r#"{"name":"a","hosts":["x.org"],"methods":["get"]}"#, "inject[0].methods"),
        (r#"{"name":"a","hosts":["x.org"],"paths":["v1"]}"#, "inject[0].paths"),
        (r#"{"name":"a","hosts":["x.org"],"paths":["/a/../b"]}"#, "inject[0].paths"),
        (r#"{"name":"a","hosts":["x.org"],"headers":{"Host":"evil"}}"#, "inject[0].headers"),
        (r#"{"name":"a","hosts":["x.org"],"headers":{"a b":"c"}}"#, "inject[0].headers"),
        (r#"{"name":"a","hosts":["x.org"],"remove_headers":["connection"]}"#, "inject[0].remove_headers"),
        (r#"{"name":"a","hosts":["x.org"],"placeholders":[{"secret":"K","value":"short"}]}"#, "value"),
        (r#"{"name":"a","hosts":["x.org"],"placeholders":[{"secret":"K","prefix":"a b"}]}"#, "prefix"),
        (r#"{"name":"a","hosts":["x.org"],"bearer":"a","basic":{"username":"a","password":"b"}}"#, "basic"),
        (r#"{"name":"a","hosts":["x.org"],"basic":{"username":"a:b","password":"b"}}"#, "basic.username"),
        (r#"{"name":"a","hosts":["x.org"],"env":{"A=B":"x"}}"#, "env"),
    ] {
        let error = validate("inject", &[rule(json)]).unwrap_err();
        assert!(error.message.contains(field), "{json}: {error}");
    }
    let twice = rule(r#"{"name":"a","hosts":["x.org"]}"#);
    assert!(validate("inject", &[twice.clone(), twice]).is_err());
    assert!(serde_json::from_str::<InjectRule>(r#"{"name":"a","hosts":["x.org"],"wat":1}"#).is_err());
    let user =
        rule(r#"{"name":"a","hosts":["x.org"],"basic":{"username":"{secret:U}","password":"{secret:P}"}}"#);
    assert!(validate("inject", &[user]).is_ok(), "the colon of a reference is not one of the name");
}

#[test]
fn every_secret_of_a_rule_is_known() {
    let rule = rule(
        r#"{"name":"a","hosts":["x.org"],"headers":{"a":"{secret:A}"},"add_headers":{"b":"{secret:B}"},
            "query":{"c":"{secret:C}"},"basic":{"username":"{secret:D}","password":"{secret:E}"},
            "placeholders":[{"secret":"F@2"}]}"#,
    );
    let names: Vec<_> = rule.secrets().map(ToString::to_string).collect();
    assert_eq!(names, ["A", "B", "C", "D", "E", "F@2"]);
}

#[test]
fn placeholders_are_made_once_and_kept() {
    let json = r#"{"name":"a","hosts":["x.org"],"env":{"FIXED":"1"},
        "placeholders":[{"secret":"K","env":"K_VAR","prefix":"sk-"},{"secret":"L"}]}"#;
    let mut rules = vec![rule(json)];
    let mut n = 0;
    let mut random = || {
        n += 1;
        Ok::<_, ()>(format!("random{n}"))
    };
    fill_placeholders(&mut rules, &[], &mut random).unwrap();
    let env = env(&EgressPolicy { inject: rules.clone(), ..EgressPolicy::default() });
    assert_eq!(env["NODE_EXTRA_CA_CERTS"], CA_FILE);
    assert!(env["JAVA_TOOL_OPTIONS"].ends_with(JAVA_BUNDLE_FILE));
    assert!(super::env(&EgressPolicy::open()).is_empty());
    assert_eq!(env["K_VAR"], "sk-random1");
    assert_eq!(env["FIXED"], "1");
    assert_eq!(rules[0].placeholders[1].value.as_deref(), Some("atoll_secret_random2"));
    let mut again = vec![rule(json)];
    fill_placeholders(&mut again, &rules, &mut random).unwrap();
    assert_eq!(again, rules, "a running program keeps its placeholder");
}

proptest! {
    #[test]
    fn nothing_below_a_prefix_leads_out_of_it(tail in "[./%2eEfF;\\\\a-c]{0,16}") {
        let path = format!("/v1/{tail}");
        let rule = rule(r#"{"name":"a","hosts":["x.org"],"paths":["/v1/"]}"#);
        if rule.matches(&get(&host("x.org"), &path)) {
            // The path as the most eager server would read it.
            let decoded = path.to_ascii_lowercase().replace("%2e", ".").replace("%2f", "/").replace('\\', "/");
            let mut depth = 0_i32;
            for segment in decoded.split('/').filter(|s| !s.is_empty()) {
                depth += match segment { ".." => -1, "." => 0, _ => 1 };
                prop_assert!(depth >= 1, "{} leaves /v1", path);
            }
        }
    }
}
