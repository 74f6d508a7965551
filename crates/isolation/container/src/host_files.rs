//! Files below the host's `/usr/local` that the host's root keeps from its users. The image `host` shows `/usr` with its ids
//! moved along, so root in a sandbox may read files that the host's root owns, even when their mode keeps others from
//! reading them. Files elsewhere in `/usr` come from the distribution's packages, and are no secret.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Entries that are looked at at most.
const ENTRIES_MAX: usize = 500_000;
/// Readable for everybody; for a directory, what is in it can be reached.
const OTHERS_READ: u32 = 0o004;
const OTHERS_ENTER: u32 = 0o001;

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Plain files with content that others may not read.
    pub(crate) files: Vec<PathBuf>,
    /// Whether all of it was looked at.
    pub(crate) is_whole: bool,
}

/// Looks through a directory, without following links or leaving its file system, and gives up to `most` files. A file counts
/// as kept when it, or a directory on the way to it, is closed to others.
pub(crate) fn kept(root: &Path, most: usize) -> Kept {
    let mut found = Kept { files: Vec::new(), is_whole: true };
    let Ok(device) = fs::symlink_metadata(root).map(|meta| meta.dev()) else { return found };
    let mut waiting = vec![(root.to_owned(), false)];
    let mut seen = 0;
    while let Some((dir, is_closed)) = waiting.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            seen += 1;
            if seen > ENTRIES_MAX || found.files.len() >= most {
                found.is_whole = false;
                return found;
            }
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_dir() && meta.dev() == device {
                waiting.push((entry.path(), is_closed || meta.mode() & OTHERS_ENTER == 0));
            } else if meta.is_file() && meta.len() > 0 && (is_closed || meta.mode() & OTHERS_READ == 0) {
                found.files.push(entry.path());
            }
        }
    }
    found.files.sort();
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_others_may_not_read_is_found_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, mode| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "content").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let key = file("local/etc/key", 0o600);
        file("bin/program", 0o755);
        let below = file("local/closed/readable", 0o644);
        fs::set_permissions(dir.path().join("local/closed"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(dir.path().join("local/empty"), "").unwrap();
        fs::set_permissions(dir.path().join("local/empty"), fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink("/etc/shadow", dir.path().join("link")).unwrap();
        let found = kept(dir.path(), 100);
        assert_eq!(found, Kept { files: vec![below, key], is_whole: true });
        let few = kept(dir.path(), 1);
        assert!(few.files.len() == 1 && !few.is_whole);
    }
}
