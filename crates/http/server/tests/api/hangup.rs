//! Clients that hang up in the middle of a change. It runs to its end: what is in memory, what is stored and what is
//! on the host agree, and the same can be asked again.
//!
//! hyper drops the future that answers a request when its client goes. So do these tests, after each number of
//! polls that there is.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::task::Poll;

use atoll_core::build::BuildState;
use atoll_core::id::SandboxId;
use atoll_core::key::Scope;
use atoll_core::sandbox::SandboxState;
use atoll_isolation::volumes::Volumes as _;
use atoll_isolation::{Artifacts as _, Isolation as _};
use atoll_store::{SandboxFilter, SnapshotFilter};
use axum::body::Body;
use http::Request;
use reqwest::Method;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::support::{Answer, Harness, eventually};

/// Sends a request and hangs up after `polls`; the status, if it was answered before.
async fn cut(harness: &Harness, method: &Method, path: &str, body: &Value, polls: u32) -> Option<u16> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
        .header("authorization", format!("Bearer {}", harness.key(Scope::Admin)))
        .header("content-type", "application/json")
        .body(if body.is_null() { Body::empty() } else { Body::from(body.to_string()) })
        .unwrap();
    let mut answer = Box::pin(harness.router.clone().oneshot(request));
    let mut left = polls;
    let answered = poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        answer.as_mut().poll(cx).map(Some)
    });
    Some(answered.await?.unwrap().status().as_u16())
}

async fn whole(harness: &Harness, method: &Method, path: &str, body: &Value) -> Answer {
    harness.send(harness.request(method.clone(), path).json(body)).await
}

/// Whether memory, store and host say the same.
async fn agrees(harness: &Harness) -> Option<()> {
    let store = &harness.store;
    let rows = store.list_sandboxes(&SandboxFilter::default(), None, 1000).await.unwrap().items;
    let access: BTreeMap<_, _> = store.list_access().await.unwrap();
    for row in &rows {
        let seen = harness.engine.sandbox(&row.id).ok()?;
        let view = harness.engine.access(&row.id).ok()?;
        let said = access.get(&row.id).cloned().unwrap_or_default();
        let same = seen.state == row.state
            && (&seen.name, &seen.labels) == (&row.name, &row.labels)
            && view.grants == said.grants
            && view.is_default == said.visibility.is_none();
        let settled = matches!(row.state, SandboxState::Running | SandboxState::Paused);
        if !same || !settled || !parts_agree(harness, &row.id).await {
            return None;
        }
    }
    if harness.engine.stats().sandboxes.values().sum::<u64>() != rows.len() as u64 {
        return None;
    }
    let on_host: BTreeSet<_> =
        harness.host.driver().scan().await.unwrap().into_iter().map(|found| found.sandbox).collect();
    // Members of pools have no rows.
    if !rows.iter().all(|row| on_host.contains(&row.id)) || !harness.engine.leaks().await.unwrap().is_empty()
    {
        return None;
    }
    let stored: BTreeMap<_, _> =
        store.list_secrets().await.unwrap().into_iter().map(|one| (one.name, one.versions)).collect();
    let known: BTreeMap<_, _> =
        harness.engine.secrets(None).into_iter().map(|one| (one.name, one.versions)).collect();
    (stored == known && lists_agree(harness).await).then_some(())
}

/// What the API lists at `path`, by the member `name` of each.
async fn listed(harness: &Harness, path: &str, name: &str) -> BTreeSet<String> {
    ids(path, &harness.get(path).await, name)
}

/// The member `name` of each item of an answer.
fn ids(path: &str, answer: &Answer, name: &str) -> BTreeSet<String> {
    let items = answer.body["items"].as_array().unwrap_or_else(|| panic!("{path}: {answer:?}"));
    items.iter().map(|item| item[name].as_str().unwrap().to_owned()).collect()
}

/// The same of what belongs to one sandbox.
async fn parts_agree(harness: &Harness, sandbox: &SandboxId) -> bool {
    let store = &harness.store;
    let services = store.list_services().await.unwrap().into_iter();
    let services: BTreeSet<_> =
        services.filter(|one| one.sandbox == *sandbox).map(|one| one.id.to_string()).collect();
    let accesses = store.list_accesses().await.unwrap().into_iter();
    let accesses: BTreeSet<_> =
        accesses.filter(|one| one.sandbox == *sandbox).map(|one| one.id.to_string()).collect();
    for (path, stored) in [("services", services), ("access", accesses)] {
        let path = format!("/v1/sandboxes/{sandbox}/{path}");
        let answer = harness.get(&path).await;
        // It has just been deleted, because no client can find it.
        if answer.status == 404 || ids(&path, &answer, "id") != stored {
            return false;
        }
    }
    true
}

/// The same of what belongs to no sandbox. What there is of snapshots on the host is what the store knows.
async fn lists_agree(harness: &Harness) -> bool {
    let store = &harness.store;
    let keys: BTreeSet<_> = store.list_keys().await.unwrap().iter().map(|one| one.id.to_string()).collect();
    let agents: BTreeSet<_> =
        store.list_agents().await.unwrap().iter().map(|one| one.id.to_string()).collect();
    let projects: BTreeSet<_> =
        store.list_projects().await.unwrap().iter().map(|one| one.id.to_string()).collect();
    let registries: BTreeSet<_> =
        store.list_registries().await.unwrap().into_iter().map(|one| one.host).collect();
    let snapshots = store.list_snapshots(&SnapshotFilter::default(), None, 1000).await.unwrap().items;
    let snapshots: BTreeSet<_> = snapshots.into_iter().map(|one| one.id).collect();
    let artifacts: BTreeSet<_> = harness.host.driver().artifacts().await.unwrap().into_iter().collect();
    let volumes: BTreeSet<_> =
        store.list_volumes().await.unwrap().into_iter().map(|one| one.id.to_string()).collect();
    let disks: BTreeSet<_> = harness.volumes.list().await.unwrap().iter().map(ToString::to_string).collect();
    let builds = store.list_builds(&[], None, None, 1000).await.unwrap().items;
    listed(harness, "/v1/keys", "id").await == keys
        && listed(harness, "/v1/agents", "id").await == agents
        && listed(harness, "/v1/projects", "id").await == projects
        && listed(harness, "/v1/registries", "host").await == registries
        && listed(harness, "/v1/volumes", "id").await == volumes
        && volumes == disks
        && builds.iter().all(|build| build.state.is_final() || build.state == BuildState::Waiting)
        // The results of steps and the disks of templates are not listed.
        && snapshots.is_subset(&artifacts)
        && harness.engine.leaked_artifacts().await.unwrap().is_empty()
}

/// Cuts a change at every point that there is; `prepare` makes the state before it and names its path and body,
/// `check` looks at what became of it. The same change, asked again, must be answered with one of `again`.
pub(super) async fn cut_everywhere(
    what: &str,
    method: Method,
    again: &[u16],
    mut prepare: impl AsyncFnMut(&Harness, u32) -> (String, Value),
) {
    let harness = Harness::start().await;
    for polls in 1.. {
        assert!(polls < 1000, "{what} is never answered");
        let (path, body) = prepare(&harness, polls).await;
        let answered = cut(&harness, &method, &path, &body, polls).await;
        eventually(&format!("{what}, cut after {polls} polls: all agree"), async || agrees(&harness).await)
            .await;
        let answer = whole(&harness, &method, &path, &body).await;
        assert!(again.contains(&answer.status), "{what} once more after {polls} polls: {answer:?}");
        eventually(&format!("{what}, done again: all agree"), async || agrees(&harness).await).await;
        for sandbox in harness.get("/v1/sandboxes").await.body["items"].as_array().unwrap() {
            harness.delete(&format!("/v1/sandboxes/{}", sandbox["id"].as_str().unwrap())).await;
        }
        if answered.is_some() {
            return;
        }
    }
}

async fn fresh(harness: &Harness) -> String {
    harness.sandbox(json!({})).await.id
}

async fn a_key(harness: &Harness) -> String {
    let answer = harness.post("/v1/keys", json!({ "name": "one", "scope": "read" })).await;
    answer.body["key"]["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_role_that_is_given() {
    cut_everywhere("a grant", Method::PUT, &[200], async |harness, _| {
        let path = format!("/v1/sandboxes/{}/sharing/{}", fresh(harness).await, a_key(harness).await);
        (path, json!({ "role": "exec" }))
    })
    .await;
}

#[tokio::test]
async fn a_role_that_is_taken_away() {
    cut_everywhere("a revocation", Method::DELETE, &[200, 404], async |harness, _| {
        let path = format!("/v1/sandboxes/{}/sharing/{}", fresh(harness).await, a_key(harness).await);
        whole(harness, &Method::PUT, &path, &json!({ "role": "exec" })).await;
        (path, Value::Null)
    })
    .await;
}

#[tokio::test]
async fn who_sees_a_sandbox() {
    cut_everywhere("visibility", Method::PUT, &[200], async |harness, _| {
        (format!("/v1/sandboxes/{}/sharing", fresh(harness).await), json!({ "visibility": "private" }))
    })
    .await;
}

#[tokio::test]
async fn a_secret_that_is_replaced() {
    cut_everywhere("a secret", Method::PUT, &[200], async |harness, polls| {
        let path = format!("/v1/secrets/s{polls}");
        let body = json!({ "value": "first", "scope": { "hosts": ["example.com"] } });
        assert_eq!(whole(harness, &Method::PUT, &path, &body).await.status, 200);
        (path, json!({ "value": "second" }))
    })
    .await;
}

#[tokio::test]
async fn a_sandbox_that_is_made_starts_what_belongs_to_it() {
    let harness = Harness::start().await;
    let template = json!({ "name": "starts", "image": "host", "start": ["sleep", "1000"] });
    assert_eq!(harness.post("/v1/templates", template).await.status, 201);
    for polls in 1.. {
        let name = format!("made-{polls}");
        let body = json!({ "template": "starts", "name": name });
        let answered = cut(&harness, &Method::POST, "/v1/sandboxes", &body, polls).await;
        if harness.get(&format!("/v1/sandboxes/{name}")).await.status == 404 && answered.is_none() {
            // It had not begun when the client went, or is about to.
            assert!(polls < 1000, "it never begins");
        }
        eventually("all agree", async || agrees(&harness).await).await;
        if harness.get(&format!("/v1/sandboxes/{name}")).await.status == 200 {
            eventually("the start command runs", async || {
                let execs = harness.get(&format!("/v1/sandboxes/{name}/execs")).await;
                (execs.body["items"].as_array()?.len() == 1).then_some(())
            })
            .await;
            harness.delete(&format!("/v1/sandboxes/{name}")).await;
        }
        if answered.is_some() {
            return;
        }
    }
}

#[tokio::test]
async fn a_sandbox_that_is_made() {
    cut_everywhere("a creation", Method::POST, &[201, 409], async |_, polls| {
        ("/v1/sandboxes".to_owned(), json!({ "name": format!("one-{polls}") }))
    })
    .await;
}

#[tokio::test]
async fn sandboxes_that_no_client_can_find() {
    let harness = Harness::start().await;
    let parent = fresh(&harness).await;
    // What remains of each request is the sandbox with a name, if it was made.
    let requests = [
        ("/v1/sandboxes".to_owned(), json!({})),
        ("/v1/sandboxes/batch".to_owned(), json!({ "sandboxes": [{}, { "name": "kept" }] })),
        (format!("/v1/sandboxes/{parent}/fork"), json!({ "count": 2 })),
    ];
    for (path, body) in requests {
        for polls in 1.. {
            assert!(polls < 1000, "{path} is never answered");
            let answered = cut(&harness, &Method::POST, &path, &body, polls).await;
            if answered.is_none() {
                eventually(&format!("{path}, cut after {polls} polls: nothing is left"), async || {
                    agrees(&harness).await?;
                    let left = listed(&harness, "/v1/sandboxes", "id").await.len();
                    let named = harness.get("/v1/sandboxes/kept").await.status == 200;
                    (left == 1 + usize::from(named)).then_some(())
                })
                .await;
            }
            for sandbox in listed(&harness, "/v1/sandboxes", "id").await {
                if sandbox != parent {
                    harness.delete(&format!("/v1/sandboxes/{sandbox}")).await;
                }
            }
            if answered.is_some() {
                break;
            }
        }
    }
    // With a key the client finds the sandbox by sending its request again.
    let whole = |key: &str| {
        harness
            .request(Method::POST, "/v1/sandboxes")
            .header("idempotency-key", key.to_owned())
            .json(&json!({}))
    };
    let made = harness.send(whole("one")).await;
    assert_eq!(
        (made.status, harness.send(whole("one")).await.body["id"].clone()),
        (201, made.body["id"].clone())
    );
}

#[tokio::test]
async fn a_sandbox_that_is_changed() {
    cut_everywhere("an update", Method::PATCH, &[200], async |harness, polls| {
        let body = json!({ "name": format!("new-{polls}"), "labels": { "a": "b" } });
        (format!("/v1/sandboxes/{}", fresh(harness).await), body)
    })
    .await;
}

#[tokio::test]
async fn a_sandbox_that_is_deleted() {
    cut_everywhere("a deletion", Method::DELETE, &[204, 404], async |harness, _| {
        (format!("/v1/sandboxes/{}", fresh(harness).await), Value::Null)
    })
    .await;
}

#[tokio::test]
async fn a_fork() {
    cut_everywhere("a fork", Method::POST, &[200], async |harness, polls| {
        let body = json!({ "count": 1, "name": format!("child-{polls}") });
        (format!("/v1/sandboxes/{}/fork", fresh(harness).await), body)
    })
    .await;
}

#[tokio::test]
async fn a_snapshot() {
    cut_everywhere("a snapshot", Method::POST, &[201], async |harness, polls| {
        let body = json!({ "tags": [format!("kept:v{polls}")] });
        (format!("/v1/sandboxes/{}/snapshots", fresh(harness).await), body)
    })
    .await;
}

#[tokio::test]
async fn a_template() {
    cut_everywhere("a template", Method::POST, &[201], async |_, polls| {
        ("/v1/templates".to_owned(), json!({ "name": format!("t{polls}"), "image": "host" }))
    })
    .await;
}

/// Sends what makes a state before a cut; it must succeed.
pub(super) async fn before(harness: &Harness, method: Method, path: &str, body: Value) -> Value {
    let answer = whole(harness, &method, path, &body).await;
    assert!(answer.status < 300, "{method} {path}: {answer:?}");
    answer.body
}

#[tokio::test]
async fn a_pause_and_a_resumption() {
    cut_everywhere("a pause", Method::POST, &[200], async |harness, _| {
        (format!("/v1/sandboxes/{}/pause", fresh(harness).await), json!({}))
    })
    .await;
    cut_everywhere("a resumption", Method::POST, &[200], async |harness, _| {
        let sandbox = fresh(harness).await;
        before(harness, Method::POST, &format!("/v1/sandboxes/{sandbox}/pause"), json!({})).await;
        (format!("/v1/sandboxes/{sandbox}/resume"), Value::Null)
    })
    .await;
}

#[tokio::test]
async fn checkpoints_and_ways_back() {
    let with_one = async |harness: &Harness| {
        let sandbox = fresh(harness).await;
        before(harness, Method::POST, &format!("/v1/sandboxes/{sandbox}/checkpoints"), json!({})).await;
        sandbox
    };
    cut_everywhere("a checkpoint", Method::POST, &[201], async |harness, _| {
        (format!("/v1/sandboxes/{}/checkpoints", fresh(harness).await), json!({}))
    })
    .await;
    cut_everywhere("the removal of a checkpoint", Method::DELETE, &[204, 404], async |harness, _| {
        (format!("/v1/sandboxes/{}/checkpoints/1", with_one(harness).await), Value::Null)
    })
    .await;
    cut_everywhere("a way back", Method::POST, &[200], async |harness, _| {
        (format!("/v1/sandboxes/{}/rollback", with_one(harness).await), json!({ "to": "1" }))
    })
    .await;
}

#[tokio::test]
async fn what_belongs_to_snapshots() {
    let kept = async |harness: &Harness| {
        let path = format!("/v1/sandboxes/{}/snapshots", fresh(harness).await);
        let made = before(harness, Method::POST, &path, json!({})).await;
        made["id"].as_str().unwrap().to_owned()
    };
    cut_everywhere("a tag", Method::POST, &[200], async |harness, polls| {
        (format!("/v1/snapshots/{}/tags", kept(harness).await), json!({ "tag": format!("t{polls}") }))
    })
    .await;
    cut_everywhere("the deletion of a snapshot", Method::DELETE, &[200, 404], async |harness, _| {
        (format!("/v1/snapshots/{}", kept(harness).await), Value::Null)
    })
    .await;
}

#[tokio::test]
async fn services_and_accesses() {
    let serving = async |harness: &Harness| {
        let path = format!("/v1/sandboxes/{}/services", fresh(harness).await);
        let service = json!({ "name": "web", "argv": ["sleep", "1000"] });
        before(harness, Method::POST, &path, service).await;
        format!("{path}/web")
    };
    cut_everywhere("a service", Method::POST, &[201, 409], async |harness, _| {
        let path = format!("/v1/sandboxes/{}/services", fresh(harness).await);
        (path, json!({ "name": "web", "argv": ["sleep", "1000"] }))
    })
    .await;
    cut_everywhere("the stop of a service", Method::POST, &[200], async |harness, _| {
        (format!("{}/stop", serving(harness).await), Value::Null)
    })
    .await;
    cut_everywhere("the removal of a service", Method::DELETE, &[204, 404], async |harness, _| {
        (serving(harness).await, Value::Null)
    })
    .await;
    cut_everywhere("a link", Method::POST, &[201], async |harness, _| {
        (format!("/v1/sandboxes/{}/access", fresh(harness).await), json!({ "port": 80 }))
    })
    .await;
    cut_everywhere("the end of a link", Method::DELETE, &[204, 404], async |harness, _| {
        let path = format!("/v1/sandboxes/{}/access", fresh(harness).await);
        let made = before(harness, Method::POST, &path, json!({ "port": 80 })).await;
        let id = made["access"]["id"].as_str().or(made["id"].as_str()).unwrap();
        (format!("{path}/{id}"), Value::Null)
    })
    .await;
}

#[tokio::test]
async fn keys_and_agents() {
    cut_everywhere("a key", Method::POST, &[201], async |_, polls| {
        ("/v1/keys".to_owned(), json!({ "name": format!("k{polls}"), "scope": "read" }))
    })
    .await;
    cut_everywhere("the deletion of a key", Method::DELETE, &[204, 404], async |harness, _| {
        (format!("/v1/keys/{}", a_key(harness).await), Value::Null)
    })
    .await;
    let agent = |sandbox: &str, polls: u32| json!({ "name": format!("a{polls}"), "sandbox": sandbox, "argv": ["true"] });
    cut_everywhere("an agent", Method::POST, &[201, 409], async |harness, polls| {
        ("/v1/agents".to_owned(), agent(&fresh(harness).await, polls))
    })
    .await;
    cut_everywhere("the end of an agent", Method::DELETE, &[204, 404], async |harness, polls| {
        before(harness, Method::POST, "/v1/agents", agent(&fresh(harness).await, polls)).await;
        (format!("/v1/agents/a{polls}"), Value::Null)
    })
    .await;
}

#[tokio::test]
async fn projects_registries_templates_and_secrets() {
    cut_everywhere("a project", Method::POST, &[201, 409], async |_, polls| {
        ("/v1/projects".to_owned(), json!({ "name": format!("p{polls}") }))
    })
    .await;
    cut_everywhere("the end of a project", Method::DELETE, &[204, 404], async |harness, polls| {
        before(harness, Method::POST, "/v1/projects", json!({ "name": format!("p{polls}") })).await;
        (format!("/v1/projects/p{polls}"), Value::Null)
    })
    .await;
    let login = json!({ "username": "ann", "password": "secret" });
    cut_everywhere("a registry", Method::PUT, &[200], async |_, polls| {
        (format!("/v1/registries/r{polls}.test"), login.clone())
    })
    .await;
    cut_everywhere("the end of a registry", Method::DELETE, &[204, 404], async |harness, polls| {
        let path = format!("/v1/registries/r{polls}.test");
        before(harness, Method::PUT, &path, login.clone()).await;
        (path, Value::Null)
    })
    .await;
    cut_everywhere("the deletion of a template", Method::DELETE, &[204, 404], async |harness, polls| {
        let template = json!({ "name": format!("t{polls}"), "image": "host" });
        before(harness, Method::POST, "/v1/templates", template).await;
        (format!("/v1/templates/t{polls}"), Value::Null)
    })
    .await;
    cut_everywhere("the deletion of a secret", Method::DELETE, &[204, 404], async |harness, polls| {
        let path = format!("/v1/secrets/s{polls}");
        let body = json!({ "value": "first", "scope": { "hosts": ["example.com"] } });
        before(harness, Method::PUT, &path, body).await;
        (path, Value::Null)
    })
    .await;
}
