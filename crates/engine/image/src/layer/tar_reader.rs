//! A tar reader for archives that may be hostile.
//!
//! The `tar` crate is used for the fields of a header; the walk over the archive is our own because long
//! names and extended headers must be bounded before they are read into memory, and because values of
//! extended headers are binary (file capabilities contain newlines).
//!
//! Understood: V7, ustar, GNU (long names, sparse files) and PAX (path, linkpath, size, ids, mtime, xattrs,
//! sparse files 0.0, 0.1 and 1.0).

use std::io::{self, Read};

use tar::Header;

use super::sparse::{self, Segment};
use crate::error::{ImageError, Result};
use crate::limits::{EXTENSION_MAX_BYTES, XATTRS_MAX_COUNT};

/// A header, and the unit of padding.
pub(super) const BLOCK: usize = 512;
/// Times outside of this many seconds around 1970 are not believed.
const TIME_MAX_SECONDS: i64 = 1 << 36;
const XATTR_KEY: &[u8] = b"SCHILY.xattr.";

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Dir,
    Symlink,
    Hardlink,
    Fifo,
    Device,
}

/// One entry, with all extensions applied. Nothing in it has been judged yet.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) uid: u64,
    pub(super) gid: u64,
    pub(super) mtime: (i64, u32),
    /// Length of the file once it is unpacked, bytes.
    pub(super) size: u64,
    /// Where the data of a sparse file goes; `None`: all of it, in order.
    pub(super) sparse: Option<Vec<Segment>>,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Extended headers, in order: a sparse map has the same key many times.
pub(super) type Pax = Vec<(Vec<u8>, Vec<u8>)>;

#[derive(Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    pax: Pax,
}

/// Walks over the entries of an archive. [`Read`] gives the stored data of the current one.
pub(super) struct TarReader<R> {
    inner: R,
    /// Stored bytes of the current entry that were not read yet.
    left: u64,
    /// Zero bytes after them.
    padding: u64,
}

impl<R: Read> TarReader<R> {
    pub(super) fn new(inner: R) -> Self {
        Self { inner, left: 0, padding: 0 }
    }

    pub(super) fn get_ref(&self) -> &R {
        &self.inner
    }

    /// The next entry, or `None` at the end of the archive. What was not read of the last one is skipped.
    ///
    /// # Errors
    /// [`ImageError::Invalid`] when the archive is malformed or beyond a limit.
    pub(super) fn next(&mut self) -> Result<Option<Member>> {
        let mut ext = Extensions::default();
        loop {
            self.skip_rest()?;
            let Some(header) = self.header()? else {
                return Ok(None);
            };
            let stored = header.entry_size().map_err(malformed)?;
            self.set_left(stored)?;
            match header.entry_type().as_byte() {
                b'x' => ext.pax = parse_pax(&self.extension(stored)?)?,
                b'g' => drop(self.extension(stored)?),
                b'L' => ext.path = Some(until_nul(self.extension(stored)?)),
                b'K' => ext.link = Some(until_nul(self.extension(stored)?)),
                _ => return self.member(&header, ext).map(Some),
            }
        }
    }

    /// Reads to the very end of the stream: bytes after the archive belong to its digest.
    pub(super) fn drain(mut self) -> Result<()> {
        self.left = u64::MAX;
        let mut scratch = vec![0; 64 << 10];
        while self.read(&mut scratch).map_err(unreadable)? > 0 {}
        Ok(())
    }

    /// A block that is not part of the entry's stored data.
    pub(super) fn raw_block(&mut self, block: &mut [u8; BLOCK]) -> Result<()> {
        self.inner.read_exact(block).map_err(unreadable)
    }

    fn header(&mut self) -> Result<Option<Header>> {
        let mut header = Header::new_old();
        let block = header.as_mut_bytes();
        let mut have = 0;
        while have < BLOCK {
            match self.inner.read(&mut block[have..]).map_err(unreadable)? {
                // Some writers leave out the closing zero blocks.
                0 if have == 0 => return Ok(None),
                0 => return Err(truncated()),
                n => have += n,
            }
        }
        if block.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let sum: u32 = block[..148].iter().chain(&block[156..]).map(|b| u32::from(*b)).sum::<u32>() + 8 * 32;
        if header.cksum().map_err(malformed)? != sum {
            return Err(ImageError::Invalid("the archive has a header with a wrong checksum".into()));
        }
        Ok(Some(header))
    }

    fn member(&mut self, header: &Header, ext: Extensions) -> Result<Member> {
        let Extensions { path, link, pax } = ext;
        let find = |key: &[u8]| pax.iter().rev().find(|(k, _)| k == key).map(|(_, v)| v.clone());
        let number = |key: &[u8]| find(key).map(|v| parse_number(&v)).transpose();
        let long = find(b"GNU.sparse.name").or_else(|| find(b"path")).or(path);
        let kind = kind_of(header, long.is_some())?;
        let path = long.unwrap_or_else(|| header.path_bytes().into_owned());
        if let Some(size) = number(b"size")? {
            self.set_left(size)?;
        }
        if kind != Kind::File {
            // Only files have data. Some writers put a size on links and directories, and store nothing.
            self.set_left(0)?;
        }
        let map = sparse::map_of(self, header, &pax)?;
        let (size, sparse) = map.map_or((self.left, None), |map| (map.size, Some(map.segments)));
        let xattrs: Vec<_> = pax
            .iter()
            .filter_map(|(key, value)| Some((key.strip_prefix(XATTR_KEY)?.to_vec(), value.clone())))
            .collect();
        if xattrs.len() > XATTRS_MAX_COUNT {
            return Err(ImageError::Invalid(format!("a file has more than {XATTRS_MAX_COUNT} attributes")));
        }
        let mtime = match find(b"mtime") {
            Some(text) => parse_time(&text),
            None => (i64::try_from(header.mtime().map_err(malformed)?).unwrap_or(0), 0),
        };
        Ok(Member {
            path,
            link: find(b"linkpath")
                .or(link)
                .unwrap_or_else(|| header.link_name_bytes().map(|l| l.into_owned()).unwrap_or_default()),
            kind,
            mode: header.mode().map_err(malformed)? & 0o7777,
            uid: number(b"uid")?.map_or_else(|| header.uid().map_err(malformed), Ok)?,
            gid: number(b"gid")?.map_or_else(|| header.gid().map_err(malformed), Ok)?,
            mtime: if mtime.0.abs() > TIME_MAX_SECONDS { (0, 0) } else { mtime },
            size,
            sparse,
            xattrs,
        })
    }

    fn set_left(&mut self, bytes: u64) -> Result<()> {
        let block = BLOCK as u64;
        // Padding must not overflow, and no real archive comes near this.
        if bytes > u64::MAX / 4 {
            return Err(ImageError::Invalid("the archive has an entry of absurd size".into()));
        }
        (self.left, self.padding) = (bytes, (block - bytes % block) % block);
        Ok(())
    }

    fn extension(&mut self, bytes: u64) -> Result<Vec<u8>> {
        if bytes > EXTENSION_MAX_BYTES {
            return Err(ImageError::Invalid(format!(
                "the archive has an extended header or long name of {bytes} bytes"
            )));
        }
        let mut data = Vec::new();
        self.read_to_end(&mut data).map_err(unreadable)?;
        Ok(data)
    }

    fn skip_rest(&mut self) -> Result<()> {
        let padding = self.padding;
        let mut rest = self.left + padding;
        (self.left, self.padding) = (0, 0);
        let mut scratch = [0; 16 << 10];
        while rest > 0 {
            let want = usize::try_from(rest).unwrap_or(usize::MAX).min(scratch.len());
            match self.inner.read(&mut scratch[..want]).map_err(unreadable)? {
                // Some writers leave out what fills the last block, too: umoci's `insert`.
                0 if rest <= padding => return Ok(()),
                0 => return Err(truncated()),
                n => rest -= n as u64,
            }
        }
        Ok(())
    }
}

impl<R: Read> Read for TarReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(buf.len());
        let n = self.inner.read(&mut buf[..want])?;
        if n == 0 && want > 0 && self.left < u64::MAX / 2 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the archive ends in the middle"));
        }
        self.left -= n as u64;
        Ok(n)
    }
}

fn kind_of(header: &Header, has_long_name: bool) -> Result<Kind> {
    Ok(match header.entry_type().as_byte() {
        // Before ustar a directory was a file whose name ends with a slash. The header's own name may be the beginning of a
        // long one, cut off behind a slash.
        0 | b'0' if !has_long_name && header.path_bytes().ends_with(b"/") => Kind::Dir,
        0 | b'0' | b'7' | b'S' => Kind::File,
        b'1' => Kind::Hardlink,
        b'2' => Kind::Symlink,
        b'3' | b'4' => Kind::Device,
        b'5' => Kind::Dir,
        b'6' => Kind::Fifo,
        other => {
            return Err(ImageError::entry(
                &header.path_bytes(),
                format_args!("entries of type {:?} are not supported", char::from(other)),
            ));
        }
    })
}

/// Records `<length> <key>=<value>\n`, where the length counts the whole record.
fn parse_pax(mut data: &[u8]) -> Result<Pax> {
    let bad = || ImageError::Invalid("the archive has a malformed extended header".into());
    let mut records = Pax::new();
    // Zero bytes at the end are padding that some writers count in.
    while !data.is_empty() && data[0] != 0 {
        let space = data.iter().position(|b| *b == b' ').ok_or_else(bad)?;
        let length = usize::try_from(parse_number(&data[..space])?).map_err(|_cause| bad())?;
        let record = data.get(space + 1..length).ok_or_else(bad)?;
        let (b'\n', record) = record.split_last().ok_or_else(bad)? else {
            return Err(bad());
        };
        let equals = record.iter().position(|b| *b == b'=').ok_or_else(bad)?;
        records.push((record[..equals].to_vec(), record[equals + 1..].to_vec()));
        data = &data[length..];
    }
    Ok(records)
}

pub(super) fn parse_number(text: &[u8]) -> Result<u64> {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| ImageError::Invalid("the archive has a malformed number".into()))
}

/// `seconds[.fraction]`. A time that cannot be understood becomes 1970: a wrong time does no harm.
fn parse_time(text: &[u8]) -> (i64, u32) {
    let text = String::from_utf8_lossy(text);
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let Ok(seconds) = whole.parse::<i64>() else {
        return (0, 0);
    };
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    match digits.parse::<u32>() {
        // Time goes on upwards also before 1970.
        Ok(nanos) if nanos > 0 && whole.starts_with('-') => (seconds - 1, 1_000_000_000 - nanos),
        Ok(nanos) => (seconds, nanos),
        Err(_) => (seconds, 0),
    }
}

fn until_nul(mut data: Vec<u8>) -> Vec<u8> {
    if let Some(end) = data.iter().position(|b| *b == 0) {
        data.truncate(end);
    }
    data
}

fn malformed(_: io::Error) -> ImageError {
    ImageError::Invalid("the archive has a malformed header".into())
}

fn truncated() -> ImageError {
    ImageError::Invalid("the archive ends in the middle".into())
}

/// A failure while the archive is read: of the host when the kernel says so, else of the archive.
pub(crate) fn unreadable(error: io::Error) -> ImageError {
    if error.raw_os_error().is_some() {
        ImageError::io("read the archive", error)
    } else {
        ImageError::Invalid(format!("the archive cannot be read: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pax_values_are_binary() {
        let pax = parse_pax(b"12 a=x\ny=\0z\n5 b=\n").unwrap();
        assert_eq!(pax, [(b"a".to_vec(), b"x\ny=\0z".to_vec()), (b"b".to_vec(), Vec::new())]);
        for bad in [&b"99 a=b\n"[..], b"x a=b\n", b"6 ab\n\n", b"5 a=b", b"1 a=b\n", b"0 a=b\n"] {
            assert!(parse_pax(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_long_name_that_is_cut_behind_a_slash_is_no_directory() {
        let (long, short) = (format!("{}/LICENSE", "d".repeat(99)), "after");
        let mut archive = tar::Builder::new(Vec::new());
        for name in [long.as_str(), short] {
            let mut header = Header::new_gnu();
            header.set_size(4);
            header.set_mode(0o644);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            archive.append_data(&mut header, name, &b"text"[..]).unwrap();
        }
        let packed = archive.into_inner().unwrap();
        let mut reader = TarReader::new(packed.as_slice());
        for name in [long.as_str(), short] {
            let member = reader.next().unwrap().unwrap();
            assert_eq!(member.path, name.as_bytes());
            assert!(member.kind == Kind::File && member.size == 4, "{name}");
        }
        assert!(reader.next().unwrap().is_none());
    }

    #[test]
    fn times() {
        assert_eq!(parse_time(b"12.5"), (12, 500_000_000));
        assert_eq!(parse_time(b"-1.25"), (-2, 750_000_000));
        assert_eq!(parse_time(b"nonsense"), (0, 0));
    }
}
