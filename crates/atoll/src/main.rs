//! The program `atoll`.
//!
//! ```text
//! main ─▶ cli (arguments) ─▶ config (flags > environment > file) ─▶ commands::<noun>
//!                                                                     │
//!                        output (the only place that prints) ◀────────┤
//!                        connection (a server somewhere, or here) ◀───┤
//!                        session (drives one attached exec) ◀─────────┤
//!                        archive (tar, both ways, hostile input) ◀────┘
//! ```

mod archive;
mod cli;
mod commands;
mod config;
mod connection;
mod failure;
mod output;
mod progress;
mod session;
mod signals;
mod terminal;
mod units;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    commands::main(cli::Cli::parse())
}
