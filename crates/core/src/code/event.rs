//! The event in a line of a cell's output. Lines come from inside the sandbox: the server relies on nothing in them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Kinds of data of one result.
const KINDS_MAX_COUNT: usize = 64;
/// Longest name of such a kind, bytes.
const KIND_MAX_BYTES: usize = 128;
/// Values in one line: each takes some ten times its text.
const VALUES_MAX_COUNT: usize = 1 << 19;
/// What the fields of a result are called as kinds of data. Source: E2B's code interpreter SDKs.
const FIELDS: [(&str, &str); 12] = [
    ("text", "text/plain"),
    ("html", "text/html"),
    ("markdown", "text/markdown"),
    ("svg", "image/svg+xml"),
    ("png", "image/png"),
    ("jpeg", "image/jpeg"),
    ("pdf", "application/pdf"),
    ("latex", "text/latex"),
    ("json", "application/json"),
    ("javascript", "application/javascript"),
    ("data", "application/vnd.atoll.table+json"),
    ("chart", "application/vnd.atoll.chart+json"),
];

/// What an event of a cell is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum CellEventKind {
    /// The context has a new kernel, without what was in the old one.
    Reset,
    /// The kernel has begun with it: `execution_count`.
    Started,
    /// `text` on standard output.
    Stdout,
    /// `text` on standard error.
    Stderr,
    /// A value or something shown: `data` by MIME type, `main` for the value of the cell itself.
    Result,
    /// The code failed: `name`, `value`, `traceback`.
    Error,
    /// Something it said is not here: `code` and `text` say what and why.
    Problem,
    /// The last: `state`, `execution_count`, `reason`.
    End,
}

impl CellEventKind {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Started => "started",
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Result => "result",
            Self::Error => "error",
            Self::Problem => "problem",
            Self::End => "end",
        }
    }
}

/// What a line says.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// An event.
    Event(CellEventKind, Value),
    /// The client's last word.
    End {
        /// How many cells the kernel has run, with this one.
        execution_count: Option<u64>,
        /// Why it came to no good end.
        text: Option<String>,
    },
}

impl Line {
    /// Something that was said is not told, and why.
    #[must_use]
    pub fn problem(code: &str, text: &str) -> Self {
        Self::Event(CellEventKind::Problem, json!({"code": code, "text": text}))
    }
}

/// Reads a line.
#[must_use]
pub fn line(text: &[u8]) -> Line {
    // At least as many as there are values; texts, which are cheap, may have some, too.
    let values = text.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
    if values > VALUES_MAX_COUNT {
        return Line::problem("too_large", "a result with more than half a million values is left out");
    }
    serde_json::from_slice::<Map<String, Value>>(text).ok().and_then(read).unwrap_or_else(|| {
        Line::problem("malformed", "the interpreter said something that is not understood")
    })
}

fn read(mut said: Map<String, Value>) -> Option<Line> {
    let kind = text(&mut said, "type")?;
    let event = match kind.as_str() {
        "reset" => (CellEventKind::Reset, json!({})),
        "number_of_executions" => {
            (CellEventKind::Started, json!({"execution_count": said.get("execution_count")?.as_u64()?}))
        }
        "stdout" => (CellEventKind::Stdout, json!({"text": text(&mut said, "text")?})),
        "stderr" => (CellEventKind::Stderr, json!({"text": text(&mut said, "text")?})),
        "result" => (CellEventKind::Result, result(said)?),
        "error" => {
            let mut field = |name| text(&mut said, name).unwrap_or_default();
            let (name, value, traceback) = (field("name"), field("value"), field("traceback"));
            (CellEventKind::Error, json!({"name": name, "value": value, "traceback": traceback}))
        }
        "end" => {
            let execution_count = said.get("execution_count").and_then(Value::as_u64);
            return Some(Line::End { execution_count, text: text(&mut said, "text") });
        }
        _ => return None,
    };
    Some(Line::Event(event.0, event.1))
}

fn text(said: &mut Map<String, Value>, name: &str) -> Option<String> {
    match said.get_mut(name)?.take() {
        Value::String(text) => Some(text),
        _ => None,
    }
}

/// A result by kinds of data. What is null was left out by the interpreter's own means.
fn result(mut said: Map<String, Value>) -> Option<Value> {
    let main = said.get("is_main_result").and_then(Value::as_bool).unwrap_or_default();
    let mut data = Map::new();
    for (field, kind) in FIELDS {
        if let Some(value) = said.remove(field).filter(|value| !value.is_null()) {
            data.insert(kind.to_owned(), value);
        }
    }
    if let Some(extra) = said.remove("extra").filter(|extra| !extra.is_null()) {
        let Value::Object(extra) = extra else { return None };
        for (kind, value) in extra {
            if kind.is_empty() || kind.len() > KIND_MAX_BYTES || kind.chars().any(char::is_control) {
                return None;
            }
            data.entry(kind).or_insert(value);
        }
    }
    (data.len() <= KINDS_MAX_COUNT).then(|| json!({"main": main, "data": data}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(text: &str) -> (CellEventKind, Value) {
        match line(text.as_bytes()) {
            Line::Event(kind, data) => (kind, data),
            end @ Line::End { .. } => panic!("{end:?}"),
        }
    }

    #[test]
    fn what_interpreters_say() {
        let said = event(r#"{"type":"stdout","text":"a\n","timestamp":"2026"}"#);
        assert_eq!(said, (CellEventKind::Stdout, json!({"text": "a\n"})));
        let said = event(r#"{"type":"number_of_executions","execution_count":3}"#);
        assert_eq!(said, (CellEventKind::Started, json!({"execution_count": 3})));
        let said = event(
            r#"{"type":"result","is_main_result":true,"text":"1","png":"aGk=","html":null,"chart":{"type":"line"},"extra":{"x/y":[1]}}"#,
        );
        let data = json!({
            "text/plain": "1", "image/png": "aGk=", "application/vnd.atoll.chart+json": {"type": "line"}, "x/y": [1],
        });
        assert_eq!(said, (CellEventKind::Result, json!({"main": true, "data": data})));
        let said = event(r#"{"type":"error","name":"ValueError","value":"x","traceback":"t"}"#);
        assert_eq!(said.1["name"], "ValueError");
        let end = line(br#"{"type":"end","execution_count":7}"#);
        assert_eq!(end, Line::End { execution_count: Some(7), text: None });
    }

    #[test]
    fn what_is_malformed_is_said_to_be() {
        let many: Map<_, _> = (0..100).map(|n| (format!("x/{n}"), Value::Null)).collect();
        let many = json!({"type": "result", "extra": many}).to_string();
        let deep = format!(r#"{{"type":"result","json":{}1{}}}"#, "[".repeat(5000), "]".repeat(5000));
        let cases = [
            "",
            "null",
            "[]",
            "{}",
            "x",
            r#"{"type":1}"#,
            r#"{"type":"stdout"}"#,
            r#"{"type":"stdout","text":5}"#,
            r#"{"type":"exec"}"#,
            r#"{"type":"number_of_executions","execution_count":-1}"#,
            r#"{"type":"result","extra":5}"#,
            r#"{"type":"result","extra":{"":1}}"#,
            &many,
            &deep,
        ];
        for text in cases {
            assert_eq!(event(text).0, CellEventKind::Problem, "{}", &text[..text.len().min(80)]);
        }
        assert_eq!(line(b"\xff\xfe"), line(b""));
    }

    #[test]
    fn many_small_values_are_too_large() {
        let many = format!(r#"{{"type":"result","json":[{}0]}}"#, "0,".repeat(VALUES_MAX_COUNT));
        assert_eq!(event(&many).1["code"], "too_large");
        let text = format!(r#"{{"type":"stdout","text":"{}"}}"#, "x".repeat(4 << 20));
        assert_eq!(event(&text).0, CellEventKind::Stdout);
    }

    proptest! {
        #[test]
        fn whatever_is_said_is_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_ne!(line(&bytes), Line::End { execution_count: Some(1), text: None });
        }
    }
}
