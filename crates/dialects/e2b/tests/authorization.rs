//! Every route of the protocol on real objects, with every kind of key: see [`atoll_walk`]. The control plane takes keys,
//! envd the tokens that stand for them.

#![cfg(test)]

use std::collections::BTreeSet;

use atoll_core::id::{SandboxId, VolumeId};
use atoll_core::key::Scope;
use atoll_walk::{
    Answer, Call, Key, Objects, Protocol, Route, Verdict, World, on_sandbox, on_server, on_snapshot,
    routes_in,
};

/// The route of the control plane without a key: an address for one upload, which stands for the key that asked for it.
const BY_ADDRESS: &str = "/uploads";
/// The route of envd that needs no token.
const FOR_ALL: &str = "/health";

/// The control plane's table.
fn control() -> Vec<Route> {
    vec![
        on_server("POST", "/sandboxes", Scope::Manage),
        on_server("GET", "/sandboxes", Scope::Read),
        on_server("POST", "/v2/sandboxes", Scope::Manage),
        on_server("GET", "/v2/sandboxes", Scope::Read),
        on_server("GET", "/sandboxes/metrics", Scope::Read),
        on_sandbox("GET", "/sandboxes/{sandbox}", Scope::Read),
        on_sandbox("DELETE", "/sandboxes/{sandbox}", Scope::Manage),
        on_sandbox("POST", "/sandboxes/{sandbox}/connect", Scope::Exec),
        on_sandbox("POST", "/v2/sandboxes/{sandbox}/connect", Scope::Exec),
        on_sandbox("POST", "/sandboxes/{sandbox}/resume", Scope::Exec),
        on_sandbox("POST", "/sandboxes/{sandbox}/pause", Scope::Manage),
        on_sandbox("POST", "/sandboxes/{sandbox}/timeout", Scope::Exec),
        on_sandbox("POST", "/sandboxes/{sandbox}/refreshes", Scope::Exec),
        on_sandbox("POST", "/sandboxes/{sandbox}/fork", Scope::Manage),
        on_sandbox("POST", "/sandboxes/{sandbox}/snapshots", Scope::Manage),
        on_server("GET", "/snapshots", Scope::Read),
        on_sandbox("PUT", "/sandboxes/{sandbox}/network", Scope::Manage),
        on_sandbox("GET", "/sandboxes/{sandbox}/metrics", Scope::Read),
        on_sandbox("GET", "/sandboxes/{sandbox}/logs", Scope::Read),
        on_sandbox("GET", "/v2/sandboxes/{sandbox}/logs", Scope::Read),
        on_snapshot("GET", "/templates/aliases/{alias}", Scope::Read),
        on_server("POST", "/v3/templates", Scope::Manage),
        on_server("GET", "/templates", Scope::Read),
        on_server("GET", "/v2/templates", Scope::Read),
        on_server("GET", "/default-templates", Scope::Read),
        on_server("GET", "/templates/{template}", Scope::Read),
        on_snapshot("DELETE", "/templates/{template}", Scope::Manage),
        on_server("PATCH", "/templates/{template}", Scope::Manage),
        on_server("PATCH", "/v2/templates/{template}", Scope::Manage),
        on_server("GET", "/templates/{template}/files/{hash}", Scope::Manage),
        on_server("POST", "/v2/templates/{template}/builds/{build}", Scope::Manage),
        on_server("GET", "/templates/{template}/builds/{build}/status", Scope::Read),
        on_server("GET", "/templates/{template}/builds/{build}/logs", Scope::Read),
        on_server("POST", "/templates/tags", Scope::Manage),
        on_server("DELETE", "/templates/tags", Scope::Manage),
        on_server("GET", "/templates/{template}/tags", Scope::Read),
        on_server("GET", "/templates/{template}/tags/count", Scope::Read),
        on_server("GET", "/templates/{template}/tags/exists", Scope::Read),
        on_server("GET", "/templates/{template}/tags/groups", Scope::Read),
        on_server("GET", "/templates/{template}/tags/{tag}/assignments", Scope::Read),
        on_server("GET", "/teams", Scope::Read),
        on_server("GET", "/volumes", Scope::Read),
        on_server("POST", "/volumes", Scope::Manage),
        on_server("GET", "/volumes/{volume}", Scope::Read),
        on_server("DELETE", "/volumes/{volume}", Scope::Manage),
        on_server("GET", "/secrets", Scope::Manage),
        on_server("POST", "/secrets", Scope::Admin),
        on_server("GET", "/secrets/{secret}", Scope::Manage),
        on_server("POST", "/secrets/{secret}", Scope::Admin),
        on_server("DELETE", "/secrets/{secret}", Scope::Admin),
    ]
}

/// The routes for files in volumes. Volumes belong to every key that has the scope.
fn content() -> Vec<Route> {
    vec![
        on_server("GET", "/volumecontent/{volume}/path", Scope::Read),
        on_server("PATCH", "/volumecontent/{volume}/path", Scope::Exec),
        on_server("DELETE", "/volumecontent/{volume}/path", Scope::Exec),
        on_server("GET", "/volumecontent/{volume}/dir", Scope::Read),
        on_server("POST", "/volumecontent/{volume}/dir", Scope::Exec),
        on_server("GET", "/volumecontent/{volume}/file", Scope::Read),
        on_server("PUT", "/volumecontent/{volume}/file", Scope::Exec),
    ]
}

/// A volume. It need not exist to see which callers are let in.
fn volume() -> VolumeId {
    VolumeId::from_parts(1, 1)
}

/// Envd's.
fn envd() -> Vec<Route> {
    vec![
        on_sandbox("POST", "/process.Process/List", Scope::Exec),
        on_sandbox("POST", "/process.Process/Start", Scope::Exec),
        on_sandbox("POST", "/process.Process/Connect", Scope::Exec),
        on_sandbox("POST", "/process.Process/Update", Scope::Exec),
        on_sandbox("POST", "/process.Process/StreamInput", Scope::Exec),
        on_sandbox("POST", "/process.Process/SendInput", Scope::Exec),
        on_sandbox("POST", "/process.Process/SendSignal", Scope::Exec),
        on_sandbox("POST", "/process.Process/CloseStdin", Scope::Exec),
        on_sandbox("POST", "/filesystem.Filesystem/Stat", Scope::Exec),
        on_sandbox("POST", "/filesystem.Filesystem/MakeDir", Scope::Exec),
        on_sandbox("POST", "/filesystem.Filesystem/Move", Scope::Exec),
        on_sandbox("POST", "/filesystem.Filesystem/ListDir", Scope::Exec),
        on_sandbox("POST", "/filesystem.Filesystem/Remove", Scope::Exec),
        on_sandbox("POST", "/filesystem.Filesystem/WatchDir", Scope::Exec),
        on_sandbox("POST", "/filesystem.Filesystem/CreateWatcher", Scope::Exec),
        on_sandbox("POST", "/filesystem.Filesystem/GetWatcherEvents", Scope::Exec),
        on_sandbox("POST", "/filesystem.Filesystem/RemoveWatcher", Scope::Exec),
        on_sandbox("GET", "/files", Scope::Exec),
        on_sandbox("POST", "/files", Scope::Exec),
        on_sandbox("POST", "/files/compose", Scope::Exec),
        on_sandbox("GET", "/metrics", Scope::Exec),
        on_sandbox("GET", "/envs", Scope::Exec),
    ]
}

struct Control;

impl Protocol for Control {
    fn routes(&self) -> Vec<Route> {
        control()
    }

    fn call(&self, route: &Route, on: &Objects, shown: Option<&str>) -> Call {
        let snapshot = on.snapshot.as_str();
        let path = route.path.replace("{sandbox}", on.sandbox.as_str());
        let path = path.replace("{alias}", snapshot).replace("{template}", snapshot).replace("{build}", "b");
        let path =
            path.replace("{hash}", "h").replace("{volume}", volume().as_str()).replace("{secret}", "x");
        let method = route.method;
        let mut headers = vec![("content-type", "application/json".to_owned())];
        headers.extend(shown.map(|key| ("x-api-key", key.to_owned())));
        let none = ["GET", "DELETE"].contains(&method);
        let body =
            if none { "" } else { r#"{"templateID": "base", "timeout": 60, "duration": 60, "count": 1}"# };
        Call { method: method.to_owned(), path: format!("/e2b{path}"), headers, body: body.into() }
    }

    fn verdict(&self, answer: &Answer) -> Verdict {
        let said = |text: &str| answer.text.contains(text);
        match answer.status {
            401 => Verdict::NoKey,
            403 if said("for itself") => Verdict::Leased,
            403 => Verdict::Weak,
            404 if said("you don't have access to it") || said("template 'ID' not found") => Verdict::Missing,
            _ => Verdict::Admitted,
        }
    }
}

struct Envd;

impl Protocol for Envd {
    fn routes(&self) -> Vec<Route> {
        envd()
    }

    fn call(&self, route: &Route, on: &Objects, shown: Option<&str>) -> Call {
        let streams = ["/Start", "/Connect", "/StreamInput", "/WatchDir"];
        let streams = streams.iter().any(|name| route.path.ends_with(name));
        let kind = if streams { "application/connect+json" } else { "application/json" };
        let mut headers =
            vec![("content-type", kind.to_owned()), ("e2b-sandbox-id", on.sandbox.as_str().to_owned())];
        headers.extend(shown.map(|token| ("x-access-token", token.to_owned())));
        let body = match route.method {
            "GET" => Vec::new(),
            // One message, and its length before it.
            _ if streams => b"\0\0\0\0\x02{}".to_vec(),
            _ => b"{}".to_vec(),
        };
        Call { method: route.method.to_owned(), path: format!("{}?path=/x", route.path), headers, body }
    }

    fn verdict(&self, answer: &Answer) -> Verdict {
        match answer.status {
            401 => Verdict::NoKey,
            403 if answer.text.contains("for itself") => Verdict::Leased,
            403 => Verdict::Weak,
            _ => Verdict::Admitted,
        }
    }

    fn is_done(&self, answer: &Answer) -> bool {
        // Streams tell their errors at the end.
        (200..400).contains(&answer.status) && !answer.text.contains("\"error\"")
    }

    fn shown(&self, world: &World, key: &Key, on: &Objects) -> String {
        format!("ea_{}", world.engine.sandbox_token("e2b envd", &key.id, &on.sandbox).reveal())
    }

    /// A token is for one sandbox.
    fn hides_as(&self) -> Verdict {
        Verdict::NoKey
    }

    /// Without a token, the clients learn from the answer that a sandbox is gone. Its id is random.
    fn hides_existence(&self) -> bool {
        false
    }
}

struct Content;

impl Protocol for Content {
    fn routes(&self) -> Vec<Route> {
        content()
    }

    fn call(&self, route: &Route, _: &Objects, shown: Option<&str>) -> Call {
        let path = route.path.replace("{volume}", volume().as_str());
        let headers = shown.map(|token| ("authorization", format!("Bearer {token}")));
        let body = if ["GET", "DELETE"].contains(&route.method) { "" } else { "{}" };
        Call {
            method: route.method.to_owned(),
            path: format!("/e2b{path}?path=/x"),
            headers: headers.into_iter().collect(),
            body: body.into(),
        }
    }

    fn verdict(&self, answer: &Answer) -> Verdict {
        match answer.status {
            401 => Verdict::NoKey,
            403 => Verdict::Weak,
            _ => Verdict::Admitted,
        }
    }

    fn shown(&self, world: &World, key: &Key, _: &Objects) -> String {
        format!("ev_{}", world.engine.volume_token("e2b volume", &key.id, &volume()).reveal())
    }
}

async fn world() -> World {
    World::new(&[atoll_dialect_e2b::DIALECT]).await
}

fn assert_whole(routes: &BTreeSet<(String, String)>, table: &[Route]) {
    let routes: BTreeSet<_> = routes.iter().map(|(method, path)| (method.as_str(), path.as_str())).collect();
    assert_eq!(routes, table.iter().map(|route| (route.method, route.path)).collect());
}

#[test]
fn the_tables_have_every_route() {
    let mut routes = routes_in(include_str!("../src/sandboxes/mod.rs"));
    routes.extend(routes_in(include_str!("../src/templates/mod.rs")));
    routes.retain(|(_, path)| path != BY_ADDRESS);
    let volumes = routes_in(include_str!("../src/volumes/mod.rs"));
    let (inside, outside) = volumes.into_iter().partition(|(_, path)| path.starts_with("/volumecontent/"));
    assert_whole(&inside, &content());
    routes.extend::<BTreeSet<_>>(outside);
    routes.extend(routes_in(include_str!("../src/secrets.rs")));
    assert_whole(&routes, &control());
    let mut routes = routes_in(include_str!("../src/envd/mod.rs"));
    routes.retain(|(_, path)| path != FOR_ALL && !path.contains('{'));
    for (service, source) in [
        ("process.Process", include_str!("../src/envd/process/mod.rs")),
        ("filesystem.Filesystem", include_str!("../src/envd/filesystem/mod.rs")),
    ] {
        let calls = source.lines().filter_map(|line| line.trim().strip_prefix('"')?.split_once("\" =>"));
        routes.extend(calls.map(|(name, _)| ("POST".to_owned(), format!("/{service}/{name}"))));
    }
    assert_whole(&routes, &envd());
}

#[tokio::test]
async fn what_is_private_exists_for_its_own_only() {
    let world = world().await;
    atoll_walk::private(&world, &Control).await;
}

#[tokio::test]
async fn a_token_of_envd_opens_what_its_key_may_use() {
    let world = world().await;
    atoll_walk::private(&world, &Envd).await;
}

#[tokio::test]
async fn a_token_of_a_volume_opens_what_its_key_may_use() {
    let world = world().await;
    atoll_walk::private(&world, &Content).await;
    // A caller that has the scope is told that there is no such volume.
    let nothing = Objects::nothing();
    let owner = world.key(Scope::Exec).await;
    for route in content() {
        let shown = Content.shown(&world, &owner, &nothing);
        let answer = world.ask(&Content, &route, &nothing, Some(&shown)).await;
        assert_eq!(answer.status, 404, "{route:?}: {answer:?}");
    }
}

#[tokio::test]
async fn the_least_of_scope_and_role_counts() {
    atoll_walk::roles(&world().await, &Control).await;
    atoll_walk::roles(&world().await, &Envd).await;
}

#[tokio::test]
async fn a_lease_keeps_all_others_out() {
    atoll_walk::leased(&world().await, &Control).await;
    atoll_walk::leased(&world().await, &Envd).await;
}
#[tokio::test]
async fn keys_of_other_projects_see_nothing() {
    atoll_walk::apart(&world().await, &Control).await;
    atoll_walk::apart(&world().await, &Envd).await;
    atoll_walk::apart(&world().await, &Content).await;
}

#[tokio::test]
async fn what_was_taken_back_is_good_for_nothing() {
    atoll_walk::revoked(&world().await, &Control).await;
    atoll_walk::revoked(&world().await, &Content).await;
    atoll_walk::revoked(&world().await, &Envd).await;
}

#[tokio::test]
async fn a_right_that_ends_while_a_body_comes_does_nothing_more() {
    let began = atoll_walk::cut_off(&world().await, &Control).await;
    assert!(began > 3, "only {began} routes of the control plane read a body");
    let began = atoll_walk::cut_off(&world().await, &Envd).await;
    assert!(began > 10, "only {began} routes of envd read a body");
}

/// A token of another volume, of another purpose, made up, or a key, opens nothing.
#[tokio::test]
async fn a_token_is_for_its_volume() {
    let world = world().await;
    let owner = world.key(Scope::Manage).await;
    let on = world.objects(&owner, "one").await;
    let other = world.engine.volume_token("e2b volume", &owner.id, &VolumeId::from_parts(1, 2));
    let purpose = world.engine.volume_token("e2b envd", &owner.id, &volume());
    let sandbox = world.engine.sandbox_token("e2b volume", &owner.id, &on.sandbox);
    let right = Content.shown(&world, &owner, &on);
    let wrong = [
        format!("ev_{}", other.reveal()),
        format!("ev_{}", purpose.reveal()),
        format!("ev_{}", sandbox.reveal()),
        right.trim_start_matches("ev_").to_owned(),
        format!("{right}0"),
        format!("ev_{}_{}", owner.id, "0".repeat(64)),
        owner.secret.clone(),
        "ev_".to_owned(),
    ];
    for route in content() {
        for shown in &wrong {
            let answer = world.ask(&Content, &route, &on, Some(shown)).await;
            assert_eq!(Content.verdict(&answer), Verdict::NoKey, "{route:?}: {answer:?}");
        }
    }
}

/// A token of another sandbox, of another purpose, or made up, opens nothing.
#[tokio::test]
async fn a_token_is_for_its_sandbox_and_its_purpose() {
    let world = world().await;
    let owner = world.key(Scope::Manage).await;
    let (one, other) = (world.objects(&owner, "one").await, world.objects(&owner, "other").await);
    let traffic = world.engine.sandbox_token("e2b traffic", &owner.id, &one.sandbox);
    let wrong = [
        Envd.shown(&world, &owner, &other),
        format!("ea_{}", traffic.reveal()),
        traffic.reveal().to_owned(),
        owner.secret.clone(),
        format!("ea_{}_{}", owner.id, "0".repeat(64)),
        "ea_".to_owned(),
    ];
    for route in envd() {
        for shown in &wrong {
            let answer = world.ask(&Envd, &route, &one, Some(shown)).await;
            assert_eq!(Envd.verdict(&answer), Verdict::NoKey, "{route:?}: {answer:?}");
        }
    }
}

/// What a request without an idempotency key made for a client that left is deleted.
#[tokio::test]
async fn a_client_that_hangs_up_leaves_nothing_half_done() {
    let world = world().await;
    let hung_up = atoll_walk::hung_up(&world, &Control).await;
    assert!(hung_up > 10, "clients of Control hung up only {hung_up} times");
    let hung_up = atoll_walk::hung_up(&world, &Envd).await;
    assert!(hung_up > 10, "clients of Envd hung up only {hung_up} times");
}

#[tokio::test]
async fn a_repeated_creation_changes_nothing_of_the_sandbox_that_it_finds() {
    let create = |key: &Key| Call {
        method: "POST".to_owned(),
        path: "/e2b/v2/sandboxes".to_owned(),
        headers: vec![
            ("content-type", "application/json".to_owned()),
            ("x-api-key", key.secret.clone()),
            ("idempotency-key", "once".to_owned()),
        ],
        body: br#"{"templateID": "base", "timeout": 600}"#.to_vec(),
    };
    let made = |body: &[u8]| {
        let text = std::str::from_utf8(body).unwrap();
        let id = text.split("\"sandboxID\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        id.parse::<SandboxId>().unwrap()
    };
    atoll_walk::repeated(world().await, false, create, made).await;
}
