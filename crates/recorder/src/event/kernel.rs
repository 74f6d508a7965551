//! What happens inside a sandbox, as a kernel or the sandbox's agent sees it: programs that begin and end, ends of
//! connections as a process has them, files that change. The event's witness says which of them it was.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{Process, is_false, is_zero};

/// A program that began to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStarted {
    /// Arguments, cut as [`crate::limits`] says.
    pub argv: Vec<String>,
    /// Whether arguments were cut.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cut: bool,
    /// Working directory, as the sandbox sees it; empty when not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cwd: String,
    /// User id inside.
    pub uid: u32,
    /// Path of the program, as the caller named it: a hint, `file` is what ran.
    pub path: String,
    /// What ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<Program>,
    /// The process that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Process>,
    /// The profile that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
}

/// The file that a process runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Device of the real file.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// Where it comes from.
    pub origin: Origin,
    /// BLAKE3 or SHA-256 of its content, as `blake3:…` or `sha256:…`, when that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The image layer that brought it, by digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
}

/// Where a program comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A layer of the image, unchanged.
    Image,
    /// Written or changed in the sandbox.
    Written,
    /// A volume, a memory file, or anything else.
    Other,
    /// What this installation shows to a sandbox whose processes may ask for other profiles: `atoll-run`, and the doors to profiles.
    Atoll,
}

/// A process that ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessExited {
    /// What it gave to `exit`, when it was not killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The signal that killed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// CPU time of all its threads, microseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cpu_us: u64,
    /// Most memory it had, bytes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub memory_peak_bytes: u64,
}

/// An end of a connection, as a process sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    /// `tcp`, `udp`.
    pub protocol: Transport,
    /// This end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<SocketAddr>,
    /// The other end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<SocketAddr>,
}

/// Transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// Anything else.
    Other,
}

/// A change of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEvent {
    /// What was done.
    pub action: FileAction,
    /// To which path, as the sandbox sees it.
    pub path: String,
    /// The new path of a renamed file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Digest of what was written, on request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// What was done to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileAction {
    /// Made.
    Created,
    /// Closed after writing.
    Written,
    /// Removed.
    Deleted,
    /// Got another name.
    Renamed,
}
