//! The native API, `/v1`: what travels, and nothing else.
//!
//! Conventions: times are milliseconds since the epoch and end in `_at_ms`; durations end in `_ms`;
//! sizes end in `_bytes`. Unknown fields in requests are errors. Lists are pages: `items` and, when
//! there is more, `next_cursor`. Every error has the body [`ErrorBody`].

mod access;
mod build;
mod exec;
mod file;
mod image;
mod key;
mod pool;
mod sandbox;
mod snapshot;
mod system;
mod template;

pub use access::{Access, AccessCreated, AccessFile, AccessList, CreateAccess, Port, PortList};
pub use atoll_core::key::Scope;
pub use build::{
    Build, BuildCacheEntry, BuildCacheList, BuildCachePruned, BuildList, BuildLogPage, CreateBuild,
    PruneBuildCache,
};
pub use exec::{
    AttachClientMessage, AttachServerMessage, CreateExec, Encoding, Exec, ExecList, ExecWithOutput,
    OutputChunk, OutputFrame, OutputPage, Resize, SignalExec, StdinWritten,
};
pub use file::{
    Chmod, FileEntry, FileKind, FileList, FileWritten, FindFiles, FoundFile, FoundFiles, Mkdir, MoveFile,
    WatchChange, WatchMessage,
};
pub use image::{
    Image, ImageList, ImageProgress, LayerPhase, PruneResult, PullImage, RegistryCredentials, RegistryEntry,
    RegistryList, RemovedImage,
};
pub use key::{CreateKey, Key, KeyCreated, KeyList};
pub use pool::{Pool, PoolList, PoolOrigin, PutPool};
pub use sandbox::{
    BatchCreate, BatchResult, BatchResults, CreateSandbox, Metrics, Sandbox, SandboxList, UpdateSandbox,
};
pub use snapshot::{CreateSnapshot, RemovedSnapshot, Snapshot, SnapshotList, TagSnapshot};
pub use system::{Doctor, ErrorBody, Health, Leak, LeakList, ServerInfo};
pub use template::{CreateTemplate, Template, TemplateList};
