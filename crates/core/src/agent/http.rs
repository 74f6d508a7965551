//! The smallest protocol for an agent that serves HTTP: JSON lines in answers. Ours.
//!
//! `POST /agent` with a `message` (`id`, `text`, `session`) is answered by the lines that an agent over standard output would write,
//! as they come; the end of the answer is the end of the work. `cancel` and `answer` are posted there, too, meanwhile. Of an
//! answer that broke the rest is asked for: `GET /agent?session=…&message=…&after=LINES`.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::jsonl::JsonlState;
use super::request::{HttpRequest, in_query};
use super::{Input, Output, TurnEnd};

/// Where everything is posted.
const PATH: &str = "/agent";

/// State of the adapter.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HttpState {
    /// Approvals, and the meaning of lines.
    pub(super) lines: JsonlState,
    /// Our id of the session.
    session: String,
    /// The message that is worked on.
    turn: Option<Turn>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Turn {
    number: u64,
    /// Until it was sent: never twice.
    text: Option<String>,
    /// Lines of its answer that were heard.
    heard: u64,
}

impl HttpState {
    /// The request whose answer is to be listened to now.
    pub(super) fn listens(&self) -> Option<HttpRequest> {
        let Turn { number, text, heard } = self.turn.as_ref()?;
        Some(match text {
            Some(text) => {
                let message =
                    json!({ "type": "message", "id": number, "text": text, "session": self.session });
                HttpRequest::post(PATH.to_owned(), message)
            }
            None => {
                let session = in_query(&self.session);
                HttpRequest::get(format!("{PATH}?session={session}&message={number}&after={heard}"))
            }
        })
    }

    pub(super) fn step(&mut self, input: Input<'_>) -> Output {
        let mut output = Output::default();
        match input {
            Input::Begun(_, session) => session.clone_into(&mut self.session),
            Input::Message(number, text) => {
                self.turn = Some(Turn { number, text: Some(text.to_owned()), heard: 0 });
            }
            Input::Dialing => {
                if let Some(turn) = &mut self.turn {
                    turn.text = None;
                }
            }
            Input::Listening(200) => {}
            Input::Listening(status) => {
                let why = match self.turn.take() {
                    Some(turn) if turn.heard > 0 => "the connection to the agent broke, and it cannot go on",
                    _ => "the agent does not take the message",
                };
                output.end = Some(TurnEnd::Failed("agent_error".to_owned(), format!("{why}: {status}")));
            }
            Input::Line(_) => {
                if let Some(turn) = &mut self.turn {
                    turn.heard += 1;
                    output = self.lines.step(input);
                }
            }
            // In good order: as a process that ends with code 0.
            Input::Silent(true) if self.turn.is_some() => {
                output.end = Some(TurnEnd::Done("answered".to_owned()));
            }
            Input::Silent(_) | Input::Answered(..) => {}
            Input::Cancel | Input::Answer(..) => {
                for line in self.lines.step(input).lines {
                    let Ok(mut body) = serde_json::from_str::<serde_json::Value>(&line) else { continue };
                    body["session"] = json!(self.session);
                    output.lines.push(HttpRequest::post(PATH.to_owned(), body).to_line());
                }
            }
        }
        if output.end.is_some() {
            self.ended();
        }
        output
    }

    /// Nothing is under way any more.
    pub(super) fn ended(&mut self) {
        self.turn = None;
        self.lines.approvals.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_sent_once_and_its_answer_read_to_the_end() {
        let mut state = HttpState::default();
        state.step(Input::Begun("/", "se1"));
        assert_eq!(state.listens(), None);
        state.step(Input::Message(7, "hi"));
        let sent = state.listens().unwrap();
        assert_eq!(sent.body, Some(json!({ "type": "message", "id": 7, "text": "hi", "session": "se1" })));
        state.step(Input::Dialing);
        state.step(Input::Listening(200));
        assert_eq!(state.step(Input::Line(r#"{"type":"text","text":"a"}"#)).events.len(), 1);
        state.step(Input::Line(r#"{"type":"approval","id":"x"}"#));
        let answer = HttpRequest::of_line(&state.step(Input::Answer("x", "allow")).lines[0]).unwrap();
        assert_eq!(
            answer.body,
            Some(json!({ "type": "answer", "id": "x", "option": "allow", "session": "se1" }))
        );
        // The connection broke: the lines that were not heard are asked for.
        assert_eq!(state.step(Input::Silent(false)), Output::default());
        assert_eq!(state.listens().unwrap().path, "/agent?session=se1&message=7&after=2");
        state.step(Input::Dialing);
        state.step(Input::Listening(200));
        assert_eq!(state.step(Input::Silent(true)).end, Some(TurnEnd::Done("answered".into())));
        assert_eq!(state.listens(), None);
        assert_eq!(state.step(Input::Silent(true)).end, None, "once");
    }

    #[test]
    fn what_is_refused_fails() {
        let mut state = HttpState::default();
        state.step(Input::Begun("/", "se1"));
        state.step(Input::Message(7, "hi"));
        state.step(Input::Dialing);
        let failed = state.step(Input::Listening(302)).end;
        assert!(matches!(failed, Some(TurnEnd::Failed(code, _)) if code == "agent_error"));
        assert_eq!(state.listens(), None);
        state.step(Input::Message(8, "hi"));
        let done = state.step(Input::Line(r#"{"type":"done","reason":"x"}"#)).end;
        assert_eq!(done, Some(TurnEnd::Done("x".into())));
        assert_eq!(state.step(Input::Line(r#"{"type":"text","text":"late"}"#)), Output::default());
    }
}
