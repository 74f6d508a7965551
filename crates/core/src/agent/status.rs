//! What is kept of a session beside its events.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Adapter, AdapterState, EventKind, ModelUsage, NewEvent, Output, SessionState, TurnEnd};

/// Lines that wait to be read by a process. Each is bounded; they are kept in memory and in the database.
const OUTBOX_MAX_COUNT: usize = 1024;

/// What is kept of a session beside its events. Written together with them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Where it is, as the last event of the kind `state` says.
    pub state: SessionState,
    /// The conversation with the process.
    pub adapter: AdapterState,
    /// Processes so far.
    #[serde(default)]
    pub run: u64,
    /// The last of them has begun, and was not seen to end.
    #[serde(default)]
    pub live: bool,
    /// It was given a message.
    #[serde(default)]
    pub given: bool,
    /// Another one is to take its place when it has nothing to do: its program is another one now.
    #[serde(default)]
    pub renew: bool,
    /// The exec of the service that it is with, when the agent is a service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<String>,
    /// Up to where its output was read.
    #[serde(default)]
    pub offset: u64,
    /// Number of the last message that was taken up.
    #[serde(default)]
    pub delivered: u64,
    /// Number of the message that is worked on.
    #[serde(default)]
    pub turn: Option<u64>,
    /// A client asked to cancel that message.
    #[serde(default)]
    pub cancelling: bool,
    /// The last message came to no end.
    #[serde(default)]
    pub failed: bool,
    /// Lines that are to be written to the process.
    #[serde(default)]
    pub outbox: Vec<String>,
    /// Its use of models.
    #[serde(default)]
    pub usage: ModelUsage,
    /// A request to a model was refused while the message was worked on: why.
    #[serde(default)]
    pub over_budget: Option<String>,
}

impl SessionStatus {
    /// A session in which nothing was said.
    #[must_use]
    pub fn new(adapter: Adapter) -> Self {
        Self {
            state: SessionState::Idle,
            adapter: AdapterState::new(adapter),
            run: 0,
            live: false,
            given: false,
            renew: false,
            serving: None,
            offset: 0,
            delivered: 0,
            turn: None,
            cancelling: false,
            failed: false,
            outbox: Vec::new(),
            usage: ModelUsage::default(),
            over_budget: None,
        }
    }

    /// Takes the output of the adapter; gives the events to tell.
    pub fn take(&mut self, output: Output) -> Vec<NewEvent> {
        let mut events = output.events;
        if output.anew {
            self.outbox.clear();
        }
        self.outbox.extend(output.lines);
        if let Some(end) = output.end {
            events.extend(self.end_turn(end));
        }
        events
    }

    /// Whether more lines wait for the process than a process that reads its input ever leaves: it writes requests and
    /// does not read the answers.
    #[must_use]
    pub fn is_flooded(&self) -> bool {
        self.outbox.len() > OUTBOX_MAX_COUNT
    }

    /// Begins with a message.
    pub fn begin_turn(&mut self, number: u64) {
        (self.delivered, self.turn) = (number, Some(number));
        (self.failed, self.cancelling, self.given) = (false, false, true);
        self.over_budget = None;
    }

    /// Ends the work on the message, if there is any; gives the event to tell.
    pub fn end_turn(&mut self, end: TurnEnd) -> Option<NewEvent> {
        let message = self.turn.take()?;
        let cancelled = std::mem::take(&mut self.cancelling);
        // Also when the agent reports success: work that it did without a model is not the work that it was asked for.
        let end = match self.over_budget.take() {
            Some(why) => TurnEnd::Failed("budget".to_owned(), why),
            None => end,
        };
        Some(match end {
            TurnEnd::Failed(..) if cancelled => done(message, "cancelled"),
            TurnEnd::Done(reason) => done(message, &reason),
            TurnEnd::Failed(code, text) => {
                self.failed = true;
                NewEvent::new(EventKind::Error, json!({ "code": code, "text": text, "message": message }))
            }
        })
    }

    /// The process has ended.
    pub fn end_run(&mut self) {
        self.live = false;
        self.outbox.clear();
        self.adapter.ended();
    }

    /// The event to tell when the session is in another state than the one that was told last.
    pub fn settle(&mut self) -> Option<NewEvent> {
        let now = match (self.turn, self.adapter.approvals()) {
            (Some(_), []) => SessionState::Working,
            (Some(_), _) => SessionState::WaitingForApproval,
            (None, _) if self.failed => SessionState::Failed,
            (None, _) => SessionState::Idle,
        };
        let before = std::mem::replace(&mut self.state, now);
        (before != now).then(|| NewEvent::new(EventKind::State, json!({ "state": now.as_str() })))
    }
}

fn done(message: u64, reason: &str) -> NewEvent {
    NewEvent::new(EventKind::Done, json!({ "reason": reason, "message": message }))
}

/// Joins texts of one kind that follow each other, into as few events as take them.
#[must_use]
pub fn joined(events: Vec<NewEvent>) -> Vec<NewEvent> {
    let mut all = Vec::with_capacity(events.len());
    let mut texts: Option<(EventKind, String)> = None;
    for event in events {
        let text = event.data.get("text").and_then(Value::as_str);
        let (Some(between), Some(text)) = (between(event.kind), text) else {
            flush(texts.take(), &mut all);
            all.push(event);
            continue;
        };
        match &mut texts {
            Some((kind, before)) if *kind == event.kind => before.extend([between, text]),
            _ => flush(texts.replace((event.kind, text.to_owned())), &mut all),
        }
    }
    flush(texts, &mut all);
    all
}

fn flush(texts: Option<(EventKind, String)>, all: &mut Vec<NewEvent>) {
    if let Some((kind, text)) = texts {
        all.extend(NewEvent::texts(kind, &text));
    }
}

/// The separator between two texts of a kind, if they can be joined.
const fn between(kind: EventKind) -> Option<&'static str> {
    match kind {
        EventKind::Text | EventKind::Thought => Some(""),
        EventKind::Log => Some("\n"),
        EventKind::Message
        | EventKind::State
        | EventKind::Tool
        | EventKind::Plan
        | EventKind::Approval
        | EventKind::Answer
        | EventKind::Data
        | EventKind::Done
        | EventKind::Error => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Input;

    fn told(status: &mut SessionStatus) -> Option<String> {
        status.settle().map(|event| event.data["state"].as_str().unwrap().to_owned())
    }

    #[test]
    fn a_turn_is_told_in_states() {
        let mut status = SessionStatus::new(Adapter::Jsonl);
        assert_eq!(told(&mut status), None);
        status.begin_turn(1);
        assert_eq!(told(&mut status).as_deref(), Some("working"));
        let asked = status.adapter.step(Input::Line(r#"{"type":"approval","id":"a"}"#));
        status.take(asked);
        assert_eq!(told(&mut status).as_deref(), Some("waiting_for_approval"));
        status.end_run();
        let failed = status.end_turn(TurnEnd::Failed("agent_crashed".into(), "x".into())).unwrap();
        assert_eq!(failed.data, json!({ "code": "agent_crashed", "text": "x", "message": 1 }));
        assert_eq!(told(&mut status).as_deref(), Some("failed"));
        assert_eq!(status.end_turn(TurnEnd::Done("x".into())), None, "a turn ends once");
        status.begin_turn(5);
        status.cancelling = true;
        let cancelled = status.end_turn(TurnEnd::Failed("agent_crashed".into(), "x".into())).unwrap();
        assert_eq!(cancelled.data, json!({ "reason": "cancelled", "message": 5 }));
        assert_eq!(told(&mut status).as_deref(), Some("idle"));
        status.begin_turn(7);
        status.over_budget = Some("used up".into());
        let failed = status.end_turn(TurnEnd::Done("end_turn".into())).unwrap();
        assert_eq!(failed.data, json!({ "code": "budget", "text": "used up", "message": 7 }));
        assert_eq!(status.over_budget, None);
        let text = serde_json::to_string(&status).unwrap();
        assert_eq!(serde_json::from_str::<SessionStatus>(&text).unwrap(), status);
    }

    #[test]
    fn texts_are_joined() {
        let text = |kind, text: &str| NewEvent::texts(kind, text).remove(0);
        let (said, log) = (EventKind::Text, EventKind::Log);
        let events = vec![text(said, "a"), text(said, "b"), text(log, "c"), text(log, "d"), text(said, "e")];
        let texts: Vec<String> =
            joined(events).iter().map(|event| event.data["text"].as_str().unwrap().to_owned()).collect();
        assert_eq!(texts, ["ab", "c\nd", "e"]);
        let done = NewEvent::new(EventKind::Done, json!({ "reason": "x", "text": "y" }));
        assert_eq!(joined(vec![done.clone(), done.clone()]), [done.clone(), done]);
    }

    #[test]
    fn many_texts_are_few_events_and_nothing_is_lost() {
        let one = NewEvent::texts(EventKind::Text, "é").remove(0);
        let events = joined(vec![one; 200_000]);
        assert!(events.len() < 200, "{}", events.len());
        let whole: String = events.iter().map(|event| event.data["text"].as_str().unwrap()).collect();
        assert_eq!(whole, "é".repeat(200_000));
    }
}
