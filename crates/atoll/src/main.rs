//! The program `atoll`.
//!
//! ```text
//! main ─▶ cli (arguments) ─▶ config (flags > environment > file) ─▶ commands::<noun>
//!                                                                     │
//!                        output (the only place that prints) ◀────────┤
//!                        connection (a server somewhere, or here) ◀───┤
//!                        daemon (the server, its data directory) ◀────┤
//!                        session (drives one attached exec) ◀─────────┤
//!                        complete (candidates for a shell at TAB)     │
//!                        archive (tar, both ways, hostile input) ◀────┘
//! ```

mod archive;
mod build_view;
mod cli;
mod commands;
mod complete;
mod config;
mod connection;
mod daemon;
mod failure;
mod output;
mod presets;
mod printable;
mod progress;
mod recipes;
mod session;
mod signals;
mod terminal;
mod units;
mod words;

use std::process::ExitCode;

fn main() -> ExitCode {
    complete::answer();
    match cli::Cli::read() {
        Ok(cli) => commands::main(cli),
        Err(error) => commands::misused(&error),
    }
}
