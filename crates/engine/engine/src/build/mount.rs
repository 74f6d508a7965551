//! What a step sees and what it makes does not keep: files, and secrets.
//!
//! No process inside a container may mount, so files are put in their place before the command and taken away after it,
//! before the snapshot. A secret is written to the sandbox's memory only (`/dev/shm`), never to its disk, whose freed
//! blocks a snapshot would keep; in its place stands a link. If a step's command leaves a copy of a secret, nothing can
//! prevent that: the command is told the secret.

use std::io::Write as _;

use atoll_build::mounts::Mounted;
use atoll_build::place::Place;
use atoll_build::plan::{Step, Target};
use atoll_core::error::shorten;
use atoll_core::id::SandboxId;
use atoll_core::secret::Secret;
use atoll_core::{Code, Error, Result};
use atoll_guest_protocol::client::GuestError;
use atoll_guest_protocol::messages::{FileKind, List, Mkdir, Reason, Remove, Stat};
use tar::{Builder, EntryType};

use super::base::Sources;
use super::copy::{feed, header};
use super::run::{Run, at};
use crate::clock::random;
use crate::errors::guest_error;
use crate::sandbox::GuestLease;

/// Where a sandbox has files in memory.
const IN_MEMORY: &str = "/dev/shm";
/// Names of a directory that are looked at at once.
const ENTRIES_MAX_COUNT: u32 = 1000;
/// How often a directory that is to be empty is looked at: a million names are taken away.
const EMPTYING_ROUNDS_MAX: u32 = 1000;

/// What was put in place for a command.
#[derive(Debug, Default)]
pub(super) struct Mounts {
    /// What goes with everything below.
    trees: Vec<String>,
    /// Directories that were made and go if nothing else is in them, the deepest last.
    directories: Vec<String>,
    /// Directories that were there, and empty.
    emptied: Vec<String>,
    /// Variables, and the files that hold their values.
    variables: Vec<(String, String)>,
}

impl Mounts {
    /// The command, told its variables. Their values stand in no list of arguments, so that no record has them.
    pub(super) fn argv(&self, argv: &[String]) -> Vec<String> {
        if self.variables.is_empty() {
            return argv.to_vec();
        }
        let mut line = String::new();
        for (name, file) in &self.variables {
            line.extend([name.as_str(), "=$(cat ", file, ") || exit; export ", name, "; "]);
        }
        line.push_str("exec \"$@\"");
        let shell = ["/bin/sh", "-c", line.as_str(), "sh"].map(str::to_owned);
        shell.into_iter().chain(argv.iter().cloned()).collect()
    }
}

impl Run<'_> {
    /// Puts in place what a command is to see.
    pub(super) async fn mount(
        &self,
        step: &Step,
        sandbox: &SandboxId,
        user: &str,
        mounts: &[Mounted],
        sources: &Sources<'_>,
    ) -> Result<Mounts> {
        let mut made = Mounts::default();
        if mounts.is_empty() {
            return Ok(made);
        }
        let lease = self.engine.guest(sandbox).await?;
        let mut secrets = String::new();
        for (index, mount) in mounts.iter().enumerate() {
            match mount {
                Mounted::Context { selection, target } => {
                    made.room(&lease, target, selection.single).await?;
                    self.copy_context(sandbox, selection, &target_of(target)).await?;
                }
                Mounted::From { from, source, target } => {
                    made.room(&lease, target, false).await?;
                    let files = [source.clone()];
                    self.copy_from(sandbox, &sources.of(from)?, &files, &target_of(target)).await?;
                }
                Mounted::Secret { id, target, env, mode, owner, required } => {
                    let Some(value) = self.secret(step.place, id, *required).await? else { continue };
                    if secrets.is_empty() {
                        secrets = made.secrets(&lease).await?;
                    }
                    if let Some(target) = target {
                        let file = format!("{secrets}/{index}");
                        put(&lease, &file, owner, *mode, &value).await?;
                        made.room(&lease, target, true).await?;
                        link(&lease, target, &file).await?;
                    }
                    if let Some(name) = env {
                        let file = format!("{secrets}/{index}-{name}");
                        put(&lease, &file, user, 0o400, &value).await?;
                        made.variables.push((name.clone(), file));
                    }
                }
            }
        }
        Ok(made)
    }

    /// The value of a secret; nothing for one that was not given and need not be.
    async fn secret(&self, place: Place, id: &str, required: bool) -> Result<Option<Secret>> {
        match self.live.secrets.get(id) {
            Some(value) => Ok(Some(value.clone())),
            None if required => {
                Err(Error::new(Code::InvalidArgument, format!("the build was not given the secret '{id}'"))
                    .hint("give it with --build-secret id=NAME,src=FILE, or as 'secrets' in the request"))
            }
            None => {
                self.note(format!(
                    "{place}: the build was not given the secret '{id}', the command runs without it"
                ))
                .await?;
                Ok(None)
            }
        }
    }

    /// Takes away what was put in place.
    pub(super) async fn unmount(&self, step: &Step, sandbox: &SandboxId, made: Mounts) -> Result<()> {
        if made.trees.is_empty() && made.emptied.is_empty() {
            return Ok(());
        }
        let placed = |error| at(step.place, error);
        let lease = self.engine.guest(sandbox).await?;
        for path in made.trees {
            remove(&lease, path, true).await.map_err(placed)?;
        }
        for directory in made.emptied {
            empty(&lease, &directory).await.map_err(placed)?;
        }
        // The command may have written beside what was mounted: that stays.
        for directory in made.directories.into_iter().rev() {
            if entries(&lease, &directory).await.is_ok_and(|entries| entries.is_empty()) {
                remove(&lease, directory, false).await.map_err(placed)?;
            }
        }
        Ok(())
    }
}

impl Mounts {
    /// Makes the way to a place at which something will be seen. What is there already would be lost.
    async fn room(&mut self, lease: &GuestLease, target: &str, single: bool) -> Result<()> {
        let mut missing = Vec::new();
        for (at, _) in target.match_indices('/').skip(1) {
            if !missing.is_empty() || kind(lease, &target[..at]).await?.is_none() {
                missing.push(target[..at].to_owned());
            }
        }
        if let Some(parent) = missing.last() {
            let request = Mkdir { path: parent.clone(), mode: 0, user: "0:0".to_owned(), parents: true };
            lease.mkdir(request).await.map_err(guest_error)?;
        }
        self.directories.extend(missing);
        match kind(lease, target).await? {
            None => self.trees.push(target.to_owned()),
            Some(FileKind::Directory) if !single && entries(lease, target).await?.is_empty() => {
                self.emptied.push(target.to_owned());
            }
            Some(_) => {
                let message = format!("'{}' is there already: a mount cannot hide it", shorten(target));
                return Err(Error::new(Code::FileExists, message)
                    .hint("mount at a path that is not there, or at an empty directory"));
            }
        }
        Ok(())
    }

    /// A directory in memory, whose name no process inside could know before.
    async fn secrets(&mut self, lease: &GuestLease) -> Result<String> {
        let path = format!("{IN_MEMORY}/{:016x}{:016x}", random()?, random()?);
        let request = Mkdir { path: path.clone(), mode: 0o711, user: "0:0".to_owned(), parents: false };
        lease.mkdir(request).await.map_err(guest_error)?;
        self.trees.push(path.clone());
        Ok(path)
    }
}

fn target_of(path: &str) -> Target {
    Target { path: path.to_owned(), directory: false, chown: None, chmod: None }
}

async fn kind(lease: &GuestLease, path: &str) -> Result<Option<FileKind>> {
    match lease.stat(Stat { path: path.to_owned(), no_follow: true }).await {
        Ok(info) => Ok(Some(info.kind())),
        Err(GuestError::Failure { reason: Reason::NotFound, .. }) => Ok(None),
        Err(error) => Err(guest_error(error)),
    }
}

/// Names in a directory: of one that is full some.
async fn entries(lease: &GuestLease, path: &str) -> Result<Vec<String>> {
    let list = List { path: path.to_owned(), depth: 1, max_entries: ENTRIES_MAX_COUNT };
    let (entries, _cut) = lease.list(list).await.map_err(guest_error)?;
    Ok(entries.into_iter().map(|entry| entry.path).collect())
}

/// Removes what is in a directory. A process that a command left behind may go on writing there: it does not hold the build up.
async fn empty(lease: &GuestLease, directory: &str) -> Result<()> {
    for _ in 0..EMPTYING_ROUNDS_MAX {
        let left = entries(lease, directory).await?;
        if left.is_empty() {
            return Ok(());
        }
        for entry in left {
            remove(lease, format!("{directory}/{entry}"), true).await?;
        }
    }
    Err(Error::new(
        Code::BuildStepFailed,
        format!("{directory} does not get empty: something that the command started still writes to it"),
    ))
}

async fn remove(lease: &GuestLease, path: String, recursive: bool) -> Result<()> {
    match lease.remove(Remove { path, recursive }).await {
        Ok(()) | Err(GuestError::Failure { reason: Reason::NotFound, .. }) => Ok(()),
        Err(error) => Err(guest_error(error)),
    }
}

/// Writes a file that only its owner is told.
async fn put(lease: &GuestLease, path: &str, owner: &str, mode: u32, value: &Secret) -> Result<()> {
    let (name, value) = (path.trim_start_matches('/').to_owned(), value.clone());
    feed(lease, owner.to_owned(), move |out| {
        let mut tar = Builder::new(out);
        let content = value.reveal().as_bytes();
        tar.append_data(&mut header(EntryType::Regular, mode, content.len() as u64), name, content)?;
        tar.into_inner()?.flush()
    })
    .await
}

async fn link(lease: &GuestLease, path: &str, to: &str) -> Result<()> {
    let (name, to) = (path.trim_start_matches('/').to_owned(), to.to_owned());
    feed(lease, "0:0".to_owned(), move |out| {
        let mut tar = Builder::new(out);
        tar.append_link(&mut header(EntryType::Symlink, 0o777, 0), name, to)?;
        tar.into_inner()?.flush()
    })
    .await
}
