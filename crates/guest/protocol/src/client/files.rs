//! Files, archives and watches.

use bytes::Bytes;
use h2::client::ResponseFuture;

use super::{Call, GuestClient, GuestError, Link, NAME_MAX_BYTES, Reader, answer_first, within};
use crate::body::RecordWriter;
use crate::messages::{
    Chmod, Describe, Described, Done, FileInfo, Find, Found, List, MarkWatches, Mkdir, Pack, Read, Remove,
    Rename, SetAttributes, Stat, Unpack, Watch, WatchEvent, Watching, Write,
};
use crate::wire::{Kind, Record};
use crate::{ATTRIBUTES_MAX_BYTES, FOUND_LINE_MAX_BYTES, PATH_MAX_BYTES};

/// Bytes of a listing's text and entries that are kept at most.
const LIST_MAX_BYTES: usize = 64 << 20;

/// A file being read.
#[derive(Debug)]
pub struct FileReader {
    /// The file's record. Its size may differ from the bytes that come: files change.
    pub info: FileInfo,
    bytes: ByteStream,
    /// The bytes that may still come, if only a part was asked for.
    left: Option<u64>,
}

impl FileReader {
    /// The next bytes, or `None` at the end of the part that was asked for.
    ///
    /// # Errors
    /// [`GuestError`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, GuestError> {
        let piece = self.bytes.next().await?;
        if let (Some(left), Some(piece)) = (self.left.as_mut(), piece.as_ref()) {
            // Who asks for a part keeps as much as it asked for, and no guest makes it more.
            let length = u64::try_from(piece.len()).unwrap_or(u64::MAX);
            match left.checked_sub(length) {
                Some(after) => *left = after,
                None => return Err(self.bytes.reader.link.violation("more of a file than was asked for")),
            }
        }
        Ok(piece)
    }
}

/// Bytes that the guest sends.
#[derive(Debug)]
pub struct ByteStream {
    reader: Reader,
    ended: bool,
}

impl ByteStream {
    /// The next bytes, or `None` when all were there.
    ///
    /// # Errors
    /// [`GuestError`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, GuestError> {
        while !self.ended {
            match self.reader.next().await? {
                Some(Record { kind: Kind::Data, payload }) if payload.is_empty() => {}
                Some(Record { kind: Kind::Data, payload }) => return Ok(Some(payload)),
                Some(Record { kind: Kind::Last, .. }) => self.ended = true,
                Some(_) => return Err(self.reader.link.violation("wrong record kind")),
                None => return Err(self.reader.link.violation("transfer ended without its end record")),
            }
        }
        Ok(None)
    }
}

/// Bytes that the guest takes: a file or an archive. Dropping it gives up: a file does not appear,
/// an archive is unpacked so far.
#[derive(Debug)]
pub struct FileWriter {
    writer: RecordWriter,
    response: Option<ResponseFuture>,
    link: Link,
}

impl FileWriter {
    /// Sends bytes; waits when the guest is slower. A send that was dropped half-way makes all that
    /// follow fail.
    ///
    /// # Errors
    /// [`GuestError`]; when the guest gave up, its reason.
    pub async fn send(&mut self, bytes: Bytes) -> Result<(), GuestError> {
        if self.writer.data(Kind::Data, bytes).await.is_ok() {
            return Ok(());
        }
        // The guest stopped reading; its answer says why.
        match self.response.take() {
            Some(response) => match answer(response, self.link.clone()).await {
                Ok(_) => Err(self.link.violation("success before the end of the body")),
                Err(error) => Err(error),
            },
            None => Err(GuestError::Closed),
        }
    }

    /// Ends the body and waits until the guest is done; gives the number of bytes written.
    ///
    /// # Errors
    /// [`GuestError`]; the file did not appear then.
    pub async fn finish(mut self) -> Result<u64, GuestError> {
        let response = self.response.take().ok_or(GuestError::Closed)?;
        let writer = self.writer;
        answer_first(async { writer.finish() }, answer(response, self.link)).await
    }
}

async fn answer(response: ResponseFuture, link: Link) -> Result<u64, GuestError> {
    let done: Done = Call::reader(response, link).await?.expect(Kind::Last).await?;
    Ok(done.bytes)
}

/// Changes below a path.
#[derive(Debug)]
pub struct WatchStream {
    reader: Reader,
}

impl WatchStream {
    /// The next change. Dropping the future half-way loses nothing.
    ///
    /// # Errors
    /// [`GuestError`]; `NotFound` when the watched path itself went away.
    pub async fn next(&mut self) -> Result<Option<WatchEvent>, GuestError> {
        match self.reader.next().await? {
            Some(Record { kind: Kind::Message, payload }) => {
                let event: WatchEvent = self.reader.link.decode(payload)?;
                if event.path.len() > PATH_MAX_BYTES || event.from.len() > PATH_MAX_BYTES {
                    return Err(self.reader.link.violation("path is too long"));
                }
                Ok(Some(event))
            }
            Some(_) => Err(self.reader.link.violation("wrong record kind")),
            None => Ok(None),
        }
    }
}

fn checked_info(info: FileInfo, link: &Link) -> Result<FileInfo, GuestError> {
    let long = info.path.len() > PATH_MAX_BYTES
        || info.target.len() > PATH_MAX_BYTES
        || info.user.len() > NAME_MAX_BYTES
        || info.group.len() > NAME_MAX_BYTES;
    if long { Err(link.violation("text is too long")) } else { Ok(info) }
}

impl GuestClient {
    /// Describes one path.
    ///
    /// # Errors
    /// [`GuestError`].
    pub async fn stat(&self, request: Stat) -> Result<FileInfo, GuestError> {
        checked_info(self.quick("stat", &request).await?, &self.inner.link)
    }

    /// Lists a directory; says whether entries were cut.
    ///
    /// # Errors
    /// [`GuestError`].
    pub async fn list(&self, request: List) -> Result<(Vec<FileInfo>, bool), GuestError> {
        let max_entries = usize::try_from(request.max_entries).unwrap_or(usize::MAX);
        let mut reader = self.ask("list", &request).await?;
        let mut entries = Vec::new();
        let mut bytes = 0_usize;
        while let Some(Record { kind, payload }) = reader.next().await? {
            match kind {
                Kind::Message => {}
                Kind::Last => return Ok((entries, true)),
                Kind::Data | Kind::DataErr | Kind::Failure => {
                    return Err(reader.link.violation("wrong record kind"));
                }
            }
            bytes += payload.len() + size_of::<FileInfo>();
            if entries.len() >= max_entries || bytes > LIST_MAX_BYTES {
                return Err(reader.link.violation("listing is too long"));
            }
            entries.push(checked_info(reader.link.decode(payload)?, &reader.link)?);
        }
        Ok((entries, false))
    }

    /// Says more about paths; as many answers as paths, in order. There is a limit on how many at once:
    /// [`crate::DESCRIBE_MAX_COUNT`].
    ///
    /// # Errors
    /// [`GuestError`].
    pub async fn describe(&self, request: Describe) -> Result<Vec<Described>, GuestError> {
        let count = request.paths.len();
        let mut reader = self.ask("describe", &request).await?;
        let mut all = Vec::with_capacity(count.min(crate::DESCRIBE_MAX_COUNT));
        while let Some(Record { kind, payload }) = reader.next().await? {
            if kind != Kind::Message || all.len() >= count {
                return Err(reader.link.violation("wrong record"));
            }
            let described: Described = reader.link.decode(payload)?;
            let Described { info, resolved, attributes } = described;
            let check =
                |info: Option<FileInfo>| info.map(|info| checked_info(info, &reader.link)).transpose();
            let bytes: usize = attributes.iter().map(|(name, value)| name.len() + value.len()).sum();
            if bytes > ATTRIBUTES_MAX_BYTES {
                return Err(reader.link.violation("too many attributes"));
            }
            all.push(Described { info: check(info)?, resolved: check(resolved)?, attributes });
        }
        if all.len() != count {
            return Err(reader.link.violation("answers are missing"));
        }
        Ok(all)
    }

    /// Replaces extended attributes.
    ///
    /// # Errors
    /// [`GuestError`].
    pub async fn set_attributes(&self, request: SetAttributes) -> Result<(), GuestError> {
        self.done("attributes", &request).await.map(drop)
    }

    /// Puts a mark into every watch that reports marks.
    ///
    /// # Errors
    /// [`GuestError`].
    pub async fn mark_watches(&self, mark: u64) -> Result<(), GuestError> {
        self.done("watch-mark", &MarkWatches { mark }).await.map(drop)
    }

    /// Finds files or lines; says whether some were cut.
    ///
    /// # Errors
    /// [`GuestError`].
    pub async fn find(&self, request: Find) -> Result<(Vec<Found>, bool), GuestError> {
        let max_count = usize::try_from(request.max_count).unwrap_or(usize::MAX);
        let mut reader = self.ask("find", &request).await?;
        let mut all = Vec::new();
        let mut bytes = 0_usize;
        while let Some(Record { kind, payload }) = reader.next().await? {
            match kind {
                Kind::Message => {}
                Kind::Last => return Ok((all, true)),
                Kind::Data | Kind::DataErr | Kind::Failure => {
                    return Err(reader.link.violation("wrong record kind"));
                }
            }
            bytes += payload.len() + size_of::<Found>();
            if all.len() >= max_count || bytes > LIST_MAX_BYTES {
                return Err(reader.link.violation("too much was found"));
            }
            let found: Found = reader.link.decode(payload)?;
            if found.text.len() > FOUND_LINE_MAX_BYTES {
                return Err(reader.link.violation("text is too long"));
            }
            let info = found.info.ok_or_else(|| reader.link.violation("a file is missing"))?;
            all.push(Found { info: Some(checked_info(info, &reader.link)?), ..found });
        }
        Ok((all, false))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`GuestError`].
    pub async fn read(&self, request: Read) -> Result<FileReader, GuestError> {
        let mut reader = self.ask("read", &request).await?;
        let info = checked_info(within(reader.expect(Kind::Message)).await?, &reader.link)?;
        let left = (request.length > 0).then_some(request.length);
        Ok(FileReader { info, bytes: ByteStream { reader, ended: false }, left })
    }

    /// Writes a file: it appears when [`FileWriter::finish`] succeeds.
    ///
    /// # Errors
    /// [`GuestError`]. Most refusals come from the writer.
    pub async fn write(&self, request: Write) -> Result<FileWriter, GuestError> {
        self.upload("write", &request).await
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// [`GuestError`].
    pub async fn mkdir(&self, request: Mkdir) -> Result<(), GuestError> {
        self.done("mkdir", &request).await.map(drop)
    }

    /// Removes a file or directory. No deadline: trees can be large.
    ///
    /// # Errors
    /// [`GuestError`].
    pub async fn remove(&self, request: Remove) -> Result<(), GuestError> {
        self.done_sometime("remove", &request).await.map(drop)
    }

    /// Renames. No deadline: a move to another file system is a copy.
    ///
    /// # Errors
    /// [`GuestError`].
    pub async fn rename(&self, request: Rename) -> Result<(), GuestError> {
        self.done_sometime("rename", &request).await.map(drop)
    }

    /// Changes permission bits and owner.
    ///
    /// # Errors
    /// [`GuestError`].
    pub async fn chmod(&self, request: Chmod) -> Result<(), GuestError> {
        self.done("chmod", &request).await.map(drop)
    }

    /// Reads a path as a tar stream.
    ///
    /// # Errors
    /// [`GuestError`].
    pub async fn pack(&self, path: &str) -> Result<ByteStream, GuestError> {
        let reader = self.ask("pack", &Pack { path: path.to_owned() }).await?;
        Ok(ByteStream { reader, ended: false })
    }

    /// Unpacks a tar stream below a directory.
    ///
    /// # Errors
    /// [`GuestError`]. Most refusals come from the writer.
    pub async fn unpack(&self, request: Unpack) -> Result<FileWriter, GuestError> {
        self.upload("unpack", &request).await
    }

    /// Watches a path: changes from the return of this call on are reported.
    ///
    /// # Errors
    /// [`GuestError`].
    pub async fn watch(&self, request: Watch) -> Result<WatchStream, GuestError> {
        let mut reader = self.ask("watch", &request).await?;
        let Watching {} = within(reader.expect(Kind::Message)).await?;
        Ok(WatchStream { reader })
    }

    async fn upload(&self, operation: &str, request: &impl prost::Message) -> Result<FileWriter, GuestError> {
        let Call { mut writer, response, link } = self.start(operation).await?;
        // A guest that refuses early says why in its answer.
        writer.message(request).await.unwrap_or_default();
        Ok(FileWriter { writer, response: Some(response), link })
    }
}
