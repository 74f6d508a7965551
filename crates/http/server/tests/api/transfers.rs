//! Archives of images whose clients send nothing: they wait without threads, and are in no other key's way.

use std::io;

use atoll_core::key::Scope;
use axum::body::Bytes;
use futures::stream;
use reqwest::{Body, Method};

use crate::support::{Harness, eventually};

/// Threads for what blocks: more than the transfers of one key have, fewer than its requests here.
const THREADS: usize = 48;
const REQUESTS: usize = 60;

#[test]
fn archives_that_do_not_come_leave_threads_to_others() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(THREADS)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let harness = Harness::start().await;
        let mut silent = Vec::new();
        for _ in 0..REQUESTS {
            let nothing = Body::wrap_stream(stream::pending::<Result<Bytes, io::Error>>());
            let load = harness.bare(Method::POST, "/v1/images/load").body(nothing);
            silent.push(tokio::spawn(load.bearer_auth(harness.key(Scope::Manage)).send()));
        }
        eventually("all to be connected", async || {
            let text = harness.get("/metrics").await.body;
            let text = text.as_str().unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("atoll_http_connections "));
            line.and_then(|count| count.parse::<usize>().ok()).filter(|count| *count >= REQUESTS)
        })
        .await;
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
