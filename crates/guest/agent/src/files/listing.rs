//! Listing directories.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use atoll_guest_protocol::body::RecordWriter;
use atoll_guest_protocol::messages::{Failure, List, Reason, Truncated};
use atoll_guest_protocol::server::failure;
use atoll_guest_protocol::wire::{Kind, encode_message};
use bytes::BytesMut;

use super::{Names, checked};
use crate::blocking::{Framing, Outlet, Threads, produce};
use crate::failing::{Stop, io_error};
use crate::operations::Answer;

/// Entries of one listing, whatever the host asks for.
const ENTRIES_MAX: usize = 100_000;
/// Levels of one listing.
const DEPTH_MAX: u32 = 128;
/// Records are sent in blocks of about this size.
const SEND_BYTES: usize = 64 << 10;

/// `list`.
pub(crate) async fn list(
    threads: &Threads,
    request: List,
    response: &mut RecordWriter,
) -> Result<Answer, Stop> {
    checked(&request.path)?;
    let truncated =
        produce(threads, response, Framing::Encoded, move |outlet| walk(&request, &outlet)).await?;
    Ok(if truncated { Answer::last(&Truncated {}) } else { Answer::End })
}

/// Sends entries in order, each directory's before those of the next; says whether some were cut.
fn walk(request: &List, outlet: &Outlet) -> Result<bool, Failure> {
    let root = Path::new(&request.path);
    if !root.metadata().map_err(|error| io_error(&request.path, &error))?.is_dir() {
        return Err(failure(Reason::NotADirectory, format!("{}: not a directory", request.path)));
    }
    let mut left = usize::try_from(request.max_entries).unwrap_or(usize::MAX).min(ENTRIES_MAX);
    let names = Names::read();
    let mut block = BytesMut::new();
    // Depth first, children right behind their directory.
    let mut stack: Vec<(PathBuf, u32)> = Vec::new();
    let mut cut = push_children(root, Path::new(""), 1, left, &mut stack)
        .map_err(|error| io_error(&request.path, &error))?;
    while let Some((relative, level)) = stack.pop() {
        let place = root.join(&relative);
        // It may have gone meanwhile.
        let Ok(metadata) = place.symlink_metadata() else { continue };
        if left == 0 {
            cut = true;
            break;
        }
        left -= 1;
        block.extend_from_slice(&encode_message(Kind::Message, &names.info(&relative, &place, &metadata)));
        if block.len() >= SEND_BYTES {
            outlet.send(block.split().freeze()).map_err(|error| io_error("list", &error))?;
        }
        if metadata.is_dir() && level < request.depth.clamp(1, DEPTH_MAX) {
            // One that cannot be read is shown without content.
            cut |= push_children(&place, &relative, level + 1, left, &mut stack).unwrap_or(false);
        }
    }
    if !block.is_empty() {
        outlet.send(block.freeze()).map_err(|error| io_error("list", &error))?;
    }
    Ok(cut)
}

/// Puts a directory's entries on the stack, the first by name on top; says whether there were more
/// than `room`.
fn push_children(
    place: &Path,
    relative: &Path,
    level: u32,
    room: usize,
    stack: &mut Vec<(PathBuf, u32)>,
) -> io::Result<bool> {
    let mut entries: Vec<OsString> = Vec::new();
    let mut cut = false;
    for entry in std::fs::read_dir(place)? {
        if entries.len() == room {
            cut = true;
            break;
        }
        entries.push(entry?.file_name());
    }
    entries.sort_unstable_by(|a, b| b.cmp(a));
    stack.extend(entries.into_iter().map(|name| (relative.join(name), level)));
    Ok(cut)
}
