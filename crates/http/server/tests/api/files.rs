//! Files: the parts that the fake guest has.

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
