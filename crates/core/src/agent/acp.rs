//! The Agent Client Protocol over standard input and output, as its client: <https://agentclientprotocol.com>, version 1.
//!
//! JSON-RPC 2.0, one message for each line. We call `initialize`, then `session/new`, or `session/load` where the agent can and
//! there was a session before, then `session/prompt` for each message. The agent tells with `session/update` and asks with
//! `session/request_permission`. It works on the sandbox's own files and commands, so we offer neither `fs` nor `terminal`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    APPROVAL_ID_MAX_BYTES, APPROVALS_MAX_COUNT, Approval, EventKind, Input, Output, TurnEnd, options,
};
use crate::error::shorten;

/// The version of the protocol that is spoken.
const VERSION: u64 = 1;
/// JSON-RPC's code for a method that is not there.
const METHOD_NOT_FOUND: i64 = -32601;
/// JSON-RPC's code for parameters that make no sense.
const INVALID_PARAMS: i64 = -32602;
/// Longest id of a session that an agent gives, bytes.
const SESSION_MAX_BYTES: usize = 512;

/// Where the conversation with a process is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Phase {
    /// There is no process.
    #[default]
    Off,
    /// It was asked to initialize.
    Initializing,
    /// It was asked for a new session.
    Opening,
    /// It was asked to load the earlier session, and sends again what was said in it.
    Loading,
    /// It takes prompts.
    Ready,
}

/// State of the adapter.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AcpState {
    phase: Phase,
    /// Where the agent works.
    cwd: String,
    /// The agent's id of the session.
    session: Option<String>,
    /// The message that waits until the agent takes prompts.
    waiting: Option<(u64, String)>,
    /// The message that it works on.
    prompt: Option<u64>,
    /// Approvals so far: their ids are ours.
    asked: u64,
    pub(super) approvals: Vec<Approval>,
}

impl AcpState {
    pub(super) fn step(&mut self, input: Input<'_>) -> Output {
        let mut output = Output::default();
        match input {
            Input::Begun(cwd, _) => {
                self.phase = Phase::Initializing;
                cwd.clone_into(&mut self.cwd);
                let none = json!({ "readTextFile": false, "writeTextFile": false });
                let offers = json!({ "fs": none, "terminal": false });
                let info = json!({ "name": "atoll", "version": env!("CARGO_PKG_VERSION") });
                let params =
                    json!({ "protocolVersion": VERSION, "clientCapabilities": offers, "clientInfo": info });
                call(&mut output, "initialize", "initialize", &params);
            }
            Input::Message(number, text) => {
                self.waiting = Some((number, text.to_owned()));
                self.prompt(&mut output);
            }
            Input::Cancel => self.cancel(&mut output),
            Input::Answer(id, option) => {
                if let Some(at) = self.approvals.iter().position(|approval| approval.id == id) {
                    let request = self.approvals.remove(at).request;
                    let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
                    output.say(&json!({ "jsonrpc": "2.0", "id": request, "result": outcome }));
                }
            }
            Input::Line(line) => match serde_json::from_str::<Value>(line) {
                Ok(said) if said.get("jsonrpc").is_some() => self.said(&said, &mut output),
                Ok(_) | Err(_) => output.text(EventKind::Log, line),
            },
            Input::Dialing | Input::Listening(_) | Input::Silent(_) | Input::Answered(..) => {}
        }
        output
    }

    pub(super) const fn is_off(&self) -> bool {
        matches!(self.phase, Phase::Off)
    }

    /// The process has ended. The agent may know the session again.
    pub(super) fn ended(&mut self) {
        self.phase = Phase::Off;
        self.prompt = None;
        self.waiting = None;
        self.approvals.clear();
    }

    fn prompt(&mut self, output: &mut Output) {
        if self.phase != Phase::Ready {
            return;
        }
        let (Some(session), Some((number, text))) = (&self.session, self.waiting.take()) else { return };
        let params = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] });
        call(output, &prompt_id(number), "session/prompt", &params);
        self.prompt = Some(number);
    }

    fn cancel(&mut self, output: &mut Output) {
        for approval in self.approvals.drain(..) {
            let outcome = json!({ "outcome": { "outcome": "cancelled" } });
            output.say(&json!({ "jsonrpc": "2.0", "id": approval.request, "result": outcome }));
        }
        if self.waiting.take().is_some() {
            // It has not heard of the message yet.
            output.end = Some(TurnEnd::Done("cancelled".to_owned()));
        } else if let Some(session) = &self.session {
            let params = json!({ "sessionId": session });
            output.say(&json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": params }));
        }
    }

    fn said(&mut self, said: &Value, output: &mut Output) {
        let params = said.get("params").unwrap_or(&Value::Null);
        let method = said.get("method").and_then(Value::as_str);
        match (method, said.get("id")) {
            // An id is told again with the answer, and kept until then: it comes from the agent.
            (Some(_), Some(id)) if !is_request_id(id) => {
                let why = "the id of a request is a number or a short text";
                refuse(output, &Value::Null, INVALID_PARAMS, why);
            }
            (Some("session/update"), None) if self.phase != Phase::Loading => {
                tell(params.get("update").unwrap_or(&Value::Null), output);
            }
            (Some(_), None) => {}
            (Some("session/request_permission"), Some(id)) => self.wants(id, params, output),
            (Some(method), Some(id)) => {
                let why = format!("this client has no method '{}'", shorten(method));
                refuse(output, id, METHOD_NOT_FOUND, &why);
            }
            (None, Some(id)) => self.answered(id, said, output),
            (None, None) => output.event(EventKind::Data, said.clone()),
        }
    }

    /// An answer to a call of ours.
    fn answered(&mut self, id: &Value, said: &Value, output: &mut Output) {
        let Some(id) = id.as_str() else { return };
        let result = said.get("result").filter(|_| said.get("error").is_none());
        match (self.phase, id, result) {
            (Phase::Initializing, "initialize", Some(result)) => self.open(result, output),
            (Phase::Opening, "session/new", Some(result)) => {
                let session = result.get("sessionId").and_then(Value::as_str);
                match session.filter(|id| (1..=SESSION_MAX_BYTES).contains(&id.len())) {
                    Some(session) => {
                        self.session = Some(session.to_owned());
                        self.phase = Phase::Ready;
                        self.prompt(output);
                    }
                    None => self.fail(output, "protocol", "the agent gave no id of a session".to_owned()),
                }
            }
            (Phase::Loading, "session/load", Some(_)) => {
                self.phase = Phase::Ready;
                self.prompt(output);
            }
            // It knows the session no longer: a new one.
            (Phase::Loading, "session/load", None) => self.anew(output),
            (Phase::Initializing, "initialize", None) | (Phase::Opening, "session/new", None) => {
                let error = said.get("error").unwrap_or(&Value::Null);
                let code = if is_login(error) { "auth_required" } else { "agent_error" };
                self.fail(output, code, reason(error));
            }
            (Phase::Ready, id, result) if self.prompt.is_some_and(|number| id == prompt_id(number)) => {
                self.prompt = None;
                self.approvals.clear();
                output.end = Some(match result {
                    Some(result) => {
                        let reason = result.get("stopReason").and_then(Value::as_str).unwrap_or("end_turn");
                        TurnEnd::Done(shorten(reason))
                    }
                    None => {
                        let error = said.get("error").unwrap_or(&Value::Null);
                        let code = if is_login(error) { "auth_required" } else { "agent_error" };
                        TurnEnd::Failed(code.to_owned(), reason(error))
                    }
                });
            }
            // The answer to a call that was given up.
            _ => {}
        }
    }

    fn open(&mut self, result: &Value, output: &mut Output) {
        if result.get("protocolVersion").and_then(Value::as_u64) != Some(VERSION) {
            let why = format!("the agent does not speak version {VERSION} of the protocol");
            return self.fail(output, "protocol", why);
        }
        let loads = result.pointer("/agentCapabilities/loadSession").and_then(Value::as_bool) == Some(true);
        match self.session.clone().filter(|_| loads) {
            Some(session) => {
                self.phase = Phase::Loading;
                let params = json!({ "sessionId": session, "cwd": self.cwd, "mcpServers": [] });
                call(output, "session/load", "session/load", &params);
            }
            None => self.anew(output),
        }
    }

    fn anew(&mut self, output: &mut Output) {
        self.phase = Phase::Opening;
        self.session = None;
        call(output, "session/new", "session/new", &json!({ "cwd": self.cwd, "mcpServers": [] }));
    }

    /// The process is of no use.
    fn fail(&mut self, output: &mut Output, code: &str, why: String) {
        self.phase = Phase::Off;
        self.waiting = None;
        output.end = Some(TurnEnd::Failed(code.to_owned(), why));
    }

    fn wants(&mut self, request: &Value, params: &Value, output: &mut Output) {
        let listed = options(params.get("options").unwrap_or(&Value::Null), "optionId");
        let Some(options) = listed.filter(|_| self.approvals.len() < APPROVALS_MAX_COUNT) else {
            return refuse(output, request, INVALID_PARAMS, "options cannot be read, or too many wait");
        };
        self.asked += 1;
        let id = format!("p{}", self.asked);
        let (keys, shown): (Vec<String>, Vec<Value>) = options.into_iter().unzip();
        let tool = params.get("toolCall").unwrap_or(&Value::Null);
        let title = tool.get("title").and_then(Value::as_str).unwrap_or("may it?");
        let mut event = json!({ "id": id, "title": shorten(title), "options": shown });
        if tool.to_string().len() < super::AGENT_EVENT_MAX_BYTES / 2 {
            event["tool"] = tool.clone();
        }
        output.event(EventKind::Approval, event);
        self.approvals.push(Approval { id, options: keys, request: request.clone() });
    }
}

fn is_request_id(id: &Value) -> bool {
    id.is_number() || id.as_str().is_some_and(|id| id.len() <= APPROVAL_ID_MAX_BYTES)
}

fn prompt_id(number: u64) -> String {
    format!("message-{number}")
}

fn call(output: &mut Output, id: &str, method: &str, params: &Value) {
    output.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
}

fn refuse(output: &mut Output, id: &Value, code: i64, why: &str) {
    output.say(&json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": why } }));
}

/// Whether an error says that the agent's user has to log in.
fn is_login(error: &Value) -> bool {
    error.get("code").and_then(Value::as_i64) == Some(-32000)
}

fn reason(error: &Value) -> String {
    let text =
        error.get("message").and_then(Value::as_str).unwrap_or("the agent gave an error without a message");
    text.chars().take(1000).collect()
}

/// Makes events of a `session/update`.
fn tell(update: &Value, output: &mut Output) {
    let text = || update.pointer("/content/text").and_then(Value::as_str);
    match (update.get("sessionUpdate").and_then(Value::as_str), text()) {
        (Some("agent_message_chunk"), Some(text)) => output.text(EventKind::Text, text),
        (Some("agent_thought_chunk"), Some(text)) => output.text(EventKind::Thought, text),
        // The user's own message, which the session has already.
        (Some("user_message_chunk"), _) => {}
        (Some("tool_call" | "tool_call_update"), _) => output.event(EventKind::Tool, update.clone()),
        (Some("plan"), _) => output.event(EventKind::Plan, update.clone()),
        _ => output.event(EventKind::Data, update.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(output: &Output) -> Vec<Value> {
        output.lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn line(state: &mut AcpState, said: &Value) -> Output {
        state.step(Input::Line(&said.to_string()))
    }

    fn answer(state: &mut AcpState, id: &str, result: Value) -> Output {
        line(state, &json!({ "jsonrpc": "2.0", "id": id, "result": result }))
    }

    /// A process that takes prompts, and was given message 3.
    fn ready() -> AcpState {
        let mut state = AcpState::default();
        assert_eq!(sent(&state.step(Input::Begun("/root", "se")))[0]["method"], "initialize");
        assert_eq!(state.step(Input::Message(3, "hi")).lines, [""; 0], "it waits");
        let opened = answer(&mut state, "initialize", json!({ "protocolVersion": 1 }));
        assert_eq!(sent(&opened)[0]["params"]["cwd"], "/root");
        let prompted = answer(&mut state, "session/new", json!({ "sessionId": "s" }));
        assert_eq!(sent(&prompted)[0]["params"]["prompt"][0]["text"], "hi");
        state
    }

    #[test]
    fn a_turn() {
        let mut state = ready();
        let chunk =
            json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": "yo" } });
        let update = json!({ "jsonrpc": "2.0", "method": "session/update", "params": { "update": chunk } });
        assert_eq!(line(&mut state, &update).events[0].data, json!({ "text": "yo" }));
        let asks = json!({ "jsonrpc": "2.0", "id": 7, "method": "session/request_permission", "params": {
            "toolCall": { "title": "rm -r" }, "options": [{ "optionId": "y", "name": "Yes", "kind": "allow_once" }] } });
        assert_eq!(line(&mut state, &asks).events[0].data["title"], "rm -r");
        let id = state.approvals[0].id.clone();
        let answered = sent(&state.step(Input::Answer(&id, "y")));
        assert_eq!(
            answered[0],
            json!({ "jsonrpc": "2.0", "id": 7, "result": { "outcome": { "outcome": "selected", "optionId": "y" } } })
        );
        let fs = json!({ "jsonrpc": "2.0", "id": 8, "method": "fs/read_text_file", "params": {} });
        assert_eq!(sent(&line(&mut state, &fs))[0]["error"]["code"], METHOD_NOT_FOUND);
        assert_eq!(answer(&mut state, "message-2", json!({})).end, None, "of another turn");
        let done = answer(&mut state, "message-3", json!({ "stopReason": "end_turn" })).end;
        assert_eq!(done, Some(TurnEnd::Done("end_turn".into())));
        assert_eq!(answer(&mut state, "message-3", json!({})).end, None, "once");
    }

    #[test]
    fn cancelling_answers_what_waits() {
        let mut state = ready();
        let asks = json!({ "jsonrpc": "2.0", "id": "x", "method": "session/request_permission",
            "params": { "options": [{ "optionId": "y" }] } });
        line(&mut state, &asks);
        let sent = sent(&state.step(Input::Cancel));
        assert_eq!(sent[0]["result"]["outcome"]["outcome"], "cancelled");
        assert_eq!(sent[1]["method"], "session/cancel");
        let mut early = AcpState::default();
        early.step(Input::Begun("/", "se"));
        early.step(Input::Message(1, "x"));
        assert_eq!(early.step(Input::Cancel).end, Some(TurnEnd::Done("cancelled".into())));
    }

    #[test]
    fn a_new_process_loads_the_session_if_it_can() {
        let mut state = ready();
        state.ended();
        state.step(Input::Begun("/root", "se"));
        state.step(Input::Message(9, "again"));
        let can = json!({ "protocolVersion": 1, "agentCapabilities": { "loadSession": true } });
        assert_eq!(sent(&answer(&mut state, "initialize", can))[0]["method"], "session/load");
        let replay = json!({ "jsonrpc": "2.0", "method": "session/update", "params": { "update": { "sessionUpdate": "plan" } } });
        assert!(line(&mut state, &replay).events.is_empty(), "that was told before");
        let refused =
            json!({ "jsonrpc": "2.0", "id": "session/load", "error": { "code": 1, "message": "no" } });
        assert_eq!(sent(&line(&mut state, &refused))[0]["method"], "session/new");
        let prompted = answer(&mut state, "session/new", json!({ "sessionId": "t" }));
        assert_eq!(sent(&prompted)[0]["params"]["sessionId"], "t");
    }

    #[test]
    fn what_goes_wrong_is_told_apart() {
        let mut state = AcpState::default();
        state.step(Input::Begun("/", "se"));
        let other = answer(&mut state, "initialize", json!({ "protocolVersion": 2 })).end;
        assert!(matches!(other, Some(TurnEnd::Failed(code, _)) if code == "protocol"));
        state.step(Input::Begun("/", "se"));
        answer(&mut state, "initialize", json!({ "protocolVersion": 1 }));
        let login = json!({ "jsonrpc": "2.0", "id": "session/new", "error": { "code": -32000, "message": "log in" } });
        let failed = line(&mut state, &login).end;
        assert_eq!(failed, Some(TurnEnd::Failed("auth_required".into(), "log in".into())));
        assert_eq!(state.step(Input::Line("npm warn")).events[0].kind, EventKind::Log);
    }
}
