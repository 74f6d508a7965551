//! Archives of images, and contexts of builds, whose clients send nothing: they wait without threads, and are in no other
//! key's way.

use std::io;
use std::task::Poll;

use atoll_core::Code;
use atoll_core::key::Scope;
use atoll_core::limits::BUILDS_OPEN_MAX_COUNT;
use atoll_engine::Caller;
use axum::body::Bytes;
use futures::stream;
use reqwest::{Body, Method};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::support::{Harness, eventually};

/// Threads for what blocks: more than the transfers of one key have, fewer than its requests here.
const THREADS: usize = 48;
const REQUESTS: usize = 60;

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).max_blocking_threads(THREADS).enable_all().build().unwrap()
}

/// A body of which nothing comes.
fn nothing() -> Body {
    Body::wrap_stream(stream::pending::<Result<Bytes, io::Error>>())
}

/// Waits until the server has so many connections.
async fn connected(harness: &Harness, count: usize) {
    eventually("all to be connected", async || {
        let text = harness.get("/metrics").await.body;
        let text = text.as_str().unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("atoll_http_connections "));
        line.and_then(|open| open.parse::<usize>().ok()).filter(|open| *open >= count)
    })
    .await;
}

#[test]
fn archives_that_do_not_come_leave_threads_to_others() {
    let runtime = runtime();
    runtime.block_on(async {
        let harness = Harness::start().await;
        let mut silent = Vec::new();
        for _ in 0..REQUESTS {
            let load = harness.bare(Method::POST, "/v1/images/load").body(nothing());
            silent.push(tokio::spawn(load.bearer_auth(harness.key(Scope::Manage)).send()));
        }
        connected(&harness, REQUESTS).await;
        // What needs a thread for itself, and one for its archive.
        let load = harness.request(Method::POST, "/v1/images/load").body("this is no tar");
        let answer = harness.send(load).await;
        assert_eq!((answer.status, answer.code()), (422, "image_invalid"), "{answer:?}");
        assert!(silent.iter().all(|one| !one.is_finished()), "none was refused");
        for one in silent {
            one.abort();
        }
    });
    // Threads that wait for a body do so until its connection has ended.
    runtime.shutdown_background();
}

#[test]
fn contexts_that_do_not_come_leave_builds_and_threads_to_others() {
    let runtime = runtime();
    runtime.block_on(async {
        let harness = Harness::start().await;
        let build = json!({ "name": "waits", "dockerfile": "FROM host\nCOPY a /a\n" });
        let make = async || {
            let make = harness.bare(Method::POST, "/v1/builds").bearer_auth(harness.key(Scope::Manage));
            harness.send(make.json(&build)).await
        };
        let (mut silent, mut first) = (Vec::new(), String::new());
        let refused = loop {
            let made = make().await;
            if made.status != 201 {
                break made;
            }
            let path = format!("/v1/builds/{}", made.body["id"].as_str().unwrap());
            let send = harness.bare(Method::PUT, &format!("{path}/context"));
            let send = send.bearer_auth(harness.key(Scope::Manage));
            if silent.is_empty() {
                first = path;
            }
            silent.push(tokio::spawn(send.body(nothing()).send()));
        };
        assert_eq!((refused.status, refused.code()), (429, "limit_exceeded"), "{refused:?}");
        assert_eq!(silent.len(), BUILDS_OPEN_MAX_COUNT / 2, "a key leaves as many to others as it has");
        assert!(silent.len() > THREADS);
        connected(&harness, silent.len()).await;
        let made = harness.post("/v1/builds", build.clone()).await;
        assert_eq!(made.status, 201, "another key has builds of its own: {made:?}");
        let path = format!("/v1/builds/{}", made.body["id"].as_str().unwrap());
        // What needs a thread for itself.
        let send = harness.request(Method::PUT, &format!("{path}/context")).body("this is no tar");
        let answer = harness.send(send).await;
        assert_eq!((answer.status, answer.code()), (422, "build_context_invalid"), "{answer:?}");
        assert!(silent.iter().all(|one| !one.is_finished()), "none was refused");
        // As long as it is open the first key may have one build less.
        assert_eq!(harness.post(&format!("{path}/cancel"), json!(null)).await.status, 200);
        // A context that is coming ends with its build, which leaves its place to another.
        assert_eq!(harness.post(&format!("{first}/cancel"), json!(null)).await.status, 200);
        assert_eq!(silent.remove(0).await.unwrap().unwrap().status().as_u16(), 409);
        eventually("the place to be free", async || (make().await.status == 201).then_some(())).await;
        for one in silent {
            one.abort();
        }
    });
    runtime.shutdown_background();
}

#[tokio::test]
async fn a_key_that_has_ended_gets_none_of_the_room_that_it_waited_for() {
    let harness = Harness::start().await;
    let key = harness.engine.create_key("brief", Scope::Manage, None).await.unwrap();
    let caller = Caller::of(&harness.engine.verify_key(key.secret.reveal()).unwrap());
    let mut held = Vec::new();
    let waits = loop {
        let mut next = Box::pin(harness.engine.room_to_transfer(&caller));
        match futures::poll!(&mut next) {
            Poll::Ready(room) => held.push(room.unwrap()),
            Poll::Pending => break next,
        }
    };
    harness.engine.delete_key(key.record.id.as_str()).await.unwrap();
    held.clear();
    assert_eq!(waits.await.unwrap_err().code, Code::Unauthorized);
}

#[tokio::test]
async fn a_build_ends_with_the_key_that_began_it() {
    let harness = Harness::start().await;
    let brief = harness.engine.create_key("brief", Scope::Manage, None).await.unwrap();
    let begin = async |key: &str, name: &str| {
        let build = json!({ "name": name, "dockerfile": "FROM host\nCOPY a /a\n" });
        let make = harness.bare(Method::POST, "/v1/builds").bearer_auth(key).json(&build);
        let made = harness.send(make).await;
        assert_eq!((made.status, &made.body["state"]), (201, &json!("waiting")), "{made:?}");
        format!("/v1/builds/{}", made.body["id"].as_str().unwrap())
    };
    let ends = begin(brief.secret.reveal(), "ends").await;
    let stays = begin(harness.key(Scope::Manage), "stays").await;
    harness.engine.delete_key(brief.record.id.as_str()).await.unwrap();
    let ended = eventually("the build to end", async || {
        let seen = harness.get(&ends).await.body;
        (seen["state"] != "waiting").then_some(seen)
    })
    .await;
    assert_eq!((&ended["state"], &ended["failure"]["code"]), (&json!("failed"), &json!("unauthorized")));
    assert_eq!(harness.get(&stays).await.body["state"], "waiting", "another key's goes on");
}
