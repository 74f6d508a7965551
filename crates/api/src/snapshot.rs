//! Snapshots.

use std::collections::BTreeMap;

use atoll_core::sharing::Visibility;
use atoll_core::snapshot::{CopyMethod, SnapshotKind, SnapshotState};
use atoll_core::spec::{IsolationLevel, Resources};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Takes a snapshot of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateSnapshot {
    /// References that shall point to it, as `name` (which means `name:latest`) or `name:tag`. They leave what they
    /// point to now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// A line of text, to remember what it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// Variables of sandboxes that are made from it, on top of those of its sandbox.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Their default user, in place of its sandbox's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Their default working directory, in place of its sandbox's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// With its memory and processes: at the isolation level `microvm`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
}

/// A snapshot: the writable disk of a sandbox at one moment, and its memory when that was asked for. It never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// Its id.
    pub id: String,
    /// Where it is in its life.
    pub state: SnapshotState,
    /// What is in it.
    pub kind: SnapshotKind,
    /// References that point to it now, as `name:tag`.
    pub tags: Vec<String>,
    /// Its number among the checkpoints of its sandbox, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<u32>,
    /// Its sandbox took it by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub automatic: bool,
    /// A note by the caller who made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The sandbox it was taken of, which may be gone; absent when it was imported.
    pub sandbox: Option<String>,
    /// The image it stands on, as it was named.
    pub image: String,
    /// The image, exactly; absent for `host`.
    pub image_digest: Option<String>,
    /// The isolation level it was taken at and can be used at.
    pub isolation: IsolationLevel,
    /// Limits that a sandbox made from it has, unless it is asked for others. The disk cannot be smaller.
    pub resources: Resources,
    /// Environment that a sandbox made from it has.
    pub env: BTreeMap<String, String>,
    /// Default user.
    pub user: String,
    /// Default working directory.
    pub workdir: Option<String>,
    /// Version of the form that its data has.
    pub format: u32,
    /// Digest of manifest and data, as `blake3:…`; found out a moment after it was taken.
    pub digest: Option<String>,
    /// What it takes on the host, bytes. A clone shares most of it with its sandbox.
    pub stored_bytes: u64,
    /// How its disk came about: a clone takes no time, a copy takes as long as there is data.
    pub method: Option<CopyMethod>,
    /// How long the sandbox could not write while it was taken, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_us: Option<u64>,
    /// When it was taken.
    pub created_at_ms: u64,
    /// Id of the key that took it.
    pub created_by: Option<String>,
}

/// A page of snapshots, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    /// The page.
    pub items: Vec<Snapshot>,
    /// Pass it as `cursor` for the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Makes a reference point to a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TagSnapshot {
    /// `name` or `name:tag`. It leaves what it points to now.
    pub tag: String,
}

/// Sends a snapshot to the object store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PushSnapshot {
    /// References there that shall name it; those that it has here when absent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

/// What came of sending a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PushedSnapshot {
    /// The digest under which it is there.
    pub digest: String,
    /// References there that name it now.
    pub tags: Vec<String>,
    /// Bytes that were sent; 0 when it was there already.
    pub sent_bytes: u64,
}

/// Fetches a snapshot from the object store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PullSnapshot {
    /// Its digest, or a reference there.
    pub from: String,
    /// References here that shall point to it; the same as there when absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Who sees it: `private` is you and administrators. The server's default when absent; what you sent as a
    /// private snapshot is private in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Visibility>,
}

/// What a removal did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovedSnapshot {
    /// References that are gone.
    pub tags: Vec<String>,
    /// Id of the snapshot, if it is gone too and not only one of its references.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
}
