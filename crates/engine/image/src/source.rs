//! Where saved images are read from: a directory or an archive.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use crate::error::{ImageError, Result};
use crate::layer::{Place, decoder, index, unreadable};

/// A set of files by name.
#[derive(Debug)]
pub(crate) enum Source {
    /// Files below a directory; links that lead out of it are refused.
    Dir(OwnedFd),
    /// Files in an uncompressed archive.
    Archive(Arc<File>, BTreeMap<String, Place>),
}

impl Source {
    /// Opens a directory or an archive. A compressed archive is unpacked to `tmp` first. Blocking.
    pub(crate) fn open(path: &Path, tmp: &Path, limit: u64) -> Result<Self> {
        let fail = |error| ImageError::io("open the saved image", error);
        let mut file = File::open(path).map_err(fail)?;
        if file.metadata().map_err(fail)?.is_dir() {
            return Ok(Self::Dir(file.into()));
        }
        let mut head = [0; 4];
        let read = file.read(&mut head).map_err(fail)?;
        file.seek(SeekFrom::Start(0)).map_err(fail)?;
        let compressed = matches!(
            &head[..read],
            [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd] | [b'B', b'Z', b'h', _] | [0xfd, b'7', ..]
        );
        if compressed { Self::spool(file, tmp, limit) } else { Self::archive(file) }
    }

    /// Takes a stream, compressed or not, to a file of its own first. Blocking.
    pub(crate) fn spool(reader: impl Read, tmp: &Path, limit: u64) -> Result<Self> {
        let fail = |error| ImageError::io("keep the saved image", error);
        let mut file = tempfile::tempfile_in(tmp).map_err(fail)?;
        let mut stream = decoder(io::BufReader::new(reader))?.take(limit.saturating_add(1));
        let mut buffer = vec![0; 256 << 10];
        let mut total = 0;
        loop {
            let n = stream.read(&mut buffer).map_err(unreadable)?;
            if n == 0 {
                return Self::archive(file);
            }
            total += n as u64;
            if total > limit {
                return Err(ImageError::Invalid("the archive is larger than the operator allows".into()));
            }
            io::Write::write_all(&mut file, &buffer[..n]).map_err(fail)?;
        }
    }

    fn archive(mut file: File) -> Result<Self> {
        let places = index(&mut file)?;
        Ok(Self::Archive(Arc::new(file), places))
    }

    /// A file and its size, `None` when there is no such file.
    pub(crate) fn get(&self, name: &str) -> Result<Option<(Box<dyn Read>, u64)>> {
        match self {
            Self::Dir(dir) => {
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
                // Not blocking: there may be a named pipe in the directory.
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let file = match openat2(dir, name, flags, Mode::empty(), resolve) {
                    Ok(fd) => File::from(fd),
                    Err(Errno::NOENT) => return Ok(None),
                    Err(Errno::XDEV | Errno::LOOP | Errno::NOTDIR) => return Err(leads_out(name)),
                    Err(error) => return Err(ImageError::io("open the saved image", error.into())),
                };
                let meta = file.metadata().map_err(unreadable)?;
                if !meta.is_file() {
                    return Err(leads_out(name));
                }
                Ok(Some((Box::new(file), meta.len())))
            }
            Self::Archive(file, places) => Ok(places.get(name).map(|place| {
                let part = Part { file: Arc::clone(file), at: place.offset, left: place.bytes };
                (Box::new(part) as Box<dyn Read>, place.bytes)
            })),
        }
    }

    /// A small file, whole.
    pub(crate) fn small(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        let Some((reader, size)) = self.get(name)? else {
            return Ok(None);
        };
        if size > limit {
            return Err(ImageError::Invalid(format!(
                "the file '{}' has {size} bytes",
                atoll_core::error::shorten(name)
            )));
        }
        let mut data = Vec::new();
        reader.take(limit).read_to_end(&mut data).map_err(unreadable)?;
        Ok(Some(data))
    }
}

fn leads_out(name: &str) -> ImageError {
    ImageError::Invalid(format!("'{}' is no file of the saved image", atoll_core::error::shorten(name)))
}

/// Part of a file, read without moving the position that other readers of the file use.
struct Part {
    file: Arc<File>,
    at: u64,
    left: u64,
}

impl Read for Part {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(buf.len());
        let n = self.file.read_at(&mut buf[..want], self.at)?;
        self.at += n as u64;
        self.left -= n as u64;
        Ok(n)
    }
}
