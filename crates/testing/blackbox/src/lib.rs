//! Tests that start the real program `atoll` and use it from outside: over HTTP, WebSocket and the
//! command line, with real sandboxes. Nothing here is shipped.
//!
//! ```text
//! program()   the program that was built with the tests
//! Server      a running `atoll serve` with a data directory of its own: kill, restart, command line, raw HTTP
//! level       the same tests at another isolation level
//! host        everything of an installation on the host: processes, cgroups, mounts, loop devices, directories
//! ```
//!
//! Every test ends with [`Server::finish`], which asserts that nothing is left on the host. A test that
//! fails before leaves nothing either: [`Server`] sweeps when it is dropped.

#![expect(clippy::missing_panics_doc, reason = "helpers of tests panic by design")]

pub mod host;
mod level;
mod program;
mod server;

pub use level::{archive, has_own_kernel, machines, set_up_machines};
pub use program::program;
pub use server::{Answer, Output, Server, command, wait_until};
