//! Files of a sandbox.

pub(crate) mod download;
pub(crate) mod search;
pub(crate) mod upload;

use atoll_core::spec;
use serde::Deserialize;

use crate::error::{Failure, Result};

/// Where relative paths begin.
const HOME: &str = "/home/user";

/// Which file.
#[derive(Debug, Deserialize)]
pub(crate) struct OfFile {
    path: String,
}

impl OfFile {
    /// The absolute path. `kind` is what a client makes of a path that is none.
    fn absolute(self, kind: &'static str) -> Result<String> {
        let path = if self.path.starts_with('/') { self.path } else { format!("{HOME}/{}", self.path) };
        spec::path("path", &path).map_err(|error| Failure::data(kind, &error))?;
        Ok(path)
    }
}
