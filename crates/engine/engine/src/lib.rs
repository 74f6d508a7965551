//! Use cases of Atoll: what clients can ask of it, the same for every API.
//!
//! ```text
//! server, dialects, CLI (embedded)
//!          │ Engine::create_sandbox, create_exec, output, guest, delete_sandbox, …
//!          ▼
//!   sandbox actor ── one task owns each sandbox; changes are messages; readers watch what it publishes
//!          │
//!   exec session ── one task owns each running exec: guest stream → log on disk → acknowledge
//!          │
//!   Store (what must survive)   Isolation (the kernel)   GuestClient (inside)   Images
//! ```
//!
//! # What survives `kill -9`
//!
//! A sandbox's row is written before anything of it is made, and says `running` before the caller is
//! told; an exec's row is written before the guest hears of it. Everything a driver makes carries the
//! sandbox id, so one undo ([`atoll_isolation::Lifecycle::destroy`]) serves every step. On start the
//! `recovery` module reads rows (what is intended) and drivers (what is there) and makes them agree:
//! the same code that a clean start runs.

mod acme;
mod agent;
mod archive;
mod authority;
mod authorize;
mod build;
mod clock;
mod cluster;
mod code;
mod config;
mod create;
mod database;
mod disk;
mod egress;
mod engine;
mod errors;
mod exec;
mod execution;
pub mod failpoints;
mod images;
mod ingress;
mod keys;
mod layers;
mod live;
mod log;
mod memory;
mod people;
mod pool;
mod projects;
mod query;
mod recovery;
mod registries;
mod revocation;
mod rooms;
mod sandbox;
mod secrets;
mod service;
mod sharing;
mod snapshot;
mod start;
mod table;
mod template_tags;
mod templates;
mod tokens;
mod trace;
mod transfers;
mod travel;
mod usage;
mod volumes;

// The functions that other crates call give a future whose type ends there (`boxed`). Else every handler of every
// protocol would have the types of all that is below in its own, and the compiler would prove for each of them again
// that they can be sent to another thread: decision 35.
use async_recursion::async_recursion as boxed;

pub use acme::ToSeal;
pub use agent::{AgentDraft, AgentForkOrder, AgentGrant, EventPage, FORK_LABEL, SessionView};
pub use archive::{Metered, members};
pub use atoll_egress::Stats as EgressStats;
pub use atoll_isolation::volumes::{VolumeChange, VolumeDirectory, VolumeFile, VolumeFileKind, VolumeWrite};
pub use authority::{kept as kept_authority, open as open_authority};
pub use authorize::{Caller, EffectivePermission, Grant, Resource, SnapshotGrant, Target};
pub use build::{
    BuildLog, BuildSecrets, BuildStats, BuildView, CacheEntry, CachePruned, ImageLogin, LogEntry, LogPage,
};
pub use clock::{Clock, Time};
pub use cluster::{Asked, Route, spawn};
pub use code::{CellEvent, CellInfo, CellPage, CellView, ContextDraft};
pub use config::{Config, Trust};
pub use create::Made;
pub use egress::EgressConfig;
pub use engine::{Capacity, Engine, Stats};
pub use errors::guest_error;
pub use exec::{ExecView, OutputEvent, OutputReader};
pub use images::{ImagePlace, ListedImage};
pub use ingress::{
    Access, NewAccess, NewSshKey, NewSshToken, PortConnection, PortListener, SshSeed, VerifiedAccess,
};
pub use keys::{KeyFormat, KeyRight, KeyScope, NewKey, VerifiedKey};
pub use live::LiveUsage;
pub use log::{Extent, Piece, READ_MAX_BYTES};
pub use memory::{TemplateMemory, TemplateMemoryState};
pub use people::{LOGIN_MS, People};
pub use pool::{PoolConfig, PoolName, PoolOrigin, PoolView, PoolsView, Wanted};
pub use projects::{ProjectUpdate, ProjectView};
pub use query::{ExecQuery, SandboxQuery};
pub use sandbox::{ByteStream, FileReader, FileWriter, GuestLease, SandboxMetrics};
pub use secrets::{SecretDoor, SecretDraft, SecretIs, UseQuery};
pub use service::{ServiceLog, ServicePiece, ServiceView};
pub use sharing::AccessView;
pub use snapshot::{Begin, Export, ForkOrder, Pushed, RemovedSnapshot, SnapshotOrder, SnapshotQuery};
pub use template_tags::Tagged;
pub use trace::{EventReader, TraceConfig, TraceFilter, TracedEvent, open_trace_key};
pub use transfers::{InRoom, Room};
pub use usage::{UsageGroup, UsageItem, UsageQuery};
pub use volumes::VolumeView;
