//! What changes in the middle of a request: a right ends, a name passes on to another sandbox.

use atoll_core::key::Scope;
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Key, key, objects, operations, remove};
use crate::support::Harness;

/// A key that is deleted, or a role that is taken away, in the middle: open streams end, and no request begins any
/// more.
#[tokio::test]
async fn a_right_that_ends_in_the_middle_ends_what_is_open() {
    let harness = Harness::start().await;
    let owner = key(&harness, Scope::Manage).await;
    let friend = key(&harness, Scope::Manage).await;
    let on = objects(&harness, &owner).await;
    let grant = format!("/v1/sandboxes/{}/sharing/{}", on.sandbox, friend.id);
    let sleeps = json!({"argv": ["sleep", "1000"]});
    let exec = harness.request(Method::POST, &format!("/v1/sandboxes/{}/execs", on.sandbox)).json(&sleeps);
    let exec = harness.send(exec).await.body["exec"]["id"].as_str().unwrap().to_owned();
    let poll = format!("/v1/sandboxes/{}/execs/{exec}?wait_ms=60000", on.sandbox);
    for ends in ["role", "key"] {
        let granted = harness.request(Method::PUT, &grant).json(&json!({"role": "exec"}));
        assert_eq!(harness.send(granted).await.status, 200);
        let waiting = harness.bare(Method::GET, &poll).bearer_auth(&friend.secret).send();
        let waiting = tokio::spawn(waiting);
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        assert!(!waiting.is_finished());
        let path = if ends == "role" { grant.clone() } else { format!("/v1/keys/{}", friend.id) };
        assert!(harness.delete(&path).await.status < 300);
        assert_eq!(waiting.await.unwrap().unwrap().status().as_u16(), 401, "{ends}");
        let again = harness.send(harness.bare(Method::GET, &poll).bearer_auth(&friend.secret)).await;
        assert_eq!(again.status, if ends == "role" { 404 } else { 401 });
    }
}

/// The key is deleted while the body of a request comes: nothing is done any more.
#[tokio::test]
async fn a_right_that_ends_while_a_body_comes_does_nothing_more() {
    let harness = Harness::start().await;
    let owner = key(&harness, Scope::Manage).await;
    let mut began = 0;
    for operation in operations("{sandbox}") {
        // An operation that takes no body does not wait for one.
        if [Method::GET, Method::DELETE].contains(&operation.method) {
            continue;
        }
        let on = objects(&harness, &owner).await;
        let friend = key(&harness, Scope::Manage).await;
        let id = on.sandbox.parse().unwrap();
        harness.engine.grant(&id, &friend.id, atoll_core::sharing::Role::Manage).await.unwrap();
        let path = operation.path.replace("{sandbox}", &on.sandbox).replace("{exec}", &on.exec);
        let mut stream = TcpStream::connect(&harness.address).await.unwrap();
        let head = format!(
            "{} {}?path=/x HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\nconnection: close\r\n\
             expect: 100-continue\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n",
            operation.method, path, harness.address, friend.secret
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut first = [0; 32];
        let len = stream.read(&mut first).await.unwrap_or_default();
        harness.engine.delete_key(&friend.id).await.unwrap();
        if first[..len].starts_with(b"HTTP/1.1 100") {
            began += 1;
            drop(stream.write_all(b"{}").await);
            let mut answer = String::new();
            drop(stream.read_to_string(&mut answer).await);
            assert!(!answer.starts_with("HTTP/1.1 2"), "{}: {answer}", operation.name);
        }
        remove(&harness, &on).await;
    }
    assert!(began > 10, "only {began} operations read a body");
}

/// A name is looked up once: the sandbox that was checked is the one that is used, however long the body takes.
#[tokio::test]
async fn a_name_that_passes_on_meanwhile_is_not_followed() {
    let harness = Harness::start().await;
    let mine = key(&harness, Scope::Manage).await;
    let theirs = key(&harness, Scope::Manage).await;
    let make = async |by: &Key, visibility: &str| {
        let body = json!({"name": "web", "visibility": visibility});
        let made = harness.bare(Method::POST, "/v1/sandboxes").bearer_auth(&by.secret).json(&body);
        let made = harness.send(made).await;
        assert_eq!(made.status, 201, "{made:?}");
        made.body["id"].as_str().unwrap().to_owned()
    };
    let first = make(&mine, "shared").await;
    let body = r#"{"argv":["echo","hijacked"],"wait_ms":10000}"#;
    let mut stream = TcpStream::connect(&harness.address).await.unwrap();
    let head = format!(
        "POST /v1/sandboxes/web/execs HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        harness.address,
        mine.secret,
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // The server checks the key and the name before it reads the body. The test cannot see when it has, so it waits a
    // little.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(harness.delete(&format!("/v1/sandboxes/{first}")).await.status, 204);
    let second = make(&theirs, "private").await;
    // The server may have broken off already, since the sandbox is gone.
    drop(stream.write_all(body.as_bytes()).await);
    let mut answer = String::new();
    drop(stream.read_to_string(&mut answer).await);
    assert!(!answer.starts_with("HTTP/1.1 201"), "{answer}");
    let execs = harness.get(&format!("/v1/sandboxes/{second}/execs")).await;
    assert_eq!(execs.body["items"], json!([]), "nothing runs in another's sandbox");
}
