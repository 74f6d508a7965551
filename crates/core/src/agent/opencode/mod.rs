//! OpenCode's HTTP server, `opencode serve`, as its client: <https://opencode.ai/docs/server>.
//!
//! We listen to its event stream while it works on a message. For each session of ours we make one of OpenCode's, give
//! it the message with `prompt_async`, and hear its progress on the stream. The stream does not repeat events that we
//! missed: each time that it is begun in the middle of a message we ask for the session's messages, and tell what was
//! not told. So a message carries its number, by which it is found there and never given twice.

#[cfg(test)]
mod tests;
mod turn;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::request::{HttpRequest, in_query};
use super::{APPROVALS_MAX_COUNT, Approval, EventKind, Input, Output, TurnEnd};
use crate::error::shorten;
use turn::Turn;

/// Longest id that OpenCode gives, bytes.
const ID_MAX_BYTES: usize = 64;
/// Sessions that a session began for parts of its work, of which permissions are heard.
const CHILDREN_MAX_COUNT: usize = 64;
/// Messages that are asked for when the stream was begun anew.
const MESSAGES_ASKED_COUNT: u32 = 200;
/// Characters of a sentence that OpenCode gives for an error.
const REASON_CHARS: usize = 1000;
/// Longest answer to a question that can be chosen, bytes.
const LABEL_MAX_BYTES: usize = 256;

/// A request to OpenCode, in the order of the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Call {
    /// A new session.
    Create,
    /// Whether it knows the session.
    Know,
    /// To work on the message.
    Prompt,
    /// The session's messages.
    Messages,
    /// The permissions that wait for an answer.
    Permissions,
    /// Which sessions are at work.
    Status,
    /// An answer, or the wish to end the work.
    Tell,
}

/// State of the adapter.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OpencodeState {
    /// Where the agent works.
    cwd: String,
    /// OpenCode's id of the session.
    session: Option<String>,
    /// The stream is listened to, and the session known.
    ready: bool,
    /// Requests that are not answered yet.
    calls: Vec<Call>,
    /// Those of them that must be sent again when the stream is begun anew.
    tells: Vec<String>,
    children: Vec<String>,
    turn: Option<Turn>,
    pub(super) approvals: Vec<Approval>,
}

impl OpencodeState {
    /// The request for the event stream, while a message is worked on.
    pub(super) fn listens(&self) -> Option<HttpRequest> {
        self.turn.as_ref().map(|_turn| HttpRequest::get(self.path("/event")))
    }

    pub(super) fn step(&mut self, input: Input<'_>) -> Output {
        let mut output = Output::default();
        match input {
            Input::Begun(cwd, _) => cwd.clone_into(&mut self.cwd),
            Input::Message(number, text) => {
                self.turn = Some(Turn::new(number, text));
                self.go(&mut output);
            }
            Input::Dialing => self.dialing(&mut output),
            Input::Listening(200) => match self.session.clone() {
                Some(session) => self.get(&mut output, Call::Know, &format!("/session/{session}")),
                None => self.create(&mut output),
            },
            Input::Listening(status) => {
                let why = format!("OpenCode's events cannot be listened to: it answers {status}");
                self.fail(&mut output, "protocol", why);
            }
            Input::Line(line) => match serde_json::from_str::<Value>(line) {
                Ok(event) => self.heard(&event, &mut output),
                Err(_) => output.text(EventKind::Log, line),
            },
            Input::Silent(_) => self.ready = false,
            Input::Answered(status, body) => self.answered(status, body, &mut output),
            Input::Cancel => self.cancel(&mut output),
            Input::Answer(id, option) => self.answer(id, option, &mut output),
        }
        if output.end.is_some() {
            self.ended();
        }
        output
    }

    /// Nothing is under way any more. OpenCode keeps the session.
    pub(super) fn ended(&mut self) {
        (self.turn, self.ready) = (None, false);
        self.calls.clear();
        self.tells.clear();
        self.approvals.clear();
    }

    // === what is asked ===

    fn path(&self, path: &str) -> String {
        format!("{path}?directory={}", in_query(&self.cwd))
    }

    fn get(&mut self, output: &mut Output, call: Call, path: &str) {
        self.calls.push(call);
        output.lines.push(HttpRequest::get(self.path(path)).to_line());
    }

    fn post(&mut self, output: &mut Output, call: Call, path: &str, body: Value) {
        let line = HttpRequest::post(self.path(path), body).to_line();
        if call == Call::Tell {
            self.tells.push(line.clone());
        }
        self.calls.push(call);
        output.lines.push(line);
    }

    fn create(&mut self, output: &mut Output) {
        (self.session, self.ready) = (None, false);
        self.children.clear();
        self.post(output, Call::Create, "/session", json!({}));
    }

    /// The stream begins anew: requests that still matter are sent again.
    fn dialing(&mut self, output: &mut Output) {
        self.ready = false;
        output.anew = true;
        output.lines.clone_from(&self.tells);
        self.calls = vec![Call::Tell; self.tells.len()];
    }

    /// Gives the message, or asks how far OpenCode is with it.
    fn go(&mut self, output: &mut Output) {
        let (true, Some(session), Some(turn)) = (self.ready, self.session.clone(), &mut self.turn) else {
            return;
        };
        if std::mem::replace(&mut turn.given, true) {
            turn.missed();
            self.look(output);
            self.get(output, Call::Permissions, "/permission");
        } else {
            let body = turn.prompt();
            self.post(output, Call::Prompt, &format!("/session/{session}/prompt_async"), body);
        }
    }

    /// Asks for the session's messages, and whether the work goes on.
    fn look(&mut self, output: &mut Output) {
        let Some(session) = self.session.clone() else { return };
        if self.calls.contains(&Call::Messages) {
            return;
        }
        // The status first: when it is idle, the messages that follow are complete.
        self.get(output, Call::Status, "/session/status");
        self.calls.push(Call::Messages);
        let path = self.path(&format!("/session/{session}/message"));
        output.lines.push(HttpRequest::get(format!("{path}&limit={MESSAGES_ASKED_COUNT}")).to_line());
    }

    fn cancel(&mut self, output: &mut Output) {
        self.approvals.clear();
        match (&self.turn, self.session.clone()) {
            (Some(turn), Some(session)) if turn.given => {
                self.post(output, Call::Tell, &format!("/session/{session}/abort"), json!({}));
            }
            (Some(_), _) => output.end = Some(TurnEnd::Done("cancelled".to_owned())),
            (None, _) => {}
        }
    }

    fn answer(&mut self, id: &str, option: &str, output: &mut Output) {
        let Some(at) = self.approvals.iter().position(|approval| approval.id == id) else { return };
        let approval = self.approvals.remove(at);
        // The labels of a question, in the order of its options.
        if let Some(labels) = approval.request.as_array() {
            let chosen = approval.options.iter().zip(labels).find(|(key, _)| *key == option);
            let label = chosen.map_or(&Value::Null, |(_, label)| label);
            self.post(output, Call::Tell, &format!("/question/{id}/reply"), json!({ "answers": [[label]] }));
        } else {
            self.post(output, Call::Tell, &format!("/permission/{id}/reply"), json!({ "reply": option }));
        }
    }

    /// The message comes to no end.
    fn fail(&mut self, output: &mut Output, code: &str, why: String) {
        output.end = Some(TurnEnd::Failed(code.to_owned(), why));
    }

    // === what is answered ===

    fn answered(&mut self, status: u16, body: &str, output: &mut Output) {
        if self.calls.is_empty() {
            return;
        }
        let call = self.calls.remove(0);
        let good = (200..300).contains(&status);
        let said: Value = serde_json::from_str(body).unwrap_or_default();
        match call {
            Call::Create => {
                match said.get("id").and_then(Value::as_str).filter(|id| good && is_id(id, "ses")) {
                    Some(id) => self.opened(id.to_owned(), output),
                    None if good => {
                        self.fail(output, "protocol", "OpenCode gave no id of a session".to_owned());
                    }
                    None => self.fail(output, "agent_error", refused(status, &said)),
                }
            }
            Call::Know if good => {
                self.ready = true;
                self.go(output);
            }
            // It knows the session no longer: another one begins.
            Call::Know => match &self.turn {
                Some(turn) if turn.given => {
                    let why = "OpenCode does not know the session any more".to_owned();
                    self.session = None;
                    self.fail(output, "agent_error", why);
                }
                _ => self.create(output),
            },
            Call::Prompt if good => {}
            Call::Prompt => self.fail(output, "agent_error", refused(status, &said)),
            Call::Status if good => {
                let session = self.session.as_deref().unwrap_or_default();
                let now = said.get(session).and_then(|status| status.get("type")?.as_str());
                if let Some(turn) = &mut self.turn {
                    turn.idle = matches!(now, None | Some("idle"));
                }
            }
            Call::Messages if good => self.messages(&said, output),
            Call::Permissions if good => {
                let asked = said.as_array().map(Vec::as_slice).unwrap_or_default();
                let waits = |id: &str| asked.iter().any(|one| one.get("id").is_some_and(|one| one == id));
                self.approvals.retain(|approval| approval.request.is_array() || waits(&approval.id));
                asked.iter().for_each(|one| self.wants(one, output));
            }
            Call::Status | Call::Messages | Call::Permissions => {
                let why = format!("what was said meanwhile cannot be asked for: {}", refused(status, &said));
                output.text(EventKind::Log, &why);
            }
            // An error is no failure: another client may have answered already, and an agent that does
            // not work has nothing to abort.
            Call::Tell => drop(self.tells.remove(0)),
        }
    }

    fn opened(&mut self, id: String, output: &mut Output) {
        (self.session, self.ready) = (Some(id), true);
        self.go(output);
    }

    /// The session's messages, as they are now.
    fn messages(&mut self, said: &Value, output: &mut Output) {
        let Some(turn) = &mut self.turn else { return };
        let said = said.as_array().map(Vec::as_slice).unwrap_or_default();
        let parts =
            |message: &Value| message.get("parts").and_then(Value::as_array).cloned().unwrap_or_default();
        for message in said {
            parts(message).iter().for_each(|part| turn.recognize(part));
        }
        if turn.user.is_none() {
            // It never heard of the message, or not yet: that is sent once, and its stream listened to.
            if std::mem::replace(&mut turn.idle, false) && !std::mem::replace(&mut turn.again, true) {
                let (session, body) = (self.session.clone().unwrap_or_default(), turn.prompt());
                self.post(output, Call::Prompt, &format!("/session/{session}/prompt_async"), body);
            }
            return;
        }
        for message in said {
            turn.message(message.get("info").unwrap_or(&Value::Null));
            parts(message).iter().for_each(|part| turn.part(part, true, output));
        }
        output.end = turn.looked_at();
    }

    // === what is heard ===

    fn heard(&mut self, event: &Value, output: &mut Output) {
        let none = Value::Null;
        let about = event.get("properties").unwrap_or(&none);
        let session = about.get("sessionID").and_then(Value::as_str);
        let ours = session.is_some() && session == self.session.as_deref();
        let kind = event.get("type").and_then(Value::as_str).unwrap_or_default();
        if ours && let Some(turn) = &mut self.turn {
            turn.quiet = false;
        }
        match (kind, &mut self.turn) {
            ("message.updated", Some(turn)) if ours => turn.message(about.get("info").unwrap_or(&none)),
            ("message.part.updated", Some(turn)) if ours => {
                let part = about.get("part").unwrap_or(&none);
                turn.recognize(part);
                turn.part(part, false, output);
            }
            ("message.part.delta", Some(turn)) if ours => turn.delta(about, output),
            ("session.error", Some(turn)) if ours => turn.error(about.get("error").unwrap_or(&none)),
            ("session.idle", Some(turn)) if ours => output.end = turn.is_done(),
            ("session.status", Some(_)) if ours => {
                let status = about.get("status").unwrap_or(&none);
                if status.get("type").is_some_and(|kind| kind == "retry") {
                    output.event(EventKind::Data, status.clone());
                }
            }
            ("todo.updated", Some(_)) if ours => {
                output.event(EventKind::Plan, json!({ "entries": about.get("todos") }));
            }
            ("session.created", _) => self.born(about.get("info").unwrap_or(&none)),
            ("permission.asked", Some(_)) => self.wants(about, output),
            ("question.asked", Some(_)) => self.asks(about, output),
            ("permission.replied" | "question.replied" | "question.rejected", Some(_)) => {
                self.replied(about, output);
            }
            // Every few seconds: when no other event of ours came since the last one, we ask for the messages, in case
            // an event was lost.
            ("server.heartbeat", Some(turn)) if turn.given && self.ready && self.approvals.is_empty() => {
                let was_quiet = std::mem::replace(&mut turn.quiet, true);
                if was_quiet {
                    self.look(output);
                }
            }
            _ => {}
        }
    }

    /// A session that ours, or one of its own, began.
    fn born(&mut self, info: &Value) {
        let text = |field: &str| info.get(field).and_then(Value::as_str);
        if let (Some(id), Some(parent)) = (text("id"), text("parentID"))
            && self.is_ours(parent)
            && is_id(id, "ses")
            && self.children.len() < CHILDREN_MAX_COUNT
        {
            self.children.push(id.to_owned());
        }
    }

    fn is_ours(&self, session: &str) -> bool {
        self.session.as_deref() == Some(session) || self.children.iter().any(|child| child == session)
    }

    /// Whether a question of OpenCode's can wait for an answer; gives its id.
    fn admits<'a>(&self, asked: &'a Value, prefix: &str) -> Option<&'a str> {
        let session = asked.get("sessionID")?.as_str()?;
        let id = asked.get("id")?.as_str().filter(|id| is_id(id, prefix))?;
        let fits = self.is_ours(session)
            && self.approvals.len() < APPROVALS_MAX_COUNT
            && !self.approvals.iter().any(|approval| approval.id == id);
        fits.then_some(id)
    }

    fn wants(&mut self, asked: &Value, output: &mut Output) {
        let Some(id) = self.admits(asked, "per") else { return };
        let what = asked.get("permission").and_then(Value::as_str).unwrap_or("may it?");
        let patterns = asked.get("patterns").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let patterns: Vec<&str> = patterns.iter().filter_map(Value::as_str).take(8).collect();
        let title = shorten(&format!("{what}: {}", patterns.join(", ")));
        let options = json!([
            { "id": "once", "name": "Allow once", "kind": "allow_once" },
            { "id": "always", "name": "Always allow", "kind": "allow_always" },
            { "id": "reject", "name": "Reject", "kind": "reject_once" },
        ]);
        let mut event = json!({ "id": id, "title": title, "options": options });
        if asked.to_string().len() < super::AGENT_EVENT_MAX_BYTES / 2 {
            event["tool"] =
                json!({ "toolCallId": asked.pointer("/tool/callID"), "about": asked.get("metadata") });
        }
        output.event(EventKind::Approval, event);
        let options = ["once", "always", "reject"].map(str::to_owned).to_vec();
        self.approvals.push(Approval { id: id.to_owned(), options, request: Value::Null });
    }

    /// A question with a few answers is an approval, too. Other questions cannot be answered here and are rejected.
    fn asks(&mut self, asked: &Value, output: &mut Output) {
        let Some(id) = self.admits(asked, "que").filter(|_| self.tells.len() < APPROVALS_MAX_COUNT) else {
            return;
        };
        let questions =
            asked.get("questions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let labels: Option<Vec<String>> = match questions {
            [one] => one.get("options").and_then(Value::as_array).map(|options| {
                let labels = options.iter().filter_map(|option| option.get("label")?.as_str());
                labels.filter(|label| label.len() <= LABEL_MAX_BYTES).map(str::to_owned).collect()
            }),
            _ => None,
        };
        let Some(labels) = labels.filter(|labels| (1..=APPROVALS_MAX_COUNT).contains(&labels.len())) else {
            output.event(EventKind::Data, asked.clone());
            return self.post(output, Call::Tell, &format!("/question/{id}/reject"), json!({}));
        };
        let keys: Vec<String> = (1..=labels.len()).map(|number| number.to_string()).collect();
        let named = |(key, label): (&String, &String)| json!({ "id": key, "name": label });
        let shown: Vec<Value> = keys.iter().zip(&labels).map(named).collect();
        let title = questions.first().and_then(|one| one.get("question")?.as_str()).unwrap_or("which?");
        output.event(EventKind::Approval, json!({ "id": id, "title": shorten(title), "options": shown }));
        self.approvals.push(Approval { id: id.to_owned(), options: keys, request: json!(labels) });
    }

    /// A user answered, here or at OpenCode's own interface.
    fn replied(&mut self, about: &Value, output: &mut Output) {
        let id = about.get("requestID").and_then(Value::as_str).unwrap_or_default();
        let Some(at) = self.approvals.iter().position(|approval| approval.id == id) else { return };
        self.approvals.remove(at);
        let option = about.get("reply").and_then(Value::as_str).unwrap_or("elsewhere");
        output.event(EventKind::Answer, json!({ "id": id, "option": shorten(option) }));
    }
}

/// Whether a text is an id of OpenCode's: it becomes part of a path.
fn is_id(text: &str, prefix: &str) -> bool {
    let rest = text.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('_'));
    text.len() <= ID_MAX_BYTES
        && rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// The reason that OpenCode gives when it refuses a request.
fn refused(status: u16, said: &Value) -> String {
    let why = [said.pointer("/data/message"), said.get("message"), said.get("_tag")];
    let why = why.into_iter().flatten().find_map(Value::as_str).unwrap_or("it says no more");
    let why: String = why.chars().take(REASON_CHARS).collect();
    format!("OpenCode answers {status}: {why}")
}
