//! Sandboxes.
//! Names and numbers are the protocol's, as the descriptors in the wheels of `modal` 1.5 and 1.6 have them. Members of
//! a `oneof` are optional fields here: on the wire that is the same. Enumerations are numbers.

use bytes::Bytes;

use super::common::{
    GenericResult, ImageMetadata, NetworkAccess, PTYInfo, SecretSource, StringMap, TaskLogs, VolumeMount,
};

use super::messages;

messages! {
    /// Graphics cards.
    GPUConfig {
        #[prost(uint32, tag = "2")] pub(crate) count: u32,
    }
    /// Limits.
    Resources {
        #[prost(uint32, tag = "2")] pub(crate) memory_mb: u32,
        #[prost(uint32, tag = "3")] pub(crate) milli_cpu: u32,
        #[prost(message, optional, tag = "4")] pub(crate) gpu_config: Option<GPUConfig>,
        #[prost(uint32, tag = "5")] pub(crate) memory_mb_max: u32,
        #[prost(uint32, tag = "7")] pub(crate) milli_cpu_max: u32,
    }
    /// A port to be reached from outside.
    PortSpec {
        #[prost(uint32, tag = "1")] pub(crate) port: u32,
        #[prost(bool, tag = "2")] pub(crate) unencrypted: bool,
    }
    /// Those of a sandbox.
    PortSpecs {
        #[prost(message, repeated, tag = "1")] pub(crate) ports: Vec<PortSpec>,
    }
    /// A command that succeeds once the sandbox is ready.
    ProbeExecCommand {
        #[prost(string, repeated, tag = "1")] pub(crate) argv: Vec<String>,
    }
    /// When it is ready.
    Probe {
        #[prost(uint32, optional, tag = "1")] pub(crate) tcp_port: Option<u32>,
        #[prost(message, optional, tag = "2")] pub(crate) exec_command: Option<ProbeExecCommand>,
        #[prost(uint32, optional, tag = "3")] pub(crate) interval_ms: Option<u32>,
    }
    /// A network file system.
    SharedVolumeMount {
        #[prost(string, tag = "1")] pub(crate) mount_path: String,
    }
    /// A bucket.
    CloudBucketMount {
        #[prost(string, tag = "2")] pub(crate) mount_path: String,
    }
    /// The sandbox to make.
    Sandbox {
        #[prost(string, repeated, tag = "1")] pub(crate) entrypoint_args: Vec<String>,
        #[prost(string, repeated, tag = "2")] pub(crate) mount_ids: Vec<String>,
        #[prost(string, tag = "3")] pub(crate) image_id: String,
        #[prost(string, repeated, tag = "4")] pub(crate) secret_ids: Vec<String>,
        #[prost(message, optional, tag = "5")] pub(crate) resources: Option<Resources>,
        #[prost(uint32, tag = "7")] pub(crate) timeout_secs: u32,
        #[prost(string, optional, tag = "8")] pub(crate) workdir: Option<String>,
        #[prost(message, repeated, tag = "9")] pub(crate) nfs_mounts: Vec<SharedVolumeMount>,
        #[prost(bool, tag = "11")] pub(crate) block_network: bool,
        #[prost(message, repeated, tag = "14")] pub(crate) cloud_bucket_mounts: Vec<CloudBucketMount>,
        #[prost(message, repeated, tag = "13")] pub(crate) volume_mounts: Vec<VolumeMount>,
        #[prost(message, optional, tag = "15")] pub(crate) pty_info: Option<PTYInfo>,
        #[prost(message, optional, tag = "20")] pub(crate) open_ports: Option<PortSpecs>,
        #[prost(bool, tag = "21")] pub(crate) i6pn_enabled: bool,
        #[prost(message, optional, tag = "22")] pub(crate) network_access: Option<NetworkAccess>,
        #[prost(string, optional, tag = "23")] pub(crate) proxy_id: Option<String>,
        #[prost(string, optional, tag = "30")] pub(crate) name: Option<String>,
        #[prost(uint32, optional, tag = "33")] pub(crate) idle_timeout_secs: Option<u32>,
        #[prost(string, tag = "36")] pub(crate) custom_domain: String,
        #[prost(bool, tag = "37")] pub(crate) include_oidc_identity_token: bool,
        #[prost(message, optional, tag = "38")] pub(crate) readiness_probe: Option<Probe>,
        #[prost(string, repeated, tag = "39")] pub(crate) inbound_cidr_allowlist: Vec<String>,
        #[prost(message, optional, tag = "40")] pub(crate) environment_variables: Option<StringMap>,
        #[prost(message, optional, tag = "42")] pub(crate) experimental_outbound_policy: Option<ExperimentalOutboundPolicy>,
        #[prost(message, optional, tag = "44")] pub(crate) outbound_policy: Option<OutboundPolicy>,
    }
    /// A tag.
    SandboxTag {
        #[prost(string, tag = "1")] pub(crate) tag_name: String,
        #[prost(string, tag = "2")] pub(crate) tag_value: String,
    }
    /// A creation by older clients.
    SandboxCreateRequest {
        #[prost(string, tag = "1")] pub(crate) app_id: String,
        #[prost(message, optional, tag = "2")] pub(crate) definition: Option<Sandbox>,
        #[prost(string, tag = "3")] pub(crate) environment_name: String,
        #[prost(message, repeated, tag = "4")] pub(crate) tags: Vec<SandboxTag>,
    }
    /// The sandbox that was made.
    SandboxCreateResponse {
        #[prost(string, tag = "1")] pub(crate) sandbox_id: String,
        #[prost(message, optional, tag = "2")] pub(crate) metadata: Option<SandboxHandleMetadata>,
    }
    /// A creation.
    SandboxCreateV2Request {
        #[prost(string, tag = "1")] pub(crate) app_id: String,
        #[prost(message, optional, tag = "2")] pub(crate) definition: Option<Sandbox>,
        #[prost(message, optional, tag = "3")] pub(crate) ephemeral_secrets: Option<StringMap>,
        #[prost(message, repeated, tag = "4")] pub(crate) tags: Vec<SandboxTag>,
        #[prost(message, repeated, tag = "6")] pub(crate) secret_sources: Vec<SecretSource>,
    }
    /// Where a port is reached.
    TunnelData {
        #[prost(string, tag = "1")] pub(crate) host: String,
        #[prost(uint32, tag = "2")] pub(crate) port: u32,
        #[prost(string, optional, tag = "3")] pub(crate) unencrypted_host: Option<String>,
        #[prost(uint32, optional, tag = "4")] pub(crate) unencrypted_port: Option<u32>,
        #[prost(uint32, tag = "5")] pub(crate) container_port: u32,
    }
    /// The address and the token for commands.
    CommandRouterAccess {
        #[prost(string, tag = "1")] pub(crate) jwt: String,
        #[prost(string, tag = "2")] pub(crate) url: String,
    }
    /// The app of a sandbox, and how the sandbox ended.
    SandboxHandleMetadata {
        #[prost(message, optional, tag = "1")] pub(crate) result: Option<GenericResult>,
        #[prost(string, tag = "2")] pub(crate) app_id: String,
    }
    /// The sandbox that was made.
    SandboxCreateV2Response {
        #[prost(string, tag = "1")] pub(crate) sandbox_id: String,
        #[prost(message, repeated, tag = "2")] pub(crate) tunnels: Vec<TunnelData>,
        #[prost(string, tag = "3")] pub(crate) task_id: String,
        #[prost(message, optional, tag = "4")] pub(crate) metadata: Option<SandboxHandleMetadata>,
        #[prost(message, optional, tag = "5")] pub(crate) command_router_access: Option<CommandRouterAccess>,
        #[prost(string, tag = "6")] pub(crate) sandbox_token: String,
    }
    /// The sandbox whose ports are asked for.
    SandboxGetTunnelsRequest {
        #[prost(string, tag = "1")] pub(crate) sandbox_id: String,
        #[prost(float, tag = "2")] pub(crate) timeout: f32,
    }
    /// Where they are reached.
    SandboxGetTunnelsResponse {
        #[prost(message, optional, tag = "1")] pub(crate) result: Option<GenericResult>,
        #[prost(message, repeated, tag = "2")] pub(crate) tunnels: Vec<TunnelData>,
    }
    /// Wait so long for its end, seconds.
    SandboxWaitRequest {
        #[prost(string, tag = "1")] pub(crate) sandbox_id: String,
        #[prost(float, tag = "2")] pub(crate) timeout: f32,
    }
    /// The end, if it came.
    SandboxWaitResponse {
        #[prost(message, optional, tag = "1")] pub(crate) result: Option<GenericResult>,
        #[prost(message, optional, tag = "2")] pub(crate) metadata: Option<SandboxHandleMetadata>,
    }
    /// Which.
    SandboxTerminateRequest {
        #[prost(string, tag = "1")] pub(crate) sandbox_id: String,
    }
    /// How it had ended already.
    SandboxTerminateResponse {
        #[prost(message, optional, tag = "1")] pub(crate) existing_result: Option<GenericResult>,
    }
    /// Which.
    SandboxGetTaskIdRequest {
        #[prost(string, tag = "1")] pub(crate) sandbox_id: String,
        #[prost(float, optional, tag = "2")] pub(crate) timeout: Option<f32>,
        #[prost(bool, tag = "3")] pub(crate) wait_until_ready: bool,
    }
    /// Its task.
    SandboxGetTaskIdResponse {
        #[prost(string, optional, tag = "1")] pub(crate) task_id: Option<String>,
        #[prost(message, optional, tag = "2")] pub(crate) task_result: Option<GenericResult>,
    }
    /// Which task.
    TaskGetCommandRouterAccessRequest {
        #[prost(string, tag = "1")] pub(crate) task_id: String,
    }
    /// Where its commands are run.
    TaskGetCommandRouterAccessResponse {
        #[prost(string, tag = "1")] pub(crate) jwt: String,
        #[prost(string, tag = "2")] pub(crate) url: String,
    }
    /// Which sandbox or task.
    SandboxGetCommandRouterAccessRequest {
        #[prost(string, optional, tag = "1")] pub(crate) sandbox_id: Option<String>,
        #[prost(string, optional, tag = "2")] pub(crate) task_id: Option<String>,
    }
    /// Where its commands are run.
    SandboxGetCommandRouterAccessResponse {
        #[prost(string, tag = "1")] pub(crate) jwt: String,
        #[prost(string, tag = "2")] pub(crate) url: String,
    }
    /// Which sandboxes.
    SandboxListRequest {
        #[prost(string, tag = "1")] pub(crate) app_id: String,
        #[prost(double, tag = "2")] pub(crate) before_timestamp: f64,
        #[prost(string, tag = "3")] pub(crate) environment_name: String,
        #[prost(bool, tag = "4")] pub(crate) include_finished: bool,
        #[prost(message, repeated, tag = "5")] pub(crate) tags: Vec<SandboxTag>,
    }
    /// The task of a sandbox.
    TaskInfo {
        #[prost(string, tag = "1")] pub(crate) id: String,
        #[prost(double, tag = "2")] pub(crate) started_at: f64,
        #[prost(double, tag = "3")] pub(crate) finished_at: f64,
        #[prost(message, optional, tag = "4")] pub(crate) result: Option<GenericResult>,
        #[prost(string, tag = "7")] pub(crate) sandbox_id: String,
    }
    /// A sandbox in a list.
    SandboxInfo {
        #[prost(string, tag = "1")] pub(crate) id: String,
        #[prost(double, tag = "3")] pub(crate) created_at: f64,
        #[prost(message, optional, tag = "4")] pub(crate) task_info: Option<TaskInfo>,
        #[prost(string, tag = "5")] pub(crate) app_id: String,
        #[prost(message, repeated, tag = "6")] pub(crate) tags: Vec<SandboxTag>,
        #[prost(string, tag = "7")] pub(crate) name: String,
        #[prost(string, tag = "8")] pub(crate) image_id: String,
        #[prost(uint32, tag = "11")] pub(crate) timeout_secs: u32,
        #[prost(uint32, optional, tag = "12")] pub(crate) idle_timeout_secs: Option<u32>,
        #[prost(message, optional, tag = "16")] pub(crate) metadata: Option<SandboxHandleMetadata>,
    }
    /// A page of them.
    SandboxListResponse {
        #[prost(message, repeated, tag = "1")] pub(crate) sandboxes: Vec<SandboxInfo>,
    }
    /// Which.
    SandboxGetFromNameRequest {
        #[prost(string, tag = "1")] pub(crate) sandbox_name: String,
        #[prost(string, tag = "2")] pub(crate) environment_name: String,
        #[prost(string, tag = "3")] pub(crate) app_name: String,
        #[prost(bool, tag = "4")] pub(crate) include_terminated: bool,
    }
    /// It.
    SandboxGetFromNameResponse {
        #[prost(string, tag = "1")] pub(crate) sandbox_id: String,
        #[prost(message, optional, tag = "2")] pub(crate) metadata: Option<SandboxHandleMetadata>,
    }
    /// The sandbox whose tags are asked for.
    SandboxTagsGetRequest {
        #[prost(string, tag = "1")] pub(crate) sandbox_id: String,
    }
    /// They.
    SandboxTagsGetResponse {
        #[prost(message, repeated, tag = "1")] pub(crate) tags: Vec<SandboxTag>,
    }
    /// All its tags from now on.
    SandboxTagsSetRequest {
        #[prost(string, tag = "1")] pub(crate) environment_name: String,
        #[prost(string, tag = "2")] pub(crate) sandbox_id: String,
        #[prost(message, repeated, tag = "3")] pub(crate) tags: Vec<SandboxTag>,
    }
    /// Its new name.
    SandboxSetNameRequest {
        #[prost(string, tag = "1")] pub(crate) sandbox_id: String,
        #[prost(string, tag = "2")] pub(crate) name: String,
    }
    /// Done.
    SandboxSetNameResponse {
    }
    /// A token for a port.
    SandboxCreateConnectTokenRequest {
        #[prost(string, tag = "1")] pub(crate) sandbox_id: String,
        #[prost(string, tag = "2")] pub(crate) user_metadata: String,
        #[prost(uint32, optional, tag = "3")] pub(crate) port: Option<u32>,
    }
    /// The way there.
    SandboxCreateConnectTokenResponse {
        #[prost(string, tag = "1")] pub(crate) url: String,
        #[prost(string, tag = "2")] pub(crate) token: String,
    }
    /// The sandbox whose memory to save.
    SandboxSnapshotRequest {
        #[prost(string, tag = "1")] pub(crate) sandbox_id: String,
    }
    /// The snapshot.
    SandboxSnapshotResponse {
        #[prost(string, tag = "1")] pub(crate) snapshot_id: String,
    }
    /// Which.
    SandboxSnapshotWaitRequest {
        #[prost(string, tag = "1")] pub(crate) snapshot_id: String,
        #[prost(float, tag = "2")] pub(crate) timeout: f32,
    }
    /// How it ended.
    SandboxSnapshotWaitResponse {
        #[prost(message, optional, tag = "1")] pub(crate) result: Option<GenericResult>,
    }
    /// Which.
    SandboxSnapshotGetRequest {
        #[prost(string, tag = "1")] pub(crate) snapshot_id: String,
    }
    /// What is known of it.
    SandboxSnapshotHandleMetadata {
        #[prost(bool, tag = "1")] pub(crate) is_v2: bool,
    }
    /// It.
    SandboxSnapshotGetResponse {
        #[prost(string, tag = "1")] pub(crate) snapshot_id: String,
        #[prost(message, optional, tag = "2")] pub(crate) handle_metadata: Option<SandboxSnapshotHandleMetadata>,
    }
    /// The sandbox whose disk to save.
    SandboxSnapshotFsRequest {
        #[prost(string, tag = "1")] pub(crate) sandbox_id: String,
        #[prost(float, tag = "2")] pub(crate) timeout: f32,
    }
    /// The image.
    SandboxSnapshotFsResponse {
        #[prost(string, tag = "1")] pub(crate) image_id: String,
        #[prost(message, optional, tag = "2")] pub(crate) result: Option<GenericResult>,
        #[prost(message, optional, tag = "3")] pub(crate) image_metadata: Option<ImageMetadata>,
    }
    /// The snapshot to go on from.
    SandboxRestoreRequest {
        #[prost(string, tag = "1")] pub(crate) snapshot_id: String,
        #[prost(string, tag = "2")] pub(crate) sandbox_name_override: String,
        #[prost(int32, tag = "3")] pub(crate) sandbox_name_override_type: i32,
    }
    /// The new sandbox.
    SandboxRestoreResponse {
        #[prost(string, tag = "1")] pub(crate) sandbox_id: String,
    }
    /// The snapshot to go on from.
    SandboxRestoreV2Request {
        #[prost(string, tag = "1")] pub(crate) snapshot_id: String,
        #[prost(string, tag = "2")] pub(crate) sandbox_name_override: String,
        #[prost(int32, tag = "3")] pub(crate) sandbox_name_override_type: i32,
    }
    /// The new sandbox.
    SandboxRestoreV2Response {
        #[prost(string, tag = "1")] pub(crate) sandbox_id: String,
        #[prost(message, repeated, tag = "2")] pub(crate) tunnels: Vec<TunnelData>,
        #[prost(string, tag = "3")] pub(crate) task_id: String,
        #[prost(message, optional, tag = "4")] pub(crate) metadata: Option<SandboxHandleMetadata>,
        #[prost(message, optional, tag = "5")] pub(crate) command_router_access: Option<CommandRouterAccess>,
    }
    /// Output of the first command.
    SandboxGetLogsRequest {
        #[prost(string, tag = "1")] pub(crate) sandbox_id: String,
        #[prost(int32, tag = "2")] pub(crate) file_descriptor: i32,
        #[prost(float, tag = "3")] pub(crate) timeout: f32,
        #[prost(string, tag = "4")] pub(crate) last_entry_id: String,
    }
    /// A piece of it.
    TaskLogsBatch {
        #[prost(message, repeated, tag = "2")] pub(crate) items: Vec<TaskLogs>,
        #[prost(string, tag = "5")] pub(crate) entry_id: String,
        #[prost(bool, tag = "14")] pub(crate) eof: bool,
    }
    /// Input of the first command.
    SandboxStdinWriteRequest {
        #[prost(string, tag = "1")] pub(crate) sandbox_id: String,
        #[prost(bytes = "bytes", tag = "2")] pub(crate) input: Bytes,
        #[prost(uint32, tag = "3")] pub(crate) index: u32,
        #[prost(bool, tag = "4")] pub(crate) eof: bool,
    }
    /// Done.
    SandboxStdinWriteResponse {
    }
    /// Rules for what goes out.
    ExperimentalOutboundPolicy {
    }
    /// Rules for what goes out.
    OutboundPolicy {
    }
}
