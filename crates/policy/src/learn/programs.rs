//! What ran.

use std::collections::BTreeSet;

use atoll_core::execution::{
    ExecutionAction, ExecutionPolicy, ExecutionRule, ProgramOrigin, Programs, program_path,
};
use atoll_core::limits::EXECUTION_RULES_MAX_COUNT;

use super::network::told;
use super::{Learned, Options};
use crate::cover::needed;
use crate::fold;
use crate::trace::{Program, Trace, What};

pub(super) fn learn(
    trace: &Trace,
    base: Option<&ExecutionPolicy>,
    options: Options,
    learned: &mut Learned,
) -> Result<Option<ExecutionPolicy>, String> {
    if !trace.has_programs {
        let note = "no kernel of the host saw programs here (gVisor, a machine, or a host that cannot): nothing is said of what may run";
        learned.notes.push(note.to_owned());
        return Ok(None);
    }
    let ran: BTreeSet<&Program> = trace
        .asked()
        .iter()
        .filter(|(_, seen)| seen.passed())
        .filter_map(|(asked, _)| match &asked.what {
            What::Program(program) => Some(program),
            What::Lookup | What::Connect | What::Request { .. } => None,
        })
        .collect();
    let (ours, others): (Vec<&Program>, Vec<&Program>) =
        ran.into_iter().partition(|program| program.origin == ProgramOrigin::Image);
    if !others.is_empty() {
        let paths: BTreeSet<&str> = others.iter().map(|program| program.path.as_str()).collect();
        let text = told("no rule can allow what is not the image's:", &paths);
        if !options.without_written {
            learned.notes.push(format!(
                "{text}. So everything may run; --without-written locks, and refuses these; a template could have them"
            ));
            return Ok(Some(ExecutionPolicy::default()));
        }
        learned.notes.push(format!("{text}. Left out: they would be refused"));
    }
    if ours.is_empty() {
        return Ok(None);
    }
    let denies = base.is_some_and(|base| base.rules.iter().any(|rule| rule.action == ExecutionAction::Deny));
    let mut rules: BTreeSet<(Option<String>, Option<String>)> = BTreeSet::new();
    for program in &ours {
        let path = program_path("path", &program.path).is_ok().then(|| program.path.clone());
        let digest = program.digest.clone().filter(|_| options.digests || path.is_none());
        if options.digests && digest.is_none() {
            learned.notes.push(format!("{}: nobody computed its digest: by its path alone", program.path));
        }
        if path.is_none() && digest.is_none() {
            learned.notes.push(format!("{:?} cannot be named by a rule", program.path));
            continue;
        }
        if program.file().is_loader() {
            learned
                .notes
                .push(format!("{} is a dynamic loader: who may run it may run every file", program.path));
        }
        rules.insert((path, digest));
    }
    if options.fold > 0 && !options.digests {
        if denies {
            learned.notes.push("the policy in force denies programs: no directories were folded".to_owned());
        } else {
            folded(&mut rules, options.fold, &mut learned.folds);
        }
    }
    finished(rules, &ours, learned).map(Some)
}

fn folded(rules: &mut BTreeSet<(Option<String>, Option<String>)>, threshold: usize, folds: &mut Vec<String>) {
    let paths: BTreeSet<String> =
        rules.iter().filter(|(_, digest)| digest.is_none()).filter_map(|(path, _)| path.clone()).collect();
    for fold in fold::directories(&paths, threshold) {
        let pattern = format!("{}/*", fold.below);
        folds.push(told(&format!("allow {pattern}"), &fold.names));
        rules.retain(|(path, _)| path.as_ref().is_none_or(|path| !fold.names.contains(path)));
        rules.insert((Some(pattern), None));
    }
}

fn finished(
    rules: BTreeSet<(Option<String>, Option<String>)>,
    ran: &[&Program],
    learned: &mut Learned,
) -> Result<ExecutionPolicy, String> {
    let allow = |(path, digest)| ExecutionRule {
        action: ExecutionAction::Allow,
        path,
        digest,
        ..ExecutionRule::default()
    };
    let rules: Vec<ExecutionRule> = rules.into_iter().map(allow).collect();
    let covers: Vec<Vec<usize>> = rules
        .iter()
        .map(|rule| {
            let named = ran.iter().enumerate().filter(|(_, program)| rule.names(&program.file()));
            named.map(|(at, _)| at).collect()
        })
        .collect();
    let stay = needed(&covers, ran.len());
    let mut rules: Vec<Option<ExecutionRule>> = rules.into_iter().map(Some).collect();
    let rules: Vec<ExecutionRule> =
        stay.into_iter().filter_map(|at| rules.get_mut(at).and_then(Option::take)).collect();
    if rules.len() <= EXECUTION_RULES_MAX_COUNT {
        let programs = if rules.is_empty() { Programs::Image } else { Programs::Listed };
        return Ok(ExecutionPolicy { programs, rules, ..ExecutionPolicy::default() });
    }
    let loaders: Vec<ExecutionRule> = rules
        .iter()
        .filter(|rule| ran.iter().any(|program| program.file().is_loader() && rule.names(&program.file())))
        .cloned()
        .collect();
    learned.notes.push(format!(
        "{} rules would be needed for programs and {EXECUTION_RULES_MAX_COUNT} are possible: all that the image brought may run",
        rules.len()
    ));
    Ok(ExecutionPolicy { rules: loaders, ..ExecutionPolicy::image() })
}
