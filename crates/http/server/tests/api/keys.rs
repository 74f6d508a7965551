//! Keys, registries and templates: what is kept, and what never comes back out.

use reqwest::Method;
use serde_json::json;

use crate::support::Harness;

#[tokio::test]
async fn secrets_are_shown_once_or_never() {
    let harness = Harness::start().await;
    let made = harness.post("/v1/keys", json!({ "name": "ci", "scope": "exec", "ttl_ms": 60_000 })).await;
    assert_eq!((made.status, &made.body["key"]["scope"]), (201, &json!("exec")));
    let secret = made.body["secret"].as_str().unwrap();
    assert!(!harness.get("/v1/keys").await.body.to_string().contains(secret));

    let login = json!({ "username": "me", "password": "hunter2" });
    let put = harness.send(harness.request(Method::PUT, "/v1/registries/Localhost:5000").json(&login)).await;
    assert_eq!((put.status, &put.body["host"]), (200, &json!("localhost:5000")));
    let list = harness.get("/v1/registries").await.body;
    assert_eq!(list["items"][0]["username"], json!("me"));
    assert!(!list.to_string().contains("hunter2"));
    assert_eq!(harness.delete("/v1/registries/localhost:5000").await.status, 204);
    assert_eq!(harness.get("/v1/registries").await.body["items"], json!([]));
}

#[tokio::test]
async fn templates_have_versions() {
    let harness = Harness::start().await;
    for pids in [50, 60] {
        let body = json!({ "name": "py", "image": "host", "resources": { "pids": pids } });
        assert_eq!(harness.post("/v1/templates", body).await.status, 201);
    }
    assert_eq!(harness.get("/v1/templates").await.body["items"].as_array().unwrap().len(), 1);
    assert_eq!(harness.get("/v1/templates/py").await.body["version"], json!(2));
    assert_eq!(harness.get("/v1/templates/py?version=1").await.body["resources"]["pids"], json!(50));
    let sandbox = harness.sandbox(json!({ "template": "py:1" })).await;
    assert_eq!((sandbox.template.as_deref(), sandbox.resources.pids), (Some("py:1"), 50));
    // Tags are names for versions, that can be pointed elsewhere.
    let tag = async |tag: &str, body| harness.put(&format!("/v1/templates/py/tags/{tag}"), body).await;
    assert_eq!(tag("stable", json!({ "version": 1 })).await.body["version"], json!(1));
    assert_eq!(tag("edge", json!({})).await.body["version"], json!(2));
    let listed = harness.get("/v1/templates/py/tags").await.body;
    let listed: Vec<_> = listed["items"].as_array().unwrap().iter().map(|tag| &tag["tag"]).collect();
    assert_eq!(listed, ["edge", "stable"]);
    assert_eq!(harness.get("/v1/templates/py:stable").await.body["version"], json!(1));
    assert_eq!(harness.sandbox(json!({ "template": "py:stable" })).await.resources.pids, 50);
    assert_eq!(tag("stable", json!({})).await.body["version"], json!(2));
    assert_eq!(harness.sandbox(json!({ "template": "py:stable" })).await.resources.pids, 60);
    assert_eq!(tag("12", json!({})).await.code(), "invalid_argument");
    assert_eq!(tag("Big", json!({})).await.code(), "invalid_argument");
    assert_eq!(tag("none", json!({ "version": 9 })).await.code(), "template_not_found");
    assert_eq!(harness.get("/v1/templates/none/tags").await.code(), "template_not_found");
    // A tag goes with its version, and alone.
    assert_eq!(tag("old", json!({ "version": 1 })).await.status, 200);
    assert_eq!(harness.delete("/v1/templates/py?version=1").await.status, 204);
    assert_eq!(harness.get("/v1/templates/py:old").await.code(), "template_not_found");
    assert_eq!(harness.delete("/v1/templates/py/tags/edge").await.status, 204);
    assert_eq!(harness.delete("/v1/templates/py/tags/edge").await.code(), "template_not_found");
    assert_eq!(harness.delete("/v1/templates/py").await.status, 204);
    assert_eq!(harness.get("/v1/templates/py").await.code(), "template_not_found");
}
