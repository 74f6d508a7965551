//! The conformance suite against real containers.
#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

mod common;

use common::containers;

atoll_isolation::conformance_tests!(containers);
