//! The table of [`super::every_refusal_has_its_code_and_changes_nothing`], by what each request is about.

use serde_json::{Value, json};

/// Method, path, body, status, code, what the message or hint must name.
type Case = (&'static str, String, Value, u16, &'static str, &'static str);

/// Every case, about a sandbox with an exec that has ended and one that runs.
pub(super) fn cases(sandbox: &str, exec: &str, running: &str) -> Vec<Case> {
    [
        routes(),
        sandboxes(sandbox),
        execs(sandbox, exec, running),
        files(sandbox),
        templates(),
        images(),
        keys(),
    ]
    .concat()
}

fn routes() -> Vec<Case> {
    vec![
        ("GET", "/v1/nothing".into(), Value::Null, 404, "route_not_found", "openapi"),
        ("GET", "/".into(), Value::Null, 404, "route_not_found", ""),
        ("PUT", "/v1/sandboxes".into(), json!({}), 405, "method_not_allowed", ""),
    ]
}

fn sandboxes(sandbox: &str) -> Vec<Case> {
    let s = |rest: &str| format!("/v1/sandboxes/{sandbox}{rest}");
    let boxes = || "/v1/sandboxes".to_owned();
    let none = || "/v1/sandboxes/sb00000000000000000000".to_owned();
    vec![
        ("POST", boxes(), json!({"image": "no/such:image"}), 404, "image_not_found", "pull"),
        ("POST", boxes(), json!({"image": "not an image"}), 400, "invalid_argument", "image"),
        ("POST", boxes(), json!({"template": "nope"}), 404, "template_not_found", "nope"),
        ("POST", boxes(), json!({"name": "Not A Name"}), 400, "invalid_argument", "name"),
        ("POST", boxes(), json!({"name": "taken"}), 409, "name_taken", "taken"),
        ("POST", boxes(), json!({"nmae": "x"}), 400, "invalid_argument", "nmae"),
        ("POST", boxes(), json!({"name": 7}), 400, "invalid_argument", "name"),
        ("POST", boxes(), json!([]), 400, "invalid_argument", ""),
        ("POST", boxes(), json!({"env": {"A=B": "x"}}), 400, "invalid_argument", "env"),
        ("POST", boxes(), json!({"env": {"A": "a\u{0}b"}}), 400, "invalid_argument", "env.A"),
        ("POST", boxes(), json!({"env": {"A": 1}}), 400, "invalid_argument", "env.A"),
        ("POST", boxes(), json!({"labels": {"a b": "x"}}), 400, "invalid_argument", "labels"),
        ("POST", boxes(), json!({"user": "a b"}), 400, "invalid_argument", "user"),
        ("POST", boxes(), json!({"workdir": "relative"}), 400, "path_invalid", "workdir"),
        ("POST", boxes(), json!({"ttl_ms": 0}), 400, "invalid_argument", "ttl_ms"),
        ("POST", boxes(), json!({"ttl_ms": -1}), 400, "invalid_argument", "ttl_ms"),
        (
            "POST",
            boxes(),
            json!({"idle_timeout_ms": 40_000_000_000_u64}),
            400,
            "invalid_argument",
            "idle_timeout_ms",
        ),
        ("POST", boxes(), json!({"isolation": "magic"}), 400, "invalid_argument", "isolation"),
        ("POST", boxes(), json!({"isolation": "microvm"}), 422, "isolation_unavailable", "microvm"),
        (
            "POST",
            boxes(),
            json!({"resources": {"memory_bytes": 1}}),
            400,
            "invalid_argument",
            "resources.memory_bytes",
        ),
        ("POST", boxes(), json!({"resources": {"pids": 1}}), 400, "invalid_argument", "resources.pids"),
        (
            "POST",
            boxes(),
            json!({"resources": {"cpu_millis": 1}}),
            400,
            "invalid_argument",
            "resources.cpu_millis",
        ),
        (
            "POST",
            boxes(),
            json!({"resources": {"disk_bytes": 1}}),
            400,
            "invalid_argument",
            "resources.disk_bytes",
        ),
        ("POST", boxes(), json!({"resources": {"pids": "many"}}), 400, "invalid_argument", "resources.pids"),
        (
            "POST",
            boxes(),
            json!({"resources": {"io_bytes_per_second": 50}}),
            400,
            "invalid_argument",
            "resources.io_bytes_per_second",
        ),
        (
            "POST",
            boxes(),
            json!({"resources": {"io_operations_per_second": 0}}),
            400,
            "invalid_argument",
            "resources.io_operations_per_second",
        ),
        (
            "POST",
            boxes(),
            json!({"resources": {"io_operations_per_second": "fast"}}),
            400,
            "invalid_argument",
            "resources.io_operations_per_second",
        ),
        // Containers have none.
        (
            "POST",
            boxes(),
            json!({"resources": {"io_bytes_per_second": 52_428_800}}),
            422,
            "limit_unenforceable",
            "microvm",
        ),
        (
            "POST",
            "/v1/templates".into(),
            json!({"name": "slow", "image": "host", "resources": {"io_bytes_per_second": 1}}),
            400,
            "invalid_argument",
            "resources.io_bytes_per_second",
        ),
        (
            "POST",
            "/v1/sandboxes/batch".into(),
            json!({"sandboxes": vec![json!({}); 257]}),
            400,
            "invalid_argument",
            "256",
        ),
        ("GET", format!("{}?limit=0", boxes()), Value::Null, 400, "invalid_argument", "limit"),
        ("GET", format!("{}?limit=1001", boxes()), Value::Null, 400, "invalid_argument", "limit"),
        ("GET", format!("{}?cursor=nonsense", boxes()), Value::Null, 400, "invalid_argument", "cursor"),
        ("GET", format!("{}?state=happy", boxes()), Value::Null, 400, "invalid_argument", "state"),
        ("GET", format!("{}?label=a", boxes()), Value::Null, 400, "invalid_argument", "label"),
        ("GET", format!("{}?lable=a%3Db", boxes()), Value::Null, 400, "invalid_argument", "lable"),
        ("GET", none(), Value::Null, 404, "sandbox_not_found", ""),
        ("GET", "/v1/sandboxes/no-such-name".into(), Value::Null, 404, "sandbox_not_found", "no-such-name"),
        ("DELETE", none(), Value::Null, 404, "sandbox_not_found", ""),
        ("PATCH", none(), json!({}), 404, "sandbox_not_found", ""),
        ("PATCH", s(""), json!({"ttl_ms": "soon"}), 400, "invalid_argument", "ttl_ms"),
        (
            "PATCH",
            s(""),
            json!({"resources": {"disk_bytes": 1 << 30}}),
            400,
            "invalid_argument",
            "disk_bytes",
        ),
        (
            "PATCH",
            s(""),
            json!({"resources": {"io_operations_per_second": 500}}),
            422,
            "limit_unenforceable",
            "microvm",
        ),
        ("GET", "/v1/sandboxes/no-such-name/metrics".into(), Value::Null, 404, "sandbox_not_found", ""),
    ]
}

fn execs(sandbox: &str, exec: &str, running: &str) -> Vec<Case> {
    let s = |rest: &str| format!("/v1/sandboxes/{sandbox}{rest}");
    let e = |rest: &str| format!("/v1/sandboxes/{sandbox}/execs/{exec}{rest}");
    let r = |rest: &str| format!("/v1/sandboxes/{sandbox}/execs/{running}{rest}");
    let long = "x".repeat(5000);
    vec![
        ("POST", s("/execs"), json!({}), 400, "invalid_argument", "argv"),
        ("POST", s("/execs"), json!({"argv": ["a"], "shell": "b"}), 400, "invalid_argument", "argv"),
        ("POST", s("/execs"), json!({"argv": []}), 400, "invalid_argument", "argv"),
        ("POST", s("/execs"), json!({"argv": "ls"}), 400, "invalid_argument", "argv"),
        ("POST", s("/execs"), json!({"argv": ["a", "\u{0}"]}), 400, "invalid_argument", "argv[1]"),
        ("POST", s("/execs"), json!({"shell": "true", "cwd": "/no/such"}), 422, "cwd_not_found", "cwd"),
        ("POST", s("/execs"), json!({"shell": "true", "cwd": "/etc/passwd"}), 422, "cwd_not_found", "cwd"),
        ("POST", s("/execs"), json!({"shell": "true", "cwd": "rel"}), 400, "path_invalid", "cwd"),
        ("POST", s("/execs"), json!({"shell": "true", "user": "nobody-here"}), 422, "user_not_found", "user"),
        (
            "POST",
            s("/execs"),
            json!({"shell": "true", "user": "root:nogroup-here"}),
            422,
            "user_not_found",
            "group",
        ),
        ("POST", s("/execs"), json!({"shell": "true", "env": {"": "x"}}), 400, "invalid_argument", "env"),
        (
            "POST",
            s("/execs"),
            json!({"shell": "true", "wait_ms": 60_001}),
            400,
            "invalid_argument",
            "wait_ms",
        ),
        (
            "POST",
            s("/execs"),
            json!({"shell": "true", "tty": {"cols": 0, "rows": 1}}),
            400,
            "invalid_argument",
            "tty",
        ),
        (
            "POST",
            s("/execs"),
            json!({"shell": "true", "keep_output_bytes": 1}),
            400,
            "invalid_argument",
            "keep_output_bytes",
        ),
        (
            "POST",
            s("/execs"),
            json!({"shell": "true", "idempotency_key": long}),
            400,
            "invalid_argument",
            "idempotency_key",
        ),
        ("GET", s("/execs/ex00000000000000000000"), Value::Null, 404, "exec_not_found", ""),
        ("GET", s("/execs/nonsense"), Value::Null, 404, "exec_not_found", "nonsense"),
        ("GET", s("/execs?state=dancing"), Value::Null, 400, "invalid_argument", "state"),
        ("GET", e("/output?offset=99999"), Value::Null, 416, "offset_out_of_range", "offset"),
        ("GET", e("/output?offset=-1"), Value::Null, 400, "invalid_argument", "offset"),
        ("GET", e("/output?max_bytes=0"), Value::Null, 400, "invalid_argument", "max_bytes"),
        ("GET", e("/output?wait_ms=99999999"), Value::Null, 400, "invalid_argument", "wait_ms"),
        ("GET", e("/events?offset=99999"), Value::Null, 416, "offset_out_of_range", ""),
        ("GET", e("/attach"), Value::Null, 400, "invalid_argument", "WebSocket"),
        ("POST", e("/signal"), json!({"signal": "TERM"}), 409, "exec_ended", "ended"),
        ("POST", r("/signal"), json!({"signal": "NOPE"}), 400, "invalid_argument", "NOPE"),
        ("POST", r("/signal"), json!({"signal": 15}), 400, "invalid_argument", "signal"),
        ("POST", r("/resize"), json!({"cols": 80, "rows": 24}), 409, "not_a_terminal", ""),
        ("POST", r("/resize"), json!({"cols": 0, "rows": 24}), 400, "invalid_argument", ""),
        ("POST", r("/stdin"), Value::Null, 409, "stdin_closed", "stdin"),
    ]
}

fn files(sandbox: &str) -> Vec<Case> {
    let s = |rest: &str| format!("/v1/sandboxes/{sandbox}{rest}");
    let long = "x".repeat(5000);
    vec![
        ("GET", s("/files"), Value::Null, 400, "invalid_argument", "path"),
        ("GET", s("/files?path=relative"), Value::Null, 400, "path_invalid", "path"),
        ("GET", s("/files?path=../etc/passwd"), Value::Null, 400, "path_invalid", "path"),
        ("GET", s("/files?path=%2Fa%00b"), Value::Null, 400, "path_invalid", "path"),
        ("GET", s("/files?path=/no/such"), Value::Null, 404, "file_not_found", ""),
        ("GET", s("/files?path=/etc"), Value::Null, 409, "is_a_directory", ""),
        ("GET", s("/files?path=/etc/passwd/x"), Value::Null, 409, "not_a_directory", ""),
        ("GET", s(&format!("/files?path=/{long}")), Value::Null, 400, "path_invalid", "path"),
        ("GET", s("/files/list?path=/etc/passwd"), Value::Null, 409, "not_a_directory", ""),
        ("GET", s("/files/list?path=/etc&depth=65"), Value::Null, 400, "invalid_argument", "depth"),
        ("GET", s("/files/stat?path=/no/such"), Value::Null, 404, "file_not_found", ""),
        ("PUT", s("/files?path=/no/such/dir/f"), Value::Null, 404, "file_not_found", ""),
        ("PUT", s("/files?path=/tmp/f&mode=rwx"), Value::Null, 400, "invalid_argument", "mode"),
        ("PUT", s("/files?path=/tmp/f&user=nobody-here"), Value::Null, 422, "user_not_found", ""),
        ("PUT", s("/files?path=/tmp"), Value::Null, 409, "is_a_directory", ""),
        ("PUT", s("/files?path=/usr/bin/true"), Value::Null, 403, "permission_denied", ""),
        ("DELETE", s("/files?path=/no/such"), Value::Null, 404, "file_not_found", ""),
        ("DELETE", s("/files?path=/home"), Value::Null, 409, "directory_not_empty", ""),
        ("POST", s("/files/mkdir"), json!({"path": "/etc"}), 409, "file_exists", ""),
        ("POST", s("/files/mkdir"), json!({"path": "/no/such/dir"}), 404, "file_not_found", ""),
        ("POST", s("/files/move"), json!({"from": "/no", "to": "/tmp/x"}), 404, "file_not_found", ""),
        (
            "POST",
            s("/files/move"),
            json!({"from": "/etc/passwd", "to": "/etc/group", "no_replace": true}),
            409,
            "file_exists",
            "",
        ),
        ("POST", s("/files/chmod"), json!({"path": "/tmp"}), 400, "invalid_argument", "mode"),
        ("POST", s("/files/chmod"), json!({"path": "/tmp", "mode": "9"}), 400, "invalid_argument", "mode"),
        ("GET", s("/archive?path=/no/such"), Value::Null, 404, "file_not_found", ""),
        ("GET", s("/watch?path=/no/such"), Value::Null, 404, "file_not_found", ""),
    ]
}

fn templates() -> Vec<Case> {
    vec![
        ("POST", "/v1/templates".into(), json!({"name": "t"}), 400, "invalid_argument", "image"),
        (
            "POST",
            "/v1/templates".into(),
            json!({"name": "T!", "image": "host"}),
            400,
            "invalid_argument",
            "name",
        ),
        ("GET", "/v1/templates/nope".into(), Value::Null, 404, "template_not_found", "nope"),
        ("DELETE", "/v1/templates/nope".into(), Value::Null, 404, "template_not_found", "nope"),
    ]
}

/// Images, registries and nodes.
fn images() -> Vec<Case> {
    vec![
        (
            "POST",
            "/v1/images/pull".into(),
            json!({"reference": "127.0.0.1:1/x:y"}),
            502,
            "registry_unavailable",
            "127.0.0.1:1",
        ),
        // Not what the server was allowed.
        (
            "POST",
            "/v1/images/pull".into(),
            json!({"reference": "127.0.0.1:2/x:y"}),
            403,
            "forbidden",
            "127.0.0.1:2",
        ),
        (
            "POST",
            "/v1/images/pull".into(),
            json!({"reference": "UPPER CASE"}),
            400,
            "invalid_argument",
            "reference",
        ),
        (
            "POST",
            "/v1/images/pull".into(),
            json!({"reference": "127.0.0.1:1/x:y", "platform": "pdp11"}),
            400,
            "invalid_argument",
            "platform",
        ),
        ("POST", "/v1/images/pull".into(), json!({}), 400, "invalid_argument", "reference"),
        ("DELETE", "/v1/images/no/such:image".into(), Value::Null, 404, "image_not_found", ""),
        ("DELETE", "/v1/registries/no.such.host".into(), Value::Null, 404, "registry_not_found", ""),
        ("GET", "/v1/nodes/none".into(), Value::Null, 404, "node_not_found", "none"),
        (
            "POST",
            "/v1/sandboxes".into(),
            json!({ "node_labels": { "a b": "c" } }),
            400,
            "invalid_argument",
            "node_labels",
        ),
        (
            "POST",
            "/v1/sandboxes".into(),
            json!({ "node_labels": { "zone": "a" } }),
            400,
            "invalid_argument",
            "no node",
        ),
        ("PATCH", "/v1/nodes/none".into(), json!({ "draining": true }), 404, "node_not_found", "none"),
    ]
}

fn keys() -> Vec<Case> {
    vec![
        ("POST", "/v1/keys".into(), json!({"name": "k", "scope": "god"}), 400, "invalid_argument", "scope"),
        ("DELETE", "/v1/keys/nope".into(), Value::Null, 404, "key_not_found", ""),
    ]
}
