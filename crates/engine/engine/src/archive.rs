//! Reading archives that others made.
//!
//! What stands before a member in a tar stream and describes it (a long name, what it links to, its attributes, where a
//! sparse file has holes) is as long as it says, and is held in memory as a whole. Here it is bounded: otherwise a few
//! megabytes that are packed would be gigabytes of memory.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

use tar::{Archive, Entry};

/// What may describe a member, bytes.
const DESCRIPTION_MAX_BYTES: u64 = 1 << 20;

/// A reader of which there is so much to read.
#[derive(Debug)]
pub struct Metered<R> {
    inner: R,
    left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let left = self.left.get();
        if left == 0 {
            let why = format!("a name or attributes are longer than {} MiB", DESCRIPTION_MAX_BYTES >> 20);
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        let len = self.inner.read(&mut buf[..most])?;
        self.left.set(left.saturating_sub(len as u64));
        Ok(len)
    }
}

/// Gives each member of an archive to `each`, until one is refused. Blocking.
///
/// # Errors
/// What `each` says, and what `unreadable` makes of an archive that cannot be read.
pub fn members<R: Read, E>(
    archive: R,
    unreadable: impl Fn(io::Error) -> E,
    mut each: impl FnMut(&mut Entry<'_, Metered<R>>) -> Result<(), E>,
) -> Result<(), E> {
    let left = Rc::new(Cell::new(DESCRIPTION_MAX_BYTES));
    let mut archive = Archive::new(Metered { inner: archive, left: Rc::clone(&left) });
    let mut entries = archive.entries().map_err(&unreadable)?;
    loop {
        left.set(DESCRIPTION_MAX_BYTES);
        let Some(entry) = entries.next() else { return Ok(()) };
        let mut entry = entry.map_err(&unreadable)?;
        left.set(u64::MAX);
        each(&mut entry)?;
        // The rest of a member that the caller did not read is no description, so it is read here and not counted. A
        // sparse one would be read as its holes are long.
        if !entry.header().entry_type().is_gnu_sparse() {
            io::copy(&mut entry, &mut io::sink()).map_err(&unreadable)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tar::{Builder, EntryType, Header};

    fn header(kind: EntryType, size: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_path("member").unwrap();
        header.set_mode(0o644);
        header.set_size(size);
        header.set_cksum();
        header
    }

    /// An archive whose second member is described by so many bytes.
    fn described_by(kind: EntryType, bytes: usize) -> Vec<u8> {
        let mut tar = Builder::new(Vec::new());
        tar.append(&header(EntryType::Regular, 3 << 20), &vec![1; 3 << 20][..]).unwrap();
        let value = "x".repeat(bytes);
        let record = match kind {
            EntryType::XHeader => format!("{} comment={value}\n", value.len() + 18),
            _ => value,
        };
        tar.append(&header(kind, record.len() as u64), record.as_bytes()).unwrap();
        tar.append(&header(EntryType::Regular, 1), &b"y"[..]).unwrap();
        tar.into_inner().unwrap()
    }

    fn names(tar: &[u8]) -> io::Result<Vec<usize>> {
        let mut lengths = Vec::new();
        members(
            tar,
            |error| error,
            |entry| {
                lengths.push(entry.path_bytes().len());
                Ok(())
            },
        )?;
        Ok(lengths)
    }

    #[test]
    fn members_are_described_by_little() {
        assert_eq!(names(&described_by(EntryType::GNULongName, 5000)).unwrap(), [6, 5000]);
        for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
            assert_eq!(names(&described_by(kind, 900 << 10)).unwrap().len(), 2, "{kind:?}");
            let refused = names(&described_by(kind, 2 << 20)).unwrap_err();
            assert!(refused.to_string().contains("longer than 1 MiB"), "{kind:?}: {refused}");
        }
    }

    #[test]
    fn what_one_wants_is_read_as_a_whole() {
        let mut sizes = Vec::new();
        let read = members(
            &described_by(EntryType::GNULongName, 300)[..],
            |error| error,
            |entry| {
                sizes.push(io::copy(entry, &mut io::sink())?);
                Ok(())
            },
        );
        read.unwrap();
        assert_eq!(sizes, [3 << 20, 1]);
        let refused = members(
            &described_by(EntryType::GNULongName, 300)[..],
            |error| error.to_string(),
            |_| Err("not this one".to_owned()),
        );
        assert_eq!(refused.unwrap_err(), "not this one");
    }
}
