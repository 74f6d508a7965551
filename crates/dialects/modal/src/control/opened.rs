//! An open file, as Python's `open` has it.

use atoll_core::{Code, Error};
use bytes::Bytes;

use super::files::FILE_MAX_BYTES;

/// What a mode such as `r+` allows. Whether the file is text or bytes is up to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(super) struct Mode {
    read: bool,
    write: bool,
    append: bool,
    /// Opening empties the file.
    pub(super) truncate: bool,
    /// Opening makes the file when it is not there.
    pub(super) create: bool,
    /// The file must not be there.
    pub(super) new: bool,
}

impl Mode {
    /// Parses a mode.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`].
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let has = |letter| text.contains(letter);
        let kinds = text.chars().filter(|letter| "rwax".contains(*letter)).count();
        if kinds != 1 || text.len() > 4 || text.chars().any(|letter| !"rwaxb+t".contains(letter)) {
            return Err(Error::invalid("mode", "must be one of r, w, a, x, with b and + if need be"));
        }
        Ok(Self {
            read: has('r') || has('+'),
            write: !has('r') || has('+'),
            append: has('a'),
            truncate: has('w'),
            create: !has('r'),
            new: has('x'),
        })
    }
}

/// The file.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) path: String,
    mode: Mode,
    content: Vec<u8>,
    at: usize,
    changed: bool,
}

/// A file that does not fit.
pub(super) fn too_large() -> Error {
    Error::new(Code::TooLarge, format!("a file of more than {} MiB cannot be open", FILE_MAX_BYTES >> 20))
        .hint("use Sandbox.filesystem")
}

impl Opened {
    pub(super) const fn new(path: String, mode: Mode, content: Vec<u8>) -> Self {
        Self { path, mode, content, at: 0, changed: false }
    }

    /// Bytes of the content.
    pub(super) const fn len(&self) -> usize {
        self.content.len()
    }

    /// By how many bytes the content grows when so many are written now.
    pub(super) const fn growth(&self, written: usize) -> usize {
        let at = if self.mode.append { self.content.len() } else { self.at };
        at.saturating_add(written).saturating_sub(self.content.len())
    }

    /// So many bytes from the position, or all up to the end.
    pub(super) fn read(&mut self, n: Option<usize>) -> Result<Bytes, Error> {
        if !self.mode.read {
            return Err(Error::invalid("mode", "the file is not open to be read"));
        }
        let from = self.at.min(self.content.len());
        let to = n.map_or(self.content.len(), |n| from.saturating_add(n).min(self.content.len()));
        self.at = self.at.max(to);
        Ok(Bytes::copy_from_slice(&self.content[from..to]))
    }

    /// Reads to the end of the line.
    pub(super) fn read_line(&mut self) -> Result<Bytes, Error> {
        let rest = self.content.get(self.at..).unwrap_or_default();
        let end = rest.iter().position(|byte| *byte == b'\n');
        self.read(end.map(|end| end + 1))
    }

    pub(super) fn write(&mut self, data: &[u8]) -> Result<(), Error> {
        if !self.mode.write {
            return Err(Error::invalid("mode", "the file is not open to be written"));
        }
        if self.mode.append {
            self.at = self.content.len();
        }
        let end =
            self.at.checked_add(data.len()).filter(|end| *end <= FILE_MAX_BYTES).ok_or_else(too_large)?;
        if self.content.len() < end {
            self.content.resize(end, 0);
        }
        self.content[self.at..end].copy_from_slice(data);
        (self.at, self.changed) = (end, true);
        Ok(())
    }

    /// Moves the position: `whence` is 0 for from the beginning, 1 for from the position, 2 for from the end.
    pub(super) fn seek(&mut self, offset: i64, whence: i32) -> Result<(), Error> {
        let from = match whence {
            0 => 0,
            1 => self.at,
            2 => self.content.len(),
            _ => return Err(Error::invalid("whence", "must be 0, 1 or 2")),
        };
        let at = i64::try_from(from).ok().and_then(|from| from.checked_add(offset));
        let at = at.and_then(|at| usize::try_from(at).ok()).filter(|at| *at <= FILE_MAX_BYTES);
        self.at = at.ok_or_else(|| Error::invalid("offset", "lies outside of the file"))?;
        Ok(())
    }

    /// The content, if it was changed since it was written.
    pub(super) fn unwritten(&self) -> Option<&[u8]> {
        self.changed.then_some(&self.content[..])
    }

    pub(super) const fn is_written(&mut self) {
        self.changed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(mode: &str, content: &str) -> Opened {
        Opened::new("/f".to_owned(), Mode::parse(mode).unwrap(), content.as_bytes().to_vec())
    }

    #[test]
    fn modes() {
        let append = Mode::parse("ab+").unwrap();
        assert!(append.read && append.write && append.append && append.create && !append.truncate);
        let read = Mode::parse("rb").unwrap();
        assert!(read.read && !read.write && !read.create);
        for bad in ["", "rw", "q", "+", "rrrrrr"] {
            assert!(Mode::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn reads_and_writes() {
        let mut both = file("r+", "one\ntwo");
        assert_eq!(both.read_line().unwrap(), "one\n");
        both.write(b"TWO!").unwrap();
        both.seek(-4, 2).unwrap();
        assert_eq!(both.read(Some(3)).unwrap(), "TWO");
        assert_eq!(both.unwritten().unwrap(), b"one\nTWO!");
        both.seek(20, 0).unwrap();
        assert_eq!(both.read(None).unwrap(), "");
        let mut append = file("a", "x");
        append.seek(0, 0).unwrap();
        append.write(b"y").unwrap();
        assert_eq!(append.unwritten().unwrap(), b"xy");
        assert!(append.read(None).is_err() && file("r", "").write(b"").is_err());
        assert!(
            append.seek(-1, 0).is_err() && append.seek(0, 9).is_err() && append.seek(1 << 40, 0).is_err()
        );
    }
}
