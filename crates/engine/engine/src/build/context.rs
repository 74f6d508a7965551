//! The context: a tar stream to a file, and from there to an index in memory and contents on disk.
//!
//! Reading a tar archive is work for a thread, and waiting for a client is not: so the archive is here as a whole before it
//! is read. It takes its size on disk once more until then.
//!
//! Nothing of the names in the archive touches the host's file system: a content is a file named by its digest, and
//! what is called how is known by the [`ContextIndex`] alone. So there is no path to escape through.

use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};

use atoll_build::context::{ContextIndex, Entry};
use atoll_build::copy::clean;
use atoll_core::error::shorten;
use atoll_core::limits::{
    BUILD_CONTEXT_MAX_BYTES, BUILD_CONTEXT_MAX_COUNT, BUILD_CONTEXT_NAMES_MAX_BYTES,
    BUILD_CONTEXTS_MEMORY_MAX_BYTES, PATH_MAX_BYTES,
};
use atoll_core::{Code, Error, Result};
use tar::EntryType;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _, BufWriter};
use tokio_util::sync::CancellationToken;

use super::indexes::Share;
use crate::archive::members;

/// Bytes read at once.
const BLOCK_BYTES: usize = 256 << 10;
/// Largest archive: the contents, and for each entry what describes it.
const ARCHIVE_MAX_BYTES: u64 = BUILD_CONTEXT_MAX_BYTES + (BUILD_CONTEXT_MAX_COUNT as u64) * (4 << 10);
const PERMISSIONS: u32 = 0o7777;
/// What an entry takes in memory besides its names, bytes.
const ENTRY_BYTES: usize = size_of::<(String, Entry)>();

/// A context that is here.
#[derive(Debug, Default)]
pub(super) struct Context {
    /// What is in it.
    pub(super) index: ContextIndex,
    /// The memory that this takes. There is none of a build without a context.
    _share: Option<Share>,
}

/// Where a content is.
pub(super) fn content_path(dir: &Path, digest: &[u8; 32]) -> PathBuf {
    dir.join(blake3::Hash::from_bytes(*digest).to_hex().as_str())
}

fn invalid(what: impl std::fmt::Display) -> Error {
    Error::new(Code::BuildContextInvalid, format!("the context: {what}"))
}

/// The build ended before its context was here.
pub(super) fn ended() -> Error {
    Error::new(Code::InvalidState, "the build ended before its context was here")
}

fn host(error: &io::Error) -> Error {
    tracing::error!(%error, "a context cannot be kept");
    Error::new(Code::HostDiskFull, "the host cannot keep the context").hint("free some, then build again")
}

/// Keeps an archive in `dir`, which is made, until it is whole: the stream is waited for without a thread. Its file has no
/// name, and goes with whoever reads it.
///
/// # Errors
/// What the stream says, [`Code::TooLarge`], [`Code::HostDiskFull`].
pub(super) async fn receive(dir: &Path, mut stream: impl AsyncRead + Unpin) -> Result<File> {
    let mut file = nameless(dir).await.map_err(|error| host(&error))?;
    let mut block = vec![0; BLOCK_BYTES];
    let mut size = 0_u64;
    loop {
        let len = stream.read(&mut block).await.map_err(|error| unreadable(&error))?;
        if len == 0 {
            break;
        }
        size += len as u64;
        if size > ARCHIVE_MAX_BYTES {
            return Err(too_large("the archive of the context is larger than any may be".to_owned()));
        }
        file.write_all(&block[..len]).await.map_err(|error| host(&error))?;
    }
    whole(file).await.map_err(|error| host(&error))
}

async fn nameless(dir: &Path) -> io::Result<BufWriter<tokio::fs::File>> {
    tokio::fs::create_dir_all(dir).await?;
    let path = dir.join("archive");
    let mut options = tokio::fs::OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).open(&path).await?;
    tokio::fs::remove_file(&path).await?;
    Ok(BufWriter::with_capacity(BLOCK_BYTES, file))
}

/// The file of an archive that is whole, from its beginning on.
async fn whole(mut written: BufWriter<tokio::fs::File>) -> io::Result<File> {
    written.flush().await?;
    let mut file = written.into_inner();
    file.rewind().await?;
    Ok(file.into_std().await)
}

/// Reads an archive's file in blocks.
pub(super) fn buffered(archive: File) -> impl Read {
    io::BufReader::with_capacity(BLOCK_BYTES, archive)
}

/// Reads an archive into `dir`, which is made, until `stop`: a few bytes may describe a sparse file of gigabytes. Its index
/// takes memory of `share`. Blocking.
///
/// # Errors
/// [`Code::BuildContextInvalid`], [`Code::TooLarge`], [`Code::HostDiskFull`]; [`Code::LimitExceeded`] when there is no memory
/// left for it; [`Code::InvalidState`] when it was stopped.
pub(super) fn unpack(
    dir: &Path,
    stream: impl Read,
    share: Share,
    stop: &CancellationToken,
) -> Result<Context> {
    fs::create_dir_all(dir).map_err(|error| host(&error))?;
    let (index, block) = (ContextIndex::default(), vec![0; BLOCK_BYTES]);
    let mut unpacker = Unpacker { dir, stop, index, share, bytes: 0, names_bytes: 0, block };
    members(stream, |error| unreadable(&error), |entry| unpacker.entry(entry))?;
    Ok(Context { index: unpacker.index, _share: Some(unpacker.share) })
}

/// The stream's own failure stands in the error; everything else is the form of the archive.
fn unreadable(error: &io::Error) -> Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(error) => error.clone(),
        None => invalid(format_args!("the archive cannot be read: {error}")),
    }
}

struct Unpacker<'a> {
    dir: &'a Path,
    stop: &'a CancellationToken,
    index: ContextIndex,
    share: Share,
    /// Of the contents.
    bytes: u64,
    /// Of the names, and of what links lead to: the index is in memory until the build has ended.
    names_bytes: usize,
    block: Vec<u8>,
}

impl Unpacker<'_> {
    fn check_wanted(&self) -> Result<()> {
        if self.stop.is_cancelled() { Err(ended()) } else { Ok(()) }
    }

    fn entry(&mut self, entry: &mut tar::Entry<'_, impl Read>) -> Result<()> {
        self.check_wanted()?;
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::XGlobalHeader) {
            return Ok(());
        }
        let path = member(&entry.path_bytes())?;
        // The root itself.
        if path.is_empty() {
            return Ok(());
        }
        let mode = entry.header().mode().map_err(|error| unreadable(&error))? & PERMISSIONS;
        #[expect(clippy::wildcard_enum_match_arm, reason = "whatever is not known is refused")]
        let found = match kind {
            EntryType::Directory => Entry::Directory { mode },
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let (size, digest) = self.keep(&path, entry)?;
                Entry::File { mode, size, digest }
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default();
                let target = std::str::from_utf8(&target)
                    .ok()
                    .filter(|text| (1..PATH_MAX_BYTES).contains(&text.len()));
                let target =
                    target.ok_or_else(|| invalid(format_args!("'{}' links to nothing", shorten(&path))))?;
                Entry::Link { target: target.to_owned() }
            }
            EntryType::Link => {
                let target = member(&entry.link_name_bytes().unwrap_or_default())?;
                self.index
                    .entries
                    .get(&target)
                    .filter(|entry| matches!(entry, Entry::File { .. }))
                    .cloned()
                    .ok_or_else(|| {
                    invalid(format_args!("'{}' is a hard link to a file that is not there", shorten(&path)))
                })?
            }
            _ => {
                return Err(invalid(format_args!(
                    "'{}' is neither file, directory nor link",
                    shorten(&path)
                )));
            }
        };
        self.insert(path, found)
    }

    /// Enters an entry with the directories above it.
    fn insert(&mut self, path: String, entry: Entry) -> Result<()> {
        for (at, _) in path.match_indices('/') {
            match self.index.entries.get(&path[..at]) {
                Some(Entry::Directory { .. }) => {}
                Some(_) => {
                    return Err(invalid(format_args!(
                        "'{}' is below something that is no directory",
                        shorten(&path)
                    )));
                }
                None => self.enter(path[..at].to_owned(), Entry::Directory { mode: 0o755 })?,
            }
        }
        let full = !matches!(entry, Entry::Directory { .. }) && self.index.below(&path).next().is_some();
        if full {
            return Err(invalid(format_args!("'{}' is a directory and something else", shorten(&path))));
        }
        self.enter(path, entry)
    }

    /// Enters one. A name of a few thousand bytes can make as many directories, each with a name that is as long.
    fn enter(&mut self, path: String, entry: Entry) -> Result<()> {
        let target_bytes = match &entry {
            Entry::Link { target } => target.len(),
            Entry::File { .. } | Entry::Directory { .. } => 0,
        };
        let names_bytes = path.len() + target_bytes;
        self.names_bytes += names_bytes;
        if self.names_bytes > BUILD_CONTEXT_NAMES_MAX_BYTES {
            let most = BUILD_CONTEXT_NAMES_MAX_BYTES >> 20;
            return Err(too_large(format!("the names in the context have more than {most} MiB together")));
        }
        if !self.share.grow(names_bytes + ENTRY_BYTES) {
            return Err(crowded());
        }
        self.index.entries.insert(path, entry);
        if self.index.entries.len() > BUILD_CONTEXT_MAX_COUNT {
            let message = format!("the context has more than {BUILD_CONTEXT_MAX_COUNT} entries");
            return Err(too_large(message));
        }
        Ok(())
    }

    /// Keeps a content under its digest.
    fn keep(&mut self, path: &str, content: &mut impl Read) -> Result<(u64, [u8; 32])> {
        let coming = self.dir.join("coming");
        let mut file = File::create(&coming).map_err(|error| host(&error))?;
        let mut hasher = blake3::Hasher::new();
        let mut size = 0_u64;
        loop {
            self.check_wanted()?;
            let len = content.read(&mut self.block).map_err(|error| unreadable(&error))?;
            if len == 0 {
                break;
            }
            size += len as u64;
            if self.bytes + size > BUILD_CONTEXT_MAX_BYTES {
                let message = format!("the context is larger than 4 GiB, at '{}'", shorten(path));
                return Err(too_large(message));
            }
            hasher.update(&self.block[..len]);
            file.write_all(&self.block[..len]).map_err(|error| host(&error))?;
        }
        self.bytes += size;
        let digest = *hasher.finalize().as_bytes();
        fs::rename(&coming, content_path(self.dir, &digest)).map_err(|error| host(&error))?;
        Ok((size, digest))
    }
}

fn too_large(message: String) -> Error {
    Error::new(Code::TooLarge, message).hint("leave out what is not needed with a .dockerignore")
}

/// The memory of all contexts has a bound, too.
fn crowded() -> Error {
    let message = format!(
        "the contexts of builds that have not ended have {} MiB of memory, of which a project or a key leaves as much to \
         others as it has",
        BUILD_CONTEXTS_MEMORY_MAX_BYTES >> 20
    );
    Error::new(Code::LimitExceeded, message).hint("send it again when some builds have ended, or cancel some")
}

/// A member's name in clean form.
fn member(name: &[u8]) -> Result<String> {
    let shown = || shorten(&String::from_utf8_lossy(name));
    let text = std::str::from_utf8(name)
        .map_err(|_not_utf8| invalid(format_args!("the name '{}' is not UTF-8", shown())))?;
    if text.len() >= PATH_MAX_BYTES || text.contains('\0') {
        return Err(invalid(format_args!("the name '{}' is malformed", shown())));
    }
    let outside = || invalid(format_args!("'{}' leads out of it", shown()));
    if text.starts_with('/') {
        return Err(outside());
    }
    clean(text).ok_or_else(outside)
}

#[cfg(test)]
mod tests {
    use super::super::indexes::Indexes;
    use super::*;
    use crate::rooms::Who;
    use tar::{Builder, Header};

    /// Of enough memory.
    fn share() -> Share {
        Indexes::new(usize::MAX).begin(Who::new(None, None))
    }

    /// Reads an archive that nobody stops.
    fn unpack(dir: &Path, stream: impl Read) -> Result<ContextIndex> {
        super::unpack(dir, stream, share(), &CancellationToken::new()).map(|context| context.index)
    }

    fn archive(members: &[(EntryType, &str, &str)]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (kind, name, content) in members {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o640);
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            let is_file = *kind == EntryType::Regular;
            header.set_size(if is_file { content.len() as u64 } else { 0 });
            if !is_file {
                header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
            }
            header.set_cksum();
            builder.append(&header, if is_file { content.as_bytes() } else { b"" }).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn contents_are_kept_by_digest() {
        let dir = tempfile::Builder::new().prefix("atoll-context").tempdir().unwrap();
        let tar = archive(&[
            (EntryType::Regular, "./a/b", "one"),
            (EntryType::Link, "c", "a/b"),
            (EntryType::Symlink, "d", "a"),
            (EntryType::Directory, "a", ""),
        ]);
        let index = unpack(dir.path(), &tar[..]).unwrap();
        let Entry::File { mode, size, digest } = &index.entries["a/b"] else { panic!("{index:?}") };
        assert_eq!((*mode, *size), (0o640, 3));
        assert_eq!(fs::read(content_path(dir.path(), digest)).unwrap(), b"one");
        assert_eq!(index.entries["c"], index.entries["a/b"]);
        assert_eq!(index.entries["a"], Entry::Directory { mode: 0o640 });
    }

    #[tokio::test]
    async fn an_archive_is_kept_without_a_name_and_read_from_its_beginning() {
        let dir = tempfile::Builder::new().prefix("atoll-context").tempdir().unwrap();
        let tar = archive(&[(EntryType::Regular, "a", "one")]);
        let received = receive(dir.path(), &tar[..]).await.unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let index = unpack(dir.path(), buffered(received)).unwrap();
        assert!(matches!(index.entries["a"], Entry::File { size: 3, .. }), "{index:?}");
        let broken = tokio_util::io::StreamReader::new(futures::stream::iter([
            Ok(&tar[..10]),
            Err(io::Error::other(Error::new(Code::Timeout, "the request's body stopped coming"))),
        ]));
        assert_eq!(receive(dir.path(), broken).await.unwrap_err().code, Code::Timeout);
    }

    #[test]
    fn hostile_archives() {
        use EntryType::{Directory, Fifo, Link, Regular, Symlink};
        for members in [
            &[(Regular, "../x", "")][..],
            &[(Regular, "/x", "")],
            &[(Regular, "a/../../x", "")],
            &[(Fifo, "x", "")],
            &[(Link, "x", "../../etc/passwd")],
            &[(Link, "x", "nothing")],
            &[(Symlink, "l", "/tmp"), (Regular, "l/x", "")],
            &[(Regular, "f", ""), (Directory, "f/d", "")],
            &[(Regular, "d/f", ""), (Regular, "d", "")],
        ] {
            let dir = tempfile::Builder::new().prefix("atoll-context").tempdir().unwrap();
            let error = unpack(dir.path(), &archive(members)[..]).unwrap_err();
            assert_eq!(error.code, Code::BuildContextInvalid, "{members:?}: {error}");
        }
        let dir = tempfile::Builder::new().prefix("atoll-context").tempdir().unwrap();
        assert!(unpack(dir.path(), &b"no archive at all, but long enough to be one"[..]).is_err());
    }
    /// Stops something when it is read.
    struct Stops(CancellationToken);

    impl Read for Stops {
        fn read(&mut self, _buf: &mut [u8]) -> io::Result<usize> {
            self.0.cancel();
            Ok(0)
        }
    }

    #[test]
    fn what_is_not_wanted_any_more_is_read_no_further() {
        let dir = tempfile::Builder::new().prefix("atoll-context").tempdir().unwrap();
        let tar = archive(&[(EntryType::Regular, "a", "one")]);
        let (stop, stopped) = (CancellationToken::new(), CancellationToken::new());
        stopped.cancel();
        assert_eq!(
            super::unpack(dir.path(), &tar[..], share(), &stopped).unwrap_err().code,
            Code::InvalidState
        );
        // In the middle of the content.
        let (begins, rest) = tar.split_at(513);
        let stream = Read::chain(begins, Stops(stop.clone())).chain(rest);
        assert_eq!(super::unpack(dir.path(), stream, share(), &stop).unwrap_err().code, Code::InvalidState);
    }

    #[test]
    fn names_have_so_many_bytes_together() {
        let mut builder = Builder::new(Vec::new());
        for n in 10..30 {
            let mut header = Header::new_gnu();
            header.set_mode(0o644);
            header.set_size(0);
            // Two thousand directories, whose names have as many bytes each, on average.
            builder.append_data(&mut header, format!("{n}{}", "/a".repeat(2000)), io::empty()).unwrap();
        }
        let tar = builder.into_inner().unwrap();
        let dir = tempfile::Builder::new().prefix("atoll-context").tempdir().unwrap();
        let error = unpack(dir.path(), &tar[..]).unwrap_err();
        assert!(error.code == Code::TooLarge && error.message.contains("names"), "{error}");
        assert!(tar.len() < 1 << 20, "of a small archive");
    }
}
