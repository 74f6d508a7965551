//! Requests with an idempotency key.

use atoll_core::key::Scope;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Harness, path_of};

/// A request with an idempotency key.
async fn keyed(harness: &Harness, path: &str, key: &str, body: Value) -> Answer {
    harness.send(harness.request(Method::POST, path).header("idempotency-key", key).json(&body)).await
}

#[tokio::test]
async fn a_repeated_creation_makes_one_sandbox() {
    let harness = Harness::start().await;
    let body = json!({ "labels": { "a": "b" } });
    let (first, second) = tokio::join!(
        keyed(&harness, "/v1/sandboxes", "k", body.clone()),
        keyed(&harness, "/v1/sandboxes", "k", body.clone()),
    );
    assert_eq!((first.status, second.status), (201, 201));
    assert_eq!(first.body, second.body);
    let other = keyed(&harness, "/v1/sandboxes", "k", json!({})).await;
    assert_eq!((other.status, other.code()), (409, "idempotency_mismatch"));
    // A request that was refused may be sent again, and another caller's key is another key.
    let refused = json!({ "image": "absent" });
    for _ in 0..2 {
        assert_eq!(keyed(&harness, "/v1/sandboxes", "r", refused.clone()).await.code(), "image_not_found");
    }
    let manager = harness.bare(Method::POST, "/v1/sandboxes").bearer_auth(harness.key(Scope::Manage));
    let theirs = harness.send(manager.header("idempotency-key", "k").json(&body)).await;
    assert_ne!(theirs.body["id"], first.body["id"]);
    assert_eq!(harness.get("/v1/sandboxes").await.body["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn idempotency_keys_stand_where_they_count() {
    let harness = Harness::start().await;
    let anybody = harness.bare(Method::POST, "/v1/sandboxes").header("idempotency-key", "k").json(&json!({}));
    assert_eq!(harness.send(anybody).await.status, 401);
    let sandbox = harness.sandbox(json!({})).await.id;
    for (path, key) in
        [("/v1/keys", "k"), (&*format!("/v1/sandboxes/{sandbox}/execs"), "k"), ("/v1/sandboxes", "a b")]
    {
        let answer = keyed(&harness, path, key, json!({})).await;
        assert_eq!((answer.status, answer.code()), (400, "invalid_argument"), "{path}");
    }
    // Standard input arrives once.
    let exec = harness.exec(&sandbox, "cat", json!({ "stdin": true })).await.exec;
    let path = path_of(&exec);
    for query in ["", "", "?close=true"] {
        let request = harness.request(Method::POST, &format!("{path}/stdin{query}"));
        let key = format!("stdin{query}");
        let answer = harness.send(request.header("idempotency-key", &key).body("once ")).await;
        assert_eq!((answer.status, &answer.body["bytes"]), (200, &json!(5)));
    }
    harness.get(&format!("{path}?wait_ms=60000")).await;
    let page = harness.get(&format!("{path}/output")).await.body;
    assert_eq!(page["next_offset"], 10, "{page}");
}
