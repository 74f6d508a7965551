//! Agents that live in sandboxes: what one is, what its sessions say, and how its protocol is spoken.
//!
//! ```text
//! idle ──message──▶ working ──approval wanted──▶ waiting_for_approval ──answer──▶ working
//!   ▲                  └──done──▶ idle    └──error, crash──▶ failed ──message──▶ working
//! ```
//!
//! A *session* is one conversation with an agent. Everything that is said in it is an event with a number; the agent's
//! process comes and goes. An *adapter* is a state machine between the two: lines that the process wrote and wishes of
//! clients go in, events and lines for the process come out. It is pure, and its state is kept with the session.

mod acp;
mod http;
mod jsonl;
mod opencode;
mod request;
mod schedule;
mod spec;
mod spend;
mod status;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::shorten;
use crate::limits::AGENT_EVENT_MAX_BYTES;

pub use acp::AcpState;
pub use http::HttpState;
pub use jsonl::JsonlState;
pub use opencode::OpencodeState;
pub use request::HttpRequest;
pub use schedule::{ScheduleRun, ScheduleSpec, ScheduleStatus, When};
pub use spec::{Adapter, AgentSpec, Serves};
pub use spend::{ModelBudget, ModelUsage, marked, marked_env, unmarked};
pub use status::{SessionStatus, joined};

/// Where a session is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum SessionState {
    /// Nothing is under way.
    #[default]
    Idle,
    /// The agent works on a message.
    Working,
    /// The agent wants to know whether it may do something.
    WaitingForApproval,
    /// The last message came to no end: the last event of the kind `error` says why. Another message begins anew.
    Failed,
}

impl SessionState {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Working => "working",
            Self::WaitingForApproval => "waiting_for_approval",
            Self::Failed => "failed",
        }
    }
}

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum EventKind {
    /// A message was sent: `text`.
    Message,
    /// The session is in another state: `state`.
    State,
    /// The agent says something: `text`. Pieces follow each other.
    Text,
    /// The agent thinks: `text`.
    Thought,
    /// The agent uses a tool, or tells how that goes.
    Tool,
    /// What the agent plans to do.
    Plan,
    /// The agent wants to know whether it may do something: `id`, `title`, `options` with `id` and `name`.
    Approval,
    /// An option of that was chosen: `id`, `option`.
    Answer,
    /// Something else that the agent said, as it was.
    Data,
    /// A line that is not of the agent's protocol: `text`.
    Log,
    /// The agent is done with the message: `reason`, and `message`, its number.
    Done,
    /// The message came to no end: `code`, `text`, and `message`, its number.
    Error,
}

impl EventKind {
    /// Every kind.
    pub const ALL: [Self; 12] = [
        Self::Message,
        Self::State,
        Self::Text,
        Self::Thought,
        Self::Tool,
        Self::Plan,
        Self::Approval,
        Self::Answer,
        Self::Data,
        Self::Log,
        Self::Done,
        Self::Error,
    ];

    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::State => "state",
            Self::Text => "text",
            Self::Thought => "thought",
            Self::Tool => "tool",
            Self::Plan => "plan",
            Self::Approval => "approval",
            Self::Answer => "answer",
            Self::Data => "data",
            Self::Log => "log",
            Self::Done => "done",
            Self::Error => "error",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// An event that has no number yet.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// What it is about.
    pub kind: EventKind,
    /// What it says: an object.
    pub data: Value,
}

impl NewEvent {
    /// An event; what is too large for one is left out, and that is said.
    #[must_use]
    pub fn new(kind: EventKind, data: Value) -> Self {
        let data = if data.is_object() { data } else { json!({ "value": data }) };
        let fits = serde_json::to_string(&data).is_ok_and(|text| text.len() <= AGENT_EVENT_MAX_BYTES);
        Self { kind, data: if fits { data } else { json!({ "left_out": true }) } }
    }

    /// A text, in as many events as it needs.
    #[must_use]
    pub fn texts(kind: EventKind, text: &str) -> Vec<Self> {
        // JSON writes a character with at most six bytes for one of its own.
        const PIECE_BYTES: usize = AGENT_EVENT_MAX_BYTES / 8;
        let mut events = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let mut end = rest.len().min(PIECE_BYTES);
            while !rest.is_char_boundary(end) {
                end -= 1;
            }
            let (piece, after) = rest.split_at(end);
            // PostgreSQL has no NUL in its texts.
            events.push(Self::new(kind, json!({ "text": piece.replace('\0', "\u{fffd}") })));
            rest = after;
        }
        events
    }
}

/// What goes into an adapter.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// A process of the agent has begun, in this directory, for the session with this id.
    Begun(&'a str, &'a str),
    /// The process wrote a line; or one came in the answer that is listened to.
    Line(&'a str),
    /// What [`AdapterState::listens`] says is about to be asked.
    Dialing,
    /// That was answered with this status. What follows are lines.
    Listening(u16),
    /// The answer has ended; in good order, or because its connection broke.
    Silent(bool),
    /// The oldest request of the outbox was answered: with this status, and this body.
    Answered(u16, &'a str),
    /// A message was sent, with this number.
    Message(u64, &'a str),
    /// The work on the message is to end.
    Cancel,
    /// An option of an approval was chosen.
    Answer(&'a str, &'a str),
}

/// How the work on a message ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnEnd {
    /// The agent is done, for this reason.
    Done(String),
    /// It failed: a code, and a sentence.
    Failed(String, String),
}

/// What comes out of an adapter.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Output {
    /// What is to be told.
    pub events: Vec<NewEvent>,
    /// What is to be written to the process, without line breaks; requests to one that serves HTTP.
    pub lines: Vec<String>,
    /// What was to be written before is not wanted any more.
    pub anew: bool,
    /// The work on the message has ended.
    pub end: Option<TurnEnd>,
}

impl Output {
    fn say(&mut self, line: &Value) {
        self.lines.push(line.to_string());
    }

    fn event(&mut self, kind: EventKind, data: Value) {
        self.events.push(NewEvent::new(kind, data));
    }

    fn text(&mut self, kind: EventKind, text: &str) {
        self.events.extend(NewEvent::texts(kind, text));
    }
}

/// An adapter with its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "adapter", rename_all = "snake_case")]
pub enum AdapterState {
    /// JSON lines.
    Jsonl(JsonlState),
    /// The Agent Client Protocol.
    Acp(AcpState),
    /// OpenCode's server.
    Opencode(Box<OpencodeState>),
    /// JSON lines over HTTP.
    Http(HttpState),
}

impl AdapterState {
    /// How it begins.
    #[must_use]
    pub fn new(adapter: Adapter) -> Self {
        match adapter {
            Adapter::Jsonl => Self::Jsonl(JsonlState::default()),
            Adapter::Acp => Self::Acp(AcpState::default()),
            Adapter::Opencode => Self::Opencode(Box::default()),
            Adapter::Http => Self::Http(HttpState::default()),
        }
    }

    /// One step.
    pub fn step(&mut self, input: Input<'_>) -> Output {
        match self {
            Self::Jsonl(state) => state.step(input),
            Self::Acp(state) => state.step(input),
            Self::Opencode(state) => state.step(input),
            Self::Http(state) => state.step(input),
        }
    }

    /// Of an agent that serves HTTP, the request whose answer is to be listened to now.
    #[must_use]
    pub fn listens(&self) -> Option<HttpRequest> {
        match self {
            Self::Jsonl(_) | Self::Acp(_) => None,
            Self::Opencode(state) => state.listens(),
            Self::Http(state) => state.listens(),
        }
    }

    /// Approvals that wait for an answer: their ids, each with the ids of its options.
    #[must_use]
    pub fn approvals(&self) -> &[Approval] {
        match self {
            Self::Jsonl(state) => &state.approvals,
            Self::Acp(state) => &state.approvals,
            Self::Opencode(state) => &state.approvals,
            Self::Http(state) => &state.lines.approvals,
        }
    }

    /// Whether the process is of no use any more: another one has to take its place.
    #[must_use]
    pub const fn is_off(&self) -> bool {
        match self {
            Self::Jsonl(_) | Self::Opencode(_) | Self::Http(_) => false,
            Self::Acp(state) => state.is_off(),
        }
    }

    /// The process has ended, and with it whatever it waited for.
    pub fn ended(&mut self) {
        match self {
            Self::Jsonl(state) => state.approvals.clear(),
            Self::Acp(state) => state.ended(),
            Self::Opencode(state) => state.ended(),
            Self::Http(state) => state.ended(),
        }
    }
}

/// An approval that waits for an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Approval {
    /// Its id, unique in the session's turn.
    pub id: String,
    /// What can be chosen.
    pub options: Vec<String>,
    /// The id of the request in the agent's protocol.
    #[serde(default)]
    pub request: Value,
}

/// Most approvals that wait at once in one session.
const APPROVALS_MAX_COUNT: usize = 64;
/// Longest id of an approval or option, bytes.
const APPROVAL_ID_MAX_BYTES: usize = 128;

fn is_id(text: &str) -> bool {
    (1..=APPROVAL_ID_MAX_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Options as they are told, from what an agent listed: `id` may have another name.
fn options(listed: &Value, id: &str) -> Option<Vec<(String, Value)>> {
    let listed = listed.as_array().filter(|listed| (1..=APPROVALS_MAX_COUNT).contains(&listed.len()))?;
    listed
        .iter()
        .map(|option| {
            let key = option.get(id)?.as_str().filter(|key| is_id(key))?;
            let name = shorten(option.get("name").and_then(Value::as_str).unwrap_or(key));
            let kind = option.get("kind").and_then(Value::as_str).map(shorten);
            Some((key.to_owned(), json!({ "id": key, "name": name, "kind": kind })))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_bounded() {
        let long = "é".repeat(AGENT_EVENT_MAX_BYTES);
        let pieces = NewEvent::texts(EventKind::Text, &long);
        assert!(pieces.iter().all(|piece| piece.data.to_string().len() <= AGENT_EVENT_MAX_BYTES));
        let whole: String = pieces.iter().map(|piece| piece.data["text"].as_str().unwrap()).collect();
        assert_eq!(whole, long);
        let controls = NewEvent::texts(EventKind::Text, &"\u{1}".repeat(AGENT_EVENT_MAX_BYTES));
        assert!(controls.iter().all(|piece| piece.data.get("text").is_some()));
        assert_eq!(NewEvent::new(EventKind::Data, json!({ "x": long })).data, json!({ "left_out": true }));
        assert_eq!(NewEvent::new(EventKind::Data, json!(1)).data, json!({ "value": 1 }));
        for kind in EventKind::ALL {
            assert_eq!(EventKind::parse(kind.as_str()), Some(kind));
        }
    }
}
