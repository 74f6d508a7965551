//! Which programs may run in a sandbox, and in which profile: which rules are refused because nothing could enforce
//! them, or no journal would tell of them, and what drivers are told.

use atoll_core::policy::EgressMode;
use atoll_core::spec::SandboxSpec;
use atoll_core::trace::TraceMode;
use atoll_core::{Code, Error, Result};
use atoll_isolation::Execution;

use crate::engine::Inner;
use crate::errors::isolation_error;

impl Inner {
    /// Refuses a policy that could not be enforced, or whose refusals would be in no journal.
    ///
    /// # Errors
    /// [`Code::Unenforceable`].
    pub(crate) fn check_execution(&self, spec: &SandboxSpec) -> Result<()> {
        spec.profiles.check_rules("egress", &spec.egress)?;
        self.check_observed(spec)?;
        if spec.trace_files.is_some() && self.config.trace.mode_of_spec(spec) == TraceMode::Off {
            let why = "changes of files are told only where it is recorded: this sandbox is not";
            return Err(Error::new(Code::Unenforceable, why).hint("leave out --trace off, or trace_files"));
        }
        let execution = execution(spec);
        if execution.is_open() {
            return Ok(());
        }
        let driver = self.driver(spec.isolation)?;
        driver.check_execution(&execution).map_err(|error| isolation_error(&error))?;
        if self.config.trace.mode_of_spec(spec) == TraceMode::Off {
            let why =
                "which programs run or connect is decided only where it is recorded: this sandbox is not";
            return Err(Error::new(Code::Unenforceable, why).hint("leave out --trace off"));
        }
        Ok(())
    }

    /// Refuses to let requests by that the rules forbid, if no journal would tell of them.
    fn check_observed(&self, spec: &SandboxSpec) -> Result<()> {
        if spec.egress.mode != EgressMode::Observe || self.config.trace.mode_of_spec(spec) != TraceMode::Off {
            return Ok(());
        }
        let why = "what would be refused is let by only where it is recorded: this sandbox is not";
        Err(Error::new(Code::Unenforceable, why).hint("leave out --trace off, or --egress-mode observe"))
    }
}

/// What a driver is told.
pub(crate) fn execution(spec: &SandboxSpec) -> Execution {
    Execution {
        policy: spec.execution.clone(),
        image_until_ms: spec.image_until_ms,
        origins: spec.egress.origins(),
        profiles: spec.profiles.clone(),
    }
}
