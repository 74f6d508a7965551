//! Connections that the server ends while clients still send: each client reads the last that was said to it.

use atoll_core::key::Scope;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{DEADLINE, Harness, path_of};

/// More than the kernel holds for a connection on this host, in both directions.
const MUCH_BYTES: usize = 24 << 20;

/// Sends everything before it reads anything, as simple clients do; gives what the server said.
async fn said(harness: &Harness, head: &str, rest: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(&harness.address).await.unwrap();
    let talk = async {
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(rest).await.expect("the server takes what is still sent");
        let mut said = Vec::new();
        stream.read_to_end(&mut said).await.expect("the connection ends in order");
        said
    };
    tokio::time::timeout(DEADLINE, talk).await.unwrap()
}

#[tokio::test]
async fn a_client_that_still_sends_reads_why_its_message_was_refused() {
    let harness = Harness::start().await;
    let sandbox = harness.sandbox(json!({})).await.id;
    let exec = harness.exec(&sandbox, "cat", json!({ "stdin": true })).await.exec;
    let head = format!(
        "GET {}/attach HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\nconnection: upgrade\r\n\
         upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        path_of(&exec),
        harness.key(Scope::Exec)
    );
    // One binary message (RFC 6455, section 5.2): its length has eight bytes, its mask is zero.
    let mut message = vec![0x82, 0xff];
    message.extend((MUCH_BYTES as u64).to_be_bytes());
    message.extend([0; 4]);
    message.resize(message.len() + MUCH_BYTES, b'x');
    let said = said(&harness, &head, &message).await;
    assert!(said.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&said));
    // The closing of the socket: 1009, and why.
    let closed = [&[0x88, 11, 0x03, 0xf1], &b"too_large"[..]].concat();
    assert!(said.ends_with(&closed), "{}", String::from_utf8_lossy(&said));
}

#[tokio::test]
async fn a_client_that_still_sends_reads_why_its_request_was_refused() {
    let harness = Harness::start().await;
    let key = harness.key(Scope::Admin);
    let post = |key: &str, length: usize| {
        format!(
            "POST /v1/sandboxes HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\
             content-length: {length}\r\n\r\n"
        )
    };
    let body = vec![b'x'; MUCH_BYTES];
    for (what, head, rest, status) in [
        ("a body that is too large", post(key, MUCH_BYTES), &body[..], "413"),
        ("a key that is wrong", post("wrong", MUCH_BYTES), &body[..], "401"),
        // The server gives up before it knows whether there is a body.
        ("a head that is too large", "GET / HTTP/1.1\r\nx: ".to_owned(), &body[..], "431"),
        ("what is no HTTP", "GET / HTTP/1.1\r\nx\u{1}: ".to_owned(), &body[..], "400"),
    ] {
        let said = said(&harness, &head, rest).await;
        let said = String::from_utf8_lossy(&said);
        assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{what}: {said}");
    }
}

#[tokio::test]
async fn a_connection_counts_until_its_client_has_ended_it() {
    let harness = Harness::start_with(|config| config.connections_max = 1).await;
    let mut first = TcpStream::connect(&harness.address).await.unwrap();
    first.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut said = String::new();
    first.read_to_string(&mut said).await.unwrap();
    assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
    let mut second = TcpStream::connect(&harness.address).await.unwrap();
    second.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let waited = std::time::Duration::from_millis(200);
    assert!(tokio::time::timeout(waited, second.read_u8()).await.is_err(), "there is no room yet");
    drop(first);
    let mut said = String::new();
    tokio::time::timeout(DEADLINE, second.read_to_string(&mut said)).await.unwrap().unwrap();
    assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
}
