//! The real program, from outside: which hosts sandboxes reach, and how clients reach sandboxes.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    clippy::allow_attributes,
    reason = "tests"
)]

#[path = "../common/mod.rs"]
mod common;

mod acme;
mod build_add;
mod egress;
mod egress_bypass;
mod egress_bypass_http;
mod egress_real;
mod intercept;
mod names;
mod observe;
mod policy;
mod ports;
mod ports_http2;
mod profiles;
mod revoked;
mod secrets;
mod senders;
mod spans;
mod ssh;
mod ssh_remote;
mod tls;
mod tunnel;
mod wake;
