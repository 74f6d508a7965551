//! Profiles of a sandbox, and files that are watched, in arguments.

use std::path::{Path, PathBuf};

use atoll_core::profile::Profiles;
use atoll_core::trace::TraceFiles;
use clap::Args;

use super::execution::read;
use crate::failure::{Failure, Result};

/// Files whose changes are told.
#[derive(Debug, Default, Args)]
pub(crate) struct TraceFilesArgs {
    /// Tell in the journal when this file, or what is below this directory, changes (repeatable)
    #[arg(help_heading = "Programs", long, value_name = "PATH")]
    pub(crate) trace_files: Vec<String>,
    /// Tell what was written there by its digest, too
    #[arg(help_heading = "Programs", long, requires = "trace_files")]
    pub(crate) trace_digests: bool,
}

impl TraceFilesArgs {
    /// The files, if there are any.
    pub(crate) fn files(&self) -> Option<TraceFiles> {
        let files = TraceFiles { paths: self.trace_files.clone(), digests: self.trace_digests };
        (!files.paths.is_empty()).then_some(files)
    }
}

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
