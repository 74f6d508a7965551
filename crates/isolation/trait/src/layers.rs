//! Agent layers: directories of the host that an instance has mounted read-only, and that are replaced while it lives.

use std::path::PathBuf;

use atoll_core::layer::LAYERS_DIR;
use atoll_core::spec::IsolationLevel;

use crate::IsolationError;

/// A layer that an instance is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedLayer {
    /// Its name: one component of a path.
    pub name: String,
    /// The directory on the host. Owned by real root, ids as in the image.
    pub dir: PathBuf,
}

impl PlannedLayer {
    /// Where the instance has it, absolute.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{LAYERS_DIR}/{}", self.name)
    }
}

/// The error of a level that cannot mount agent layers.
#[must_use]
pub fn no_layers(level: IsolationLevel) -> IsolationError {
    IsolationError::UnenforceablePolicy(format!(
        "agent layers are directories of the host, which the isolation level '{level}' does not share with sandboxes"
    ))
}
