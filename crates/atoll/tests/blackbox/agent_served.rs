//! Agents that serve HTTP: one server for all sessions, a service of its sandbox.

use crate::agents::{begin, said, send, settles, turn, until};
use crate::common::code;
use atoll_api::{
    AnswerApproval, CreateAgent, CreateService, PauseSandbox, SendAgentMessage, UpdateAgent, UpdateSandbox,
};
use atoll_blackbox::{Server, host, wait_until};
use atoll_core::Code;
use atoll_core::agent::{Adapter, EventKind, SessionState};
use atoll_core::sandbox::PauseMode;
use serde_json::json;

/// An agent that speaks JSON lines over HTTP. Each message says what it does.
const HTTP: &str = r#"
import json, os, sys, threading, time, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
version = open("/opt/agents/bot/version").read().strip() if os.path.exists("/opt/agents/bot/version") else "-"
said, ended, told, heard = {}, set(), {}, {}

def work(key, text):
    say = lambda **line: said[key].append(json.dumps(line))
    session = key[0]
    if text == "refuse": say(type="error", code="refused", text="I will not")
    elif text == "crash": say(type="text", text="oh"); time.sleep(0.5); os._exit(3)
    elif text == "ask":
        say(type="approval", id="a", title="rm -r /", options=[{"id": "yes"}, {"id": "no"}])
        while session not in told: time.sleep(0.02)
        say(type="text", text="you chose " + told.pop(session)["option"]); say(type="done")
    elif text in ("wait", "stuck"):
        while not os.path.exists("/tmp/go") and (text == "stuck" or session not in told): time.sleep(0.02)
        say(type="done", reason="cancelled" if told.pop(session, None) else "completed")
    elif text == "count":
        for number in range(200): say(type="text", text=f"{number} "); time.sleep(0.02)
    else:
        heard[session] = heard.get(session, 0) + 1
        say(type="text", text=f"{version} {heard[session]}: {text}")
        if text != "no done": say(type="done")
    ended.add(key)

class Agent(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["type"] != "message":
            told[body["session"]] = body
            return self.answer(204)
        if body["text"] == "redirect":
            return self.answer(302)
        key = (body["session"], body["id"])
        if key in said: os._exit(9)
        said[key] = []
        threading.Thread(target=work, args=(key, body["text"])).start()
        self.stream(key, 0)
    def do_GET(self):
        query = {name: values[0] for name, values in urllib.parse.parse_qs(self.path.split("?")[1]).items()}
        key = (query["session"], int(query["message"]))
        if key not in said: return self.answer(404)
        self.stream(key, int(query["after"]))
    def answer(self, status):
        self.send_response(status)
        self.send_header("Location", "http://169.254.169.254/")
        if status != 204: self.send_header("Content-Length", "0")
        self.end_headers()
    def stream(self, key, at):
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while True:
            over = key in ended
            for line in said[key][at:]:
                self.wfile.write(b"%x\r\n%s\n\r\n" % (len(line.encode()) + 1, line.encode())); at += 1
            if over: break
            time.sleep(0.02)
        self.wfile.write(b"0\r\n\r\n")
ThreadingHTTPServer(("127.0.0.1", 8000), Agent).serve_forever()
"#;

/// A program that listens where OpenCode should, and is not it. A file says how it behaves.
const HOSTILE: &str = r#"
import json, os, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Hostile(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def answer(self, status, body=b"{}", **headers):
        self.send_response(status)
        for name, value in headers.items(): self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers(); self.wfile.write(body)
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        mode = open("/tmp/mode").read().strip()
        if self.path.startswith("/session?"):
            if mode == "id": return self.answer(200, json.dumps({"id": "ses_../../x"}).encode())
            if mode == "huge": return self.answer(200, b"[" * (6 << 20))
            return self.answer(200, json.dumps({"id": "ses_1"}).encode())
        self.answer(204, b"")
    def do_GET(self):
        mode = open("/tmp/mode").read().strip()
        if not self.path.startswith("/event"): return self.answer(200, b"[]" if mode == "list" else b"{}")
        if mode == "redirect": return self.answer(302, Location="http://169.254.169.254/latest")
        if mode == "garbage": return self.wfile.write(b"SSH-2.0-hello\r\n\r\n")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.close_connection = True
        data = lambda kind, **about: self.wfile.write(b"data: " + json.dumps({"type": kind, "properties": about}).encode() + b"\n\n")
        if mode == "line":
            self.wfile.write(b"data: ")
            for _ in range(64): self.wfile.write(b"x" * (1 << 20))
            self.wfile.write(b"\n\n")
        if mode == "flood":
            for number in range(20000):
                data("permission.asked", id=f"per_{number}", sessionID="ses_1", permission="x")
                data("question.asked", id=f"que_{number}", sessionID="ses_1", questions=[])
                data("server.heartbeat")
        part = {"messageID": "msg_1", "sessionID": "ses_1"}
        time.sleep(0.5)
        data("message.part.updated", sessionID="ses_1", part={**part, "id": "prt_1", "metadata": {"atoll": int(open("/tmp/number").read())}})
        data("message.updated", sessionID="ses_1", info={"id": "msg_2", "role": "assistant", "parentID": "msg_1"})
        data("message.part.updated", sessionID="ses_1", part={"messageID": "msg_2", "id": "prt_2", "type": "text", "text": "here"})
        data("session.idle", sessionID="ses_1")
        time.sleep(1000)
ThreadingHTTPServer(("127.0.0.1", 8000), Hostile).serve_forever()
"#;

async fn serve(server: &Server, sandbox: &str, script: &str) {
    let create = CreateService {
        name: "server".into(),
        argv: Some(["python3", "-c", script].map(str::to_owned).to_vec()),
        ready: serde_json::from_value(json!({ "port": 8000 })).unwrap(),
        backoff_ms: Some(10),
        ..CreateService::default()
    };
    server.client.create_service(sandbox, &create).await.unwrap();
    server.client.get_service(sandbox, "server", 30_000).await.unwrap();
}

fn agent(name: &str, sandbox: &str, adapter: Adapter) -> CreateAgent {
    CreateAgent {
        name: name.to_owned(),
        sandbox: Some(sandbox.to_owned()),
        service: Some("server".into()),
        adapter: Some(adapter),
        ..CreateAgent::default()
    }
}

/// Waits until a session of the agent works on a message.
async fn has(server: &Server, session: &str, number: u64) {
    wait_until("it to have the message", async || {
        let session = server.client.get_agent_session("bob", session).await.unwrap();
        (session.message == Some(number)).then_some(())
    })
    .await;
}

/// The code of the error with which a message ends.
async fn fails(server: &Server, agent: &str, session: &str, text: &str) -> String {
    let number = send(server, agent, session, text).await;
    let events = until(server, agent, session, number, EventKind::Error).await;
    settles(server, agent, session, SessionState::Failed).await;
    events.last().unwrap().data["code"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_over_http() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let bob = agent("bob", &sandbox, Adapter::Http);
    assert_eq!(code(server.client.create_agent(&bob).await), Code::ServiceNotFound);
    serve(&server, &sandbox, HTTP).await;
    for (wrong, field) in [
        (CreateAgent { adapter: None, ..bob.clone() }, "adapter"),
        (CreateAgent { argv: Some(vec!["x".into()]), ..bob.clone() }, "argv"),
        (CreateAgent { service: None, argv: Some(vec!["x".into()]), ..bob.clone() }, "adapter"),
        (CreateAgent { port: Some(0), ..bob.clone() }, "port"),
        (CreateAgent { user: Some("root".into()), ..bob.clone() }, "service"),
    ] {
        let error = server.client.create_agent(&wrong).await.unwrap_err();
        assert_eq!(error.code(), Some(Code::InvalidArgument));
        assert!(error.to_string().contains(field), "{field}: {error}");
    }
    let made = server.client.create_agent(&bob).await.unwrap();
    assert_eq!((made.service.as_deref(), made.port, made.command), (Some("server"), Some(8000), None));
    let (one, two) = (begin(&server, "bob").await, begin(&server, "bob").await);
    assert_eq!(said(&turn(&server, "bob", &one, "hello").await), "- 1: hello");
    assert_eq!(said(&turn(&server, "bob", &one, "again").await), "- 2: again");
    assert_eq!(host::processes(&sandbox).len(), 2, "one server for all");
    let events = turn(&server, "bob", &two, "no done").await;
    assert_eq!(
        (said(&events).as_str(), &events.last().unwrap().data["reason"]),
        ("- 1: no done", &json!("answered"))
    );

    let number = send(&server, "bob", &one, "ask").await;
    until(&server, "bob", &one, number, EventKind::Approval).await;
    // Another session goes on meanwhile.
    assert_eq!(said(&turn(&server, "bob", &two, "hi").await), "- 2: hi");
    let answer = AnswerApproval { option: "no".into() };
    server.client.answer_approval("bob", &one, "a", &answer).await.unwrap();
    assert_eq!(said(&until(&server, "bob", &one, number, EventKind::Done).await), "you chose no");
    for text in ["wait", "stuck"] {
        let number = send(&server, "bob", &one, text).await;
        has(&server, &one, number).await;
        server.client.cancel_agent_session("bob", &one).await.unwrap();
        let done = until(&server, "bob", &one, number, EventKind::Done).await;
        assert_eq!(done.last().unwrap().data["reason"], "cancelled", "{text}");
    }
    assert_eq!(fails(&server, "bob", &one, "refuse").await, "refused");
    assert_eq!(fails(&server, "bob", &one, "redirect").await, "agent_error");
    assert_eq!(fails(&server, "bob", &one, "crash").await, "agent_crashed");
    assert_eq!(
        said(&turn(&server, "bob", &one, "back").await),
        "- 1: back",
        "another process of the service"
    );
    server.client.stop_service(&sandbox, "server").await.unwrap();
    assert_eq!(fails(&server, "bob", &one, "x").await, "start_failed");
    server.client.restart_service(&sandbox, "server").await.unwrap();
    // Woken from disk: the message waits until the service is ready.
    let paused = PauseSandbox { mode: Some(PauseMode::Filesystem) };
    server.client.pause_sandbox(&sandbox, &paused).await.unwrap();
    assert_eq!(said(&turn(&server, "bob", &one, "awake?").await), "- 1: awake?");
    server.client.delete_agent("bob").await.unwrap();
    assert_eq!(host::processes(&sandbox).len(), 2, "the service is the sandbox's");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_over_http_survives_the_server() {
    let mut server = Server::start();
    let sandbox = server.sandbox().await.id;
    serve(&server, &sandbox, HTTP).await;
    server.client.create_agent(&agent("bob", &sandbox, Adapter::Http)).await.unwrap();
    let session = begin(&server, "bob").await;
    let count = SendAgentMessage { text: "count".into(), key: Some("count".into()) };
    let number = server.client.send_agent_message("bob", &session, &count).await.unwrap().number;
    for _ in 0..2 {
        let last = server.client.get_agent_session("bob", &session).await.unwrap().last_event;
        until(&server, "bob", &session, last.max(number), EventKind::Text).await;
        server.kill();
        server.restart();
    }
    // The agent ends itself when it is given a message twice.
    let events = until(&server, "bob", &session, number, EventKind::Done).await;
    let all: String = (0..200).map(|number| format!("{number} ")).collect();
    assert_eq!(said(&events), all, "nothing is lost, nothing told twice");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_makes_way_for_a_new_version_when_nobody_uses_it() {
    let mut server = Server::start();
    let sandbox = server.sandbox().await.id;
    let dir = tempfile::TempDir::new().unwrap();
    for version in ["one", "two"] {
        std::fs::write(dir.path().join("version"), version).unwrap();
        server.cli(&["agent", "build", "bot", dir.path().to_str().unwrap()]).ok();
    }
    let layers = [("bot".to_owned(), Some("agents.local/bot:1".to_owned()))].into();
    let update = UpdateSandbox { layers, ..UpdateSandbox::default() };
    server.client.update_sandbox(&sandbox, &update).await.unwrap();
    serve(&server, &sandbox, HTTP).await;
    let bob = CreateAgent { layer: Some("bot".into()), ..agent("bob", &sandbox, Adapter::Http) };
    server.client.create_agent(&bob).await.unwrap();
    let (one, two) = (begin(&server, "bob").await, begin(&server, "bob").await);
    assert_eq!(said(&turn(&server, "bob", &one, "a").await), "one 1: a");
    let waits = send(&server, "bob", &two, "wait").await;
    has(&server, &two, waits).await;
    server.client.update_agent("bob", &UpdateAgent { version: None }).await.unwrap();
    // One session works with the old version: it stays, also for the other session, and over a crash of the server.
    assert_eq!(said(&turn(&server, "bob", &one, "b").await), "one 2: b");
    server.kill();
    server.restart();
    assert_eq!(said(&turn(&server, "bob", &one, "c").await), "one 3: c");
    assert_eq!(server.sh(&sandbox, "touch /tmp/go").await.code, Some(0));
    until(&server, "bob", &two, waits, EventKind::Done).await;
    wait_until("another run", async || {
        let service = server.client.get_service(&sandbox, "server", 0).await.unwrap();
        (service.run == 2).then_some(())
    })
    .await;
    assert_eq!(said(&turn(&server, "bob", &one, "d").await), "two 1: d");
    // No session works with it, and it is asleep: a message that wakes it gets the new version.
    let frozen = PauseSandbox { mode: Some(PauseMode::Frozen) };
    server.client.pause_sandbox(&sandbox, &frozen).await.unwrap();
    server.client.update_agent("bob", &UpdateAgent { version: Some("1".into()) }).await.unwrap();
    assert_eq!(said(&turn(&server, "bob", &one, "e").await), "one 1: e");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_only_pretends_to_be_opencode_hurts_only_itself() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    serve(&server, &sandbox, HOSTILE).await;
    server.client.create_agent(&agent("bob", &sandbox, Adapter::Opencode)).await.unwrap();
    let session = begin(&server, "bob").await;
    let becomes = async |mode: &str| {
        let last = server.client.get_agent_session("bob", &session).await.unwrap().last_event;
        let set = format!("echo {mode} > /tmp/mode; echo {} > /tmp/number", last + 1);
        assert_eq!(server.sh(&sandbox, &set).await.code, Some(0));
    };
    for (mode, expected) in [("redirect", "protocol"), ("id", "protocol"), ("huge", "agent_error")] {
        becomes(mode).await;
        assert_eq!(fails(&server, "bob", &session, "x").await, expected, "{mode}");
    }
    for mode in ["line", "flood", "list", "plain"] {
        becomes(mode).await;
        assert_eq!(said(&turn(&server, "bob", &session, "x").await), "here", "{mode}");
    }
    // It never says anything of the protocol, and can be cancelled all the same.
    becomes("garbage").await;
    let number = send(&server, "bob", &session, "x").await;
    has(&server, &session, number).await;
    server.client.cancel_agent_session("bob", &session).await.unwrap();
    until(&server, "bob", &session, number, EventKind::Done).await;
    server.finish().await;
}
