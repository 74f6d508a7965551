//! Profiles: hosts that an agent may reach, and that no program which it starts may reach.

use std::time::Duration;

use crate::common::code;
use crate::common::world::{SECRET, World};
use atoll_api::{
    CreateExec, CreateSandbox, CreateTemplate, ForkSandbox, PauseSandbox, PutSecret, UpdateSandbox,
};
use atoll_blackbox::{Output, Server, wait_until};
use atoll_core::Code;
use atoll_core::execution::ExecutionPolicy;
use atoll_core::sandbox::PauseMode;
use atoll_core::secret::Secret;
use serde_json::{Value, json};

/// Asks the model, writes the answer, and starts other programs that ask. Each line that it reads is one round.
const AGENT: &str = r#"
import os, subprocess, sys, threading
def ask():
    try:
        import urllib.request as u
        return 'SEEN' if 'Bearer <SECRET>' in u.urlopen('https://api.example.com/echo', timeout=20).read().decode() else 'bare'
    except Exception as error:
        return 'no ' + type(error).__name__
def fork(then):
    r, w = os.pipe()
    if not os.fork():
        os.write(w, then().encode()); os._exit(0)
    os.close(w); os.wait(); return os.read(r, 99).decode()
def thread():
    found = []
    one = threading.Thread(target=lambda: found.append(ask())); one.start(); one.join(); return found[0]
def by(*argv): return subprocess.run(argv, capture_output=True, text=True).stdout.strip()
curl = 'curl -sSk -m 20 https://api.example.com/echo'
me = 'import urllib.request as u; print(u.urlopen("https://api.example.com/echo", timeout=20).read().decode())'
for line in sys.stdin:
    print('own', ask(), 'thread', thread(), 'fork', fork(ask), flush=True)
    tools = [by('/bin/bash', '-c', curl), by('/bin/sh', '-c', curl), by('/usr/bin/curl', *curl.split()[1:]), by('/usr/bin/env', *curl.split()),
             by('/usr/bin/python3', '-c', me), by('/bin/bash', '-c', 'exec /usr/bin/python3 -c \'' + me + '\''), by('/usr/bin/setsid', '-w', *curl.split())]
    print('tools', ['headers' in said for said in tools], flush=True)
    print('round', line.strip(), flush=True)
"#;
const GOOD: &str =
    "own SEEN thread SEEN fork SEEN\ntools [False, False, False, False, False, False, False]\n";

fn profiles() -> Value {
    json!({"default": "tool", "named": {"agent": {"on_exec": {"/bin/bash": "tool", "/bin/sh": "tool", "*": "tool"}}, "tool": {}}})
}

fn egress() -> Value {
    let from = json!({"profile": "agent"});
    json!({"internet": "rules", "rules": [{"action": "allow", "domain": "api.example.com", "from": from}],
        "inject": [{"name": "model", "hosts": ["api.example.com"], "bearer": "{secret:MODEL}", "from": from}]})
}

fn create(profiles: &Value, egress: &Value) -> CreateSandbox {
    serde_json::from_value(json!({"profiles": profiles, "egress": egress})).unwrap()
}

async fn in_profile(server: &Server, sandbox: &str, profile: &str, argv: &[&str]) -> Output {
    let argv = argv.iter().map(|&arg| arg.to_owned()).collect();
    let create = CreateExec { argv: Some(argv), profile: Some(profile.into()), ..CreateExec::default() };
    server.output(sandbox, create).await
}

/// Starts an agent; gives what it writes about itself and about the programs that it starts.
async fn agent(server: &Server, sandbox: &str) -> String {
    // Its standard input comes from a file, so that no shell stands before it.
    server.sh(sandbox, &format!("echo 1 > /var/rounds; cat > /var/agent.py <<'END'\n{AGENT}\nEND")).await;
    let run = "import sys; sys.stdin = open('/var/rounds'); exec(open('/var/agent.py').read())";
    in_profile(server, sandbox, "agent", &["/usr/bin/python3", "-c", run]).await.stdout
}

async fn with_secret(server: &Server) {
    let scope = serde_json::from_value(json!({"hosts": ["api.example.com"]})).unwrap();
    let put = PutSecret { value: Some(Secret::new(SECRET)), scope: Some(scope), note: None };
    server.client.put_secret(None, "MODEL", &put).await.unwrap();
}

const ASK: [&str; 6] = ["/usr/bin/curl", "-sS", "-m", "20", "https://api.example.com/echo", "-o-"];

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_reaches_its_model_and_nothing_that_it_starts_does() {
    let world = World::new().await;
    let mut server = Server::with(&world.args());
    with_secret(&server).await;
    let id = server.client.create_sandbox(&create(&profiles(), &egress())).await.unwrap().id;
    assert_eq!(agent(&server, &id).await, format!("{GOOD}round 1\n"), "{}", server.log());
    // An exec names its profile; one that names none is in the default profile.
    assert!(in_profile(&server, &id, "agent", &ASK).await.stdout.contains("Bearer <SECRET>"));
    assert!(!in_profile(&server, &id, "tool", &ASK).await.stdout.contains("headers"));
    assert!(!server.sh(&id, &ASK.join(" ")).await.stdout.contains("headers"));
    let shell = format!("{} ; true", ASK.join(" "));
    let shell = in_profile(&server, &id, "agent", &["/bin/sh", "-c", &shell]).await;
    assert!(!shell.stdout.contains("headers"), "what a shell starts is its tool: {shell:?}");
    let said = server.cli(&["exec", "--profile", "agent", &id, "--", ASK[0], ASK[1], ASK[4]]).ok().stdout;
    assert!(said.contains("Bearer <SECRET>"), "{said}");
    // A running agent goes on when the server is killed: no process gains or loses a profile.
    let lives = "import os, time, sys\nN = 0\nclass Rounds:\n  def __iter__(self): return self\n  def __next__(self):\n    global N; N += 1\n    while not os.path.exists('/var/go.%d' % N): time.sleep(0.05)\n    return str(N)\nsys.stdin = Rounds()\nsys.stdout = open('/var/said', 'w', 1)\nexec(open('/var/agent.py').read())";
    let argv = ["/usr/bin/python3", "-c", lives].map(str::to_owned).to_vec();
    let long = CreateExec { argv: Some(argv), profile: Some("agent".into()), ..CreateExec::default() };
    let long = server.client.create_exec(&id, &long).await.unwrap().exec;
    assert_eq!(long.profile.as_deref(), Some("agent"));
    for round in 1..=3 {
        server.sh(&id, &format!("touch /var/go.{round}")).await;
        let end = format!("round {round}\n");
        let said = async || {
            let said = server.sh(&id, "cat /var/said 2>/dev/null").await.stdout;
            said.ends_with(&end).then_some(said)
        };
        let said = wait_until("the agent has asked", said).await;
        assert_eq!(said.matches(GOOD).count(), round, "{said}");
        server.kill();
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.restart();
    }
    server.client.delete_sandbox(&id).await.unwrap();
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sleep_forks_templates_and_changes_of_rules_keep_profiles() {
    let world = World::new().await;
    let server = Server::with(&world.args());
    with_secret(&server).await;
    let template = json!({"name": "agents", "image": "host", "profiles": profiles(), "egress": egress()});
    let template: CreateTemplate = serde_json::from_value(template).unwrap();
    assert_eq!(server.client.create_template(&template).await.unwrap().profiles, template.profiles);
    let from = CreateSandbox { template: Some("agents".into()), ..CreateSandbox::default() };
    let made = server.client.create_sandbox(&from).await.unwrap();
    assert_eq!(Some(&made.profiles), template.profiles.as_ref());
    let id = made.id;
    let check = async |id: &str, when: &str| {
        assert_eq!(agent(&server, id).await, format!("{GOOD}round 1\n"), "{when}: {}", server.log());
    };
    check(&id, "made").await;
    server.client.pause_sandbox(&id, &PauseSandbox { mode: Some(PauseMode::Filesystem) }).await.unwrap();
    server.client.resume_sandbox(&id).await.unwrap();
    check(&id, "woken").await;
    let forked = server.client.fork_sandbox(&id, &ForkSandbox::default()).await.unwrap();
    let child = forked.results[0].sandbox.as_ref().unwrap().id.clone();
    check(&child, "forked").await;
    // Rules change at once, and mean the same profiles.
    let other = json!({"internet": "rules", "rules": [
        {"action": "allow", "domain": "api.example.com", "from": {"program": "/usr/bin/curl"}},
        {"action": "allow", "domain": "api.example.com", "from": {"profile": "tool"}}]});
    let update =
        UpdateSandbox { egress: Some(serde_json::from_value(other).unwrap()), ..UpdateSandbox::default() };
    server.client.update_sandbox(&id, &update).await.unwrap();
    let fetch = "import urllib.request as u, ssl; print(u.urlopen('https://api.example.com/echo', timeout=20, context=ssl._create_unverified_context()).read().decode())";
    let python = ["/usr/bin/python3", "-c", fetch];
    assert!(!in_profile(&server, &id, "agent", &python).await.stdout.contains("headers"));
    assert!(in_profile(&server, &id, "tool", &python).await.stdout.contains("headers"), "{}", server.log());
    let curl = ["/usr/bin/curl", "-sSk", "https://api.example.com/echo"];
    assert!(in_profile(&server, &id, "agent", &curl).await.stdout.contains("headers"), "by its program");
    let gone = json!({"internet": "rules", "rules": [{"action": "allow", "domain": "a.example", "from": {"profile": "agnt"}}]});
    let update =
        UpdateSandbox { egress: Some(serde_json::from_value(gone).unwrap()), ..UpdateSandbox::default() };
    let error = server.client.update_sandbox(&id, &update).await.unwrap_err().to_string();
    assert!(error.contains("there is no profile 'agnt'"), "{error}");
    for id in [id, child] {
        server.client.delete_sandbox(&id).await.unwrap();
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn profiles_that_mean_nothing_are_refused() {
    let server = Server::with(&["--trace", "off"]);
    let none = json!({"internet": "off"});
    let refused = server.client.create_sandbox(&create(&profiles(), &none)).await;
    assert_eq!(code(refused), Code::Unenforceable, "nobody could read what it did");
    server.finish().await;

    let server = Server::start();
    let named = |named: Value| json!({"named": named});
    for (profiles, egress, why) in [
        (json!({"default": "agent"}), &none, "profiles.default: there is no profile 'agent'"),
        (named(json!({"a": {"on_exec": {"*": "b"}}})), &none, "there is no profile 'b'"),
        (
            named(json!({"a": {"on_exec": {"*": "b"}}, "b": {"on_exec": {"*": "a"}}})),
            &none,
            "leads back: a → b → a",
        ),
        (
            named(json!({"a": {"on_exec": {"/bin/sh": "b"}}, "b": {}})),
            &none,
            "says nothing of other programs",
        ),
        (
            named(json!({"a": {"on_exec": {"/bin/hs": "b", "*": "b"}}, "b": {}})),
            &none,
            "profiles.named.a.on_exec: the image has no '/bin/hs'",
        ),
        (
            named(
                json!({"a": {"on_exec": {"/bin/env": "c", "/usr/bin/env": "b", "*": "b"}}, "b": {}, "c": {}}),
            ),
            &none,
            "'/bin/env' and '/usr/bin/env' are the same program",
        ),
        (named(json!({"b": {}})), &egress(), "egress: from.profile: there is no profile 'agent'"),
        (json!({"named": {"a": {"network": "off"}}}), &none, "unknown field"),
    ] {
        let body = json!({"profiles": profiles, "egress": egress}).to_string();
        let request = server.request("POST", "/v1/sandboxes").header("content-type", "application/json");
        let answer = server.send(request.body(body)).await;
        let said = answer.json()["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!(answer.status, 400, "{profiles}: {said}");
        assert!(said.contains(why), "{profiles}: {said}");
    }
    let id = server.client.create_sandbox(&create(&profiles(), &none)).await.unwrap().id;
    let exec =
        CreateExec { shell: Some("true".into()), profile: Some("aget".into()), ..CreateExec::default() };
    let error = server.client.create_exec(&id, &exec).await.unwrap_err().to_string();
    assert!(error.contains("there is no profile 'aget'"), "{error}");
    let open = server.sandbox().await.id;
    let error = server.client.create_exec(&open, &exec).await.unwrap_err().to_string();
    assert!(error.contains("there is no profile 'aget'"), "{error}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_inside_is_asked_for_in_another_profile_only_downwards() {
    let world = World::new().await;
    let mut server = Server::with(&world.args());
    let profiles = json!({"default": "tool", "named": {
        "agent": {"on_exec": {"*": "tool"}, "may_run": ["net"]},
        "bare": {"hide": ["/opt/kept"]},
        "net": {"limits": {"memory_bytes": 1 << 30, "processes": 300, "cpu_seconds": 500}},
        "tool": {"may_run": ["bare"]}}});
    let egress = json!({"internet": "rules",
        "rules": [{"action": "allow", "domain": "api.example.com", "methods": ["GET"], "from": {"profile": "net"}}]});
    let create = CreateSandbox { execution: Some(ExecutionPolicy::image()), ..create(&profiles, &egress) };
    let id = server.client.create_sandbox(&create).await.unwrap().id;
    server.sh(&id, "mkdir -p /opt/kept; echo kept > /opt/kept/file").await;
    let net = [&["atoll-run", "--profile", "net", "--"], &ASK[..]].concat();
    let limits = ["atoll-run", "--profile=net", "/bin/sh", "-c", "ulimit -H -d; ulimit -H -p; ulimit -H -t"];
    let check = async |server: &Server, id: &str, when: &str| {
        let said = in_profile(server, id, "agent", &net).await;
        assert!(said.stdout.contains("headers"), "{when}: {said:?} {}", server.log());
        assert!(!in_profile(server, id, "agent", &ASK).await.stdout.contains("headers"), "{when}");
        // The program that `atoll-run` starts begins in the profile; its children are where that profile leads.
        assert_eq!(in_profile(server, id, "agent", &limits).await.stdout, "1048576\n300\n500\n", "{when}");
        let bare = "atoll-run --profile bare -- cat /opt/kept/file; cat /opt/kept/file";
        assert_eq!(server.sh(id, bare).await.stdout, "kept\n", "{when}");
        // Not up, not aside, not as the first program.
        for argv in [
            &["atoll-run", "--profile", "net", "--", "true"][..],
            &["atoll-run", "--profile", "agent", "--", "true"],
            &["/.atoll/profiles/net", "--", "true"],
            &["/.atoll/profiles/bare", "--", "true"],
        ] {
            let ended = in_profile(server, id, "tool", argv).await;
            assert_eq!(ended.code, Some(137), "{when}: {argv:?}: {ended:?}");
        }
        let none = in_profile(server, id, "tool", &["atoll-run", "--profile", "nobody", "true"]).await;
        assert!(none.stderr.contains("no profile 'nobody'"), "{when}: {none:?}");
        assert_eq!(none.code, Some(125), "{when}");
    };
    check(&server, &id, "made").await;
    server.kill();
    server.restart();
    check(&server, &id, "after a crash").await;
    server.client.pause_sandbox(&id, &PauseSandbox { mode: Some(PauseMode::Filesystem) }).await.unwrap();
    server.client.resume_sandbox(&id).await.unwrap();
    check(&server, &id, "woken").await;
    let told = server.cli(&["trace", &id, "--json"]).ok().stdout;
    let told: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let door = told.iter().find(|event| event["path"] == "/.atoll/profiles/net" && event["profile"] == "net");
    assert_eq!(door.unwrap()["file"]["origin"], "atoll");
    let refused = told.iter().find(|event| event["rule"] == "this profile may not be asked for from here");
    assert_eq!(refused.unwrap()["allowed"], false);
    server.client.delete_sandbox(&id).await.unwrap();
    server.finish().await;
}
