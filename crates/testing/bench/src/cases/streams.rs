//! Bulk data.

use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use futures::StreamExt as _;
use hyper::Method;
use hyper::header::AUTHORIZATION;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use super::{Bench, rate};
use crate::report::Report;

/// Runs of each.
const RUNS: usize = 3;
/// Output of one run.
const OUTPUT_BYTES: u64 = 1 << 30;
/// Size of the file.
const FILE_BYTES: u64 = 512 << 20;
/// One piece of an upload.
const PIECE_BYTES: usize = 256 << 10;
/// Bytes before the output in a message of the WebSocket.
const FRAME_HEADER_BYTES: usize = 9;

pub(super) async fn stdout(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    report.section("Standard output of `head -c 1G /dev/zero` through a WebSocket");
    let mut connection = bench.server.address.connect().await?;
    let sandbox = connection.create("host").await?;
    for _ in 0..RUNS {
        let execs = format!("/v1/sandboxes/{sandbox}/execs");
        let size = OUTPUT_BYTES.to_string();
        let command = serde_json::json!({ "argv": ["/usr/bin/head", "-c", size, "/dev/zero"] });
        let cpu = bench.server.cpu()?;
        let start = Instant::now();
        let made = connection.json(Method::POST, &execs, &command).await?;
        let exec = made["exec"]["id"].as_str().context("the answer has no id")?;
        let got = attach(bench, &format!("{execs}/{exec}/attach")).await?;
        let rate = rate(got, start);
        let missing = OUTPUT_BYTES - got;
        let cpu = (bench.server.cpu()? - cpu).as_millis();
        report
            .line(&format!("- {rate} ({got} bytes received, {missing} in gaps; CPU of the server {cpu} ms)"));
    }
    connection.delete(&sandbox).await
}

/// Reads until the exec's exit; gives the bytes of output.
async fn attach(bench: &Bench<'_>, path: &str) -> Result<u64> {
    let address = &bench.server.address;
    let mut request = format!("ws://{}{path}", address.authority).into_client_request()?;
    request.headers_mut().insert(AUTHORIZATION, format!("Bearer {}", address.key).parse()?);
    let (mut socket, _) = tokio_tungstenite::client_async(request, address.dial().await?).await?;
    let mut total = 0;
    while let Some(message) = socket.next().await {
        match message? {
            Message::Binary(bytes) => total += bytes.len().saturating_sub(FRAME_HEADER_BYTES) as u64,
            Message::Text(text) => {
                let event: serde_json::Value = serde_json::from_str(&text)?;
                if event["type"] == "exit" {
                    return Ok(total);
                }
            }
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            Message::Close(_) => break,
        }
    }
    bail!("the stream ended without an exit");
}

pub(super) async fn files(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    report.section("A file of 512 MiB");
    let mut connection = bench.server.address.connect().await?;
    let sandbox = connection.create("host").await?;
    let path = format!("/v1/sandboxes/{sandbox}/files?path=/tmp/bench");
    for _ in 0..RUNS {
        let piece = Bytes::from(vec![0x5a; PIECE_BYTES]);
        let count = usize::try_from(FILE_BYTES)? / PIECE_BYTES;
        let cpu = bench.server.cpu()?;
        let start = Instant::now();
        connection.upload(Method::PUT, &path, std::iter::repeat_n(piece, count)).await?;
        let up = rate(FILE_BYTES, start);
        let cpu_up = bench.server.cpu()?;
        let start = Instant::now();
        let got = connection.download(&path).await?;
        let down = rate(got, start);
        let cpu_down = (bench.server.cpu()? - cpu_up).as_millis();
        let cpu_up = (cpu_up - cpu).as_millis();
        if got != FILE_BYTES {
            bail!("{got} bytes came back of {FILE_BYTES}");
        }
        report.line(&format!("- up {up} (CPU {cpu_up} ms), down {down} (CPU {cpu_down} ms)"));
    }
    connection.delete(&sandbox).await
}
