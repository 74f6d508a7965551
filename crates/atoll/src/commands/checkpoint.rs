//! Checkpoints and forks.

use atoll_api::{CreateCheckpoint, ForkSandbox, Snapshot};
use atoll_client::{Client, ClientError};
use atoll_core::snapshot::{Change, ChangeKind, EntryKind};
use atoll_core::{Code, Error};

use crate::cli::{CheckpointArgs, CheckpointsArgs, DiffArgs, ForkArgs};
use crate::failure::{Failure, Result};
use crate::output::{Printer, age, clean, table};
use crate::units::format_bytes;

/// `atoll checkpoint`: prints the number.
pub(super) async fn create(client: &Client, printer: Printer, args: CheckpointArgs) -> Result<()> {
    let create = CreateCheckpoint { comment: args.comment };
    let made = client.create_checkpoint(&args.sandbox, &create).await?;
    printer.result(&made, || number(&made))
}

/// `atoll checkpoints`
pub(super) async fn list(client: &Client, printer: Printer, args: CheckpointsArgs) -> Result<()> {
    if !args.rm.is_empty() {
        for number in &args.rm {
            client.delete_checkpoint(&args.sandbox, *number).await?;
        }
        return printer.removed(&args.rm);
    }
    let list = client.list_checkpoints(&args.sandbox).await?;
    printer.result(&list, || table(["NUMBER", "AGE", "SIZE", "COMMENT"], list.items.iter().map(row)))
}

fn number(checkpoint: &Snapshot) -> String {
    checkpoint.checkpoint.map(|number| number.to_string()).unwrap_or_default()
}

fn row(checkpoint: &Snapshot) -> [String; 4] {
    [
        number(checkpoint),
        age(checkpoint.created_at_ms),
        format_bytes(checkpoint.stored_bytes),
        checkpoint.comment.clone().unwrap_or_default(),
    ]
}

/// `atoll rollback` and `atoll undo`
pub(super) async fn rollback(
    client: &Client,
    printer: Printer,
    sandbox: &str,
    to: Option<&str>,
) -> Result<()> {
    let back = client.rollback_sandbox(sandbox, to).await?;
    printer.result(&back, || {
        let comment = back.to.comment.as_ref().map(|text| format!(" ({text})")).unwrap_or_default();
        let name =
            back.to.checkpoint.map_or_else(|| back.to.id.clone(), |number| format!("checkpoint {number}"));
        format!("{} is at {name}{comment}", back.sandbox.id)
    })
}

/// The word for the present, where a point is named.
const NOW: &str = "now";

/// `atoll diff`
pub(super) async fn diff(client: &Client, printer: Printer, args: DiffArgs) -> Result<()> {
    let (from, to) = (args.from.as_deref(), args.to.as_deref());
    let found = match client.diff_sandbox(&args.sandbox, from, to, args.text).await {
        Ok(found) => found,
        Err(error) => return Err(not_compared(client, &args, error).await),
    };
    printer.result(&found, || found.changes.iter().map(change).collect::<Vec<_>>().join("\n"))?;
    if found.truncated {
        printer.warn("there are more differences than are shown");
    }
    Ok(())
}

/// Why two points were not compared. Whoever writes a second sandbox there, as one would for a fork, is told what can stand there.
async fn not_compared(client: &Client, args: &DiffArgs, error: ClientError) -> Failure {
    let points = [&args.from, &args.to].into_iter().flatten().filter(|point| *point != NOW);
    if error.code() == Some(Code::SnapshotNotFound) {
        for point in points {
            if client.get_sandbox(point).await.is_ok() {
                return other_sandbox(&args.sandbox, point);
            }
        }
    }
    error.into()
}

fn other_sandbox(sandbox: &str, other: &str) -> Failure {
    let what = format!("'{other}' is a sandbox, and 'atoll diff' compares two points of one sandbox");
    Failure::Plain(Error::new(Code::SnapshotNotFound, what).hint(format!(
        "points are the numbers of 'atoll checkpoints {sandbox}', snapshots and '{NOW}'; for what another sandbox has: \
         'atoll snapshot create {other} -t NAME', and 'atoll diff {sandbox} NAME'"
    )))
}

fn change(change: &Change) -> String {
    let mark = match change.kind {
        ChangeKind::Added => 'A',
        ChangeKind::Changed => 'C',
        ChangeKind::Removed => 'R',
    };
    let slash = if change.entry == EntryKind::Directory { "/" } else { "" };
    let size = |bytes: Option<u64>| bytes.map(format_bytes).unwrap_or_default();
    let sizes = match (change.entry, change.kind) {
        (EntryKind::File, ChangeKind::Changed) => {
            format!(" ({} → {})", size(change.from_bytes), size(change.to_bytes))
        }
        (EntryKind::File, _) => format!(" ({})", size(change.to_bytes.or(change.from_bytes))),
        _ => String::new(),
    };
    let text = change.text.as_ref().map(|text| format!("\n{}", text.trim_end())).unwrap_or_default();
    clean(&format!("{mark} {}{slash}{sizes}{text}", change.path))
}

/// `atoll fork`: prints the ids; goes on after a failure and reports the first.
pub(super) async fn fork(client: &Client, printer: Printer, args: ForkArgs) -> Result<()> {
    let fork = ForkSandbox {
        count: args.count,
        at: args.at,
        memory: args.memory,
        name: args.name,
        labels: args.label.into_iter().collect(),
        env: args.env.into_iter().collect(),
        ttl_ms: args.ttl,
    };
    let forked = client.fork_sandbox(&args.sandbox, &fork).await?;
    let ids = forked.results.iter().filter_map(|result| result.sandbox.as_ref()).map(|made| made.id.clone());
    let ids: Vec<_> = ids.collect();
    printer.result(&forked, || ids.join("\n"))?;
    let mut failed = None;
    for error in forked.results.into_iter().filter_map(|result| result.error) {
        let request_id = error.request_id.clone();
        let failure = Failure::from(ClientError::Api { error: error.into(), request_id });
        if let Some(earlier) = failed.replace(failure) {
            printer.failure(&earlier);
        }
    }
    failed.map_or(Ok(()), Err)
}
