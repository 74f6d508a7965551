//! How much of what a sandbox does is recorded.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::limits::TRACE_PATHS_MAX_COUNT;
use crate::profile::plain_path;

/// How much is recorded. Ordered: a later one records no less.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum TraceMode {
    /// Nothing.
    Off,
    /// Everything; what cannot be written is a gap that says so.
    #[default]
    On,
    /// Everything, or the sandbox stands still.
    Strict,
}

impl TraceMode {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Strict => "strict",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Off, Self::On, Self::Strict].into_iter().find(|mode| mode.as_str() == text)
    }
}

/// Files of which is told when they change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TraceFiles {
    /// Files, and directories with all below them, from the moment on that they are there.
    pub paths: Vec<String>,
    /// Whether the content of what was written is told by its BLAKE3, up to 64 MiB for each file.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub digests: bool,
}

impl TraceFiles {
    /// Checks the paths.
    ///
    /// # Errors
    /// [`crate::Code::InvalidArgument`] or [`crate::Code::PathInvalid`] naming the field.
    pub fn validate(&self, field: &str) -> Result<()> {
        let paths = format!("{field}.paths");
        if self.paths.is_empty() || self.paths.len() > TRACE_PATHS_MAX_COUNT {
            return Err(Error::invalid(&paths, format_args!("1 to {TRACE_PATHS_MAX_COUNT} paths")));
        }
        for (number, path) in self.paths.iter().enumerate() {
            let field = format!("{paths}[{number}]");
            plain_path(&field, path)?;
            if self.paths[..number].contains(path) {
                return Err(Error::invalid(
                    &field,
                    format_args!("'{}' was named before", crate::error::shorten(path)),
                ));
            }
        }
        Ok(())
    }
}

impl std::fmt::Display for TraceMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_are_watched_are_plain() {
        let of = |paths: &[&str]| TraceFiles {
            paths: paths.iter().map(|&path| path.to_owned()).collect(),
            digests: false,
        };
        of(&["/work", "/etc/passwd"]).validate("trace_files").unwrap();
        for (paths, why) in [
            (&[][..], "trace_files.paths: 1 to 16"),
            (&["work"], "trace_files.paths[0]"),
            (&["/"], "trace_files.paths[0]"),
            (&["/a", "/b/../c"], "trace_files.paths[1]"),
            (&["/a", "/a"], "'/a' was named before"),
            (&["/a"; 17], "1 to 16"),
        ] {
            let said = of(paths).validate("trace_files").unwrap_err().to_string();
            assert!(said.contains(why), "{paths:?}: {said}");
        }
    }
}
