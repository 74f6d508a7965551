//! What is stored: plain records. Times are milliseconds since the epoch, given by the caller.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use atoll_core::access::Target;
use atoll_core::exec::{ExecState, Exit};
use atoll_core::id::{
    AccessId, ExecId, KeyId, ProjectId, SandboxId, SnapshotId, SshKeyId, TemplateId, VolumeId,
};
use atoll_core::person::Person;
use atoll_core::pool::PoolSpec;
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::sharing::Visibility;
use atoll_core::snapshot::{CopyMethod, Manifest, Purpose, Reference, SnapshotState};
use atoll_core::spec::{ExecSpec, IdempotencyKey, RequestKey, SandboxSpec, TemplateSpec};
use atoll_core::volume::VolumeState;

/// One sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRecord {
    /// Its id.
    pub id: SandboxId,
    /// Its name; no two stored sandboxes of one project, or of none, have the same.
    pub name: Option<String>,
    /// The project that it belongs to, for good.
    pub project: Option<ProjectId>,
    /// Where it is in its life.
    pub state: SandboxState,
    /// Why it failed, was paused, or was woken without its memory.
    pub reason: Option<String>,
    /// What it was made of.
    pub spec: SandboxSpec,
    /// Labels, to filter by.
    pub labels: BTreeMap<String, String>,
    /// Texts that clients keep with the sandbox.
    pub annotations: BTreeMap<String, String>,
    /// The image that was used, exactly.
    pub image_digest: Option<String>,
    /// The API key that made it.
    pub owner: Option<KeyId>,
    /// The owner's own key for the request that made it.
    pub request: Option<RequestKey>,
    /// When it was asked for.
    pub created_ms: u64,
    /// When it ends by itself.
    pub expires_ms: Option<u64>,
    /// When it was last used, as far as was recorded: with each change of the record.
    pub last_active_ms: u64,
    /// How it is paused, while it is.
    pub paused: Option<PauseMode>,
    /// Since when.
    pub paused_ms: Option<u64>,
    /// How long it was paused before, all pauses that ended together, milliseconds.
    pub pauses_ms: u64,
    /// Names the boot it is in: another one means that every process has been started anew.
    pub boot_id: String,
    /// While it is put to disk: since when everything that is needed to wake it is in the object store. Set by
    /// [`Store::finish_upload`](crate::Store::finish_upload), and by [`Store::take_over`](crate::Store::take_over) for
    /// a sandbox that is brought back from a copy.
    pub kept_ms: Option<u64>,
    /// While it is put to disk with its memory: it may have gone on from there since. Its copy counts for its disk alone. Set by
    /// [`Store::mark_memory_used`](crate::Store::mark_memory_used).
    pub memory_used: bool,
    /// How it was brought back when its node died, if that happened.
    pub restored: Option<Restored>,
    /// Counts changes; 1 when inserted. What was read must still be there to be changed.
    pub generation: i64,
}

/// A sandbox went on from a copy after its node died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// When the copy was taken: what the sandbox did afterwards is lost.
    pub checkpoint_ms: u64,
    /// When it was brought back.
    pub at_ms: u64,
}

/// One exec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRecord {
    /// Its id.
    pub id: ExecId,
    /// The sandbox it runs in.
    pub sandbox: SandboxId,
    /// A second request with the same key in the same sandbox gets this exec.
    pub idempotency_key: Option<IdempotencyKey>,
    /// Digest of the request, to tell a retry from a key used twice; empty where there is no key.
    pub request_digest: String,
    /// What runs.
    pub spec: ExecSpec,
    /// Where it is in its life.
    pub state: ExecState,
    /// Process id inside the sandbox, if it ran. Stored with the end.
    pub pid: Option<u32>,
    /// How it ended, once it has.
    pub exit: Option<Exit>,
    /// How much it wrote, once it has ended.
    pub output_bytes: u64,
    /// CPU time of its processes as the guest reports it, once it has ended, microseconds.
    pub cpu_us: u64,
    /// [`SandboxRecord::pauses_ms`] when it began.
    pub pauses_before_ms: u64,
    /// The API key that started it.
    pub started_by: Option<KeyId>,
    /// When it was asked for.
    pub created_ms: u64,
    /// When it ended.
    pub ended_ms: Option<u64>,
}

/// One version of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateRecord {
    /// Its id.
    pub id: TemplateId,
    /// Its name.
    pub name: String,
    /// Counts from 1 for each name; a number is never given out twice, not even after a deletion.
    pub version: u32,
    /// The recipe.
    pub spec: TemplateSpec,
    /// When it was made.
    pub created_ms: u64,
    /// The API key that made it.
    pub created_by: Option<KeyId>,
}

/// One snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRecord {
    /// Its id.
    pub id: SnapshotId,
    /// Where it is in its life.
    pub state: SnapshotState,
    /// The sandbox it was taken of, which may be gone; `None` when it came from elsewhere.
    pub sandbox: Option<SandboxId>,
    /// What it is for: a snapshot, a checkpoint, or one that something else holds.
    pub purpose: Purpose,
    /// The client's comment.
    pub comment: Option<String>,
    /// What it belongs to.
    pub manifest: Manifest,
    /// Digest of its content and manifest, once it is known.
    pub digest: Option<String>,
    /// What it takes on the host, bytes.
    pub stored_bytes: u64,
    /// How long its sandbox could not write, microseconds.
    pub paused_us: Option<u64>,
    /// How its disk came about.
    pub method: Option<CopyMethod>,
    /// When it was asked for.
    pub created_ms: u64,
    /// The API key that asked.
    pub created_by: Option<KeyId>,
    /// The project that it belongs to: its sandbox's, or that of the API key that brought it here.
    pub project: Option<ProjectId>,
    /// Whether it stays hidden from other keys when its sandbox is gone. As long as the sandbox is there, the sandbox's
    /// visibility counts.
    pub private: bool,
    /// References that point to it, by name and tag.
    pub tags: Vec<Reference>,
}

/// Which snapshots to list. The default is all that nothing else holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotFilter {
    /// Taken of this sandbox.
    pub sandbox: Option<SandboxId>,
    /// With a reference of this name.
    pub name: Option<String>,
    /// Only checkpoints, or none.
    pub checkpoints: Option<bool>,
    /// Also those that something else holds.
    pub held: bool,
    /// Visible to this key; all when absent.
    pub visible_to: Option<VisibleTo>,
    /// Only those on this node.
    pub here: bool,
}

/// An API key, as a hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// Its id.
    pub id: KeyId,
    /// What people call it.
    pub name: String,
    /// Hash of the secret.
    pub hash: Vec<u8>,
    /// What it may do.
    pub scopes: Vec<String>,
    /// The project that it belongs to. A person's follows from the rules and is not here.
    pub project: Option<ProjectId>,
    /// When it was made.
    pub created_ms: u64,
    /// When it ends.
    pub expires_ms: Option<u64>,
    /// When it was last used, as far as was recorded.
    pub last_used_ms: Option<u64>,
    /// Whether it is a key for clients, a person, or a login.
    pub kind: KeyKind,
}

/// What a row of the keys is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyKind {
    /// A key that was made on request and that clients send.
    Key,
    /// A person: what they make is on the account of this record. No client can send a secret with its hash: the hash
    /// is made of the issuer's name for the person, so that each person has one record. It works as long as the last
    /// of its logins.
    Person(Person),
    /// A login of a person: it acts as that person.
    Login(Login),
}

/// One login of a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// The person's record.
    pub person: KeyId,
    /// Where it counts.
    pub by: LoginBy,
    /// Identifies the exchange that opened it; the same exchange opens no second login.
    pub exchange: Vec<u8>,
}

/// Where a login counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginBy {
    /// As a key, in requests.
    Key,
    /// As a cookie, in the dashboard alone.
    Dashboard,
    /// The same, but for the server's own machine alone.
    DashboardHere,
}

impl LoginBy {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Dashboard => "dashboard",
            Self::DashboardHere => "dashboard_here",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Key, Self::Dashboard, Self::DashboardHere].into_iter().find(|by| by.as_str() == text)
    }
}

/// An access to a port or file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessRecord {
    /// Its id.
    pub id: AccessId,
    /// The sandbox; the access goes with it.
    pub sandbox: SandboxId,
    /// What to.
    pub target: Target,
    /// What people call it.
    pub name: Option<String>,
    /// Hash of its token; `None` when it is public and has none.
    pub hash: Option<Vec<u8>>,
    /// When it was made.
    pub created_ms: u64,
    /// The API key that made it.
    pub created_by: Option<KeyId>,
    /// When it ends.
    pub expires_ms: Option<u64>,
}

/// An SSH public key that stands for an API key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshKeyRecord {
    /// Its id.
    pub id: SshKeyId,
    /// What people call it.
    pub name: String,
    /// Algorithm and key as in `authorized_keys`, without a comment.
    pub public_key: String,
    /// `SHA256:…`; no two keys have the same.
    pub fingerprint: String,
    /// The API key it stands for; it goes with that.
    pub owner: KeyId,
    /// When it was made.
    pub created_ms: u64,
    /// When it ends.
    pub expires_ms: Option<u64>,
}

/// A warm pool that was set up by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolRecord {
    /// `template:NAME` or `image:REFERENCE`.
    pub name: String,
    /// How many it keeps.
    pub spec: PoolSpec,
    /// When it was set.
    pub updated_ms: u64,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRecord {
    /// Its id.
    pub id: VolumeId,
    /// Its name; no two volumes of one project, or of none, have the same.
    pub name: String,
    /// The project that it belongs to.
    pub project: Option<ProjectId>,
    /// Where it is in its life.
    pub state: VolumeState,
    /// Its size.
    pub size_bytes: u64,
    /// Name of the volume it was copied from.
    pub source: Option<String>,
    /// No sandbox can write to it.
    pub read_only: bool,
    /// The API key that made it.
    pub owner: Option<KeyId>,
    /// When it was asked for.
    pub created_ms: u64,
}

/// Credentials for an image registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryRecord {
    /// Host, with port if it has one.
    pub host: String,
    /// What people call it, if they do.
    pub name: Option<String>,
    /// User name.
    pub username: String,
    /// The password, sealed by the vault.
    pub sealed: Vec<u8>,
    /// When it was set.
    pub updated_ms: u64,
}

/// Which sandboxes to list. The default is all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxFilter {
    /// In one of these states; any when empty.
    pub states: Vec<SandboxState>,
    /// With all of these labels.
    pub labels: BTreeMap<String, String>,
    /// With a name that starts so.
    pub name_prefix: Option<String>,
    /// Visible to this key.
    pub visible_to: Option<VisibleTo>,
    /// Of this project.
    pub project: Option<ProjectId>,
    /// Only those on this node.
    pub here: bool,
}

/// The API key that a listing is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VisibleTo {
    /// The key: it sees the sandboxes that it made and those that it was granted a role on.
    pub key: KeyId,
    /// The project that it belongs to: in other projects it sees only the sandboxes that it was granted a role on.
    pub project: Option<ProjectId>,
    /// The visibility of the other keys' sandboxes that have none of their own.
    pub default: Visibility,
}

/// A place in a listing that goes from the newest to the oldest. Callers pass it on as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    created_ms: u64,
    id: String,
}

impl Cursor {
    pub(crate) const fn new(created_ms: u64, id: String) -> Self {
        Self { created_ms, id }
    }

    pub(crate) const fn created_ms(&self) -> u64 {
        self.created_ms
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.created_ms, self.id)
    }
}

/// The text did not come from a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a cursor of a listing")]
pub struct InvalidCursor;

impl FromStr for Cursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        const ID_MAX_BYTES: usize = 32;
        let (ms, id) = text.split_once('.').ok_or(InvalidCursor)?;
        let digits = !ms.is_empty() && ms.bytes().all(|b| b.is_ascii_digit());
        let id_ok = (1..=ID_MAX_BYTES).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric());
        match ms.parse() {
            Ok(created_ms) if digits && id_ok => Ok(Self::new(created_ms, id.to_owned())),
            _ => Err(InvalidCursor),
        }
    }
}

/// A piece of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// The newest first.
    pub items: Vec<T>,
    /// Where the next piece starts; `None` when this was the last.
    pub next: Option<Cursor>,
}

/// What came of inserting an exec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Insertion {
    /// It is stored now.
    Inserted,
    /// The idempotency key was used before: this is that exec. Compare the request digests.
    Existing(Box<ExecRecord>),
}
