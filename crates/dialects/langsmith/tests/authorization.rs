//! Every route of the protocol on real objects, with every kind of key: see [`atoll_walk`].

#![cfg(test)]

use std::collections::BTreeSet;

use atoll_core::key::Scope;
use atoll_walk::{
    Answer, Call, Objects, Protocol, Route, Verdict, World, on_sandbox, on_server, on_snapshot, routes_in,
};

/// The table, below `/v2/sandboxes`.
fn table() -> Vec<Route> {
    vec![
        on_server("POST", "/boxes", Scope::Manage),
        on_server("GET", "/boxes", Scope::Read),
        on_sandbox("GET", "/boxes/{name}", Scope::Read),
        on_sandbox("PATCH", "/boxes/{name}", Scope::Manage),
        on_sandbox("DELETE", "/boxes/{name}", Scope::Manage),
        on_sandbox("GET", "/boxes/{name}/status", Scope::Read),
        on_sandbox("POST", "/boxes/{name}/start", Scope::Exec),
        on_sandbox("POST", "/boxes/{name}/stop", Scope::Manage),
        on_sandbox("POST", "/boxes/{name}/snapshot", Scope::Manage),
        on_sandbox("POST", "/boxes/{name}/service-url", Scope::Exec),
        on_sandbox("GET", "/boxes/{name}/service-urls", Scope::Read),
        on_sandbox("DELETE", "/boxes/{name}/service-urls", Scope::Exec),
        on_sandbox("POST", "/boxes/{name}/download-url", Scope::Exec),
        on_server("POST", "/snapshots", Scope::Manage),
        on_server("GET", "/snapshots", Scope::Read),
        on_snapshot("GET", "/snapshots/{name}", Scope::Read),
        on_snapshot("DELETE", "/snapshots/{name}", Scope::Manage),
        on_server("GET", "/snapshots-by-name/{name}", Scope::Read),
        on_server("POST", "/registries", Scope::Admin),
        on_server("GET", "/registries", Scope::Admin),
        on_server("GET", "/registries/{name}", Scope::Admin),
        on_server("PATCH", "/registries/{name}", Scope::Admin),
        on_server("DELETE", "/registries/{name}", Scope::Admin),
        on_sandbox("ANY", "/{id}/execute/ws", Scope::Exec),
        on_sandbox("POST", "/{id}/execute", Scope::Exec),
        on_sandbox("POST", "/{id}/execute/stream/start", Scope::Exec),
        on_sandbox("POST", "/{id}/execute/stream/resume", Scope::Exec),
        on_sandbox("POST", "/{id}/upload", Scope::Exec),
        on_sandbox("GET", "/{id}/download", Scope::Read),
        on_sandbox("POST", "/{id}/glob", Scope::Read),
        on_sandbox("POST", "/{id}/grep", Scope::Read),
        on_sandbox("ANY", "/{id}/tunnel", Scope::Exec),
    ]
}

/// Routes that a token of a port opens, not a key: `services_want_their_token`.
const BY_TOKEN: [&str; 3] =
    ["/{id}/services/{port}", "/{id}/services/{port}/", "/{id}/services/{port}/{*path}"];

/// A body that all routes that take one can read.
const BODY: &str =
    r#"{"name": "taken", "command": "true", "command_id": "c", "port": 80, "path": "/x", "pattern": "x"}"#;

/// A form with a file.
const FORM: &str =
    "--x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\nhello\r\n--x--\r\n";

struct LangSmith;

impl Protocol for LangSmith {
    fn routes(&self) -> Vec<Route> {
        table()
    }

    fn call(&self, route: &Route, on: &Objects, shown: Option<&str>) -> Call {
        let of_snapshot = route.path == "/snapshots/{name}";
        let named = if of_snapshot { on.snapshot.as_str() } else { &on.name };
        let path = route.path.replace("{name}", named).replace("{id}", on.sandbox.as_str());
        let path = path.replace("{port}", "80").replace("{*path}", "x");
        let method = if route.method == "ANY" { "GET" } else { route.method };
        let form = route.path.ends_with("/upload");
        let kind = if form { "multipart/form-data; boundary=x" } else { "application/json" };
        let mut headers = vec![("content-type", kind.to_owned())];
        headers.extend(shown.map(|key| ("x-api-key", key.to_owned())));
        if route.method == "ANY" {
            let websocket = [("connection", "upgrade"), ("upgrade", "websocket")];
            let websocket = websocket.into_iter().chain([("sec-websocket-version", "13")]);
            let websocket = websocket.chain([("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")]);
            headers.extend(websocket.map(|(name, value)| (name, value.to_owned())));
        }
        let none = ["GET", "DELETE"].contains(&method) || path.ends_with("/start") || path.ends_with("/stop");
        let body = if none && !path.contains("/stream/") { "" } else { BODY };
        let body = if form { FORM } else { body }.into();
        let path = format!("/langsmith/v2/sandboxes{path}?path=/x&port=80");
        Call { method: method.to_owned(), path, headers, body }
    }

    fn verdict(&self, answer: &Answer) -> Verdict {
        let said = |text: &str| answer.text.contains(text);
        match answer.status {
            401 => Verdict::NoKey,
            403 => Verdict::Weak,
            _ if said("for itself") => Verdict::Leased,
            _ if said("no sandbox 'ID'") || said("no snapshot 'ID'") => Verdict::Missing,
            _ => Verdict::Admitted,
        }
    }
}

async fn world() -> World {
    World::new(&[atoll_dialect_langsmith::DIALECT]).await
}

#[test]
fn the_table_has_every_route() {
    let known = |path: &&str| !BY_TOKEN.contains(path);
    let routes = routes_in(include_str!("../src/lib.rs"));
    let routes: BTreeSet<_> = routes.iter().map(|(method, path)| (method.as_str(), path.as_str())).collect();
    let routes: BTreeSet<_> = routes.into_iter().filter(|(_, path)| known(path)).collect();
    let table = table();
    assert_eq!(routes, table.iter().map(|route| (route.method, route.path)).collect());
}

#[tokio::test]
async fn what_is_private_exists_for_its_own_only() {
    let world = world().await;
    atoll_walk::private(&world, &LangSmith).await;
    // Nor is it listed.
    let stranger = world.key(Scope::Manage).await;
    let list = on_server("GET", "/snapshots", Scope::Read);
    let call = LangSmith.call(&list, &Objects::nothing(), Some(&stranger.secret));
    let listed = reqwest::Client::new().get(format!("http://{}{}", world.address, call.path));
    let listed = listed.header("x-api-key", &stranger.secret).send().await.unwrap().text().await.unwrap();
    assert!(!listed.contains("hidden"), "{listed}");
}

#[tokio::test]
async fn the_least_of_scope_and_role_counts() {
    atoll_walk::roles(&world().await, &LangSmith).await;
}

#[tokio::test]
async fn a_lease_keeps_all_others_out() {
    atoll_walk::leased(&world().await, &LangSmith).await;
}
#[tokio::test]
async fn keys_of_other_projects_see_nothing() {
    atoll_walk::apart(&world().await, &LangSmith).await;
}

#[tokio::test]
async fn what_was_taken_back_is_good_for_nothing() {
    atoll_walk::revoked(&world().await, &LangSmith).await;
}

#[tokio::test]
async fn a_right_that_ends_while_a_body_comes_does_nothing_more() {
    let began = atoll_walk::cut_off(&world().await, &LangSmith).await;
    assert!(began > 5, "only {began} routes read a body");
}

/// A client without a token does not learn whether there is a sandbox or a port, even if it has other credentials.
#[tokio::test]
async fn services_want_their_token() {
    let world = world().await;
    let owner = world.key(Scope::Manage).await;
    let on = world.objects(&owner, "hidden").await;
    for path in BY_TOKEN {
        let route = on_sandbox("GET", path, Scope::Read);
        for shown in [None, Some("atoll_wrong"), Some(owner.secret.as_str())] {
            let hidden = world.ask(&LangSmith, &route, &on, shown).await;
            assert_eq!(hidden.status, 401, "{path}: {hidden:?}");
            assert_eq!(hidden, world.ask(&LangSmith, &route, &Objects::nothing(), shown).await);
        }
    }
}

/// What a request without an idempotency key made for a client that left is deleted.
#[tokio::test]
async fn a_client_that_hangs_up_leaves_nothing_half_done() {
    let world = world().await;
    let hung_up = atoll_walk::hung_up(&world, &LangSmith).await;
    assert!(hung_up > 10, "clients of LangSmith hung up only {hung_up} times");
}
