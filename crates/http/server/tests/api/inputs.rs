//! Bad input: code, status, a hint where one helps, and nothing changed.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::Harness;

struct Bad {
    method: Method,
    path: &'static str,
    body: String,
    status: u16,
    code: &'static str,
    says: &'static str,
}

fn bad(
    method: &str,
    path: &'static str,
    body: &str,
    status: u16,
    code: &'static str,
    says: &'static str,
) -> Bad {
    Bad { method: method.parse().unwrap(), path, body: body.to_owned(), status, code, says }
}

fn table() -> Vec<Bad> {
    let big = format!("{{\"image\": \"{}\"}}", "x".repeat(1 << 20));
    let many = json!({ "sandboxes": vec![json!({}); 257] }).to_string();
    vec![
        bad("POST", "/v1/sandboxes", "{\n\"name\": ", 400, "invalid_json", "line 2"),
        bad("POST", "/v1/sandboxes", "", 400, "invalid_json", "line 1"),
        bad("POST", "/v1/sandboxes", "{} x", 400, "invalid_json", "column"),
        bad("POST", "/v1/sandboxes", "[]", 400, "invalid_argument", "body"),
        bad("POST", "/v1/sandboxes", "{\"nmae\": \"a\"}", 400, "invalid_argument", "nmae"),
        bad("POST", "/v1/sandboxes", "{\"ttl_ms\": -1}", 400, "invalid_argument", "ttl_ms"),
        bad("POST", "/v1/sandboxes", "{\"ttl_ms\": 0}", 400, "invalid_argument", "ttl_ms"),
        bad("POST", "/v1/sandboxes", "{\"name\": \"Bad Name\"}", 400, "invalid_argument", "name"),
        bad("POST", "/v1/sandboxes", "{\"workdir\": \"relative\"}", 400, "path_invalid", "workdir"),
        bad(
            "POST",
            "/v1/sandboxes",
            "{\"resources\": {\"pids\": 1}}",
            400,
            "invalid_argument",
            "resources.pids",
        ),
        bad(
            "POST",
            "/v1/sandboxes",
            "{\"resources\": {\"pids\": \"x\"}}",
            400,
            "invalid_argument",
            "resources.pids",
        ),
        bad("POST", "/v1/sandboxes", "{\"isolation\": \"magic\"}", 400, "invalid_argument", "isolation"),
        bad("POST", "/v1/sandboxes", "{\"image\": \"no:such\"}", 404, "image_not_found", "no:such"),
        bad("POST", "/v1/sandboxes", "{\"template\": \"none\"}", 404, "template_not_found", "none"),
        bad("POST", "/v1/sandboxes", "{\"template\": \"a:B\"}", 400, "invalid_argument", "template"),
        bad("POST", "/v1/sandboxes", "{\"name\": \"there\"}", 409, "name_taken", "there"),
        bad("POST", "/v1/sandboxes", &big, 413, "too_large", "1048576"),
        bad("POST", "/v1/sandboxes/batch", &many, 400, "invalid_argument", "sandboxes"),
        bad("POST", "/v1/sandboxes/batch", "{\"sandboxes\": []}", 400, "invalid_argument", "sandboxes"),
        bad("GET", "/v1/sandboxes?limit=0", "", 400, "invalid_argument", "limit"),
        bad("GET", "/v1/sandboxes?limit=1001", "", 400, "invalid_argument", "limit"),
        bad("GET", "/v1/sandboxes?limit=ten", "", 400, "invalid_argument", "limit"),
        bad("GET", "/v1/sandboxes?cursor=nonsense", "", 400, "invalid_argument", "cursor"),
        bad("GET", "/v1/sandboxes?label=x", "", 400, "invalid_argument", "label"),
        bad("GET", "/v1/sandboxes?label=a%3D1&label=a%3D2", "", 400, "invalid_argument", "twice"),
        bad("GET", "/v1/sandboxes?state=asleep", "", 400, "invalid_argument", "asleep"),
        bad("GET", "/v1/sandboxes?sate=running", "", 400, "invalid_argument", "sate"),
        bad("GET", "/v1/sandboxes/none", "", 404, "sandbox_not_found", "none"),
        bad("GET", "/v1/sandboxes/%ff", "", 400, "invalid_argument", "path"),
        bad(
            "PATCH",
            "/v1/sandboxes/there",
            "{\"resources\": {\"disk_bytes\": 999999999}}",
            400,
            "invalid_argument",
            "disk_bytes",
        ),
        bad("DELETE", "/v1/sandboxes/none", "", 404, "sandbox_not_found", "none"),
        bad("POST", "/v1/sandboxes/there/execs", "{}", 400, "invalid_argument", "argv"),
        bad("POST", "/v1/sandboxes/there/execs", "{\"argv\": []}", 400, "invalid_argument", "argv"),
        bad(
            "POST",
            "/v1/sandboxes/there/execs",
            "{\"argv\": [\"true\"], \"wait_ms\": 60001}",
            400,
            "invalid_argument",
            "wait_ms",
        ),
        bad("POST", "/v1/sandboxes/none/execs", "{\"argv\": [\"true\"]}", 404, "sandbox_not_found", "none"),
        bad("GET", "/v1/sandboxes/there/execs/none", "", 404, "exec_not_found", "none"),
        bad(
            "GET",
            "/v1/sandboxes/there/execs/none/output?max_bytes=0",
            "",
            400,
            "invalid_argument",
            "max_bytes",
        ),
        bad("GET", "/v1/sandboxes/there/execs/none/attach", "", 400, "invalid_argument", "WebSocket"),
        bad("POST", "/v1/sandboxes/there/execs/none/signal", "{}", 400, "invalid_argument", "signal"),
        bad("GET", "/v1/sandboxes/there/files", "", 400, "invalid_argument", "path"),
        bad("GET", "/v1/sandboxes/there/files?path=relative", "", 400, "path_invalid", "absolute"),
        bad("GET", "/v1/sandboxes/there/files?path=/none", "", 404, "file_not_found", "/none"),
        bad("PUT", "/v1/sandboxes/there/files?path=/a&mode=rwx", "x", 400, "invalid_argument", "mode"),
        bad("PUT", "/v1/sandboxes/there/files?path=/a&user=a%20b", "x", 400, "invalid_argument", "user"),
        bad("GET", "/v1/sandboxes/there/files/list?path=/&depth=65", "", 400, "invalid_argument", "depth"),
        bad("POST", "/v1/sandboxes/there/files/chmod", "{\"path\": \"/a\"}", 400, "invalid_argument", "mode"),
        bad("POST", "/v1/templates", "{\"name\": \"x\"}", 400, "invalid_argument", "image"),
        bad(
            "POST",
            "/v1/templates",
            "{\"name\": \"x\", \"image\": \"no:such\"}",
            404,
            "image_not_found",
            "no:such",
        ),
        bad("GET", "/v1/templates/none", "", 404, "template_not_found", "none"),
        bad("DELETE", "/v1/images/docker.io/library/none:1", "", 404, "image_not_found", "none:1"),
        bad("POST", "/v1/images/pull", "{\"reference\": \"a b\"}", 400, "invalid_argument", "reference"),
        bad("POST", "/v1/images/pull", "{\"reference\": \"UPPER/case\"}", 400, "invalid_argument", "UPPER"),
        bad(
            "POST",
            "/v1/images/pull",
            "{\"reference\": \"a:1\", \"platform\": \"x\"}",
            400,
            "invalid_argument",
            "platform",
        ),
        bad("POST", "/v1/images/import", "x", 400, "invalid_argument", "name"),
        bad(
            "PUT",
            "/v1/registries/a%20b",
            "{\"username\": \"u\", \"password\": \"p\"}",
            400,
            "invalid_argument",
            "host",
        ),
        bad("DELETE", "/v1/registries/none", "", 404, "registry_not_found", "none"),
        bad("POST", "/v1/keys", "{\"name\": \"\", \"scope\": \"read\"}", 400, "invalid_argument", "name"),
        bad("POST", "/v1/keys", "{\"name\": \"x\", \"scope\": \"god\"}", 400, "invalid_argument", "scope"),
        bad("DELETE", "/v1/keys/none", "", 404, "key_not_found", "none"),
        bad("GET", "/v1/nothing", "", 404, "route_not_found", "/v1/nothing"),
        bad("GET", "/", "", 404, "route_not_found", "/"),
        bad("PUT", "/v1/sandboxes", "{}", 405, "method_not_allowed", "method"),
    ]
}

#[tokio::test]
async fn is_refused_by_name_and_changes_nothing() {
    let harness = Harness::start().await;
    harness.sandbox(json!({ "name": "there" })).await;
    let before = harness.get("/v1/sandboxes").await.body;
    let creates = harness.host.calls("create");
    for bad in table() {
        let at = format!("{} {} {:.60}", bad.method, bad.path, bad.body);
        let answer = harness.send(harness.request(bad.method, bad.path).body(bad.body)).await;
        assert_eq!((answer.status, answer.code()), (bad.status, bad.code), "{at}: {}", answer.body);
        let message = answer.body["message"].as_str().unwrap();
        assert!(message.contains(bad.says), "{at}: {message}");
        assert_eq!(answer.body["retryable"], Value::Bool(false), "{at}");
        if bad.status == 400 && bad.code == "invalid_json" || bad.status >= 405 {
            assert!(answer.body["hint"].is_string(), "{at}: no hint");
        }
    }
    let after = harness.get("/v1/sandboxes").await.body;
    assert_eq!(without_times(before), without_times(after));
    assert_eq!(harness.host.calls("create"), creates);
    assert_eq!(harness.get("/v1/sandboxes/there/execs").await.body["items"], json!([]));
    assert_eq!(harness.get("/v1/keys").await.body["items"].as_array().unwrap().len(), 4);
}

fn without_times(mut list: Value) -> Value {
    for item in list["items"].as_array_mut().unwrap() {
        item["last_active_at_ms"] = Value::Null;
    }
    list
}

#[tokio::test]
async fn a_request_id_goes_through() {
    let harness = Harness::start().await;
    let response =
        harness.request(Method::GET, "/v1/nothing").header("x-request-id", "trace-7").send().await.unwrap();
    assert_eq!(response.headers()["x-request-id"], "trace-7");
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["request_id"], "trace-7");
    let response =
        harness.request(Method::GET, "/v1/info").header("x-request-id", "bad id\"").send().await.unwrap();
    let id = response.headers()["x-request-id"].to_str().unwrap();
    assert_eq!(id.len(), 16, "{id}");
}
