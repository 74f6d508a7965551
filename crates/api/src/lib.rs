//! The native API, `/v1`: what travels, and nothing else.
//!
//! Conventions: times are milliseconds since the epoch and end in `_at_ms`; durations end in `_ms`;
//! sizes end in `_bytes`. Unknown fields in requests are errors. Lists are pages: `items` and, when
//! there is more, `next_cursor`. Every error has the body [`ErrorBody`].

mod access;
mod agent;
mod agent_schedule;
mod build;
mod checkpoint;
mod code;
mod dashboard;
mod exec;
mod file;
mod image;
mod key;
mod live;
mod login;
mod node;
mod pool;
mod project;
mod sandbox;
mod secret;
mod service;
mod sharing;
mod snapshot;
mod ssh;
mod system;
mod template;
mod trace;
mod usage;
mod volume;

pub use access::{Access, AccessCreated, AccessFile, AccessList, CreateAccess, Port, PortList};
pub use agent::{
    Agent, AgentEvent, AgentEventPage, AgentList, AgentSession, AgentSessionList, AnswerApproval,
    CreateAgent, CreateAgentSession, ForkAgent, ForkedAgent, ForkedAgents, SendAgentMessage,
    SessionClientMessage, SessionServerMessage, UpdateAgent,
};
pub use agent_schedule::{AgentSchedule, AgentScheduleList, CreateAgentSchedule};
pub use atoll_core::key::{KeyFormat, Scope};
pub use atoll_core::sharing::{Role, Visibility};
pub use atoll_core::volume::{VolumeMount, VolumeMountDraft, VolumeState};
pub use build::{
    Build, BuildCacheEntry, BuildCacheList, BuildCachePruned, BuildList, BuildLogPage, CreateBuild,
    PruneBuildCache,
};
pub use checkpoint::{CreateCheckpoint, ForkSandbox, RollbackSandbox, RolledBack};
pub use code::{
    Cell, CellEvent, CellEventPage, CellList, CellWithEvents, Context, ContextList, CreateContext, RunCell,
};
pub use dashboard::DashboardLink;
pub use exec::{
    AttachClientMessage, AttachServerMessage, CreateExec, Encoding, Exec, ExecList, ExecWithOutput,
    OutputChunk, OutputFrame, OutputPage, Resize, SignalExec, StdinWritten,
};
pub use file::{
    Chmod, FileEntry, FileKind, FileList, FileWritten, FindFiles, FoundFile, FoundFiles, Mkdir, MoveFile,
    WatchChange, WatchMessage,
};
pub use image::{
    Image, ImageList, ImagePlace, ImageProgress, LayerPhase, PruneResult, PullImage, RegistryCredentials,
    RegistryEntry, RegistryList, RemovedImage,
};
pub use key::{CreateKey, Key, KeyCreated, KeyList, KeyPerson};
pub use live::{LiveUsage, LiveUsageList};
pub use login::{DeviceLogin, DeviceLoginPolled, DeviceLoginState, PollDeviceLogin};
pub use node::{Node, NodeDrain, NodeList, NodeState, StayingSandbox, UpdateNode};
pub use pool::{Pool, PoolList, PoolOrigin, PutPool};
pub use project::{
    CreateProject, Project, ProjectContent, ProjectDefaults, ProjectList, Quota, QuotaUsed, UpdateProject,
};
pub use sandbox::{
    BatchCreate, BatchResult, BatchResults, CreateSandbox, DiskIo, Metrics, Sandbox, SandboxList,
    UpdateSandbox,
};
pub use secret::{PutSecret, Secret, SecretList, SecretUse, SecretUseList, SecretVersion, VaultRotated};
pub use service::{CreateService, Service, ServiceList, ServiceLogChunk, ServiceLogPage};
pub use sharing::{Grant, Lease, LeaseStatus, PutGrant, SandboxAccess, SetVisibility, TakeLease};
pub use snapshot::{
    CreateSnapshot, PullSnapshot, PushSnapshot, PushedSnapshot, RemovedSnapshot, Snapshot, SnapshotList,
    TagSnapshot,
};
pub use ssh::{CreateSshKey, SshInfo, SshKey, SshKeyList};
pub use system::{Doctor, ErrorBody, Health, Leak, LeakList, ServerInfo};
pub use template::{
    CreateTemplate, SetTemplateTag, Template, TemplateList, TemplateMemory, TemplateMemoryState, TemplateTag,
    TemplateTagList,
};
pub use trace::{TraceEvent, TraceFinding, TraceGap, TraceMode, TracePage, TraceReport};
pub use usage::{PauseSandbox, Usage, UsageGroup, UsageItem, UsageList};
pub use volume::{CreateVolume, Volume, VolumeList};
