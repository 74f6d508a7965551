//! What the tools take and give. The comments of fields are read by models: they are the descriptions in the schemas.

use std::collections::BTreeMap;

use rmcp::schemars;
use serde::{Deserialize, Serialize};

#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateParams {
    /// A name for people: lower-case letters, digits and hyphens. Tools take the id.
    #[serde(default)]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeleteParams {
    /// Id of the sandbox.
    pub(crate) sandbox: String,
}

/// A sandbox.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct SandboxInfo {
    /// Its id, which the other tools take as `sandbox`.
    pub(crate) id: String,
    /// Its name, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Where it is in its life, such as `running` or `paused`.
    pub(crate) state: String,
    /// Its image.
    pub(crate) image: String,
    /// How it is cut off: `container`, `gvisor` or `microvm`.
    pub(crate) isolation: String,
    /// Whether tools use it when `sandbox` is left out.
    pub(crate) default: bool,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct SandboxInfos {
    /// The sandboxes of this session.
    pub(crate) sandboxes: Vec<SandboxInfo>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Deleted {
    /// Id of the sandbox that is gone.
    pub(crate) sandbox: String,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunParams {
    /// A command line for `/bin/sh -c`.
    pub(crate) command: String,
    /// Id of the sandbox. Leave it out to use the session's own.
    #[serde(default)]
    pub(crate) sandbox: Option<String>,
    /// Working directory, absolute.
    #[serde(default)]
    pub(crate) cwd: Option<String>,
    /// Environment variables on top of the sandbox's.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// Kill it after this many seconds: 1 to 3600, 120 when left out. Use `start` for what takes longer.
    #[serde(default)]
    pub(crate) timeout_seconds: Option<u32>,
}

/// Bytes of an output that are not shown.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct LeftOut {
    /// Offset of the first of them: pass it to `read_output`.
    pub(crate) from: u64,
    /// One past the last of them.
    pub(crate) to: u64,
}

/// How a command ended.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Ended {
    /// Id of the command, for `read_output`.
    pub(crate) exec: String,
    /// Id of the sandbox it ran in.
    pub(crate) sandbox: String,
    /// Exit code as a shell sees it; absent when the sandbox ended under it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
    /// Why it ended: `exited`, `signaled`, `timed_out`, `out_of_memory`, `killed`, …
    pub(crate) reason: String,
    /// Standard output; its beginning and end when it is long.
    pub(crate) stdout: String,
    /// Standard error; its beginning and end when it is long.
    pub(crate) stderr: String,
    /// What is not shown of the output. Read on with `read_output`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) left_out: Option<LeftOut>,
    /// Bytes of output, both streams together.
    pub(crate) output_bytes: u64,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartParams {
    /// A command line for `/bin/sh -c`.
    pub(crate) command: String,
    /// Id of the sandbox. Leave it out to use the session's own.
    #[serde(default)]
    pub(crate) sandbox: Option<String>,
    /// Working directory, absolute.
    #[serde(default)]
    pub(crate) cwd: Option<String>,
    /// Environment variables on top of the sandbox's.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// Kill it after this many seconds; it runs until it ends or is stopped when left out.
    #[serde(default)]
    pub(crate) timeout_seconds: Option<u32>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Started {
    /// Id of the command, for `read_output` and `stop`.
    pub(crate) exec: String,
    /// Id of the sandbox it runs in.
    pub(crate) sandbox: String,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadOutputParams {
    /// Id of the command.
    pub(crate) exec: String,
    /// Id of the sandbox. Leave it out to use the session's own.
    #[serde(default)]
    pub(crate) sandbox: Option<String>,
    /// Where to begin, counted over both streams: 0, or `next_offset` of the answer before.
    #[serde(default)]
    pub(crate) offset: u64,
    /// Wait up to this many seconds for the first byte: at most 50.
    #[serde(default)]
    pub(crate) wait_seconds: Option<u32>,
    /// Show at most this many bytes: at most 65536, 32768 when left out.
    #[serde(default)]
    pub(crate) max_bytes: Option<u32>,
}

/// A piece of the output of a command.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Output {
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
    /// Pass it as `offset` to read on.
    pub(crate) next_offset: u64,
    /// Set when the output from `offset` to here was dropped, because there was too much of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dropped_until: Option<u64>,
    /// Whether there is nothing more to come: the command has ended and all was read.
    pub(crate) done: bool,
    /// Where the command is in its life: `running`, `exited`, …
    pub(crate) state: String,
    /// Exit code, once it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
    /// Why it ended, once it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StopParams {
    /// Id of the command.
    pub(crate) exec: String,
    /// Id of the sandbox. Leave it out to use the session's own.
    #[serde(default)]
    pub(crate) sandbox: Option<String>,
    /// A signal for its process group, such as `INT` or `TERM`. When left out it is killed with everything it started.
    #[serde(default)]
    pub(crate) signal: Option<String>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Stopped {
    /// Id of the command.
    pub(crate) exec: String,
    /// Where it is in its life now.
    pub(crate) state: String,
}

/// How the content of a file is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) enum Encoding {
    /// As it is.
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    /// Base64, for what is no UTF-8.
    #[serde(rename = "base64")]
    Base64,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadFileParams {
    /// Absolute path in the sandbox.
    pub(crate) path: String,
    /// Id of the sandbox. Leave it out to use the session's own.
    #[serde(default)]
    pub(crate) sandbox: Option<String>,
    /// First byte.
    #[serde(default)]
    pub(crate) offset: u64,
    /// Most bytes: at most 262144, 65536 when left out.
    #[serde(default)]
    pub(crate) max_bytes: Option<u32>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct FileContent {
    /// The path.
    pub(crate) path: String,
    /// The content.
    pub(crate) content: String,
    /// How it is written.
    pub(crate) encoding: Encoding,
    /// Pass it as `offset` to read on; absent at the end of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_offset: Option<u64>,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteFileParams {
    /// Absolute path in the sandbox. Missing directories are made; what is there is replaced.
    pub(crate) path: String,
    /// The whole content.
    pub(crate) content: String,
    /// How it is written; `utf-8` when left out.
    #[serde(default)]
    pub(crate) encoding: Encoding,
    /// Id of the sandbox. Leave it out to use the session's own.
    #[serde(default)]
    pub(crate) sandbox: Option<String>,
    /// Permissions in octal, such as `0755`; `0644` when left out.
    #[serde(default)]
    pub(crate) mode: Option<String>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct FileWritten {
    /// The path.
    pub(crate) path: String,
    /// Bytes written.
    pub(crate) bytes: u64,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListFilesParams {
    /// Absolute path of the directory.
    pub(crate) path: String,
    /// Id of the sandbox. Leave it out to use the session's own.
    #[serde(default)]
    pub(crate) sandbox: Option<String>,
    /// Levels of directories: 1 to 10, 1 when left out.
    #[serde(default)]
    pub(crate) depth: Option<u32>,
    /// Most entries: at most 1000, 200 when left out.
    #[serde(default)]
    pub(crate) limit: Option<u32>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct FileInfo {
    /// Full path.
    pub(crate) path: String,
    /// `file`, `directory`, `symlink` or `other`.
    pub(crate) kind: String,
    /// Size in bytes.
    pub(crate) bytes: u64,
    /// Permissions in octal.
    pub(crate) mode: String,
    /// Where a symbolic link points.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Files {
    /// The entries.
    pub(crate) entries: Vec<FileInfo>,
    /// Whether there are more.
    pub(crate) truncated: bool,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExposeParams {
    /// TCP port in the sandbox.
    pub(crate) port: u16,
    /// Id of the sandbox. Leave it out to use the session's own.
    #[serde(default)]
    pub(crate) sandbox: Option<String>,
    /// The address works for this many minutes: 1 to 1440, 60 when left out.
    #[serde(default)]
    pub(crate) minutes: Option<u32>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Exposed {
    /// Address with a token in it, to open in a browser. Whoever has it reaches the port.
    pub(crate) link: String,
    /// Address without the token.
    pub(crate) url: String,
    /// Header to send the token in when a program asks.
    pub(crate) header: String,
    /// The token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SnapshotParams {
    /// Id of the sandbox. Leave it out to use the session's own.
    #[serde(default)]
    pub(crate) sandbox: Option<String>,
    /// A line of text, to remember what it is.
    #[serde(default)]
    pub(crate) comment: Option<String>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Snapshotted {
    /// Id of the sandbox.
    pub(crate) sandbox: String,
    /// Number of the snapshot, for `rollback` and `diff`.
    pub(crate) snapshot: Option<u32>,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RollbackParams {
    /// Number of the snapshot, as `snapshot` gave it.
    pub(crate) to: u32,
    /// Id of the sandbox. Leave it out to use the session's own.
    #[serde(default)]
    pub(crate) sandbox: Option<String>,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiffParams {
    /// Number of the snapshot to compare with.
    pub(crate) from: u32,
    /// Number of a later snapshot; the present state when left out.
    #[serde(default)]
    pub(crate) to: Option<u32>,
    /// Id of the sandbox. Leave it out to use the session's own.
    #[serde(default)]
    pub(crate) sandbox: Option<String>,
    /// Show how small texts differ, too.
    #[serde(default)]
    pub(crate) text: bool,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct FileChange {
    /// Absolute path.
    pub(crate) path: String,
    /// `added`, `changed` or `removed`.
    pub(crate) change: String,
    /// `file`, `directory`, `symlink` or `other`.
    pub(crate) kind: String,
    /// The difference as `diff -u` shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<String>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Changes {
    /// What differs, by path.
    pub(crate) changes: Vec<FileChange>,
    /// Whether there is more than is shown.
    pub(crate) truncated: bool,
}
