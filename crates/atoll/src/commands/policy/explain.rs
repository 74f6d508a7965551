//! `policy explain`: why something was allowed or refused.

use atoll_client::{Client, GetEvents};
use atoll_core::execution::ProgramOrigin;
use atoll_core::profile::Profiles;
use atoll_core::{Code, Error};
use atoll_policy::{Asked, Outcome, Policies, Trace, What as AskedFor, verdict};
use atoll_recorder::event::PolicyDecision;
use atoll_recorder::{Numbered, What, Witness, fingerprint};
use serde::Serialize;

use super::super::trace::numbered;
use super::living;
use crate::cli::ExplainArgs;
use crate::failure::{Failure, Result};
use crate::output::{Printer, clean};

/// How far before a decision about a program its start stands.
const BEFORE: u64 = 200;

/// Why, and what would have to change.
#[derive(Debug, Serialize)]
struct Explained {
    sandbox: String,
    number: u64,
    /// What was asked for.
    what: String,
    /// Who decided: the gateway, or the kernel of the host.
    decided_by: &'static str,
    /// `allowed`, `refused`, `observed`: it passed because the policy only tells.
    outcome: &'static str,
    /// The rule with its number, or that there is none.
    why: String,
    /// Which policy decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_revision: Option<String>,
    /// Whether that policy is the one in force; `None` when the sandbox is gone or the event does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_force: Option<bool>,
    /// What the policy in force says of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    now: Option<String>,
    /// What would have to change for another outcome.
    change: String,
}

pub(super) async fn explain(client: &Client, printer: Printer, args: &ExplainArgs) -> Result<()> {
    let events = around(client, args).await?;
    let Some(event) = events.iter().find(|event| event.number == args.event) else {
        let why = format!("{} has no event {}", args.sandbox, args.event);
        return Err(Failure::Plain(
            Error::new(Code::InvalidArgument, why)
                .hint("'atoll trace SANDBOX --kind policy' shows decisions with numbers"),
        ));
    };
    let in_force = living(client, &args.sandbox).await?.map(|sandbox| InForce {
        profiles: sandbox.profiles,
        policies: Policies { about: None, egress: Some(sandbox.egress), execution: Some(sandbox.execution) },
    });
    let explained = explained(&args.sandbox, event, &events, in_force.as_ref())?;
    printer.result(&explained, || text(&explained))
}

/// The policies that are in force in a sandbox now.
struct InForce {
    policies: Policies,
    profiles: Profiles,
}

/// The event and some before it.
async fn around(client: &Client, args: &ExplainArgs) -> Result<Vec<Numbered>> {
    let from = args.event.saturating_sub(BEFORE).max(1);
    let mut query = GetEvents { from, ..GetEvents::default() };
    let mut events = Vec::new();
    loop {
        let page = client.events(&args.sandbox, &query).await?;
        for event in &page.items {
            if event.number > args.event {
                return Ok(events);
            }
            events.push(numbered(event)?);
        }
        if page.items.is_empty() {
            return Ok(events);
        }
        query.from = page.next;
    }
}

fn explained(
    sandbox: &str,
    event: &Numbered,
    events: &[Numbered],
    in_force: Option<&InForce>,
) -> Result<Explained> {
    let Some((asked, decision)) = asked(event, events) else {
        let why = format!(
            "event {} ({}) is nothing that a policy decides about",
            event.number,
            event.event.what.kind()
        );
        return Err(Failure::Plain(
            Error::new(Code::InvalidArgument, why)
                .hint("events of these kinds are: policy, http, process_started, dns"),
        ));
    };
    let is_program = matches!(asked.as_ref().map(|asked| &asked.what), Some(AskedFor::Program(_)))
        || event.event.witness == Witness::Host;
    let verdict = in_force.zip(asked.as_ref()).map(|(now, asked)| verdict(&now.policies, asked));
    let recorded = decision.as_ref();
    let outcome = recorded.map_or("allowed", |decision| match (decision.observed, decision.allowed) {
        (true, _) => "observed",
        (false, true) => "allowed",
        (false, false) => "refused",
    });
    let what = asked.as_ref().map(ToString::to_string);
    let what = what.or_else(|| recorded.map(|decision| decision.subject.clone())).unwrap_or_default();
    let revision = recorded.map(|decision| decision.policy_revision).filter(|revision| *revision != 0);
    let now = in_force.map(|now| revision_of(now, is_program));
    let word = |outcome| match outcome {
        Outcome::Allowed => "allowed",
        Outcome::Refused => "refused",
        Outcome::Unclear => "unclear",
    };
    let why = match &event.event.what {
        What::Http(http) if !http.rule.is_empty() => http.rule.clone(),
        _ => recorded.map(|decision| decision.rule.clone()).unwrap_or_else(|| {
            "nothing of it was refused; which rule allowed it is not recorded of programs and lookups"
                .to_owned()
        }),
    };
    let change = change(outcome, &why, asked.as_ref(), recorded);
    Ok(Explained {
        sandbox: sandbox.to_owned(),
        number: event.number,
        what,
        decided_by: if is_program { "the kernel of the host" } else { "the gateway" },
        outcome,
        why,
        policy_revision: revision.map(|revision| format!("{revision:012x}")),
        in_force: revision.zip(now).map(|(then, now)| then == now),
        now: verdict.map(|verdict| format!("{}: {}", word(verdict.outcome), verdict.why)),
        change,
    })
}

/// The revision by which the kernel or the gateway names the policy in force.
fn revision_of(InForce { policies, profiles }: &InForce, is_program: bool) -> u64 {
    let egress = policies.egress.clone().unwrap_or_default();
    if is_program {
        fingerprint(&(policies.execution.clone().unwrap_or_default(), egress.origins(), profiles))
    } else {
        fingerprint(&egress)
    }
}

/// What an event asked for, and what was decided, where that is written.
fn asked(event: &Numbered, events: &[Numbered]) -> Option<(Option<Asked>, Option<PolicyDecision>)> {
    let of = |events: &[Numbered]| {
        let trace = Trace::read(events.iter().map(|event| ("", event)));
        trace.asked().first().map(|(asked, _)| asked.clone())
    };
    let same = |other: &&Numbered| other.event.process == event.event.process;
    match &event.event.what {
        What::Policy(decision) if decision.stage == "exec" => {
            let start = events.iter().rev().filter(same);
            let start = start.into_iter().find(|other| matches!(other.event.what, What::ProcessStarted(_)));
            Some((start.and_then(|start| of(std::slice::from_ref(start))), Some(decision.clone())))
        }
        What::Policy(decision) => Some((of(std::slice::from_ref(event)), Some(decision.clone()))),
        What::ProcessStarted(_) => {
            // The decision about it stands after it, and was not asked for.
            Some((Some(of(std::slice::from_ref(event))?), None))
        }
        What::Http(_) | What::Dns(_) => Some((Some(of(std::slice::from_ref(event))?), None)),
        _ => None,
    }
}

fn change(outcome: &str, why: &str, asked: Option<&Asked>, decision: Option<&PolicyDecision>) -> String {
    let by_rule = why.trim_start_matches("would be refused: ").starts_with("rule ");
    if outcome == "allowed" {
        return if by_rule {
            "to refuse it, remove or narrow that rule, or put one that denies before it".to_owned()
        } else {
            "to refuse it, write a rule that denies it, or allow only what rules name".to_owned()
        };
    }
    if let Some(ask) = decision.and_then(|decision| decision.ask.as_ref()) {
        return format!("to allow it: {ask}");
    }
    match asked.map(|asked| &asked.what) {
        _ if by_rule => "to allow it, remove or narrow that rule, or put one that allows before it".to_owned(),
        Some(AskedFor::Program(program)) if program.origin == ProgramOrigin::Image => {
            format!("to allow it: --allow-program {}", program.path)
        }
        Some(AskedFor::Program(_)) => {
            "no rule can allow it: put it into the image or the template, or let everything run (--execution any)"
                .to_owned()
        }
        _ => "a limit was reached, or nothing would allow it".to_owned(),
    }
}

fn text(explained: &Explained) -> String {
    let mut lines = vec![
        format!("what      {}", explained.what),
        format!("outcome   {} by {}", explained.outcome, explained.decided_by),
        format!("why       {}", explained.why),
    ];
    if let Some(revision) = &explained.policy_revision {
        let in_force = match explained.in_force {
            Some(true) => ", which is in force",
            Some(false) => ", which was changed since",
            None => "",
        };
        lines.push(format!("policy    {revision}{in_force}"));
    }
    if let Some(now) = &explained.now {
        lines.push(format!("now       {now}"));
    }
    lines.push(format!("change    {}", explained.change));
    clean(&lines.join("\n"))
}
