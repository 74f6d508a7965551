//! Small servers that speak the API's types, and a wire that breaks.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "tests; no binary uses all of it"
)]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use atoll_api::{Encoding, Exec, OutputChunk, OutputFrame};
use atoll_client::{Client, ResumePolicy};
use atoll_core::exec::{ExecState, Exit, ExitReason, OutputStream};
use atoll_core::secret::Secret;
use axum::Router;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Longest that any test here may wait for something.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Serves until the test ends.
pub(crate) async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(tokio::spawn(async move { axum::serve(listener, router).await.unwrap() }));
    address
}

pub(crate) fn client(address: SocketAddr) -> Client {
    Client::new(&format!("http://{address}"), &Secret::new("test-key")).unwrap()
}

/// Fast, and patient enough for any test here.
pub(crate) fn policy() -> ResumePolicy {
    ResumePolicy {
        attempts_max: 200,
        backoff_first: Duration::from_millis(1),
        backoff_max: Duration::from_millis(2),
        steady: Duration::from_secs(30),
    }
}

/// Numbers that are the same in every run.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

pub(crate) fn exit() -> Exit {
    Exit { reason: ExitReason::Exited, code: Some(7), signal: None, error: None }
}

pub(crate) fn exec() -> Exec {
    Exec {
        id: "ex_1".into(),
        sandbox: "sb_1".into(),
        argv: vec!["cat".into()],
        state: ExecState::Running,
        pid: Some(2),
        user: "root".into(),
        cwd: None,
        profile: None,
        tty: false,
        exit: None,
        output_bytes: 0,
        cpu_us: 0,
        output_first: 0,
        created_at_ms: 1,
        ended_at_ms: None,
        started_by: None,
    }
}

/// Output of an exec: pieces of both streams in one order.
#[derive(Clone)]
pub(crate) struct Log {
    pub(crate) bytes: Vec<u8>,
    /// Where pieces end, and whose they are.
    pub(crate) pieces: Vec<(usize, OutputStream)>,
}

impl Log {
    pub(crate) fn random(random: &mut Random, len: usize) -> Self {
        let bytes = (0..len).map(|_| u8::try_from(random.next(256)).unwrap()).collect();
        let mut pieces = Vec::new();
        let mut end = 0;
        while end < len {
            end = (end + 1 + usize::try_from(random.next(3000)).unwrap()).min(len);
            let stream = if random.next(2) == 0 { OutputStream::Stdout } else { OutputStream::Stderr };
            pieces.push((end, stream));
        }
        Self { bytes, pieces }
    }

    /// Pieces from `offset` on.
    pub(crate) fn from(&self, offset: usize) -> VecDeque<(usize, OutputStream, &[u8])> {
        let mut begin = 0;
        let mut out = VecDeque::new();
        for &(end, stream) in &self.pieces {
            let from = begin.max(offset);
            if from < end {
                out.push_back((from, stream, &self.bytes[from..end]));
            }
            begin = end;
        }
        out
    }

    /// All bytes of one stream.
    pub(crate) fn of(&self, which: OutputStream) -> Vec<u8> {
        let mut out = Vec::new();
        for (_, stream, bytes) in self.from(0) {
            if stream == which {
                out.extend_from_slice(bytes);
            }
        }
        out
    }
}

pub(crate) fn frame(offset: usize, stream: OutputStream, bytes: &[u8]) -> Vec<u8> {
    let mut message = OutputFrame { stream, offset: offset as u64 }.encode().to_vec();
    message.extend_from_slice(bytes);
    message
}

pub(crate) fn chunk(offset: usize, stream: OutputStream, bytes: &[u8]) -> OutputChunk {
    let chunk = OutputChunk::new(offset as u64, stream, bytes);
    assert!(matches!(chunk.encoding, Encoding::Utf8 | Encoding::Base64));
    chunk
}

/// Passes bytes on, and breaks each connection after some number of bytes from the server: in the
/// handshake, in a header, in a message, wherever that is. After `cuts` connections it holds.
pub(crate) async fn breaking_wire(
    to: SocketAddr,
    mut random: Random,
    cuts: usize,
    at_most: u64,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(tokio::spawn(async move {
        for connection in 0_usize.. {
            let (here, _) = listener.accept().await.unwrap();
            let budget = if connection < cuts { random.next(at_most) } else { u64::MAX };
            drop(tokio::spawn(pass(here, to, budget)));
        }
    }));
    address
}

async fn pass(here: TcpStream, to: SocketAddr, mut budget: u64) {
    let there = TcpStream::connect(to).await.unwrap();
    let (mut from_client, mut to_client) = here.into_split();
    let (mut from_server, mut to_server) = there.into_split();
    let up = tokio::io::copy(&mut from_client, &mut to_server);
    let down = async {
        let mut buffer = [0; 4096];
        while budget > 0 {
            let want = usize::try_from(budget).unwrap_or(usize::MAX).min(buffer.len());
            let read = from_server.read(&mut buffer[..want]).await.unwrap_or(0);
            if read == 0 || to_client.write_all(&buffer[..read]).await.is_err() {
                return;
            }
            budget -= read as u64;
        }
    };
    tokio::select! {
        _ = up => {}
        () = down => {}
    }
}
