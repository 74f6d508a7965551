//! Clones and copies of sparse files.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use atoll_isolation::sparse::for_data;

/// Copied at once, bytes.
const PIECE_BYTES: usize = 1 << 20;
/// What is cloned to see whether it works, bytes: a whole block.
const TRIAL_BYTES: usize = 4096;

/// `statfs` says this of file systems that can clone files.
const XFS_MAGIC: u32 = 0x5846_5342;
const BTRFS_MAGIC: u32 = 0x9123_683E;

/// Whether files in `dir` can be cloned, found by doing it.
pub(crate) fn works_in(dir: &Path) -> io::Result<bool> {
    let paths = [dir.join("clone.from"), dir.join("clone.to")];
    let attempt = || -> io::Result<bool> {
        let source = File::create(&paths[0])?;
        source.write_all_at(&[1; TRIAL_BYTES], 0)?;
        let target = File::create(&paths[1])?;
        // For reading: the source of a clone must be readable.
        let source = File::open(&paths[0])?;
        Ok(rustix::fs::ioctl_ficlone(target, source).is_ok())
    };
    let works = match attempt() {
        // The disk is full: judge by the file system's type, then. Where it cannot clone after all, clones are refused
        // for want of room anyway.
        Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
            let kind = u32::try_from(rustix::fs::statfs(dir)?.f_type).unwrap_or(0);
            Ok([XFS_MAGIC, BTRFS_MAGIC].contains(&kind))
        }
        other => other,
    };
    for path in paths {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    works
}

/// Copies what is not a hole into an empty file.
pub(crate) fn copy(source: &File, target: &File) -> io::Result<()> {
    target.set_len(source.metadata()?.len())?;
    let mut piece = vec![0; PIECE_BYTES];
    for_data(source, |from, to| {
        let mut at = from;
        while at < to {
            let len = usize::try_from(to - at).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
            source.read_exact_at(&mut piece[..len], at)?;
            target.write_all_at(&piece[..len], at)?;
            at += len as u64;
        }
        Ok(())
    })
}
