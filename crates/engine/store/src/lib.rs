//! What must survive: sandboxes, execs, templates, API keys, registry credentials, secrets.
//!
//! Only this crate knows SQL. The same text runs on SQLite (the default, embedded in the process) and on PostgreSQL;
//! SQLite through rusqlite, on threads of ours (the modules `sqlite`, `writer`, `readers`), PostgreSQL through sqlx. The
//! module `db` is the seam between them. Times are milliseconds since the epoch, given by the caller.
//! Only a node's lease is measured here, with the machine's boot clock, which cannot be set.
//!
//! ```text
//! Store ──writes──▶ writer's thread ──one transaction for all that waits──▶ SQLite file (WAL)
//!   │                                                                         ▲
//!   └───reads──▶ a few threads, each with a read-only connection ─────────────┘
//!
//! Store ──each operation its own transaction──▶ pool ──▶ PostgreSQL
//! ```
//!
//! Guarantees:
//!
//! - An operation that returned `Ok` is committed. On SQLite it is then on disk (`synchronous = FULL`). Some
//!   operations, such as those on states of sandboxes, execs and usage, do not wait for the disk (`NORMAL`): they
//!   survive the death of this process, but the last of them may be lost in a power cut. The file's integrity is never
//!   lost. PostgreSQL keeps its own promise.
//! - An operation happens wholly or not at all, also when its caller stops waiting for it.
//! - An operation that fails does not affect the other operations in its transaction.
//! - On PostgreSQL servers are nodes: each has sandboxes of its own, and a node that was taken over by another node
//!   writes nothing more (the module `membership`).
//! - When writes fail because the disk is full, fails, or is read-only, [`Store::unwritable`] says so until a change has
//!   reached the disk again (the module `writable`).
//! - A row that cannot be understood gives whoever looks it up [`StoreError::Corrupt`], never a panic. Lists leave it out
//!   and remember it: the module `listed`.

mod accesses;
mod acme;
mod agents;
mod arrivals;
mod builds;
mod contexts;
mod db;
mod error;
mod execs;
mod kept;
mod keys;
mod listed;
mod membership;
mod migrations;
mod nodes;
mod pools;
mod projects;
mod readers;
mod record;
mod registries;
mod rollbacks;
mod sandboxes;
mod schedules;
mod secrets;
mod services;
mod shared_images;
mod sharing;
mod snapshots;
mod sql;
mod sqlite;
mod ssh_keys;
mod store;
mod template_tags;
mod templates;
mod url;
mod usage;
mod volumes;
mod whole;
mod writable;
mod writer;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;

pub use agents::{AgentRecord, EventRecord, SessionRecord};
pub use arrivals::{Arrival, Left, Staying};
pub use builds::{BuildRecord, CacheRecord};
pub use contexts::ContextRecord;
pub use error::StoreError;
pub use kept::{CopyRecord, KeptRecord};
pub use listed::{Unreadable, UnreadableRow};
pub use membership::{Lease, Told, boot_ns};
pub use nodes::{NodeDraft, NodeRecord, Whereabouts};
pub use projects::{Belongings, ProjectRecord};
pub use record::{
    AccessRecord, Cursor, ExecRecord, Insertion, InvalidCursor, KeyKind, KeyRecord, Login, LoginBy, Page,
    PoolRecord, RegistryRecord, Restored, SandboxFilter, SandboxRecord, SnapshotFilter, SnapshotRecord,
    SshKeyRecord, TemplateRecord, VisibleTo, VolumeRecord,
};
pub use schedules::ScheduleRecord;
pub use secrets::{SealedAt, SealedValue, SecretRecord, SecretUse, SecretVersion};
pub use services::ServiceRecord;
pub use shared_images::{SharedImage, SharedIndex, SharedLayer, SharedObjects, SharedSnapshot};
pub use snapshots::SnapshotOutcome;
pub use store::Store;
pub use template_tags::TemplateTag;
pub use url::{InvalidUrl, StoreUrl};
pub use usage::{UsageCursor, UsageFilter, UsageMark, UsageRow};
pub use whole::{WholeError, check_empty, dump, load};
pub use writable::Unwritable;
