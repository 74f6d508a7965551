//! Which programs may run in an instance.

use atoll_core::execution::ExecutionPolicy;
use atoll_core::spec::IsolationLevel;

use crate::IsolationError;

/// Which programs may run in an instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Execution {
    /// Which.
    pub policy: ExecutionPolicy,
    /// What lies on its disk and was changed last before this moment (milliseconds since the epoch) belongs to its image: its template
    /// put it there. Nothing on the disk does when absent.
    pub image_until_ms: Option<u64>,
}

/// Refuses every policy that holds a program back, for a level whose programs the host's kernel does not see.
///
/// # Errors
/// [`IsolationError::UnenforceablePolicy`] for such a policy.
pub fn no_execution_policy(policy: &ExecutionPolicy, level: IsolationLevel) -> Result<(), IsolationError> {
    if policy.is_open() {
        return Ok(());
    }
    Err(IsolationError::UnenforceablePolicy(format!(
        "which programs run cannot be decided at the isolation level '{level}': their kernel is not the host's"
    )))
}
