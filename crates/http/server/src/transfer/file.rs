//! Reading a file whose size may not be what it says.
//!
//! Files that the kernel makes up (`/proc`, `/sys`) have another size than their content. So a file that says it is
//! small is read before the answer begins: the answer tells the size that the content really has.

use atoll_core::{Code, Error, Result};
use atoll_engine::{FileReader, GuestLease, guest_error};
use atoll_guest_protocol::messages::{FileInfo, FileKind, Read, Stat};
use axum::body::Body;
use bytes::{Bytes, BytesMut};

use super::{Source, body, held};

/// Files that say they are at most this large are read before the answer begins, bytes.
const READ_AHEAD_BYTES: u64 = 64 << 10;

/// A file that is to be sent, whole or in part.
#[derive(Debug)]
pub struct OpenFile {
    lease: GuestLease,
    path: String,
    info: FileInfo,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// To be read while it is sent; the reader of all of it, where there is one already.
    Unread(Option<FileReader>),
    /// All of it, and the reader that has the memory for it.
    Whole(Bytes, FileReader),
    /// It is larger than it says: how large is unknown. The first bytes, and the reader of the others.
    Longer(Bytes, FileReader),
}

impl OpenFile {
    /// The file at an absolute path. `look` is for a client that may not want all of it: the server looks at the file
    /// before it reads any of it.
    ///
    /// # Errors
    /// [`Code::IsADirectory`], and what the guest refuses.
    pub async fn open(lease: GuestLease, path: String, look: bool) -> Result<Self> {
        let directory = || Error::new(Code::IsADirectory, format!("'{path}' is a directory"));
        let told = |error: Error| if error.code == Code::IsADirectory { directory() } else { error };
        let (info, reader) = if look {
            let stat = Stat { path: path.clone(), no_follow: false };
            (lease.stat(stat).await.map_err(guest_error)?, None)
        } else {
            let reader = read(&lease, &path, 0, 0).await.map_err(told)?;
            (reader.info.clone(), Some(reader))
        };
        if info.kind() == FileKind::Directory {
            return Err(directory());
        }
        Ok(Self { lease, path, info, content: Content::Unread(reader) })
    }

    /// The file's record, as the guest tells it: for its size see [`Self::size`].
    #[must_use]
    pub const fn info(&self) -> &FileInfo {
        &self.info
    }

    /// How many bytes it has. `None` when only reading all of it would tell: then no part of it can be sent.
    ///
    /// # Errors
    /// What reading gives.
    pub async fn size(&mut self) -> Result<Option<u64>> {
        if let Content::Unread(reader) = &mut self.content
            && self.info.size <= READ_AHEAD_BYTES
        {
            let mut reader = match reader.take() {
                Some(reader) => reader,
                None => read(&self.lease, &self.path, 0, 0).await?,
            };
            let (bytes, ended) = read_ahead(&mut reader).await?;
            self.content = if ended { Content::Whole(bytes, reader) } else { Content::Longer(bytes, reader) };
        }
        Ok(match &self.content {
            Content::Unread(_) => Some(self.info.size),
            Content::Whole(bytes, _) => Some(bytes.len() as u64),
            Content::Longer(..) => None,
        })
    }

    /// Its bytes, all or from the first to the last of a part, for an answer that announces [`Self::size`], or the
    /// part's. A file that grows meanwhile is cut; one that shrinks breaks the answer off, so that the client notices.
    ///
    /// # Errors
    /// What reading gives.
    pub async fn body(mut self, part: Option<(u64, u64)>) -> Result<Body> {
        self.size().await?;
        let unread = match std::mem::replace(&mut self.content, Content::Unread(None)) {
            Content::Whole(bytes, reader) => {
                let at = |place: u64| usize::try_from(place).unwrap_or(usize::MAX).min(bytes.len());
                let (first, end) = part.map_or((0, bytes.len()), |(first, last)| (at(first), at(last + 1)));
                return Ok(held(bytes.slice(first..end), reader));
            }
            Content::Longer(first, reader) => {
                return Ok(body(self.lease, Source::File(Box::new(reader)), Some(first), None));
            }
            Content::Unread(reader) => reader,
        };
        let (reader, length) = match (part, unread) {
            (None, Some(reader)) => (reader, self.info.size),
            (None, None) => (read(&self.lease, &self.path, 0, 0).await?, self.info.size),
            (Some((first, last)), _) => {
                let length = last - first + 1;
                (read(&self.lease, &self.path, first, length).await?, length)
            }
        };
        Ok(body(self.lease, Source::File(Box::new(reader)), None, Some(length)))
    }
}

/// A reader of so many bytes from here on; of all with a length of 0.
async fn read(lease: &GuestLease, path: &str, offset: u64, length: u64) -> Result<FileReader> {
    lease.read(Read { path: path.to_owned(), offset, length }).await.map_err(guest_error)
}

/// Reads until the end, or until it is more than a small file. Says whether it ended.
async fn read_ahead(reader: &mut FileReader) -> Result<(Bytes, bool)> {
    let mut content = BytesMut::new();
    while content.len() as u64 <= READ_AHEAD_BYTES {
        match reader.next().await.map_err(guest_error)? {
            Some(piece) => content.extend_from_slice(&piece),
            None => return Ok((content.freeze(), true)),
        }
    }
    Ok((content.freeze(), false))
}
