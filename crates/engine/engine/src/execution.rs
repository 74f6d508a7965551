//! Which programs may run in a sandbox: what is refused because nobody could enforce it, and what drivers are told.

use atoll_core::spec::SandboxSpec;
use atoll_core::trace::TraceMode;
use atoll_core::{Code, Error, Result};
use atoll_isolation::Execution;

use crate::engine::Inner;
use crate::errors::isolation_error;

impl Inner {
    /// Refuses a policy that could not be enforced, or whose refusals nobody would ever read.
    ///
    /// # Errors
    /// [`Code::Unenforceable`].
    pub(crate) fn check_execution(&self, spec: &SandboxSpec) -> Result<()> {
        if spec.execution.is_open() {
            return Ok(());
        }
        let driver = self.driver(spec.isolation)?;
        driver.check_execution(&spec.execution).map_err(|error| isolation_error(&error))?;
        if self.config.trace.mode_of_spec(spec) == TraceMode::Off {
            let why = "which programs run is decided only where it is recorded: this sandbox is not";
            return Err(Error::new(Code::Unenforceable, why).hint("leave out --trace off"));
        }
        Ok(())
    }
}

/// What a driver is told.
pub(crate) fn execution(spec: &SandboxSpec) -> Execution {
    Execution { policy: spec.execution.clone(), image_until_ms: spec.image_until_ms }
}
