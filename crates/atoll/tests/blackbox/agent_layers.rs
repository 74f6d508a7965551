//! The programs of agents: layers that are replaced while sandboxes live.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::code;
use atoll_api::{
    Agent, CreateAgentSession, CreateSandbox, CreateSnapshot, ForkSandbox, PauseSandbox, SendAgentMessage,
    UpdateAgent, UpdateSandbox,
};
use atoll_blackbox::{Server, host, wait_until};
use atoll_core::Code;
use atoll_core::agent::EventKind;
use atoll_core::exec::ExecState;
use atoll_core::sandbox::PauseMode;
use tempfile::TempDir;

/// An agent that says which version it is of.
const AGENT: &str = r#"
import json, os, sys, time
version = open("/opt/agents/bot/version").read().strip()
for line in sys.stdin:
    told = json.loads(line)
    while told["text"] == "wait" and not os.path.exists("/tmp/go"): time.sleep(0.05)
    print(json.dumps({"type": "text", "text": version + ": " + told["text"]}), flush=True)
    print(json.dumps({"type": "done"}), flush=True)
"#;

/// A version of the program, as a directory.
fn program(version: &str) -> TempDir {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("agent.py"), AGENT).unwrap();
    fs::write(dir.path().join("version"), format!("{version}\n")).unwrap();
    dir
}

fn build(server: &Server, path: &Path) -> String {
    let built = server.cli(&["agent", "build", "bot", path.to_str().unwrap()]).ok();
    built.stdout.trim().to_owned()
}

/// Declares the agent.
fn up(server: &Server, name: &str, sandbox: &str, layer: &str) {
    let command = ["--", "python3", "-u", "/opt/agents/bot/agent.py"];
    let args = ["agent", "up", "--sandbox", sandbox, "--layer", layer, name];
    server.cli(&[args.as_slice(), &command].concat()).ok();
}

async fn send(server: &Server, agent: &str, text: &str) -> u64 {
    let create = CreateAgentSession { thread: Some("main".into()) };
    server.client.create_agent_session(agent, &create).await.unwrap();
    let message = SendAgentMessage { text: text.to_owned(), key: None };
    server.client.send_agent_message(agent, "main", &message).await.unwrap().number
}

/// What the agent says to a message that was sent.
async fn answer(server: &Server, agent: &str, message: u64) -> String {
    let (mut after, mut said) = (message, String::new());
    loop {
        let page = server.client.agent_events(agent, "main", after, 30_000).await.unwrap();
        for event in page.items {
            match event.kind {
                EventKind::Text => said.push_str(event.data["text"].as_str().unwrap()),
                EventKind::Error => panic!("{:?}", event.data),
                EventKind::Done if event.data["message"] == message => return said,
                // Of the message before it.
                EventKind::Done => said.clear(),
                _ => {}
            }
        }
        after = page.next_after;
    }
}

async fn ask(server: &Server, agent: &str, text: &str) -> String {
    let message = send(server, agent, text).await;
    answer(server, agent, message).await
}

async fn update(server: &Server, agent: &str, version: Option<&str>) -> Agent {
    let update = UpdateAgent { version: version.map(str::to_owned) };
    server.client.update_agent(agent, &update).await.unwrap()
}

async fn there(server: &Server, sandbox: &str, path: &str) {
    let look = format!("test -e {path}");
    wait_until(path, async || (server.sh(sandbox, &look).await.code == Some(0)).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_is_replaced_while_everything_else_goes_on() {
    let server = Server::start();
    let (one, two) = (program("one"), program("two"));
    assert_eq!((build(&server, one.path()), build(&server, two.path())), ("1".into(), "2".into()));
    let sandbox = server.sandbox().await.id;
    up(&server, "bob", &sandbox, "bot:1");
    assert_eq!(ask(&server, "bob", "hello").await, "one: hello");

    // A shell that has a file open, works in the agent's directory, and is no process of the agent.
    let held = "cd /opt/agents/bot; exec 3<version; echo x > /tmp/held; while [ ! -e /tmp/look ]; do sleep 0.05; done; \
                cat version; cat <&3; cat /opt/agents/bot/version";
    let shell = server.shell(&sandbox, held).await;
    there(&server, &sandbox, "/tmp/held").await;
    // Not those that the shell starts and that end by themselves.
    let is_agent = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("/opt/agents/bot/agent.py")
    };
    let agents: Vec<i32> = host::processes(&sandbox).into_iter().filter(is_agent).collect();
    assert_eq!(agents.len(), 1);
    assert_eq!(update(&server, "bob", None).await.version.as_deref(), Some("2"));
    // The agent had nothing to do: its process makes way.
    wait_until("the old process to go", async || {
        let now = host::processes(&sandbox);
        (!now.contains(&agents[0])).then_some(())
    })
    .await;
    assert_eq!(server.sh(&sandbox, "touch /tmp/look").await.code, Some(0));
    wait_until("the shell to end", async || {
        let exec = server.client.get_exec(&sandbox, &shell, 1000).await.unwrap();
        (exec.state == ExecState::Exited).then_some(())
    })
    .await;
    let output = server.cli(&["logs", &sandbox, &shell]).ok().stdout;
    assert_eq!(output, "one\none\ntwo\n", "what is open stays open, what is opened is the new one");
    assert_eq!(ask(&server, "bob", "again").await, "two: again", "in the same session");

    // An agent that works on a message ends that first.
    let message = send(&server, "bob", "wait").await;
    wait_until("the agent to work", async || {
        let session = server.client.get_agent_session("bob", "main").await.unwrap();
        session.message.filter(|turn| *turn == message).map(drop)
    })
    .await;
    assert_eq!(update(&server, "bob", Some("1")).await.version.as_deref(), Some("1"), "back");
    let next = send(&server, "bob", "and then").await;
    server.sh(&sandbox, "touch /tmp/go").await;
    assert_eq!(answer(&server, "bob", message).await, "two: wait");
    assert_eq!(answer(&server, "bob", next).await, "one: and then");

    let missing = server.client.update_agent("bob", &UpdateAgent { version: Some("9".into()) }).await;
    assert_eq!(code(missing), Code::ImageNotFound);
    assert_eq!(ask(&server, "bob", "still").await, "one: still");
    // Versions do not change, and stay while an agent has them.
    let again = server.cli(&["agent", "build", "bot", "--as", "1", two.path().to_str().unwrap()]);
    assert_eq!(again.code, Some(125), "{}", again.stderr);
    assert_eq!(code(server.client.remove_image("agents.local/bot:1").await), Code::ImageInUse);
    let listed = server.cli(&["agent", "versions", "bot"]).ok().stdout;
    assert!(listed.lines().count() == 3 && listed.contains("latest"), "{listed}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_goes_along_with_its_sandbox() {
    let mut server = Server::start();
    build(&server, program("one").path());
    let sandbox = server.sandbox().await.id;
    up(&server, "bob", &sandbox, "bot");
    assert_eq!(ask(&server, "bob", "a").await, "one: a");
    let version = async |server: &Server, sandbox: &str| {
        server.sh(sandbox, "cat /opt/agents/bot/version").await.ok().stdout
    };
    // Children, also of later versions, have the version that the sandbox had then.
    let snapshot = server.client.create_snapshot(&sandbox, &CreateSnapshot::default()).await.unwrap().id;
    let fork =
        server.client.fork_sandbox(&sandbox, &ForkSandbox { count: 1, ..ForkSandbox::default() }).await;
    let fork = fork.unwrap().results.remove(0).sandbox.unwrap().id;
    build(&server, program("two").path());
    // While it is on disk, too.
    server.client.pause_sandbox(&sandbox, &PauseSandbox { mode: Some(PauseMode::Filesystem) }).await.unwrap();
    update(&server, "bob", None).await;
    server.kill();
    server.restart();
    assert_eq!(ask(&server, "bob", "b").await, "two: b");
    assert_eq!(version(&server, &fork).await, "one\n");
    let made = CreateSandbox { snapshot: Some(snapshot), ..CreateSandbox::default() };
    let made = server.client.create_sandbox(&made).await.unwrap();
    assert_eq!(version(&server, &made.id).await, "one\n");
    assert_eq!(made.layers["bot"].image, "agents.local/bot:1");
    // One that stands still in memory, and everything of a program at once.
    up(&server, "eve", &fork, "bot");
    server.client.pause_sandbox(&fork, &PauseSandbox { mode: Some(PauseMode::Frozen) }).await.unwrap();
    let updated = server.cli(&["agent", "update", "--all", "bot", "--to", "2"]).ok().stdout;
    assert!(updated.contains("bob") && updated.contains("eve"), "{updated}");
    assert_eq!(version(&server, &fork).await, "two\n");
    // A layer is taken away again; files of the sandbox are there as before.
    let none = UpdateSandbox { layers: [("bot".to_owned(), None)].into(), ..UpdateSandbox::default() };
    server.client.update_sandbox(&made.id, &none).await.unwrap();
    assert_eq!(server.sh(&made.id, "ls -A /opt/agents/bot").await.ok().stdout, "");
    server.finish().await;
}

/// A tar with one member that no layer should give to a sandbox.
fn hostile() -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("bot.tar");
    let mut tar = tar::Builder::new(fs::File::create(&path).unwrap());
    let mut add = |name: &str, kind: tar::EntryType, mode: u32, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(content.len() as u64);
        header.set_uid(0);
        header.set_gid(0);
        if kind == tar::EntryType::Symlink {
            header.set_link_name("../../../../../../etc/hostname").unwrap();
        }
        if kind == tar::EntryType::Char {
            header.set_device_major(1).unwrap();
            header.set_device_minor(1).unwrap();
        }
        header.set_cksum();
        tar.append_data(&mut header, name, content).unwrap();
    };
    add("version", tar::EntryType::Regular, 0o644, b"evil\n");
    add("id", tar::EntryType::Regular, 0o4755, &fs::read("/usr/bin/id").unwrap());
    add("mem", tar::EntryType::Char, 0o666, b"");
    add("out", tar::EntryType::Symlink, 0o777, b"");
    tar.finish().unwrap();
    (dir, path)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_gives_no_rights_and_takes_nothing_from_its_host() {
    let server = Server::start();
    let (_dir, tar) = hostile();
    build(&server, &tar);
    build(&server, program("two").path());
    let create = CreateSandbox {
        layers: [("bot".to_owned(), "agents.local/bot:1".to_owned())].into(),
        ..CreateSandbox::default()
    };
    let sandbox = server.client.create_sandbox(&create).await.unwrap().id;
    let sh = async |line: &str| server.sh(&sandbox, line).await;
    let change = |image: &str| UpdateSandbox {
        layers: [("bot".to_owned(), Some(image.to_owned()))].into(),
        ..UpdateSandbox::default()
    };
    // Not written to, not taken away, not covered; what it has of rights and devices counts for nothing.
    for refused in [
        "touch /opt/agents/bot/x",
        "rm /opt/agents/bot/version",
        "umount /opt/agents/bot",
        "mount -t tmpfs x /opt/agents/bot",
        "mount -o remount,rw /opt/agents/bot",
        "rmdir /opt/agents/bot",
        "mv /opt/agents/bot /opt/agents/other",
        "test -e /opt/agents/bot/mem",
    ] {
        assert_ne!(sh(refused).await.code, Some(0), "{refused}");
    }
    let own = sh("cat /opt/agents/bot/out; cat /etc/hostname").await.ok().stdout;
    let lines: Vec<&str> = own.lines().collect();
    assert_eq!(lines[0], lines[1], "a link leads nowhere but within the sandbox");
    let as_user = "setpriv --reuid 1000 --clear-groups /opt/agents/bot/id -u";
    assert_eq!(sh(as_user).await.ok().stdout, "1000\n");
    assert!(sh("stat -c %u:%g /opt/agents/bot/version").await.ok().stdout.starts_with("0:0"));

    // An obstacle in the sandbox is told, and nothing is changed.
    sh("mv /opt/agents /opt/away && ln -s /etc /opt/agents").await.ok();
    let refused = server.client.update_sandbox(&sandbox, &change("agents.local/bot:2")).await;
    assert_eq!(code(refused), Code::InvalidArgument);
    assert_eq!(server.client.get_sandbox(&sandbox).await.unwrap().layers["bot"].image, "agents.local/bot:1");
    sh("rm /opt/agents && mv /opt/away /opt/agents && test ! -e /etc/bot").await.ok();
    server.client.update_sandbox(&sandbox, &change("agents.local/bot:2")).await.unwrap();
    assert_eq!(sh("cat /opt/agents/bot/version").await.ok().stdout, "two\n");

    for (name, image, wanted) in [
        ("..", "agents.local/bot:1", Code::InvalidArgument),
        ("a/b", "agents.local/bot:1", Code::InvalidArgument),
        ("bot", "agents.local/nothing:1", Code::ImageNotFound),
        ("bot", "host", Code::InvalidArgument),
    ] {
        let layers = [(name.to_owned(), image.to_owned())].into();
        let create = CreateSandbox { layers, ..CreateSandbox::default() };
        assert_eq!(code(server.client.create_sandbox(&create).await), wanted, "{name} {image}");
    }
    server.finish().await;
}
