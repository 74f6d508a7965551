//! What is private stays so: what goes on from it, what others are told, and what names lead to.

use atoll_core::Code;
use atoll_core::key::{KeyFormat, Scope};
use atoll_core::project::{ProjectDefaults, Quota};
use reqwest::Method;
use serde_json::{Value, json};

use super::{key, objects};
use crate::support::Harness;

/// What goes on from private things is private, and names of private snapshots are not to be had.
#[tokio::test]
async fn privacy_goes_along() {
    let harness = Harness::start().await;
    let alice = key(&harness, Scope::Manage).await;
    let mallory = harness.key(Scope::Manage);
    let on = objects(&harness, &alice).await;
    let by_alice = |method, path: &str| harness.bare(method, path).bearer_auth(&alice.secret);
    let by_mallory = |method, path: &str| harness.bare(method, path).bearer_auth(mallory);
    let tags = format!("/v1/snapshots/{}/tags", on.snapshot);
    let tagged = by_alice(Method::POST, &tags).json(&json!({"tag": "alice:1"}));
    assert_eq!(harness.send(tagged).await.status, 200);
    // A sandbox of a private snapshot is private without a word.
    let child = by_alice(Method::POST, "/v1/sandboxes").json(&json!({"snapshot": "alice:1"}));
    let child = harness.send(child).await.body["id"].as_str().unwrap().to_owned();
    let child = format!("/v1/sandboxes/{child}");
    assert_eq!(harness.send(by_mallory(Method::GET, &child)).await.status, 404);
    // Nor can another key make its name lead elsewhere.
    let mine = harness.send(by_mallory(Method::POST, "/v1/sandboxes").json(&json!({}))).await;
    let mine = format!("/v1/sandboxes/{}/snapshots", mine.body["id"].as_str().unwrap());
    let taken = harness.send(by_mallory(Method::POST, &mine).json(&json!({"tags": ["alice:1"]}))).await;
    assert_eq!((taken.status, taken.code()), (409, "name_taken"), "{taken:?}");
    let own = harness.send(by_mallory(Method::POST, &mine).json(&json!({"tags": ["mallory:1"]}))).await;
    let own = format!("/v1/snapshots/{}/tags", own.body["id"].as_str().unwrap());
    let moved = harness.send(by_mallory(Method::POST, &own).json(&json!({"tag": "alice:1"}))).await;
    assert_eq!((moved.status, moved.code()), (409, "name_taken"), "{moved:?}");
    let still = harness.send(by_alice(Method::GET, "/v1/snapshots/alice:1")).await;
    assert_eq!(still.body["id"], json!(on.snapshot));
    // A key that sees a template gets what is in it: only a key that may change the snapshot makes a template of it.
    let template = json!({"name": "stolen", "snapshot": "alice:1"});
    let made = harness.send(by_mallory(Method::POST, "/v1/templates").json(&template)).await;
    assert_eq!((made.status, made.code()), (404, "snapshot_not_found"));
    // A snapshot of a private sandbox stays private when the sandbox is gone.
    assert_eq!(harness.delete(&format!("/v1/sandboxes/{}", on.sandbox)).await.status, 204);
    assert_eq!(
        harness.send(by_mallory(Method::GET, "/v1/snapshots")).await.body["items"].as_array().unwrap().len(),
        1
    );
    assert_eq!(harness.send(by_mallory(Method::GET, "/v1/snapshots/alice:1")).await.status, 404);
}

/// Pools by demand say what was asked for lately.
#[tokio::test]
async fn only_an_admin_sees_what_others_ask_for() {
    let harness = Harness::start_with_pools_by_demand().await;
    harness.engine.create_project("one", Quota::default(), ProjectDefaults::default()).await.unwrap();
    let key_of = async |project| {
        harness.engine.create_key_as(KeyFormat::Atoll, "k", Scope::Manage, None, project).await.unwrap()
    };
    let (of_one, of_none) = (key_of(Some("one")).await, key_of(None).await);
    for _ in 0..2 {
        let create = harness.bare(Method::POST, "/v1/sandboxes").json(&json!({}));
        let made = harness.send(create.bearer_auth(of_none.secret.reveal())).await;
        assert_eq!(made.status, 201, "{made:?}");
    }
    let (of_one, of_none) = (of_one.secret.reveal(), of_none.secret.reveal());
    let admin = harness.key(Scope::Admin);
    for (key, origins) in [(of_one, json!([])), (of_none, json!([])), (admin, json!(["demand"]))] {
        let list = harness.send(harness.bare(Method::GET, "/v1/pools").bearer_auth(key)).await;
        let items = list.body["items"].as_array().unwrap();
        let seen: Vec<&Value> = items.iter().map(|pool| &pool["origin"]).collect();
        assert_eq!(json!(seen), origins, "{list:?}");
    }
    let metrics = harness.send(harness.bare(Method::GET, "/metrics").bearer_auth(of_one)).await;
    let metrics = metrics.body.as_str().unwrap();
    assert!(metrics.contains("pool=\"demand\"") && !metrics.contains("demand:"), "{metrics}");
}

/// Objects that all projects have together are changed only with keys that belong to no project.
#[tokio::test]
async fn a_key_of_a_project_changes_nothing_that_all_use() {
    let harness = Harness::start().await;
    harness.engine.create_project("one", Quota::default(), ProjectDefaults::default()).await.unwrap();
    let made =
        harness.engine.create_key_as(KeyFormat::Atoll, "k", Scope::Manage, None, Some("one")).await.unwrap();
    let by = |method, path: &str| harness.bare(method, path).bearer_auth(made.secret.reveal());
    for request in [
        by(Method::POST, "/v1/templates").json(&json!({"name": "t", "image": "host"})),
        by(Method::DELETE, "/v1/templates/t"),
        by(Method::POST, "/v1/builds").json(&json!({"name": "t", "dockerfile": "FROM host"})),
        by(Method::DELETE, "/v1/images/host"),
        by(Method::PUT, "/v1/pools").json(&json!({"image": "host", "min_idle": 1})),
    ] {
        let answered = harness.send(request).await;
        assert_eq!(
            (answered.status, answered.body["code"].as_str()),
            (403, Some("forbidden")),
            "{answered:?}"
        );
    }
    let templates = harness.send(by(Method::GET, "/v1/templates")).await;
    assert_eq!(templates.status, 200);
    // There is no administrator of a project.
    let admin = harness.engine.create_key_as(KeyFormat::Atoll, "k", Scope::Admin, None, Some("one")).await;
    assert_eq!(admin.unwrap_err().code, Code::InvalidArgument);
}

/// No name has the form of an id, whichever way it is given.
#[tokio::test]
async fn nothing_is_called_by_the_id_of_another() {
    let harness = Harness::start().await;
    let victim = harness.sandbox(json!({})).await;
    let attacker = harness.sandbox(json!({})).await;
    let path = format!("/v1/sandboxes/{}", attacker.id);
    for refused in [
        harness.post("/v1/sandboxes", json!({"name": victim.id})).await,
        harness.post(&format!("{path}/fork"), json!({"count": 1, "name": victim.id})).await,
        harness.send(harness.request(Method::PATCH, &path).json(&json!({"name": victim.id}))).await,
        harness.post("/v1/templates", json!({"name": victim.id, "image": "host"})).await,
    ] {
        assert_eq!((refused.status, refused.code()), (400, "invalid_argument"), "{refused:?}");
    }
    assert_eq!(harness.get(&format!("/v1/sandboxes/{}", victim.id)).await.body["id"], json!(victim.id));
}
