//! Which programs may run in an instance.

use atoll_core::execution::ExecutionPolicy;
use atoll_core::policy::Origin;
use atoll_core::profile::{EVERY_PROGRAM, Profiles};
use atoll_core::spec::IsolationLevel;

use crate::IsolationError;

/// Which programs may run in an instance, and which the driver tells apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Execution {
    /// The policy: which programs may run.
    pub policy: ExecutionPolicy,
    /// A file on its disk that was changed last before this moment (milliseconds since the epoch) belongs to its image:
    /// its template put it there. When absent, no file on the disk does.
    pub image_until_ms: Option<u64>,
    /// Programs whose connections its network policy tells from others'.
    pub origins: Vec<Origin>,
    /// The profiles that its processes may be in.
    pub profiles: Profiles,
}

impl Execution {
    /// Whether every program may run, the network policy does not ask which program connects, and there are no
    /// profiles.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.policy.is_open() && self.origins.is_empty() && self.profiles.is_empty()
    }

    /// Whether the policy, an origin or a profile names programs of the image, which the driver then looks up there.
    #[must_use]
    pub fn names_programs(&self) -> bool {
        let steps = self.profiles.named.values().flat_map(|profile| profile.on_exec.keys());
        !self.policy.rules.is_empty()
            || self.origins.iter().any(Origin::names_programs)
            || steps.into_iter().any(|program| program != EVERY_PROGRAM)
    }
}

/// Refuses every policy that holds a program back or asks which one connects, for a level whose programs the host's kernel does not see.
///
/// # Errors
/// [`IsolationError::UnenforceablePolicy`] for such a policy.
pub fn no_execution_policy(execution: &Execution, level: IsolationLevel) -> Result<(), IsolationError> {
    if execution.is_open() {
        return Ok(());
    }
    let what = if !execution.profiles.is_empty() {
        "in which profile a process is"
    } else if execution.policy.is_open() {
        "which programs connect"
    } else {
        "which programs run"
    };
    Err(IsolationError::UnenforceablePolicy(format!(
        "{what} cannot be decided at the isolation level '{level}': their kernel is not the host's"
    )))
}
