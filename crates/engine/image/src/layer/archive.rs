//! Saved images: an archive of small documents and large layers, in any order. One pass over it finds where
//! each file's bytes are; then they are read in place.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};

use super::tar_reader::{Kind, TarReader, unreadable};
use crate::error::{ImageError, Result};
use crate::limits::{ARCHIVE_FILES_MAX_COUNT, PATH_MAX_BYTES, SYMLINKS_MAX_COUNT};

/// Where a file's bytes are in the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

struct Counting<R> {
    inner: R,
    at: u64,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.at += n as u64;
        Ok(n)
    }
}

/// Finds all files of an uncompressed archive. Links (old versions of Docker link equal layers) lead to the
/// place of what they point to.
pub(crate) fn index(file: &mut File) -> Result<BTreeMap<String, Place>> {
    file.seek(SeekFrom::Start(0)).map_err(unreadable)?;
    let counting = Counting { inner: BufReader::new(file), at: 0 };
    let mut places = BTreeMap::new();
    let mut links: Vec<(String, String)> = Vec::new();
    let mut tar = TarReader::new(counting);
    while let Some(member) = tar.next()? {
        // The names of all files are held at once.
        if member.path.len().max(member.link.len()) > PATH_MAX_BYTES {
            return Err(ImageError::entry(&member.path, "its name or link is longer than 4095 bytes"));
        }
        let (Some(path), link) = (normal("", &member.path), &member.link) else {
            continue;
        };
        match member.kind {
            Kind::File if member.sparse.is_none() => {
                places.insert(path, Place { offset: tar.get_ref().at, bytes: member.size });
            }
            Kind::Symlink => links.extend(normal(&path, link).map(|to| (path, to))),
            Kind::Hardlink => links.extend(normal("", link).map(|to| (path, to))),
            Kind::File | Kind::Dir | Kind::Fifo | Kind::Device => {}
        }
        if places.len() + links.len() > ARCHIVE_FILES_MAX_COUNT {
            return Err(ImageError::Invalid("the archive has too many files for saved images".into()));
        }
    }
    for _ in 0..SYMLINKS_MAX_COUNT {
        let before = places.len();
        for (from, to) in &links {
            if let (Some(place), false) = (places.get(to).copied(), places.contains_key(from)) {
                places.insert(from.clone(), place);
            }
        }
        if places.len() == before {
            break;
        }
    }
    Ok(places)
}

/// A path in its shortest form, relative to the directory of `from`; `None` when it is not UTF-8 or leads out.
fn normal(from: &str, path: &[u8]) -> Option<String> {
    let path = std::str::from_utf8(path).ok()?;
    let start = if path.starts_with('/') { "" } else { from.rsplit_once('/').map_or("", |(dir, _)| dir) };
    let mut parts: Vec<&str> = start.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            other => parts.push(other),
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use atoll_testing::{Entry, tar_of};

    use super::*;

    #[test]
    fn names_are_no_longer_than_paths_may_be() {
        let indexed = |entry: Entry| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&tar_of(&[entry])).unwrap();
            index(&mut file)
        };
        let long = "p".repeat(PATH_MAX_BYTES + 1);
        let (fits, long) = (&long.as_bytes()[1..], long.as_bytes());
        assert_eq!(indexed(Entry::file("a", b"x").pax("path", fits)).unwrap().len(), 1);
        for entry in
            [Entry::file("a", b"x").pax("path", long), Entry::symlink("a", "b").pax("linkpath", long)]
        {
            assert!(matches!(indexed(entry), Err(ImageError::Invalid(_))));
        }
    }

    #[test]
    fn links_of_old_archives() {
        assert_eq!(normal("abc/layer.tar", b"../def/layer.tar").as_deref(), Some("def/layer.tar"));
        assert_eq!(normal("", b"./a//b").as_deref(), Some("a/b"));
        assert_eq!(normal("a", b"../../etc/passwd"), None);
    }
}
