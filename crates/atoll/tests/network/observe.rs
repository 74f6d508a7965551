//! Policies that only observe: requests that rules would refuse pass and are told of, and the protection of the host
//! and of secrets stays.

use crate::common::outside::{OTHER, Outside, WEB, policy, sandbox};
use crate::common::{code, outputs};
use atoll_api::{CreateSandbox, TraceEvent, UpdateSandbox};
use atoll_blackbox::{Server, wait_until};
use atoll_client::GetEvents;
use atoll_core::Code;
use serde_json::{Value, json};

/// A request with its status in the last line.
const CURL: &str = "curl -sS --max-time 20 -w '%{http_code}\\n'";
const VALUE: &str = "hunter2-is-the-value";

async fn decisions(server: &Server, sandbox: &str) -> Vec<TraceEvent> {
    let mut query = GetEvents { from: 1, ..GetEvents::default() };
    let mut all = Vec::new();
    loop {
        let page = server.client.events(sandbox, &query).await.unwrap();
        if page.items.is_empty() {
            return all;
        }
        all.extend(page.items);
        query.from = page.next;
    }
}

/// Waits for the event of a would-be refusal.
async fn observed(server: &Server, sandbox: &str, stage: &str, subject: &str) -> TraceEvent {
    let is = |event: &TraceEvent| {
        event.kind == "policy"
            && event.more["stage"] == stage
            && event.more["observed"] == true
            && event.more["subject"] == subject
    };
    wait_until("the journal has it", async || decisions(server, sandbox).await.into_iter().find(is)).await
}

async fn status(server: &Server, id: &str, what: &str) -> String {
    let done = server.sh(id, &format!("{CURL} -o /dev/null {what}")).await;
    done.stdout.trim().to_owned()
}

/// Rules that allow one path of one host, which gets a secret.
fn rules(mode: &str) -> Value {
    json!({"internet": "rules", "mode": mode,
        "rules": [{"action": "allow", "domain": "web.test", "ports": [80], "path": "/ok*"}],
        "inject": [{"name": "key", "hosts": ["web.test"], "headers": {"x-key": "{secret:KEY}"}, "allow_plaintext": true}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn what_rules_would_refuse_passes_and_is_told_of() {
    let outside = Outside::new();
    let seen = outside.web(&format!("{WEB}:80"));
    outside.web(&format!("{OTHER}:80"));
    outside.banner(&format!("{OTHER}:2525"));
    // They would answer.
    for closed in ["10.9.8.7:80", "169.254.169.254:80"] {
        outside.web(closed);
    }
    let server = outside.server();
    server.cli_with(&["secret", "set", "KEY", "--host", "web.test"], VALUE.as_bytes()).ok();
    let id = sandbox(&server, policy(rules("observe"))).await.id;

    assert_eq!(status(&server, &id, "http://web.test/ok").await, "200");
    assert_eq!(status(&server, &id, "http://web.test/other").await, "200");
    assert_eq!(status(&server, &id, "http://other.test/").await, "200");
    let banner =
        "python3 -c \"import socket; print(socket.create_connection(('other.test', 2525)).recv(100))\"";
    assert!(server.sh(&id, banner).await.code == Some(0), "a server may speak first");
    // A secret goes only where the rules let the request pass.
    let heads = seen.lock().unwrap().clone();
    let has_key: Vec<bool> = heads.iter().map(|head| head.contains(VALUE)).collect();
    assert_eq!(has_key, [true, false], "{heads:?}");
    // Addresses that are not public stay closed.
    let dialled = outside.dials().len();
    for closed in ["10.9.8.7", "169.254.169.254"] {
        assert_eq!(status(&server, &id, &format!("http://{closed}/")).await, "403");
    }
    assert_eq!(outside.dials().len(), dialled);

    // Each such request is told, with the change that would allow it; requests that the rules allow are not told.
    let lookup = observed(&server, &id, "dns", "other.test").await;
    let request = observed(&server, &id, "request", "GET http://web.test:80/other").await;
    observed(&server, &id, "request", "GET http://other.test:80/").await;
    let connection = observed(&server, &id, "connect", "other.test:2525").await;
    assert_eq!(
        (&request.more["allowed"], &request.more["rule"]),
        (&true.into(), &"would be refused: no rule allows it (internet: rules)".into())
    );
    let all = decisions(&server, &id).await;
    let flagged = |kind: &str, field: &str| -> Vec<(Value, bool)> {
        let all = all.iter().filter(|event| event.kind == kind);
        all.map(|event| (event.more[field].clone(), event.more.get("observed") == Some(&true.into())))
            .collect()
    };
    let requests = flagged("http", "path");
    for expected in [("/ok", false), ("/other", true), ("/", true)] {
        assert!(requests.contains(&(expected.0.into(), expected.1)), "{expected:?}: {requests:?}");
    }
    assert!(flagged("dns", "name").contains(&("other.test".into(), true)));
    assert!(
        !all.iter()
            .any(|event| event.kind == "policy" && event.more["subject"] == "GET http://web.test:80/ok")
    );
    let refused = |what: &str| {
        let is = |event: &&TraceEvent| event.kind == "policy" && event.more["allowed"] == false;
        all.iter().filter(is).any(|event| event.more["subject"].as_str().unwrap().contains(what))
    };
    assert!(refused("10.9.8.7") && refused("169.254.169.254"));
    for (event, change) in [
        (&lookup, "--allow other.test"),
        (&request, "--allow web.test:80"),
        (&connection, "--allow other.test:2525"),
    ] {
        let explained =
            server.cli(&["--json", "policy", "explain", &id, &event.number.to_string()]).ok().json();
        assert_eq!((&explained["outcome"], &explained["in_force"]), (&"observed".into(), &true.into()));
        assert_eq!(explained["change"], format!("to allow it: {change}"));
        assert!(explained["now"].as_str().unwrap().starts_with("refused: "), "{explained}");
    }
    let table = server.cli(&["net", "denied", &id]).ok().stdout;
    assert!(table.contains("would be refused: no rule allows it"), "{table}");
    assert!(server.cli(&["net", "show", &id]).ok().stdout.contains("mode: observe"));

    // A replay of the rules finds the same refusals, and a policy that is learned lets the requests pass.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("policy.json").to_str().unwrap().to_owned();
    std::fs::write(&file, rules("observe").to_string()).unwrap();
    let replayed = server.cli(&["--json", "policy", "replay", &file, "--trace", &id]);
    assert_eq!(replayed.code, Some(1), "{replayed:?}");
    let replayed = replayed.json();
    let found: Vec<&str> =
        replayed["refused"].as_array().unwrap().iter().map(|one| one["what"].as_str().unwrap()).collect();
    for what in [
        "GET http://web.test/other",
        "GET http://other.test/",
        "lookup other.test",
        "connect other.test:2525",
    ] {
        assert!(found.contains(&what), "{what}: {found:?}");
    }
    assert!(!found.contains(&"GET http://web.test/ok"), "{found:?}");
    let said = server.cli(&["policy", "learn", &id, "-o", &file]).ok().stderr;
    assert!(said.lines().any(|line| line == "- mode: observe"), "{said}");
    server.cli(&["update", &id, "--egress", &file]).ok();
    assert_eq!(status(&server, &id, "http://web.test/other").await, "200");
    assert_eq!(status(&server, &id, "http://web.test/third").await, "403");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_request_reaches_nothing_that_is_not_public() {
    let outside = Outside::new();
    outside.web("10.9.8.7:80");
    let server = outside.server();
    let rule = json!({"action": "allow", "cidr": "10.9.8.0/24", "ports": [80], "methods": ["GET"]});
    let rules = json!({"internet": "rules", "mode": "observe", "rules": [rule]});
    let id = sandbox(&server, policy(rules)).await.id;
    for asked in ["http://10.9.8.7/", "-X POST http://10.9.8.7/"] {
        assert_eq!(status(&server, &id, asked).await, "200", "{asked}");
    }
    let dialled = outside.dials().len();
    let raw = "python3 -c \"import socket; s = socket.create_connection(('10.9.8.7', 80)); s.sendall(bytes(64)); s.recv(1)\"";
    server.sh(&id, raw).await;
    let refused = async || {
        let all = decisions(&server, &id).await;
        let is = |event: &&TraceEvent| event.kind == "policy" && event.more["subject"] == "10.9.8.7:80";
        all.iter().find(is).map(|event| event.more["allowed"].clone())
    };
    assert_eq!(wait_until("the journal has it", refused).await, false);
    assert_eq!(outside.dials().len(), dialled);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_mode_counts_at_once_in_both_directions() {
    let outside = Outside::new();
    outside.web(&format!("{WEB}:80"));
    outside.web(&format!("{OTHER}:80"));
    outside.banner(&format!("{OTHER}:2525"));
    let server = outside.server();
    let id = sandbox(&server, policy(json!({"internet": "rules"}))).await.id;
    let other = format!("http://{OTHER}/");
    assert_eq!(status(&server, &id, &other).await, "403");
    server.cli(&["update", &id, "--allow", "web.test:80", "--egress-mode", "observe"]).ok();
    assert_eq!(status(&server, &id, &other).await, "200");
    // Connections against the rules end when the rules are enforced; connections that they allow do not.
    let streaming = server.shell(&id, &format!("curl -sSN {other}stream; echo ended $?")).await;
    let relayed = server
        .shell(
            &id,
            "python3 -c \"\
        import socket; s = socket.create_connection(('other.test', 2525)); print(s.recv(100), flush=True); \
        s.recv(1)\"; echo ended",
        )
        .await;
    let allowed = server.shell(&id, "curl -sSN http://web.test/stream; echo ended").await;
    for exec in [&streaming, &relayed, &allowed] {
        crate::common::follow(&server, &id, exec, 5).await;
    }
    server.cli(&["update", &id, "--allow", "web.test:80", "--egress-mode", "enforce"]).ok();
    for exec in [&streaming, &relayed] {
        let (out, _) = outputs(&server, &id, exec).await;
        assert!(String::from_utf8_lossy(&out).contains("ended"), "it was cut");
    }
    assert_eq!(server.client.sandbox_network(&id).await.unwrap().connections.len(), 1);
    assert_eq!(status(&server, &id, &other).await, "403");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_would_be_told_of_and_what_means_nothing_is_refused() {
    let outside = Outside::new();
    let server = outside.server_with(&["--trace", "off"]);
    let create = |egress| CreateSandbox { egress: Some(policy(egress)), ..CreateSandbox::default() };
    let observe = json!({"internet": "on", "mode": "observe"});
    assert_eq!(code(server.client.create_sandbox(&create(observe.clone())).await), Code::Unenforceable);
    let plain = sandbox(&server, policy(json!({"internet": "on"}))).await.id;
    let update = UpdateSandbox { egress: Some(policy(observe)), ..UpdateSandbox::default() };
    assert_eq!(code(server.client.update_sandbox(&plain, &update).await), Code::Unenforceable);
    let off = json!({"internet": "off", "mode": "observe"});
    assert_eq!(code(server.client.create_sandbox(&create(off)).await), Code::InvalidArgument);
    let alone = server.cli(&["create", "--egress-mode", "observe"]);
    assert!(alone.code == Some(2) && alone.stderr.contains("--egress-mode is of a policy"), "{alone:?}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_records_nothing_any_more_enforces() {
    let outside = Outside::new();
    for web in [WEB, OTHER] {
        outside.web(&format!("{web}:80"));
    }
    let mut server = outside.server();
    let observing = policy(rules("observe"));
    server.cli_with(&["secret", "set", "KEY", "--host", "web.test"], VALUE.as_bytes()).ok();
    let id = sandbox(&server, observing).await.id;
    let other = format!("http://{OTHER}/");
    assert_eq!(status(&server, &id, &other).await, "200");
    server.stop();
    server.add_args(&["--trace", "off"]);
    server.restart();
    assert_eq!(status(&server, &id, &other).await, "403");
    assert_eq!(status(&server, &id, "http://web.test/ok").await, "200");
    assert!(server.log().contains("its rules are enforced"));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_hands_its_mode_on() {
    let outside = Outside::new();
    outside.web(&format!("{OTHER}:80"));
    let server = outside.server();
    server
        .cli(&[
            "template",
            "create",
            "watched",
            "--image",
            "host",
            "--internet",
            "rules",
            "--egress-mode",
            "observe",
        ])
        .ok();
    let id = server.cli(&["create", "--template", "watched"]).ok().stdout.trim().to_owned();
    assert_eq!(status(&server, &id, &format!("http://{OTHER}/")).await, "200");
    observed(&server, &id, "request", &format!("GET http://{OTHER}:80/")).await;
    server.finish().await;
}
