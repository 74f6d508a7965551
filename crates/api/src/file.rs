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

/// Finds files by the pattern of their path, or lines in them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FindFiles {
    /// Absolute path of the directory below which to look.
    pub path: String,
    /// What paths below it must look like; all when absent. `*`, `?` and `[…]` stand for characters of one
    /// name, `**` for any number of names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// Text to look for in the files, as it is: then lines are found, else files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Most that is found: 1 to 100,000, 1000 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// A file, or a line in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FoundFile {
    /// The file.
    pub file: FileEntry,
    /// Number of the line, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// The line; of one that is longer than 4 KiB, the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FoundFiles {
    /// In the order of their paths, a directory's own files before those below it.
    pub items: Vec<FoundFile>,
    /// There was more.
    pub truncated: bool,
}
