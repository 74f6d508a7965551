//! Policies that were learned from the requests of sandboxes: they let the same requests pass, and no others.

use std::collections::BTreeSet;
use std::path::Path;

use crate::common::outside::{OTHER, Outside, WEB};
use atoll_api::TraceEvent;
use atoll_blackbox::{Server, wait_until};
use atoll_client::GetEvents;

const KILLED: i32 = 137;
const JOB: &str =
    "curl -sS --max-time 20 http://web.test/data/x && ls / | wc -l && cp /usr/bin/true /tmp/true";

async fn events(server: &Server, sandbox: &str) -> Vec<TraceEvent> {
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

/// Waits until a journal has events of which each of these is true.
async fn told(server: &Server, sandbox: &str, what: &[fn(&TraceEvent) -> bool]) -> Vec<TraceEvent> {
    let told = async || {
        let all = events(server, sandbox).await;
        what.iter().all(|is| all.iter().any(is)).then_some(all)
    };
    wait_until("the journal has it", told).await
}

fn started(event: &TraceEvent, name: &str) -> bool {
    event.kind == "process_started" && event.more["path"].as_str().is_some_and(|path| path.ends_with(name))
}

async fn create(server: &Server, args: &[&str]) -> String {
    let args: Vec<&str> = std::iter::once("create").chain(args.iter().copied()).collect();
    server.cli(&args).ok().stdout.trim().to_owned()
}

fn write(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_watched_runs_locked_and_nothing_else_does() {
    let outside = Outside::new();
    outside.web(&format!("{WEB}:80"));
    outside.web(&format!("{OTHER}:80"));
    let server = outside.server();
    let dir = tempfile::tempdir().unwrap();
    let open = create(&server, &["--internet", "on"]).await;
    assert!(server.sh(&open, JOB).await.stdout.starts_with("hello"), "{}", server.log());
    told(&server, &open, &[|event| event.kind == "http", |event| started(event, "/wc")]).await;

    // Learned, with what it changes.
    let file = dir.path().join("policy.json").to_str().unwrap().to_owned();
    let said = server.cli(&["policy", "learn", &open, "-o", &file]).ok();
    for line in
        ["- internet: on", "+ internet: rules", "+ rule: allow GET web.test:80 /data/x", "+ programs: listed"]
    {
        assert!(said.stderr.lines().any(|said| said == line), "{line}: {said:?}");
    }
    let policy: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(policy["egress"]["rules"].as_array().unwrap().len(), 1, "{policy}");
    assert_eq!(policy["about"]["learned_from"][0], open.as_str());
    let paths: BTreeSet<&str> = policy["execution"]["rules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| rule["path"].as_str().unwrap())
        .collect();
    assert!(
        paths.contains("/usr/bin/curl") && paths.contains("/usr/bin/wc") && !paths.contains("/usr/bin/env"),
        "{paths:?}"
    );
    let replayed = server.cli(&["--json", "policy", "replay", &file, "--trace", &open]).ok().json();
    assert_eq!(
        (&replayed["refused"], &replayed["unused"]),
        (&serde_json::json!([]), &serde_json::json!([])),
        "{replayed}"
    );

    // Locked with it: the same job passes, another program and another host do not.
    let locked = create(&server, &["--egress", &file, "--execution", &file]).await;
    let again = server.sh(&locked, JOB).await;
    assert!(again.stdout.starts_with("hello") && again.code == Some(0), "{again:?}\n{}", server.log());
    assert_eq!(server.sh(&locked, "env true").await.code, Some(KILLED));
    assert_eq!(server.sh(&locked, "cp /usr/bin/wc /tmp/wc; /tmp/wc -l /dev/null").await.code, Some(KILLED));
    for other in [
        "http://other.test/",
        "http://web.test/data/y",
        "-X POST http://web.test/data/x",
        &format!("http://{OTHER}/"),
    ] {
        let refused = server.sh(&locked, &format!("curl -sS --max-time 20 {other}")).await;
        assert!(!refused.stdout.starts_with("hello"), "{other}: {refused:?}");
    }
    let is_refusal = |event: &TraceEvent| event.kind == "policy" && event.more["allowed"] == false;
    let all = told(
        &server,
        &locked,
        &[
            |event| {
                event.kind == "policy" && event.more["stage"] == "exec" && event.more["subject"] == "/tmp/wc"
            },
            |event| {
                event.kind == "policy"
                    && event.more["subject"].as_str().is_some_and(|what| what.starts_with("POST "))
            },
        ],
    )
    .await;

    // Each refusal can be explained.
    let explain = |event: &TraceEvent| {
        server.cli(&["--json", "policy", "explain", &locked, &event.number.to_string()]).ok().json()
    };
    let find = |what: &str| {
        all.iter()
            .find(|event| is_refusal(event) && event.more["subject"].as_str().unwrap().starts_with(what))
            .unwrap()
    };
    let of_path = explain(find("GET http://web.test:80/data/y"));
    assert_eq!((&of_path["outcome"], &of_path["in_force"]), (&"refused".into(), &true.into()), "{of_path}");
    assert_eq!(of_path["why"], "no rule allows it (internet: rules)");
    assert_eq!(of_path["change"], "to allow it: --allow web.test:80");
    let of_env = explain(find("/usr/bin/env"));
    assert_eq!((&of_env["outcome"], &of_env["in_force"]), (&"refused".into(), &true.into()), "{of_env}");
    assert_eq!(of_env["change"], "to allow it: --allow-program /usr/bin/env");
    let of_copy = explain(find("/tmp/wc"));
    assert!(of_copy["change"].as_str().unwrap().contains("no rule can allow it"), "{of_copy}");
    let request = all.iter().find(|event| event.kind == "http").unwrap();
    assert!(explain(request)["why"].as_str().unwrap().starts_with("rule 1 (allow GET web.test:80 /data/x)"));
    let nothing = server.cli(&["policy", "explain", &locked, "1"]);
    assert!(
        nothing.code == Some(125) && nothing.stderr.contains("nothing that a policy decides about"),
        "{nothing:?}"
    );
    let none = server.cli(&["policy", "explain", &locked, "1000000"]);
    assert!(none.code == Some(125) && none.stderr.contains("has no event 1000000"), "{none:?}");

    // In CI: from a file, without a server, with an exit code.
    let export = server.cli(&["trace", "export", &locked]).ok().stdout;
    let export = write(dir.path(), "trace.jsonl", &export);
    let fine = server.cli(&["policy", "replay", &file, "--trace-file", &export]);
    assert_eq!(fine.code, Some(0), "{fine:?}");
    let strict = write(
        dir.path(),
        "strict.json",
        r#"{"egress":{"internet":"off"},"execution":{"programs":"image","rules":[{"action":"deny","path":"/usr/bin/wc"}]}}"#,
    );
    let found = server.cli(&["policy", "replay", &strict, "--trace-file", &export]);
    assert_eq!(found.code, Some(1), "{found:?}");
    for what in
        ["exec /usr/bin/wc", "GET http://web.test/data/x", "lookup web.test", "WAS REFUSED, WOULD PASS"]
    {
        assert!(found.stdout.contains(what), "{what}: {}", found.stdout);
    }
    // Of one that is gone.
    server.client.delete_sandbox(&open).await.unwrap();
    let gone = server.cli(&["--json", "policy", "learn", &open]).ok().json();
    assert_eq!(gone["policies"]["egress"]["rules"][0]["domain"], "web.test", "{gone}");
    let unknown = server.cli(&["policy", "learn", "nobody"]);
    assert!(unknown.code == Some(125) && unknown.stderr.contains("nobody"), "{unknown:?}");
    let bad = write(
        dir.path(),
        "bad.json",
        r#"{"programs":"listed","rules":[{"action":"allow","path":"/a"},{"action":"deny","path":"/a"}]}"#,
    );
    let bad = server.cli(&["policy", "replay", &bad, "--trace", &locked]);
    assert!(bad.code == Some(2) && bad.stderr.contains("contradicts"), "{bad:?}");
    server.client.delete_sandbox(&locked).await.unwrap();
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_refuses_what_the_kernel_refuses() {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let work = "ls / > /dev/null; env true; wc -l < /dev/null; cp /usr/bin/ls /tmp/ls; /tmp/ls / > /dev/null; \
        /usr/lib64/ld-linux-x86-64.so.2 /usr/bin/true; cp /usr/bin/true /dev/shm/t; /dev/shm/t; printf '#!/tmp/ls\\n' > /tmp/s; \
        chmod +x /tmp/s; /tmp/s > /dev/null; /usr/bin/sort /dev/null; exit 0";
    for (name, policy) in [
        ("image", r#"{"programs":"image","rules":[{"action":"deny","path":"/usr/bin/wc"}]}"#),
        (
            "listed",
            r#"{"programs":"listed","rules":[{"action":"deny","path":"/usr/bin/sort"},{"action":"allow","path":"/usr/bin/*"}]}"#,
        ),
        ("any", r#"{"programs":"any","rules":[{"action":"deny","path":"/usr/bin/ls"}]}"#),
    ] {
        let file = write(dir.path(), &format!("{name}.json"), policy);
        let id = create(&server, &["--execution", &file, "--execution-mode", "observe"]).await;
        assert_eq!(server.sh(&id, work).await.code, Some(0));
        let all =
            told(&server, &id, &[|event| started(event, "/sort"), |event| event.kind == "exec_ended"]).await;
        let is_observed = |event: &&TraceEvent| event.kind == "policy" && event.more["observed"] == true;
        let kernel: BTreeSet<String> = all
            .iter()
            .filter(is_observed)
            .map(|event| format!("exec {}", event.more["subject"].as_str().unwrap()))
            .collect();
        let found = server.cli(&["--json", "policy", "replay", &file, "--trace", &id]);
        assert_eq!(found.code, Some(1), "{found:?}");
        let refused = found.json();
        let refused: BTreeSet<String> = refused["refused"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["what"].as_str().unwrap().to_owned())
            .collect();
        assert!(!kernel.is_empty(), "{name}");
        assert_eq!(refused, kernel, "{name}");
        server.client.delete_sandbox(&id).await.unwrap();
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn assertions_hold_or_say_which_rule_was_against_them() {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        "policy.json",
        r#"{"egress":{"internet":"rules","rules":[{"action":"allow","domain":"api.example.com","methods":["GET"]}]},"execution":{"programs":"image"}}"#,
    );
    let good = write(
        dir.path(),
        "good.toml",
        "policy = \"policy.json\"\ntests = [\"allow GET https://api.example.com/x\", \"deny exec /tmp/x\"]\n",
    );
    let passed = server.cli(&["policy", "test", &good]).ok();
    assert!(passed.stdout.ends_with("2 tests, 0 failed\n"), "{passed:?}");
    let lines =
        write(dir.path(), "bad.tests", "allow POST https://api.example.com/x\nallow exec /usr/bin/git\n");
    let policy = dir.path().join("policy.json").to_str().unwrap().to_owned();
    let failed = server.cli(&["--json", "policy", "test", &lines, "--policy", &policy]);
    assert_eq!((failed.code, &failed.json()[0]["passed"]), (Some(1), &false.into()), "{failed:?}");
    assert_eq!(failed.json()[0]["why"], "no rule allows it (internet: rules)");
    let nonsense = write(dir.path(), "no.tests", "allow exec /usr/bin/git\npermit x\n");
    let refused = server.cli(&["policy", "test", &nonsense, "--policy", &policy]);
    assert!(refused.code == Some(2) && refused.stderr.contains("line 2"), "{refused:?}");
    let half = write(dir.path(), "half.json", r#"{"programs":"image"}"#);
    let refused = server.cli(&["policy", "test", &good, "--policy", &half]);
    assert!(refused.code == Some(125) && refused.stderr.contains("does not speak of"), "{refused:?}");
    server.finish().await;
}
