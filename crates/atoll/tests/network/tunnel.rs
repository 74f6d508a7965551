//! Tunnels: the real command line program between real servers.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use atoll_api::CreateExec;
use atoll_blackbox::{Server, wait_until};
use serde_json::Value;

/// Echoes every connection until its end, then closes.
const ECHO: &str = "
import socketserver, sys
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536): self.request.sendall(data)
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True; allow_reuse_address = True; request_queue_size = 1024
Server(('127.0.0.1', int(sys.argv[1])), Echo).serve_forever()
";

/// A running `atoll tunnel --json`.
struct Tunnel {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Tunnel {
    fn start(server: &Server, args: &[&str]) -> Self {
        let mut command = server.cli_command();
        command.arg("--json").arg("tunnel").args(args);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn event(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: '{line}'"))
    }

    /// Where a port of the sandbox is reached here.
    fn address(&mut self) -> String {
        let event = self.event();
        assert_eq!(event["event"], "listening", "{event}");
        event["local"].as_str().unwrap().to_owned()
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

async fn echo_inside(server: &Server, sandbox: &str, port: u16) {
    let argv = ["python3", "-c", ECHO, &port.to_string()].map(str::to_owned).to_vec();
    server
        .client
        .create_exec(sandbox, &CreateExec { argv: Some(argv), ..CreateExec::default() })
        .await
        .unwrap();
    wait_until("a server inside", async || {
        let list = server.client.sandbox_ports(sandbox).await.unwrap();
        list.items.iter().any(|item| item.port == port).then_some(())
    })
    .await;
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// Sends bytes, ends the direction, and gives the bytes that come back.
fn exchange(mut stream: TcpStream, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut writer = stream.try_clone()?;
    let sent = bytes.to_vec();
    let sending = std::thread::spawn(move || {
        writer.write_all(&sent)?;
        writer.shutdown(std::net::Shutdown::Write)
    });
    let mut back = Vec::new();
    let read = stream.read_to_end(&mut back);
    sending.join().unwrap()?;
    read.map(|_| back)
}

#[tokio::test(flavor = "multi_thread")]
async fn many_connections_go_in() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    echo_inside(&server, &sandbox, 7000).await;
    let mut tunnel = Tunnel::start(&server, &[&sandbox, "0:7000", "0:7001"]);
    let mut addresses = [tunnel.address(), tunnel.address()];
    // In the order in which they were bound, or not: the one that echoes is port 7000.
    let works = exchange(connect(&addresses[0]), b"x").is_ok_and(|back| back == b"x");
    if !works {
        addresses.swap(0, 1);
    }
    let threads: Vec<_> = (0..50_u8)
        .map(|n| {
            let address = addresses[0].clone();
            std::thread::spawn(move || {
                let bytes = vec![n; 200_000];
                assert!(exchange(connect(&address), &bytes).unwrap() == bytes);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // More than fits into the buffers on the way: both directions have to move at the same time.
    let large: Vec<u8> = (0..32_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
    assert!(exchange(connect(&addresses[0]), &large).unwrap() == large);
    // Nothing listens on the other: the connection is closed, the tunnel goes on.
    assert_eq!(exchange(connect(&addresses[1]), b"").unwrap_or_default(), b"");
    assert_eq!(exchange(connect(&addresses[0]), b"still").unwrap(), b"still");
    drop(tunnel);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_survives_a_restart_of_the_server() {
    let mut server = Server::start();
    let sandbox = server.sandbox().await.id;
    echo_inside(&server, &sandbox, 7000).await;
    let mut tunnel = Tunnel::start(&server, &[&sandbox, "0:7000"]);
    let address = tunnel.address();
    let mut broken = connect(&address);
    broken.write_all(b"x").unwrap();
    broken.read_exact(&mut [0]).unwrap();
    server.kill();
    let event = tunnel.event();
    assert_eq!((&event["event"], &event["connections"]), (&"broken".into(), &1.into()));
    // The connection that was cut says so; a new one waits.
    assert!(matches!(broken.read(&mut [0]), Ok(0) | Err(_)));
    let waiting = connect(&address);
    let waiting = std::thread::spawn(move || exchange(waiting, b"later").unwrap());
    server.restart();
    assert_eq!(tunnel.event()["event"], "connected");
    assert_eq!(waiting.join().unwrap(), b"later");
    drop(tunnel);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_here_is_seen_inside() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let here = TcpListener::bind("127.0.0.1:0").unwrap();
    let local = here.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in here.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).unwrap();
                bytes.make_ascii_uppercase();
                stream.write_all(&bytes).unwrap();
            });
        }
    });
    let mut tunnel = Tunnel::start(&server, &[&sandbox, "--reverse", &format!("{local}:9000")]);
    assert_eq!(tunnel.event()["event"], "showing");
    let ask = "import socket\ns=socket.create_connection(('127.0.0.1',9000)); s.sendall(b'hello'); s.shutdown(1); print(s.makefile().read())";
    for _ in 0..3 {
        let output = server.sh(&sandbox, &format!("python3 -c \"{ask}\"")).await.ok();
        assert_eq!(output.stdout.trim(), "HELLO");
    }
    // A second tunnel cannot have the same port.
    let taken = server.cli(&["tunnel", &sandbox, "--reverse", &format!("{local}:9000")]);
    assert_eq!(taken.code, Some(125), "{taken:?}");
    assert!(taken.stderr.contains("9000"), "{taken:?}");
    drop(tunnel);
    wait_until("the port to be let go of", async || {
        let list = server.client.sandbox_ports(&sandbox).await.unwrap();
        (!list.items.iter().any(|item| item.port == 9000)).then_some(())
    })
    .await;
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_said() {
    let server = Server::start();
    let output = server.cli(&["tunnel", "nowhere", "80"]);
    assert!(output.code == Some(125) && output.stderr.contains("nowhere"), "{output:?}");
    assert_eq!(server.cli(&["tunnel", "nowhere"]).code, Some(2));
    assert_eq!(server.cli(&["tunnel", "nowhere", "0"]).code, Some(2));
    server.finish().await;
}
