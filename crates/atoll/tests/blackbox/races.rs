//! Forks and copies of what is deleted, paused or removed at the same time: each request is done, or is refused with what
//! happened; none fails, and nothing is left over.

use std::time::Duration;

use atoll_blackbox::Server;
use serde_json::{Value, json};

/// How often each race is run, each time a little later.
const ROUNDS: u32 = 16;
const STEP: Duration = Duration::from_millis(4);
/// How often a test looks for something that is about to be there.
const LOOKS_MAX_COUNT: usize = 5000;

/// Sends a request after a pause; gives its status and body.
async fn after(server: &Server, pause: Duration, method: &str, path: &str, body: Value) -> (u16, Value) {
    tokio::time::sleep(pause).await;
    let request = server.request(method, path);
    let answer = server.send(if body.is_null() { request } else { request.json(&body) }).await;
    let told = serde_json::from_str(&answer.text()).unwrap_or(Value::Null);
    assert!(answer.status < 500, "{method} {path}: {} {told}", answer.status);
    (answer.status, told)
}

/// What became of each child of a fork: none failed for want of a reason.
fn children(told: &Value) -> impl Iterator<Item = &Value> {
    let outcomes = told["results"].as_array().into_iter().flatten();
    outcomes.inspect(|outcome| assert_ne!(outcome["error"]["code"], "internal", "{outcome}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn forks_of_what_goes_meanwhile_are_made_or_refused() {
    let server = Server::with(&["--pool-demand", "0"]);
    let ends: [(&str, &str, Value); 4] = [
        ("DELETE", "", Value::Null),
        ("POST", "/pause", json!({ "mode": "filesystem" })),
        ("POST", "/pause", json!({ "mode": "frozen" })),
        ("POST", "/rollback", json!({ "to": "1" })),
    ];
    for (method, what, body) in ends {
        for round in 0..ROUNDS {
            let path = format!("/v1/sandboxes/{}", server.sandbox().await.id);
            if what == "/rollback" {
                after(&server, Duration::ZERO, "POST", &format!("{path}/checkpoints"), json!({})).await;
            }
            let (fork, end, at) =
                (format!("{path}/fork"), format!("{path}{what}"), format!("{path}/snapshots"));
            let (forked, _taken, _ended) = tokio::join!(
                after(&server, Duration::ZERO, "POST", &fork, json!({ "count": 2 })),
                after(&server, STEP, "POST", &at, json!({})),
                after(&server, STEP * round, method, &end, body.clone()),
            );
            for child in children(&forked.1) {
                if let Some(id) = child["sandbox"]["id"].as_str() {
                    after(&server, Duration::ZERO, "DELETE", &format!("/v1/sandboxes/{id}"), Value::Null)
                        .await;
                }
            }
            after(&server, Duration::ZERO, "DELETE", &path, Value::Null).await;
        }
    }
    let listed = server.send(server.request("GET", "/v1/snapshots?limit=1000")).await.json();
    for snapshot in listed["items"].as_array().unwrap() {
        let path = format!("/v1/snapshots/{}", snapshot["id"].as_str().unwrap());
        assert_eq!(snapshot["state"], "ready", "{snapshot}");
        after(&server, Duration::ZERO, "DELETE", &path, Value::Null).await;
    }
    assert!(server.client.list_leaks().await.unwrap().items.is_empty());
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_of_a_volume_that_is_removed_meanwhile_are_made_or_refused() {
    let server = Server::with(&["--pool-demand", "0"]);
    for round in 0..ROUNDS {
        let body = json!({ "name": "original", "size_bytes": 64 << 20 });
        let (status, made) = after(&server, Duration::ZERO, "POST", "/v1/volumes", body).await;
        assert_eq!(status, 201, "{made}");
        let path = format!("/v1/volumes/{}", made["id"].as_str().unwrap());
        let copy = |number: u32| json!({ "name": format!("copy-{number}"), "from": "original" });
        let (first, second, removed, again) = tokio::join!(
            after(&server, Duration::ZERO, "POST", "/v1/volumes", copy(1)),
            after(&server, STEP, "POST", "/v1/volumes", copy(2)),
            after(&server, STEP * round / 2, "DELETE", &path, Value::Null),
            after(&server, STEP * round / 2, "DELETE", &path, Value::Null),
        );
        assert!([204, 404].contains(&removed.0) && [204, 404].contains(&again.0), "{removed:?} {again:?}");
        for (status, told) in [first, second] {
            assert!([201, 404, 409].contains(&status), "{status} {told}");
        }
        let listed = server.send(server.request("GET", "/v1/volumes")).await.json();
        for volume in listed["items"].as_array().unwrap() {
            assert!(volume["name"].as_str().unwrap().starts_with("copy-"), "{volume}");
            let path = format!("/v1/volumes/{}", volume["id"].as_str().unwrap());
            assert_eq!(after(&server, Duration::ZERO, "DELETE", &path, Value::Null).await.0, 204);
        }
    }
    server.finish().await;
}

/// A child has the visibility and the secrets of its parent, or is none: when the parent is deleted between the snapshot and
/// the making of the child, both are gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_whose_parent_is_deleted_meanwhile_is_not_made_without_its_privacy() {
    let server =
        Server::with_env(&["--pool-demand", "0"], &[("ATOLL_FAILPOINTS", "engine.fork.taken=sleep(4000)")]);
    let path = format!("/v1/sandboxes/{}", server.sandbox().await.id);
    let private = json!({ "visibility": "private" });
    after(&server, Duration::ZERO, "PUT", &format!("{path}/sharing"), private).await;
    let fork = format!("{path}/fork");
    let (forked, deleted) = tokio::join!(
        after(&server, Duration::ZERO, "POST", &fork, json!({ "count": 1 })),
        after(&server, Duration::from_secs(2), "DELETE", &path, Value::Null),
    );
    assert_eq!((forked.0, deleted.0), (200, 204), "{forked:?}");
    let told: Vec<&Value> = children(&forked.1).collect();
    assert_eq!(told.len(), 1);
    let code = told[0]["error"]["code"].as_str().unwrap_or_default();
    assert!(["sandbox_not_found", "invalid_state"].contains(&code), "{told:?}");
    server.finish().await;
}

/// The snapshot that the record of a parent's first child names, as soon as there is a child.
async fn snapshot_of_child(server: &Server, parent: &str) -> String {
    // So often at most: a fork that makes no child is a failure, and nothing to wait for.
    for _ in 0..LOOKS_MAX_COUNT {
        let listed = server.send(server.request("GET", "/v1/sandboxes")).await.json();
        let mut there = listed["items"].as_array().into_iter().flatten();
        if let Some(child) = there.find(|one| one["id"] != *parent) {
            return child["snapshot"].as_str().unwrap().to_owned();
        }
        tokio::time::sleep(STEP).await;
    }
    panic!("the fork has made no child");
}

/// An only child has the disk of the fork's own snapshot: who has that open sees what is done in the child.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_finds_the_snapshot_of_a_fork_under_way() {
    let server =
        Server::with_env(&["--pool-demand", "0"], &[("ATOLL_FAILPOINTS", "engine.fork.made=sleep(4000)")]);
    let parent = server.sandbox().await.id;
    let fork = format!("/v1/sandboxes/{parent}/fork");
    let found = async {
        let snapshot = snapshot_of_child(&server, &parent).await;
        let path = format!("/v1/snapshots/{snapshot}");
        let seen = after(&server, Duration::ZERO, "GET", &path, Value::Null).await;
        let made = json!({ "snapshot": snapshot });
        let made = after(&server, Duration::ZERO, "POST", "/v1/sandboxes", made).await;
        (seen.0, made.0)
    };
    let (forked, found) =
        tokio::join!(after(&server, Duration::ZERO, "POST", &fork, json!({ "count": 1 })), found);
    assert_eq!((forked.0, found), (200, (404, 404)), "{forked:?}");
    for child in children(&forked.1) {
        let path = format!("/v1/sandboxes/{}", child["sandbox"]["id"].as_str().unwrap());
        after(&server, Duration::ZERO, "DELETE", &path, Value::Null).await;
    }
    server.finish().await;
}
