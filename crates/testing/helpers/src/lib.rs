//! Helpers for tests of several crates: real programs started and stopped with the test, images made from
//! small trees, waiting with a deadline.
//!
//! Everything panics when it fails, because a test that cannot be set up has failed. Nothing here is
//! shipped.

#![expect(clippy::missing_panics_doc, reason = "helpers of tests panic by design")]

pub mod calls;
pub mod gvisor;
mod images;
pub mod journals;
pub mod machines;
mod process;
mod registry;
mod volatile_disk;
mod wait;

pub use images::{Entry, Layout, tar_of};
pub use process::{Child, run};
pub use registry::{Flavour, PASSWORD, Registry, USERNAME};
pub use volatile_disk::{Unflushed, VolatileDisk};
pub use wait::{free_port, wait_for};
