//! Which program of a sandbox asks.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::execution::{program_digest, program_path};
use crate::id::ExecId;
use crate::spec::check;

/// Whose process must have made a connection: a program of the image, as the image brought it, whatever runs in a profile, or what one exec
/// started. The kernel of the host says which it was.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Origin {
    /// By path in the image: `/usr/bin/git`, also through links of the image; `/usr/lib/git-core/*` is every program in a directory,
    /// `/opt/tools/**` every one below it.
    Program(String),
    /// By content: `sha256:` or `blake3:` and 64 hexadecimal digits.
    Digest(String),
    /// By the profile that the process is in.
    Profile(String),
    /// By the exec that the process belongs to, with all that it started, by its id.
    Exec(String),
}

impl Origin {
    /// By path, if it is one.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::Program(path) => Some(path),
            Self::Digest(_) | Self::Profile(_) | Self::Exec(_) => None,
        }
    }

    /// By content, if it is that.
    #[must_use]
    pub fn digest(&self) -> Option<&str> {
        match self {
            Self::Program(_) | Self::Profile(_) | Self::Exec(_) => None,
            Self::Digest(digest) => Some(digest),
        }
    }

    /// By profile, if it is that.
    #[must_use]
    pub fn profile(&self) -> Option<&str> {
        match self {
            Self::Program(_) | Self::Digest(_) | Self::Exec(_) => None,
            Self::Profile(name) => Some(name),
        }
    }

    /// By exec, if it is that.
    #[must_use]
    pub fn exec(&self) -> Option<&str> {
        match self {
            Self::Program(_) | Self::Digest(_) | Self::Profile(_) => None,
            Self::Exec(id) => Some(id),
        }
    }

    /// Whether it names files, which have to be looked up in the image.
    #[must_use]
    pub const fn names_programs(&self) -> bool {
        matches!(self, Self::Program(_) | Self::Digest(_))
    }

    /// Reads the short form of the command line: a path, a digest, `profile:NAME`, or `exec:ID`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text.split_once(':') {
            Some(("profile", name)) => Self::Profile(name.to_owned()),
            Some(("exec", id)) => Self::Exec(id.to_owned()),
            _ if text.starts_with('/') => Self::Program(text.to_owned()),
            _ => Self::Digest(text.to_owned()),
        }
    }

    pub(super) fn validate(&self, field: &str) -> Result<()> {
        match self {
            Self::Program(path) => program_path(&format!("{field}.program"), path),
            Self::Digest(digest) => program_digest(&format!("{field}.digest"), digest),
            Self::Profile(name) => check::name(&format!("{field}.profile"), name),
            Self::Exec(id) => {
                let exec: Result<ExecId> = id.parse();
                exec.map(drop).map_err(|error| Error::invalid(&format!("{field}.exec"), error.message))
            }
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program(text) | Self::Digest(text) => f.write_str(text),
            Self::Profile(name) => write!(f, "profile {name}"),
            Self::Exec(id) => write!(f, "exec {id}"),
        }
    }
}

/// Who made a connection: all that policies may call it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sender(BTreeSet<Origin>);

impl Sender {
    /// One that is all of these.
    #[must_use]
    pub fn new(origins: impl IntoIterator<Item = Origin>) -> Self {
        Self(origins.into_iter().collect())
    }

    /// Whether it is this.
    #[must_use]
    pub fn is(&self, origin: &Origin) -> bool {
        self.0.contains(origin)
    }
}
