//! Listing directories.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_guest_protocol::body::RecordWriter;
use atoll_guest_protocol::messages::{Failure, List, Truncated};
use atoll_guest_protocol::wire::{Kind, encode_message};
use bytes::BytesMut;

use super::{Directory, Names, checked};
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
    let told = |error: io::Error| io_error(&request.path, &error);
    let root = Directory::open(Path::new(&request.path)).map_err(told)?;
    let mut left = usize::try_from(request.max_entries).unwrap_or(usize::MAX).min(ENTRIES_MAX);
    let depth = usize::try_from(request.depth.clamp(1, DEPTH_MAX)).unwrap_or(usize::MAX);
    let names = Names::read();
    let mut block = BytesMut::new();
    // Depth first, children right behind their directory.
    let (first, mut cut) = Listed::read(root, PathBuf::new(), left).map_err(told)?;
    let mut stack = vec![first];
    while let Some(listed) = stack.last_mut() {
        let Some(name) = listed.children.pop() else {
            stack.pop();
            continue;
        };
        let relative = listed.relative.join(&name);
        let here = Arc::clone(&listed.directory);
        // It may have gone meanwhile.
        let Ok(metadata) = here.metadata(&name) else { continue };
        if left == 0 {
            cut = true;
            break;
        }
        left -= 1;
        let info = names.info(&relative, (&here, &name), &metadata);
        block.extend_from_slice(&encode_message(Kind::Message, &info));
        if block.len() >= SEND_BYTES {
            outlet.send(block.split().freeze()).map_err(|error| io_error("list", &error))?;
        }
        // A directory that cannot be read is shown without content.
        if metadata.is_dir()
            && stack.len() < depth
            && let Ok((listed, more)) =
                here.below(&name).and_then(|below| Listed::read(below, relative, left))
        {
            cut |= more;
            stack.push(listed);
        }
    }
    if !block.is_empty() {
        outlet.send(block.freeze()).map_err(|error| io_error("list", &error))?;
    }
    Ok(cut)
}

/// A directory that is being listed.
struct Listed {
    /// Open for as long as that takes: listings are not deep.
    directory: Arc<Directory>,
    relative: PathBuf,
    /// Names whose turn has not come, the next one last.
    children: Vec<OsString>,
}

impl Listed {
    /// Reads a directory; says whether there were more entries than `room`.
    fn read(directory: Directory, relative: PathBuf, room: usize) -> io::Result<(Self, bool)> {
        let mut children: Vec<OsString> = Vec::new();
        let mut cut = false;
        for entry in directory.entries()? {
            if children.len() == room {
                cut = true;
                break;
            }
            children.push(entry?.0);
        }
        children.sort_unstable_by(|a, b| b.cmp(a));
        Ok((Self { directory: Arc::new(directory), relative, children }, cut))
    }
}
