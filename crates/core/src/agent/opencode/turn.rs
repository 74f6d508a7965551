//! One message that OpenCode works on: which parts of its answer were told.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{REASON_CHARS, is_id};
use crate::agent::{AGENT_EVENT_MAX_BYTES, EventKind, NewEvent, Output, TurnEnd};
use crate::error::shorten;

/// Parts of the answer that are remembered. Older ones were told; ids ascend.
const PARTS_MAX_COUNT: usize = 256;
/// Messages of the answer that are remembered.
const REPLIES_MAX_COUNT: usize = 256;
/// The key in a part's metadata by which the message is found again.
const MARK: &str = "atoll";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Turn {
    number: u64,
    /// Until it is known that OpenCode has it.
    text: String,
    /// It was sent.
    pub(super) given: bool,
    /// It was sent twice, as OpenCode had not heard of it.
    pub(super) again: bool,
    /// OpenCode's id of the message.
    pub(super) user: Option<String>,
    /// Ids of the messages that answer it.
    replies: BTreeSet<String>,
    told: BTreeMap<String, Told>,
    /// Parts up to this one are not remembered.
    floor: String,
    /// The error: a code, and a sentence.
    error: Option<(String, String)>,
    /// Why the model stopped, as it said last.
    finish: Option<String>,
    /// OpenCode did nothing when it was asked.
    pub(super) idle: bool,
    /// It was found idle without an answer before.
    doubted: bool,
    /// Nothing was heard since the last heartbeat.
    pub(super) quiet: bool,
}

/// How much of a part was told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Told {
    /// So many bytes of a text.
    Text(usize),
    /// So many bytes of a thought.
    Thought(usize),
    /// As a text or thought, and more may have been said since that is not in order: the whole is waited for.
    Gap(usize),
    /// A tool, in this state.
    Tool(String),
}

impl Turn {
    pub(super) fn new(number: u64, text: &str) -> Self {
        Self {
            number,
            text: text.to_owned(),
            given: false,
            again: false,
            user: None,
            replies: BTreeSet::new(),
            told: BTreeMap::new(),
            floor: String::new(),
            error: None,
            finish: None,
            idle: false,
            doubted: false,
            quiet: false,
        }
    }

    /// The body to post to give the message.
    pub(super) fn prompt(&self) -> Value {
        json!({ "parts": [{ "type": "text", "text": self.text, "metadata": { MARK: self.number } }] })
    }

    /// Recognizes the message by its mark.
    pub(super) fn recognize(&mut self, part: &Value) {
        let number = part.pointer(&format!("/metadata/{MARK}")).and_then(Value::as_u64);
        let id = part.get("messageID").and_then(Value::as_str);
        if self.user.is_none()
            && number == Some(self.number)
            && let Some(id) = id.filter(|id| is_id(id, "msg"))
        {
            self.user = Some(id.to_owned());
            self.text.clear();
        }
    }

    /// Takes note of a message: from now on, parts of one that answers ours are heard.
    pub(super) fn message(&mut self, info: &Value) {
        let text = |field: &str| info.get(field).and_then(Value::as_str);
        let Some(id) = text("id").filter(|id| is_id(id, "msg")) else { return };
        if self.user.is_none()
            || text("parentID") != self.user.as_deref()
            || text("role") != Some("assistant")
        {
            return;
        }
        self.replies.insert(id.to_owned());
        if self.replies.len() > REPLIES_MAX_COUNT {
            self.replies.pop_first();
        }
        if let Some(finish) = text("finish") {
            self.finish = Some(shorten(finish));
        }
        if let Some(error) = info.get("error").filter(|error| error.is_object()) {
            self.error(error);
        }
    }

    /// Keeps the error.
    pub(super) fn error(&mut self, error: &Value) {
        let name = error.get("name").and_then(Value::as_str).unwrap_or_default();
        let code = match name {
            "MessageAbortedError" => "cancelled",
            "ProviderAuthError" => "auth_required",
            "ContentFilterError" => "refused",
            "APIError" | "ContextOverflowError" | "MessageOutputLengthError" => "model_error",
            _ => "agent_error",
        };
        let said = error.pointer("/data/message").and_then(Value::as_str).unwrap_or(name);
        self.error = Some((code.to_owned(), said.chars().take(REASON_CHARS).collect()));
    }

    /// The stream was begun anew: pieces that come next may be told with the whole already, or not.
    pub(super) fn missed(&mut self) {
        for told in self.told.values_mut() {
            if let Told::Text(len) | Told::Thought(len) = told {
                *told = Told::Gap(*len);
            }
        }
    }

    /// A part as it is now; `looked`: as it was when we looked.
    pub(super) fn part(&mut self, part: &Value, looked: bool, output: &mut Output) {
        let text = |field: &str| part.get(field).and_then(Value::as_str);
        let flag = |field: &str| part.get(field).and_then(Value::as_bool) == Some(true);
        let Some(id) = text("id").filter(|id| is_id(id, "prt")) else { return };
        let answers = text("messageID").is_some_and(|message| self.replies.contains(message));
        if !answers || id <= self.floor.as_str() || flag("synthetic") || flag("ignored") {
            return;
        }
        let before = self.told.get(id);
        let now = match text("type") {
            Some(kind @ ("text" | "reasoning")) => {
                let said = text("text").unwrap_or_default();
                let len = match before {
                    Some(Told::Text(len) | Told::Thought(len) | Told::Gap(len)) => *len,
                    _ => 0,
                };
                let event = if kind == "text" { EventKind::Text } else { EventKind::Thought };
                let new = said.get(len..).unwrap_or_default();
                output.text(event, new);
                let len = len + new.len();
                match kind {
                    _ if looked => Told::Gap(len),
                    "text" => Told::Text(len),
                    _ => Told::Thought(len),
                }
            }
            Some("tool") => {
                let status = part.pointer("/state/status").and_then(Value::as_str).map(shorten);
                let now = Told::Tool(status.unwrap_or_default());
                if before != Some(&now) {
                    output.event(EventKind::Tool, tool(part));
                }
                now
            }
            _ => return,
        };
        self.told.insert(id.to_owned(), now);
        if self.told.len() > PARTS_MAX_COUNT
            && let Some((oldest, _)) = self.told.pop_first()
        {
            self.floor = oldest;
        }
    }

    /// A piece of a text that grows.
    pub(super) fn delta(&mut self, about: &Value, output: &mut Output) {
        let text = |field: &str| about.get(field).and_then(Value::as_str);
        let (Some("text"), Some(piece)) = (text("field"), text("delta")) else { return };
        match text("partID").and_then(|id| self.told.get_mut(id)) {
            Some(Told::Text(len)) => {
                *len += piece.len();
                output.text(EventKind::Text, piece);
            }
            Some(Told::Thought(len)) => {
                *len += piece.len();
                output.text(EventKind::Thought, piece);
            }
            _ => {}
        }
    }

    /// OpenCode has nothing to do: how the message ended, if that was this one.
    pub(super) fn is_done(&self) -> Option<TurnEnd> {
        self.user.as_ref()?;
        match &self.error {
            Some((code, _)) if code == "cancelled" => Some(TurnEnd::Done(code.clone())),
            Some((code, why)) => Some(TurnEnd::Failed(code.clone(), why.clone())),
            None if self.replies.is_empty() => None,
            None => Some(TurnEnd::Done(self.finish.clone().unwrap_or_else(|| "completed".to_owned()))),
        }
    }

    /// The same, when that was found by looking.
    pub(super) fn looked_at(&mut self) -> Option<TurnEnd> {
        if !self.idle {
            return None;
        }
        let silent = || TurnEnd::Failed("agent_error".to_owned(), "OpenCode gave no answer".to_owned());
        self.is_done().or_else(|| std::mem::replace(&mut self.doubted, true).then(silent))
    }
}

/// The event about a tool.
fn tool(part: &Value) -> Value {
    let state = |field: &str| part.pointer(&format!("/state/{field}")).cloned().unwrap_or_default();
    let mut told = json!({
        "toolCallId": part.get("callID"), "name": part.get("tool"), "status": state("status"),
    });
    for field in ["title", "input", "output", "error"] {
        let value = state(field);
        let fits = value.to_string().len() < AGENT_EVENT_MAX_BYTES / 4;
        match value {
            Value::Null => {}
            value if fits => told[field] = value,
            // A long output is told up to here; the whole is at OpenCode.
            Value::String(text) => {
                let piece = NewEvent::texts(EventKind::Tool, &text).into_iter().next();
                told[field] = piece.map_or(Value::Null, |piece| piece.data["text"].clone());
                told["cut"] = json!(true);
            }
            _ => told["cut"] = json!(true),
        }
    }
    told
}
