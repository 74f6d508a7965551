//! Snapshots: what is kept of a sandbox, how it is named, and what must fit when one is used.
//!
//! A snapshot is a *disk*, at some isolation levels with the *memory* of the same moment, and a [`Manifest`] that says
//! what it belongs to: the writable layer is worth nothing without the image below it. It is named by its id, or by a reference `name:tag`; `name` alone means
//! `name:latest`. A tag is a pointer that can move; a snapshot itself never changes.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::layer::{self, Layer};
use crate::limits::{CHECKPOINTS_MAX_COUNT, SNAPSHOT_COMMENT_MAX_BYTES, SNAPSHOT_TAG_MAX_BYTES};
use crate::spec::{self, IsolationLevel, Resources};

/// The form of disks and manifests that this version writes, and the only one that it reads.
pub const FORMAT: u32 = 1;
/// The tag of a reference that does not say one.
pub const DEFAULT_TAG: &str = "latest";

/// What is in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum SnapshotKind {
    /// The writable disk. Processes and memory are not in it.
    Disk,
    /// The same, and the memory with all processes. The memory is for this host and these programs only; the disk
    /// can be used like any other, and is all that is exported.
    Memory,
}

/// How the disk of a snapshot came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum CopyMethod {
    /// A clone: it shares its blocks, and took no time.
    Clone,
    /// A copy: this host cannot clone files, so it took as long as there was data.
    Copy,
    /// It came from elsewhere.
    Import,
}

impl CopyMethod {
    /// Every method.
    pub const ALL: [Self; 3] = [Self::Clone, Self::Copy, Self::Import];

    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Clone => "clone",
            Self::Copy => "copy",
            Self::Import => "import",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.as_str() == text)
    }
}

/// Where a snapshot is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum SnapshotState {
    /// It is being made. After a crash it is undone.
    Creating,
    /// It can be used.
    Ready,
    /// It is being removed.
    Deleting,
}

impl SnapshotState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Creating, Self::Ready, Self::Deleting];

    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Ready => "ready",
            Self::Deleting => "deleting",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// Who a snapshot is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// For people: it is listed, named, and removed by them.
    Snapshot,
    /// A checkpoint of its sandbox, with its number in it. Goes with the sandbox.
    Checkpoint(u32),
    /// The same, taken after an exec because the sandbox wants that. The oldest go by themselves.
    AutoCheckpoint(u32),
    /// Held by the thing that is named here, such as a paused sandbox or a step of a build, which removes it.
    Held(String),
}

impl Purpose {
    /// Its number, if it is a checkpoint.
    #[must_use]
    pub const fn checkpoint(&self) -> Option<u32> {
        match self {
            Self::Checkpoint(number) | Self::AutoCheckpoint(number) => Some(*number),
            Self::Snapshot | Self::Held(_) => None,
        }
    }
}

/// Shortest and longest time between two copies of a sandbox that runs, milliseconds.
const DURABILITY_MIN_MS: u64 = 1000;
const DURABILITY_MAX_MS: u64 = 24 * 3600 * 1000;

/// Checkpoints that a sandbox takes by itself: when it was made, and after every exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AutoCheckpoints {
    /// How many of them are kept: 1 to 1000. Those that were taken by request do not count.
    pub keep: u32,
}

impl AutoCheckpoints {
    /// Checks the count.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`].
    pub fn validate(self) -> Result<()> {
        if (1..=CHECKPOINTS_MAX_COUNT).contains(&self.keep) {
            return Ok(());
        }
        let why = format_args!("{} is not between 1 and {CHECKPOINTS_MAX_COUNT}", self.keep);
        Err(Error::invalid("auto_checkpoints.keep", why))
    }
}

/// How a sandbox outlives its node: what it has on its disk is copied to the object store while it runs, and another node goes on
/// from the last copy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Durability {
    /// This long after the last copy was begun, milliseconds: one second or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_ms: Option<u64>,
    /// After each exec.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub after_exec: bool,
}

impl Durability {
    /// Checks that it says when.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`].
    pub fn validate(self) -> Result<()> {
        match self.every_ms {
            None if !self.after_exec => {
                Err(Error::invalid("durability", "says no time")
                    .hint("say 'every_ms', 'after_exec', or both"))
            }
            Some(ms) if !(DURABILITY_MIN_MS..=DURABILITY_MAX_MS).contains(&ms) => {
                Err(Error::invalid("durability.every_ms", "must lie between one second and one day"))
            }
            None | Some(_) => Ok(()),
        }
    }
}

/// What a snapshot belongs to and what a sandbox made from it starts with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The form of the disk and of this, [`FORMAT`].
    pub format: u32,
    /// What is in it.
    pub kind: SnapshotKind,
    /// The image below the disk, as it was named.
    pub image: String,
    /// The image, exactly; absent for `host`.
    pub image_digest: Option<String>,
    /// The isolation level that it was taken in and can be used in.
    pub isolation: IsolationLevel,
    /// The limits of the sandbox.
    pub resources: Resources,
    /// Its environment.
    pub env: BTreeMap<String, String>,
    /// Its default user.
    pub user: String,
    /// Its default working directory.
    pub workdir: Option<String>,
    /// Its agent layers: which they are, not what is in them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub layers: BTreeMap<String, Layer>,
}

impl Manifest {
    /// The manifest of its disk alone: what can be taken elsewhere, and what a digest is of.
    #[must_use]
    pub fn of_disk(&self) -> Self {
        Self { kind: SnapshotKind::Disk, ..self.clone() }
    }

    /// Checks a manifest that came from elsewhere.
    ///
    /// # Errors
    /// [`Code::SnapshotIncompatible`] for another format, [`Code::SnapshotInvalid`] for values that no sandbox can
    /// have.
    pub fn validate(&self, caps: &spec::Caps) -> Result<()> {
        if self.format != FORMAT {
            return Err(Error::new(
                Code::SnapshotIncompatible,
                format!("the snapshot has format {}, this version reads format {FORMAT}", self.format),
            )
            .hint("export it again with the version that is to read it"));
        }
        let invalid =
            |error: Error| Error::new(Code::SnapshotInvalid, format!("the snapshot's manifest: {error}"));
        if self.kind != SnapshotKind::Disk {
            return Err(invalid(Error::invalid("kind", "memory that another host wrote is not read")));
        }
        if self.image_digest.is_some() == (self.image == "host") {
            let why = Error::invalid("image_digest", "every image but 'host' has one");
            return Err(invalid(why));
        }
        spec::image_reference("image", &self.image)
            .and_then(|()| self.resources.validate(caps))
            .and_then(|()| spec::env("env", &self.env))
            .and_then(|()| spec::user("user", &self.user))
            .and_then(|()| self.workdir.as_deref().map_or(Ok(()), |dir| spec::path("workdir", dir)))
            .and_then(|()| layer::check_known(&self.layers))
            .and_then(|()| layer::check_places(&self.layers, &[]))
            .map_err(invalid)
    }
}

/// What happened to a file between two snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum ChangeKind {
    /// It was not there before.
    Added,
    /// Its content, owner, permissions or kind is another.
    Changed,
    /// It is not there any more.
    Removed,
}

/// What an entry of a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum EntryKind {
    /// A plain file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A pipe, a socket, a device.
    Other,
}

/// One difference between two snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Change {
    /// Absolute path. What is no UTF-8 in it is replaced.
    pub path: String,
    /// What happened.
    pub kind: ChangeKind,
    /// What it is now, or was.
    pub entry: EntryKind,
    /// Size before, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_bytes: Option<u64>,
    /// Size after, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_bytes: Option<u64>,
    /// The difference of two small texts as `diff -u` shows it, when it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// What differs between two snapshots.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Comparison {
    /// The differences, by path.
    pub changes: Vec<Change>,
    /// There is more than is shown.
    pub truncated: bool,
}

/// `name:tag`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// A name: see [`spec::recipe_name`].
    pub name: String,
    /// Letters, digits, `.`, `_` and `-`.
    pub tag: String,
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.tag)
    }
}

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, tag) = text.split_once(':').unwrap_or((text, DEFAULT_TAG));
        spec::recipe_name("snapshot", name)?;
        let edge = tag.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let inner = tag.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        if !edge || !inner || tag.len() > SNAPSHOT_TAG_MAX_BYTES {
            return Err(Error::invalid(
                "snapshot",
                format_args!("'{}' is no tag", crate::error::shorten(tag)),
            )
            .hint("a tag has 1 to 63 letters, digits, '.', '_' and '-', beginning with a letter or digit"));
        }
        Ok(Self { name: name.to_owned(), tag: tag.to_owned() })
    }
}

/// Checks a comment.
///
/// # Errors
/// [`Code::InvalidArgument`].
pub fn comment(text: &str) -> Result<()> {
    if text.len() <= SNAPSHOT_COMMENT_MAX_BYTES && !text.chars().any(char::is_control) {
        return Ok(());
    }
    Err(Error::invalid(
        "comment",
        format_args!("is longer than {SNAPSHOT_COMMENT_MAX_BYTES} bytes or not one line"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_at_their_edges() {
        let text = |text: &str| text.parse::<Reference>().map(|reference| reference.to_string());
        assert_eq!(text("web").unwrap(), "web:latest");
        assert_eq!(text("web:v1.0_x-Y").unwrap(), "web:v1.0_x-Y");
        let long = format!("a:{}", "x".repeat(63));
        assert_eq!(text(&long).unwrap(), long);
        let id = crate::id::SnapshotId::from_parts(1, 2);
        for bad in ["", ":a", "a:", "a:-x", "a:.x", "A:b", "a:b:c", "a:b/c", &format!("{long}x"), id.as_str()]
        {
            assert!(text(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn texts_round_trip() {
        for state in SnapshotState::ALL {
            assert_eq!(SnapshotState::parse(state.as_str()), Some(state));
        }
        for method in CopyMethod::ALL {
            assert_eq!(CopyMethod::parse(method.as_str()), Some(method));
        }
    }

    #[test]
    fn another_format_is_incompatible_and_nonsense_is_invalid() {
        let good = Manifest {
            format: FORMAT,
            kind: SnapshotKind::Disk,
            image: "host".into(),
            image_digest: None,
            isolation: IsolationLevel::Container,
            resources: Resources::default(),
            env: BTreeMap::new(),
            user: "root".into(),
            workdir: None,
            layers: BTreeMap::new(),
        };
        let caps = spec::Caps::default();
        assert!(good.validate(&caps).is_ok());
        let code = |manifest: Manifest| manifest.validate(&caps).unwrap_err().code;
        assert_eq!(code(Manifest { format: 2, ..good.clone() }), Code::SnapshotIncompatible);
        assert_eq!(code(Manifest { user: "a b".into(), ..good.clone() }), Code::SnapshotInvalid);
        assert_eq!(code(Manifest { workdir: Some("x".into()), ..good.clone() }), Code::SnapshotInvalid);
        assert_eq!(code(Manifest { image: "other".into(), ..good.clone() }), Code::SnapshotInvalid);
        let memory = Manifest { kind: SnapshotKind::Memory, ..good.clone() };
        assert_eq!(memory.of_disk(), good);
        assert_eq!(code(memory), Code::SnapshotInvalid);
    }
}
