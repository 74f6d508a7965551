//! Every route of the protocol on real objects, with every kind of key: see [`atoll_walk`].

#![cfg(test)]

use std::collections::BTreeSet;

use atoll_core::key::Scope;
use atoll_walk::{Answer, Call, Objects, Protocol, Route, Verdict, World, on_sandbox, on_server, routes_in};

/// The routers of the toolbox: a client that may run commands may use all of it.
const TOOLBOX: [&str; 4] = [
    include_str!("../src/toolbox/mod.rs"),
    include_str!("../src/toolbox/desktop/mod.rs"),
    include_str!("../src/toolbox/files/mod.rs"),
    include_str!("../src/toolbox/git/mod.rs"),
];

/// The table of the control plane, below `/daytona/api`. Snapshots here are templates too; the engine's own tests check
/// what another key sees of private snapshots.
fn control() -> Vec<Route> {
    vec![
        on_server("POST", "/sandbox", Scope::Manage),
        on_server("GET", "/sandbox", Scope::Read),
        on_sandbox("GET", "/sandbox/{sandbox}", Scope::Read),
        on_sandbox("DELETE", "/sandbox/{sandbox}", Scope::Manage),
        on_sandbox("POST", "/sandbox/{sandbox}/start", Scope::Exec),
        on_sandbox("POST", "/sandbox/{sandbox}/stop", Scope::Manage),
        on_sandbox("POST", "/sandbox/{sandbox}/pause", Scope::Manage),
        on_sandbox("POST", "/sandbox/{sandbox}/recover", Scope::Manage),
        on_sandbox("POST", "/sandbox/{sandbox}/archive", Scope::Manage),
        on_sandbox("PUT", "/sandbox/{sandbox}/labels", Scope::Manage),
        on_sandbox("POST", "/sandbox/{sandbox}/resize", Scope::Manage),
        on_sandbox("POST", "/sandbox/{sandbox}/autostop/{minutes}", Scope::Manage),
        on_sandbox("POST", "/sandbox/{sandbox}/autopause/{minutes}", Scope::Manage),
        on_sandbox("POST", "/sandbox/{sandbox}/autoarchive/{minutes}", Scope::Manage),
        on_sandbox("POST", "/sandbox/{sandbox}/autodelete/{minutes}", Scope::Manage),
        on_sandbox("POST", "/sandbox/{sandbox}/ttl/{minutes}", Scope::Manage),
        on_sandbox("POST", "/sandbox/{sandbox}/public/{public}", Scope::Manage),
        on_sandbox("POST", "/sandbox/{sandbox}/network-settings", Scope::Manage),
        on_sandbox("POST", "/sandbox/{sandbox}/last-activity", Scope::Exec),
        on_sandbox("GET", "/sandbox/{sandbox}/toolbox-proxy-url", Scope::Read),
        on_sandbox("GET", "/sandbox/{sandbox}/signing-key", Scope::Exec),
        on_sandbox("POST", "/sandbox/{sandbox}/signing-key/rotate", Scope::Manage),
        on_sandbox("GET", "/sandbox/{sandbox}/ports/{port}/preview-url", Scope::Exec),
        on_sandbox("GET", "/sandbox/{sandbox}/ports/{port}/signed-preview-url", Scope::Exec),
        on_sandbox("POST", "/sandbox/{sandbox}/ports/{port}/signed-preview-url/{token}/expire", Scope::Exec),
        on_sandbox("POST", "/sandbox/{sandbox}/fork", Scope::Manage),
        on_sandbox("POST", "/sandbox/{sandbox}/snapshot", Scope::Manage),
        on_server("POST", "/snapshots", Scope::Manage),
        on_server("GET", "/snapshots", Scope::Read),
        on_server("GET", "/snapshots/{name}", Scope::Read),
        on_server("DELETE", "/snapshots/{name}", Scope::Manage),
        on_server("POST", "/snapshots/{name}/activate", Scope::Manage),
        on_server("GET", "/snapshots/{name}/build-logs-url", Scope::Read),
        on_server("GET", "/snapshots/{name}/build-logs", Scope::Read),
        on_server("POST", "/volumes", Scope::Manage),
        on_server("GET", "/volumes", Scope::Read),
        on_server("GET", "/volumes/{volume}", Scope::Read),
        on_server("DELETE", "/volumes/{volume}", Scope::Manage),
        on_server("GET", "/volumes/by-name/{volume}", Scope::Read),
        on_server("GET", "/config", Scope::Read),
        on_sandbox("POST", "/sandbox/{sandbox}/ssh-access", Scope::Exec),
        on_sandbox("DELETE", "/sandbox/{sandbox}/ssh-access", Scope::Exec),
        on_server("GET", "/sandbox/ssh-access/validate", Scope::Read),
        on_sandbox("PUT", "/sandbox/{sandbox}/secrets", Scope::Manage),
        on_sandbox("ANY", "/sandbox/{sandbox}/telemetry/{*rest}", Scope::Read),
        on_server("POST", "/secret", Scope::Admin),
        on_server("GET", "/secret", Scope::Manage),
        on_server("GET", "/secret/paginated", Scope::Manage),
        on_server("GET", "/secret/{secret}", Scope::Manage),
        on_server("PATCH", "/secret/{secret}", Scope::Admin),
        on_server("DELETE", "/secret/{secret}", Scope::Admin),
        on_server("POST", "/warm-pools", Scope::Manage),
        on_server("GET", "/warm-pools", Scope::Read),
        on_server("PATCH", "/warm-pools/{pool}", Scope::Manage),
        on_server("DELETE", "/warm-pools/{pool}", Scope::Manage),
        on_server("GET", "/object-storage/push-access", Scope::Manage),
    ]
}

/// Routes that say that the server is there.
const OPEN: [&str; 2] = ["/health", "/health/ready"];

/// A body that all routes that take JSON can read.
const BODY: &str = r#"{"name": "taken", "command": "true", "code": "1", "path": "/x", "url": "https://x.example/x",
    "sessionId": "s", "id": "t", "labels": {}, "data": "x", "cols": 80, "rows": 24, "files": ["/x"],
    "pattern": "x", "newValue": "y", "message": "m", "author": "a", "email": "a@example.com", "branch": "b"}"#;

/// A form with a file.
const FORM: &str = "--x\r\ncontent-disposition: form-data; name=\"files[0].path\"\r\n\r\n/x\r\n--x\r\n\
    content-disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\nhello\r\n--x--\r\n";

/// The values for the parts of a path.
const PARTS: [(&str, &str); 12] = [
    ("{pool}", "none"),
    ("{process}", "xvfb"),
    ("{minutes}", "10"),
    ("{public}", "true"),
    ("{port}", "8080"),
    ("{token}", "none"),
    ("{*rest}", "x"),
    ("{session}", "none"),
    ("{command}", "none"),
    ("{id}", "none"),
    ("{volume}", "none"),
    ("{name}", "none"),
];

/// A call of one of the two halves of the protocol.
fn call(base: &str, route: &Route, on: &Objects, shown: Option<&str>, has_body: bool) -> Call {
    let path = PARTS.iter().fold(route.path.to_owned(), |path, (part, value)| path.replace(part, value));
    let path = format!("/daytona/{base}{path}?path=/x&pattern=x").replace("{sandbox}", &on.name);
    let form = route.path.contains("upload");
    let kind = if form { "multipart/form-data; boundary=x" } else { "application/json" };
    let mut headers = vec![("content-type", kind.to_owned())];
    headers.extend(shown.map(|key| ("authorization", format!("Bearer {key}"))));
    let method = if route.method == "ANY" { "GET" } else { route.method };
    if route.method == "ANY" {
        let websocket = [("connection", "upgrade"), ("upgrade", "websocket")];
        let websocket = websocket.into_iter().chain([("sec-websocket-version", "13")]);
        let websocket = websocket.chain([("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")]);
        headers.extend(websocket.map(|(name, value)| (name, value.to_owned())));
    }
    let body = match has_body && !["GET", "DELETE"].contains(&method) {
        false => "",
        true if form => FORM,
        true => BODY,
    };
    Call { method: method.to_owned(), path, headers, body: body.into() }
}

fn verdict(answer: &Answer) -> Verdict {
    let said = |text: &str| answer.text.contains(text);
    match answer.status {
        401 => Verdict::NoKey,
        403 if said("for itself") => Verdict::Leased,
        403 => Verdict::Weak,
        404 if said("Sandbox with ID or name") => Verdict::Missing,
        _ => Verdict::Admitted,
    }
}

/// Errors tell when they were made.
fn timeless(text: &str) -> String {
    let Some((before, rest)) = text.split_once("\"timestamp\":\"") else { return text.to_owned() };
    format!("{before}{}", rest.split_once('"').map_or("", |(_, after)| after))
}

struct Control;

impl Protocol for Control {
    fn routes(&self) -> Vec<Route> {
        control()
    }

    fn call(&self, route: &Route, on: &Objects, shown: Option<&str>) -> Call {
        let takes =
            ["/sandbox", "/labels", "/resize", "-settings", "/fork", "/snapshot", "/snapshots", "/volumes"];
        call("api", route, on, shown, takes.iter().any(|end| route.path.ends_with(end)))
    }

    fn verdict(&self, answer: &Answer) -> Verdict {
        verdict(answer)
    }

    fn steady(&self, text: &str) -> String {
        timeless(text)
    }
}

struct Toolbox;

impl Protocol for Toolbox {
    fn routes(&self) -> Vec<Route> {
        let own = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
        let found = TOOLBOX.into_iter().flat_map(routes_in);
        found.map(|(method, path)| on_sandbox(own(method), own(path), Scope::Exec)).collect()
    }

    fn call(&self, route: &Route, on: &Objects, shown: Option<&str>) -> Call {
        let without = ["/files/folder", "/files/move", "/files/permissions"];
        call("toolbox/{sandbox}", route, on, shown, !without.contains(&route.path))
    }

    fn verdict(&self, answer: &Answer) -> Verdict {
        verdict(answer)
    }

    fn steady(&self, text: &str) -> String {
        timeless(text)
    }
}

async fn world() -> World {
    World::new(&[atoll_dialect_daytona::DIALECT]).await
}

#[test]
fn the_table_has_every_route() {
    let routes = routes_in(include_str!("../src/control/mod.rs"));
    let routes: BTreeSet<_> = routes.into_iter().filter(|(_, path)| !OPEN.contains(&path.as_str())).collect();
    let table = control().iter().map(|route| (route.method.to_owned(), route.path.to_owned())).collect();
    assert_eq!(routes, table);
}

#[tokio::test]
async fn what_is_private_exists_for_its_own_only() {
    atoll_walk::private(&world().await, &Control).await;
    atoll_walk::private(&world().await, &Toolbox).await;
}

#[tokio::test]
async fn the_least_of_scope_and_role_counts() {
    atoll_walk::roles(&world().await, &Control).await;
    atoll_walk::roles(&world().await, &Toolbox).await;
}

#[tokio::test]
async fn a_lease_keeps_all_others_out() {
    atoll_walk::leased(&world().await, &Control).await;
    atoll_walk::leased(&world().await, &Toolbox).await;
}
#[tokio::test]
async fn keys_of_other_projects_see_nothing() {
    atoll_walk::apart(&world().await, &Control).await;
    atoll_walk::apart(&world().await, &Toolbox).await;
}

#[tokio::test]
async fn what_was_taken_back_is_good_for_nothing() {
    atoll_walk::revoked(&world().await, &Control).await;
    atoll_walk::revoked(&world().await, &Toolbox).await;
}

#[tokio::test]
async fn a_right_that_ends_while_a_body_comes_does_nothing_more() {
    let began = atoll_walk::cut_off(&world().await, &Control).await;
    assert!(began > 3, "only {began} routes of the control plane read a body");
    let began = atoll_walk::cut_off(&world().await, &Toolbox).await;
    assert!(began > 10, "only {began} routes of the toolbox read a body");
}

/// What a request without an idempotency key made for a client that left is deleted.
#[tokio::test]
async fn a_client_that_hangs_up_leaves_nothing_half_done() {
    let world = world().await;
    let hung_up = atoll_walk::hung_up(&world, &Control).await;
    assert!(hung_up > 10, "clients of Control hung up only {hung_up} times");
    let hung_up = atoll_walk::hung_up(&world, &Toolbox).await;
    assert!(hung_up > 10, "clients of Toolbox hung up only {hung_up} times");
}
