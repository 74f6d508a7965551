//! Which programs may run: over the API and the command line, over crashes, sleep, forks and templates.

use std::time::Duration;

use crate::common::{code, shell};
use atoll_api::{
    CreateSandbox, CreateSnapshot, CreateTemplate, ForkSandbox, PauseSandbox, TraceEvent, UpdateSandbox,
};
use atoll_blackbox::{Server, wait_until};
use atoll_client::GetEvents;
use atoll_core::Code;
use atoll_core::execution::{ExecutionMode, ExecutionPolicy, Programs};
use atoll_core::sandbox::PauseMode;

const KILLED: i32 = 137;
const COPY: &str = "cp /bin/echo /var/x; /var/x RAN";

fn locked() -> CreateSandbox {
    CreateSandbox { execution: Some(ExecutionPolicy::image()), ..CreateSandbox::default() }
}

async fn decisions(server: &Server, sandbox: &str, count: usize) -> Vec<TraceEvent> {
    let told = async || {
        let query = GetEvents { kinds: vec!["policy".into()], ..GetEvents::default() };
        let mut found = server.client.events(sandbox, &query).await.unwrap().items;
        found.retain(|event| event.more["stage"] == "exec");
        (found.len() >= count).then_some(found)
    };
    wait_until("the refusals are told", told).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_not_run_does_not_while_no_server_runs_either() {
    let mut server = Server::start();
    let made = server.cli(&["create", "--execution", "image"]).ok();
    let id = made.stdout.trim().to_owned();
    assert_eq!(server.client.get_sandbox(&id).await.unwrap().execution, ExecutionPolicy::image());
    let work = "cp /bin/echo /var/x; n=0; while :; do /var/x RAN >> /var/out 2>&1; n=$((n+1)); echo $n > /var/n.new; mv /var/n.new /var/n; sleep 0.01; done";
    server.client.create_exec(&id, &shell(work)).await.unwrap();
    let count = async |server: &Server| -> u64 {
        let exec = server.sh(&id, "cat /var/n 2>/dev/null || echo 0").await;
        exec.stdout.trim().parse().unwrap()
    };
    wait_until("it works", async || (count(&server).await > 3).then_some(())).await;
    let mut last = 0;
    for _ in 0..4 {
        server.kill();
        tokio::time::sleep(Duration::from_millis(400)).await;
        server.restart();
        let now = count(&server).await;
        assert!(now > last, "it worked meanwhile");
        last = now;
    }
    let out = server.sh(&id, "grep -c RAN /var/out; wc -l < /var/n").await;
    assert!(out.stdout.starts_with("0\n"), "{out:?}");
    // Nothing is missing between: each start is told as refused, also those that no server saw.
    let told = decisions(&server, &id, 50).await;
    assert!(told.iter().all(|event| event.more["allowed"] == false && event.witness == "host"), "{told:?}");
    assert!(told.iter().all(|event| event.more["subject"] == "/var/x"), "{told:?}");
    let lines = server.cli(&["trace", &id, "--kind", "policy"]).ok().stdout;
    assert!(lines.contains("REFUSED /var/x: only programs of the image may run"), "{lines}");
    let summary = server.cli(&["trace", "summary", &id]).ok().stdout;
    assert!(summary.contains("/var/x"), "{summary}");
    // It can be opened, and closed again.
    server.cli(&["update", &id, "--execution", "any"]).ok();
    assert_eq!(server.sh(&id, "/var/x RAN").await.stdout, "RAN\n");
    server.cli(&["update", &id, "--execution", "image", "--execution-mode", "observe"]).ok();
    assert_eq!(server.sh(&id, "/var/x RAN").await.stdout, "RAN\n");
    let update = UpdateSandbox { execution: Some(ExecutionPolicy::image()), ..UpdateSandbox::default() };
    server.client.update_sandbox(&id, &update).await.unwrap();
    server.kill();
    server.restart();
    assert_eq!(server.sh(&id, "/var/x RAN").await.code, Some(KILLED));
    server.client.delete_sandbox(&id).await.unwrap();
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sleep_forks_snapshots_and_templates_keep_it() {
    let server = Server::start();
    let first = server.sandbox().await.id;
    server.sh(&first, "cp /bin/echo /opt/tool").await;
    let create = CreateSnapshot { tags: vec!["tools:1".into()], ..CreateSnapshot::default() };
    server.client.create_snapshot(&first, &create).await.unwrap();
    let template =
        serde_json::json!({"name": "locked", "snapshot": "tools:1", "execution": {"programs": "image"}});
    let template: CreateTemplate = serde_json::from_value(template).unwrap();
    server.client.create_template(&template).await.unwrap();
    let create = CreateSandbox { template: Some("locked".into()), ..CreateSandbox::default() };
    let id = server.client.create_sandbox(&create).await.unwrap().id;
    let check = async |id: &str, when: &str| {
        assert_eq!(server.sh(id, "/opt/tool RAN").await.stdout, "RAN\n", "{when}");
        assert_eq!(server.sh(id, COPY).await.code, Some(KILLED), "{when}");
        assert_eq!(server.sh(id, "/bin/echo RAN").await.stdout, "RAN\n", "{when}");
    };
    check(&id, "made").await;
    let pause = PauseSandbox { mode: Some(PauseMode::Filesystem) };
    server.client.pause_sandbox(&id, &pause).await.unwrap();
    server.client.resume_sandbox(&id).await.unwrap();
    check(&id, "woken").await;
    let forked = server.client.fork_sandbox(&id, &ForkSandbox::default()).await.unwrap();
    let child = forked.results[0].sandbox.as_ref().unwrap().id.clone();
    assert_eq!(server.sh(&child, "/var/x RAN").await.code, Some(KILLED), "what its parent wrote");
    check(&child, "forked").await;
    // Another image, which the sandbox's own files are not.
    let create = CreateSandbox { snapshot: Some("tools:1".into()), ..locked() };
    let other = server.client.create_sandbox(&create).await.unwrap().id;
    assert_eq!(
        server.sh(&other, "/opt/tool RAN").await.code,
        Some(KILLED),
        "no template said that it is good"
    );
    for id in [first, id, child, other] {
        server.client.delete_sandbox(&id).await.unwrap();
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_could_enforce_or_read_is_refused() {
    let server = Server::with(&["--trace", "off"]);
    assert_eq!(code(server.client.create_sandbox(&locked()).await), Code::Unenforceable);
    let open = server.sandbox().await.id;
    let update = UpdateSandbox { execution: Some(ExecutionPolicy::image()), ..UpdateSandbox::default() };
    assert_eq!(code(server.client.update_sandbox(&open, &update).await), Code::Unenforceable);
    let observe = ExecutionPolicy { mode: ExecutionMode::Observe, ..ExecutionPolicy::image() };
    let create = CreateSandbox { execution: Some(observe), ..CreateSandbox::default() };
    assert_eq!(code(server.client.create_sandbox(&create).await), Code::Unenforceable);
    let create = CreateSandbox { execution: Some(ExecutionPolicy::default()), ..CreateSandbox::default() };
    server.client.create_sandbox(&create).await.unwrap();
    for policy in [
        r#"{"program":"image"}"#,
        r#"{"programs":"Image"}"#,
        r#"{"programs":"image","mode":"off"}"#,
        "\"image\"",
    ] {
        let body = format!("{{\"execution\":{policy}}}");
        let request = server.request("POST", "/v1/sandboxes").header("content-type", "application/json");
        let answer = server.send(request.body(body)).await;
        assert_eq!(
            (answer.status, answer.json()["code"].as_str()),
            (400, Some("invalid_argument")),
            "{policy}"
        );
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_name_programs_by_path_and_digest() {
    let server = Server::start();
    let made = server.cli(&["create", "--execution", "image", "--deny-program", "/usr/bin/printf"]).ok();
    let id = made.stdout.trim().to_owned();
    let run = async |line: &str| server.sh(&id, line).await.code;
    assert_eq!(run("/usr/bin/printf RAN").await, Some(KILLED));
    assert_eq!(run("ln -s /bin/printf /tmp/x; /tmp/x RAN").await, Some(KILLED));
    assert_eq!(run("/bin/echo RAN").await, Some(0));
    let told = decisions(&server, &id, 2).await;
    assert!(told.iter().all(|event| event.more["rule"] == "rule 1 (deny /usr/bin/printf)"), "{told:?}");
    // By content, from a file with the whole policy, at once.
    let sum = std::process::Command::new("sha256sum").arg("/usr/bin/env").output().unwrap();
    let digest = format!("sha256:{}", String::from_utf8(sum.stdout).unwrap().split(' ').next().unwrap());
    let policy = serde_json::json!({"programs": "any", "rules": [
        {"action": "deny", "path": "/usr/bin/env", "digest": digest, "message": "no env here"}]});
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("policy.json");
    std::fs::write(&file, policy.to_string()).unwrap();
    server.cli(&["update", &id, "--execution", file.to_str().unwrap()]).ok();
    assert_eq!((run("/usr/bin/printf RAN").await, run("env true").await), (Some(0), Some(KILLED)));
    let told = decisions(&server, &id, 3).await;
    let rule = told[2].more["rule"].as_str().unwrap();
    assert!(rule.ends_with(": no env here)"), "{rule}");
    let shown = server.client.get_sandbox(&id).await.unwrap().execution;
    assert_eq!((shown.programs, shown.rules.len()), (Programs::Any, 1));
    // The policy still holds with the next server, after a pause, and in a fork.
    let mut server = server;
    server.kill();
    server.restart();
    let server = server;
    assert_eq!(server.sh(&id, "env true").await.code, Some(KILLED));
    server.client.pause_sandbox(&id, &PauseSandbox { mode: Some(PauseMode::Filesystem) }).await.unwrap();
    server.client.resume_sandbox(&id).await.unwrap();
    assert_eq!(server.sh(&id, "env true").await.code, Some(KILLED));
    let forked = server.client.fork_sandbox(&id, &ForkSandbox::default()).await.unwrap();
    let child = forked.results[0].sandbox.as_ref().unwrap().id.clone();
    assert_eq!(server.sh(&child, "env true").await.code, Some(KILLED));
    // From a template; a template with rules of a wrong form is refused with the reason.
    let template = |rules| serde_json::json!({"name": "ruled", "image": "host", "execution": {"programs": "listed", "rules": rules}});
    let rules = serde_json::json!([{"action": "allow", "path": "/bin/sh"}, {"action": "allow", "path": "/usr/bin/e*"}]);
    let request = server.request("POST", "/v1/templates").header("content-type", "application/json");
    let answer = server.send(request.body(template(rules).to_string())).await;
    assert_eq!((answer.status, answer.json()["code"].as_str()), (400, Some("invalid_argument")));
    let good: CreateTemplate =
        serde_json::from_value(template(serde_json::json!([{"action": "allow", "path": "/bin/sh"}])))
            .unwrap();
    server.client.create_template(&good).await.unwrap();
    let create = CreateSandbox { template: Some("ruled".into()), ..CreateSandbox::default() };
    let listed = server.client.create_sandbox(&create).await.unwrap().id;
    assert_eq!(server.sh(&listed, "echo fine; /bin/true").await.code, Some(KILLED));
    for id in [id, child, listed] {
        server.client.delete_sandbox(&id).await.unwrap();
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_that_mean_nothing_are_refused_each_in_its_own_words() {
    let server = Server::start();
    let good = server.client.create_sandbox(&locked()).await.unwrap().id;
    let sha512 = format!("sha512:{}", "0".repeat(128));
    let nobody = format!("sha256:{}", "0".repeat(64));
    let cases = [
        (format!(r#"[{{"action":"deny","digest":"{sha512}"}}]"#), "algorithm 'sha512' are not known"),
        (format!(r#"[{{"action":"deny","path":"/bin/sh","digest":"{nobody}"}}]"#), "'/bin/sh' is sha256:"),
        (r#"[{"action":"deny","path":"/bin/gti"}]"#.to_owned(), "rules[0]: the image has no '/bin/gti'"),
        (r#"[{"action":"deny","path":"/bin"}]"#.to_owned(), "is a directory"),
        (
            r#"[{"action":"allow","path":"/bin/sh"},{"action":"deny","path":"/bin/sh"}]"#.to_owned(),
            "rules[1]: contradicts execution.rules[0]",
        ),
        (
            r#"[{"action":"allow","path":"/usr/bin/env"},{"action":"deny","path":"/bin/env"}]"#.to_owned(),
            "rules[1]: contradicts execution.rules[0]",
        ),
        (r#"[{"action":"deny"}]"#.to_owned(), "names nothing"),
        (r#"[{"action":"deny","path":"bin/sh"}]"#.to_owned(), "is no path of programs"),
        (r#"[{"action":"deny","layer":"sha256:00"}]"#.to_owned(), "is no layer"),
        (r#"[{"action":"deny","inode":"5"}]"#.to_owned(), "unknown field"),
    ];
    for (rules, why) in cases {
        let execution = format!(r#"{{"execution":{{"programs":"image","rules":{rules}}}}}"#);
        for (method, path) in
            [("POST", "/v1/sandboxes".to_owned()), ("PATCH", format!("/v1/sandboxes/{good}"))]
        {
            let request = server.request(method, &path).header("content-type", "application/json");
            let answer = server.send(request.body(execution.clone())).await;
            let said = answer.json()["message"].as_str().unwrap_or_default().to_owned();
            assert_eq!(
                (answer.status, answer.json()["code"].as_str()),
                (400, Some("invalid_argument")),
                "{said}"
            );
            assert!(said.contains(why), "{why}: {said}");
        }
    }
    // The policies from before still hold, and nothing was left.
    assert_eq!(server.sh(&good, COPY).await.code, Some(KILLED));
    assert_eq!(server.sh(&good, "/bin/sh -c 'exit 7'").await.code, Some(7));
    let failed = server.cli(&["create", "--execution", "/nowhere/policy.json"]);
    assert_eq!(failed.code, Some(2), "{failed:?}");
    server.client.delete_sandbox(&good).await.unwrap();
    server.finish().await;
}
