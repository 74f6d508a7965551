//! Services that a sandbox begins with, in arguments.

use std::path::PathBuf;

use atoll_api::CreateService;
use clap::Args;

use super::execution::read;
use crate::failure::{Failure, Result};

/// Services that a sandbox begins with.
#[derive(Debug, Default, Args)]
pub(crate) struct ServicesArgs {
    /// Services that it begins with, as a JSON list in a file: each with 'name', 'argv' or 'shell', 'ready', 'after' and so on. It is there when they are ready
    #[arg(long, value_name = "FILE")]
    pub(crate) services: Option<PathBuf>,
}

impl ServicesArgs {
    /// The services.
    pub(crate) fn services(&self) -> Result<Vec<CreateService>> {
        let Some(path) = self.services.as_deref() else { return Ok(Vec::new()) };
        read(path, "services").map_err(|why| Failure::Usage(format!("--services: {}: {why}", path.display())))
    }
}
