//! What a policy would have refused.

use std::collections::BTreeMap;

use atoll_core::policy::Action;
use serde::Serialize;

use crate::file::Policies;
use crate::trace::{Asked, Gap, Place, Seen, Trace, What};
use crate::verdict::{Outcome, verdict};

/// What becomes of a trace under a policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Replay {
    /// Sandboxes whose journals were read.
    pub sandboxes: Vec<String>,
    /// Events that were read.
    pub events: u64,
    /// How often something was asked that the policy speaks of.
    pub decisions: u64,
    /// What passed then and would be refused.
    pub refused: Vec<Finding>,
    /// What passed then, where it is unclear whether the policy would let it pass.
    pub unclear: Vec<Finding>,
    /// What was refused then and would pass.
    pub opened: Vec<Finding>,
    /// What was refused then and would be refused.
    pub still_refused: Vec<Finding>,
    /// Rules that decided nothing in this trace.
    pub unused: Vec<String>,
    /// What the journals lack.
    pub gaps: Vec<Gap>,
}

/// Something that was asked, and what the policy says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// `exec`, `lookup`, `connect`, `request`.
    pub kind: &'static str,
    /// What: `exec /tmp/x`, `GET https://example.com/`.
    pub what: String,
    /// The program that connected, where a kernel says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The rule, or that there is none.
    pub why: String,
    /// How often.
    pub times: u64,
    /// Where it is written first.
    pub first: Place,
}

impl Finding {
    fn new(asked: &Asked, seen: &Seen, why: String, times: u64) -> Self {
        let kind = match asked.what {
            What::Program(_) => "exec",
            What::Lookup => "lookup",
            What::Connect => "connect",
            What::Request { .. } => "request",
        };
        let by = asked.by.as_ref().map(|program| program.path.clone());
        Self { kind, what: asked.to_string(), by, why, times, first: seen.first.clone() }
    }
}

/// Asks a policy about everything in a trace.
#[must_use]
pub fn replay(policies: &Policies, trace: &Trace) -> Replay {
    let mut found = Replay {
        sandboxes: trace.sandboxes.clone(),
        events: trace.events,
        gaps: trace.gaps.clone(),
        ..Replay::default()
    };
    let mut used: BTreeMap<(bool, usize), u64> = BTreeMap::new();
    for (asked, seen) in trace.asked() {
        let is_program = matches!(asked.what, What::Program(_));
        let spoken_of = if is_program { policies.execution.is_some() } else { policies.egress.is_some() };
        if !spoken_of {
            continue;
        }
        found.decisions = found.decisions.saturating_add(seen.times());
        let verdict = verdict(policies, asked);
        if let Some(rule) = verdict.rule {
            *used.entry((is_program, rule)).or_default() += seen.times();
        }
        let passed = seen.allowed.saturating_add(seen.observed);
        let finding = |times| Finding::new(asked, seen, verdict.why.clone(), times);
        if passed > 0 {
            match verdict.outcome {
                Outcome::Allowed => {}
                Outcome::Refused => found.refused.push(finding(passed)),
                Outcome::Unclear => found.unclear.push(finding(passed)),
            }
        }
        if seen.refused > 0 {
            match verdict.outcome {
                Outcome::Allowed => found.opened.push(finding(seen.refused)),
                Outcome::Refused => found.still_refused.push(finding(seen.refused)),
                Outcome::Unclear => found.unclear.push(finding(seen.refused)),
            }
        }
    }
    for list in [&mut found.refused, &mut found.unclear, &mut found.opened, &mut found.still_refused] {
        list.sort_by_key(|finding| std::cmp::Reverse(finding.times));
    }
    found.unused = unused(policies, trace, &used);
    found
}

/// Rules that decided nothing, in words. Of programs it can be a path with links, which a trace does not have.
fn unused(policies: &Policies, trace: &Trace, used: &BTreeMap<(bool, usize), u64>) -> Vec<String> {
    let mut unused = Vec::new();
    if let Some(policy) = policies.execution.as_ref().filter(|_| trace.has_programs) {
        for (index, rule) in policy.rules.iter().enumerate() {
            if !used.contains_key(&(true, index)) {
                unused.push(format!("execution rule {} ({rule})", index + 1));
            }
        }
    }
    if let Some(policy) = &policies.egress {
        for (index, rule) in policy.rules.iter().enumerate() {
            if rule.action == Action::Allow && !used.contains_key(&(false, index)) {
                unused.push(format!("egress rule {} ({rule})", index + 1));
            }
        }
    }
    unused
}
