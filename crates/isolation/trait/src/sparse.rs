//! Reading disks, which are sparse files: reading skips blocks that were never written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{Advice, SeekFrom, fadvise, seek};
use rustix::io::Errno;

/// Calls `with` for each stretch of a file that is not a hole: where it begins and where it ends.
///
/// # Errors
/// What `with` fails with, and what the file system does.
pub fn for_data(file: &File, mut with: impl FnMut(u64, u64) -> io::Result<()>) -> io::Result<()> {
    let mut at = 0;
    loop {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Beyond the last data.
            Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        at = seek(file, SeekFrom::Hole(data))?;
        with(data, at)?;
    }
}

/// Calls `with` for every piece of a file that is not a hole, with its place: at most `piece` bytes, beginning
/// and ending at a multiple of `block`, but for the end of the file. Nothing comes twice.
///
/// # Errors
/// As [`for_data`].
pub fn for_pieces(
    file: &File,
    block: u64,
    piece: usize,
    mut with: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut bytes = vec![0; piece];
    let len = file.metadata()?.len();
    let mut done = 0;
    for_data(file, |from, to| {
        let mut at = (from / block * block).max(done);
        let end = to.next_multiple_of(block).min(len);
        while at < end {
            let size = usize::try_from(end - at).map_or(piece, |left| left.min(piece));
            file.read_exact_at(&mut bytes[..size], at)?;
            with(at, &bytes[..size])?;
            at += size as u64;
        }
        done = end.max(done);
        Ok(())
    })
}

/// Drops what was read from the page cache: it must not push out of memory pages that are in use.
///
/// # Errors
/// What the file system says.
pub fn forget(file: &File) -> io::Result<()> {
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}
