//! Profiles of a sandbox, in arguments.

use std::path::{Path, PathBuf};

use atoll_core::profile::Profiles;
use clap::Args;

use super::execution::read;
use crate::failure::{Failure, Result};

/// Profiles of the processes of a sandbox.
#[derive(Debug, Default, Args)]
pub(crate) struct ProfileArgs {
    /// Profiles of its processes, as JSON in a file: what they may reach, see and run, each with less than the sandbox (containers only)
    #[arg(help_heading = "Programs", long, value_name = "FILE")]
    pub(crate) profiles: Option<PathBuf>,
}

impl ProfileArgs {
    /// The profiles, if there are any.
    pub(crate) fn profiles(&self) -> Result<Option<Profiles>> {
        let wrong = |path: &Path, why: &str| Failure::Usage(format!("--profiles: {}: {why}", path.display()));
        self.profiles
            .as_deref()
            .map(|path| read(path, "profiles").map_err(|why| wrong(path, &why)))
            .transpose()
    }
}
