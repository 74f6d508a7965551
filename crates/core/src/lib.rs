//! The pure heart of Atoll: the meaning of the nouns, which values are valid, which state may follow which.
//!
//! Nothing here reads a file, a clock or a socket. Callers pass time and randomness in, so every
//! rule in this crate can be tested as a function.
//!
//! - [`id`]: typed identifiers for every noun
//! - [`error`]: the one error the product speaks, by machine-readable code
//! - [`limits`]: a limit on everything, named
//! - [`spec`]: drafts (what a caller asks) and specs (what was validated and resolved)
//! - [`policy`]: what a sandbox may reach on the network, and how that is decided; injection rules
//! - [`sandbox`]: the sandbox state machine and admission
//! - [`network`]: what can be seen of a sandbox's network
//! - [`node`]: the nodes of a cluster, and their reports of themselves
//! - [`placement`]: which of them gets a new sandbox
//! - [`draw`]: numbers that follow from a seed
//! - [`snapshot`]: what is kept of a sandbox, and its names
//! - [`execution`]: which programs may run in a sandbox, and how that is decided
//! - [`sharing`]: which API key may do what with one sandbox, and leases
//! - [`idle`]: what a sandbox does while no client uses it
//! - [`key`]: what an API key may do
//! - [`person`]: people who log in at an issuer of identities, and the rights of each of them
//! - [`project`]: keys and what they make, apart from other projects, and their quotas
//! - [`usage`]: what was used, and budgets
//! - [`build`]: what a build is asked, and its states
//! - [`access`]: how ports and files are reached without an API key
//! - [`pool`]: which waiting sandbox serves which request, and how many wait
//! - [`service`]: commands that should always run, and when they are started again
//! - [`agent`]: agents that live in sandboxes, their sessions, the protocols they speak
//! - [`layer`]: programs of agents, apart from images
//! - [`code`]: code that is run cell by cell, in contexts that remember
//! - [`volume`]: storage that outlives sandboxes, and where it is mounted
//! - [`exec`]: the exec state machine and how an exit is classified

pub mod access;
pub mod agent;
pub mod build;
pub mod code;
pub mod draw;
pub mod error;
pub mod exec;
pub mod execution;
#[cfg(test)]
mod fuzz;
pub mod id;
pub mod idle;
pub mod key;
pub mod layer;
pub mod limits;
pub mod network;
pub mod node;
pub mod opaque;
pub mod person;
pub mod placement;
pub mod policy;
pub mod pool;
pub mod profile;
pub mod project;
pub mod sandbox;
pub mod secret;
pub mod service;
pub mod shares;
pub mod sharing;
pub mod snapshot;
pub mod spec;
pub mod trace;
pub mod traceparent;
pub mod usage;
pub mod volume;

pub use error::{Code, Error, Result};
