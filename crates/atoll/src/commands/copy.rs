//! `cp`: files and directories into and out of a sandbox.
//!
//! As with other tools: a destination that is a directory receives the source under its own name,
//! otherwise the destination is the new name. Directories travel as tar, files as they are.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use atoll_api::FileKind;
use atoll_build::Ignore;
use atoll_client::{Client, Download, WriteFile};
use atoll_core::exec::OutputStream;
use atoll_core::{Code, Error};
use tokio::io::AsyncWriteExt as _;

use super::image::Upload;
use crate::archive::{self, Extracted};
use crate::cli::CopyArgs;
use crate::failure::{Failure, Result};
use crate::output::Printer;
use crate::progress;

/// One side of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Local(PathBuf),
    /// A tar on standard input or output.
    Tar,
    Sandbox {
        sandbox: String,
        path: String,
    },
}

/// `name:/path` is in a sandbox if no `/` comes before the colon.
fn parse(text: &str) -> Result<Place> {
    if text == "-" {
        return Ok(Place::Tar);
    }
    match text.split_once(':') {
        Some((sandbox, path)) if !sandbox.is_empty() && !sandbox.contains('/') => {
            if !path.starts_with('/') {
                return Err(Failure::Usage(format!(
                    "'{text}': the path in a sandbox must be absolute (a local file: write ./{text})"
                )));
            }
            Ok(Place::Sandbox { sandbox: sandbox.to_owned(), path: path.to_owned() })
        }
        _ if text.is_empty() => Err(Failure::Usage("an empty path".to_owned())),
        _ => Ok(Place::Local(PathBuf::from(text))),
    }
}

/// `atoll cp`
pub(super) async fn copy(client: &Client, printer: Printer, args: CopyArgs) -> Result<()> {
    let copy = Copy { client, printer, user: args.user };
    match (parse(&args.source)?, parse(&args.destination)?) {
        (Place::Local(source), Place::Sandbox { sandbox, path }) => copy.up(&source, &sandbox, &path).await,
        (Place::Tar, Place::Sandbox { sandbox, path }) => {
            let upload = Upload::stdin(printer)?;
            copy.unpack(upload, &sandbox, &path).await
        }
        (Place::Sandbox { sandbox, path }, Place::Local(destination)) => {
            copy.down(&sandbox, &path, &destination).await
        }
        (Place::Sandbox { sandbox, path }, Place::Tar) => copy.down_tar(&sandbox, &path).await,
        (Place::Sandbox { .. }, Place::Sandbox { .. }) => {
            Err(Failure::Usage("both are in a sandbox: copy through '-' or a local path".to_owned()))
        }
        (Place::Local(_) | Place::Tar, Place::Local(_) | Place::Tar) => {
            Err(Failure::Usage("neither is in a sandbox: write one as SANDBOX:/PATH".to_owned()))
        }
    }
}

/// Puts the content of a local directory into a directory of a sandbox that is there already.
pub(super) async fn content(
    client: &Client,
    printer: Printer,
    local: &Path,
    sandbox: &str,
    path: &str,
) -> Result<()> {
    let (content, bar, source) = Upload::context(printer, local.to_owned(), Ignore::default()).split();
    source.explain(client.write_archive(sandbox, path, None, content).await).await?;
    bar.finish_and_clear();
    Ok(())
}

struct Copy<'a> {
    client: &'a Client,
    printer: Printer,
    user: Option<String>,
}

/// The path without slashes at its end, in two parts.
fn split(path: &str) -> (&str, &str) {
    let path = path.trim_end_matches('/');
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    (if parent.is_empty() { "/" } else { parent }, name)
}

impl Copy<'_> {
    /// The kind of file at a path in the sandbox; `None` if there is nothing.
    async fn kind(&self, sandbox: &str, path: &str) -> Result<Option<FileKind>> {
        match self.client.stat_file(sandbox, path).await {
            Ok(entry) => Ok(Some(entry.kind)),
            Err(error) if error.code() == Some(Code::FileNotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn up(&self, source: &Path, sandbox: &str, path: &str) -> Result<()> {
        let what = || format!("cannot read {}", source.display());
        let meta = tokio::fs::metadata(source).await.map_err(|error| Failure::io(what(), error))?;
        let name = local_name(source)?;
        let into = self.kind(sandbox, path).await?;
        let is_directory = into == Some(FileKind::Directory) || path == "/";
        if path.ends_with('/') && !is_directory {
            return Err(Failure::plain(
                Code::NotADirectory,
                format!("{path} is not a directory in the sandbox"),
            ));
        }
        if meta.is_dir() {
            let (parent, new_name) = if is_directory { (path, name.as_os_str()) } else { as_os(split(path)) };
            if !is_directory && into.is_some() {
                return Err(Failure::plain(Code::NotADirectory, format!("{path} is a file in the sandbox")));
            }
            let upload = Upload::directory(self.printer, source.to_owned(), PathBuf::from(new_name));
            return self.unpack(upload, sandbox, parent).await;
        }
        let path = if is_directory {
            let name = name.to_str().ok_or_else(|| {
                Failure::plain(Code::PathInvalid, format!("the name of {} is not UTF-8", source.display()))
            })?;
            format!("{}/{name}", path.trim_end_matches('/'))
        } else {
            path.to_owned()
        };
        let mode = Some(format!("{:04o}", meta.permissions().mode() & 0o777));
        let write = WriteFile { mode, user: self.user.clone(), parents: false };
        let (content, bar, origin) = Upload::file(self.printer, source).await?.split();
        let written = origin.explain(self.client.write_file(sandbox, &path, &write, content).await).await?;
        bar.finish_and_clear();
        self.printer.result(&written, String::new)
    }

    async fn unpack(&self, upload: Upload, sandbox: &str, path: &str) -> Result<()> {
        let (content, bar, source) = upload.split();
        let sent = self.client.write_archive(sandbox, path, self.user.as_deref(), content).await;
        let written = source.explain(sent).await?;
        bar.finish_and_clear();
        self.printer.result(&written, String::new)
    }

    async fn down(&self, sandbox: &str, path: &str, destination: &Path) -> Result<()> {
        let entry = self.client.stat_file(sandbox, path).await?;
        let into_directory = destination.is_dir();
        if destination.as_os_str().as_bytes().ends_with(b"/") && !into_directory {
            return Err(Failure::plain(
                Code::NotADirectory,
                format!("{} is not a directory", destination.display()),
            ));
        }
        let (_, name) = split(path);
        if matches!(name, "" | "." | "..") {
            return Err(Failure::Usage(format!("'{path}' has no name to copy it under")));
        }
        let target = if into_directory { destination.join(name) } else { destination.to_owned() };
        match entry.kind {
            FileKind::Directory => {
                let download = self.client.read_archive(sandbox, path).await?;
                self.extract(download, &target).await
            }
            FileKind::File | FileKind::Symlink => {
                let mode = u32::from_str_radix(&entry.mode, 8).unwrap_or(0o644) & 0o777;
                // A link is followed, so its own permissions say nothing.
                let mode = if entry.kind == FileKind::Symlink { 0o644 } else { mode };
                let download = self.client.read_file(sandbox, path, None).await?;
                self.save(download, &target, mode).await
            }
            FileKind::Other => Err(Failure::Plain(
                Error::new(Code::InvalidArgument, format!("{path} is neither file nor directory"))
                    .hint("devices, sockets and pipes cannot be copied"),
            )),
        }
    }

    async fn save(&self, download: Download, target: &Path, mode: u32) -> Result<()> {
        let bytes = save(self.printer, download, target, mode).await?;
        self.printer.result(&atoll_api::FileWritten { bytes }, String::new)
    }

    async fn extract(&self, mut download: Download, target: &Path) -> Result<()> {
        let what = || format!("cannot write to {}", target.display());
        let (parent, name) = target_parts(target)?;
        let root = std::fs::File::open(&parent).map_err(|error| Failure::io(what(), error))?;
        let bar = progress::bytes_bar(self.printer, &name.to_string_lossy(), None);
        let (queue, reader) = archive::reader();
        let task = tokio::task::spawn_blocking(move || archive::extract(reader, root.as_fd(), Some(&name)));
        while let Some(piece) = download.next().await {
            if let Ok(piece) = &piece {
                bar.inc(piece.len() as u64);
            }
            let failed = piece.is_err();
            let sent = queue.send(piece.map_err(io::Error::other)).await;
            if failed || sent.is_err() {
                break;
            }
        }
        drop(queue);
        let extracted = task
            .await
            .map_err(|error| Failure::io(what(), io::Error::other(error)))?
            .map_err(|error| Failure::io(what(), io::Error::other(error)))?;
        bar.finish_and_clear();
        self.report(&extracted)
    }

    fn report(&self, extracted: &Extracted) -> Result<()> {
        for name in &extracted.skipped {
            self.printer.warn(&format!("left out {name}: neither file, directory nor link"));
        }
        let Extracted { members, bytes, skipped } = extracted;
        let summary = serde_json::json!({ "members": members, "bytes": bytes, "skipped": skipped });
        self.printer.result(&summary, String::new)
    }

    async fn down_tar(&self, sandbox: &str, path: &str) -> Result<()> {
        if self.printer.is_json() {
            return Err(Failure::Usage("a tar on standard output is no JSON".to_owned()));
        }
        let mut download = self.client.read_archive(sandbox, path).await?;
        while let Some(piece) = download.next().await {
            self.printer.exec_output(OutputStream::Stdout, piece?).await?;
        }
        Ok(())
    }
}

fn as_os<'a>((parent, name): (&'a str, &'a str)) -> (&'a str, &'a OsStr) {
    (parent, OsStr::new(name))
}

/// The name under which a local path is copied; `.` has one too.
fn local_name(path: &Path) -> Result<OsString> {
    let what = || format!("cannot read {}", path.display());
    let full = match path.file_name() {
        Some(name) => return Ok(name.to_owned()),
        None => path.canonicalize().map_err(|error| Failure::io(what(), error))?,
    };
    full.file_name()
        .map(OsStr::to_owned)
        .ok_or_else(|| Failure::Usage(format!("'{}' has no name to copy it under", path.display())))
}

fn target_parts(target: &Path) -> Result<(PathBuf, OsString)> {
    let name = local_name(target)
        .map_err(|_nameless| Failure::Usage(format!("'{}' has no name to copy to", target.display())))?;
    let parent = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    Ok((parent, name))
}

/// A file that is removed unless it is kept.
struct Partial {
    path: PathBuf,
    kept: bool,
}

impl Partial {
    fn beside(target: &Path) -> Self {
        let mut name = OsString::from(".");
        name.push(target.file_name().unwrap_or_default());
        name.push(format!(".atoll-{}", std::process::id()));
        Self { path: target.with_file_name(name), kept: false }
    }

    fn keep(mut self, target: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, target)?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.kept {
            // If this fails, a hidden file is left that no message names; nothing more can be done.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// Writes beside the target and renames, so that a broken copy leaves the old file alone. Gives how much it was.
pub(super) async fn save(printer: Printer, mut download: Download, target: &Path, mode: u32) -> Result<u64> {
    let what = || format!("cannot write {}", target.display());
    let bar = progress::bytes_bar(
        printer,
        &target.file_name().unwrap_or_default().to_string_lossy(),
        download.length,
    );
    let partial = Partial::beside(target);
    let options = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).to_owned();
    let file = options.open(&partial.path).map_err(|error| Failure::io(what(), error))?;
    let mut file = tokio::fs::File::from_std(file);
    let mut bytes = 0_u64;
    while let Some(piece) = download.next().await {
        let piece = piece?;
        file.write_all(&piece).await.map_err(|error| Failure::io(what(), error))?;
        bytes += piece.len() as u64;
        bar.inc(piece.len() as u64);
    }
    file.flush().await.map_err(|error| Failure::io(what(), error))?;
    partial.keep(target).map_err(|error| Failure::io(what(), error))?;
    bar.finish_and_clear();
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let sandbox = |path: &str| Place::Sandbox { sandbox: "box".into(), path: path.into() };
        assert_eq!(parse("box:/a b").unwrap(), sandbox("/a b"));
        assert_eq!(parse("box:/a:b").unwrap(), sandbox("/a:b"));
        assert_eq!(parse("./box:/a").unwrap(), Place::Local("./box:/a".into()));
        assert_eq!(parse("/x:y").unwrap(), Place::Local("/x:y".into()));
        assert_eq!(parse("-").unwrap(), Place::Tar);
        assert!(matches!(parse("box:a"), Err(Failure::Usage(_))));
        assert!(matches!(parse(""), Err(Failure::Usage(_))));
    }

    #[test]
    fn remote_paths_in_two() {
        assert_eq!(split("/a/b/"), ("/a", "b"));
        assert_eq!(split("/a"), ("/", "a"));
        assert_eq!(split("/"), ("/", ""));
    }
}
