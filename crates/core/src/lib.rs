//! The pure heart of Atoll: what the words mean, what is valid, what may follow what.
//!
//! Nothing here reads a file, a clock or a socket. Callers pass time and randomness in, so every
//! rule in this crate can be tested as a function.
//!
//! - [`id`]: typed identifiers for every noun
//! - [`error`]: the one error the product speaks, by machine-readable code
//! - [`limits`]: a limit on everything, named
//! - [`spec`]: drafts (what a caller asks) and specs (what was validated and resolved)
//! - [`sandbox`]: the sandbox state machine and admission
//! - [`policy`]: what a sandbox may reach, and how that is decided
//! - [`key`]: what an API key may do
//! - [`exec`]: the exec state machine and how an exit is classified

pub mod error;
pub mod exec;
pub mod id;
pub mod key;
pub mod limits;
pub mod policy;
pub mod sandbox;
pub mod secret;
pub mod spec;

pub use error::{Code, Error, Result};
