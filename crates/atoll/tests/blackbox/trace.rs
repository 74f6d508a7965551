//! The flight recorder: what is in a journal, which keys read it, what survives, and which traces a tamperer leaves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::{code, shell};
use atoll_api::{CreateKey, CreateSandbox, ForkSandbox, KeyFormat, Scope, TraceEvent, UpdateSandbox};
use atoll_blackbox::{Server, wait_until};
use atoll_client::{Client, GetEvents};
use atoll_core::Code;
use atoll_core::policy::EgressPolicy;
use atoll_core::sandbox::SandboxState;
use atoll_core::trace::TraceMode;
use atoll_testing::run;
use futures::StreamExt as _;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

async fn events_as(client: &Client, sandbox: &str) -> Vec<TraceEvent> {
    let mut query = GetEvents::default();
    let mut all = Vec::new();
    loop {
        let page = client.events(sandbox, &query).await.unwrap();
        if page.items.is_empty() {
            return all;
        }
        query.from = page.next;
        all.extend(page.items);
    }
}

async fn events(server: &Server, sandbox: &str) -> Vec<TraceEvent> {
    events_as(&server.client, sandbox).await
}

fn of<'a>(events: &'a [TraceEvent], kind: &str) -> Vec<&'a TraceEvent> {
    events.iter().filter(|event| event.kind == kind).collect()
}

async fn key(server: &Server, scope: Scope) -> (String, Client) {
    let create =
        CreateKey { name: "other".into(), scope, ttl_ms: None, format: KeyFormat::Atoll, project: None };
    let made = server.client.create_key(&create).await.unwrap();
    (made.key.id, Client::new(&server.url, &made.secret).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_is_told_of_with_the_sandbox_that_came_of_it() {
    let server = Server::start();
    let id = server.sandbox().await.id;
    let fork = ForkSandbox { count: 1, ..ForkSandbox::default() };
    let forked = server.client.fork_sandbox(&id, &fork).await.unwrap();
    let child = &forked.results[0].sandbox.as_ref().unwrap().id;
    let all = events(&server, &id).await;
    let [event] = of(&all, "forked")[..] else { panic!("{all:?}") };
    assert_eq!((event.sandbox.as_str(), event.more["child"].as_str()), (id.as_str(), Some(child.as_str())));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hosts_kernel_tells_of_processes_and_connections_across_a_crash() {
    let mut server = Server::start();
    let id = server.sandbox().await.id;
    let script = "/bin/true first; bash -c ': 3<>/dev/tcp/127.0.0.1/9' 2>/dev/null; exit 0";
    assert_eq!(server.sh(&id, script).await.code, Some(0));
    server.kill();
    server.restart();
    server.sh(&id, "/bin/true second").await;
    let told = async || {
        let all = events(&server, &id).await;
        let second = of(&all, "process_started").iter().any(|event| argument(event) == "second");
        second.then_some(all)
    };
    let all = wait_until("the kernel told of the last program", told).await;
    let host: Vec<_> = all.iter().filter(|event| event.witness == "host").collect();
    for word in ["first", "second"] {
        let found: Vec<_> = host.iter().filter(|event| argument(event) == word).collect();
        assert_eq!(found.len(), 1, "{word}: {host:?}");
        assert_eq!(found[0].more["file"]["origin"], "image");
        assert!(found[0].more["exec"].is_string());
    }
    let connects = of(&all, "connect");
    assert!(connects.iter().any(|event| event.more["peer"] == "127.0.0.1:9"), "{connects:?}");
    let tree = server.cli(&["trace", "tree", &id]).ok().stdout;
    assert!(tree.contains("/bin/true first") && tree.contains("127.0.0.1:9"), "{tree}");
    server.client.delete_sandbox(&id).await.unwrap();
    let installation = fs::read_to_string(server.data().join("installation")).unwrap();
    let mount = format!("/run/atoll/witness-{}", installation.trim());
    let mounted = || fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&mount);
    assert!(mounted(), "programs and rings are kept where the next server finds them");
    server.finish().await;
    assert!(!mounted(), "the bpf file system is left");
}

/// The first argument of a program that was started.
fn argument(event: &TraceEvent) -> &str {
    event.more.get("argv").and_then(|argv| argv[1].as_str()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_sandbox_did_is_there_when_it_is_gone_and_verifies_without_the_server() {
    let server = Server::start();
    let id = server.sandbox().await.id;
    let mut create =
        shell("echo hi; nslookup refused.example >/dev/null 2>&1; getent hosts refused.example; exit 3");
    create.env.insert("DATABASE_URL".into(), "postgres://me:hunter2@db/x".into());
    server.run(&id, create).await;
    server.sh(&id, "echo 'Authorization: Bearer hunter2'").await;
    let open = EgressPolicy::open();
    let update = UpdateSandbox { egress: Some(open), ..UpdateSandbox::default() };
    server.client.update_sandbox(&id, &update).await.unwrap();
    server.client.pause_sandbox(&id, &atoll_api::PauseSandbox::default()).await.unwrap();
    server.client.resume_sandbox(&id).await.unwrap();
    server.client.delete_sandbox(&id).await.unwrap();

    let all = events(&server, &id).await;
    let numbers: Vec<u64> = all.iter().map(|event| event.number).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "nothing is missing");
    assert_eq!((all[0].kind.as_str(), all[1].kind.as_str()), ("recorder", "created"));
    let started = of(&all, "exec_started");
    assert_eq!(started.len(), 2, "{all:?}");
    assert!(started[0].more["env"].as_array().unwrap().contains(&"DATABASE_URL".into()));
    assert!(started[0].more["by"].is_string());
    assert_eq!(of(&all, "exec_ended")[0].more["code"], 3);
    assert!(
        of(&all, "policy").iter().any(|event| event.more["allowed"] == false
            && event.more["subject"] == "refused.example"
            && event.witness == "gateway"),
        "{all:?}"
    );
    assert!(of(&all, "dns").iter().any(|event| event.more["answer"] == "NXDOMAIN"));
    let calls = of(&all, "call");
    assert!(calls.iter().any(|call| call.more["method"] == "PATCH" && call.more["status"] == 200));
    assert!(calls.iter().all(|call| call.more["key"].is_string() && call.more["protocol"] == "atoll"));
    assert!(of(&all, "limits").iter().any(|event| event.more["changed"][0] == "egress"));
    let states: Vec<_> = of(&all, "state").iter().map(|event| event.more["state"].clone()).collect();
    for state in ["running", "paused", "deleting"] {
        assert!(states.contains(&state.into()), "{states:?}");
    }
    let text = serde_json::to_string(&all).unwrap();
    assert!(!text.contains("hunter2"), "{text}");

    let report = server.client.verify_events(&id).await.unwrap();
    assert!(report.findings.is_empty() && report.ended && report.gaps.is_empty(), "{report:?}");
    assert_eq!((report.last, report.signed), (numbers.len() as u64, numbers.len() as u64));
    // With the files, the key and a head that was kept, and nothing else.
    let dir = server.data().join("trace");
    let head = report.head.unwrap();
    let offline = ["trace", "verify", &id, "--dir", dir.to_str().unwrap(), "--key", &report.key];
    server.cli(&[&offline[..], &["--head", &head]].concat()).ok();
    let other_head = format!("7:{}", "0".repeat(64));
    let wrong = server.cli(&[&offline[..], &["--head", &other_head]].concat());
    assert!(wrong.code == Some(125) && wrong.stdout.contains("is not in it"), "{wrong:?}");
    let other_key = "atoll-trace-ed25519:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let wrong = server.cli(&[&offline[..6], &[other_key]].concat());
    assert!(wrong.code == Some(125) && wrong.stdout.contains("another key"), "{wrong:?}");

    // The command line.
    let lines = server.cli(&["trace", &id]).ok().stdout;
    assert!(lines.contains("exec_started") && lines.contains("REFUSED"), "{lines}");
    let some = server.cli(&["trace", &id, "--kind", "exec_ended", "--json"]).ok().stdout;
    assert_eq!(some.lines().count(), 2);
    let summary = server.cli(&["trace", "summary", &id]).ok().stdout;
    assert!(summary.contains("refused.example"), "{summary}");
    let tree = server.cli(&["trace", "tree", &id]).ok().stdout;
    assert!(tree.contains("exit 3"), "{tree}");
    let ocsf = server.cli(&["trace", "export", "--ocsf", &id]).ok().stdout;
    assert_eq!(ocsf.lines().count(), all.len());
    assert!(server.cli(&["trace", &id, "--kind", "nonsense"]).code != Some(0));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_reads_the_journal_of_others_also_when_they_are_gone() {
    let server = Server::with(&["--visibility", "private"]);
    let (_, theirs) = key(&server, Scope::Manage).await;
    let (_, stranger) = key(&server, Scope::Manage).await;
    let id = theirs.create_sandbox(&CreateSandbox::default()).await.unwrap().id;
    let query = GetEvents::default();
    for gone in [false, true] {
        assert!(!events_as(&theirs, &id).await.is_empty(), "gone: {gone}");
        assert_eq!(code(stranger.events(&id, &query).await), Code::SandboxNotFound, "gone: {gone}");
        assert_eq!(code(stranger.verify_events(&id).await), Code::SandboxNotFound, "gone: {gone}");
        assert!(!events(&server, &id).await.is_empty(), "an administrator may, gone: {gone}");
        if !gone {
            theirs.delete_sandbox(&id).await.unwrap();
        }
    }
    assert_eq!(code(theirs.events("sb00000000000000000000", &query).await), Code::SandboxNotFound);
    for path in ["/v1/sandboxes/../../etc/events", "/v1/sandboxes/%2e%2e%2f%2e%2e/events"] {
        let answer = server.send(server.request("GET", path)).await;
        assert_eq!(answer.status, 404, "{path}");
    }
    server.finish().await;
}

/// The data of `event` events of a stream, until `count` are there.
async fn sse(server: &Server, path: &str, last: Option<&str>, count: usize) -> Vec<(String, TraceEvent)> {
    let mut request = server.request("GET", path).header("accept", "text/event-stream");
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    let mut stream = request.send().await.unwrap().bytes_stream();
    let mut text = String::new();
    let mut events = Vec::new();
    while events.len() < count {
        let chunk = tokio::time::timeout(Duration::from_secs(60), stream.next()).await;
        text.push_str(std::str::from_utf8(&chunk.expect("an event").unwrap().unwrap()).unwrap());
        while let Some((event, rest)) = text.split_once("\n\n") {
            let field = |name: &str| {
                event.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
            };
            if let (Some(id), Some(data)) = (field("id:"), field("data:")) {
                events.push((id, serde_json::from_str(&data).unwrap()));
            }
            text = rest.to_owned();
        }
    }
    events
}

#[tokio::test(flavor = "multi_thread")]
async fn events_stream_as_they_happen_and_go_on_where_they_stopped() {
    let server = Server::start();
    let id = server.sandbox().await.id;
    server.sh(&id, "true").await;
    let path = format!("/v1/sandboxes/{id}/events?kind=exec_started");
    let first = sse(&server, &path, None, 1).await;
    let (next, _) = tokio::join!(sse(&server, &path, Some(&first[0].0), 1), server.sh(&id, "echo second"));
    assert!(next[0].1.number > first[0].1.number);
    assert_eq!(next[0].1.more["argv"][2], "echo second", "{next:?}");

    // A client's reads of a journal are not events in it.
    let last = server.client.verify_events(&id).await.unwrap().last;
    let follow = GetEvents { from: last + 1, wait_ms: 0, ..GetEvents::default() };
    for _ in 0..20 {
        server.client.events(&id, &follow).await.unwrap();
    }
    // Calls that ended meanwhile are there, such as the streams above; twenty would be those of the loop.
    let after = events(&server, &id).await;
    let calls = of(&after, "call").into_iter().filter(|call| call.number > last).count();
    assert!(calls < 10, "{calls} {after:?}");

    // A WebSocket, from the same place.
    let url = format!("{}/v1/sandboxes/{id}/events?kind=exec_started&from={}", server.url, next[0].0);
    let mut request = url.replace("http://", "ws://").into_client_request().unwrap();
    let bearer = format!("Bearer {}", server.key);
    request.headers_mut().insert("authorization", bearer.parse().unwrap());
    let (mut socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    let message =
        tokio::time::timeout(Duration::from_secs(60), socket.next()).await.unwrap().unwrap().unwrap();
    let event: TraceEvent = serde_json::from_str(message.to_text().unwrap()).unwrap();
    assert_eq!(event.number.to_string(), next[0].0);
    drop(socket);

    // All sandboxes that the key may see: its own, one of another key, and one that is made later.
    let (_, theirs) = key(&server, Scope::Manage).await;
    theirs.create_sandbox(&CreateSandbox::default()).await.unwrap();
    let (all, second) = tokio::join!(sse(&server, "/v1/events?kind=created", None, 3), server.sandbox());
    let whose: Vec<&str> = all.iter().map(|(_, event)| event.sandbox.as_str()).collect();
    assert!(whose.contains(&id.as_str()) && whose.contains(&second.id.as_str()), "{whose:?}");
    for sandbox in whose {
        server.client.delete_sandbox(sandbox).await.unwrap();
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_of_the_server_loses_nothing_that_was_answered_and_is_a_gap() {
    let mut server = Server::start();
    let id = server.sandbox().await.id;
    let mut made = Vec::new();
    for number in 0..20 {
        made.push(server.shell(&id, &format!("echo {number}")).await);
    }
    server.kill();
    server.restart();
    server.sh(&id, "true").await;
    let all = events(&server, &id).await;
    for exec in &made {
        assert!(of(&all, "exec_started").iter().any(|event| event.more["exec"] == exec.as_str()), "{exec}");
    }
    assert!(
        of(&all, "recorder")
            .iter()
            .any(|event| event.more["recorder"] == "went_on" && event.more["clean"] == false)
    );
    assert_eq!(of(&all, "lost").len(), 1, "the gap is announced");
    let report = server.client.verify_events(&id).await.unwrap();
    assert!(report.findings.is_empty() && report.gaps.len() == 1, "{report:?}");
    // A stop in order is none.
    server.stop();
    server.restart();
    wait_until("the journal to go on", async || {
        let all = events(&server, &id).await;
        of(&all, "recorder").iter().any(|event| event.more.get("clean") == Some(&true.into())).then_some(())
    })
    .await;
    assert_eq!(of(&events(&server, &id).await, "lost").len(), 1);
    server.client.delete_sandbox(&id).await.unwrap();
    server.finish().await;
}

fn journal_file(server: &Server, sandbox: &str) -> PathBuf {
    let dir = fs::read_dir(server.data().join("trace").join(sandbox)).unwrap();
    dir.map(|entry| entry.unwrap().path()).find(|path| path.extension().is_some_and(|e| e == "log")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thief_of_the_data_directory_leaves_traces_and_root_inside_reaches_nothing() {
    use std::os::unix::fs::PermissionsExt as _;
    let server = Server::start();
    let id = server.sandbox().await.id;
    // Root inside: there is no way to the journal, its thread or its key.
    let trace = server.data().join("trace").display().to_string();
    let output = server
        .sh(&id, &format!("ls {trace} 2>&1; grep -l recorder /proc/[0-9]*/task/*/comm 2>/dev/null; id -u"))
        .await;
    assert!(output.stdout.ends_with("0\n") && !output.stdout.contains("comm"), "{output:?}");
    server.sh(&id, "echo the evidence").await;
    let file = journal_file(&server, &id);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o077, 0);
    let signed = wait_until("a signature", async || {
        let report = server.client.verify_events(&id).await.unwrap();
        (report.signed == report.last).then_some(report)
    })
    .await;
    assert_eq!(signed.findings, []);

    // On a copy: the changes that a thief could make who has the files and not the vault's key.
    let copy = tempfile::tempdir().unwrap();
    fs::create_dir(copy.path().join(&id)).unwrap();
    let stolen = copy.path().join(&id).join(file.file_name().unwrap());
    let bytes = fs::read(&file).unwrap();
    let verify = |bytes: &[u8], head: Option<&str>| {
        fs::write(&stolen, bytes).unwrap();
        let dir = copy.path().to_str().unwrap();
        let mut args = vec!["trace", "verify", &id, "--dir", dir, "--key", &signed.key];
        args.extend(head.map(|head| ["--head", head]).into_iter().flatten());
        server.cli(&args)
    };
    verify(&bytes, signed.head.as_deref()).ok();
    let at = bytes.windows(12).position(|window| window == b"the evidence").unwrap();
    let mut changed = bytes.clone();
    changed[at..at + 12].copy_from_slice(b"the nothings");
    let found = verify(&changed, None);
    assert!(found.code == Some(125) && found.stdout.contains("BAD"), "{found:?}");
    let cut = verify(&bytes[..at], signed.head.as_deref());
    assert!(cut.code == Some(125) && cut.stdout.contains("middle of a record"), "{cut:?}");
    server.client.delete_sandbox(&id).await.unwrap();
    server.finish().await;
}

/// A small file system for journals, in the place where a server is going to write them.
struct SmallTrace(PathBuf);

impl SmallTrace {
    fn new(data: &Path) -> Self {
        let at = data.join("trace");
        fs::create_dir_all(&at).unwrap();
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k", "trace"]).arg(&at));
        Self(at)
    }

    /// Leaves no room.
    fn fill(&self) {
        use std::io::Write as _;
        let mut file = fs::File::create(self.0.join("filler")).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
    }

    fn empty(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallTrace {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

/// Runs `true` in a sandbox until the server refuses it.
async fn until_refused(server: &Server, sandbox: &str) -> Code {
    wait_until("a refusal", async || {
        let refused = server.client.create_exec(sandbox, &shell("true")).await.err();
        refused.and_then(|error| error.code())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strict_sandbox_stands_still_when_its_journal_cannot_be_written_and_others_announce_the_gap() {
    let dir = tempfile::Builder::new().prefix("atoll-strict-").tempdir_in("/var/tmp").unwrap();
    let small = SmallTrace::new(dir.path());
    let server = Server::on(dir.path(), &[]);
    let create = CreateSandbox { trace: Some(TraceMode::Strict), ..CreateSandbox::default() };
    let strict = server.client.create_sandbox(&create).await.unwrap().id;
    let id = server.sandbox().await.id;
    server.sh(&strict, "true").await;
    small.fill();
    assert_eq!(until_refused(&server, &strict).await, Code::HostDiskFull);
    wait_until("it to stand still", async || {
        let state = server.client.get_sandbox(&strict).await.unwrap().state;
        (state == SandboxState::Paused).then_some(())
    })
    .await;
    // The other goes on.
    server.sh(&id, "true").await;
    small.empty();
    wait_until("it to go on", async || server.client.resume_sandbox(&strict).await.ok()).await;
    wait_until("a command", async || server.client.create_exec(&strict, &shell("echo again")).await.ok())
        .await;
    for sandbox in [&strict, &id] {
        let report = server.client.verify_events(sandbox).await.unwrap();
        assert_eq!(report.findings, []);
        server.client.delete_sandbox(sandbox).await.unwrap();
    }
    let started = events(&server, &id).await;
    assert_eq!(of(&started, "exec_started").len(), 1, "what waited was written");
    drop(small);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn off_records_nothing_unless_a_sandbox_asks_for_it_and_nobody_asks_for_less() {
    let server = Server::with(&["--trace", "off"]);
    let id = server.sandbox().await.id;
    assert_eq!(code(server.client.events("none", &GetEvents::default()).await), Code::SandboxNotFound);
    assert!(events(&server, &id).await.is_empty());
    let create = CreateSandbox { trace: Some(TraceMode::On), ..CreateSandbox::default() };
    let traced = server.client.create_sandbox(&create).await.unwrap();
    assert!(!events(&server, &traced.id).await.is_empty());
    assert_eq!(traced.state, SandboxState::Running);
    for sandbox in [&id, &traced.id] {
        server.client.delete_sandbox(sandbox).await.unwrap();
    }
    server.finish().await;
}
