//! The kernel's witness against this host's kernel.
#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test")]

mod common;
mod fitted;
mod gate;
mod growth;
mod kernel;
mod object;
mod reuse;
mod takeover;
