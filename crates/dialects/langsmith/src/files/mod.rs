//! Files of a sandbox.

pub(crate) mod download;
pub(crate) mod search;
pub(crate) mod upload;

use atoll_core::spec;
use serde::Deserialize;

use crate::error::{Failure, Result};

/// The directory at which relative paths begin.
const HOME: &str = "/home/user";

/// The file that the client names.
#[derive(Debug, Deserialize)]
pub(crate) struct OfFile {
    path: String,
}

impl OfFile {
    /// The absolute path. `kind` is the client's error for a path that is not valid.
    fn absolute(self, kind: &'static str) -> Result<String> {
        let path = if self.path.starts_with('/') { self.path } else { format!("{HOME}/{}", self.path) };
        spec::path("path", &path).map_err(|error| Failure::data(kind, &error))?;
        Ok(path)
    }
}
