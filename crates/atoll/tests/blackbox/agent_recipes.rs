//! An agent made with its sandbox: both are there, or neither is, whether the client or the server dies in the middle.

use std::path::Path;
use std::time::SystemTime;

use crate::common::code;
use atoll_api::{CreateAgent, CreateTemplate, Sandbox, UpdateSandbox};
use atoll_blackbox::{Server, wait_until};
use atoll_client::ListSandboxes;
use atoll_core::Code;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The longest that half of an agent is left by a client that was killed, and by a server.
const CLIENT_MS: u64 = 60_000;
const SERVER_MS: u64 = 15 * 60_000;

fn template(name: &str, more: serde_json::Value) -> CreateTemplate {
    let mut recipe = json!({"name": name, "image": "host"});
    recipe.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(recipe).unwrap()
}

fn agent(name: &str, template: &str) -> CreateAgent {
    CreateAgent {
        name: name.to_owned(),
        template: Some(template.to_owned()),
        argv: Some(vec!["true".to_owned()]),
        ..CreateAgent::default()
    }
}

async fn sandboxes(server: &Server) -> Vec<Sandbox> {
    server.client.list_sandboxes(&ListSandboxes::default()).await.unwrap().items
}

async fn agents(server: &Server) -> Vec<String> {
    server.client.list_agents().await.unwrap().items.into_iter().map(|agent| agent.name).collect()
}

/// Every sandbox that is left has an end, which is near; at that end its agent goes with it.
async fn goes(server: &Server, at_most_ms: u64) {
    for sandbox in sandboxes(server).await {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
        let left = u128::from(sandbox.expires_at_ms.unwrap()).saturating_sub(now);
        assert!(left <= at_most_ms.into(), "{sandbox:?}");
        let soon = UpdateSandbox { ttl_ms: Some(Some(1)), ..UpdateSandbox::default() };
        // It may have gone just now.
        drop(server.client.update_sandbox(&sandbox.id, &soon).await);
    }
    wait_until("nothing to be left", async || {
        (sandboxes(server).await.is_empty() && agents(server).await.is_empty()).then_some(())
    })
    .await;
}

/// Between a client and the server. At the request that begins like this it tells, and passes on nothing more: neither that
/// request, unless `passes`, nor any answer.
async fn between(server: &Server, begins: &'static str, passes: bool) -> (String, watch::Receiver<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let to = server.client.url().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let (tell, told) = watch::channel(false);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(&to).await.unwrap();
            tokio::spawn(carry(client, server, begins, passes, tell.clone()));
        }
    });
    (url, told)
}

async fn carry(client: TcpStream, server: TcpStream, begins: &str, passes: bool, tell: watch::Sender<bool>) {
    let ((mut asks, mut hears), (mut answers, mut takes)) = (client.into_split(), server.into_split());
    let (mut up, mut down) = (vec![0; 65536], vec![0; 65536]);
    let mut reached = false;
    loop {
        tokio::select! {
            read = asks.read(&mut up) => {
                let Ok(count @ 1..) = read else { return };
                let is_it = String::from_utf8_lossy(&up[..count]).lines().any(|line| line.starts_with(begins));
                reached |= is_it;
                if reached && !passes {
                    tell.send_replace(true);
                    std::future::pending::<()>().await;
                }
                takes.write_all(&up[..count]).await.unwrap();
            }
            read = answers.read(&mut down) => {
                let Ok(count @ 1..) = read else { return };
                if reached {
                    tell.send_replace(true);
                    std::future::pending::<()>().await;
                }
                if hears.write_all(&down[..count]).await.is_err() { return }
            }
        }
    }
}

/// A recipe called `mine`, whose template is there, and a project.
fn folders(dir: &Path) -> (String, String) {
    let (recipe, project) = (dir.join("mine"), dir.join("project"));
    std::fs::create_dir_all(&recipe).unwrap();
    std::fs::create_dir_all(&project).unwrap();
    std::fs::write(recipe.join("Dockerfile"), "FROM host\n").unwrap();
    std::fs::write(recipe.join("agent.json"), r#"{"argv": ["true"]}"#).unwrap();
    std::fs::write(project.join("large"), vec![7; 8 << 20]).unwrap();
    (recipe.display().to_string(), project.display().to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_killed_leaves_nothing_for_long() {
    let server = Server::start();
    server.client.create_template(&template("mine", json!({}))).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (recipe, project) = folders(dir.path());
    let up = |name: &str, url: &str| {
        let mut command = server.cli_command();
        command.args(["agent", "up", &recipe, "--workdir", &project, "--name", name]).env("ATOLL_URL", url);
        command
    };
    let stages = [
        ("POST /v1/agents ", false),
        ("POST /v1/agents ", true),
        ("POST /v1/sandboxes/", true),
        ("PUT /v1/sandboxes/", false),
        ("PUT /v1/sandboxes/", true),
        ("PATCH /v1/sandboxes/", false),
    ];
    for (number, (begins, passes)) in stages.into_iter().enumerate() {
        let (url, mut reached) = between(&server, begins, passes).await;
        let mut client = up(&format!("stage-{number}"), &url).spawn().unwrap();
        reached.wait_for(|reached| *reached).await.unwrap();
        client.kill().unwrap();
        assert!(!client.wait().unwrap().success(), "{begins}");
    }
    // Those that got as far as that are known meanwhile, by both lists.
    wait_until("what was asked for last", async || {
        (sandboxes(&server).await.len() == 5 && agents(&server).await.len() == 5).then_some(())
    })
    .await;
    goes(&server, CLIENT_MS).await;

    // A client that is asked to end takes the agent back.
    let (url, mut reached) = between(&server, "PUT /v1/sandboxes/", false).await;
    let mut client = up("asked", &url).spawn().unwrap();
    reached.wait_for(|reached| *reached).await.unwrap();
    let pid = i32::try_from(client.id()).unwrap();
    assert_eq!(agents(&server).await, ["asked"]);
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), rustix::process::Signal::INT)
        .unwrap();
    assert_eq!(client.wait().unwrap().code(), Some(130));
    assert!(sandboxes(&server).await.is_empty() && agents(&server).await.is_empty());

    // A complete agent stays.
    let output = up("done", server.client.url()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(sandboxes(&server).await[0].expires_at_ms, None);
    assert_eq!(server.sh("done", "stat -c %s /work/project/large").await.stdout, "8388608\n");
    server.client.delete_agent("done").await.unwrap();
    assert!(sandboxes(&server).await.is_empty(), "its sandbox is its own");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_leaves_both_or_neither() {
    let mut server = Server::start();
    server.client.create_template(&template("app", json!({"ttl_ms": 3_600_000}))).await.unwrap();
    for point in ["engine.agent.housed", "engine.agent.recorded"] {
        server.kill();
        server.restart_with(&format!("{point}=kill"));
        server.client.create_agent(&agent("bob", "app")).await.unwrap_err();
        assert!(!server.wait_end().success());
        server.restart();
        assert_eq!(sandboxes(&server).await.len(), 1, "{point}");
        goes(&server, SERVER_MS).await;
    }
    // An agent that was acknowledged lives as its template says, and its forks as long.
    server.client.create_agent(&agent("bob", "app")).await.unwrap();
    let fork = atoll_api::ForkAgent { count: 1, at: None, memory: false, name: None };
    server.client.fork_agent("bob", &fork).await.unwrap();
    let all = sandboxes(&server).await;
    assert_eq!(all.len(), 2);
    let lives = |sandbox: &Sandbox| sandbox.expires_at_ms.unwrap() - sandbox.created_at_ms;
    assert!(all.iter().all(|sandbox| lives(sandbox) > SERVER_MS), "{all:?}");
    assert_eq!(code(server.client.create_agent(&agent("bob", "app")).await), Code::NameTaken);
    assert_eq!(sandboxes(&server).await.len(), 2, "that was seen before a sandbox was made");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_keeps_nobody_from_finishing() {
    let server = Server::start();
    let slow =
        json!({"start": "sleep 1; touch /tmp/up; exec sleep 1000", "ready": {"command": "test -e /tmp/up"}});
    server.client.create_template(&template("slow", slow)).await.unwrap();
    let create = CreateAgent { ttl_ms: Some(3_600_000), ..agent("bob", "slow") };
    let client = server.client.clone();
    let asking = tokio::spawn(async move { client.create_agent(&create).await });
    wait_until("its sandbox", async || (!sandboxes(&server).await.is_empty()).then_some(())).await;
    asking.abort();
    wait_until("the agent", async || (agents(&server).await == ["bob"]).then_some(())).await;
    wait_until("its end", async || {
        let sandbox = sandboxes(&server).await.remove(0);
        (sandbox.expires_at_ms.unwrap() - sandbox.created_at_ms > SERVER_MS).then_some(())
    })
    .await;
    // These are about a sandbox that is made.
    let sandbox = server.sandbox().await.id;
    let wrong =
        CreateAgent { template: None, sandbox: Some(sandbox), ttl_ms: Some(1000), ..agent("eve", "x") };
    assert_eq!(code(server.client.create_agent(&wrong).await), Code::InvalidArgument);
    server.finish().await;
}
