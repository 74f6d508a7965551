//! The task command router: commands.
//! Names and numbers are the protocol's, as the descriptors in the wheels of `modal` 1.5 and 1.6 have them. Members of
//! a `oneof` are optional fields here: on the wire that is the same. Enumerations are numbers.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::common::{NetworkAccess, PTYInfo, SecretSource};

use super::messages;

messages! {
    /// A command.
    TaskExecStartRequest {
        #[prost(string, tag = "1")] pub(crate) task_id: String,
        #[prost(string, tag = "2")] pub(crate) exec_id: String,
        #[prost(string, repeated, tag = "3")] pub(crate) command_args: Vec<String>,
        #[prost(int32, tag = "4")] pub(crate) stdout_config: i32,
        #[prost(int32, tag = "5")] pub(crate) stderr_config: i32,
        #[prost(uint32, optional, tag = "6")] pub(crate) timeout_secs: Option<u32>,
        #[prost(string, optional, tag = "7")] pub(crate) workdir: Option<String>,
        #[prost(string, repeated, tag = "8")] pub(crate) secret_ids: Vec<String>,
        #[prost(message, optional, tag = "9")] pub(crate) pty_info: Option<PTYInfo>,
        #[prost(string, tag = "11")] pub(crate) container_id: String,
        #[prost(btree_map = "string, string", tag = "12")] pub(crate) env: BTreeMap<String, String>,
        #[prost(message, repeated, tag = "13")] pub(crate) secret_sources: Vec<SecretSource>,
    }
    /// It runs.
    TaskExecStartResponse {
    }
    /// Which.
    TaskExecPollRequest {
        #[prost(string, tag = "1")] pub(crate) task_id: String,
        #[prost(string, tag = "2")] pub(crate) exec_id: String,
    }
    /// How it ended, if it has.
    TaskExecPollResponse {
        #[prost(int32, optional, tag = "1")] pub(crate) code: Option<i32>,
        #[prost(int32, optional, tag = "2")] pub(crate) signal: Option<i32>,
    }
    /// Which.
    TaskExecWaitRequest {
        #[prost(string, tag = "1")] pub(crate) task_id: String,
        #[prost(string, tag = "2")] pub(crate) exec_id: String,
    }
    /// How it ended.
    TaskExecWaitResponse {
        #[prost(int32, optional, tag = "1")] pub(crate) code: Option<i32>,
        #[prost(int32, optional, tag = "2")] pub(crate) signal: Option<i32>,
    }
    /// Output from an offset of one stream.
    TaskExecStdioReadRequest {
        #[prost(string, tag = "1")] pub(crate) task_id: String,
        #[prost(string, tag = "2")] pub(crate) exec_id: String,
        #[prost(uint64, tag = "3")] pub(crate) offset: u64,
        #[prost(int32, tag = "4")] pub(crate) file_descriptor: i32,
    }
    /// Some of it.
    TaskExecStdioReadResponse {
        #[prost(bytes = "bytes", tag = "1")] pub(crate) data: Bytes,
    }
    /// Input at an offset.
    TaskExecStdinWriteRequest {
        #[prost(string, tag = "1")] pub(crate) task_id: String,
        #[prost(string, tag = "2")] pub(crate) exec_id: String,
        #[prost(uint64, tag = "3")] pub(crate) offset: u64,
        #[prost(bytes = "bytes", tag = "4")] pub(crate) data: Bytes,
        #[prost(bool, tag = "5")] pub(crate) eof: bool,
    }
    /// It has it.
    TaskExecStdinWriteResponse {
    }
    /// How much input has it?
    TaskExecStdinStatusRequest {
        #[prost(string, tag = "1")] pub(crate) task_id: String,
        #[prost(string, tag = "2")] pub(crate) exec_id: String,
    }
    /// So much.
    TaskExecStdinStatusResponse {
        #[prost(uint64, tag = "1")] pub(crate) num_bytes_written: u64,
        #[prost(bool, tag = "2")] pub(crate) closed: bool,
    }
    /// Which command, and where its input goes on.
    TaskExecStdinWriteStreamStart {
        #[prost(string, tag = "1")] pub(crate) task_id: String,
        #[prost(string, tag = "2")] pub(crate) exec_id: String,
        #[prost(uint64, tag = "3")] pub(crate) offset: u64,
    }
    /// The input's end.
    TaskExecStdinWriteStreamEnd {
    }
    /// A piece of input.
    TaskExecStdinWriteStreamRequest {
        #[prost(message, optional, tag = "1")] pub(crate) start: Option<TaskExecStdinWriteStreamStart>,
        #[prost(bytes = "bytes", optional, tag = "2")] pub(crate) data: Option<Bytes>,
        #[prost(message, optional, tag = "3")] pub(crate) end: Option<TaskExecStdinWriteStreamEnd>,
    }
    /// It has all.
    TaskExecStdinWriteStreamResponse {
    }
    /// Output of the first command.
    SandboxStdioReadV2Request {
        #[prost(string, tag = "1")] pub(crate) task_id: String,
        #[prost(uint64, tag = "2")] pub(crate) offset: u64,
        #[prost(int32, tag = "3")] pub(crate) file_descriptor: i32,
    }
    /// Some of it.
    SandboxStdioReadV2Response {
        #[prost(bytes = "bytes", tag = "1")] pub(crate) data: Bytes,
        #[prost(uint64, tag = "2")] pub(crate) starting_offset: u64,
    }
    /// Input of the first command.
    SandboxStdinWriteV2Request {
        #[prost(string, tag = "1")] pub(crate) task_id: String,
        #[prost(uint64, tag = "2")] pub(crate) offset: u64,
        #[prost(bytes = "bytes", tag = "3")] pub(crate) data: Bytes,
        #[prost(bool, tag = "4")] pub(crate) eof: bool,
    }
    /// It has it.
    SandboxStdinWriteV2Response {
    }
    /// Wait so long, seconds.
    SandboxWaitUntilReadyTcrRequest {
        #[prost(string, tag = "1")] pub(crate) task_id: String,
        #[prost(float, tag = "2")] pub(crate) timeout: f32,
    }
    /// When it was.
    SandboxWaitUntilReadyTcrResponse {
        #[prost(double, tag = "1")] pub(crate) ready_at: f64,
    }
    /// The disk as an image.
    TaskSnapshotFilesystemRequest {
        #[prost(string, tag = "1")] pub(crate) task_id: String,
        #[prost(string, tag = "2")] pub(crate) snapshot_id: String,
        #[prost(int64, optional, tag = "3")] pub(crate) ttl_seconds: Option<i64>,
        #[prost(bytes = "bytes", optional, tag = "4")] pub(crate) customer_supplied_encryption_key: Option<Bytes>,
        #[prost(string, tag = "5")] pub(crate) container_id: String,
    }
    /// The image.
    TaskSnapshotFilesystemResponse {
        #[prost(string, tag = "1")] pub(crate) image_id: String,
    }
    /// A directory as an image.
    TaskSnapshotDirectoryRequest {
        #[prost(string, tag = "1")] pub(crate) task_id: String,
        #[prost(bytes = "bytes", tag = "2")] pub(crate) path: Bytes,
        #[prost(string, tag = "3")] pub(crate) snapshot_id: String,
        #[prost(int64, optional, tag = "4")] pub(crate) ttl_seconds: Option<i64>,
        #[prost(bytes = "bytes", optional, tag = "5")] pub(crate) customer_supplied_encryption_key: Option<Bytes>,
        #[prost(string, tag = "6")] pub(crate) container_id: String,
    }
    /// The image.
    TaskSnapshotDirectoryResponse {
        #[prost(string, tag = "1")] pub(crate) image_id: String,
    }
    /// An image in a directory; without an id an empty one.
    TaskMountDirectoryRequest {
        #[prost(string, tag = "1")] pub(crate) task_id: String,
        #[prost(bytes = "bytes", tag = "2")] pub(crate) path: Bytes,
        #[prost(string, tag = "3")] pub(crate) image_id: String,
        #[prost(bytes = "bytes", optional, tag = "4")] pub(crate) customer_supplied_encryption_key: Option<Bytes>,
        #[prost(string, tag = "5")] pub(crate) container_id: String,
    }
    /// Which directory.
    TaskUnmountDirectoryRequest {
        #[prost(string, tag = "1")] pub(crate) task_id: String,
        #[prost(bytes = "bytes", tag = "2")] pub(crate) path: Bytes,
        #[prost(string, tag = "3")] pub(crate) container_id: String,
    }
    /// Disk and processes.
    TaskSnapshotMemoryRequest {
        #[prost(string, tag = "1")] pub(crate) task_id: String,
        #[prost(string, tag = "2")] pub(crate) idempotency_key: String,
    }
    /// The snapshot.
    TaskSnapshotMemoryResponse {
        #[prost(string, tag = "1")] pub(crate) snapshot_id: String,
    }
    /// Volumes as they are now.
    TaskReloadVolumesRequest {
        #[prost(string, tag = "1")] pub(crate) task_id: String,
        #[prost(string, tag = "2")] pub(crate) container_id: String,
    }
    /// Done.
    TaskReloadVolumesResponse {
    }
    /// The hosts that the sandbox may reach from now on.
    TaskSetNetworkAccessRequest {
        #[prost(string, tag = "1")] pub(crate) task_id: String,
        #[prost(message, optional, tag = "2")] pub(crate) network_access: Option<NetworkAccess>,
    }
    /// Done.
    TaskSetNetworkAccessResponse {
    }
}
