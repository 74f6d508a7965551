//! Agents whose sessions begin in a profile.

use atoll_api::{CreateAgent, CreateExec, CreateSandbox};
use atoll_blackbox::Server;
use atoll_core::Code;
use atoll_core::agent::Adapter;
use serde_json::json;

use crate::agents::{agent, begin, said, turn};
use crate::common::code;
use crate::told::events;

/// Says what a shell that it starts sees of what its profile hides from tools, and what it sees itself.
const AGENT: &str = r#"
import json, subprocess, sys
for line in sys.stdin:
    tool = subprocess.run(["/bin/sh", "-c", "cat /opt/kept/file"], capture_output=True, text=True)
    print(json.dumps({"type": "text", "text": open("/opt/kept/file").read() + "/" + tool.stdout}), flush=True)
    print(json.dumps({"type": "done"}), flush=True)
"#;

#[tokio::test(flavor = "multi_thread")]
async fn an_agents_process_has_more_than_the_shell_that_it_starts() {
    let server = Server::start();
    let profiles = json!({"default": "tool", "named": {
        "agent": {"on_exec": {"*": "tool"}}, "tool": {"hide": ["/opt/kept"]}}});
    let create: CreateSandbox = serde_json::from_value(json!({"profiles": profiles})).unwrap();
    let sandbox = server.client.create_sandbox(&create).await.unwrap().id;
    let upload = CreateExec {
        argv: Some(
            [
                "/usr/bin/python3",
                "-c",
                "import os; os.makedirs('/opt/kept'); open('/opt/kept/file', 'w').write('kept')",
            ]
            .map(str::to_owned)
            .to_vec(),
        ),
        profile: Some("agent".to_owned()),
        ..CreateExec::default()
    };
    server.output(&sandbox, upload).await;

    let of = |name: &str, profile: Option<&str>| CreateAgent {
        profile: profile.map(str::to_owned),
        argv: Some(["/usr/bin/python3", "-c", AGENT].map(str::to_owned).to_vec()),
        ..agent(name, &sandbox, AGENT, Adapter::Jsonl)
    };
    assert_eq!(code(server.client.create_agent(&of("x", Some("agnt"))).await), Code::InvalidArgument);
    let made = server.client.create_agent(&of("eve", Some("agent"))).await.unwrap();
    assert_eq!(made.profile.as_deref(), Some("agent"));
    let session = begin(&server, "eve").await;
    assert_eq!(said(&turn(&server, "eve", &session, "go").await), "kept/");
    let started = events(&server, &sandbox, "process_started");
    let of_program = |name: &str| {
        let found = started.iter().rfind(|event| event["path"].as_str().unwrap_or_default().ends_with(name));
        found.unwrap()["profile"].clone()
    };
    assert_eq!(of_program("/cat"), "tool");
    assert!(started.iter().any(|event| event["profile"] == "agent" && event["argv"][2] == AGENT));
    server.client.delete_sandbox(&sandbox).await.unwrap();
    server.finish().await;
}
