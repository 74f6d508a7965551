//! What a build does, without doing it.
//!
//! ```text
//! Dockerfile ─ lines ─ parse ─┐
//!                             ├─▶ Recipe: stages of instructions ─ graph ─▶ stages that the target needs
//! step list ── steps ─────────┘                                                    │
//!                                          image defaults, ContextIndex, args ──▶ plan ──▶ steps with cache keys
//! ```
//!
//! The engine runs what [`plan::plan_stage`] gives. Everything in this crate is a function of texts, so that a
//! whole Dockerfile can be tested without a sandbox, and so that the keys of *all* steps are known before the
//! first one runs: a build begins after the last step that is in the cache.
//!
//! Every complaint is a [`atoll_core::Error`] whose message begins with where it is: `line 3, column 8`, or
//! `step 3` in a step list. The texts come from callers and are hostile: bounded by the limits of
//! [`atoll_core::limits`], never a panic.

mod budget;
pub mod context;
pub mod copy;
#[cfg(test)]
mod fuzz;
mod glob;
pub mod graph;
mod ignore;
pub mod key;
mod lines;
pub mod mounts;
mod parse;
pub mod place;
pub mod plan;
pub mod recipe;
mod steps;
mod words;

pub use budget::Budget;
pub use ignore::Ignore;
pub use parse::parse;
pub use steps::from_steps;
