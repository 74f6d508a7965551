//! Several forks of an agent, told the same.

use crate::agents::{JSONL, agent, begin, said, turn};
use crate::common::code;
use atoll_api::ForkAgent;
use atoll_blackbox::{Server, host, wait_until};
use atoll_client::ListSnapshots;
use atoll_core::Code;
use atoll_core::agent::Adapter;
use serde_json::Value;

/// An agent that does what it is told as well as its name allows.
const WORKER: &str = r#"
import json, os, sys
for line in sys.stdin:
    told = json.loads(line)
    if told["type"] != "message": continue
    name = os.environ["ATOLL_AGENT"]
    if told["text"] == "fail" and name.endswith("1"):
        print(json.dumps({"type": "error", "code": "refused", "text": "no"}), flush=True)
        continue
    open("/root/made", "w").write(open("/root/base").read() + name)
    print(json.dumps({"type": "done"}), flush=True)
"#;

const FORK: [&str; 5] = ["agent", "fork", "--json", "-n", "3"];

fn paths(outcome: &Value) -> Vec<&str> {
    let changes = outcome["diff"]["changes"].as_array().unwrap();
    changes.iter().map(|change| change["path"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_that_passes_is_kept() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    server.client.create_agent(&agent("bob", &sandbox, WORKER, Adapter::Jsonl)).await.unwrap();
    server.sh(&sandbox, "echo begun > /root/base").await.ok();
    let judge = ["--message", "work", "--judge", "grep -q 'fork-[23]' /root/made", "--keep", "passed", "bob"];
    let told = server.cli(&[FORK.as_slice(), &judge].concat()).ok().json();
    let outcomes = told.as_array().unwrap();
    assert_eq!(outcomes.len(), 3);
    for (outcome, (agent, passed)) in
        outcomes.iter().zip([("bob-fork-1", false), ("bob-fork-2", true), ("bob-fork-3", true)])
    {
        assert!(outcome["agent"] == agent && outcome["passed"] == passed, "{outcome}");
        assert!(outcome["ended"] == "completed" && outcome["failed"] == false, "{outcome}");
        assert_eq!(outcome["judge"], i32::from(!passed));
        assert!(
            paths(outcome).contains(&"/root/made") && !paths(outcome).contains(&"/root/base"),
            "{outcome}"
        );
    }
    let kept: Vec<&Value> = outcomes.iter().map(|outcome| &outcome["kept"]).collect();
    assert_eq!(kept, [false, true, false]);
    // It goes on, and is known for what it is; nothing else is left.
    let names = async || -> Vec<(String, Option<String>)> {
        let agents = server.client.list_agents().await.unwrap().items;
        agents.into_iter().map(|agent| (agent.name, agent.fork_of)).collect()
    };
    assert_eq!(names().await, [("bob".into(), None), ("bob-fork-2".into(), Some("bob".into()))]);
    let fork = server.client.get_agent("bob-fork-2").await.unwrap();
    assert_eq!(server.sh(&fork.sandbox, "cat /root/made").await.ok().stdout, "begun\nbob-fork-2");
    server.sh(&sandbox, "test ! -e /root/made").await.ok();
    let label = server.client.get_sandbox(&fork.sandbox).await.unwrap().labels["atoll-agent-fork-of"].clone();
    assert_eq!(label, "bob");
    assert_eq!(server.client.list_snapshots(&ListSnapshots::default()).await.unwrap().items, []);
    // The names are taken now: one cannot be made, and is told; of the others all stay when none passes.
    let fails = ["--message", "fail", "--judge", "false", "--keep", "passed", "bob"];
    let none = server.cli(&[FORK.as_slice(), &fails].concat());
    assert_eq!(none.code, Some(1), "{none:?}");
    let outcomes = none.json();
    let ended: Vec<(&str, &str)> = outcomes
        .as_array()
        .unwrap()
        .iter()
        .map(|outcome| (outcome["agent"].as_str().unwrap(), outcome["ended"].as_str().unwrap()))
        .collect();
    assert_eq!(ended, [("bob-fork-1", "refused"), ("bob-fork-3", "completed")]);
    assert_eq!(names().await.len(), 4);
    server.cli(&["agent", "rm", "bob-fork-1", "bob-fork-2", "bob-fork-3"]).ok();
    assert_eq!(code(server.client.get_sandbox(&fork.sandbox).await), Code::SandboxNotFound, "it was its own");
    let wrong = server.cli(&["agent", "fork", "--message", "x", "--keep", "passed", "bob"]);
    assert!(wrong.code != Some(0) && names().await.len() == 1, "{wrong:?}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forks_of_agents_over_the_api() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    server.client.create_agent(&agent("bob", &sandbox, JSONL, Adapter::Jsonl)).await.unwrap();
    let session = begin(&server, "bob").await;
    assert_eq!(said(&turn(&server, "bob", &session, "a").await), "1: a");
    let fork = ForkAgent { count: 2, at: None, memory: false, name: Some("try".into()) };
    let made = server.client.fork_agent("bob", &fork).await.unwrap().results;
    for (result, name) in made.into_iter().zip(["try-1", "try-2"]) {
        let agent = result.agent.unwrap();
        assert!(agent.name == name && agent.own_sandbox && agent.sandbox != sandbox, "{agent:?}");
        assert_eq!(agent.fork_of.as_deref(), Some("bob"));
        assert_eq!(server.client.list_agent_sessions(name).await.unwrap().items, [], "sessions stay");
        assert_eq!(host::processes(&agent.sandbox).len(), 1, "and so do processes");
        let session = begin(&server, name).await;
        assert_eq!(said(&turn(&server, name, &session, "b").await), "1: b");
    }
    assert_eq!(said(&turn(&server, "bob", &session, "b").await), "2: b", "it went on");
    for wrong in [
        ForkAgent { count: 0, ..fork.clone() },
        ForkAgent { count: 257, ..fork.clone() },
        ForkAgent { name: Some("No".into()), ..fork.clone() },
    ] {
        assert_eq!(code(server.client.fork_agent("bob", &wrong).await), Code::InvalidArgument, "{wrong:?}");
    }
    let memory = ForkAgent { memory: true, ..fork };
    assert!(server.client.fork_agent("bob", &memory).await.is_err(), "containers have none to take along");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_breaks_off_leaves_what_can_be_found() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    server.client.create_agent(&agent("bob", &sandbox, JSONL, Adapter::Jsonl)).await.unwrap();
    // The agent never is done with this.
    let mut command = server.cli_command();
    let mut cut = command.args(["agent", "fork", "-n", "2", "--message", "wait", "bob"]).spawn().unwrap();
    for fork in ["bob-fork-1", "bob-fork-2"] {
        works(&server, fork).await;
    }
    cut.kill().unwrap();
    cut.wait().unwrap();
    let listed = server.cli(&["agent", "ls"]).ok().stdout;
    let forks = listed.lines().filter(|line| line.contains("-fork-") && line.contains(" bob "));
    assert_eq!(forks.count(), 2, "{listed}");
    let left = server.client.list_snapshots(&ListSnapshots::default()).await.unwrap().items;
    assert!(left.len() == 1 && left[0].comment.as_ref().unwrap().contains("bob"), "{left:?}");
    server.client.delete_snapshot(&left[0].id).await.unwrap();
    server.cli(&["agent", "rm", "bob-fork-1", "bob-fork-2"]).ok();
    server.finish().await;
}

/// Waits until an agent works in the session that a fork is told in.
async fn works(server: &Server, agent: &str) {
    wait_until("the fork to work", async || {
        let session = server.client.get_agent_session(agent, "main").await.ok()?;
        session.message.map(drop)
    })
    .await;
}
