//! Sandboxes over the API.

use std::collections::BTreeSet;
use std::time::Duration;

use atoll_api::{BatchResults, Sandbox, SandboxList, ServerInfo};
use atoll_core::spec::SandboxUpdate;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Harness, SANDBOXES_MAX, read};

#[tokio::test]
async fn a_life() {
    let harness = Harness::start().await;
    let made =
        harness.sandbox(json!({ "name": "box", "labels": { "team": "a" }, "ttl_ms": 3_600_000 })).await;
    assert_eq!((made.image.as_str(), made.user.as_str()), ("host", "root"));
    // Its life counts from when it runs, which is a moment later.
    assert!(made.expires_at_ms >= Some(made.created_at_ms + 3_600_000), "{made:?}");
    for name in [made.id.as_str(), "box"] {
        let seen: Sandbox = read(harness.get(&format!("/v1/sandboxes/{name}")).await.body);
        assert_eq!(seen.id, made.id);
    }
    let update = json!({ "ttl_ms": null, "labels": { "team": "b" }, "resources": { "pids": 99 } });
    let changed = harness.send(harness.request(Method::PATCH, "/v1/sandboxes/box").json(&update)).await;
    let changed: Sandbox = read(changed.body);
    assert_eq!((changed.expires_at_ms, changed.resources.pids), (None, 99));
    assert_eq!(changed.labels["team"], "b");

    let metrics = harness.get("/v1/sandboxes/box/metrics").await;
    assert_eq!((metrics.status, &metrics.body["pids"]), (200, &json!(1)));
    assert_eq!(harness.get("/v1/sandboxes/box/ports").await.body, json!({ "items": [] }));
    let info: ServerInfo = read(harness.get("/v1/info").await.body);
    assert_eq!((info.sandboxes, info.sandboxes_max, info.installation.as_str()), (1, 12, "test"));

    assert_eq!(harness.delete("/v1/sandboxes/box").await.status, 204);
    assert_eq!(harness.get("/v1/sandboxes/box").await.code(), "sandbox_not_found");
    assert_eq!(harness.get("/v1/leaks").await.body, json!({ "items": [] }));
}

#[tokio::test]
async fn an_annotation_of_the_servers_own_is_neither_set_nor_shown() {
    let harness = Harness::start().await;
    let made = harness.sandbox(json!({ "name": "box", "annotations": { "mine": "1" } })).await;
    let id = made.id.parse().unwrap();
    let annotations = [("atoll-x".to_owned(), Some("2".to_owned()))].into();
    let update = SandboxUpdate { annotations, ..SandboxUpdate::default() };
    harness.engine.update_sandbox(&id, update).await.unwrap();
    let listed = harness.get("/v1/sandboxes").await.body;
    assert_eq!(listed["items"][0]["annotations"], json!({ "mine": "1" }));
    for value in [json!("3"), Value::Null] {
        let change = json!({ "annotations": { "atoll-x": value } });
        let refused = harness.send(harness.request(Method::PATCH, "/v1/sandboxes/box").json(&change)).await;
        assert_eq!((refused.status, refused.code()), (400, "invalid_argument"));
    }
    let refused = harness.post("/v1/sandboxes", json!({ "annotations": { "atoll-x": "" } })).await;
    assert_eq!((refused.status, refused.code()), (400, "invalid_argument"));
    assert_eq!(harness.engine.sandbox(&id).unwrap().annotations["atoll-x"], "2");
}

#[tokio::test]
async fn pages_hold_each_sandbox_once() {
    let harness = Harness::start().await;
    let mut made = BTreeSet::new();
    for number in 0..7 {
        let body =
            json!({ "name": format!("n{number}"), "labels": { "even": (number % 2 == 0).to_string() } });
        made.insert(harness.sandbox(body).await.id);
    }
    let mut seen = BTreeSet::new();
    let mut path = "/v1/sandboxes?limit=3".to_owned();
    let mut pages = 0;
    loop {
        let page: SandboxList = read(harness.get(&path).await.body);
        pages += 1;
        for sandbox in page.items {
            assert!(seen.insert(sandbox.id));
        }
        let Some(cursor) = page.next_cursor else { break };
        path = format!("/v1/sandboxes?limit=3&cursor={cursor}");
    }
    assert_eq!((seen, pages), (made, 3));
    for (query, count) in [
        ("label=even%3Dtrue", 4),
        ("label=even%3Dtrue&name_prefix=n0", 1),
        ("label=even%3Dtrue&label=odd%3Dtrue", 0),
        ("name_prefix=x", 0),
        ("state=running&state=failed", 7),
        ("state=failed", 0),
    ] {
        let page = harness.get(&format!("/v1/sandboxes?{query}")).await;
        assert_eq!(page.body["items"].as_array().map(Vec::len), Some(count), "{query}: {}", page.body);
    }
}

#[tokio::test]
async fn a_batch_fails_one_by_one() {
    let harness = Harness::start().await;
    let mut sandboxes = vec![json!({ "name": "a" }), json!({ "name": "Bad" }), json!({ "image": "no:such" })];
    sandboxes.extend((0..SANDBOXES_MAX).map(|_| json!({})));
    let answer = harness.post("/v1/sandboxes/batch", json!({ "sandboxes": sandboxes })).await;
    let results: BatchResults = read(answer.body);
    let codes: Vec<_> = results
        .results
        .iter()
        .map(|one| one.error.as_ref().map_or("ok", |error| error.code.as_str()))
        .collect();
    assert_eq!(&codes[1..3], ["invalid_argument", "image_not_found"]);
    assert_eq!(codes.iter().filter(|code| **code == "ok").count(), SANDBOXES_MAX);
    assert_eq!(codes.iter().filter(|code| **code == "limit_exceeded").count(), 1);
    for result in results.results {
        assert!(result.sandbox.is_some() != result.error.is_some());
    }
    let response = harness.request(Method::POST, "/v1/sandboxes").json(&json!({})).send().await.unwrap();
    assert_eq!((response.status().as_u16(), response.headers()["retry-after"].to_str().unwrap()), (429, "1"));
}

#[tokio::test]
async fn what_cannot_be_made_leaves_nothing() {
    let harness = Harness::start().await;
    harness.host.fail_create(1, true);
    let response = harness.request(Method::POST, "/v1/sandboxes").json(&json!({})).send().await.unwrap();
    assert_eq!(response.status().as_u16(), 500);
    assert_eq!(harness.get("/v1/sandboxes").await.body["items"], json!([]));
    assert_eq!(harness.get("/v1/leaks").await.body["items"], json!([]));
    harness.sandbox(json!({})).await;
}

#[tokio::test]
async fn a_fork_lives_as_long_as_was_said_last() {
    const TTL_MS: u64 = 600_000;
    let (harness, clock) = Harness::start_by_hand().await;
    let parent = harness.sandbox(json!({ "ttl_ms": TTL_MS })).await.id;
    let fork = async |body: Value| {
        let answer = harness.post(&format!("/v1/sandboxes/{parent}/fork"), body).await;
        let child = &answer.body["results"][0]["sandbox"];
        let end = child["expires_at_ms"].as_u64();
        end.map(|end| end - child["created_at_ms"].as_u64().unwrap_or_else(|| panic!("{answer:?}")))
    };
    assert_eq!(fork(json!({})).await, Some(TTL_MS));
    // Extended twice, the parent has an end that is far from its creation.
    for given in [TTL_MS, TTL_MS / 2] {
        clock.advance(Duration::from_millis(TTL_MS / 2));
        let extended = harness.request(Method::PATCH, &format!("/v1/sandboxes/{parent}"));
        assert_eq!(harness.send(extended.json(&json!({ "ttl_ms": given }))).await.status, 200);
        assert_eq!(fork(json!({})).await, Some(given));
    }
    assert_eq!(fork(json!({ "ttl_ms": 5 * TTL_MS })).await, Some(5 * TTL_MS));
    let endless = harness.request(Method::PATCH, &format!("/v1/sandboxes/{parent}"));
    assert_eq!(harness.send(endless.json(&json!({ "ttl_ms": null }))).await.status, 200);
    assert_eq!(fork(json!({})).await, None);
}
