//! Copying into a step's sandbox, from the context or from another sandbox. What travels is a tar stream, which
//! the guest unpacks beneath its own root.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_build::Budget;
use atoll_build::context::Entry;
use atoll_build::copy::{Member, MemberSource, Selection, absolute, is_pattern, matches};
use atoll_build::plan::Target;
use atoll_core::error::shorten;
use atoll_core::id::SandboxId;
use atoll_core::limits::BUILD_CONTEXT_MAX_BYTES;
use atoll_core::{Code, Error, Result};
use atoll_guest_protocol::client::GuestError;
use atoll_guest_protocol::messages::{FileInfo, FileKind, List, Mkdir, Reason, Stat, Unpack};
use bytes::BytesMut;
use futures::stream;
use tar::{Builder, EntryType, Header};
use tokio::io::{AsyncReadExt as _, DuplexStream};
use tokio_util::io::{StreamReader, SyncIoBridge};

use super::base::FileSystem;
use super::context::content_path;
use super::inputs::Wanted;
use super::run::Run;
use crate::archive::members;
use crate::errors::guest_error;
use crate::sandbox::GuestLease;

/// Bytes between the two sides of a pipe.
const PIPE_BYTES: usize = 256 << 10;
/// Bytes sent to a guest at once.
const PIECE_BYTES: usize = 64 << 10;
/// Owner of what says no owner.
pub(super) const ROOT: &str = "0:0";
/// Links that a source may lead through.
const LINKS_MAX_COUNT: u32 = 40;
/// Entries that a pattern of a source may look at.
const LIST_MAX_COUNT: u32 = 100_000;

/// Where members go: names in the archive begin with `directory`, which is relative to the root.
#[derive(Debug, Clone)]
pub(super) struct Place {
    directory: PathBuf,
    /// The new name of a single file.
    pub(super) rename: Option<String>,
    pub(super) chmod: Option<u32>,
}

impl Place {
    pub(super) fn of(&self, name: &Path) -> PathBuf {
        match &self.rename {
            Some(rename) => self.directory.join(rename),
            None => self.directory.join(name),
        }
    }
}

impl Run<'_> {
    pub(super) async fn copy_context(
        &self,
        sandbox: &SandboxId,
        selection: &Selection,
        to: &Target,
    ) -> Result<()> {
        let lease = self.engine.guest(sandbox).await?;
        let place = place(&lease, to, selection.single).await?;
        let (members, contents) = (selection.members.clone(), self.context_dir());
        let owner = to.chown.clone().unwrap_or_else(|| ROOT.to_owned());
        feed(&lease, owner, move |out| write_members(out, &members, &contents, &place)).await
    }

    /// From another stage or image: what is copied keeps its owner there, unless another one is asked for.
    pub(super) async fn copy_from(
        &self,
        sandbox: &SandboxId,
        from: &FileSystem,
        sources: &[String],
        to: &Target,
    ) -> Result<()> {
        let other = self.sandbox(from).await?;
        let copied = self.copy_between(&other, sandbox, sources, to).await;
        self.engine.delete_sandbox(&other).await?;
        copied
    }

    async fn copy_between(
        &self,
        from: &SandboxId,
        sandbox: &SandboxId,
        sources: &[String],
        to: &Target,
    ) -> Result<()> {
        let source = self.engine.guest(from).await?;
        let lease = self.engine.guest(sandbox).await?;
        for pattern in sources {
            for path in expand(&source, pattern).await? {
                let (real, info) = resolve(&source, &path).await?;
                let tree = info.kind() == FileKind::Directory;
                let mut place = place(&lease, to, !tree).await?;
                if !tree && place.rename.is_none() {
                    place.rename = path.rsplit('/').next().map(str::to_owned);
                }
                let packed = source.pack(&real).await.map_err(guest_error)?;
                let pieces = stream::try_unfold(packed, |mut packed| async move {
                    let piece = packed.next().await.map_err(|error| io::Error::other(guest_error(error)))?;
                    Ok::<_, io::Error>(piece.map(|piece| (piece, packed)))
                });
                let reader = SyncIoBridge::new(StreamReader::new(Box::pin(pieces)));
                let owner = to.chown.clone().unwrap_or_default();
                feed(&lease, owner, move |out| rewrite(reader, out, &place, tree)).await?;
            }
        }
        Ok(())
    }
}

/// Sends what `make` writes to the guest, which unpacks it at its root.
pub(super) async fn feed(
    lease: &GuestLease,
    user: String,
    make: impl FnOnce(SyncIoBridge<DuplexStream>) -> io::Result<()> + Send + 'static,
) -> Result<()> {
    let mut writer = lease.unpack(Unpack { path: "/".to_owned(), user }).await.map_err(guest_error)?;
    let (mut ours, theirs) = tokio::io::duplex(PIPE_BYTES);
    let making = tokio::task::spawn_blocking(move || make(SyncIoBridge::new(theirs)));
    loop {
        let mut piece = BytesMut::with_capacity(PIECE_BYTES);
        // A pipe in memory: reading it does not fail.
        if ours.read_buf(&mut piece).await.unwrap_or_default() == 0 {
            break;
        }
        writer.send(piece.freeze()).await.map_err(guest_error)?;
    }
    // An end that is no end must not pass for one.
    match making.await {
        Ok(Ok(())) => writer.finish().await.map(drop).map_err(guest_error),
        Ok(Err(error)) => Err(from_io(&error)),
        Err(error) => Err(from_io(&io::Error::other(error))),
    }
}

fn from_io(error: &io::Error) -> Error {
    if let Some(inner) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        return inner.clone();
    }
    tracing::error!(%error, "copying into a build's sandbox failed");
    Error::new(Code::Internal, "the files could not be copied")
}

/// Where things go. A single file gets the destination's last part as its name, unless that is a directory.
pub(super) async fn place(lease: &GuestLease, to: &Target, single: bool) -> Result<Place> {
    let there = match lease.stat(Stat { path: to.path.clone(), no_follow: false }).await {
        Ok(info) => Some(info.kind() == FileKind::Directory),
        Err(GuestError::Failure { reason: Reason::NotFound, .. }) => None,
        Err(error) => return Err(guest_error(error)),
    };
    let relative = Path::new(to.path.trim_start_matches('/'));
    if single && !to.directory && there != Some(true) {
        let rename = relative.file_name().map(|name| name.to_string_lossy().into_owned());
        let directory = relative.parent().unwrap_or(Path::new("")).to_owned();
        return Ok(Place { directory, rename, chmod: to.chmod });
    }
    if there == Some(false) {
        return Err(Error::new(Code::NotADirectory, format!("'{}' is not a directory", shorten(&to.path))));
    }
    if there.is_none() {
        let user = to.chown.clone().unwrap_or_else(|| ROOT.to_owned());
        let request = Mkdir { path: to.path.clone(), mode: 0, user, parents: true };
        lease.mkdir(request).await.map_err(guest_error)?;
    }
    Ok(Place { directory: relative.to_owned(), rename: None, chmod: to.chmod })
}

fn write_members(out: impl Write, members: &[Member], contents: &Path, place: &Place) -> io::Result<()> {
    let mut tar = Builder::new(out);
    for member in members {
        let name = place.of(Path::new(&member.name));
        match &member.from {
            MemberSource::Inline(content) => {
                let mut header =
                    header(EntryType::Regular, place.chmod.unwrap_or(0o644), content.len() as u64);
                tar.append_data(&mut header, name, content.as_bytes())?;
            }
            MemberSource::Context(_, Entry::Directory { mode }) => {
                let mut header = header(EntryType::Directory, place.chmod.unwrap_or(*mode), 0);
                tar.append_data(&mut header, name, io::empty())?;
            }
            MemberSource::Context(_, Entry::File { mode, size, digest }) => {
                let mut header = header(EntryType::Regular, place.chmod.unwrap_or(*mode), *size);
                tar.append_data(&mut header, name, File::open(content_path(contents, digest))?)?;
            }
            MemberSource::Context(_, Entry::Link { target }) => {
                let mut header = header(EntryType::Symlink, 0o777, 0);
                tar.append_link(&mut header, name, target)?;
            }
        }
    }
    tar.into_inner()?.flush()
}

/// Without times of the context, so that the same key always gives the same files.
pub(super) fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// A guest's archive with other names. It is hostile: bounded here, and unpacked beneath a root.
fn rewrite(from: impl Read, out: impl Write, place: &Place, tree: bool) -> io::Result<()> {
    let mut tar = Builder::new(out);
    let mut bytes = 0_u64;
    members(
        from,
        |error| error,
        |entry| {
            let path = entry.path_bytes().into_owned();
            let below: PathBuf = Path::new(OsStr::from_bytes(&path)).components().skip(1).collect();
            if tree == below.as_os_str().is_empty() {
                // The directory itself; or, of a single file, something that cannot be.
                return Ok(());
            }
            let name = place.of(&below);
            let mut header = entry.header().clone();
            if let Some(mode) = place.chmod {
                header.set_mode(mode);
            }
            bytes = bytes.saturating_add(entry.size());
            if bytes > BUILD_CONTEXT_MAX_BYTES {
                let error = Error::new(Code::TooLarge, "more than 4 GiB are to be copied at once");
                return Err(io::Error::other(error));
            }
            match entry.link_name_bytes().map(|link| link.into_owned()) {
                Some(link) if header.entry_type() == EntryType::Symlink => {
                    tar.append_link(&mut header, name, Path::new(OsStr::from_bytes(&link)))
                }
                _ => tar.append_data(&mut header, name, entry),
            }
        },
    )?;
    tar.into_inner()?.flush()
}

/// The paths that a source means.
async fn expand(lease: &GuestLease, pattern: &str) -> Result<Vec<String>> {
    if !is_pattern(pattern) {
        return Ok(vec![pattern.to_owned()]);
    }
    let parts: Vec<&str> = pattern.trim_start_matches('/').split('/').collect();
    let plain = parts.iter().take_while(|part| !is_pattern(part)).count();
    let (base, rest) = (format!("/{}", parts[..plain].join("/")), parts[plain..].join("/"));
    let depth = u32::try_from(parts.len() - plain).unwrap_or(u32::MAX);
    let list = List { path: base.clone(), depth, max_entries: LIST_MAX_COUNT };
    let (entries, cut) = lease.list(list).await.map_err(|error| missing(error, pattern))?;
    if cut {
        return Err(Error::new(Code::TooLarge, format!("too much lies below '{}'", shorten(&base))));
    }
    let found = matching(entries, base, rest).await?;
    if found.is_empty() {
        return Err(not_found(pattern));
    }
    Ok(found)
}

/// The paths of those entries below `base` that match. A thread of its own compares them, as it may take a while.
async fn matching(entries: Vec<FileInfo>, base: String, pattern: String) -> Result<Vec<String>> {
    let budget = Arc::<Budget>::default();
    let _wanted = Wanted(Arc::clone(&budget));
    let comparing = tokio::task::spawn_blocking(move || {
        let is_it = |entry: &FileInfo| !budget.is_spent() && matches(&pattern, &entry.path, &budget);
        let found: Vec<String> =
            entries.iter().filter(|entry| is_it(entry)).map(|entry| absolute(&base, &entry.path)).collect();
        (!budget.is_spent()).then_some(found)
    });
    let found = comparing.await.map_err(|error| from_io(&io::Error::other(error)))?;
    found.ok_or_else(|| Error::new(Code::TooLarge, "a pattern is too long for so many names"))
}

/// Follows links at the end of a path.
async fn resolve(lease: &GuestLease, path: &str) -> Result<(String, FileInfo)> {
    let mut real = path.to_owned();
    for _ in 0..LINKS_MAX_COUNT {
        let stat = Stat { path: real.clone(), no_follow: true };
        let info = lease.stat(stat).await.map_err(|error| missing(error, path))?;
        if info.kind() != FileKind::Symlink {
            return Ok((real, info));
        }
        let parent = real.rsplit_once('/').map_or("/", |(parent, _)| parent).to_owned();
        real = absolute(&parent, &info.target);
    }
    Err(Error::new(Code::PathInvalid, format!("'{}' leads through too many symbolic links", shorten(path))))
}

fn missing(error: GuestError, path: &str) -> Error {
    if matches!(error, GuestError::Failure { reason: Reason::NotFound, .. }) {
        return not_found(path);
    }
    guest_error(error)
}

fn not_found(path: &str) -> Error {
    Error::new(
        Code::BuildFileNotFound,
        format!("'{}' is not in the stage or image to copy from", shorten(path)),
    )
}
