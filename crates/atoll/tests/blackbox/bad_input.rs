//! Bad input: each gives its own code, names what is wrong, and changes nothing. One table for the whole
//! surface (`cases`), then the cases that do not fit a table.

mod cases;

use std::time::Duration;

use crate::common::shell;
use atoll_api::{CreateKey, CreateSandbox, KeyFormat};
use atoll_blackbox::{Server, host, wait_until};
use atoll_client::ListSandboxes;
use atoll_core::key::Scope;
use serde_json::{Value, json};

/// How much there is of a server on the host once it has made everything that it keeps ready.
async fn settled(server: &Server) -> usize {
    let mut last = usize::MAX;
    loop {
        let now = host::remains(&server.installation(), server.data()).len();
        if now == last {
            return now;
        }
        last = now;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_has_its_code_and_changes_nothing() {
    let server = Server::with(&["--registry-allow", "127.0.0.1:1"]);
    let create = CreateSandbox { name: Some("taken".into()), ..CreateSandbox::default() };
    let sandbox = server.client.create_sandbox(&create).await.unwrap().id;
    let exec = server.run(&sandbox, shell("echo x")).await.exec.id;
    let running = server.shell(&sandbox, "sleep 1000").await;
    let before = settled(&server).await;
    let state = async || {
        let files = server.sh(&sandbox, "find /etc /home /tmp -xdev | sort | cksum").await.stdout;
        let boxes = server.client.list_sandboxes(&ListSandboxes::default()).await.unwrap().items.len();
        (files, boxes)
    };
    let state_before = state().await;
    let mut wrong = Vec::new();
    for (method, path, body, status, code, names) in cases::cases(&sandbox, &exec, &running) {
        let mut request = server.request(method, &path);
        if !body.is_null() {
            request = request.json(&body);
        }
        let answer = server.send(request).await;
        let error = answer.json();
        let text =
            format!("{} {}", error["message"].as_str().unwrap_or(""), error["hint"].as_str().unwrap_or(""));
        let id = answer.headers.get("x-request-id").and_then(|id| id.to_str().ok());
        let good = answer.status == status
            && error["code"] == code
            && text.contains(names)
            && error["retryable"].is_boolean()
            && id.is_some_and(|id| error["request_id"] == id)
            && text.len() < 1000;
        if !good {
            wrong.push(format!(
                "{method} {path:.90} {body:.90}: want {status} {code} naming '{names}', got {} {}",
                answer.status,
                answer.text()
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(state().await, state_before);
    // A few execs of this test itself may be on their way out; nothing new stays.
    wait_until("what was refused to be gone", async || {
        (host::remains(&server.installation(), server.data()).len() <= before).then_some(())
    })
    .await;
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_no_bodies() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let cases: [(&str, Vec<u8>, u16, &str); 7] = [
        ("/v1/sandboxes", b"{\"name\": ".to_vec(), 400, "invalid_json"),
        ("/v1/sandboxes", b"{} {}".to_vec(), 400, "invalid_json"),
        ("/v1/sandboxes", b"\xff\xfe{}".to_vec(), 400, "invalid_json"),
        ("/v1/sandboxes", "[".repeat(100_000).into_bytes(), 400, "invalid_json"),
        ("/v1/sandboxes", vec![b' '; (1 << 20) + 1], 413, "too_large"),
        ("/v1/images/load", b"this is no tar".to_vec(), 422, "image_invalid"),
        ("/v1/images/import?name=x", b"this is no tar".to_vec(), 422, "image_invalid"),
    ];
    for (path, body, status, code) in cases {
        let answer = server.send(server.request("POST", path).body(body)).await;
        assert_eq!(
            (answer.status, answer.json()["code"].as_str()),
            (status, Some(code)),
            "{path}: {}",
            answer.text()
        );
    }
    let stdin = format!("/v1/sandboxes/{sandbox}/execs/{}/stdin", server.shell(&sandbox, "sleep 100").await);
    let answer = server.send(server.request("POST", &stdin).body(vec![0; (1 << 20) + 1])).await;
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (413, Some("too_large")),
        "{}",
        answer.text()
    );
    let garbage = format!("/v1/sandboxes/{sandbox}/archive?path=/tmp");
    let answer = server.send(server.request("PUT", &garbage).body("this is no tar")).await;
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (400, Some("path_invalid")),
        "{}",
        answer.text()
    );
    // Members that lead out of the directory are refused, and nothing of them is written.
    for name in ["../escaped", "/tmp/../escaped", "a/../../escaped"] {
        let tar = atoll_testing::tar_of(&[atoll_testing::Entry::file(name, b"x")]);
        let answer = server
            .send(
                server.request("PUT", &format!("/v1/sandboxes/{sandbox}/archive?path=/home/user")).body(tar),
            )
            .await;
        assert_eq!(
            (answer.status, answer.json()["code"].as_str()),
            (400, Some("path_invalid")),
            "{name}: {}",
            answer.text()
        );
        assert_eq!(server.sh(&sandbox, "ls /home/escaped /escaped 2>/dev/null").await.stdout, "", "{name}");
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_do_what_their_scope_says() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let exec = server.run(&sandbox, shell("echo x")).await.exec.id;
    for (key, status) in [("", 401), ("nonsense", 401), ("atl_0000000000000000000000000000000000000000", 401)]
    {
        let answer = server.send(server.bare("GET", "/v1/sandboxes").bearer_auth(key)).await;
        assert_eq!((answer.status, answer.json()["code"].as_str()), (status, Some("unauthorized")));
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
    }
    assert_eq!(server.send(server.bare("GET", "/v1/info")).await.status, 401);
    assert_eq!(server.send(server.bare("GET", "/metrics")).await.status, 401);
    assert_eq!(server.send(server.bare("GET", "/healthz")).await.status, 200);
    let at = |rest: &str| format!("/v1/sandboxes/{sandbox}{rest}");
    // The scope that each call needs, and the answer to a key that has it.
    let calls = [
        ("GET", at(""), Value::Null, Scope::Read),
        ("GET", at(&format!("/execs/{exec}/output")), Value::Null, Scope::Read),
        ("GET", at("/files?path=/etc/passwd"), Value::Null, Scope::Read),
        ("POST", at("/execs"), json!({"shell": "true"}), Scope::Exec),
        ("PUT", at("/files?path=/tmp/f"), Value::Null, Scope::Exec),
        ("DELETE", at(&format!("/execs/{exec}")), Value::Null, Scope::Exec),
        ("PATCH", at(""), json!({}), Scope::Manage),
        ("POST", "/v1/images/prune".into(), Value::Null, Scope::Manage),
        ("POST", "/v1/templates".into(), json!({"name": "t", "image": "host"}), Scope::Manage),
        ("GET", "/v1/keys".into(), Value::Null, Scope::Admin),
        ("GET", "/v1/registries".into(), Value::Null, Scope::Admin),
        ("GET", "/v1/nodes".into(), Value::Null, Scope::Admin),
        ("GET", "/v1/doctor/cluster".into(), Value::Null, Scope::Admin),
    ];
    for scope in [Scope::Read, Scope::Exec, Scope::Manage, Scope::Admin] {
        let create =
            CreateKey { name: "test".into(), scope, ttl_ms: None, format: KeyFormat::Atoll, project: None };
        let made = server.client.create_key(&create).await.unwrap();
        for (method, path, body, needs) in &calls {
            let request = server.bare(method, path).bearer_auth(made.secret.reveal());
            let request = if body.is_null() { request } else { request.json(body) };
            let answer = server.send(request).await;
            let want = scope >= *needs;
            assert_eq!(answer.status < 300, want, "{scope:?} {method} {path}: {}", answer.text());
            if !want {
                assert_eq!((answer.status, answer.json()["code"].as_str()), (403, Some("forbidden")));
            }
        }
        server.client.delete_key(&made.key.id).await.unwrap();
        let answer = server.send(server.bare("GET", "/v1/info").bearer_auth(made.secret.reveal())).await;
        assert_eq!(answer.status, 401, "a deleted key works");
    }
    let short = CreateKey {
        name: "short".into(),
        scope: Scope::Read,
        ttl_ms: Some(1),
        format: KeyFormat::Atoll,
        project: None,
    };
    let short = server.client.create_key(&short).await.unwrap();
    let expired = async || {
        let answer = server.send(server.bare("GET", "/v1/info").bearer_auth(short.secret.reveal())).await;
        (answer.status == 401).then_some(())
    };
    wait_until("a key to expire", expired).await;
    // Secrets are nowhere in the data directory, and not in the log.
    let grep =
        std::process::Command::new("grep").args(["-rlF", &server.key]).arg(server.data()).output().unwrap();
    assert!(grep.stdout.is_empty(), "the key is on disk: {grep:?}");
    assert!(!server.log().contains(&server.key));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_web_sites_may_not() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let foreign =
        |method: &str, path: &str| server.request(method, path).header("origin", "http://evil.example");
    for (method, path) in
        [("POST", "/v1/sandboxes".to_owned()), ("DELETE", format!("/v1/sandboxes/{sandbox}"))]
    {
        let answer = server.send(foreign(method, &path).json(&json!({}))).await;
        assert_eq!((answer.status, answer.json()["code"].as_str()), (403, Some("forbidden")));
    }
    assert_eq!(server.send(foreign("GET", "/v1/info")).await.status, 200);
    let own = server.request("POST", "/v1/images/prune").header("origin", &server.url);
    assert_eq!(server.send(own).await.status, 200);
    server.finish().await;
}

/// A client that begins to speak HTTP/2 and then says nothing keeps its connection no longer than a client that says
/// nothing at all.
#[tokio::test(flavor = "multi_thread")]
async fn silence_ends_a_connection_whatever_was_begun() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let server = Server::start();
    let address = server.url.trim_start_matches("http://").to_owned();
    let begun: [&[u8]; 5] = [b"", b"P", b"PRI ", b"PRI * HTTP/2.0\r\n\r\nSM", b"SSH"];
    let open = begun.map(|bytes| {
        let address = address.clone();
        async move {
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            stream.write_all(bytes).await.unwrap();
            // It is over when nothing more comes.
            let mut answer = Vec::new();
            let ended = stream.read_to_end(&mut answer);
            tokio::time::timeout(Duration::from_secs(240), ended).await
        }
    });
    for (bytes, ended) in begun.iter().zip(futures::future::join_all(open).await) {
        let said = String::from_utf8_lossy(bytes);
        assert!(ended.is_ok(), "{said:?} holds its connection");
    }
    server.finish().await;
}

/// What the kernel of a sandbox does not let go is a refusal, and no fault of the server.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_removed_is_refused() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    for path in ["/", "/proc"] {
        let call = format!("/v1/sandboxes/{sandbox}/files?path={path}&recursive=true");
        let answer = server.request("DELETE", &call).send().await.unwrap();
        assert_eq!(answer.status(), 403, "{path}: {:?}", answer.text().await);
    }
    server.sh(&sandbox, "ls /proc/self").await.ok();
    server.finish().await;
}
