//! Several forks of an agent, told the same: `atoll agent fork`
//!
//! The server makes the forks from a snapshot that this command takes for the purpose and deletes at the end: a fork's
//! changes are the difference to that snapshot. If the user breaks the command off, the snapshot and the forks stay;
//! `atoll agent ls` shows the forks.

use atoll_api::{
    Agent, CreateAgentSession, CreateExec, CreateSnapshot, ForkAgent, SendAgentMessage, Snapshot,
};
use atoll_client::{Client, ClientError};
use atoll_core::Code;
use atoll_core::agent::EventKind;
use atoll_core::limits::WAIT_MAX_MS;
use atoll_core::snapshot::{ChangeKind, Comparison};
use futures::future::join_all;
use serde::Serialize;
use serde_json::Value;

use crate::cli::{ForkAgentArgs, Keep};
use crate::failure::{Failure, Result};
use crate::output::{Printer, table};

/// The thread in which forks are told what to do.
const THREAD: &str = "main";

/// The outcome of one fork.
#[derive(Debug, Serialize)]
struct Outcome {
    number: usize,
    agent: String,
    sandbox: String,
    /// How the message ended: the reason that the agent gave, or the code of an error.
    ended: String,
    /// Whether that is an error.
    failed: bool,
    /// The judge's exit code; absent without a judge, or when a signal ended it.
    judge: Option<i32>,
    passed: Option<bool>,
    /// The differences from the agent's sandbox as it was.
    diff: Comparison,
    kept: bool,
}

/// `atoll agent fork`: the exit code says whether there is one to keep, where one was asked for.
pub(super) async fn fork(client: &Client, printer: Printer, args: ForkAgentArgs) -> Result<u8> {
    check(&args)?;
    let home = client.get_agent(&args.agent).await?.sandbox;
    let comment = Some(format!("where the forks of the agent {} begin", args.agent));
    let create = CreateSnapshot { comment, memory: args.memory, ..CreateSnapshot::default() };
    let base = client.create_snapshot(&home, &create).await?;
    let compared = compare(client, printer, &args, &base).await;
    // Also after a failure: the forks keep the data that they have of the snapshot.
    let removed = client.delete_snapshot(&base.id).await;
    let (mut outcomes, complete) = compared?;
    removed?;
    let best = match args.keep {
        None => None,
        Some(Keep::Number(number)) => outcomes.iter().position(|outcome| outcome.number == number),
        Some(Keep::Passed) => outcomes.iter().position(|outcome| outcome.passed == Some(true)),
    };
    if let Some(best) = best {
        for (_, outcome) in outcomes.iter_mut().enumerate().filter(|(at, _)| *at != best) {
            client.delete_agent(&outcome.agent).await?;
            outcome.kept = false;
        }
    }
    printer.result(&outcomes, || {
        table(
            ["FORK", "AGENT", "ENDED", "JUDGE", "ADDED", "CHANGED", "REMOVED", "KEPT"],
            outcomes.iter().map(row),
        )
    })?;
    if args.keep.is_some() && best.is_none() {
        printer.warn("none is as it should be to be kept alone; all stay");
    }
    Ok(u8::from(!complete || args.keep.is_some() && best.is_none()))
}

/// Refuses arguments that would otherwise fail only after all the work.
fn check(args: &ForkAgentArgs) -> Result<()> {
    let wrong = |why: &str| Err(Failure::plain(Code::InvalidArgument, why.to_owned()));
    match args.keep {
        Some(Keep::Passed) if args.judge.is_none() => wrong("--keep passed needs --judge"),
        Some(Keep::Number(number)) if number > args.count as usize => wrong("--keep: there is no such fork"),
        _ => Ok(()),
    }
}

/// Makes the forks and has each work; says whether all of them did.
async fn compare(
    client: &Client,
    printer: Printer,
    args: &ForkAgentArgs,
    base: &Snapshot,
) -> Result<(Vec<Outcome>, bool)> {
    let order = ForkAgent {
        count: args.count,
        at: Some(base.id.clone()),
        memory: args.memory,
        name: args.name.clone(),
    };
    let forked = client.fork_agent(&args.agent, &order).await?;
    let mut working = Vec::new();
    let mut complete = true;
    for (at, result) in forked.results.into_iter().enumerate() {
        match (result.agent, result.error) {
            (Some(agent), _) => working.push(work(client, printer, args, base, at + 1, agent)),
            (None, Some(error)) => {
                complete = false;
                let request_id = error.request_id.clone();
                printer.failure(&Failure::from(ClientError::Api { error: error.into(), request_id }));
            }
            (None, None) => complete = false,
        }
    }
    let mut outcomes = Vec::new();
    for worked in join_all(working).await {
        match worked {
            Ok(outcome) => outcomes.push(outcome),
            Err(failure) => {
                complete = false;
                printer.failure(&failure);
            }
        }
    }
    Ok((outcomes, complete))
}

/// Has one fork work, then judges and compares it.
async fn work(
    client: &Client,
    printer: Printer,
    args: &ForkAgentArgs,
    base: &Snapshot,
    number: usize,
    agent: Agent,
) -> Result<Outcome> {
    let (ended, failed) = tell(client, printer, &agent.name, &args.message).await?;
    let (judge, passed) = match &args.judge {
        Some(line) => {
            let code = run(client, &agent.sandbox, line).await?;
            (code, Some(code == Some(0)))
        }
        None => (None, None),
    };
    let diff = client.diff_sandbox(&agent.sandbox, Some(&base.id), None, false).await?;
    let (agent, sandbox) = (agent.name, agent.sandbox);
    Ok(Outcome { number, agent, sandbox, ended, failed, judge, passed, diff, kept: true })
}

/// Sends the message and waits until it has ended; gives how, and whether that is an error.
async fn tell(client: &Client, printer: Printer, agent: &str, text: &str) -> Result<(String, bool)> {
    let create = CreateAgentSession { thread: Some(THREAD.to_owned()) };
    let session = client.create_agent_session(agent, &create).await?.id;
    let message = SendAgentMessage { text: text.to_owned(), key: Some("fork".to_owned()) };
    let sent = client.send_agent_message(agent, &session, &message).await?;
    let mut after = sent.number;
    loop {
        let page = client.agent_events(agent, &session, after, WAIT_MAX_MS).await?;
        for event in &page.items {
            let field =
                |name: &str| event.data.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
            if event.kind == EventKind::Approval {
                let (id, title) = (field("id"), field("title"));
                printer.note(&format!("{agent} waits: atoll agent answer {agent} {id} OPTION ({title})"));
            }
            if event.data.get("message").and_then(Value::as_u64) == Some(sent.number) {
                let failed = event.kind == EventKind::Error;
                return Ok((field(if failed { "code" } else { "reason" }), failed));
            }
        }
        after = page.next_after;
    }
}

/// Runs a line to its end; gives its exit code.
async fn run(client: &Client, sandbox: &str, line: &str) -> Result<Option<i32>> {
    let create = CreateExec { shell: Some(line.to_owned()), ..CreateExec::default() };
    let mut exec = client.create_exec(sandbox, &create).await?.exec;
    while !exec.state.is_final() {
        exec = client.get_exec(sandbox, &exec.id, WAIT_MAX_MS).await?;
    }
    Ok(exec.exit.and_then(|exit| exit.code))
}

fn row(outcome: &Outcome) -> [String; 8] {
    let count = |kind| outcome.diff.changes.iter().filter(|change| change.kind == kind).count();
    let more = if outcome.diff.truncated { "+" } else { "" };
    let changes = |kind| format!("{}{more}", count(kind));
    let judge = match (outcome.passed, outcome.judge) {
        (None, _) => String::new(),
        (Some(_), Some(code)) => code.to_string(),
        (Some(_), None) => "no code".to_owned(),
    };
    [
        outcome.number.to_string(),
        outcome.agent.clone(),
        outcome.ended.clone(),
        judge,
        changes(ChangeKind::Added),
        changes(ChangeKind::Changed),
        changes(ChangeKind::Removed),
        if outcome.kept { "yes" } else { "" }.to_owned(),
    ]
}
