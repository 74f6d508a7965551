//! `policy`: what policies mean for what sandboxes did.

use std::path::Path;

use atoll_api::Sandbox;
use atoll_client::{Client, ClientError};
use atoll_core::policy::EgressPolicy;
use atoll_core::{Code, Error};
use atoll_policy::{Assertion, Checked, Finding, Learned, Options, Policies, Replay, Suite, Trace, check};
use serde::Serialize;

use super::net;
use crate::cli::{LearnArgs, PolicyCommand, ReplayArgs, TestArgs};
use crate::failure::{Failure, Result};
use crate::output::{Printer, table};

mod explain;
mod read;

/// Exit code when a policy does not do what was asked of it.
const EXIT_FOUND: u8 = 1;

/// `atoll policy …`; without a client where no server is asked.
pub(super) async fn policy(client: Option<&Client>, printer: Printer, command: PolicyCommand) -> Result<u8> {
    match command {
        PolicyCommand::Learn(args) => learn(client, printer, args).await,
        PolicyCommand::Replay(args) => replay(client, printer, args).await,
        PolicyCommand::Test(args) => test(printer, &args),
        PolicyCommand::Explain(args) => {
            explain::explain(connected(client)?, printer, &args).await.map(|()| 0)
        }
    }
}

fn connected(client: Option<&Client>) -> Result<&Client> {
    client.ok_or_else(|| Failure::plain(Code::Internal, "this needs a server"))
}

/// The output of `policy learn --json`.
#[derive(Debug, Serialize)]
struct Lesson<'a> {
    #[serde(flatten)]
    learned: &'a Learned,
    /// How it differs from the policies in force, a line each.
    diff: Vec<String>,
}

async fn learn(client: Option<&Client>, printer: Printer, args: LearnArgs) -> Result<u8> {
    let (trace, base) = match &args.trace_file {
        Some(file) => (read::file(file)?, Policies::default()),
        None => {
            let client = connected(client)?;
            let trace = read::journals(client, &args.sandboxes, args.since, args.exec.as_deref()).await?;
            (trace, in_force(client, printer, &args.sandboxes).await?)
        }
    };
    announce_gaps(printer, &trace, "this policy knows nothing of what was done meanwhile");
    let options = Options { digests: args.digests, fold: args.fold, without_written: args.without_written };
    let learned = atoll_policy::learn(&trace, &base, options).map_err(Failure::Usage)?;
    let diff = diff(&base, &learned.policies);
    for line in &diff {
        printer.note(line);
    }
    for fold in &learned.folds {
        printer.note(&format!("wildcard: {fold}"));
    }
    for note in &learned.notes {
        printer.warn(note);
    }
    if let Some(out) = &args.out {
        let text = serde_json::to_string_pretty(&learned.policies)
            .map_err(|error| Failure::io("cannot write the policy", std::io::Error::other(error)))?;
        std::fs::write(out, text + "\n")
            .map_err(|error| Failure::io(format!("cannot write {}", out.display()), error))?;
    }
    match (printer.is_json(), &args.out) {
        (true, _) => printer.document(&Lesson { learned: &learned, diff })?,
        (false, None) => printer.document(&learned.policies)?,
        (false, Some(out)) => printer.line(&format!("{}", out.display()))?,
    }
    Ok(0)
}

/// The policies of the first of the sandboxes that is there.
async fn in_force(client: &Client, printer: Printer, sandboxes: &[String]) -> Result<Policies> {
    let mut found: Option<(String, Policies)> = None;
    for name in sandboxes {
        let Some(sandbox) = living(client, name).await? else { continue };
        let policies =
            Policies { about: None, egress: Some(sandbox.egress), execution: Some(sandbox.execution) };
        match &found {
            None => found = Some((name.clone(), policies)),
            Some((first, base)) if *base != policies => printer.warn(&format!(
                "the policies of {first} and {name} differ: secrets, limits and the comparison are of {first}"
            )),
            Some(_) => {}
        }
    }
    Ok(found.map(|(_, policies)| policies).unwrap_or_default())
}

/// A sandbox that is there; `None` of one that is gone and has left its journal.
async fn living(client: &Client, sandbox: &str) -> Result<Option<Sandbox>> {
    match client.get_sandbox(sandbox).await {
        Ok(sandbox) => Ok(Some(sandbox)),
        Err(ClientError::Api { error, .. }) if error.code == Code::SandboxNotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn announce_gaps(printer: Printer, trace: &Trace, so: &str) {
    for gap in &trace.gaps {
        printer.warn(&format!(
            "INCOMPLETE: the journal of {} lacks, at {}, {}",
            gap.place.sandbox, gap.place.number, gap.what
        ));
    }
    if !trace.gaps.is_empty() {
        printer.warn(so);
    }
}

/// How two policies differ, a line each.
fn diff(before: &Policies, after: &Policies) -> Vec<String> {
    let open = EgressPolicy::default();
    let egress = after.egress.as_ref().map(|after| net::diff(before.egress.as_ref().unwrap_or(&open), after));
    let mut lines: Vec<String> =
        egress.iter().flat_map(|text| text.lines()).map(|line| line.to_owned()).collect();
    if let Some(after) = &after.execution {
        let words = |policy: &atoll_core::execution::ExecutionPolicy| {
            let mut words = vec![format!("programs: {}", policy.programs.as_str())];
            words.extend(policy.rules.iter().map(|rule| format!("program: {rule}")));
            words
        };
        let (old, new) = (words(&before.execution.clone().unwrap_or_default()), words(after));
        lines.extend(old.iter().filter(|line| !new.contains(line)).map(|line| format!("- {line}")));
        lines.extend(new.iter().filter(|line| !old.contains(line)).map(|line| format!("+ {line}")));
    }
    lines
}

async fn replay(client: Option<&Client>, printer: Printer, args: ReplayArgs) -> Result<u8> {
    let policies = read::policies(&args.policy)?;
    let trace = match &args.trace_file {
        Some(file) => read::file(file)?,
        None => read::journals(connected(client)?, &args.trace, args.since, None).await?,
    };
    announce_gaps(printer, &trace, "what was done meanwhile was not looked at");
    if policies.execution.is_some() && !trace.has_programs {
        printer.warn("no kernel of the host saw programs here: of what may run nothing was looked at");
    }
    let found = atoll_policy::replay(&policies, &trace);
    printer.result(&found, || replay_text(&found))?;
    let unsure = !found.unclear.is_empty() || !found.gaps.is_empty();
    Ok(if !found.refused.is_empty() || args.strict && unsure { EXIT_FOUND } else { 0 })
}

fn replay_text(found: &Replay) -> String {
    let mut text = String::new();
    let mut part = |title: &str, findings: &[Finding]| {
        if findings.is_empty() {
            return;
        }
        let rows = findings.iter().map(|finding| {
            let first = format!("{}:{}", finding.first.sandbox, finding.first.number);
            let by = finding.by.clone().unwrap_or_else(|| "-".to_owned());
            [finding.times.to_string(), finding.what.clone(), by, finding.why.clone(), first]
        });
        let table = table(["TIMES", "WHAT", "BY", "WHY", "FIRST"], rows);
        text.extend([title, "\n", table.as_str(), "\n\n"]);
    };
    part("WOULD BE REFUSED", &found.refused);
    part("CANNOT BE SAID", &found.unclear);
    part("WAS REFUSED, WOULD PASS", &found.opened);
    part("WAS REFUSED, WOULD BE AGAIN", &found.still_refused);
    for rule in &found.unused {
        text.extend(["decided nothing here: ", rule.as_str(), "\n"]);
    }
    if found.unused.iter().any(|rule| rule.starts_with("execution")) {
        text.push_str(
            "(a journal has paths without links: a rule that names a link is not recognised in it)\n",
        );
    }
    let times = |findings: &[Finding]| findings.iter().map(|finding| finding.times).sum::<u64>();
    text.extend([format!(
        "{} events of {} sandboxes, {} decisions: {} would be refused ({} different), {} cannot be said",
        found.events,
        found.sandboxes.len(),
        found.decisions,
        times(&found.refused),
        found.refused.len(),
        times(&found.unclear),
    )]);
    text
}

fn test(printer: Printer, args: &TestArgs) -> Result<u8> {
    let suite = suite(&args.file)?;
    let beside = |name: &String| args.file.parent().unwrap_or(Path::new(".")).join(name);
    let policy = args.policy.clone().or_else(|| suite.policy.as_ref().map(beside));
    let policy = policy.ok_or_else(|| {
        Failure::Usage(format!("{}: names no policy: give --policy FILE", args.file.display()))
    })?;
    let policies = read::policies(&policy)?;
    let lacks = |test: &&Assertion| {
        let half =
            if test.is_about_programs() { policies.execution.is_some() } else { policies.egress.is_some() };
        !half
    };
    if let Some(test) = suite.tests.iter().find(lacks) {
        let why = format!("{}: '{test}' is about what the policy does not speak of", args.file.display());
        return Err(Failure::Plain(
            Error::new(Code::InvalidArgument, why).hint("a policy has two halves: egress and execution"),
        ));
    }
    let checked = check(&policies, &suite.tests);
    let failed = checked.iter().filter(|test| !test.passed).count();
    printer.result(&checked, || {
        let line = |test: &Checked| {
            let word = if test.passed { "ok  " } else { "FAIL" };
            let why = if test.passed { String::new() } else { format!("  {}: {}", test.outcome, test.why) };
            format!("{word}  {}{why}", test.test)
        };
        let mut lines: Vec<_> = checked.iter().map(line).collect();
        lines.push(format!("{} tests, {failed} failed", checked.len()));
        lines.join("\n")
    })?;
    Ok(if failed > 0 { EXIT_FOUND } else { 0 })
}

fn suite(path: &Path) -> Result<Suite> {
    let text = read::small(path)?;
    let wrong = |why: String| Failure::Usage(format!("{}: {why}", path.display()));
    let suite = match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => toml::from_str(&text).map_err(|error| wrong(error.to_string()))?,
        Some("json") => serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?,
        _ => Suite::lines(&text).map_err(wrong)?,
    };
    suite.limited().map_err(wrong)
}
