//! JSON lines: the smallest protocol that an agent can speak. Ours.
//!
//! In: `message` (`id`, `text`), `cancel`, `answer` (`id`, `option`). Out: `text` and `thought` (`text`), `tool`, `plan`, `approval`
//! (`id`, `title`, `options`), `done` (`reason`), `error` (`code`, `text`); everything else is passed on. A line that is
//! no JSON object is a line of a log.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{APPROVALS_MAX_COUNT, Approval, EventKind, Input, Output, TurnEnd, is_id, options};
use crate::error::shorten;

/// State of the adapter.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JsonlState {
    /// Approvals that wait for an answer.
    #[serde(default)]
    pub(super) approvals: Vec<Approval>,
}

impl JsonlState {
    pub(super) fn step(&mut self, input: Input<'_>) -> Output {
        let mut output = Output::default();
        match input {
            Input::Begun(..)
            | Input::Dialing
            | Input::Listening(_)
            | Input::Silent(_)
            | Input::Answered(..) => {}
            Input::Message(number, text) => {
                output.say(&json!({ "type": "message", "id": number, "text": text }));
            }
            Input::Cancel => {
                self.approvals.clear();
                output.say(&json!({ "type": "cancel" }));
            }
            Input::Answer(id, option) => {
                self.approvals.retain(|approval| approval.id != id);
                output.say(&json!({ "type": "answer", "id": id, "option": option }));
            }
            Input::Line(line) => match serde_json::from_str::<Value>(line) {
                Ok(said) if said.is_object() => self.said(said, &mut output),
                Ok(_) | Err(_) => output.text(EventKind::Log, line),
            },
        }
        output
    }

    fn said(&mut self, said: Value, output: &mut Output) {
        let text = |field: &str| said.get(field).and_then(Value::as_str);
        match text("type") {
            Some("text") => output.text(EventKind::Text, text("text").unwrap_or_default()),
            Some("thought") => output.text(EventKind::Thought, text("text").unwrap_or_default()),
            Some("tool") => output.event(EventKind::Tool, without_type(said)),
            Some("plan") => output.event(EventKind::Plan, without_type(said)),
            Some("approval") => self.wants(&said, output),
            Some("done") => {
                self.approvals.clear();
                output.end = Some(TurnEnd::Done(shorten(text("reason").unwrap_or("completed"))));
            }
            Some("error") => {
                self.approvals.clear();
                let code = shorten(text("code").unwrap_or("agent_error"));
                let why: String =
                    text("text").unwrap_or("the agent says that it failed").chars().take(1000).collect();
                output.end = Some(TurnEnd::Failed(code, why));
            }
            Some(_) | None => output.event(EventKind::Data, said),
        }
    }

    fn wants(&mut self, said: &Value, output: &mut Output) {
        let id = said.get("id").and_then(Value::as_str).filter(|id| is_id(id));
        let listed = said.get("options").map_or_else(
            || options(&json!([{ "id": "allow", "name": "Allow" }, { "id": "deny", "name": "Deny" }]), "id"),
            |listed| options(listed, "id"),
        );
        let (Some(id), Some(options)) = (id, listed) else {
            return output.event(EventKind::Data, said.clone());
        };
        if self.approvals.len() >= APPROVALS_MAX_COUNT || self.approvals.iter().any(|one| one.id == id) {
            return output.event(EventKind::Data, said.clone());
        }
        let (keys, shown): (Vec<String>, Vec<Value>) = options.into_iter().unzip();
        let title = said.get("title").and_then(Value::as_str).unwrap_or(id);
        output.event(EventKind::Approval, json!({ "id": id, "title": shorten(title), "options": shown }));
        self.approvals.push(Approval { id: id.to_owned(), options: keys, request: Value::Null });
    }
}

fn without_type(mut said: Value) -> Value {
    if let Some(fields) = said.as_object_mut() {
        fields.remove("type");
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::NewEvent;

    fn line(state: &mut JsonlState, line: &str) -> Output {
        state.step(Input::Line(line))
    }

    #[test]
    fn what_an_agent_says_becomes_events() {
        let mut state = JsonlState::default();
        let event = |kind, data| vec![NewEvent { kind, data }];
        let said = line(&mut state, r#"{"type":"text","text":"hi"}"#);
        assert_eq!(said.events, event(EventKind::Text, json!({ "text": "hi" })));
        let said = line(&mut state, r#"{"type":"tool","name":"bash"}"#);
        assert_eq!(said.events, event(EventKind::Tool, json!({ "name": "bash" })));
        let said = line(&mut state, "Loading…");
        assert_eq!(said.events, event(EventKind::Log, json!({ "text": "Loading…" })));
        let said = line(&mut state, r#"{"type":"usage","tokens":3}"#);
        assert_eq!(said.events, event(EventKind::Data, json!({ "type": "usage", "tokens": 3 })));
        assert_eq!(line(&mut state, r#"{"type":"done"}"#).end, Some(TurnEnd::Done("completed".into())));
        let failed = line(&mut state, r#"{"type":"error","code":"refused","text":"no"}"#).end;
        assert_eq!(failed, Some(TurnEnd::Failed("refused".into(), "no".into())));
    }

    #[test]
    fn approvals_wait_for_one_answer() {
        let mut state = JsonlState::default();
        let asked = line(
            &mut state,
            r#"{"type":"approval","id":"a","title":"rm?","options":[{"id":"y"},{"id":"n"}]}"#,
        );
        assert_eq!(asked.events[0].kind, EventKind::Approval);
        assert_eq!(state.approvals[0].options, ["y", "n"]);
        // A repeated approval, and one that cannot be answered, is only passed on.
        for bad in [
            r#"{"type":"approval","id":"a"}"#,
            r#"{"type":"approval"}"#,
            r#"{"type":"approval","id":"b","options":[]}"#,
        ] {
            assert_eq!(line(&mut state, bad).events[0].kind, EventKind::Data, "{bad}");
        }
        let answered = state.step(Input::Answer("a", "y"));
        assert_eq!(answered.lines, [r#"{"id":"a","option":"y","type":"answer"}"#]);
        assert!(state.approvals.is_empty());
        line(&mut state, r#"{"type":"approval","id":"c"}"#);
        assert_eq!(state.approvals[0].options, ["allow", "deny"]);
        state.step(Input::Cancel);
        assert!(state.approvals.is_empty());
    }
}
