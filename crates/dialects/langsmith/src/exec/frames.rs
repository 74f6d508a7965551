//! Messages of the exec WebSocket: JSON texts, one each.

use atoll_core::exec::OutputStream;
use atoll_dialect_kit::exec::Offsets;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Request;

/// Longest frame, bytes as they travel. The Python client takes 1 MiB.
const FRAME_MAX_BYTES: usize = 64 << 10;
/// Most bytes around the text of an output frame.
const FRAME_FRAME_BYTES: usize = 128;

/// The first message of a client.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum First {
    Execute(Box<Request>),
    Reconnect {
        command_id: String,
        #[serde(default)]
        stdout_offset: u64,
        #[serde(default)]
        stderr_offset: u64,
    },
}

impl First {
    /// Where the client left off.
    pub(crate) fn offsets(&self) -> Offsets {
        match self {
            Self::Execute(_) => Offsets::default(),
            Self::Reconnect { stdout_offset, stderr_offset, .. } => {
                Offsets { stdout: *stdout_offset, stderr: *stderr_offset }
            }
        }
    }
}

/// The later messages of a client.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Later {
    Input { data: String },
    CloseStdin,
    Kill,
    Resize { cols: u16, rows: u16 },
}

/// Whether a message is about a command that an earlier message named.
pub(crate) fn is_later(text: &str) -> bool {
    serde_json::from_str::<Later>(text).is_ok()
}

pub(crate) fn started(command_id: &str, pid: Option<u32>) -> String {
    json!({"type": "started", "command_id": command_id, "pid": pid}).to_string()
}

pub(crate) fn exit(code: i32) -> String {
    json!({"type": "exit", "exit_code": code}).to_string()
}

pub(crate) fn error(kind: &str, message: &str) -> String {
    json!({"type": "error", "error_type": kind, "error": message}).to_string()
}

const fn name(stream: OutputStream) -> &'static str {
    match stream {
        OutputStream::Stdout => "stdout",
        OutputStream::Stderr => "stderr",
    }
}

#[derive(Serialize)]
struct Output<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    data: &'a str,
    offset: u64,
}

/// Frames for a piece of text that begins at `offset`.
pub(crate) fn output(stream: OutputStream, mut offset: u64, text: &str) -> impl Iterator<Item = String> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (now, later) = rest.split_at(fitting(rest, FRAME_MAX_BYTES - FRAME_FRAME_BYTES));
        rest = later;
        let frame = Output { kind: name(stream), data: now, offset };
        // A struct of texts and numbers can always be written.
        let frame = serde_json::to_string(&frame).unwrap_or_default();
        offset += now.len() as u64;
        Some(frame)
    })
}

/// How much of `text` fits in `max` bytes of JSON, at the boundary of a character.
fn fitting(text: &str, max: usize) -> usize {
    let mut size = 0;
    for (at, byte) in text.bytes().enumerate() {
        size += match byte {
            b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
            0..0x20 => 6,
            _ => 1,
        };
        if size > max {
            let mut end = at;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            return end;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text names a command or is about one, and says what any other parser of JSON reads in it.
    #[test]
    fn messages_of_clients() {
        const YEAR_MS: u64 = 365 * 24 * 3600 * 1000;
        bolero::check!().for_each(|text: &[u8]| {
            let Ok(text) = std::str::from_utf8(text) else { return };
            assert_lossless(text, 7);
            let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
            // A list of the fields in their order is a message, too, and has no names to look at.
            if !value.is_object() {
                return;
            }
            if let Ok(first) = serde_json::from_str::<First>(text) {
                assert!(!is_later(text), "{text}");
                let said = |field: &str| value[field].as_u64().unwrap_or_default();
                match &first {
                    First::Reconnect { command_id, .. } => {
                        assert_eq!(value["command_id"], command_id.as_str());
                        let offsets =
                            Offsets { stdout: said("stdout_offset"), stderr: said("stderr_offset") };
                        assert_eq!(first.offsets(), offsets);
                    }
                    First::Execute(request) => {
                        assert_eq!(first.offsets(), Offsets::default());
                        if let Ok(draft) = request.clone().draft("sh") {
                            let limits = [draft.timeout_ms, draft.detach_timeout_ms];
                            assert!(
                                limits.iter().flatten().all(|ms| (1..=YEAR_MS).contains(ms)),
                                "{limits:?}"
                            );
                            let shown = value["env"].as_object().map_or(0, serde_json::Map::len)
                                + value["run_config"]["env_vars"].as_object().map_or(0, serde_json::Map::len);
                            assert_eq!(draft.env.len(), shown);
                        }
                    }
                }
            }
            match serde_json::from_str(text) {
                Ok(Later::Input { data }) => assert_eq!(value["data"], data.as_str()),
                Ok(Later::Resize { cols, rows }) => {
                    assert_eq!(
                        (value["cols"].as_u64(), value["rows"].as_u64()),
                        (Some(cols.into()), Some(rows.into()))
                    );
                }
                Ok(Later::CloseStdin) => assert_eq!(value["type"], "close_stdin"),
                Ok(Later::Kill) => assert_eq!(value["type"], "kill"),
                Err(_) => {}
            }
        });
    }

    /// The frames of a text are bounded, follow one another, and together say the text.
    fn assert_lossless(text: &str, mut at: u64) {
        let mut joined = String::new();
        for frame in output(OutputStream::Stderr, at, text) {
            assert!(frame.len() <= FRAME_MAX_BYTES, "{}", frame.len());
            let frame: serde_json::Value = serde_json::from_str(&frame).unwrap();
            assert_eq!((frame["type"].as_str(), frame["offset"].as_u64()), (Some("stderr"), Some(at)));
            let data = frame["data"].as_str().unwrap();
            at += data.len() as u64;
            joined.push_str(data);
        }
        assert_eq!(joined, text);
    }

    #[test]
    fn what_comes_first_is_told_from_what_follows() {
        assert!(is_later(r#"{"type":"close_stdin"}"#) && is_later(r#"{"type":"input","data":"x"}"#));
        assert!(!is_later(r#"{"type":"reconnect","command_id":"a"}"#) && !is_later(r#"{"type":"execute"}"#));
        assert!(!is_later("close_stdin") && !is_later(r#"{"type":"nonsense"}"#));
    }

    #[test]
    fn frames_are_bounded_and_lose_nothing() {
        for text in ["x".repeat(200_000), "\u{1}".repeat(100_000), "€\"\n".repeat(50_000), String::new()] {
            assert_lossless(&text, 7);
        }
    }

    #[test]
    fn clients_say() {
        let first: First = serde_json::from_str(
            r#"{"type":"reconnect","command_id":"c","stdout_offset":3,"stderr_offset":0}"#,
        )
        .unwrap();
        assert_eq!(first.offsets(), Offsets { stdout: 3, stderr: 0 });
        assert!(matches!(
            serde_json::from_str(r#"{"type":"execute","command":"x","unknown":1}"#),
            Ok(First::Execute(_))
        ));
        assert!(matches!(serde_json::from_str(r#"{"type":"close_stdin"}"#), Ok(Later::CloseStdin)));
        assert!(serde_json::from_str::<Later>(r#"{"type":"dance"}"#).is_err());
    }
}
