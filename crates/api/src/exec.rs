//! Execs and their output.

use std::collections::BTreeMap;

use atoll_core::exec::{ExecState, Exit, OutputStream};
use atoll_core::spec::{Command, ExecDraft, IdempotencyKey, TtySize};
use atoll_core::{Error, Result};
use base64::Engine as _;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Runs a command. Give either `argv` or `shell`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateExec {
    /// Program and arguments, run as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// A line for `/bin/sh -c`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// Variables on top of the sandbox's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Working directory; the sandbox's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// User name or id, optionally `:group`; the sandbox's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The sandbox's profile that it runs in; the sandbox's default when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Run on a terminal of this size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tty: Option<TtySize>,
    /// Keep standard input open; otherwise the command reads end-of-file at once.
    pub stdin: bool,
    /// Kill its tree this long after start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Kill its tree when it has written nothing for this long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout_ms: Option<u64>,
    /// Kill its tree when the last attached client goes away.
    pub kill_on_disconnect: bool,
    /// Kill the tree when no client has been attached for this long. Clients are those that read with
    /// `attach`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detach_timeout_ms: Option<u64>,
    /// Output kept on the host; the oldest goes first and a gap is announced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_output_bytes: Option<u64>,
    /// A second request with the same key in the same sandbox returns the first exec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Wait up to this long for the exit before answering (at most 60,000). The answer then carries the
    /// output, if it is small.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

impl CreateExec {
    /// The draft this request means.
    ///
    /// # Errors
    /// [`atoll_core::Code::InvalidArgument`] unless exactly one of `argv` and `shell` is given; for a key that is none.
    pub fn into_draft(self) -> Result<ExecDraft> {
        let command = match (self.argv, self.shell) {
            (Some(argv), None) => Command::Argv(argv),
            (None, Some(line)) => Command::Shell(line),
            _ => return Err(Error::invalid("argv", "give exactly one of 'argv' and 'shell'")),
        };
        Ok(ExecDraft {
            command,
            env: self.env,
            cwd: self.cwd,
            user: self.user,
            profile: self.profile,
            tty: self.tty,
            stdin: self.stdin,
            timeout_ms: self.timeout_ms,
            idle_timeout_ms: self.idle_timeout_ms,
            kill_on_disconnect: self.kill_on_disconnect,
            detach_timeout_ms: self.detach_timeout_ms,
            keep_output_bytes: self.keep_output_bytes,
            idempotency_key: self.idempotency_key.map(IdempotencyKey::client).transpose()?,
            end_tree: false,
            tag: None,
            interpreter: None,
            // It comes in a header.
            traceparent: None,
        })
    }
}

/// An exec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Exec {
    /// Its id.
    pub id: String,
    /// The sandbox it runs in.
    pub sandbox: String,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Where it is in its life.
    pub state: ExecState,
    /// Process id inside the sandbox.
    pub pid: Option<u32>,
    /// User it runs as.
    pub user: String,
    /// The profile that it runs in, where it is in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Working directory.
    pub cwd: Option<String>,
    /// Whether it runs on a terminal.
    pub tty: bool,
    /// How it ended.
    pub exit: Option<Exit>,
    /// Output bytes so far, both streams together.
    pub output_bytes: u64,
    /// CPU time of its processes as reported from inside the sandbox, once it has ended, microseconds.
    #[serde(default)]
    pub cpu_us: u64,
    /// First output byte that is still kept.
    pub output_first: u64,
    /// When it was asked for.
    pub created_at_ms: u64,
    /// When it ended.
    pub ended_at_ms: Option<u64>,
    /// Id of the key that started it.
    pub started_by: Option<String>,
}

/// An exec, with its output where that was asked for and is small.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecWithOutput {
    /// The exec.
    pub exec: Exec,
    /// All output, when the exec ended within `wait_ms` and wrote at most 1 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Vec<OutputChunk>>,
}

/// A page of execs, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecList {
    /// The page.
    pub items: Vec<Exec>,
    /// Pass it as `cursor` for the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// How `data` of a chunk is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum Encoding {
    /// As it is.
    #[serde(rename = "utf-8")]
    Utf8,
    /// Base64, because it is not valid UTF-8.
    #[serde(rename = "base64")]
    Base64,
}

/// A piece of output in JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputChunk {
    /// Offset of its first byte in the exec's output, both streams together.
    pub offset: u64,
    /// Which stream.
    pub stream: OutputStream,
    /// The bytes.
    pub data: String,
    /// How they are written.
    pub encoding: Encoding,
}

impl OutputChunk {
    /// Wraps bytes, as text where they are text.
    #[must_use]
    pub fn new(offset: u64, stream: OutputStream, bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self { offset, stream, data: text.to_owned(), encoding: Encoding::Utf8 },
            Err(_) => Self {
                offset,
                stream,
                data: base64::engine::general_purpose::STANDARD.encode(bytes),
                encoding: Encoding::Base64,
            },
        }
    }

    /// The bytes again.
    ///
    /// # Errors
    /// [`atoll_core::Code::InvalidArgument`] when the base64 is malformed.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        match self.encoding {
            Encoding::Utf8 => Ok(self.data.clone().into_bytes()),
            Encoding::Base64 => base64::engine::general_purpose::STANDARD
                .decode(&self.data)
                .map_err(|error| Error::invalid("data", error)),
        }
    }
}

/// Answer of the long-poll: what there is from an offset on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputPage {
    /// The chunks, contiguous.
    pub chunks: Vec<OutputChunk>,
    /// Set when bytes between the asked offset and this one were dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_until: Option<u64>,
    /// Ask with this offset next.
    pub next_offset: u64,
    /// Where the exec is in its life. Final and without chunks: there is no more.
    pub state: ExecState,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
}

/// Text message of the server on the attach WebSocket. Output itself travels in binary messages, see
/// [`OutputFrame`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AttachServerMessage {
    /// First: what you are attached to, and where the output that follows begins.
    Attached {
        /// The exec.
        exec: Exec,
        /// Offset of the first byte that follows.
        offset: u64,
    },
    /// Bytes `from..to` were dropped because the log's limit was reached.
    Gap {
        /// First dropped byte.
        from: u64,
        /// One past the last dropped byte.
        to: u64,
    },
    /// Last: all output was sent and this is how it ended. The server closes the socket.
    Exit {
        /// Where it ended up: `exited` or `lost`.
        state: ExecState,
        /// How it ended.
        exit: Exit,
        /// One past the last byte of output.
        offset: u64,
    },
    /// Something a client message asked for failed, or the stream cannot go on.
    Error {
        /// Why.
        error: crate::ErrorBody,
    },
}

/// Text message of the client on the attach WebSocket. Standard input travels in binary messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum AttachClientMessage {
    /// Standard input ends here.
    CloseStdin {},
    /// The terminal has a new size.
    Resize {
        /// Columns.
        cols: u16,
        /// Rows.
        rows: u16,
    },
    /// Send a signal.
    Signal {
        /// Name (`TERM`, `SIGINT`) or number.
        signal: String,
        /// To the whole tree rather than the process group.
        #[serde(default)]
        tree: bool,
    },
}

/// Binary message of the server on the attach WebSocket: one byte stream (1 stdout, 2 stderr), eight bytes
/// big-endian offset, then the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputFrame {
    /// Which stream.
    pub stream: OutputStream,
    /// Offset of the first byte.
    pub offset: u64,
}

impl OutputFrame {
    /// Bytes before the output.
    pub const HEADER_BYTES: usize = 9;

    /// The bytes before the output.
    #[must_use]
    pub fn encode(self) -> [u8; Self::HEADER_BYTES] {
        let mut header = [0; Self::HEADER_BYTES];
        header[0] = match self.stream {
            OutputStream::Stdout => 1,
            OutputStream::Stderr => 2,
        };
        header[1..].copy_from_slice(&self.offset.to_be_bytes());
        header
    }

    /// Splits a message into header and output; `None` when it is malformed.
    #[must_use]
    pub fn decode(message: &[u8]) -> Option<(Self, &[u8])> {
        let (header, output) = message.split_first_chunk::<{ Self::HEADER_BYTES }>()?;
        let stream = match header[0] {
            1 => OutputStream::Stdout,
            2 => OutputStream::Stderr,
            _ => return None,
        };
        let offset = u64::from_be_bytes(*header.last_chunk::<8>()?);
        Some((Self { stream, offset }, output))
    }
}

/// Sends a signal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalExec {
    /// Name (`TERM`, `SIGINT`) or number.
    pub signal: String,
    /// To the whole tree rather than the process group.
    #[serde(default)]
    pub tree: bool,
}

/// Changes the terminal's size.
pub type Resize = TtySize;

/// Standard input was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StdinWritten {
    /// Bytes taken.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip() {
        let frame = OutputFrame { stream: OutputStream::Stderr, offset: 1 << 40 };
        let mut message = frame.encode().to_vec();
        message.extend_from_slice(b"xyz");
        assert_eq!(OutputFrame::decode(&message), Some((frame, &b"xyz"[..])));
        assert_eq!(OutputFrame::decode(&message[..8]), None);
        message[0] = 7;
        assert_eq!(OutputFrame::decode(&message), None);
    }

    #[test]
    fn chunks_keep_their_bytes() {
        for bytes in [&b"text"[..], b"\xff\x00", b""] {
            let chunk = OutputChunk::new(0, OutputStream::Stdout, bytes);
            assert_eq!(chunk.bytes().unwrap(), bytes);
        }
    }

    #[test]
    fn one_command_please() {
        assert!(CreateExec::default().into_draft().is_err());
        let both =
            CreateExec { argv: Some(vec!["a".into()]), shell: Some("b".into()), ..CreateExec::default() };
        assert!(both.into_draft().is_err());
    }
}
