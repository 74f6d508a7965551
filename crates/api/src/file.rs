//! Files in a sandbox.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Device, socket or pipe.
    Other,
}

/// A file, directory or link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileEntry {
    /// Full path.
    pub path: String,
    /// What it is.
    pub kind: FileKind,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Permissions in octal, such as `0644`.
    pub mode: String,
    /// Owner id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Owner name, where the sandbox has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Group name, where the sandbox has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Last modification.
    pub modified_at_ms: i64,
    /// Where a symbolic link points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// Entries of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileList {
    /// The entries.
    pub items: Vec<FileEntry>,
    /// Whether there are more than could be listed.
    pub truncated: bool,
}

/// A file was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileWritten {
    /// Bytes written.
    pub bytes: u64,
}

/// Makes a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Mkdir {
    /// The path.
    pub path: String,
    /// Permissions in octal; `0755` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Owner; the sandbox's default user when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Make missing parents, and do not mind if it exists.
    #[serde(default)]
    pub parents: bool,
}

/// Renames a file or directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveFile {
    /// From.
    pub from: String,
    /// To.
    pub to: String,
    /// Fail when `to` exists.
    #[serde(default)]
    pub no_replace: bool,
}

/// Changes permissions, owner or both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Chmod {
    /// The path.
    pub path: String,
    /// New permissions in octal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// New owner: name or id, optionally `:group`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// What happened to a watched path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WatchChange {
    /// Came into being.
    Created,
    /// Content changed.
    Written,
    /// Went away.
    Removed,
    /// Renamed.
    Moved,
    /// Permissions, owner or times changed.
    Attributes,
    /// Changes were lost: look again.
    Overflow,
}

/// Event on the watch stream (SSE).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WatchMessage {
    /// What happened.
    pub change: WatchChange,
    /// The path.
    pub path: String,
    /// Where a moved path came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}
