//! Clients that hang up in the middle of a change of what no sandbox owns: builds and volumes.

use reqwest::Method;
use serde_json::{Value, json};

use crate::hangup::{before, cut_everywhere};
use crate::support::{Harness, eventually};

/// Begins a build and waits for its end, which is a success if `succeeds`.
async fn built(harness: &Harness, body: Value, succeeds: bool) -> String {
    let made = before(harness, Method::POST, "/v1/builds", body).await;
    let path = format!("/v1/builds/{}", made["id"].as_str().unwrap());
    let state = eventually("the build ends", async || {
        let state = harness.get(&path).await.body["state"].as_str()?.to_owned();
        ["succeeded", "failed", "cancelled"].contains(&state.as_str()).then_some(state)
    })
    .await;
    assert_eq!(state == "succeeded", succeeds, "{state}");
    path
}

#[tokio::test]
async fn builds() {
    // A step that needs no program, and one whose program the fake does not have.
    let whole = |name: String| json!({ "name": name, "dockerfile": "FROM host\nENV A=b\n" });
    let broken = |name: String| json!({ "name": name, "dockerfile": "FROM host\nRUN [\"none\"]\n" });
    cut_everywhere("a build", Method::POST, &[201], async |_, polls| {
        ("/v1/builds".to_owned(), whole(format!("b{polls}")))
    })
    .await;
    cut_everywhere("a build that fails", Method::POST, &[201], async |_, polls| {
        ("/v1/builds".to_owned(), broken(format!("b{polls}")))
    })
    .await;
    cut_everywhere(
        "the end of a build that waits for its context",
        Method::POST,
        &[200],
        async |harness, polls| {
            let body = json!({ "name": format!("b{polls}"), "dockerfile": "FROM host\nCOPY a /a\n" });
            let made = before(harness, Method::POST, "/v1/builds", body).await;
            assert_eq!(made["needs_context"], true);
            (format!("/v1/builds/{}/cancel", made["id"].as_str().unwrap()), Value::Null)
        },
    )
    .await;
    cut_everywhere("the end of a build that has ended", Method::POST, &[200, 409], async |harness, polls| {
        let path = built(harness, broken(format!("b{polls}")), false).await;
        (format!("{path}/cancel"), Value::Null)
    })
    .await;
    cut_everywhere("less of the cache", Method::POST, &[200], async |harness, polls| {
        built(harness, whole(format!("b{polls}")), true).await;
        ("/v1/build-cache/prune".to_owned(), json!({ "keep_bytes": 0 }))
    })
    .await;
}

#[tokio::test]
async fn volumes() {
    let volume = async |harness: &Harness, name: String| {
        before(harness, Method::POST, "/v1/volumes", json!({ "name": name })).await;
        format!("/v1/volumes/{name}")
    };
    cut_everywhere("a volume", Method::POST, &[201, 409], async |_, polls| {
        ("/v1/volumes".to_owned(), json!({ "name": format!("v{polls}") }))
    })
    .await;
    cut_everywhere("a copy of a volume", Method::POST, &[201, 409], async |harness, polls| {
        volume(harness, format!("from{polls}")).await;
        let body = json!({ "name": format!("to{polls}"), "from": format!("from{polls}"), "read_only": true });
        ("/v1/volumes".to_owned(), body)
    })
    .await;
    cut_everywhere("the end of a volume", Method::DELETE, &[204, 404], async |harness, polls| {
        (volume(harness, format!("v{polls}")).await, Value::Null)
    })
    .await;
    cut_everywhere("a file of a volume", Method::PUT, &[200, 201, 204], async |harness, polls| {
        let path = volume(harness, format!("v{polls}")).await;
        (format!("{path}/files?path=/a/b&parents=true"), json!("content"))
    })
    .await;
    cut_everywhere("the end of a file of a volume", Method::DELETE, &[204, 404], async |harness, polls| {
        let path = format!("{}/files?path=/a", volume(harness, format!("v{polls}")).await);
        before(harness, Method::PUT, &path, json!("content")).await;
        (path, Value::Null)
    })
    .await;
    cut_everywhere("a sandbox with a volume", Method::POST, &[201, 409], async |harness, polls| {
        volume(harness, format!("v{polls}")).await;
        let mount = json!([{ "volume": format!("v{polls}"), "path": "/data" }]);
        ("/v1/sandboxes".to_owned(), json!({ "name": format!("with-{polls}"), "volumes": mount }))
    })
    .await;
}
