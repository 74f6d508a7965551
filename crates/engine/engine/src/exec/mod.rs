//! Execs: durable commands.
//!
//! A [`session`] task owns each running exec: it moves output from the guest to the log, acknowledges
//! what is safe, keeps the timeouts and records the end. All other tasks read [`ExecShared`] and the
//! log. A session outlives broken guest connections: it waits for the next one and attaches at the
//! offset where its log ends.

mod ahead;
mod calls;
mod disk;
mod output;
mod session;
mod shared;
mod signal;
mod take_up;
mod typed;

pub(crate) use ahead::{Ahead, begin as begin_ahead, run_to_end, take_over as take_over_ahead};
pub(crate) use calls::new_record;
pub use output::{OutputEvent, OutputReader};
pub(crate) use session::wait_ended;
pub(crate) use shared::ExecShared;
pub use shared::ExecView;
pub(crate) use take_up::{enter_open, enter_started, tidy_up, tidy_up_but};
