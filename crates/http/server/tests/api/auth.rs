//! Every operation wants a key that is strong enough. The list comes from the OpenAPI document, so an
//! operation that is added is tested, and one that forgets its key fails here.

use atoll_core::key::Scope;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Harness};

/// Operations that need no key. This list should only ever shrink.
const PUBLIC: [&str; 6] = [
    "GET /healthz",
    "GET /readyz",
    "GET /openapi.json",
    "GET /v1/ca",
    "POST /v1/login/device",
    "POST /v1/login/device/poll",
];

/// Operations that need a token instead.
const BY_TOKEN: [&str; 1] = ["GET /v1/download/{name}"];

struct Operation {
    name: String,
    method: Method,
    path: String,
    needs: Option<Scope>,
}

fn operations() -> Vec<Operation> {
    let document: Value = serde_json::from_str(&atoll_server::openapi()).unwrap();
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let method: Method = method.to_uppercase().parse().unwrap();
            let scope = operation["security"][0]["key"][0].as_str();
            operations.push(Operation {
                name: format!("{method} {path}"),
                // Names no object: a request that gets past the check of its key is told so, and nothing changes.
                path: path.replace('{', "no-").replace('}', "-such"),
                needs: scope.map(|text| Scope::parse(text).unwrap()),
                method,
            });
        }
    }
    operations
}

async fn call(harness: &Harness, operation: &Operation, key: Option<&str>) -> Answer {
    let mut request = harness.bare(operation.method.clone(), &operation.path);
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    harness.send(request).await
}

const ALL: [Scope; 4] = [Scope::Read, Scope::Exec, Scope::Manage, Scope::Admin];

#[tokio::test]
async fn every_operation_wants_its_scope() {
    let harness = Harness::start().await;
    let mut refusals: Vec<Value> = Vec::new();
    for operation in operations() {
        let name = &operation.name;
        let Some(needs) = operation.needs else {
            if BY_TOKEN.contains(&name.as_str()) {
                assert_eq!(call(&harness, &operation, None).await.status, 401, "{name}");
                continue;
            }
            assert!(PUBLIC.contains(&name.as_str()), "{name} needs no key");
            // This server has no authority of its own to show, and people cannot log in to it.
            let expected = match name.as_str() {
                "GET /v1/ca" | "POST /v1/login/device" => 404,
                "POST /v1/login/device/poll" => 400,
                _ => 200,
            };
            assert_eq!(call(&harness, &operation, None).await.status, expected, "{name}");
            continue;
        };
        for key in [None, Some("atoll_nonsense"), Some("")] {
            let mut answer = call(&harness, &operation, key).await;
            assert_eq!((answer.status, answer.code()), (401, "unauthorized"), "{name}");
            answer.body["request_id"] = Value::Null;
            refusals.push(answer.body);
        }
        for scope in ALL {
            let answer = call(&harness, &operation, Some(harness.key(scope))).await;
            if scope < needs {
                assert_eq!((answer.status, answer.code()), (403, "forbidden"), "{name} with {scope:?}");
            } else {
                assert!(!matches!(answer.status, 401 | 403), "{name} with {scope:?}: {answer:?}");
            }
        }
    }
    refusals.dedup();
    assert_eq!(refusals.len(), 1, "a refusal tells something: {refusals:?}");
}

#[tokio::test]
async fn a_key_comes_in_either_header_and_stops_working_when_deleted() {
    let harness = Harness::start().await;
    let with = |name: &'static str, value: String| harness.bare(Method::GET, "/v1/info").header(name, value);
    let key = harness.key(Scope::Read);
    for (name, value, status) in [
        ("authorization", format!("Bearer {key}"), 200),
        ("authorization", format!("bearer {key}"), 200),
        ("x-api-key", key.to_owned(), 200),
        ("authorization", key.to_owned(), 401),
        ("authorization", format!("Basic {key}"), 401),
        ("authorization", format!("Bearer {key}x"), 401),
        ("x-api-key", "x".repeat(5000), 401),
    ] {
        assert_eq!(harness.send(with(name, value.clone())).await.status, status, "{name}: {value}");
    }
    let made = harness.post("/v1/keys", json!({ "name": "mine", "scope": "read" })).await;
    let (secret, id) = (made.body["secret"].as_str().unwrap(), made.body["key"]["id"].as_str().unwrap());
    assert_eq!(harness.send(with("x-api-key", secret.to_owned())).await.status, 200);
    assert_eq!(harness.delete(&format!("/v1/keys/{id}")).await.status, 204);
    assert_eq!(harness.send(with("x-api-key", secret.to_owned())).await.status, 401);
}

#[tokio::test]
async fn other_web_sites_are_refused() {
    let harness = Harness::start().await;
    let from = |origin: &str| {
        harness.request(Method::POST, "/v1/sandboxes").header("origin", origin).json(&json!({}))
    };
    let answer = harness.send(from("http://evil.example")).await;
    assert_eq!((answer.status, answer.code()), (403, "forbidden"));
    assert_eq!(harness.engine.stats().sandboxes.len(), 0);
    // DNS rebinding: the name is the attacker's, the address ours.
    let rebound = from("http://evil.example:7070").header("host", "evil.example:7070");
    assert_eq!(harness.send(rebound).await.status, 403);
    assert_eq!(harness.send(from(&format!("http://{}", harness.address))).await.status, 201);
}

#[tokio::test]
async fn metrics_can_be_public() {
    let harness = Harness::start_with(|config| config.metrics_public = true).await;
    let answer = harness.send(harness.bare(Method::GET, "/metrics")).await;
    let text = answer.body.as_str().unwrap();
    assert!(text.contains("atoll_sandboxes{state=\"running\"} 0"), "{text}");
    let again = harness.send(harness.bare(Method::GET, "/metrics")).await;
    let text = again.body.as_str().unwrap();
    assert!(
        text.contains("atoll_http_requests_total{method=\"GET\",route=\"/metrics\",status=\"200\"} 1"),
        "{text}"
    );
}
