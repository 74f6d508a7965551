//! Secrets in requests: real clients in a sandbox, real servers outside, and nothing that can be found inside.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::world::{SECRET, World};
use crate::common::{code, files_with};
use atoll_api::{CreateSandbox, PutSecret, UpdateSandbox};
use atoll_blackbox::{Output, Server};
use atoll_client::{Client, ListSecretUses};
use atoll_core::Code;
use atoll_core::key::Scope;
use atoll_core::policy::{EgressPolicy, InjectRule, Internet};
use atoll_core::secret::Secret;
use serde_json::{Value, json};

fn rule(value: Value) -> InjectRule {
    serde_json::from_value(value).unwrap()
}

fn policy(rules: Vec<InjectRule>) -> EgressPolicy {
    EgressPolicy { internet: Internet::On, inject: rules, ..EgressPolicy::default() }
}

async fn put(server: &Server, name: &str, hosts: &[&str]) {
    let scope = serde_json::from_value(json!({ "hosts": hosts })).unwrap();
    let put = PutSecret { value: Some(Secret::new(SECRET)), scope: Some(scope), note: None };
    server.client.put_secret(None, name, &put).await.unwrap();
}

async fn sandbox(server: &Server, rules: Vec<InjectRule>) -> String {
    let create = CreateSandbox { egress: Some(policy(rules)), ..CreateSandbox::default() };
    server.client.create_sandbox(&create).await.unwrap().id
}

async fn ok(server: &Server, sandbox: &str, line: &str) -> Output {
    let output = server.sh(sandbox, line).await;
    assert_eq!(output.code, Some(0), "{line}: {output:?}\n{}", server.log());
    output
}

/// Whether a file or process memory holds the secret.
fn holds_secret(path: &Path) -> bool {
    let Ok(bytes) = std::fs::read(path) else { return false };
    bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes())
}

/// Memory of a process, as far as it can be read.
fn memory_holds_secret(pid: i32) -> bool {
    use std::os::unix::fs::FileExt as _;
    let Ok(maps) = std::fs::read_to_string(format!("/proc/{pid}/maps")) else { return false };
    let Ok(memory) = std::fs::File::open(format!("/proc/{pid}/mem")) else { return false };
    maps.lines().filter(|line| line.contains(" rw")).any(|line| {
        let range = line.split(' ').next().unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let (from, to) = (u64::from_str_radix(from, 16).unwrap(), u64::from_str_radix(to, 16).unwrap());
        // In pieces that overlap, and only where there is something.
        let mut bytes = vec![0; 1 << 20];
        (from..to).step_by(bytes.len() - SECRET.len()).any(|at| {
            let most = usize::try_from(to - at).unwrap().min(bytes.len());
            let Ok(count) = memory.read_at(&mut bytes[..most], at) else { return false };
            let read = &bytes[..count];
            read.contains(&b'+') && read.windows(SECRET.len()).any(|window| window == SECRET.as_bytes())
        })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn real_clients_use_a_secret_that_is_nowhere_inside() {
    let world = World::new().await;
    let server = Server::with(&world.args());
    server.cli_with(&["secret", "set", "API_KEY", "--host", "*.example.com"], SECRET.as_bytes()).ok();
    let hosts = "API_KEY=api.example.com,git.example.com,pypi.example.com,npm.example.com,prefix=sk-,query";
    let created = server.cli(&["create", "--secret", hosts, "--allow", "other.example.com"]).ok();
    let id = created.stdout.trim();
    let placeholder = ok(&server, id, "printenv API_KEY").await.stdout;
    assert!(placeholder.starts_with("sk-") && placeholder.trim().len() >= 26, "{placeholder}");

    // A bearer by default, and the placeholder where a client has put it.
    let echo = |output: Output| -> Value { serde_json::from_str(&output.stdout).unwrap() };
    let seen = echo(ok(&server, id, "curl -sS https://api.example.com/echo?a=1").await);
    assert_eq!(seen["headers"]["authorization"], "Bearer <SECRET>", "{seen}");
    let line =
        "curl -sS -H \"x-api-key: $API_KEY\" -u \"me:$API_KEY\" https://api.example.com/echo?k=$API_KEY";
    let seen = echo(ok(&server, id, line).await);
    assert_eq!(seen["headers"]["x-api-key"], "<SECRET>");
    assert_eq!(seen["basic"], "me:<SECRET>");
    assert!(!seen["path"].as_str().unwrap().contains("sk-"), "{seen}");

    // The secret is not sent beside credentials of the program's own, or in a place that no rule names.
    for (line, why) in [
        (
            "curl -sS -X PUT -H 'Authorization: Bearer mine' https://api.example.com/echo?k=$API_KEY",
            "of its own",
        ),
        ("curl -sS https://api.example.com/echo/$API_KEY", "the path"),
        ("curl -sS -H \"x-note: $API_KEY\" https://api.example.com/echo", "x-note"),
    ] {
        let refused = ok(&server, id, line).await.stdout;
        assert!(refused.starts_with("atoll: ") && refused.contains(why), "{line}: {refused}");
    }

    // Python, its requests, Node.
    let python =
        "import urllib.request as u; print(u.urlopen('https://api.example.com/echo').read().decode())";
    let requests = "from pip._vendor import requests as r; print(r.get('https://api.example.com/echo').text)";
    let node = "fetch('https://api.example.com/echo').then(r => r.text()).then(console.log)";
    for line in [
        format!("/usr/bin/python3 -c \"{python}\""),
        format!("/usr/bin/python3 -c \"{requests}\""),
        format!("node -e \"{node}\""),
    ] {
        let seen = echo(ok(&server, id, &line).await);
        assert_eq!(seen["headers"]["authorization"], "Bearer <SECRET>", "{line}: {seen}");
    }

    // git, pip, npm.
    let clone = "cd /tmp && /usr/bin/git clone -q https://git.example.com/repo.git && cat repo/README";
    assert_eq!(ok(&server, id, clone).await.stdout, "hello\n");
    let push = "cd /tmp/repo && echo more >> README && /usr/bin/git -c user.name=t -c user.email=t@t commit -qam two \
        && /usr/bin/git push -q origin HEAD:main 2>&1";
    ok(&server, id, push).await;
    let pip = "/usr/bin/python3 -m pip install -q --disable-pip-version-check --no-cache-dir --target /tmp/lib \
        --index-url https://pypi.example.com/simple/ atollpkg 2>&1 \
        && PYTHONPATH=/tmp/lib /usr/bin/python3 -c 'import atollpkg; print(atollpkg.answer)'";
    assert!(ok(&server, id, pip).await.stdout.ends_with("42\n"));
    let npm = "mkdir -p /tmp/n && cd /tmp/n && npm install --silent --no-audit --no-fund --registry \
        https://npm.example.com/ atollpkg 2>&1 && node -e \"console.log(require('atollpkg'))\"";
    assert!(ok(&server, id, npm).await.stdout.ends_with("42\n"));

    // Streams, compression, large bodies both ways, WebSocket.
    let events = ok(&server, id, "curl -sSN https://api.example.com/events").await.stdout;
    assert_eq!(events, "data: 0\n\ndata: 1\n\ndata: 2\n\n");
    assert_eq!(
        ok(&server, id, "curl -sS --compressed https://api.example.com/gzip").await.stdout,
        "unpacked"
    );
    let down = ok(&server, id, "curl -sS https://api.example.com/large?20000000 | wc -c").await.stdout;
    assert_eq!(down.trim(), "20000000");
    let up = "head -c 20000000 /dev/zero | curl -sS -T - https://api.example.com/echo | grep -o '\"bytes\": 20000000'";
    ok(&server, id, up).await;
    let socket = "curl -sS --http1.1 -N -H 'Connection: Upgrade' -H 'Upgrade: websocket' -H 'Sec-WebSocket-Version: 13' \
        -H 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==' https://api.example.com/socket --max-time 10 | tr -dc a-z";
    assert_eq!(server.sh(id, socket).await.stdout, "hello");

    // A redirect goes to the client, whose next request is judged anew.
    let seen = echo(ok(&server, id, "curl -sSLk https://api.example.com/redirect").await);
    assert_eq!(seen["host"], "other.example.com");
    assert_eq!(seen["headers"]["authorization"], Value::Null, "{seen}");

    let uses = server.client.list_secret_uses(&ListSecretUses::default()).await.unwrap().items;
    assert!(
        uses.iter().all(|one| one.secret == "API_KEY" && one.version == 1 && one.sandbox == id),
        "{uses:?}"
    );
    assert!(
        uses.iter().any(|one| one.host == "api.example.com" && one.path == "/echo" && one.method == "GET")
    );
    assert!(uses.iter().any(|one| one.host == "git.example.com" && one.path.ends_with("git-receive-pack")));
    let audit = server.cli(&["secret", "audit", "API_KEY", "--limit", "1000"]).ok();
    assert!(audit.stdout.contains("GET pypi.example.com/simple/atollpkg/"), "{}", audit.stdout);

    // Nowhere: memory of the sandbox's processes, their environment, disks, database, logs.
    let exec = server
        .shell(id, "exec /usr/bin/python3 -c \"import time, os; x = dict(os.environ); time.sleep(600)\"")
        .await;
    let pids = atoll_blackbox::host::processes(id);
    assert!(!pids.is_empty(), "the sandbox has processes");
    for pid in pids {
        assert!(!memory_holds_secret(pid), "the memory of {pid} holds the secret");
        assert!(!holds_secret(Path::new(&format!("/proc/{pid}/environ"))));
    }
    server.client.kill_exec(id, &exec).await.unwrap();
    // With a bracket, so that the search does not find its own arguments.
    let pattern = format!("[{}]{}", &SECRET[..1], &SECRET[1..]);
    let inside = format!("! grep -rqs '{pattern}' /etc /home /opt /root /run /srv /tmp /var /dev/shm");
    ok(&server, id, &inside).await;
    // On the host: database, logs, the disk, and a snapshot of it. The mark shows that a search finds text on the
    // disk.
    ok(&server, id, "echo mark-$((40+2))-on-the-disk > /root/mark && sync").await;
    let snapshot = server.cli(&["snapshot", "create", id]).ok();
    assert!(!snapshot.stdout.is_empty());
    let mark = files_with("mark-42-on-the-disk", server.data());
    assert!(!mark.is_empty(), "the disk is in the data directory");
    let found = files_with(SECRET, server.data());
    assert!(found.is_empty(), "{found:?}");
    assert!(!server.log().contains(SECRET));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_agree_gets_no_secret() {
    let world = World::new().await;
    let server = Server::with(&world.args());
    put(&server, "KEY", &["api.example.com"]).await;
    let bearer = rule(
        json!({"name": "r", "hosts": ["api.example.com"], "bearer": "{secret:KEY}", "mask_responses": true}),
    );
    let id = sandbox(&server, vec![bearer]).await;

    // Domain fronting, either way.
    let fronted =
        ok(&server, &id, "curl -sS -H 'Host: other.example.com' https://api.example.com/echo").await.stdout;
    assert!(fronted.starts_with("atoll: ") && fronted.contains("another host"), "{fronted}");
    let other =
        ok(&server, &id, "curl -sSk -H 'Host: api.example.com' https://other.example.com/echo").await.stdout;
    assert!(!other.contains("<SECRET>"), "{other}");
    // A forged server name on an address that our resolver never gave.
    let forged = "curl -sSk --max-time 10 --resolve api.example.com:443:9.9.9.9 https://api.example.com/echo";
    assert!(!server.sh(&id, forged).await.stdout.contains("<SECRET>"));
    // An address without a name.
    let bare = "curl -sSk --max-time 10 -H 'Host: api.example.com' https://93.184.216.34/echo";
    assert!(!server.sh(&id, bare).await.stdout.contains("<SECRET>"));
    // Plain HTTP carries none.
    let plain = server.sh(&id, "curl -sS --max-time 10 http://api.example.com/echo").await.stdout;
    assert!(!plain.contains("<SECRET>"), "{plain}");
    // A server that shows the secret, and methods that make it do so.
    let leak = ok(&server, &id, "curl -sSi https://api.example.com/leak").await.stdout;
    assert!(!leak.contains(SECRET) && leak.contains(&"*".repeat(SECRET.len())), "{leak}");
    let trace = ok(&server, &id, "curl -sSi -X TRACE https://api.example.com/leak").await.stdout;
    assert!(trace.starts_with("HTTP/1.1 403"), "{trace}");
    // Smuggling: two lengths, a second request in the first.
    let smuggle = "printf 'POST /echo HTTP/1.1\\r\\nHost: api.example.com\\r\\nContent-Length: 4\\r\\nContent-Length: 5\\r\\n\\r\\n' \
        | timeout 10 openssl s_client -quiet -connect api.example.com:443 -servername api.example.com 2>/dev/null";
    let smuggled = server.sh(&id, smuggle).await.stdout;
    assert!(smuggled.starts_with("HTTP/1.1 400"), "{smuggled}");
    // The authority's key is not inside, by any path.
    let keys = "! grep -rls 'PRIVATE KEY' /etc/atoll /proc/self/root/etc/atoll /proc/1/root/etc/atoll && ls /etc/atoll";
    assert_eq!(ok(&server, &id, keys).await.stdout, "ca-bundle.jks\nca-bundle.pem\nca.pem\n");
    let data = server.data().display().to_string();
    let outside = format!("! ls /proc/self/root{data} /proc/1/root{data} /proc/1/cwd{data} 2>/dev/null");
    ok(&server, &id, &outside).await;

    // The lock on the secret itself: a rule may not send it elsewhere.
    let elsewhere = rule(json!({"name": "r", "hosts": ["other.example.com"], "bearer": "{secret:KEY}"}));
    let update = UpdateSandbox { egress: Some(policy(vec![elsewhere])), ..UpdateSandbox::default() };
    assert_eq!(code(server.client.update_sandbox(&id, &update).await), Code::Forbidden);
    // A secret that goes away is refused by name.
    server.client.delete_secret(None, "KEY").await.unwrap();
    let gone = ok(&server, &id, "curl -sSi https://api.example.com/echo").await.stdout;
    assert!(gone.starts_with("HTTP/1.1 403") && gone.contains("no secret 'KEY'"), "{gone}");
    assert!(!server.log().contains(SECRET));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_change_while_a_sandbox_runs_and_outlive_the_server() {
    let world = World::new().await;
    let mut server = Server::with(&world.args());
    put(&server, "KEY", &["*"]).await;
    let id = sandbox(&server, Vec::new()).await;
    // Not looked into: the world's authority is not trusted inside, and ours is not there.
    assert_ne!(server.sh(&id, "curl -sS https://api.example.com/echo").await.code, Some(0));
    ok(&server, &id, "test ! -e /etc/atoll && test -z \"$CURL_CA_BUNDLE\"").await;

    let first = rule(json!({"name": "r", "hosts": ["api.example.com"], "bearer": "{secret:KEY}",
        "placeholders": [{"secret": "KEY", "env": "MY_KEY"}], "env": {"FIXED": "1"}}));
    let change = |rules| UpdateSandbox { egress: Some(policy(rules)), ..UpdateSandbox::default() };
    server.client.update_sandbox(&id, &change(vec![first.clone()])).await.unwrap();
    let echo = "curl -sS https://api.example.com/echo";
    assert!(ok(&server, &id, echo).await.stdout.contains("Bearer <SECRET>"));
    let before = ok(&server, &id, "echo $MY_KEY $FIXED").await.stdout;
    assert!(before.starts_with("atoll_secret_") && before.ends_with(" 1\n"), "{before}");

    // Another rule, the same placeholder.
    let second =
        InjectRule { headers: BTreeMap::from([("x-team".to_owned(), "a".parse().unwrap())]), ..first };
    server.client.update_sandbox(&id, &change(vec![second])).await.unwrap();
    assert!(ok(&server, &id, echo).await.stdout.contains("\"x-team\": \"a\""));
    assert_eq!(ok(&server, &id, "echo $MY_KEY $FIXED").await.stdout, before);

    // The server dies and comes back: the same authority, the same rules.
    server.kill();
    server.restart();
    assert!(ok(&server, &id, echo).await.stdout.contains("Bearer <SECRET>"));
    assert_eq!(ok(&server, &id, "echo $MY_KEY $FIXED").await.stdout, before);

    // Values for this sandbox alone win over the server's.
    let private = BTreeMap::from([("KEY".to_owned(), Secret::new("another-value"))]);
    let update = UpdateSandbox { secrets: private, ..UpdateSandbox::default() };
    let answer = server.client.update_sandbox(&id, &update).await.unwrap();
    assert!(!serde_json::to_string(&answer).unwrap().contains("another-value"));
    assert!(ok(&server, &id, echo).await.stdout.contains("Bearer another-value"));
    assert_eq!(server.client.list_secrets(None).await.unwrap().items.len(), 1, "it is not the server's");

    // Another key that may change the sandbox cannot send its values elsewhere, neither as they are nor by way of an
    // older version.
    let other = atoll_api::CreateKey {
        name: "other".into(),
        scope: Scope::Manage,
        ttl_ms: None,
        format: atoll_core::key::KeyFormat::Atoll,
        project: None,
    };
    let other = server.client.create_key(&other).await.unwrap();
    let other = Client::new(&server.url, &other.secret).unwrap();
    let elsewhere = |secret: &str| {
        rule(json!({"name": "r", "hosts": ["other.example.com"], "bearer": format!("{{secret:{secret}}}")}))
    };
    assert_eq!(code(other.update_sandbox(&id, &change(vec![elsewhere("KEY")])).await), Code::Forbidden);
    let mut taken = change(vec![elsewhere("KEY@1")]);
    taken.secrets.insert("KEY".to_owned(), Secret::new("of-the-other"));
    other.update_sandbox(&id, &taken).await.unwrap();
    let refused = server.sh(&id, "curl -sS https://other.example.com/echo").await;
    assert!(!refused.stdout.contains("another-value"), "{refused:?}");

    // A rule that names a secret which does not exist.
    let wrong = rule(json!({"name": "r", "hosts": ["api.example.com"], "bearer": "{secret:NONE}"}));
    assert_eq!(code(server.client.update_sandbox(&id, &change(vec![wrong])).await), Code::SecretNotFound);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_say_what_is_wrong_and_no_secret() {
    let world = World::new().await;
    let server = Server::with(&world.args());
    put(&server, "KEY", &["*"]).await;
    let newline = PutSecret {
        value: Some(Secret::new(format!("{SECRET}\n{SECRET}"))),
        scope: Some(serde_json::from_value(json!({ "hosts": ["*"] })).unwrap()),
        note: None,
    };
    server.client.put_secret(None, "LINES", &newline).await.unwrap();
    let everywhere = |name: &str, host: &str, secret: &str| {
        rule(json!({"name": name, "hosts": [host], "bearer": format!("{{secret:{secret}}}"),
            "headers": {"x-key": format!("{{secret:{secret}}}")},
            "query": {"key": format!("{{secret:{secret}}}")}, "mask_responses": true}))
    };
    let rules = vec![
        everywhere("api", "api.example.com", "KEY"),
        everywhere("lines", "lines.example.com", "LINES"),
        // The certificate of the servers outside is not for this name.
        everywhere("wrong", "wrong.example.net", "KEY"),
    ];
    let id = sandbox(&server, rules).await;
    // Cannot be sent; cannot be verified; breaks off in the middle; is compressed though it must not be.
    for (url, status, why) in [
        ("https://lines.example.com/echo", "503", "cannot be sent"),
        ("https://wrong.example.net/echo", "502", "certificate"),
        ("https://api.example.com/gzip", "502", "compressed"),
    ] {
        let answer = ok(&server, &id, &format!("curl -sSi --max-time 30 '{url}?a=b'")).await.stdout;
        assert!(answer.contains(status) && answer.contains(why), "{url}: {answer}");
        assert!(!answer.contains(SECRET), "{url}: {answer}");
    }
    let aborted = server.sh(&id, "curl -sSi --max-time 30 https://api.example.com/abort 2>&1").await;
    assert!(!aborted.stdout.contains(SECRET), "{aborted:?}");
    // Every form that masking knows.
    let shown = ok(&server, &id, "curl -sS -u me:x https://api.example.com/forms").await.stdout;
    assert!(shown.contains("forms:") && shown.contains("****"), "{shown}");
    for form in [SECRET.to_owned(), SECRET.replace('/', "%2F"), SECRET.replace('/', "\\/")] {
        assert!(!shown.contains(&form), "{form}: {shown}");
    }
    // The record of uses has paths without queries; neither it nor the log has values.
    let uses = server.send(server.request("GET", "/v1/secret-uses")).await.text();
    assert!(uses.contains("/gzip") && !uses.contains("a=b") && !uses.contains(SECRET), "{uses}");
    assert!(!server.log().contains(SECRET));
    server.finish().await;
}
