//! The work of the commands.

use std::sync::Arc;

use atoll_core::{Code, Error};
use atoll_engine::{GuestLease, guest_error};
use atoll_guest_protocol::messages::{FileKind, List, Mkdir, Remove, Stat, Write};
use serde::Deserialize;

use super::{OUTPUT_MAX_BYTES, Tool, entry, watch};
use crate::task::Inside;

/// Most bytes of a file that clients read, as at Modal.
const READ_MAX_BYTES: u64 = 5 << 30;
/// Most entries of a list.
const ENTRIES_MAX: u32 = 20_000;

/// A command, as the clients write it.
#[derive(Debug, Deserialize)]
pub(super) enum Command {
    ReadFile {
        path: String,
    },
    WriteFile {
        path: String,
    },
    ListFiles {
        path: String,
    },
    Stat {
        path: String,
    },
    MakeDirectory {
        path: String,
        #[serde(default)]
        parents: bool,
    },
    Remove {
        path: String,
        #[serde(default)]
        recursive: bool,
    },
    Watch {
        path: String,
        #[serde(default)]
        recursive: bool,
        filter: Option<Vec<String>>,
        timeout_secs: Option<u64>,
    },
}

/// Does the command's work, or begins it.
pub(super) async fn begin(inside: &Inside, tool: &Arc<Tool>, command: Command) {
    if let Err(error) = work(inside, tool, command).await {
        tool.failed(&error);
    }
}

async fn work(inside: &Inside, tool: &Arc<Tool>, command: Command) -> Result<(), Error> {
    let engine = inside.asker.engine();
    let lease = engine.guest(inside.id()).await?;
    let user = engine.sandbox(inside.id())?.spec.user;
    match command {
        Command::ReadFile { path } => {
            let info =
                lease.stat(Stat { path: path.clone(), no_follow: false }).await.map_err(guest_error)?;
            if info.kind() == FileKind::Directory {
                return Err(Error::new(Code::IsADirectory, "Is a directory"));
            }
            if info.size > READ_MAX_BYTES {
                let what =
                    format!("file is {} bytes, which exceeds the {READ_MAX_BYTES} byte limit", info.size);
                return Err(Error::new(Code::TooLarge, what));
            }
            tool.progress.send_modify(|progress| {
                progress.file = Some(path);
                progress.code = Some(0);
            });
        }
        Command::WriteFile { path } => {
            // In place: programs that have the file open or watch it see it change.
            let request = Write { path, mode: 0, user, parents: true, in_place: true };
            let writer = lease.write(request).await.map_err(guest_error)?;
            tool.input.lock().await.begin(lease, writer);
        }
        Command::ListFiles { path } => tool.end_with(&list(&lease, &path).await?),
        Command::Stat { path } => {
            let info = lease.stat(Stat { path: path.clone(), no_follow: true }).await.map_err(guest_error)?;
            tool.end_with(entry::describe(&path, &info).to_string().as_bytes());
        }
        Command::MakeDirectory { path, parents } => {
            if parents {
                // A directory that is there already is fine.
                let found = lease.stat(Stat { path: path.clone(), no_follow: false }).await;
                if found.is_ok_and(|info| info.kind() != FileKind::Directory) {
                    return Err(Error::new(Code::FileExists, "Path already exists"));
                }
            }
            lease.mkdir(Mkdir { path, mode: 0, user, parents }).await.map_err(guest_error)?;
            tool.end();
        }
        Command::Remove { path, recursive } => {
            lease.remove(Remove { path, recursive }).await.map_err(guest_error)?;
            tool.end();
        }
        Command::Watch { path, recursive, filter, timeout_secs } => {
            let wanted = watch::Wanted { path, recursive, filter, timeout_secs };
            watch::begin(inside, tool, lease, wanted).await?;
        }
    }
    Ok(())
}

async fn list(lease: &GuestLease, path: &str) -> Result<Vec<u8>, Error> {
    let request = List { path: path.to_owned(), depth: 1, max_entries: ENTRIES_MAX };
    let (entries, cut) = lease.list(request).await.map_err(guest_error)?;
    if cut {
        let why = format!("the directory has more than {ENTRIES_MAX} entries");
        return Err(Error::new(Code::TooLarge, why));
    }
    let parent = path.trim_end_matches('/');
    // One entry at a time: the client chose the path that stands in each of them.
    let mut shown = vec![b'['];
    for info in &entries {
        if shown.len() > 1 {
            shown.push(b',');
        }
        let entry = entry::describe(&format!("{parent}/{}", info.path), info);
        serde_json::to_writer(&mut shown, &entry).map_err(|error| Error::invalid("path", error))?;
        if shown.len() >= OUTPUT_MAX_BYTES {
            let why = format!("the entries take more than {} MiB", OUTPUT_MAX_BYTES >> 20);
            return Err(Error::new(Code::TooLarge, why));
        }
    }
    shown.push(b']');
    Ok(shown)
}
