//! The real program, from outside: over HTTP, WebSocket and the command line, with real sandboxes.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::allow_attributes,
    reason = "tests"
)]

#[path = "../common/mod.rs"]
mod common;

mod access;
mod agent_attach;
mod agent_forks;
mod agent_layers;
mod agent_profiles;
mod agent_recipes;
mod agent_schedules;
mod agent_served;
mod agents;
mod backup;
mod bad_input;
mod build_bases;
mod build_limits;
mod build_mounts;
mod build_starts;
mod builds;
mod checkpoints;
mod cli;
mod cli_commands;
mod cli_host;
mod code;
mod crash;
mod cuts;
mod dashboard;
mod declared_services;
mod execs;
mod files;
mod host_full;
mod hostile_disks;
mod images;
mod isolation;
mod lock;
mod pause;
mod pools;
mod power_cut;
mod projects;
mod purge;
mod races;
mod readers;
mod sandboxes;
mod services;
mod snapshots;
mod start_service;
mod survival;
mod told;
mod trace;
mod unreadable;
mod unwritable;
mod usage;
mod volume_parts;
mod volumes;
mod walk;
