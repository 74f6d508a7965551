//! Requests to a port of a sandbox, next to the same server reached directly.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::future::try_join_all;
use hyper::Method;
use serde_json::json;

use super::{Bench, cpu_each, rate};
use crate::http::Address;
use crate::report::Report;
use crate::stats::Samples;

/// Requests before the measured ones.
const WARM_UP: usize = 50;
/// Connections at once.
const CONNECTIONS: usize = 1000;
/// Size of the large answer, bytes.
const LARGE_BYTES: u64 = 256 << 20;
const PORT: u16 = 8000;
/// How long the server inside may take to listen.
const START_WAIT: Duration = Duration::from_secs(20);

/// A server that does as little as it can: most of the measured time is not its own.
const SERVER: &str = r#"
import asyncio, sys
SMALL = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
BLOCK = bytes(1 << 20)
class Answer(asyncio.Protocol):
    def connection_made(self, transport): self.transport = transport; self.left = 0
    def resume_writing(self): self.more()
    def pause_writing(self): self.paused = True
    def more(self):
        self.paused = False
        while self.left and not self.paused:
            self.left -= 1; self.transport.write(BLOCK)
    def data_received(self, data):
        if b"/large" not in data.split(b"\r\n", 1)[0]: self.transport.write(SMALL)
        else:
            self.left = int(sys.argv[2]) >> 20
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (self.left << 20)); self.more()
async def main():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answer, "127.0.0.1", int(sys.argv[1]), backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"#;

/// The same server on the host.
struct Direct {
    child: Child,
    address: Address,
}

impl Direct {
    fn start() -> Result<Self> {
        use std::io::{BufRead as _, BufReader};
        let mut child = Command::new("/usr/bin/python3")
            .args(["-c", SERVER, "0", &LARGE_BYTES.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start python3")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no pipe")?).read_line(&mut line)?;
        let address = Address { authority: format!("127.0.0.1:{}", line.trim()), key: String::new() };
        Ok(Self { child, address })
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub(super) async fn ports(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    report.section("Requests to a port of a sandbox");
    let direct = Direct::start()?;
    let mut connection = bench.server.address.connect().await?;
    let sandbox = connection.create("host").await?;
    let argv = ["/usr/bin/python3", "-c", SERVER, &PORT.to_string(), &LARGE_BYTES.to_string()];
    connection
        .json(Method::POST, &format!("/v1/sandboxes/{sandbox}/execs"), &json!({ "argv": argv }))
        .await?;
    let prefix = format!("/v1/sandboxes/{sandbox}/ports/{PORT}");
    let start = Instant::now();
    while connection.download(&prefix).await.is_err() {
        if start.elapsed() > START_WAIT {
            bail!("the server in the sandbox does not listen");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        connection = bench.server.address.connect().await?;
    }
    report.table();
    let samples = latency(&direct.address, "/", bench.execs).await?;
    report.row("the server itself", &samples, None);
    let cpu = bench.server.cpu()?;
    let samples = latency(&bench.server.address, &prefix, bench.execs).await?;
    report.row("through Atoll", &samples, Some(cpu_each(bench.server, cpu, bench.execs + WARM_UP)?));
    let cpu = bench.server.cpu()?;
    let samples = at_once(&bench.server.address, &prefix).await?;
    report.row(
        &format!("{CONNECTIONS} connections at once, a request on each"),
        &samples,
        Some(cpu_each(bench.server, cpu, CONNECTIONS)?),
    );
    let start = Instant::now();
    let bytes = bench.server.address.connect().await?.download(&format!("{prefix}/large")).await?;
    report.line(&format!("A large answer: {}", rate(bytes, start)));
    let start = Instant::now();
    let bytes = direct.address.connect().await?.download("/large").await?;
    report.line(&format!("The same from the server itself: {}", rate(bytes, start)));
    connection.delete(&sandbox).await
}

/// One request after the other on one connection.
async fn latency(address: &Address, path: &str, count: usize) -> Result<Samples> {
    let mut connection = address.connect().await?;
    let mut samples = Samples::default();
    for number in 0..WARM_UP + count {
        let start = Instant::now();
        connection.download(path).await?;
        if number >= WARM_UP {
            samples.push(start.elapsed());
        }
    }
    Ok(samples)
}

/// Many connections, each with a request: all are open before the first is closed.
async fn at_once(address: &Address, path: &str) -> Result<Samples> {
    let mut connections = try_join_all((0..CONNECTIONS).map(|_| address.connect())).await?;
    let times = try_join_all(connections.iter_mut().map(|connection| async {
        let start = Instant::now();
        connection.download(path).await?;
        anyhow::Ok(start.elapsed())
    }))
    .await?;
    let mut samples = Samples::default();
    times.into_iter().for_each(|time| samples.push(time));
    Ok(samples)
}
