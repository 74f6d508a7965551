//! Readers of output that take nothing: the server holds little for them, and serves others meanwhile.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use atoll_blackbox::{Server, wait_until};

/// Connections of HTTP/2, and readers on each: fewer than the 256 that a connection may have, and less than a key may have.
const CONNECTIONS: usize = 16;
const READERS: usize = 250;
/// Output that each of them could have.
const OUTPUT_BYTES: usize = 4 << 20;
/// What one reader may cost: its task, with the futures of a build for tests, 16 KiB that wait to be sent, and one event.
const READER_BYTES: usize = 160 << 10;
/// What all may hold together, and the same bytes as text.
const TOGETHER_BYTES: usize = 3 * (64 << 20);

/// A frame of HTTP/2 (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header that is written out and enters no table (RFC 7541, section 6.2.2); both texts are short.
fn header(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    assert!(name.len() < 127 && value.len() < 127);
    [vec![0], text(name), text(value)].concat()
}

/// A client that asks for the same events many times, says that it takes everything, and reads nothing.
fn slow(server: &Server, path: &str) -> TcpStream {
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const WINDOW_UPDATE: u8 = 8;
    let authority = server.url.strip_prefix("http://").unwrap();
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", authority),
        (":path", path),
        ("x-api-key", &server.key),
    ];
    let head = fields.map(|(name, value)| header(name, value)).concat();
    let largest = 0x7fff_ffff_u32.to_be_bytes();
    let mut said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // Setting 4 is the window of each stream; a connection's begins with 65,535.
    said.extend(frame(SETTINGS, 0, 0, &[&[0, 4], &largest[..]].concat()));
    said.extend(frame(WINDOW_UPDATE, 0, 0, &(0x7fff_ffff_u32 - 65_535).to_be_bytes()));
    for number in 0..READERS {
        // The end of the headers and of the request.
        said.extend(frame(HEADERS, 5, u32::try_from(2 * number + 1).unwrap(), &head));
    }
    let mut stream = TcpStream::connect(authority).unwrap();
    stream.write_all(&said).unwrap();
    stream
}

/// Memory of the server, bytes.
fn resident(server: &Server) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<usize>().unwrap() << 10
}

/// Answers with events that the server has begun.
async fn begun(server: &Server) -> usize {
    let text = server.send(server.request("GET", "/metrics")).await.text();
    let of_events =
        |line: &&str| line.starts_with("atoll_http_requests_total{") && line.contains("/events\"");
    let counts =
        text.lines().filter(of_events).filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok());
    counts.sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_slow_readers_take_little_memory_and_others_are_served() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let exec = server.shell(&sandbox, &format!("head -c {OUTPUT_BYTES} /dev/zero | tr '\\0' x")).await;
    let ended = server.client.get_exec(&sandbox, &exec, 60_000).await.unwrap();
    assert_eq!(ended.exit.unwrap().code, Some(0));
    let before = resident(&server);
    let path = format!("/v1/sandboxes/{sandbox}/execs/{exec}/events");
    let slow: Vec<_> = (0..CONNECTIONS).map(|_| slow(&server, &path)).collect();
    wait_until("all to be answered", async || (begun(&server).await >= CONNECTIONS * READERS).then_some(()))
        .await;
    // Until the server holds all that it will.
    let mut last = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = resident(&server);
        if now <= last {
            break;
        }
        last = now;
    }
    let took = resident(&server).saturating_sub(before);
    assert!(took <= CONNECTIONS * READERS * READER_BYTES + TOGETHER_BYTES, "{} MiB", took >> 20);
    // Others read all, and run commands.
    let lines = server.sh(&sandbox, "seq 20000").await.ok().stdout;
    assert!(lines.lines().map(|line| line.parse::<u32>().unwrap()).eq(1..=20_000));
    drop(slow);
    wait_until("the connections to end", async || {
        let text = server.send(server.request("GET", "/metrics")).await.text();
        let open = text.lines().find_map(|line| line.strip_prefix("atoll_http_connections "))?;
        (open.trim().parse::<usize>().ok()? < CONNECTIONS).then_some(())
    })
    .await;
    // What the server had for them goes back to the kernel.
    if cfg!(target_env = "gnu") {
        wait_until("the memory to go back", async || (resident(&server) <= before + took / 2).then_some(()))
            .await;
    }
    server.finish().await;
}
