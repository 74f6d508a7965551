//! The conformance suite against real containers.
#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

mod common;

use common::containers;

/// Containers there are on every host that tests run on.
fn harness() -> Option<common::Containers> {
    Some(containers())
}

atoll_isolation::conformance_tests!(harness);
