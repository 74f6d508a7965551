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

/// Most entries of one listing, also when the host asks for more.
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
    let depth = usize::try_from(request.depth.clamp(1, DEPTH_MAX)).unwrap_or(usize::MAX);
    let names = Names::read();
    let mut block = BytesMut::new();
    // Depth first, children right behind their directory.
    let (first, mut cut) =
        Listed::open(root, PathBuf::new(), left).map_err(|error| io_error(&request.path, &error))?;
    let mut stack = vec![first];
    while let Some(directory) = stack.last_mut() {
        let Some(name) = directory.children.pop() else {
            stack.pop();
            continue;
        };
        let relative = directory.relative.join(name);
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
        // A directory that cannot be read is shown without content.
        if metadata.is_dir()
            && stack.len() < depth
            && let Ok((directory, more)) = Listed::open(&place, relative, left)
        {
            cut |= more;
            stack.push(directory);
        }
    }
    if !block.is_empty() {
        outlet.send(block.freeze()).map_err(|error| io_error("list", &error))?;
    }
    Ok(cut)
}

/// A directory that is being listed.
struct Listed {
    relative: PathBuf,
    /// Names whose turn has not come, the next one last.
    children: Vec<OsString>,
}

impl Listed {
    /// Reads a directory; says whether there were more entries than `room`.
    fn open(place: &Path, relative: PathBuf, room: usize) -> io::Result<(Self, bool)> {
        let mut children: Vec<OsString> = Vec::new();
        let mut cut = false;
        for entry in std::fs::read_dir(place)? {
            if children.len() == room {
                cut = true;
                break;
            }
            children.push(entry?.file_name());
        }
        children.sort_unstable_by(|a, b| b.cmp(a));
        Ok((Self { relative, children }, cut))
    }
}
