//! Counts the use of models: recognises requests to them, and reads in the answers how many tokens they took.
//!
//! A request is one to a model by its path, as in OpenAI's and Anthropic's APIs and in all APIs that are compatible
//! with them. The tokens that an answer took stand in an object `usage`: at the top, below `response` (events of
//! OpenAI's responses) or below `message` (events of Anthropic's messages); see
//! <https://platform.openai.com/docs/api-reference> and <https://docs.anthropic.com/en/api/messages-streaming>. It is
//! looked for as the bytes pass, and nothing but it is kept.

use atoll_core::agent::unmarked;
use atoll_core::id::{SandboxId, SessionId};
use atoll_core::policy::InjectRule;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, RANGE};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};

use super::OutBody;
use super::escape::percent_decoded;

/// How the path of a request to a model ends.
const PATHS: [&str; 5] = ["/chat/completions", "/completions", "/responses", "/messages", "/embeddings"];
/// Longest `usage` that is read, bytes.
const USAGE_MAX_BYTES: usize = 4 << 10;
/// Longest key that matters, bytes.
const KEY_MAX_BYTES: usize = 16;
/// Bytes that a token is taken to have where an answer does not say how many tokens there were.
const BYTES_PER_TOKEN: u64 = 4;

/// The tokens that an answer of a model took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ModelTokens {
    /// Tokens that it read.
    pub input: u64,
    /// Tokens that it wrote.
    pub output: u64,
    /// It did not say so: they were guessed by size.
    pub guessed: bool,
}

/// Is told, once, how many tokens an answer took.
pub type Tally = Box<dyn FnOnce(ModelTokens) + Send + Sync>;

/// Counts requests to models.
pub trait ModelMeter: Send + Sync + std::fmt::Debug {
    /// A sandbox asks a model; `session` is the one that its credential is marked with. `None` when this is not
    /// counted.
    ///
    /// # Errors
    /// A text for the programs in the sandbox, when it may not.
    fn ask(&self, sandbox: &SandboxId, session: Option<&SessionId>) -> Result<Option<Tally>, String>;
}

/// Whether a request is one to a model, in any spelling that a server may read so.
pub(super) fn is_model(method: &Method, path: &str) -> bool {
    let decoded = percent_decoded(path);
    let path = String::from_utf8_lossy(&decoded).to_ascii_lowercase();
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    let path = format!("/{}", parts.join("/"));
    method == Method::POST && PATHS.iter().any(|end| path.ends_with(end))
}

/// Takes the mark of a session out of the credentials of a request.
pub(super) fn unmark(headers: &mut HeaderMap, rules: &[&InjectRule]) -> Option<SessionId> {
    let placeholders = rules.iter().flat_map(|rule| &rule.placeholders);
    let texts: Vec<&str> = placeholders.filter_map(|placeholder| placeholder.value.as_deref()).collect();
    let mut found = None;
    for value in headers.values_mut() {
        let Ok(text) = value.to_str() else { continue };
        let basic = text.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"));
        let pair = basic.and_then(|(_, encoded)| String::from_utf8(BASE64.decode(encoded.trim()).ok()?).ok());
        let plain = pair.as_deref().unwrap_or(text);
        let Some((without, session)) = texts.iter().find_map(|placeholder| unmarked(plain, placeholder))
        else {
            continue;
        };
        let without = if pair.is_some() { format!("Basic {}", BASE64.encode(without)) } else { without };
        if let Ok(without) = HeaderValue::from_str(&without) {
            *value = without;
            found = Some(session);
        }
    }
    found
}

/// Makes the answer one that can be read.
pub(super) fn prepare(headers: &mut HeaderMap) {
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.remove(RANGE);
}

/// The answer to a sandbox that may ask no more, in the form that clients of both vendors show. Clients do not try
/// again after it.
pub(super) fn refused(why: &str) -> Response<OutBody> {
    let message = format!("atoll: {why}; whoever runs this agent can give it a larger budget");
    let error = json!({ "type": "budget_exhausted", "code": "budget_exhausted", "message": message });
    let body = Bytes::from(json!({ "type": "error", "error": error }).to_string());
    let mut response = Response::new(Full::new(body).map_err(|never| match never {}).boxed());
    *response.status_mut() = StatusCode::PAYMENT_REQUIRED;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(crate::refusal::HEADER, HeaderValue::from_static("budget"));
    response
}

/// One request that is counted, until its answer has been passed on, or has been cut.
pub(super) struct Counted {
    tally: Option<Tally>,
    sent_bytes: u64,
    reader: Option<Reader>,
    /// All of the answer has been passed on.
    whole: bool,
}

impl Counted {
    pub(super) fn new(tally: Tally, sent_bytes: u64) -> Self {
        Self { tally: Some(tally), sent_bytes, reader: None, whole: false }
    }

    /// The head of the answer is there. One of an error took nothing.
    pub(super) fn answered(&mut self, status: StatusCode, headers: &HeaderMap) {
        let is = |kind: &str| {
            headers
                .get(CONTENT_TYPE)
                .and_then(|value| value.to_str().ok())
                .is_some_and(|text| text.starts_with(kind))
        };
        let encoded = headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity");
        self.reader = status.is_success().then(|| Reader {
            events: is("text/event-stream"),
            encoded,
            ..Reader::default()
        });
    }

    /// A piece of the answer.
    pub(super) fn passed(&mut self, piece: &[u8]) {
        if let Some(reader) = &mut self.reader {
            reader.push(piece);
        }
    }

    /// The answer has ended. Its tokens are told before the sandbox sees the end, so that the sandbox's next request
    /// finds them counted.
    pub(super) fn ended(&mut self) {
        self.whole = true;
        self.tell();
    }

    fn tell(&mut self) {
        let Some(tally) = self.tally.take() else { return };
        tally(match &self.reader {
            None => ModelTokens::default(),
            Some(reader) => match reader.json.tokens {
                // A stream tells its output in full only at its end. When the client cuts it before, the
                // guess from the bytes that came counts if it is higher.
                Some(told) if reader.events && !self.whole => {
                    ModelTokens { output: told.output.max(reader.guess()), ..told }
                }
                Some(told) => told,
                None => ModelTokens {
                    input: self.sent_bytes.div_ceil(BYTES_PER_TOKEN),
                    output: reader.guess(),
                    guessed: true,
                },
            },
        });
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.tell();
    }
}

/// Where a line of an event stream is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Line {
    /// So many bytes of `data:` were there, and nothing else.
    #[default]
    Begin,
    Named(usize),
    Data,
    Other,
}

/// Reads an answer as it passes.
#[derive(Debug, Default)]
struct Reader {
    /// It is a stream of server-sent events.
    events: bool,
    /// It cannot be read.
    encoded: bool,
    line: Line,
    json: Scan,
    bytes: u64,
    /// Events with data.
    count: u64,
}

impl Reader {
    fn push(&mut self, piece: &[u8]) {
        const FIELD: &[u8] = b"data:";
        self.bytes = self.bytes.saturating_add(piece.len() as u64);
        if self.encoded {
            return;
        }
        if !self.events {
            return piece.iter().for_each(|byte| self.json.push(*byte));
        }
        for byte in piece {
            self.line = match (self.line, byte) {
                (_, b'\n' | b'\r') => Line::Begin,
                (Line::Begin, b'd') => Line::Named(1),
                (Line::Named(at), byte) if byte == &FIELD[at] => {
                    if at + 1 < FIELD.len() {
                        Line::Named(at + 1)
                    } else {
                        self.count = self.count.saturating_add(1);
                        self.json.begin();
                        Line::Data
                    }
                }
                (Line::Data, byte) => {
                    self.json.push(*byte);
                    Line::Data
                }
                (Line::Begin | Line::Named(_) | Line::Other, _) => Line::Other,
            };
        }
    }

    /// Tokens of an answer that does not say: each event of a stream has one at least.
    const fn guess(&self) -> u64 {
        if self.events && !self.encoded { self.count } else { self.bytes.div_ceil(BYTES_PER_TOKEN) }
    }
}

/// Finds `usage` in JSON, byte by byte: where objects are and which key they have is all that it knows.
#[derive(Debug, Default)]
struct Scan {
    depth: u64,
    in_text: bool,
    escaped: bool,
    /// The text that is read, or was last.
    text: Vec<u8>,
    /// The key of the value that comes next.
    key: Vec<u8>,
    /// Inside the object at the top that may have it as well.
    below: bool,
    /// The bytes of `usage` that were read, and its depth.
    usage: Option<(Vec<u8>, u64)>,
    tokens: Option<ModelTokens>,
}

impl Scan {
    /// Another document begins. The tokens that were found stay.
    fn begin(&mut self) {
        *self = Self { tokens: self.tokens, ..Self::default() };
    }

    fn push(&mut self, byte: u8) {
        if let Some((usage, _)) = &mut self.usage {
            usage.push(byte);
            if usage.len() > USAGE_MAX_BYTES {
                self.usage = None;
            }
        }
        if self.in_text {
            return self.in_text(byte);
        }
        match byte {
            b'"' => {
                self.in_text = true;
                self.text.clear();
            }
            b':' => std::mem::swap(&mut self.key, &mut self.text),
            b'{' | b'[' => self.open(byte == b'{'),
            b'}' | b']' => self.close(),
            b',' => self.key.clear(),
            _ => {}
        }
    }

    fn in_text(&mut self, byte: u8) {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = true,
            b'"' => return self.in_text = false,
            _ => {}
        }
        // A longer text is no key that matters. One byte too many is kept, so that it does not look like such a key.
        if self.text.len() <= KEY_MAX_BYTES {
            self.text.push(byte);
        }
    }

    fn open(&mut self, object: bool) {
        let place = self.depth == 1 || (self.depth == 2 && self.below);
        if object && place && self.usage.is_none() && self.key == b"usage" {
            self.usage = Some((vec![b'{'], self.depth));
        } else if object && self.depth == 1 && (self.key == b"response" || self.key == b"message") {
            self.below = true;
        }
        self.depth = self.depth.saturating_add(1);
        self.key.clear();
    }

    fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.key.clear();
        if self.depth <= 1 {
            self.below = false;
        }
        if let Some((usage, _)) = self.usage.take_if(|(_, depth)| *depth == self.depth)
            && let Ok(usage) = serde_json::from_slice(&usage)
        {
            self.take(&usage);
        }
    }

    /// A stream tells its use several times, each time the sum until then.
    fn take(&mut self, usage: &Value) {
        let number = |name: &str| usage.get(name).and_then(Value::as_u64);
        let cached = ["cache_creation_input_tokens", "cache_read_input_tokens"];
        let cached = cached.iter().filter_map(|name| number(name)).fold(0, u64::saturating_add);
        let input =
            number("input_tokens").map(|read| read.saturating_add(cached)).or(number("prompt_tokens"));
        let output = number("output_tokens").or(number("completion_tokens"));
        if input.is_none() && output.is_none() {
            return;
        }
        let tokens = self.tokens.get_or_insert_default();
        tokens.input = tokens.input.max(input.unwrap_or_default());
        tokens.output = tokens.output.max(output.unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// The tokens that are told for an answer that comes in pieces of every size.
    fn told(kind: &'static str, status: u16, body: &str) -> ModelTokens {
        heard(kind, status, body.as_bytes(), true)
    }

    fn heard(kind: &'static str, status: u16, body: &[u8], whole: bool) -> ModelTokens {
        let mut all = Vec::new();
        for size in [1, 2, 3, 7, 64, usize::MAX] {
            let heard = Arc::new(Mutex::new(None));
            let tell = Arc::clone(&heard);
            let mut counted = Counted::new(Box::new(move |tokens| *tell.lock().unwrap() = Some(tokens)), 400);
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
            counted.answered(StatusCode::from_u16(status).unwrap(), &headers);
            body.chunks(size.min(body.len().max(1))).for_each(|piece| counted.passed(piece));
            if whole {
                counted.ended();
            }
            drop(counted);
            all.push(heard.lock().unwrap().unwrap());
        }
        assert!(all.iter().all(|tokens| tokens == &all[0]), "{all:?}");
        all[0]
    }

    fn tokens(input: u64, output: u64) -> ModelTokens {
        ModelTokens { input, output, guessed: false }
    }

    #[test]
    fn whole_answers() {
        let json = |body| told("application/json; charset=utf-8", 200, body);
        let chat = r#"{"id": "x", "choices": [{"message": {"content": "\"usage\": {\"prompt_tokens\": 9}", "usage": {"prompt_tokens": 8}}}],
            "usage": {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5}}}"#;
        assert_eq!(json(chat), tokens(12, 3));
        let message = r#"{"content":[{"type":"tool_use","input":{"usage":{"input_tokens":99999}}}],
            "usage":{"input_tokens":5,"cache_creation_input_tokens":100,"cache_read_input_tokens":1000,"output_tokens":7}}"#;
        assert_eq!(json(message), tokens(1105, 7));
        // The answer does not tell its use, or not in the right place, or not in numbers.
        for body in [
            r#"{"data":[{"usage":{"prompt_tokens":1}}]}"#,
            r#"{"usage":null}"#,
            r#"[{"usage":{"prompt_tokens":1}}]"#,
            "{\"usage\":",
        ] {
            let guessed = ModelTokens { input: 100, output: (body.len() as u64).div_ceil(4), guessed: true };
            assert_eq!(json(body), guessed, "{body}");
        }
        assert_eq!(told("application/json", 500, chat), ModelTokens::default(), "an error takes nothing");
        let most = format!(r#"{{"usage":{{"input_tokens":{0},"cache_read_input_tokens":{0}}}}}"#, u64::MAX);
        assert_eq!(json(&most).input, u64::MAX);
        let long = format!(r#"{{"usage":{{"x":"{}","input_tokens":1}}}}"#, "y".repeat(USAGE_MAX_BYTES));
        assert!(json(&long).guessed);
    }

    #[test]
    fn streams() {
        let stream = |body| told("text/event-stream", 200, body);
        let chat = "data: {\"choices\":[{\"delta\":{\"content\":\"data: {}\"}}],\"usage\":null}\n\n: a remark\n\ndata:{\"choices\":[],\
             \"usage\":{\"prompt_tokens\":12,\"completion_tokens\":3}}\r\n\r\ndata: [DONE]\n\n";
        assert_eq!(stream(chat), tokens(12, 3));
        let messages = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":20,\
             \"cache_read_input_tokens\":5,\"output_tokens\":1}}}\n\nevent: message_delta\ndata: {\"delta\":{},\"usage\":{\"output_tokens\":9}}\n\n";
        assert_eq!(stream(messages), tokens(25, 9));
        let responses = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"usage\":{\"input_tokens\":7}}],\
             \"usage\":{\"input_tokens\":30,\"output_tokens\":4,\"total_tokens\":34}}}\n\n";
        assert_eq!(stream(responses), tokens(30, 4));
        let silent = "data: {\"choices\":[{}]}\n\ndata: {\"choices\":[{}]}\n\ndata: [DONE]\n\n";
        assert_eq!(stream(silent), ModelTokens { input: 100, output: 3, guessed: true });
        // When the stream is cut off, each event that came counts.
        let deltas = messages.replace("event: message_delta", &"data: {}\n\n".repeat(5));
        let cut = &deltas[..deltas.len() - 30];
        assert_eq!(heard("text/event-stream", 200, cut.as_bytes(), false), tokens(25, 7));
    }

    /// Found by coverage: `make fuzz`. It also runs for a short time with the other tests.
    #[test]
    fn any_answer_is_read_alike_however_it_is_cut() {
        bolero::check!().for_each(|body: &[u8]| {
            heard("application/json", 200, body, true);
            heard("text/event-stream", 200, body, true);
        });
    }

    #[test]
    fn requests_to_models() {
        for path in [
            "/v1/chat/completions",
            "/openai/deployments/x/chat/completions",
            "/v1/messages",
            "/v1/responses/",
            "/v1//Chat/./completion%73",
        ] {
            assert!(is_model(&Method::POST, path), "{path}");
            assert!(!is_model(&Method::GET, path));
        }
        for path in ["/v1/messages/count_tokens", "/v1/models", "/chat", "/v1/messages/batches"] {
            assert!(!is_model(&Method::POST, path), "{path}");
        }
    }
}
