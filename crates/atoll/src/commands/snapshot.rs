//! Snapshots.

use std::path::Path;

use atoll_api::{CreateSnapshot, PullSnapshot, PushSnapshot, RemovedSnapshot, Snapshot, SnapshotList};
use atoll_client::{Client, ListSnapshots};
use atoll_core::Code;
use atoll_core::limits::PAGE_MAX_COUNT;

use tokio::io::AsyncWriteExt as _;

use super::copy::save;
use super::image::Upload;
use crate::cli::SnapshotCommand;
use crate::failure::{Failure, Result};
use crate::output::{Printer, age, table};
use crate::units::format_bytes;

/// Most pages that are fetched for one listing: a server that always has another one is broken.
const PAGES_MAX_COUNT: usize = 1000;
/// A snapshot holds an environment: only the file's owner may read it.
const EXPORT_MODE: u32 = 0o600;

/// `atoll snapshot …`
pub(super) async fn snapshot(client: &Client, printer: Printer, command: SnapshotCommand) -> Result<()> {
    match command {
        SnapshotCommand::Create { memory, tag, comment, env, user, workdir, sandbox } => {
            let env = env.into_iter().collect();
            let create = CreateSnapshot { tags: tag, comment, env, user, workdir, memory };
            let snapshot = client.create_snapshot(&sandbox, &create).await?;
            printer.result(&snapshot, || snapshot.id.clone())
        }
        SnapshotCommand::Ls { quiet, sandbox, name } => {
            let items = all(client, ListSnapshots { sandbox, name, ..ListSnapshots::default() }).await?;
            let list = SnapshotList { items, next_cursor: None };
            let heads = ["ID", "TAGS", "IMAGE", "SANDBOX", "SIZE", "AGE", "COMMENT"];
            let ids = quiet.then(|| list.items.iter().map(|snapshot| snapshot.id.as_str()));
            printer.names_or(&list, ids, || table(heads, list.items.iter().map(row)))
        }
        SnapshotCommand::Show { snapshot } => printer.document(&client.get_snapshot(&snapshot).await?),
        SnapshotCommand::Tag { snapshot, tag } => {
            let snapshot = client.tag_snapshot(&snapshot, &tag).await?;
            printer.result(&snapshot, || snapshot.tags.join("\n"))
        }
        SnapshotCommand::Export { snapshot, file } => export(client, printer, &snapshot, &file).await,
        SnapshotCommand::Import { tag, file } => {
            let upload = Upload::open(printer, &file).await?;
            let (content, bar, source) = upload.split();
            let snapshot = source.explain(client.import_snapshot(&tag, content).await).await?;
            bar.finish_and_clear();
            printer.result(&snapshot, || snapshot.id.clone())
        }
        SnapshotCommand::Push { tag, snapshot } => {
            let pushed = client.push_snapshot(&snapshot, &PushSnapshot { tags: tag }).await?;
            printer.result(&pushed, || match pushed.sent_bytes {
                0 => format!("{} (it was there already)", pushed.digest),
                bytes => format!("{} ({})", pushed.digest, format_bytes(bytes)),
            })
        }
        SnapshotCommand::Pull { tag, from } => {
            let snapshot = client.pull_snapshot(&PullSnapshot { from, tags: tag, visibility: None }).await?;
            printer.result(&snapshot, || snapshot.id.clone())
        }
        SnapshotCommand::Rm { snapshots } => rm(client, printer, snapshots).await,
    }
}

/// A snapshot as a file, or on standard output.
async fn export(client: &Client, printer: Printer, snapshot: &str, file: &Path) -> Result<()> {
    let mut download = client.export_snapshot(snapshot).await?;
    if file != Path::new("-") {
        return save(printer, download, file, EXPORT_MODE).await.map(drop);
    }
    let stdout = rustix::io::fcntl_dupfd_cloexec(std::io::stdout(), 3)
        .map_err(|errno| Failure::io("cannot write to standard output", errno))?;
    let mut stdout = tokio::fs::File::from_std(std::fs::File::from(stdout));
    while let Some(piece) = download.next().await {
        stdout.write_all(&piece?).await.map_err(Failure::Output)?;
    }
    stdout.flush().await.map_err(Failure::Output)
}

/// All pages of a listing.
async fn all(client: &Client, mut list: ListSnapshots) -> Result<Vec<Snapshot>> {
    list.limit = Some(PAGE_MAX_COUNT);
    let mut items = Vec::new();
    for _ in 0..PAGES_MAX_COUNT {
        let page = client.list_snapshots(&list).await?;
        items.extend(page.items);
        match page.next_cursor {
            Some(cursor) => list.cursor = Some(cursor),
            None => return Ok(items),
        }
    }
    Err(Failure::plain(Code::TooLarge, format!("the server has more than {PAGES_MAX_COUNT} pages")))
}

fn row(snapshot: &Snapshot) -> [String; 7] {
    [
        snapshot.id.clone(),
        snapshot.tags.join(" "),
        snapshot.image.clone(),
        snapshot.sandbox.clone().unwrap_or_default(),
        format_bytes(snapshot.stored_bytes),
        age(snapshot.created_at_ms),
        snapshot.comment.clone().unwrap_or_default(),
    ]
}

/// Goes on after a failure and reports the first.
async fn rm(client: &Client, printer: Printer, snapshots: Vec<String>) -> Result<()> {
    let mut failed = None;
    let mut removed = Vec::new();
    for snapshot in snapshots {
        match client.delete_snapshot(&snapshot).await {
            Ok(gone) => removed.push(gone),
            Err(error) => {
                if let Some(earlier) = failed.replace(Failure::from(error)) {
                    printer.failure(&earlier);
                }
            }
        }
    }
    printer.list(&removed, || removed.iter().map(line).collect::<Vec<_>>().join("\n"))?;
    failed.map_or(Ok(()), Err)
}

fn line(removed: &RemovedSnapshot) -> String {
    let tags = removed.tags.join(" ");
    match &removed.snapshot {
        Some(id) if tags.is_empty() => id.clone(),
        Some(id) => format!("{id} {tags}"),
        None => format!("{tags} (the snapshot has other references)"),
    }
}
