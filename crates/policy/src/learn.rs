//! The smallest policy that would have allowed a trace.

mod network;
mod programs;

use serde::Serialize;

use crate::file::{About, Policies};
use crate::replay::replay;
use crate::trace::Trace;

/// How to learn.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Name programs by path and content, not by path alone.
    pub digests: bool,
    /// From how many names, programs or paths on a wildcard stands for them; never when 0.
    pub fold: usize,
    /// Leave out programs that were written in the sandbox: they would be refused.
    pub without_written: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { digests: false, fold: 8, without_written: false }
    }
}

/// What was learned.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Learned {
    /// The policies.
    pub policies: Policies,
    /// Wildcards, with what they stand for.
    pub folds: Vec<String>,
    /// What a person who reviews the policy should know.
    pub notes: Vec<String>,
}

/// The smallest policy that would have allowed what passed in a trace; what was refused plays no part. `base` are the policies in force:
/// secrets that are put into requests, and limits, stay as they are there, and nothing is folded over what they deny.
///
/// # Errors
/// Which things are too many for any policy, in words.
pub fn learn(trace: &Trace, base: &Policies, options: Options) -> Result<Learned, String> {
    let mut learned = Learned::default();
    learned.policies.about = Some(About {
        learned_from: trace.sandboxes.clone(),
        events: trace.events,
        missing: trace
            .gaps
            .iter()
            .map(|gap| format!("{} at {}: {}", gap.place.sandbox, gap.place.number, gap.what))
            .collect(),
    });
    learned.policies.egress = Some(network::learn(trace, base.egress.as_ref(), options, &mut learned)?);
    learned.policies.execution = programs::learn(trace, base.execution.as_ref(), options, &mut learned)?;
    learned.policies.validate().map_err(|error| error.to_string())?;
    for refused in replay(&learned.policies, trace).refused {
        learned.notes.push(format!("would be refused: {} ({})", refused.what, refused.why));
    }
    Ok(learned)
}
