//! The driver keeps the contract of [`atoll_isolation`].
#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

mod common;

use common::sentries;

atoll_isolation::conformance_tests!(sentries);
