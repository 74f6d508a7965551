//! Every route of the protocol on real objects, with every kind of key: see [`atoll_walk`].

#![cfg(test)]

use std::collections::BTreeSet;

use atoll_core::id::SandboxId;
use atoll_core::key::Scope;
use atoll_walk::{
    Answer, Call, Key, Objects, Protocol, Route, Verdict, World, on_sandbox, on_server, on_snapshot,
    routes_in,
};

/// The sources of all routers, but for the routes that are only refused.
const SOURCES: [&str; 12] = [
    include_str!("../src/agents.rs"),
    include_str!("../src/blueprints/mod.rs"),
    include_str!("../src/devboxes/mod.rs"),
    include_str!("../src/executions/mod.rs"),
    include_str!("../src/files.rs"),
    include_str!("../src/gateways.rs"),
    include_str!("../src/logs.rs"),
    include_str!("../src/objects/mod.rs"),
    include_str!("../src/policies.rs"),
    include_str!("../src/secrets.rs"),
    include_str!("../src/snapshots/mod.rs"),
    include_str!("../src/tunnel.rs"),
];

const BY_ADDRESS: &str = "/v1/objects/{object}/content";

/// The table, below `/runloop`.
fn table() -> Vec<Route> {
    vec![
        on_server("POST", "/v1/devboxes", Scope::Manage),
        on_server("POST", "/v1/devboxes/create_and_await_running", Scope::Manage),
        on_server("GET", "/v1/devboxes", Scope::Read),
        on_sandbox("GET", "/v1/devboxes/{devbox}", Scope::Read),
        on_sandbox("POST", "/v1/devboxes/{devbox}", Scope::Manage),
        on_sandbox("POST", "/v1/devboxes/{devbox}/wait_for_status", Scope::Read),
        on_sandbox("POST", "/v1/devboxes/{devbox}/shutdown", Scope::Manage),
        on_sandbox("POST", "/v1/devboxes/{devbox}/suspend", Scope::Manage),
        on_sandbox("POST", "/v1/devboxes/{devbox}/resume", Scope::Manage),
        on_sandbox("POST", "/v1/devboxes/{devbox}/keep_alive", Scope::Exec),
        on_sandbox("POST", "/v1/devboxes/{devbox}/create_ssh_key", Scope::Exec),
        on_sandbox("POST", "/v1/devboxes/{devbox}/execute", Scope::Exec),
        on_sandbox("POST", "/v1/devboxes/{devbox}/execute_async", Scope::Exec),
        on_sandbox("POST", "/v1/devboxes/{devbox}/execute_sync", Scope::Exec),
        on_sandbox("GET", "/v1/devboxes/{devbox}/executions/{execution}", Scope::Read),
        on_sandbox("POST", "/v1/devboxes/{devbox}/executions/{execution}/send_std_in", Scope::Exec),
        on_sandbox("POST", "/v1/devboxes/{devbox}/executions/{execution}/wait_for_status", Scope::Read),
        on_sandbox("POST", "/v1/devboxes/{devbox}/executions/{execution}/kill", Scope::Exec),
        on_sandbox("GET", "/v1/devboxes/{devbox}/executions/{execution}/stream_stdout_updates", Scope::Read),
        on_sandbox("GET", "/v1/devboxes/{devbox}/executions/{execution}/stream_stderr_updates", Scope::Read),
        on_sandbox("POST", "/v1/devboxes/{devbox}/read_file_contents", Scope::Read),
        on_sandbox("POST", "/v1/devboxes/{devbox}/download_file", Scope::Read),
        on_sandbox("POST", "/v1/devboxes/{devbox}/write_file_contents", Scope::Exec),
        on_sandbox("POST", "/v1/devboxes/{devbox}/upload_file", Scope::Exec),
        on_sandbox("GET", "/v1/devboxes/{devbox}/logs", Scope::Read),
        on_sandbox("GET", "/v1/devboxes/{devbox}/usage", Scope::Read),
        on_sandbox("POST", "/v1/devboxes/{devbox}/snapshot_disk", Scope::Manage),
        on_sandbox("POST", "/v1/devboxes/{devbox}/snapshot_disk_async", Scope::Manage),
        on_sandbox("POST", "/v1/devboxes/{devbox}/enable_tunnel", Scope::Manage),
        on_sandbox("POST", "/v1/devboxes/{devbox}/remove_tunnel", Scope::Manage),
        on_server("GET", "/v1/devboxes/disk_snapshots", Scope::Read),
        on_snapshot("POST", "/v1/devboxes/disk_snapshots/{snapshot}", Scope::Manage),
        on_snapshot("GET", "/v1/devboxes/disk_snapshots/{snapshot}/status", Scope::Read),
        on_snapshot("POST", "/v1/devboxes/disk_snapshots/{snapshot}/delete", Scope::Manage),
        on_server("POST", "/v1/objects", Scope::Manage),
        on_server("GET", "/v1/objects", Scope::Read),
        on_server("GET", "/v1/objects/list_public", Scope::Read),
        on_server("GET", "/v1/objects/{object}", Scope::Read),
        on_server("POST", "/v1/objects/{object}/complete", Scope::Manage),
        on_server("POST", "/v1/objects/{object}/delete", Scope::Manage),
        on_server("GET", "/v1/objects/{object}/download", Scope::Read),
        on_server("POST", "/v1/blueprints", Scope::Manage),
        on_server("GET", "/v1/blueprints", Scope::Read),
        on_server("GET", "/v1/blueprints/list_public", Scope::Read),
        on_server("POST", "/v1/blueprints/preview", Scope::Read),
        on_server("GET", "/v1/blueprints/{blueprint}", Scope::Read),
        on_server("GET", "/v1/blueprints/{blueprint}/logs", Scope::Read),
        on_server("POST", "/v1/blueprints/{blueprint}/delete", Scope::Manage),
        on_server("POST", "/v1/network-policies", Scope::Manage),
        on_server("GET", "/v1/network-policies", Scope::Read),
        on_server("GET", "/v1/network-policies/{policy}", Scope::Read),
        on_server("POST", "/v1/network-policies/{policy}", Scope::Manage),
        on_server("POST", "/v1/network-policies/{policy}/delete", Scope::Manage),
        on_server("POST", "/v1/agents", Scope::Manage),
        on_server("GET", "/v1/agents", Scope::Read),
        on_server("GET", "/v1/agents/{agent}", Scope::Read),
        on_server("POST", "/v1/agents/{agent}/delete", Scope::Manage),
        on_server("POST", "/v1/gateway-configs", Scope::Manage),
        on_server("GET", "/v1/gateway-configs", Scope::Read),
        on_server("GET", "/v1/gateway-configs/{gateway}", Scope::Read),
        on_server("POST", "/v1/gateway-configs/{gateway}", Scope::Manage),
        on_server("POST", "/v1/gateway-configs/{gateway}/delete", Scope::Manage),
        on_server("POST", "/v1/secrets", Scope::Admin),
        on_server("GET", "/v1/secrets", Scope::Manage),
        on_server("GET", "/v1/secrets/{secret}", Scope::Manage),
        on_server("POST", "/v1/secrets/{secret}", Scope::Admin),
        on_server("POST", "/v1/secrets/{secret}/delete", Scope::Admin),
        on_server("GET", "/v1/secrets/id/{secret}", Scope::Manage),
        on_server("POST", "/v1/secrets/id/{secret}/update", Scope::Admin),
        on_server("POST", "/v1/secrets/id/{secret}/delete", Scope::Admin),
    ]
}

/// A body that all routes that take JSON can read.
const BODY: &str = r#"{"name": "taken", "command": "true", "file_path": "/x", "contents": "x", "text": "x",
    "statuses": ["completed"], "timeout_seconds": 1, "content_type": "text"}"#;

/// The last part of the paths that take no body.
const WITHOUT_BODY: [&str; 9] = [
    "shutdown",
    "suspend",
    "resume",
    "keep_alive",
    "create_ssh_key",
    "kill",
    "remove_tunnel",
    "delete",
    "complete",
];

/// A form with a file.
const FORM: &str = "--x\r\ncontent-disposition: form-data; name=\"path\"\r\n\r\n/x\r\n--x\r\n\
    content-disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\nhello\r\n--x--\r\n";

struct Runloop;

impl Protocol for Runloop {
    fn routes(&self) -> Vec<Route> {
        table()
    }

    fn call(&self, route: &Route, on: &Objects, shown: Option<&str>) -> Call {
        let devbox = on.sandbox.as_str().replacen("sb", "dbx_", 1);
        let snapshot = on.snapshot.as_str().replacen("sn", "snp_", 1);
        let path = route.path.replace("{devbox}", &devbox).replace("{snapshot}", &snapshot);
        let path = path
            .replace("{execution}", "exec_none")
            .replace("{blueprint}", "bpt_none")
            .replace("{object}", "obj_none")
            .replace("{policy}", "npl_none")
            .replace("{gateway}", "gwc_none")
            .replace("{agent}", "agt_none")
            .replace("{secret}", "sec_none");
        let form = route.path.ends_with("/upload_file");
        let kind = if form { "multipart/form-data; boundary=x" } else { "application/json" };
        let mut headers = vec![("content-type", kind.to_owned())];
        headers.extend(shown.map(|key| ("authorization", format!("Bearer {key}"))));
        let last = route.path.rsplit('/').next().unwrap_or_default();
        let body = match last {
            _ if route.method == "GET" || WITHOUT_BODY.contains(&last) => "",
            _ if form => FORM,
            "wait_for_status" if !route.path.contains("executions") => r#"{"statuses": ["running"]}"#,
            _ => BODY,
        };
        let path = format!("/runloop{path}");
        Call { method: route.method.to_owned(), path, headers, body: body.into() }
    }

    fn verdict(&self, answer: &Answer) -> Verdict {
        let said = |text: &str| answer.text.contains(text);
        match answer.status {
            401 => Verdict::NoKey,
            403 if said("for itself") => Verdict::Leased,
            403 => Verdict::Weak,
            404 if said("Devbox") || said("Snapshot") => Verdict::Missing,
            _ => Verdict::Admitted,
        }
    }
}

async fn world() -> World {
    World::new(&[atoll_dialect_runloop::DIALECT]).await
}

#[test]
fn the_table_has_every_route() {
    let mut routes: BTreeSet<_> = SOURCES.into_iter().flat_map(routes_in).collect();
    // Addresses carry their own authority: a signature.
    routes.retain(|(_, path)| path != BY_ADDRESS);
    let table = table().iter().map(|route| (route.method.to_owned(), route.path.to_owned())).collect();
    assert_eq!(routes, table);
}

#[tokio::test]
async fn what_is_private_exists_for_its_own_only() {
    atoll_walk::private(&world().await, &Runloop).await;
}

#[tokio::test]
async fn the_least_of_scope_and_role_counts() {
    atoll_walk::roles(&world().await, &Runloop).await;
}

#[tokio::test]
async fn a_lease_keeps_all_others_out() {
    atoll_walk::leased(&world().await, &Runloop).await;
}
#[tokio::test]
async fn keys_of_other_projects_see_nothing() {
    atoll_walk::apart(&world().await, &Runloop).await;
}

#[tokio::test]
async fn what_was_taken_back_is_good_for_nothing() {
    atoll_walk::revoked(&world().await, &Runloop).await;
}

#[tokio::test]
async fn a_right_that_ends_while_a_body_comes_does_nothing_more() {
    let began = atoll_walk::cut_off(&world().await, &Runloop).await;
    assert!(began > 5, "only {began} routes read a body");
}

/// What a request without an idempotency key made for a client that left is deleted.
#[tokio::test]
async fn a_client_that_hangs_up_leaves_nothing_half_done() {
    let world = world().await;
    let hung_up = atoll_walk::hung_up(&world, &Runloop).await;
    assert!(hung_up > 10, "clients of Runloop hung up only {hung_up} times");
}

#[tokio::test]
async fn a_repeated_creation_changes_nothing_of_the_devbox_that_it_finds() {
    let create = |key: &Key| Call {
        method: "POST".to_owned(),
        path: "/runloop/v1/devboxes".to_owned(),
        headers: vec![
            ("content-type", "application/json".to_owned()),
            ("authorization", format!("Bearer {}", key.secret)),
            ("x-request-id", "once".to_owned()),
        ],
        body: br#"{"tunnel": {"auth_mode": "open"}}"#.to_vec(),
    };
    let made = |body: &[u8]| {
        let text = std::str::from_utf8(body).unwrap();
        let id = text.split("\"dbx_").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        format!("{}{id}", SandboxId::PREFIX).parse::<SandboxId>().unwrap()
    };
    atoll_walk::repeated(world().await, true, create, made).await;
}

/// A request without the right to it is refused before the server looks its id up or enters it.
#[tokio::test]
async fn a_creation_without_the_right_takes_no_place() {
    let world = world().await;
    let key = world.key(Scope::Read).await;
    for name in ["one", "other"] {
        let headers = vec![
            ("content-type", "application/json".to_owned()),
            ("authorization", format!("Bearer {}", key.secret)),
            ("x-request-id", "same".to_owned()),
        ];
        let path = "/runloop/v1/network-policies".to_owned();
        let body = format!(r#"{{"name": "{name}", "allow_all": true}}"#).into_bytes();
        let (status, told) = world.send(Call { method: "POST".to_owned(), path, headers, body }).await;
        assert_eq!(status, 403, "{}", String::from_utf8_lossy(&told));
    }
}
