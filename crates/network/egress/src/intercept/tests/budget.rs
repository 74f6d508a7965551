//! What a connection holds that its client does not read.

use tokio::sync::watch;

use super::*;
use crate::limits::{BUFFERED_OWN_BYTES, FRAME_COST_BYTES, HEADS_MAX_BYTES, HTTP_BUFFER_MAX_BYTES};

/// Requests of one connection at once.
const REQUESTS: usize = 100;

/// Carries bytes as long as `open` says so.
async fn carry(
    mut from: tokio::io::ReadHalf<DuplexStream>,
    mut to: tokio::io::WriteHalf<DuplexStream>,
    mut open: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 16 << 10];
    while open.wait_for(|open| *open).await.is_ok() {
        match from.read(&mut buffer).await {
            Ok(count) if count > 0 && to.write_all(&buffer[..count]).await.is_ok() => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// A client of HTTP/2 that says that it takes everything, and reads as long as `open` says so.
async fn client(
    house: &House,
    open: watch::Receiver<bool>,
) -> hyper::client::conn::http2::SendRequest<OutBody> {
    let (client, near) = duplex(64 << 10);
    let (far, gateway) = duplex(64 << 10);
    let (from_client, to_client) = tokio::io::split(near);
    let (from_gateway, to_gateway) = tokio::io::split(far);
    let always = watch::channel(true).1;
    tokio::spawn(carry(from_client, to_gateway, always));
    tokio::spawn(carry(from_gateway, to_client, open));
    house.serve(gateway);
    let stream = handshake(client, house.interceptor.certificate_pem(), &[Protocol::Http2]).await;
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(1 << 30)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}: never");
}

#[tokio::test]
async fn a_client_that_reads_nothing_fills_the_budget_of_its_sandbox_and_no_more() {
    const COMMON_BYTES: usize = 4 << 20;
    let most = BUFFERED_OWN_BYTES + COMMON_BYTES / crate::limits::SHARE_OF_ONE;
    let house = House::new(bearer(), &[Protocol::Http2]);
    let house = House { budget: Budget::new(&crate::budget::Common::new(COMMON_BYTES)), ..house };
    let (open, opened) = watch::channel(true);
    let sender = client(&house, opened).await;
    // The first answer shows that both sides know each other's settings.
    drop(sender.clone().send_request(Request::get("https://api.example.com/").body(empty()).unwrap()).await);
    open.send_replace(false);
    let asked = (0..REQUESTS).map(|_| {
        let mut sender = sender.clone();
        tokio::spawn(async move {
            let request = Request::get("https://api.example.com/large").body(empty()).unwrap();
            let body = sender.send_request(request).await.unwrap().into_body();
            body.collect().await.unwrap().to_bytes().len()
        })
    });
    let asked: Vec<_> = asked.collect();
    // All but what is too little for one more piece.
    let full = most - 2 * (HTTP_BUFFER_MAX_BYTES + FRAME_COST_BYTES);
    until("the budget is full", || house.budget.held_bytes() >= full).await;
    assert!(house.budget.held_bytes() <= most);
    open.send_replace(true);
    for answer in asked {
        assert_eq!(answer.await.unwrap(), 3 << 20, "every answer goes on and is whole");
    }
    drop(sender);
    until("all room is given back", || house.budget.held_bytes() == 0).await;
}

#[tokio::test]
async fn too_many_long_heads_without_an_answer_are_refused_and_others_pass_again_afterwards() {
    let house = House::new(bearer(), &[Protocol::Http2]);
    let (_open, opened) = watch::channel(true);
    // The server outside takes heads of 16 KiB, and one connection has no room for that many.
    let mut senders = Vec::new();
    for _ in 0..6 {
        senders.push(client(&house, opened.clone()).await);
    }
    let long = "c".repeat(14 << 10);
    let count = HEADS_MAX_BYTES / long.len() + 1;
    let (mut passed, mut refused, mut bodies) = (0, 0, Vec::new());
    for n in 0..count {
        let mut sender = senders[n % senders.len()].clone();
        // The server waits for the end of the body.
        let body: OutBody = http_body_util::BodyExt::boxed(StreamBody::new(futures::stream::pending()));
        let request = Request::post("https://api.example.com/").header("cookie", &long).body(body).unwrap();
        bodies.push(tokio::spawn(async move { sender.send_request(request).await.unwrap().status() }));
    }
    until("one is refused", || bodies.iter().any(tokio::task::JoinHandle::is_finished)).await;
    for request in bodies {
        if request.is_finished() {
            assert_eq!(request.await.unwrap(), 503);
            refused += 1;
        } else {
            request.abort();
            passed += 1;
        }
    }
    assert!(refused >= 1 && passed > count / 2, "{passed} of {count}");
    let mut sender = senders[0].clone();
    until("the room comes back", || {
        let request = Request::get("https://api.example.com/").header("cookie", &long).body(()).unwrap();
        house.budget.try_hold_head(&request).is_some()
    })
    .await;
    let request = Request::get("https://api.example.com/").header("cookie", &long).body(empty()).unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
}
