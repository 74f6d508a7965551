//! gRPC through ports: an HTTP/2 server inside, streams both ways, trailers.

use std::process::Command;

use atoll_api::{CreateExec, CreateSandbox};
use atoll_blackbox::{Server, wait_until};
use atoll_client::ListSandboxes;

/// Answers as gRPC servers do, and echoes each message when it comes. It speaks nothing but HTTP/2.
const SERVER: &str = r#"
import socket, threading
import h2.config, h2.connection, h2.events
def serve(sock):
    conn = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
    conn.initiate_connection(); sock.sendall(conn.data_to_send())
    paths = {}
    while data := sock.recv(65536):
        for event in conn.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                head = dict(event.headers); paths[event.stream_id] = head[":path"]
                answer = [(":status", "200"), ("content-type", "application/grpc"), ("x-te", head.get("te", "")), ("x-authority", head[":authority"])]
                if head[":path"] == "/pkg.Echo/Refuse":
                    conn.send_headers(event.stream_id, answer + [("grpc-status", "7"), ("grpc-message", "no")], end_stream=True)
                else:
                    conn.send_headers(event.stream_id, answer)
            elif isinstance(event, h2.events.DataReceived):
                conn.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                if paths[event.stream_id] == "/pkg.Echo/Break": conn.reset_stream(event.stream_id, 2)
                elif event.data: conn.send_data(event.stream_id, event.data)
            elif isinstance(event, h2.events.StreamEnded) and paths[event.stream_id] == "/pkg.Echo/Echo":
                conn.send_headers(event.stream_id, [("grpc-status", "0"), ("x-sum", "7")], end_stream=True)
        sock.sendall(conn.data_to_send())
listener = socket.create_server(("127.0.0.1", 3000))
while True: threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

/// Asks all of that over one connection.
const CLIENT: &str = r#"
import socket, sys
import h2.config, h2.connection, h2.events
authority, extra = sys.argv[1], [tuple(header.split("=")) for header in sys.argv[2:]]
sock = socket.create_connection(("127.0.0.1", int(authority.rsplit(":")[-1]))); sock.settimeout(60)
conn = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
conn.initiate_connection(); sock.sendall(conn.data_to_send())
seen = []
def until(what):
    while True:
        for event in seen:
            if what(event): seen.remove(event); return event
        data = sock.recv(65536)
        assert data, "the connection was closed"
        for event in conn.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                conn.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            seen.append(event)
        sock.sendall(conn.data_to_send())
def begin(path):
    stream = conn.get_next_available_stream_id()
    conn.send_headers(stream, [(":method", "POST"), (":scheme", "http"), (":path", path),
        (":authority", authority), ("te", "trailers"), ("content-type", "application/grpc+proto"), *extra])
    sock.sendall(conn.data_to_send()); return stream
def of(stream, kind): return lambda event: isinstance(event, kind) and event.stream_id == stream
# Both directions at the same time: each message is answered before the next is sent.
streams = [begin("/pkg.Echo/Echo") for _ in range(5)]
for turn in range(3):
    for stream in streams:
        message = b"%d-%d" % (stream, turn)
        conn.send_data(stream, message); sock.sendall(conn.data_to_send())
        got = until(of(stream, h2.events.DataReceived)).data
        assert got == message, (got, message)
for stream in streams:
    head = dict(until(of(stream, h2.events.ResponseReceived)).headers)
    assert head[":status"] == "200" and head["content-type"] == "application/grpc" and head["x-te"] == "trailers", head
    assert head["x-authority"] == authority, head
    conn.end_stream(stream); sock.sendall(conn.data_to_send())
    trailers = dict(until(of(stream, h2.events.TrailersReceived)).headers)
    assert trailers == {"grpc-status": "0", "x-sum": "7"}, trailers
    until(of(stream, h2.events.StreamEnded))
refused = begin("/pkg.Echo/Refuse")
head = dict(until(of(refused, h2.events.ResponseReceived)).headers)
assert head["grpc-status"] == "7" and head["grpc-message"] == "no", head
broken = begin("/pkg.Echo/Break")
conn.send_data(broken, b"x"); sock.sendall(conn.data_to_send())
until(of(broken, h2.events.StreamReset))
# What broke took nothing else along.
last = begin("/pkg.Echo/Echo"); conn.send_data(last, b"last", end_stream=True); sock.sendall(conn.data_to_send())
assert until(of(last, h2.events.DataReceived)).data == b"last"
assert dict(until(of(last, h2.events.TrailersReceived)).headers)["grpc-status"] == "0"
print("fine")
"#;

/// Starts the server inside.
async fn serve(server: &Server, sandbox: &str) {
    let argv = ["/usr/bin/python3", "-c", SERVER].map(str::to_owned).to_vec();
    let create = CreateExec { argv: Some(argv), ..CreateExec::default() };
    server.client.create_exec(sandbox, &create).await.unwrap();
    wait_until("a server inside", async || {
        let list = server.client.sandbox_ports(sandbox).await.unwrap();
        list.items.iter().any(|item| item.port == 3000).then_some(())
    })
    .await;
}

fn ask(authority: &str, headers: &[String]) {
    let said =
        Command::new("/usr/bin/python3").args(["-c", CLIENT, authority]).args(headers).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "fine\n", "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_passes_with_its_streams_and_trailers() {
    let server = Server::start();
    let create = CreateSandbox { name: Some("web".to_owned()), ..CreateSandbox::default() };
    let sandbox = server.client.create_sandbox(&create).await.unwrap().id;
    serve(&server, &sandbox).await;
    let port = server.url.rsplit_once(':').unwrap().1;
    ask(&format!("3000-web.localhost:{port}"), &[format!("x-atoll-token={}", server.key)]);
    server.finish().await;
}

/// The same as E2B's clients reach a port whose sandbox has no host name of its own: by headers, without a key.
#[tokio::test(flavor = "multi_thread")]
async fn grpc_passes_by_headers_of_e2b() {
    let server = Server::start();
    let made = server.cli(&["key", "create", "e2b", "--scope", "manage", "--for", "e2b", "--json"]).ok();
    let key = made.json()["secret"].as_str().unwrap().to_owned();
    let request = server.bare("POST", "/e2b/sandboxes").header("x-api-key", key);
    let made: serde_json::Value =
        request.json(&serde_json::json!({"templateID": "base"})).send().await.unwrap().json().await.unwrap();
    let id = made["sandboxID"].as_str().unwrap();
    let sandbox = server.client.list_sandboxes(&ListSandboxes::default()).await.unwrap().items.remove(0).id;
    serve(&server, &sandbox).await;
    let authority = server.url.rsplit_once('/').unwrap().1;
    ask(authority, &[format!("e2b-sandbox-id={id}"), "e2b-sandbox-port=3000".to_owned()]);
    server.finish().await;
}
