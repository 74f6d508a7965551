//! Rules for one program: requests of other programs get no further, and no other program can pass for it.

use crate::common::code;
use crate::common::world::{SECRET, World};
use atoll_api::{CreateSandbox, PutSecret, UpdateSandbox};
use atoll_blackbox::{Output, Server};
use atoll_core::Code;
use atoll_core::policy::EgressPolicy;
use atoll_core::secret::Secret;
use serde_json::{Value, json};

fn policy(value: Value) -> EgressPolicy {
    serde_json::from_value(value).unwrap()
}

async fn sandbox(server: &Server, egress: Value) -> String {
    let create = CreateSandbox { egress: Some(policy(egress)), ..CreateSandbox::default() };
    server.client.create_sandbox(&create).await.unwrap().id
}

async fn ok(server: &Server, sandbox: &str, line: &str) -> Output {
    let output = server.sh(sandbox, line).await;
    assert_eq!(output.code, Some(0), "{line}: {output:?}\n{}", server.log());
    output
}

const CURL: &str = "curl -sSk -m 20 https://api.example.com/echo";
const PYTHON: &str = "python3 -c \"import ssl, urllib.request as u; \
    print(u.urlopen('https://api.example.com/echo', timeout=20, context=ssl._create_unverified_context()).read().decode())\"";

/// Whether the server outside answered.
async fn reaches(server: &Server, sandbox: &str, line: &str) -> bool {
    let output = server.sh(sandbox, line).await;
    output.stdout.contains("\"headers\"") || output.stdout.starts_with("HTTP/1.1 200")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_program_may_reach_no_other_reaches() {
    let world = World::new().await;
    let mut server = Server::with(&world.args());
    let made = server.cli(&["create", "--allow-from", "/usr/bin/curl=api.example.com:443"]).ok();
    let id = made.stdout.trim().to_owned();
    assert!(reaches(&server, &id, CURL).await, "{}", server.log());
    assert!(reaches(&server, &id, &format!("ln -s /usr/bin/curl /tmp/link; /tmp/link{}", &CURL[4..])).await);
    let others = [
        PYTHON.to_owned(),
        format!("cp /usr/bin/curl /tmp/curl; /tmp/curl{}", &CURL[4..]),
        format!(
            "cp /usr/bin/python3 /tmp/curl; bash -c 'exec -a /usr/bin/curl /tmp{}'",
            &PYTHON.replace("python3", "/curl")
        ),
        format!("unshare --user --map-root-user {PYTHON}"),
        "python3 -c \"import socket; s = socket.create_connection(('10.0.2.2', 3128), 20); \
         s.sendall(b'CONNECT api.example.com:443 HTTP/1.1\\r\\nHost: api.example.com:443\\r\\n\\r\\n'); \
         print(s.recv(65536).decode())\""
            .to_owned(),
    ];
    for line in &others {
        assert!(!reaches(&server, &id, line).await, "{line}");
    }
    // Another server: the programs in the kernel went on, and know.
    server.kill();
    server.restart();
    assert!(reaches(&server, &id, CURL).await && !reaches(&server, &id, PYTHON).await);
    // At once for the other one, and by content.
    let program = std::fs::canonicalize("/usr/bin/python3").unwrap();
    let sum = std::process::Command::new("sha256sum").arg(program).output().unwrap();
    let digest = format!("sha256:{}", String::from_utf8(sum.stdout).unwrap().split(' ').next().unwrap());
    let egress = json!({"internet": "rules",
        "rules": [{"action": "allow", "domain": "api.example.com", "from": {"digest": digest}}]});
    let update = UpdateSandbox { egress: Some(policy(egress)), ..UpdateSandbox::default() };
    server.client.update_sandbox(&id, &update).await.unwrap();
    assert!(!reaches(&server, &id, CURL).await && reaches(&server, &id, PYTHON).await);
    let open = json!({"internet": "rules", "rules": [{"action": "allow", "domain": "api.example.com"}]});
    let update = UpdateSandbox { egress: Some(policy(open)), ..UpdateSandbox::default() };
    server.client.update_sandbox(&id, &update).await.unwrap();
    assert!(reaches(&server, &id, CURL).await && reaches(&server, &id, PYTHON).await);
    server.client.delete_sandbox(&id).await.unwrap();
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_exec_may_reach_no_other_reaches() {
    let world = World::new().await;
    let mut server = Server::with(&world.args());
    let id = sandbox(&server, json!({"internet": "rules"})).await;
    // Asks again and again, by a child of a child, from a cgroup of its own.
    let asks = format!(
        "while sleep 0.2; do sh -c 'sh -c \"{}\"' >/tmp/asking.$0 2>&1; mv /tmp/asking.$0 /tmp/answer.$0; done",
        CURL.replace("/echo", "/echo?$0")
    );
    let begin = |name: &str| {
        server.cli(&["exec", "--detach", &id, "--", "sh", "-c", &asks, name]).ok().stdout.trim().to_owned()
    };
    let (one, other) = (begin("one"), begin("other"));
    let answers = async |server: &Server, name: &str| {
        // The second answer is to a request that was made after this.
        let rounds = format!(
            "for n in 1 2; do rm -f /tmp/answer.{name}; until [ -e /tmp/answer.{name} ]; do sleep 0.1; done; done"
        );
        ok(server, &id, &format!("{rounds}; cat /tmp/answer.{name}")).await.stdout.contains("\"headers\"")
    };
    assert!(!answers(&server, "one").await && one != other);
    let told =
        server.cli(&["net", "allow", "--from", &format!("exec:{one}"), &id, "api.example.com:443"]).ok();
    assert!(told.stdout.contains(&format!("from exec {one}")), "{}", told.stdout);
    assert!(answers(&server, "one").await, "{}", server.log());
    assert!(!answers(&server, "other").await && !reaches(&server, &id, CURL).await);
    // A cgroup of the same name that a command in the sandbox made does not count.
    let forged = format!(
        "for dir in /sys/fs/cgroup /sys/fs/cgroup/unified; do mkdir $dir/exec-{one} && echo $$ >$dir/exec-{one}/cgroup.procs; done; {CURL}"
    );
    assert!(!reaches(&server, &id, &forged).await);
    server.kill();
    server.restart();
    assert!(answers(&server, "one").await && !answers(&server, "other").await, "{}", server.log());

    let rule = |exec: &str| json!({"internet": "rules", "rules": [{"action": "allow", "domain": "a.example", "from": {"exec": exec}}]});
    let create = CreateSandbox { egress: Some(policy(rule(&one))), ..CreateSandbox::default() };
    let error = server.client.create_sandbox(&create).await.unwrap_err().to_string();
    assert!(error.contains("there is no exec"), "{error}");
    let elsewhere = server.sandbox().await.id;
    for exec in [one.as_str(), "ex0", "exec"] {
        let update = UpdateSandbox { egress: Some(policy(rule(exec))), ..UpdateSandbox::default() };
        assert_eq!(
            code(server.client.update_sandbox(&elsewhere, &update).await),
            Code::InvalidArgument,
            "{exec}"
        );
    }
    server.client.delete_sandbox(&id).await.unwrap();
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_git_gets_the_token() {
    let world = World::new().await;
    let server = Server::with(&world.args());
    let scope = serde_json::from_value(json!({"hosts": ["*.example.com"]})).unwrap();
    let put = PutSecret { value: Some(Secret::new(SECRET)), scope: Some(scope), note: None };
    server.client.put_secret(None, "TOKEN", &put).await.unwrap();
    let of_git = json!({"program": "/usr/lib/git-core/*"});
    let rule = |name: &str, host: &str, from: &Value| {
        json!({"name": name, "hosts": [host], "bearer": "{secret:TOKEN}", "from": from,
            "placeholders": [{"secret": "TOKEN", "env": "TOKEN"}]})
    };
    let curl = json!({"program": "/usr/bin/curl"});
    let inject = json!([rule("git", "git.example.com", &of_git), rule("curl", "api.example.com", &curl)]);
    let id = sandbox(&server, json!({"internet": "on", "inject": inject})).await;
    let clone = "cd /tmp && /usr/bin/git clone -q https://git.example.com/repo.git && cat repo/README";
    assert_eq!(ok(&server, &id, clone).await.stdout, "hello\n");
    // The same host, another program: it is reached, and without the token.
    let get = "curl -s -o /dev/null -w '%{http_code}' https://git.example.com/repo.git/info/refs?service=git-upload-pack";
    let code = server.sh(&id, get).await.stdout;
    assert!(code == "401" || code == "000", "{code}");
    let echo = |output: Output| -> Value { serde_json::from_str(&output.stdout).unwrap() };
    let seen = echo(ok(&server, &id, "curl -sS https://api.example.com/echo").await);
    assert_eq!(seen["headers"]["authorization"], "Bearer <SECRET>", "{seen}");
    let python = "/usr/bin/python3 -c \"import urllib.request as u, os; \
        r = u.Request('https://api.example.com/echo', headers={'Authorization': 'Bearer ' + os.environ['TOKEN']}); \
        print(u.urlopen(r).read().decode())\"";
    let output = server.sh(&id, python).await;
    assert!(!output.stdout.contains("<SECRET>"), "{output:?}");
    server.client.delete_sandbox(&id).await.unwrap();
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_be_told_apart_is_not_named() {
    let server = Server::with(&["--trace", "off"]);
    let egress = |from: Value| {
        policy(
            json!({"internet": "rules", "rules": [{"action": "allow", "domain": "api.example.com", "from": from}]}),
        )
    };
    let create = |from| CreateSandbox { egress: Some(egress(from)), ..CreateSandbox::default() };
    let curl = json!({"program": "/usr/bin/curl"});
    assert_eq!(code(server.client.create_sandbox(&create(curl.clone())).await), Code::Unenforceable);
    let open = server.sandbox().await.id;
    let update = UpdateSandbox { egress: Some(egress(curl)), ..UpdateSandbox::default() };
    assert_eq!(code(server.client.update_sandbox(&open, &update).await), Code::Unenforceable);
    server.finish().await;

    let server = Server::start();
    for (from, why) in [
        (json!({"program": "/usr/bin/gti"}), "egress: from /usr/bin/gti: the image has no '/usr/bin/gti'"),
        (json!({"program": "curl"}), "egress.rules.0.from.program"),
        (json!({"digest": "md5:00"}), "algorithm 'md5' are not known"),
    ] {
        let error = server.client.create_sandbox(&create(from)).await.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    server.finish().await;
}
