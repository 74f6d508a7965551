//! Files: the parts that the fake guest has.

use atoll_core::Code;
use atoll_engine::guest_error;
use atoll_guest_protocol::messages::Read;
use bytes::Bytes;
use futures::stream;
use reqwest::{Body, Method};
use serde_json::json;
use std::io;

use crate::support::{Harness, eventually};

#[tokio::test]
async fn bytes_come_back_whole_and_in_ranges() {
    let harness = Harness::start().await;
    let sandbox = harness.sandbox(json!({})).await;
    let path = format!("/v1/sandboxes/{}/files?path=/data", sandbox.id);
    let content: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let written = harness.send(harness.request(Method::PUT, &path).body(content.clone())).await;
    assert_eq!((written.status, &written.body["bytes"]), (200, &json!(3_000_000)));
    assert!(harness.host.file(&sandbox.id.parse().unwrap(), "/data").unwrap() == content);

    let whole = harness.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(whole.headers()["content-length"], "3000000");
    let tag = whole.headers()["etag"].clone();
    assert!(tag.to_str().unwrap().starts_with("W/\""));
    assert!(whole.bytes().await.unwrap() == content);
    let known = harness.request(Method::GET, &path).header("if-none-match", &tag).send().await.unwrap();
    assert_eq!(known.status().as_u16(), 304);

    for (range, first, last) in
        [("bytes=5-9", 5, 9), ("bytes=-4", 2_999_996, 2_999_999), ("bytes=2999999-", 2_999_999, 2_999_999)]
    {
        let part = harness.request(Method::GET, &path).header("range", range).send().await.unwrap();
        assert_eq!(part.status().as_u16(), 206, "{range}");
        assert_eq!(part.headers()["content-range"], format!("bytes {first}-{last}/3000000").as_str());
        assert!(part.bytes().await.unwrap() == content[first..=last], "{range}");
    }
    let out = harness.request(Method::GET, &path).header("range", "bytes=3000000-").send().await.unwrap();
    assert_eq!(out.headers()["content-range"], "bytes */3000000");
    assert_eq!(crate::support::answer(out).await.code(), "offset_out_of_range");

    let stat = harness.get(&format!("/v1/sandboxes/{}/files/stat?path=/data", sandbox.id)).await;
    assert_eq!((&stat.body["kind"], &stat.body["mode"]), (&json!("file"), &json!("0644")));
    assert_eq!(harness.delete(&path).await.status, 204);
    assert_eq!(harness.get(&path).await.code(), "file_not_found");
}

#[tokio::test]
async fn an_upload_that_breaks_off_leaves_nothing() {
    let harness = Harness::start().await;
    let sandbox = harness.sandbox(json!({})).await;
    let path = format!("/v1/sandboxes/{}/files?path=/half", sandbox.id);
    let pieces = [Ok(Bytes::from(vec![1; 1 << 20])), Err(io::Error::other("gone"))];
    let upload = harness.request(Method::PUT, &path).body(Body::wrap_stream(stream::iter(pieces)));
    assert!(upload.send().await.is_err());
    // Another upload over the same connection to the guest is served after the first was given up.
    let other = format!("/v1/sandboxes/{}/files?path=/other", sandbox.id);
    eventually("a later upload", async || {
        (harness.send(harness.request(Method::PUT, &other).body("x")).await.status == 200).then_some(())
    })
    .await;
    assert_eq!(harness.get(&path).await.code(), "file_not_found");
}

/// What is under way when a sandbox is frozen.
mod paused {
    use std::sync::Arc;
    use std::time::Duration;

    use reqwest::Response;

    use super::*;

    /// More than is on its way between the guest and a client that does not read.
    const SIZE: usize = 48 << 20;
    /// How long a transfer waits for a sandbox that stands still.
    const STILL_MAX: Duration = Duration::from_secs(600);

    async fn pause(harness: &Harness, sandbox: &str, verb: &str) {
        let answer = harness.post(&format!("/v1/sandboxes/{sandbox}/{verb}"), json!({})).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    async fn begin(harness: &Harness, path: &str) -> Response {
        let mut answer = harness.request(Method::GET, path).send().await.unwrap();
        assert!(answer.chunk().await.unwrap().is_some());
        answer
    }

    #[tokio::test]
    async fn a_download_waits_but_not_for_ever() {
        let (harness, clock) = Harness::start_by_hand().await;
        let sandbox = harness.sandbox(json!({})).await.id;
        let path = format!("/v1/sandboxes/{sandbox}/files?path=/data");
        assert_eq!(harness.send(harness.request(Method::PUT, &path).body(vec![7; SIZE])).await.status, 200);

        let answer = begin(&harness, &path).await;
        pause(&harness, &sandbox, "pause").await;
        let rest = tokio::spawn(answer.bytes());
        clock.advance(STILL_MAX - Duration::from_millis(1));
        pause(&harness, &sandbox, "resume").await;
        assert!(rest.await.unwrap().unwrap().iter().all(|byte| *byte == 7), "it goes on");

        let answer = begin(&harness, &path).await;
        // Two short pauses are not a long one.
        for _ in 0..2 {
            pause(&harness, &sandbox, "pause").await;
            clock.advance(STILL_MAX / 2);
            pause(&harness, &sandbox, "resume").await;
        }
        pause(&harness, &sandbox, "pause").await;
        let rest = tokio::spawn(answer.bytes());
        clock.advance(STILL_MAX / 2);
        assert!(!rest.is_finished());
        clock.advance(STILL_MAX / 2);
        assert!(rest.await.unwrap().is_err(), "it waits for ever, or is whole");
        // Neither the transfer nor its end wakes it.
        assert_eq!(harness.get(&format!("/v1/sandboxes/{sandbox}")).await.body["state"], "paused");
        assert_eq!(harness.get(&path).await.status, 200, "the next use does");
    }

    #[tokio::test]
    async fn an_upload_waits_but_not_for_ever() {
        let (harness, clock) = Harness::start_by_hand().await;
        let harness = Arc::new(harness);
        let sandbox = harness.sandbox(json!({})).await.id;
        let path = format!("/v1/sandboxes/{sandbox}/files?path=/data");
        // So much of it is sent only when the server takes it, and so has begun to write.
        let whole = stream::iter(std::iter::repeat_n(Bytes::from(vec![7; 1 << 20]), SIZE >> 20).map(Ok));
        let (asking, paused, id) = (Arc::clone(&harness), clock.clone(), sandbox.clone());
        let last = stream::once(async move {
            pause(&asking, &id, "pause").await;
            paused.advance(STILL_MAX);
            Ok::<_, io::Error>(Bytes::from_static(b"last"))
        });
        let body = Body::wrap_stream(futures::StreamExt::chain(whole, last));
        let answer = harness.send(harness.request(Method::PUT, &path).body(body)).await;
        assert_eq!((answer.status, answer.code()), (504, "timeout"), "{answer:?}");
        assert!(answer.body["message"].as_str().unwrap().contains("paused"), "{answer:?}");
        assert_eq!(harness.get(&format!("/v1/sandboxes/{sandbox}")).await.body["state"], "paused");
    }
}

#[tokio::test]
async fn downloads_hold_so_much_memory_and_leave_some_to_other_sandboxes() {
    /// More than all sandboxes together may have open.
    const TOO_MANY: usize = 2048;
    let harness = Harness::start().await;
    let (first, second) = (harness.sandbox(json!({})).await, harness.sandbox(json!({})).await);
    let path = |id: &str| format!("/v1/sandboxes/{id}/files?path=/data");
    for sandbox in [&first, &second] {
        let small = harness.request(Method::PUT, &path(&sandbox.id)).body("x");
        assert_eq!(harness.send(small).await.status, 200);
    }
    let lease = harness.engine.guest(&first.id.parse().unwrap()).await.unwrap();
    let mut open = Vec::new();
    let full = loop {
        match lease.read(Read { path: "/data".into(), offset: 0, length: 0 }).await {
            Ok(reader) if open.len() < TOO_MANY => open.push(reader),
            Ok(_) => panic!("there is no bound"),
            Err(error) => break guest_error(error),
        }
    };
    assert_eq!(full.code, Code::LimitExceeded, "{full}");
    // A small file, too: the sandbox's agent says how large a file is, and may send more.
    let refused = harness.get(&path(&first.id)).await;
    assert_eq!((refused.status, refused.code()), (429, "limit_exceeded"), "{refused:?}");
    assert_eq!(harness.get(&path(&second.id)).await.status, 200, "another sandbox has a share");
    drop(open);
    assert_eq!(harness.get(&path(&first.id)).await.status, 200);
}

#[tokio::test]
async fn downloads_by_links_leave_memory_to_who_has_a_key() {
    let harness = Harness::start().await;
    let sandbox = harness.sandbox(json!({})).await;
    let path = format!("/v1/sandboxes/{}/files?path=/data", sandbox.id);
    assert_eq!(harness.send(harness.request(Method::PUT, &path).body("x")).await.status, 200);
    let wanted = json!({ "file": { "path": "/data" } });
    let link = harness.post(&format!("/v1/sandboxes/{}/access", sandbox.id), wanted).await;
    let token = link.body["token"].as_str().unwrap().to_owned();
    let by_link = async || {
        let request = harness.bare(Method::GET, "/v1/download/data").header("x-atoll-token", &token);
        harness.send(request).await.status
    };
    assert_eq!(by_link().await, 200);
    let lease = harness.engine.guest(&sandbox.id.parse().unwrap()).await.unwrap().of_anybody();
    let mut open = Vec::new();
    while let Ok(reader) = lease.read(Read { path: "/data".into(), offset: 0, length: 0 }).await {
        open.push(reader);
        assert!(open.len() < 2048, "more than all sandboxes together may have");
    }
    assert_eq!(by_link().await, 429, "all that links to this sandbox may hold is held");
    assert_eq!(harness.get(&path).await.status, 200, "a key reads the same file");
    drop(open);
    assert_eq!(by_link().await, 200);
}
