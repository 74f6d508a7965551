//! The committed description is the one that the routes make, and what it says is so.

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::support::{Answer, Harness};

#[test]
fn the_committed_document_is_current() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../openapi/atoll.json");
    let committed = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        committed == atoll_server::openapi(),
        "openapi/atoll.json is not current: run 'cargo run -p atoll-server --example openapi' and review the change"
    );
}

#[test]
fn every_operation_is_described() {
    let document: Value = serde_json::from_str(&atoll_server::openapi()).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let mut ids = std::collections::BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id.to_owned()), "{id} is there twice");
            assert!(operation["summary"].is_string(), "{method} {path} has no summary");
            let responses = operation["responses"].as_object().unwrap();
            assert!(responses.contains_key("default"), "{method} {path} has no error");
            assert!(responses.values().all(|one| one["description"].is_string()), "{method} {path}");
        }
    }
    assert!(ids.len() > 40, "{ids:?}");
}

#[test]
fn codes_are_those_that_are_sent_and_references_lead_somewhere() {
    let document: Value = serde_json::from_str(&atoll_server::openapi()).unwrap();
    let schemas = &document["components"]["schemas"];
    let codes: Vec<_> = atoll_core::Code::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(schemas["Code"]["enum"], json!(codes));
    let text = document.to_string();
    for rest in text.split("\"#/components/schemas/").skip(1) {
        let name = rest.split('"').next().unwrap();
        assert!(schemas[name].is_object(), "{name} is not described");
    }
}

/// A number in a request with a bound: where it is asked for, and which numbers it may be.
struct Bound {
    path: String,
    name: String,
    in_body: Option<&'static str>,
    least: u64,
    most: u64,
}

/// The bounds that the document has of the parameters of queries.
fn bounds_of_queries(document: &Value) -> Vec<Bound> {
    let mut bounds = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let Some(most) = parameter["schema"]["maximum"].as_u64() else { continue };
                assert_eq!(method, "get", "{path}");
                let name = parameter["name"].as_str().unwrap().to_owned();
                let least = parameter["schema"]["minimum"].as_u64().unwrap();
                bounds.push(Bound { path: path.clone(), name, in_body: None, least, most });
            }
        }
    }
    bounds
}

/// Those of fields of bodies, with where these are sent.
fn bounds_of_bodies(document: &Value) -> Vec<Bound> {
    let bodies = [
        ("CreateExec", "wait_ms", "/v1/sandboxes/{sandbox}/execs"),
        ("RunCell", "wait_ms", "/v1/sandboxes/{sandbox}/contexts/{context}/cells"),
        ("FindFiles", "limit", "/v1/sandboxes/{sandbox}/files/find"),
    ];
    let of = |(body, name, path): (&'static str, &str, &str)| {
        let field = &document["components"]["schemas"][body]["properties"][name];
        let (least, most) = (field["minimum"].as_u64().unwrap(), field["maximum"].as_u64().unwrap());
        Bound { path: path.to_owned(), name: name.to_owned(), in_body: Some(body), least, most }
    };
    bodies.map(of).into()
}

/// Every `limit` and `wait_ms` has a highest value, and that is the one that the server enforces, as it does the lowest.
#[tokio::test]
async fn bounds_are_those_that_are_enforced() {
    let document: Value = serde_json::from_str(&atoll_server::openapi()).unwrap();
    for (path, item) in document["paths"].as_object().unwrap() {
        for parameter in item["get"]["parameters"].as_array().into_iter().flatten() {
            let bound = parameter["schema"]["maximum"].is_number();
            assert!(bound || !matches!(parameter["name"].as_str(), Some("limit" | "wait_ms")), "{path}");
        }
    }
    let harness = Harness::start().await;
    let sandbox = harness.sandbox(json!({})).await.id;
    let exec = harness.exec(&sandbox, "true", json!({})).await.exec.id;
    let agent = json!({ "name": "bob", "sandbox": sandbox, "argv": ["true"] });
    assert_eq!(harness.post("/v1/agents", agent).await.status, 201);
    let build = harness.post("/v1/builds", json!({ "name": "t", "dockerfile": "FROM host" })).await;
    let build = build.body["id"].as_str().unwrap().to_owned();
    let real = |path: &str| {
        let path = path.replace("{sandbox}", &sandbox).replace("{exec}", &exec).replace("{build}", &build);
        let path = path.replace("{agent}", "bob");
        // What is asked for is checked before these are looked up.
        ["session", "context", "cell", "service"]
            .iter()
            .fold(path, |path, one| path.replace(&format!("{{{one}}}"), "none"))
    };
    let bounds: Vec<_> =
        bounds_of_queries(&document).into_iter().chain(bounds_of_bodies(&document)).collect();
    assert!(bounds.len() >= 20, "{}", bounds.len());
    for Bound { path, name, in_body, least, most } in bounds {
        let ask = async |number: u64| match in_body {
            None => {
                let file = if path.ends_with("/files/list") { "path=/&" } else { "" };
                let path = format!("{}?{file}{name}={number}", real(&path));
                any_answer(harness.request(Method::GET, &path)).await
            }
            Some(body) => {
                let mut sent = match body {
                    "CreateExec" => json!({ "argv": ["true"] }),
                    "RunCell" => json!({ "code": "1" }),
                    _ => json!({ "path": "/", "pattern": "*" }),
                };
                sent[&name] = number.into();
                any_answer(harness.request(Method::POST, &real(&path)).json(&sent)).await
            }
        };
        let refused = |answer: &Answer| {
            let message = answer.body["message"].as_str().unwrap_or_default();
            answer.code() == "invalid_argument" && message.starts_with(&format!("{name}: must lie between"))
        };
        for (number, fits) in [(most + 1, false), (most, true), (least, true)] {
            // The longest wait ends at once: there is something, or what it would wait for is not there.
            let answer = ask(number).await;
            assert_eq!(refused(&answer), !fits, "{path} {name}={number}: {answer:?}");
        }
        if let Some(below) = least.checked_sub(1) {
            let answer = ask(below).await;
            assert!(refused(&answer), "{path} {name}={below}: {answer:?}");
        }
    }
}

/// An answer whatever its status is: the fake guest cannot do all that is asked for.
async fn any_answer(request: RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    Answer { status, body: serde_json::from_str(&text).unwrap_or(Value::String(text)) }
}

/// Streams say what comes in them, and bytes are no JSON.
#[test]
fn bodies_that_are_no_json_are_described() {
    let document: Value = serde_json::from_str(&atoll_server::openapi()).unwrap();
    let (mut streams, mut bytes) = (0, 0);
    for (path, item) in document["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            let responses = operation["responses"].as_object().unwrap().values().map(|one| &one["content"]);
            for content in responses.chain([&operation["requestBody"]["content"]]) {
                for (media_type, content) in content.as_object().into_iter().flatten() {
                    let schema = &content["schema"];
                    match media_type.as_str() {
                        "text/event-stream" | "application/x-ndjson" => {
                            streams += 1;
                            assert_eq!(
                                (&schema["type"], &schema["contentMediaType"]),
                                (&json!("string"), &json!(media_type))
                            );
                            let items = &schema["contentSchema"]["items"];
                            assert!(
                                items["oneOf"].is_array() || items["$ref"].is_string(),
                                "{path}: {schema}"
                            );
                        }
                        "application/octet-stream" | "application/x-tar" | "application/zstd" => {
                            bytes += 1;
                            assert_eq!(schema, &json!({ "contentMediaType": media_type }), "{path}");
                        }
                        "application/json" | "text/plain" | "application/x-pem-file" => {}
                        other => panic!("{path}: {other} is not described"),
                    }
                }
            }
        }
    }
    assert_eq!((streams, bytes > 10), (10, true));
}

/// Creations of sandboxes are found by their key as long as the sandbox is there; everything else is in memory.
#[test]
fn keys_say_how_long_they_are_known() {
    let document: Value = serde_json::from_str(&atoll_server::openapi()).unwrap();
    let mut kept = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let parameters = item["post"]["parameters"].as_array().into_iter().flatten();
        for key in parameters.filter(|parameter| parameter["name"] == "idempotency-key") {
            let text = key["description"].as_str().unwrap();
            assert!(text.contains("`idempotency-replayed: true`"), "{path}: {text}");
            let in_memory = text.contains("in the memory of the server") && text.contains("done again");
            assert_ne!(in_memory, text.contains("As long as the sandbox is there"), "{path}: {text}");
            if !in_memory {
                kept.push(path.as_str());
            }
        }
    }
    assert_eq!(kept, ["/v1/sandboxes", "/v1/sandboxes/batch"]);
}
