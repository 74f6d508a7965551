//! Makes a tar of a local file or directory.
//!
//! Symbolic links stay links. Owners are left out: they mean nothing in the sandbox, whose default
//! user gets the files. Sockets, pipes and devices are left out and reported.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use atoll_build::Ignore;
use tar::{Builder, EntryType, Header};

/// Deepest directory, levels.
const DEPTH_MAX: usize = 256;

/// Writes a tar of `source` whose members begin with `name`; with an empty name, a tar of the content of the
/// directory `source`. Paths that `ignore` leaves out are not in it; its patterns are relative to `source`. Returns the
/// paths that were left out because of their file type.
///
/// # Errors
/// When something cannot be read, changes its size while it is read, or cannot be written.
pub(crate) fn pack(source: &Path, name: &Path, out: impl Write, ignore: &Ignore) -> io::Result<Vec<PathBuf>> {
    let mut packer = Packer { tar: Builder::new(out), skipped: Vec::new(), root: source, ignore };
    packer.add(source, name, 0).map_err(|error| named(source, error))?;
    packer.tar.into_inner()?.flush()?;
    Ok(packer.skipped)
}

fn named(path: &Path, error: io::Error) -> io::Error {
    // Named once, where it happened.
    if error.get_ref().is_some_and(|inner| inner.is::<Named>()) {
        return error;
    }
    io::Error::new(error.kind(), Named(format!("{}: {error}", path.display())))
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Named(String);

struct Packer<'a, W: Write> {
    tar: Builder<W>,
    skipped: Vec<PathBuf>,
    root: &'a Path,
    ignore: &'a Ignore,
}

impl<W: Write> Packer<'_, W> {
    /// Whether a path is left out, and whether all below it is.
    fn left_out(&self, path: &Path) -> (bool, bool) {
        match path.strip_prefix(self.root).ok().and_then(Path::to_str) {
            Some(relative) if !relative.is_empty() => {
                (self.ignore.ignores(relative), self.ignore.ignores_all_below(relative))
            }
            _ => (false, false),
        }
    }

    fn add(&mut self, path: &Path, name: &Path, depth: usize) -> io::Result<()> {
        if depth > DEPTH_MAX {
            return Err(io::Error::other(format!("more than {DEPTH_MAX} levels deep")));
        }
        let (left_out, with_all_below) = self.left_out(path);
        if with_all_below {
            return Ok(());
        }
        let meta = fs::symlink_metadata(path)?;
        let kind = meta.file_type();
        if left_out && !kind.is_dir() {
            return Ok(());
        }
        if kind.is_dir() {
            if !name.as_os_str().is_empty() && !left_out {
                self.tar.append_data(&mut header(&meta, EntryType::Directory, 0), name, io::empty())?;
            }
            self.children(path, name, depth)
        } else if kind.is_file() {
            let file = File::open(path)?;
            // Of the open file: the path may be another one by now.
            let meta = file.metadata()?;
            let exact = Exact { file, left: meta.len() };
            self.tar.append_data(&mut header(&meta, EntryType::Regular, meta.len()), name, exact)
        } else if kind.is_symlink() {
            let target = fs::read_link(path)?;
            self.tar.append_link(&mut header(&meta, EntryType::Symlink, 0), name, target)
        } else {
            self.skipped.push(path.to_owned());
            Ok(())
        }
    }

    fn children(&mut self, path: &Path, name: &Path, depth: usize) -> io::Result<()> {
        let mut entries =
            fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
        entries.sort();
        for entry in entries {
            let child = path.join(&entry);
            self.add(&child, &name.join(&entry), depth + 1).map_err(|error| named(&child, error))?;
        }
        Ok(())
    }
}

fn header(meta: &Metadata, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(meta.permissions().mode() & 0o777);
    header.set_mtime(u64::try_from(meta.mtime()).unwrap_or(0));
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// Exactly as many bytes as the header says, or an error.
struct Exact {
    file: File,
    left: u64,
}

impl Read for Exact {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = (&mut self.file).take(self.left).read(buffer)?;
        if read == 0 && self.left > 0 && !buffer.is_empty() {
            return Err(io::Error::other("it became shorter while it was read"));
        }
        self.left -= read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_tree_becomes_a_tar() {
        let dir = tempfile::Builder::new().prefix("atoll").tempdir().unwrap();
        let root = dir.path();
        fs::create_dir(root.join("sub")).unwrap();
        fs::write(root.join("sub/a"), "hello").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", root.join("link")).unwrap();
        let _socket = UnixListener::bind(root.join("socket")).unwrap();
        let mut out = Vec::new();
        let skipped = pack(root, Path::new("top"), &mut out, &Ignore::default()).unwrap();
        assert_eq!(skipped, [root.join("socket")]);
        let mut archive = tar::Archive::new(&out[..]);
        let names: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                (entry.path().unwrap().display().to_string(), entry.header().entry_type(), entry.size())
            })
            .collect();
        let want = [
            ("top/", EntryType::Directory, 0),
            ("top/link", EntryType::Symlink, 0),
            ("top/sub/", EntryType::Directory, 0),
            ("top/sub/a", EntryType::Regular, 5),
        ];
        let plain = |name: &str| name.trim_end_matches('/').to_owned();
        let names: Vec<_> = names.into_iter().map(|(name, kind, size)| (plain(&name), kind, size)).collect();
        assert_eq!(names, want.map(|(name, kind, size)| (plain(name), kind, size)));
    }

    #[test]
    fn an_unreadable_place_is_named_once() {
        let error = pack(Path::new("/nonexistent/atoll"), Path::new("x"), Vec::new(), &Ignore::default())
            .unwrap_err();
        assert_eq!(error.to_string().matches("/nonexistent/atoll").count(), 1);
    }
}
