//! What policies mean for what was recorded.
//!
//! A [`Trace`] is what journals say that sandboxes did, as far as a policy has a word in it: programs that were started, names
//! that were looked up, connections and requests that were made. Over it there are [`replay`] (what another policy would
//! have refused), [`learn`] (the smallest policy that would have allowed it) and, without a trace, [`check`] (assertions about
//! a policy). Every decision is [`atoll_core`]'s own: the one that the gateway asks, and the one whose order the kernel's program has.
//!
//! No I/O, no clock.

mod assertion;
mod cover;
mod file;
mod fold;
mod learn;
mod replay;
mod trace;
mod verdict;

pub use assertion::{Assertion, Checked, Suite, check};
pub use file::{About, Policies};
pub use learn::{Learned, Options, learn};
pub use replay::{Finding, Replay, replay};
pub use trace::{Asked, Gap, Place, Program, Seen, Trace, What};
pub use verdict::{Outcome, Verdict, verdict};
