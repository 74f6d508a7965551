//! The real program with sandboxes that have a kernel of their own: virtual machines and gVisor.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    clippy::allow_attributes,
    reason = "tests"
)]

#[path = "../common/mod.rs"]
mod common;

mod gvisor;
mod hostile_disks;
mod microvm;
mod microvm_templates;
