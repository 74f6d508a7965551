//! What this server knows because it did it: calls of its APIs, what a sandbox was made as, commands that clients started.
//! Command lines are kept without words that look like a credential, paths without their query.

use serde::{Deserialize, Serialize};

use super::{is_false, is_zero};

/// A call of an API.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// `atoll`, `langsmith`, `e2b`, `ssh`, …
    pub protocol: String,
    /// HTTP method, or the word of the protocol.
    pub method: String,
    /// Path without the query.
    pub path: String,
    /// The id of the API key; none when the caller had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The person whose key it is, if a person logged in: the issuer's name for them, and the issuer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Their address for mail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// The name that the caller gave for the client that works with the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// The id of the request, as in the server's log.
    pub request_id: String,
    /// HTTP status of the answer.
    pub status: u16,
    /// The error's code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Until the answer's head, microseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub latency_us: u64,
    /// The trace that the caller belongs to (W3C `traceparent`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// What a sandbox was made as.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    /// Its name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `container`, `gvisor`, `microvm`.
    pub isolation: String,
    /// The image or snapshot it was made from.
    pub source: String,
    /// The key that asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// CPU, in thousandths of a core.
    pub cpu_millis: u64,
    /// Memory, bytes.
    pub memory_bytes: u64,
}

/// A command that was started through the API.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecStarted {
    /// Arguments.
    pub argv: Vec<String>,
    /// Whether arguments were cut.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cut: bool,
    /// Working directory; empty: the image's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cwd: String,
    /// User; empty: the image's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Names of the variables that were given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Whether it runs on a terminal.
    #[serde(default, skip_serializing_if = "is_false")]
    pub tty: bool,
    /// The key that asked; none for what a template starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Pid inside, once it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The caller's span (W3C `traceparent`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// A command that ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecEnded {
    /// Exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The signal that killed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// How it came to its end, as the API names it.
    pub reason: String,
    /// CPU time of its whole tree, microseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cpu_us: u64,
}
