//! Every operation on real objects, with every kind of key, against one table. The operations come from the OpenAPI
//! document: one that is added is walked, and one that forgets whose its object is fails here.
//!
//! `ports` has the same table for ports, `privacy` what goes on from private things, `changes` rights that end, and names that
//! pass on, in the middle of a request.

mod changes;
mod ports;
mod privacy;

use atoll_core::key::{KeyFormat, Scope};
use atoll_core::project::{ProjectDefaults, Quota};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::Harness;

/// The answer to an operation: its status, and the code of an error.
type Answered = (u16, String);

/// Codes by which an answer says that it was not allowed, or that there is no such thing.
const REFUSALS: [&str; 7] = [
    "unauthorized",
    "forbidden",
    "sandbox_leased",
    "sandbox_not_found",
    "snapshot_not_found",
    "agent_not_found",
    "build_not_found",
];

#[derive(Debug)]
struct Operation {
    name: String,
    method: Method,
    path: String,
    needs: Scope,
}

impl Operation {
    /// Whether it may be done to a sandbox that another key has a lease on.
    fn despite_lease(&self) -> bool {
        self.needs == Scope::Read || self.name == "DELETE /v1/sandboxes/{sandbox}/lease"
    }
}

/// The operations whose path names this.
fn operations(named: &str) -> Vec<Operation> {
    let document: Value = serde_json::from_str(&atoll_server::openapi()).unwrap();
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let scope = operation["security"][0]["key"][0].as_str().and_then(Scope::parse);
            if let Some(needs) = scope.filter(|_| path.contains(named)) {
                let name = format!("{} {path}", method.to_uppercase());
                let method = method.to_uppercase().parse().unwrap();
                found.push(Operation { name, method, path: path.clone(), needs });
            }
        }
    }
    assert!(found.len() > 3, "the document names no {named}");
    found
}

/// A key, and its id.
struct Key {
    id: String,
    secret: String,
}

async fn key(harness: &Harness, scope: Scope) -> Key {
    let made = harness.engine.create_key(scope.as_str(), scope, None).await.unwrap();
    Key { id: made.record.id.into(), secret: made.secret.reveal().to_owned() }
}

/// A private sandbox with an exec that has ended, a snapshot and a checkpoint.
struct Objects {
    sandbox: String,
    exec: String,
    snapshot: String,
    agent: String,
    session: String,
}

async fn objects(harness: &Harness, owner: &Key) -> Objects {
    objects_seen(harness, owner, "private").await
}

async fn objects_seen(harness: &Harness, owner: &Key, visibility: &str) -> Objects {
    let by = |method, path: &str| harness.bare(method, path).bearer_auth(&owner.secret);
    let made = harness.send(by(Method::POST, "/v1/sandboxes").json(&json!({"visibility": visibility}))).await;
    assert_eq!(made.status, 201, "{made:?}");
    let sandbox = made.body["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/sandboxes/{sandbox}");
    let exec = json!({"argv": ["echo", "x"], "wait_ms": 60000});
    let exec = harness.send(by(Method::POST, &format!("{path}/execs")).json(&exec)).await;
    let taken = harness.send(by(Method::POST, &format!("{path}/snapshots")).json(&json!({}))).await;
    let kept = harness.send(by(Method::POST, &format!("{path}/checkpoints")).json(&json!({}))).await;
    assert_eq!((exec.status, taken.status, kept.status), (201, 201, 201), "{exec:?} {taken:?} {kept:?}");
    let id = |body: &Value| body["id"].as_str().unwrap().to_owned();
    let agent = format!("agent-{sandbox}");
    let declared = json!({"name": agent, "sandbox": sandbox, "argv": ["echo", "x"]});
    let declared = harness.send(by(Method::POST, "/v1/agents").json(&declared)).await;
    let begun = by(Method::POST, &format!("/v1/agents/{agent}/sessions")).json(&json!({}));
    let begun = harness.send(begun).await;
    assert_eq!((declared.status, begun.status), (201, 201), "{declared:?} {begun:?}");
    let session = id(&begun.body);
    Objects { exec: id(&exec.body["exec"]), snapshot: id(&taken.body), agent, session, sandbox }
}

async fn remove(harness: &Harness, objects: &Objects) {
    // It may be gone already: that was the operation.
    harness.delete(&format!("/v1/sandboxes/{}", objects.sandbox)).await;
    harness.delete(&format!("/v1/snapshots/{}", objects.snapshot)).await;
}

async fn call(harness: &Harness, operation: &Operation, on: &Objects, key: Option<&str>) -> Answered {
    let mut path = operation.path.clone();
    for (part, value) in [
        ("{sandbox}", on.sandbox.as_str()),
        ("{exec}", &on.exec),
        ("{snapshot}", &on.snapshot),
        ("{agent}", &on.agent),
        ("{session}", &on.session),
        ("{number}", "1"),
    ] {
        path = path.replace(part, value);
    }
    let path = path.replace('{', "no-").replace('}', "-such");
    let mut request = harness.bare(operation.method.clone(), &path);
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    if status < 400 {
        // Some never end.
        return (status, String::new());
    }
    let body: Value = response.json().await.unwrap();
    (status, body["code"].as_str().unwrap().to_owned())
}

fn is_refused(answered: &Answered) -> bool {
    REFUSALS.contains(&answered.1.as_str())
}

const ROLES: [Scope; 3] = [Scope::Read, Scope::Exec, Scope::Manage];

/// One table for private objects: a key that has no right to one gets nothing, and learns nothing.
#[tokio::test]
async fn what_is_private_exists_for_its_own_only() {
    let harness = Harness::start().await;
    let owner = key(&harness, Scope::Manage).await;
    let on = objects(&harness, &owner).await;
    let nothing = Objects {
        sandbox: "sb00000000000000000000".into(),
        exec: "ex00000000000000000000".into(),
        snapshot: "sn00000000000000000000".into(),
        agent: "agent-none".into(),
        session: "se00000000000000000000".into(),
    };
    let kinds = [
        ("{sandbox}", "sandbox_not_found"),
        ("{snapshot}", "snapshot_not_found"),
        ("{agent}", "agent_not_found"),
    ];
    for (named, code) in kinds {
        for operation in operations(named) {
            let name = &operation.name;
            assert_eq!(call(&harness, &operation, &on, None).await.0, 401, "{name}");
            assert_eq!(call(&harness, &operation, &on, Some("atoll_wrong")).await.0, 401, "{name}");
            for scope in ROLES {
                let stranger = Some(harness.key(scope));
                let answered = call(&harness, &operation, &on, stranger).await;
                let expected = if scope < operation.needs { (403, "forbidden") } else { (404, code) };
                assert_eq!((answered.0, answered.1.as_str()), expected, "{name} with {scope:?}");
                assert_eq!(answered, call(&harness, &operation, &nothing, stranger).await, "{name} tells");
            }
        }
    }
}

/// An object that is shared is shared only within its project.
#[tokio::test]
async fn what_is_in_a_project_does_not_exist_outside() {
    let harness = Harness::start().await;
    for name in ["one", "other"] {
        let made = harness.engine.create_project(name, Quota::default(), ProjectDefaults::default()).await;
        made.unwrap();
    }
    let key_of = async |project| {
        let made =
            harness.engine.create_key_as(KeyFormat::Atoll, "k", Scope::Manage, None, project).await.unwrap();
        Key { id: made.record.id.into(), secret: made.secret.reveal().to_owned() }
    };
    let kinds = [
        ("{sandbox}", "sandbox_not_found"),
        ("{snapshot}", "snapshot_not_found"),
        ("{agent}", "agent_not_found"),
    ];
    for (home, strange) in [(Some("one"), [Some("other"), None]), (None, [Some("one"), Some("other")])] {
        let owner = key_of(home).await;
        let on = objects_seen(&harness, &owner, "shared").await;
        let friend = key_of(home).await;
        for project in strange {
            let stranger = key_of(project).await;
            for (named, code) in kinds {
                for operation in operations(named) {
                    let answered = call(&harness, &operation, &on, Some(&stranger.secret)).await;
                    let what = format!("{} by {project:?} in {home:?}", operation.name);
                    assert_eq!((answered.0, answered.1.as_str()), (404, code), "{what}");
                }
            }
            for path in ["sandboxes", "snapshots", "agents", "live"] {
                let list = harness.bare(Method::GET, &format!("/v1/{path}")).bearer_auth(&stranger.secret);
                let list = harness.send(list).await;
                assert_eq!(list.body["items"], json!([]), "{path} by {project:?} in {home:?}: {list:?}");
            }
        }
        let seen = harness.bare(Method::GET, &format!("/v1/sandboxes/{}", on.sandbox));
        assert_eq!(harness.send(seen.bearer_auth(&friend.secret)).await.status, 200);
        remove(&harness, &on).await;
    }
}

/// The least of scope and role, on a sandbox and on its snapshots.
#[tokio::test]
async fn the_least_of_scope_and_role_counts_everywhere() {
    let harness = Harness::start().await;
    let owner = key(&harness, Scope::Manage).await;
    let friend = key(&harness, Scope::Manage).await;
    // A refused request and an admitted GET change nothing: the next request asks about the same objects.
    let mut kept = None;
    for operation in ["{sandbox}", "{snapshot}", "{agent}"].into_iter().flat_map(operations) {
        let name = &operation.name;
        for role in ROLES {
            let on = fresh(&harness, &owner, &mut kept).await;
            let grant = format!("/v1/sandboxes/{}/sharing/{}", on.sandbox, friend.id);
            let granted = harness.request(Method::PUT, &grant).json(&json!({"role": role.as_str()}));
            assert_eq!(harness.send(granted).await.status, 200);
            let answered = call(&harness, &operation, &on, Some(&friend.secret)).await;
            if role < operation.needs {
                assert_eq!((answered.0, answered.1.as_str()), (403, "forbidden"), "{name} as {role:?}");
                kept = Some(on);
            } else {
                assert!(!is_refused(&answered), "{name} as {role:?}: {answered:?}");
                put_away(&harness, &operation, on, &mut kept).await;
            }
        }
        for own in [owner.secret.as_str(), harness.key(Scope::Admin)] {
            let on = fresh(&harness, &owner, &mut kept).await;
            let answered = call(&harness, &operation, &on, Some(own)).await;
            assert!(!is_refused(&answered), "{name}: {answered:?}");
            put_away(&harness, &operation, on, &mut kept).await;
        }
    }
}

/// The objects that the last request left as they were, or new ones.
async fn fresh(harness: &Harness, owner: &Key, kept: &mut Option<Objects>) -> Objects {
    match kept.take() {
        Some(on) => on,
        None => objects(harness, owner).await,
    }
}

/// Keeps objects after a request that changes nothing, and removes them after any other.
async fn put_away(harness: &Harness, operation: &Operation, on: Objects, kept: &mut Option<Objects>) {
    if operation.method == Method::GET {
        *kept = Some(on);
    } else {
        remove(harness, &on).await;
    }
}

/// While one key has a lease on a sandbox, all other keys can look, and nothing else.
#[tokio::test]
async fn a_lease_keeps_all_others_out() {
    let harness = Harness::start().await;
    let owner = key(&harness, Scope::Manage).await;
    let on = objects(&harness, &owner).await;
    let lease = harness.bare(Method::POST, &format!("/v1/sandboxes/{}/lease", on.sandbox));
    let lease = lease.bearer_auth(&owner.secret).json(&json!({"ttl_ms": 600_000}));
    assert_eq!(harness.send(lease).await.status, 200);
    for operation in operations("{sandbox}").into_iter().chain(operations("{agent}")) {
        if operation.despite_lease() {
            continue;
        }
        let answered = call(&harness, &operation, &on, Some(harness.key(Scope::Admin))).await;
        assert_eq!((answered.0, answered.1.as_str()), (423, "sandbox_leased"), "{}", operation.name);
    }
}
