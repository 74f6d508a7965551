//! Agents that live in sandboxes: conversations over crashes, pauses and restarts of the server.

use crate::common::code;
use atoll_api::{
    AgentEvent, AnswerApproval, CreateAgent, CreateAgentSession, PauseSandbox, SendAgentMessage,
};
use atoll_blackbox::{Server, host, wait_until};
use atoll_core::Code;
use atoll_core::agent::{Adapter, EventKind, SessionState};
use atoll_core::sandbox::{PauseMode, SandboxState};
use serde_json::{Value, json};

/// An agent that speaks JSON lines. Each message says what it does.
pub(crate) const JSONL: &str = r#"
import json, os, sys, time
def say(**said): print(json.dumps(said), flush=True)
heard = []
for line in sys.stdin:
    told = json.loads(line)
    if told["type"] == "answer":
        say(type="text", text="you chose " + told["option"]); say(type="done")
    elif told["type"] == "cancel":
        say(type="done", reason="cancelled")
    elif told["text"] == "crash":
        say(type="text", text="oh"); sys.exit(3)
    elif told["text"] == "refuse":
        say(type="error", code="refused", text="I will not")
    elif told["text"] == "ask":
        say(type="approval", id="a", title="rm -r /", options=[{"id": "yes"}, {"id": "no"}])
    elif told["text"] == "wait":
        say(type="thought", text="hm")
    elif told["text"] == "stuck":
        time.sleep(1000)
    elif told["text"] == "much":
        for number in range(300):
            say(type="text", text=f"{number:04}" * 4000)
        say(type="done")
    elif told["text"] == "count":
        for number in range(200):
            say(type="text", text=f"{number} "); time.sleep(0.02)
        say(type="done")
    else:
        heard.append(told["text"])
        print("a line of a log", flush=True)
        say(type="tool", name="think")
        say(type="text", text=f"{len(heard)}: {told['text']}"); say(type="done")
"#;

/// An agent that speaks the Agent Client Protocol.
const ACP: &str = r#"
import json, sys
def send(**said): print(json.dumps({"jsonrpc": "2.0", **said}), flush=True)
def tell(**update): send(method="session/update", params={"sessionId": "s", "update": update})
def text(text): tell(sessionUpdate="agent_message_chunk", content={"type": "text", "text": text})
prompt = None
for line in sys.stdin:
    told = json.loads(line); method = told.get("method")
    if method == "initialize":
        send(id=told["id"], result={"protocolVersion": 1, "agentCapabilities": {}})
    elif method == "session/new":
        assert told["params"]["cwd"] == "/tmp"
        send(id=told["id"], result={"sessionId": "s"})
    elif method == "session/prompt":
        prompt = told["id"]; said = told["params"]["prompt"][0]["text"]
        tell(sessionUpdate="tool_call", toolCallId="t", title="look", status="completed")
        text("you said " + said)
        if said == "ask":
            options = [{"optionId": "y", "name": "Yes", "kind": "allow_once"}]
            tool = {"toolCallId": "u", "title": "rm -r /"}
            send(id=9, method="session/request_permission", params={"sessionId": "s", "toolCall": tool, "options": options})
        elif said == "file":
            send(id=10, method="fs/read_text_file", params={"sessionId": "s", "path": "/etc/passwd"})
        elif said == "flood":
            for number in range(300000): send(id=number, method="fs/read_text_file")
            send(id="x" * 100000, method="fs/read_text_file")
        elif said != "wait":
            send(id=prompt, result={"stopReason": "end_turn"})
    elif method == "session/cancel":
        send(id=prompt, result={"stopReason": "cancelled"})
    elif told.get("id") == 9:
        text(", and " + told["result"]["outcome"]["outcome"] + " " + told["result"]["outcome"].get("optionId", ""))
        send(id=prompt, result={"stopReason": "end_turn"})
    elif told.get("id") == 10:
        send(id=prompt, error={"code": -32603, "message": "no file: " + str(told["error"]["code"])})
"#;

pub(crate) fn agent(name: &str, sandbox: &str, script: &str, adapter: Adapter) -> CreateAgent {
    CreateAgent {
        name: name.to_owned(),
        sandbox: Some(sandbox.to_owned()),
        argv: Some(["python3", "-c", script].map(str::to_owned).to_vec()),
        adapter: Some(adapter),
        ..CreateAgent::default()
    }
}

pub(crate) async fn begin(server: &Server, agent: &str) -> String {
    server.client.create_agent_session(agent, &CreateAgentSession::default()).await.unwrap().id
}

/// Sends a message; gives its number.
pub(crate) async fn send(server: &Server, agent: &str, session: &str, text: &str) -> u64 {
    let message = SendAgentMessage { text: text.to_owned(), key: None };
    server.client.send_agent_message(agent, session, &message).await.unwrap().number
}

/// All events after one until one of a kind comes.
pub(crate) async fn until(
    server: &Server,
    agent: &str,
    session: &str,
    after: u64,
    kind: EventKind,
) -> Vec<AgentEvent> {
    let mut events: Vec<AgentEvent> = Vec::new();
    loop {
        let last = events.last().map_or(after, |event| event.number);
        let page = server.client.agent_events(agent, session, last, 30_000).await.unwrap();
        assert!(!page.gap, "events are lost");
        for event in page.items {
            assert_eq!(
                event.number,
                events.last().map_or(after, |event| event.number) + 1,
                "none is missing"
            );
            let found = event.kind == kind;
            events.push(event);
            if found {
                return events;
            }
        }
    }
}

/// Sends a message; gives all events that came until it was done.
pub(crate) async fn turn(server: &Server, agent: &str, session: &str, text: &str) -> Vec<AgentEvent> {
    let number = send(server, agent, session, text).await;
    until(server, agent, session, number, EventKind::Done).await
}

/// All that an agent said.
pub(crate) fn said(events: &[AgentEvent]) -> String {
    let texts = events.iter().filter(|event| event.kind == EventKind::Text);
    texts.map(|event| event.data["text"].as_str().unwrap()).collect()
}

async fn state(server: &Server, agent: &str, session: &str) -> SessionState {
    server.client.get_agent_session(agent, session).await.unwrap().state
}

pub(crate) async fn settles(server: &Server, agent: &str, session: &str, wanted: SessionState) {
    let what = format!("the session to be {wanted:?}");
    wait_until(&what, async || (state(server, agent, session).await == wanted).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_over_json_lines() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let made = server.client.create_agent(&agent("bob", &sandbox, JSONL, Adapter::Jsonl)).await.unwrap();
    assert_eq!((made.sandbox.as_str(), made.adapter), (sandbox.as_str(), Adapter::Jsonl));
    assert_eq!(host::processes(&sandbox).len(), 1, "nothing runs before there is a message");
    let thread = CreateAgentSession { thread: Some("ticket-7".into()) };
    let session = server.client.create_agent_session("bob", &thread).await.unwrap().id;
    assert_eq!(server.client.create_agent_session("bob", &thread).await.unwrap().id, session);
    assert_eq!(server.client.get_agent_session("bob", "ticket-7").await.unwrap().id, session);

    let hello = SendAgentMessage { text: "hello".into(), key: Some("k1".into()) };
    let first = server.client.send_agent_message("bob", &session, &hello).await.unwrap();
    let again = server.client.send_agent_message("bob", &session, &hello).await.unwrap();
    assert_eq!((first.number, first.kind, &again), (1, EventKind::Message, &first), "once");
    let other = SendAgentMessage { text: "other".into(), ..hello.clone() };
    let other = server.client.send_agent_message("bob", &session, &other).await;
    assert_eq!(code(other), Code::IdempotencyMismatch);
    settles(&server, "bob", &session, SessionState::Idle).await;
    let events = until(&server, "bob", &session, 0, EventKind::Done).await;
    let kinds: Vec<EventKind> = events.iter().map(|event| event.kind).collect();
    assert!(kinds.starts_with(&[EventKind::Message, EventKind::State]), "{kinds:?}");
    assert!(
        kinds.ends_with(&[EventKind::Log, EventKind::Tool, EventKind::Text, EventKind::Done]),
        "{kinds:?}"
    );
    assert_eq!(said(&events), "1: hello");
    assert_eq!(events.last().unwrap().data, json!({ "reason": "completed", "message": 1 }));
    // The same process, which remembers.
    let events = turn(&server, "bob", &session, "again").await;
    assert_eq!(said(&events), "2: again");
    // Another session is another process.
    let second = begin(&server, "bob").await;
    assert_eq!(said(&turn(&server, "bob", &second, "hi").await), "1: hi");
    assert_eq!(host::processes(&sandbox).len(), 3);
    // Any reader, from anywhere, as server-sent events, too.
    let from = events.last().unwrap().number - 1;
    let stream = format!("/v1/agents/bob/sessions/{session}/stream?after=0");
    let mut answer = server.request("GET", &stream).header("Last-Event-ID", from).send().await.unwrap();
    let chunk = String::from_utf8(answer.chunk().await.unwrap().unwrap().to_vec()).unwrap();
    assert!(chunk.starts_with(&format!("event: done\nid: {}\ndata: {{", from + 1)), "{chunk}");
    drop(answer);
    assert_eq!(code(server.client.agent_events("bob", &session, 10_000, 0).await), Code::OffsetOutOfRange);

    server.client.delete_agent_session("bob", &second).await.unwrap();
    assert_eq!(code(server.client.get_agent_session("bob", &second).await), Code::SessionNotFound);
    assert_eq!(host::processes(&sandbox).len(), 2);
    server.client.delete_agent("bob").await.unwrap();
    assert_eq!(code(server.client.get_agent("bob").await), Code::AgentNotFound);
    assert_eq!(host::processes(&sandbox).len(), 1);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_wrong_is_told_and_another_message_begins_anew() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    server.client.create_agent(&agent("bob", &sandbox, JSONL, Adapter::Jsonl)).await.unwrap();
    let session = begin(&server, "bob").await;
    let error = async |agent: &str, session: &str, text: &str| {
        let number = send(&server, agent, session, text).await;
        let events = until(&server, agent, session, number, EventKind::Error).await;
        settles(&server, agent, session, SessionState::Failed).await;
        let data = events.last().unwrap().data.clone();
        assert_eq!(data["message"], json!(number));
        data["code"].as_str().unwrap().to_owned()
    };
    assert_eq!(error("bob", &session, "refuse").await, "refused");
    assert_eq!(said(&turn(&server, "bob", &session, "a").await), "1: a");
    assert_eq!(error("bob", &session, "crash").await, "agent_crashed");
    assert_eq!(said(&turn(&server, "bob", &session, "b").await), "1: b", "a new process");
    // Messages wait for each other, also over a crash.
    let crash = send(&server, "bob", &session, "crash").await;
    send(&server, "bob", &session, "after").await;
    let events = until(&server, "bob", &session, crash + 1, EventKind::Done).await;
    assert_eq!(said(&events), "oh1: after");

    for (name, argv, expected) in [
        ("none", vec!["/no/such"], "start_failed"),
        ("mute", vec!["sh", "-c", "exec <&-; exec sleep 1000"], ""),
        ("quick", vec!["false"], "agent_crashed"),
        ("babbles", vec!["sh", "-c", "yes | head -c 3000000; exit 1"], "agent_crashed"),
    ] {
        let argv = Some(argv.into_iter().map(str::to_owned).collect());
        let create = CreateAgent { argv, ..agent(name, &sandbox, "", Adapter::Jsonl) };
        server.client.create_agent(&create).await.unwrap();
        let session = begin(&server, name).await;
        if expected.is_empty() {
            // It is told nothing for ever, and can be cancelled all the same.
            send(&server, name, &session, "x").await;
            server.client.cancel_agent_session(name, &session).await.unwrap();
            until(&server, name, &session, 0, EventKind::Done).await;
        } else {
            assert_eq!(error(name, &session, "x").await, expected, "{name}");
        }
        server.client.delete_agent(name).await.unwrap();
    }
    let complains = ["sh", "-c", "echo heard; echo no key >&2; exit 3"].map(str::to_owned).to_vec();
    let create = CreateAgent { argv: Some(complains), ..agent("complains", &sandbox, "", Adapter::Jsonl) };
    server.client.create_agent(&create).await.unwrap();
    let complains = begin(&server, "complains").await;
    let number = send(&server, "complains", &complains, "x").await;
    let events = until(&server, "complains", &complains, number, EventKind::Error).await;
    let why = "the agent's process ended with code 3; it wrote last:\nno key";
    assert_eq!(events.last().unwrap().data["text"], why);
    let nowhere =
        CreateAgent { cwd: Some("/no/such".into()), ..agent("lost", &sandbox, JSONL, Adapter::Jsonl) };
    server.client.create_agent(&nowhere).await.unwrap();
    let lost = begin(&server, "lost").await;
    assert_eq!(error("lost", &lost, "x").await, "cwd_not_found");

    let taken = agent("bob", &sandbox, JSONL, Adapter::Jsonl);
    assert_eq!(code(server.client.create_agent(&taken).await), Code::NameTaken);
    let none = CreateAgent { sandbox: None, ..agent("eve", "", JSONL, Adapter::Jsonl) };
    assert_eq!(code(server.client.create_agent(&none).await), Code::InvalidArgument);
    let long = SendAgentMessage { text: "x".repeat(300_000), key: None };
    assert_eq!(code(server.client.send_agent_message("bob", &session, &long).await), Code::TooLarge);
    // With its sandbox an agent is gone.
    server.client.delete_sandbox(&sandbox).await.unwrap();
    assert_eq!(code(server.client.get_agent("bob").await), Code::AgentNotFound);
    assert_eq!(server.client.list_agents().await.unwrap().items, []);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn approvals_wait_and_work_can_be_cancelled() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    server.client.create_agent(&agent("bob", &sandbox, JSONL, Adapter::Jsonl)).await.unwrap();
    let session = begin(&server, "bob").await;
    let number = send(&server, "bob", &session, "ask").await;
    let asked = until(&server, "bob", &session, number, EventKind::Approval).await;
    assert_eq!(asked.last().unwrap().data["title"], "rm -r /");
    settles(&server, "bob", &session, SessionState::WaitingForApproval).await;
    let answer = async |id: &str, option: &str| {
        let answer = AnswerApproval { option: option.to_owned() };
        server.client.answer_approval("bob", &session, id, &answer).await
    };
    assert_eq!(code(answer("b", "yes").await), Code::InvalidState);
    assert_eq!(code(answer("a", "perhaps").await), Code::InvalidArgument);
    answer("a", "no").await.unwrap();
    assert_eq!(code(answer("a", "yes").await), Code::InvalidState, "one answer");
    let events = until(&server, "bob", &session, number, EventKind::Done).await;
    assert_eq!(said(&events), "you chose no");
    assert!(events.iter().any(|event| event.kind == EventKind::Answer));
    // Cancelled as it should be, and by force.
    for text in ["wait", "stuck"] {
        let number = send(&server, "bob", &session, text).await;
        settles(&server, "bob", &session, SessionState::Working).await;
        wait_until("it to have the message", async || {
            let session = server.client.get_agent_session("bob", &session).await.unwrap();
            (session.message == Some(number)).then_some(())
        })
        .await;
        server.client.cancel_agent_session("bob", &session).await.unwrap();
        let done = until(&server, "bob", &session, number, EventKind::Done).await;
        assert_eq!(done.last().unwrap().data, json!({ "reason": "cancelled", "message": number }), "{text}");
    }
    server.client.cancel_agent_session("bob", &session).await.unwrap();
    assert_eq!(said(&turn(&server, "bob", &session, "fine").await), "1: fine");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_survives_the_server() {
    let mut server = Server::start();
    let sandbox = server.sandbox().await.id;
    server.client.create_agent(&agent("bob", &sandbox, JSONL, Adapter::Jsonl)).await.unwrap();
    let session = begin(&server, "bob").await;
    assert_eq!(said(&turn(&server, "bob", &session, "before").await), "1: before");
    let pids = host::processes(&sandbox);
    // In the middle of an answer, more than once.
    let count = SendAgentMessage { text: "count".into(), key: Some("count".into()) };
    let number = server.client.send_agent_message("bob", &session, &count).await.unwrap().number;
    for _ in 0..2 {
        let last = server.client.get_agent_session("bob", &session).await.unwrap().last_event;
        until(&server, "bob", &session, last.max(number), EventKind::Text).await;
        server.kill();
        server.restart();
        let again = server.client.send_agent_message("bob", &session, &count).await.unwrap();
        assert_eq!(again.number, number, "it was taken");
    }
    let events = until(&server, "bob", &session, number, EventKind::Done).await;
    let expected: String = (0..200).map(|number| format!("{number} ")).collect();
    assert_eq!(said(&events), expected, "nothing is lost, nothing told twice");
    assert_eq!(said(&turn(&server, "bob", &session, "after").await), "2: after");
    assert_eq!(host::processes(&sandbox), pids, "the same process");
    // While it waits for an approval.
    let number = send(&server, "bob", &session, "ask").await;
    until(&server, "bob", &session, number, EventKind::Approval).await;
    server.kill();
    server.restart();
    assert_eq!(state(&server, "bob", &session).await, SessionState::WaitingForApproval);
    let answer = AnswerApproval { option: "yes".into() };
    server.client.answer_approval("bob", &session, "a", &answer).await.unwrap();
    let events = until(&server, "bob", &session, number, EventKind::Done).await;
    assert_eq!(said(&events), "you chose yes");
    // A message whose work ends while the server is away.
    let number = send(&server, "bob", &session, "wait").await;
    until(&server, "bob", &session, number, EventKind::Thought).await;
    server.kill();
    let agent = host::processes(&sandbox).into_iter().find(|pid| !is_ours(*pid)).unwrap();
    host::kill(agent);
    server.restart();
    let events = until(&server, "bob", &session, number, EventKind::Error).await;
    assert_eq!(events.last().unwrap().data["code"], "agent_crashed");
    server.finish().await;
}

/// Whether a process is the sandbox's agent of ours rather than Python.
fn is_ours(pid: i32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.starts_with(b"python3"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_wakes_the_sandbox() {
    let mut server = Server::start();
    let sandbox = server.sandbox().await.id;
    server.client.create_agent(&agent("bob", &sandbox, JSONL, Adapter::Jsonl)).await.unwrap();
    let session = begin(&server, "bob").await;
    assert_eq!(said(&turn(&server, "bob", &session, "one").await), "1: one");
    let pause = async |server: &Server, mode| {
        let paused = server.client.pause_sandbox(&sandbox, &PauseSandbox { mode: Some(mode) }).await.unwrap();
        assert_eq!(paused.state, SandboxState::Paused);
        assert_eq!(state(server, "bob", &session).await, SessionState::Idle);
        assert_eq!(server.client.get_sandbox(&sandbox).await.unwrap().state, SandboxState::Paused);
    };
    pause(&server, PauseMode::Frozen).await;
    assert_eq!(said(&turn(&server, "bob", &session, "two").await), "2: two", "the same process");
    pause(&server, PauseMode::Filesystem).await;
    assert_eq!(said(&turn(&server, "bob", &session, "three").await), "1: three", "a new one");
    pause(&server, PauseMode::Filesystem).await;
    server.kill();
    server.restart();
    assert_eq!(said(&turn(&server, "bob", &session, "four").await), "1: four");
    // A pause in the middle of the work, which does not end it.
    let number = send(&server, "bob", &session, "count").await;
    until(&server, "bob", &session, number, EventKind::Text).await;
    let frozen = PauseSandbox { mode: Some(PauseMode::Frozen) };
    server.client.pause_sandbox(&sandbox, &frozen).await.unwrap();
    server.client.resume_sandbox(&sandbox).await.unwrap();
    let events = until(&server, "bob", &session, number, EventKind::Done).await;
    assert!(said(&events).ends_with(" 199 "));
    // And one that does.
    let number = send(&server, "bob", &session, "wait").await;
    until(&server, "bob", &session, number, EventKind::Thought).await;
    let filesystem = PauseSandbox { mode: Some(PauseMode::Filesystem) };
    server.client.pause_sandbox(&sandbox, &filesystem).await.unwrap();
    let events = until(&server, "bob", &session, number, EventKind::Error).await;
    assert_eq!(events.last().unwrap().data["code"], "sandbox_paused");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_over_the_agent_client_protocol() {
    let mut server = Server::start();
    let sandbox = server.sandbox().await.id;
    let create = CreateAgent { cwd: Some("/tmp".into()), ..agent("ann", &sandbox, ACP, Adapter::Acp) };
    server.client.create_agent(&create).await.unwrap();
    let session = begin(&server, "ann").await;
    let events = turn(&server, "ann", &session, "hello").await;
    assert_eq!(said(&events), "you said hello");
    assert_eq!(events.last().unwrap().data["reason"], "end_turn");
    let tool = events.iter().find(|event| event.kind == EventKind::Tool).unwrap();
    assert_eq!(tool.data["title"], "look");
    // A permission, asked for before and answered after a restart of the server.
    let number = send(&server, "ann", &session, "ask").await;
    let asked = until(&server, "ann", &session, number, EventKind::Approval).await;
    let data = &asked.last().unwrap().data;
    assert_eq!((&data["title"], &data["options"][0]["id"]), (&json!("rm -r /"), &json!("y")));
    let id = data["id"].as_str().unwrap().to_owned();
    server.kill();
    server.restart();
    let answer = AnswerApproval { option: "y".into() };
    server.client.answer_approval("ann", &session, &id, &answer).await.unwrap();
    let events = until(&server, "ann", &session, number, EventKind::Done).await;
    assert_eq!(said(&events), "you said ask, and selected y");
    // Other requests of the agent are refused, and a failure is told.
    let number = send(&server, "ann", &session, "file").await;
    let events = until(&server, "ann", &session, number, EventKind::Error).await;
    assert_eq!(events.last().unwrap().data["text"], "no file: -32601");
    let number = send(&server, "ann", &session, "wait").await;
    until(&server, "ann", &session, number, EventKind::Text).await;
    server.client.cancel_agent_session("ann", &session).await.unwrap();
    let events = until(&server, "ann", &session, number, EventKind::Done).await;
    assert_eq!(events.last().unwrap().data["reason"], "cancelled");
    // One that asks without end and reads no answer is ended; the next message begins anew.
    let number = send(&server, "ann", &session, "flood").await;
    let events = until(&server, "ann", &session, number, EventKind::Error).await;
    assert_eq!(events.last().unwrap().data["code"], "protocol", "{:?}", events.last());
    assert_eq!(said(&turn(&server, "ann", &session, "again").await), "you said again");
    // One that does not speak it fails, and is not left over.
    let other = r#"print('{"jsonrpc":"2.0","id":"initialize","result":{"protocolVersion":9}}', flush=True); input(); input()"#;
    server.client.create_agent(&agent("old", &sandbox, other, Adapter::Acp)).await.unwrap();
    let old = begin(&server, "old").await;
    let number = send(&server, "old", &old, "x").await;
    let events = until(&server, "old", &old, number, EventKind::Error).await;
    assert_eq!(events.last().unwrap().data["code"], "protocol");
    wait_until("its process to end", async || (host::processes(&sandbox).len() == 2).then_some(())).await;
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_of_agents() {
    let server = Server::start();
    let template = server.request("POST", "/v1/templates").json(&json!({ "name": "home", "image": "host" }));
    assert_eq!(server.send(template).await.status, 201);
    let up = ["agent", "up", "--template", "home", "bob", "--", "python3", "-c", JSONL];
    assert_eq!(server.cli(&up).ok().stdout, "bob\n");
    let sandbox = server.client.get_agent("bob").await.unwrap().sandbox;
    let listed = server.cli(&["agent", "ls"]).ok().stdout;
    assert!(listed.contains("bob") && listed.contains(&sandbox) && listed.contains("jsonl"), "{listed}");
    assert_eq!(server.cli(&["agent", "send", "bob", "good", "day"]).ok().stdout, "1: good day\n");
    assert_eq!(server.cli_with(&["agent", "send", "bob", "-"], b"more").ok().stdout, "2: more\n");
    assert_eq!(server.cli(&["agent", "send", "-s", "other", "bob", "x"]).ok().stdout, "1: x\n");
    let failed = server.cli(&["agent", "send", "bob", "refuse"]);
    assert!(failed.code == Some(1) && failed.stderr.contains("I will not"), "{failed:?}");
    let number = server.cli(&["agent", "send", "--detach", "bob", "ask"]).ok().stdout;
    let number: u64 = number.trim().parse().unwrap();
    until(&server, "bob", "main", number, EventKind::Approval).await;
    server.cli(&["agent", "answer", "bob", "a", "yes"]).ok();
    until(&server, "bob", "main", number, EventKind::Done).await;
    let after = server.client.get_agent_session("bob", "main").await.unwrap().last_event.to_string();
    let attached = server.cli_with(&["agent", "attach", "--after", &after, "bob"], b"three\n").ok();
    assert_eq!(attached.stdout, "3: three\n");
    let sessions = server.cli(&["agent", "sessions", "--json", "bob"]).ok().json();
    let threads: Vec<&Value> =
        sessions["items"].as_array().unwrap().iter().map(|item| &item["thread"]).collect();
    assert_eq!(threads, ["main", "other"]);
    assert_eq!(server.cli(&["agent", "logs", "-s", "other", "bob"]).ok().stdout, "1: x\n");
    let none = server.cli(&["agent", "logs", "-s", "none", "bob"]);
    assert!(none.code != Some(0) && none.stderr.contains("none"), "it begins no session: {none:?}");
    server.cli(&["agent", "pause", "bob"]).ok();
    assert_eq!(server.client.get_sandbox(&sandbox).await.unwrap().state, SandboxState::Paused);
    server.cli(&["agent", "rm", "bob"]).ok();
    assert_eq!(code(server.client.get_sandbox(&sandbox).await), Code::SandboxNotFound, "it was its own");
    server.finish().await;
}
