//! Every operation on real objects, with every kind of key, against one table. The operations come from the OpenAPI
//! document: one that is added is walked, and one that forgets whose its object is fails here.

use atoll_core::Code;
use atoll_core::key::{KeyFormat, Scope};
use atoll_core::project::{ProjectDefaults, Quota};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

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

/// Pools by demand say what was asked for lately.
#[tokio::test]
async fn only_an_admin_sees_what_others_ask_for() {
    let harness = Harness::start_with_pools_by_demand().await;
    harness.engine.create_project("one", Quota::default(), ProjectDefaults::default()).await.unwrap();
    let key_of = async |project| {
        harness.engine.create_key_as(KeyFormat::Atoll, "k", Scope::Manage, None, project).await.unwrap()
    };
    let (of_one, of_none) = (key_of(Some("one")).await, key_of(None).await);
    for _ in 0..2 {
        let create = harness.bare(Method::POST, "/v1/sandboxes").json(&json!({}));
        let made = harness.send(create.bearer_auth(of_none.secret.reveal())).await;
        assert_eq!(made.status, 201, "{made:?}");
    }
    let (of_one, of_none) = (of_one.secret.reveal(), of_none.secret.reveal());
    let admin = harness.key(Scope::Admin);
    for (key, origins) in [(of_one, json!([])), (of_none, json!([])), (admin, json!(["demand"]))] {
        let list = harness.send(harness.bare(Method::GET, "/v1/pools").bearer_auth(key)).await;
        let items = list.body["items"].as_array().unwrap();
        let seen: Vec<&Value> = items.iter().map(|pool| &pool["origin"]).collect();
        assert_eq!(json!(seen), origins, "{list:?}");
    }
    let metrics = harness.send(harness.bare(Method::GET, "/metrics").bearer_auth(of_one)).await;
    let metrics = metrics.body.as_str().unwrap();
    assert!(metrics.contains("pool=\"demand\"") && !metrics.contains("demand:"), "{metrics}");
}

/// Objects that all projects have together are changed only with keys that belong to no project.
#[tokio::test]
async fn a_key_of_a_project_changes_nothing_that_all_use() {
    let harness = Harness::start().await;
    harness.engine.create_project("one", Quota::default(), ProjectDefaults::default()).await.unwrap();
    let made =
        harness.engine.create_key_as(KeyFormat::Atoll, "k", Scope::Manage, None, Some("one")).await.unwrap();
    let by = |method, path: &str| harness.bare(method, path).bearer_auth(made.secret.reveal());
    for request in [
        by(Method::POST, "/v1/templates").json(&json!({"name": "t", "image": "host"})),
        by(Method::DELETE, "/v1/templates/t"),
        by(Method::POST, "/v1/builds").json(&json!({"name": "t", "dockerfile": "FROM host"})),
        by(Method::DELETE, "/v1/images/host"),
        by(Method::PUT, "/v1/pools").json(&json!({"image": "host", "min_idle": 1})),
    ] {
        let answered = harness.send(request).await;
        assert_eq!(
            (answered.status, answered.body["code"].as_str()),
            (403, Some("forbidden")),
            "{answered:?}"
        );
    }
    let templates = harness.send(by(Method::GET, "/v1/templates")).await;
    assert_eq!(templates.status, 200);
    // There is no administrator of a project.
    let admin = harness.engine.create_key_as(KeyFormat::Atoll, "k", Scope::Admin, None, Some("one")).await;
    assert_eq!(admin.unwrap_err().code, Code::InvalidArgument);
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

/// A key that is deleted, or a role that is taken away, in the middle: open streams end, and no request begins any
/// more.
#[tokio::test]
async fn a_right_that_ends_in_the_middle_ends_what_is_open() {
    let harness = Harness::start().await;
    let owner = key(&harness, Scope::Manage).await;
    let friend = key(&harness, Scope::Manage).await;
    let on = objects(&harness, &owner).await;
    let grant = format!("/v1/sandboxes/{}/sharing/{}", on.sandbox, friend.id);
    let sleeps = json!({"argv": ["sleep", "1000"]});
    let exec = harness.request(Method::POST, &format!("/v1/sandboxes/{}/execs", on.sandbox)).json(&sleeps);
    let exec = harness.send(exec).await.body["exec"]["id"].as_str().unwrap().to_owned();
    let poll = format!("/v1/sandboxes/{}/execs/{exec}?wait_ms=60000", on.sandbox);
    for ends in ["role", "key"] {
        let granted = harness.request(Method::PUT, &grant).json(&json!({"role": "exec"}));
        assert_eq!(harness.send(granted).await.status, 200);
        let waiting = harness.bare(Method::GET, &poll).bearer_auth(&friend.secret).send();
        let waiting = tokio::spawn(waiting);
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        assert!(!waiting.is_finished());
        let path = if ends == "role" { grant.clone() } else { format!("/v1/keys/{}", friend.id) };
        assert!(harness.delete(&path).await.status < 300);
        assert_eq!(waiting.await.unwrap().unwrap().status().as_u16(), 401, "{ends}");
        let again = harness.send(harness.bare(Method::GET, &poll).bearer_auth(&friend.secret)).await;
        assert_eq!(again.status, if ends == "role" { 404 } else { 401 });
    }
}

/// A name is looked up once: the sandbox that was checked is the one that is used, however long the body takes.
#[tokio::test]
async fn a_name_that_passes_on_meanwhile_is_not_followed() {
    let harness = Harness::start().await;
    let mine = key(&harness, Scope::Manage).await;
    let theirs = key(&harness, Scope::Manage).await;
    let make = async |by: &Key, visibility: &str| {
        let body = json!({"name": "web", "visibility": visibility});
        let made = harness.bare(Method::POST, "/v1/sandboxes").bearer_auth(&by.secret).json(&body);
        let made = harness.send(made).await;
        assert_eq!(made.status, 201, "{made:?}");
        made.body["id"].as_str().unwrap().to_owned()
    };
    let first = make(&mine, "shared").await;
    let body = r#"{"argv":["echo","hijacked"],"wait_ms":10000}"#;
    let mut stream = TcpStream::connect(&harness.address).await.unwrap();
    let head = format!(
        "POST /v1/sandboxes/web/execs HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        harness.address,
        mine.secret,
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // The server checks the key and the name before it reads the body. The test cannot see when it has, so it waits a
    // little.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(harness.delete(&format!("/v1/sandboxes/{first}")).await.status, 204);
    let second = make(&theirs, "private").await;
    // The server may have broken off already, since the sandbox is gone.
    drop(stream.write_all(body.as_bytes()).await);
    let mut answer = String::new();
    drop(stream.read_to_string(&mut answer).await);
    assert!(!answer.starts_with("HTTP/1.1 201"), "{answer}");
    let execs = harness.get(&format!("/v1/sandboxes/{second}/execs")).await;
    assert_eq!(execs.body["items"], json!([]), "nothing runs in another's sandbox");
}

/// No name has the form of an id, whichever way it is given.
#[tokio::test]
async fn nothing_is_called_by_the_id_of_another() {
    let harness = Harness::start().await;
    let victim = harness.sandbox(json!({})).await;
    let attacker = harness.sandbox(json!({})).await;
    let path = format!("/v1/sandboxes/{}", attacker.id);
    for refused in [
        harness.post("/v1/sandboxes", json!({"name": victim.id})).await,
        harness.post(&format!("{path}/fork"), json!({"count": 1, "name": victim.id})).await,
        harness.send(harness.request(Method::PATCH, &path).json(&json!({"name": victim.id}))).await,
        harness.post("/v1/templates", json!({"name": victim.id, "image": "host"})).await,
    ] {
        assert_eq!((refused.status, refused.code()), (400, "invalid_argument"), "{refused:?}");
    }
    assert_eq!(harness.get(&format!("/v1/sandboxes/{}", victim.id)).await.body["id"], json!(victim.id));
}

/// What goes on from private things is private, and names of private snapshots are not to be had.
#[tokio::test]
async fn privacy_goes_along() {
    let harness = Harness::start().await;
    let alice = key(&harness, Scope::Manage).await;
    let mallory = harness.key(Scope::Manage);
    let on = objects(&harness, &alice).await;
    let by_alice = |method, path: &str| harness.bare(method, path).bearer_auth(&alice.secret);
    let by_mallory = |method, path: &str| harness.bare(method, path).bearer_auth(mallory);
    let tags = format!("/v1/snapshots/{}/tags", on.snapshot);
    let tagged = by_alice(Method::POST, &tags).json(&json!({"tag": "alice:1"}));
    assert_eq!(harness.send(tagged).await.status, 200);
    // A sandbox of a private snapshot is private without a word.
    let child = by_alice(Method::POST, "/v1/sandboxes").json(&json!({"snapshot": "alice:1"}));
    let child = harness.send(child).await.body["id"].as_str().unwrap().to_owned();
    let child = format!("/v1/sandboxes/{child}");
    assert_eq!(harness.send(by_mallory(Method::GET, &child)).await.status, 404);
    // Nor can another key make its name lead elsewhere.
    let mine = harness.send(by_mallory(Method::POST, "/v1/sandboxes").json(&json!({}))).await;
    let mine = format!("/v1/sandboxes/{}/snapshots", mine.body["id"].as_str().unwrap());
    let taken = harness.send(by_mallory(Method::POST, &mine).json(&json!({"tags": ["alice:1"]}))).await;
    assert_eq!((taken.status, taken.code()), (409, "name_taken"), "{taken:?}");
    let own = harness.send(by_mallory(Method::POST, &mine).json(&json!({"tags": ["mallory:1"]}))).await;
    let own = format!("/v1/snapshots/{}/tags", own.body["id"].as_str().unwrap());
    let moved = harness.send(by_mallory(Method::POST, &own).json(&json!({"tag": "alice:1"}))).await;
    assert_eq!((moved.status, moved.code()), (409, "name_taken"), "{moved:?}");
    let still = harness.send(by_alice(Method::GET, "/v1/snapshots/alice:1")).await;
    assert_eq!(still.body["id"], json!(on.snapshot));
    // A key that sees a template gets what is in it: only a key that may change the snapshot makes a template of it.
    let template = json!({"name": "stolen", "snapshot": "alice:1"});
    let made = harness.send(by_mallory(Method::POST, "/v1/templates").json(&template)).await;
    assert_eq!((made.status, made.code()), (404, "snapshot_not_found"));
    // A snapshot of a private sandbox stays private when the sandbox is gone.
    assert_eq!(harness.delete(&format!("/v1/sandboxes/{}", on.sandbox)).await.status, 204);
    assert_eq!(
        harness.send(by_mallory(Method::GET, "/v1/snapshots")).await.body["items"].as_array().unwrap().len(),
        1
    );
    assert_eq!(harness.send(by_mallory(Method::GET, "/v1/snapshots/alice:1")).await.status, 404);
}

/// Whether a private sandbox has a port is not for strangers, nor is its id.
#[tokio::test]
async fn a_port_tells_strangers_nothing() {
    let harness = Harness::start().await;
    let alice = key(&harness, Scope::Manage).await;
    let body = json!({"name": "hidden", "visibility": "private"});
    let made = harness.bare(Method::POST, "/v1/sandboxes").bearer_auth(&alice.secret).json(&body);
    assert_eq!(harness.send(made).await.status, 201);
    let ask = async |name: &str| {
        let port = harness.bare(Method::GET, &format!("/v1/sandboxes/{name}/ports/80/"));
        let mut answer = harness.send(port.header("x-atoll-token", harness.key(Scope::Manage))).await;
        answer.body["request_id"] = Value::Null;
        (answer.status, answer.body.to_string().replace(name, "NAME"))
    };
    assert_eq!(ask("hidden").await, ask("nobody").await);
}

/// Ports, in each way of naming one: the same table.
#[tokio::test]
async fn ports_are_for_who_may_run_commands() {
    let harness = Harness::start().await;
    let owner = key(&harness, Scope::Manage).await;
    let friend = key(&harness, Scope::Manage).await;
    let on = objects(&harness, &owner).await;
    let domain = harness.address.rsplit(':').next().unwrap();
    let ask = async |sandbox: &str, form: usize, shown: Option<&str>| {
        let request = match form {
            0 => harness.bare(Method::GET, &format!("/v1/sandboxes/{sandbox}/ports/80/x")),
            1 => {
                let request = harness.bare(Method::GET, "/x");
                request.header("x-atoll-sandbox", sandbox).header("x-atoll-port", "80")
            }
            2 => harness.bare(Method::GET, "/x").header("host", format!("80-{sandbox}.localhost:{domain}")),
            _ => harness.bare(Method::GET, "/").header("host", format!("ports-{sandbox}.localhost:{domain}")),
        };
        let request = shown.iter().fold(request, |request, key| request.header("x-atoll-token", *key));
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        // A request that is let in gets to the fake, which has no ports, or to a page.
        let body: Value = response.json().await.unwrap_or_default();
        (status, body["code"].as_str().unwrap_or_default().to_owned())
    };
    for form in 0..4 {
        let ask = async |sandbox: &str, shown: Option<&str>| ask(sandbox, form, shown).await;
        let is = |answered: &Answered, status: u16, code: &str| {
            assert_eq!((answered.0, answered.1.as_str()), (status, code), "form {form}");
        };
        let missing = "sb00000000000000000000";
        for sandbox in [on.sandbox.as_str(), missing] {
            for shown in [None, Some("atoll_wrong")] {
                is(&ask(sandbox, shown).await, 401, "unauthorized");
            }
            is(&ask(sandbox, Some(harness.key(Scope::Read))).await, 403, "forbidden");
            for scope in [Scope::Exec, Scope::Manage] {
                is(&ask(sandbox, Some(harness.key(scope))).await, 404, "sandbox_not_found");
            }
        }
        let id = on.sandbox.parse().unwrap();
        let grant = async |role| harness.engine.grant(&id, &friend.id, role).await.unwrap();
        grant(atoll_core::sharing::Role::Read).await;
        is(&ask(&on.sandbox, Some(&friend.secret)).await, 403, "forbidden");
        grant(atoll_core::sharing::Role::Exec).await;
        let admitted = ask(&on.sandbox, Some(&friend.secret)).await;
        assert!(!is_refused(&admitted), "form {form}: {admitted:?}");
        let lease = format!("/v1/sandboxes/{}/lease", on.sandbox);
        let by_owner = |method| harness.bare(method, &lease).bearer_auth(&owner.secret);
        let taken = harness.send(by_owner(Method::POST).json(&json!({"ttl_ms": 600_000}))).await;
        assert_eq!(taken.status, 200, "{taken:?}");
        is(&ask(&on.sandbox, Some(&friend.secret)).await, 423, "sandbox_leased");
        assert!(harness.send(by_owner(Method::DELETE)).await.status < 300);
        harness.engine.revoke(&id, &friend.id).await.unwrap();
        is(&ask(&on.sandbox, Some(&friend.secret)).await, 404, "sandbox_not_found");
    }
}

/// The key is deleted while the body of a request comes: nothing is done any more.
#[tokio::test]
async fn a_right_that_ends_while_a_body_comes_does_nothing_more() {
    let harness = Harness::start().await;
    let owner = key(&harness, Scope::Manage).await;
    let mut began = 0;
    for operation in operations("{sandbox}") {
        // An operation that takes no body does not wait for one.
        if [Method::GET, Method::DELETE].contains(&operation.method) {
            continue;
        }
        let on = objects(&harness, &owner).await;
        let friend = key(&harness, Scope::Manage).await;
        let id = on.sandbox.parse().unwrap();
        harness.engine.grant(&id, &friend.id, atoll_core::sharing::Role::Manage).await.unwrap();
        let path = operation.path.replace("{sandbox}", &on.sandbox).replace("{exec}", &on.exec);
        let mut stream = TcpStream::connect(&harness.address).await.unwrap();
        let head = format!(
            "{} {}?path=/x HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\nconnection: close\r\n\
             expect: 100-continue\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n",
            operation.method, path, harness.address, friend.secret
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut first = [0; 32];
        let len = stream.read(&mut first).await.unwrap_or_default();
        harness.engine.delete_key(&friend.id).await.unwrap();
        if first[..len].starts_with(b"HTTP/1.1 100") {
            began += 1;
            drop(stream.write_all(b"{}").await);
            let mut answer = String::new();
            drop(stream.read_to_string(&mut answer).await);
            assert!(!answer.starts_with("HTTP/1.1 2"), "{}: {answer}", operation.name);
        }
        remove(&harness, &on).await;
    }
    assert!(began > 10, "only {began} operations read a body");
}
