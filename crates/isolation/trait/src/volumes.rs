//! Volumes as the host keeps them: made, copied, looked into, removed. The driver mounts them in instances
//! ([`crate::Plan::volumes`]).
//!
//! Unlike the disk of an instance a volume survives everything, also a power cut of the machine: data that a sandbox
//! synced is on the host's disk.

use std::fs::File;
use std::io;

use async_trait::async_trait;
use atoll_core::id::VolumeId;
use tokio::io::AsyncRead;

use crate::IsolationError;

/// A volume that an instance is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedVolume {
    /// The volume.
    pub id: VolumeId,
    /// Where, absolute, without `.` and `..`. Directories that are missing are made.
    pub path: String,
    /// Mounted so that nothing inside can write to it.
    pub read_only: bool,
    /// The directory of the volume that is mounted, relative, without `.` and `..`; all of it when absent. Nothing beside
    /// it can be reached from inside.
    pub subpath: Option<String>,
    /// Whether that directory is made when it is missing: `true` unless no sandbox may write to the volume.
    pub make: bool,
}

/// Space of a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VolumeUsage {
    /// Size as a sandbox sees it, bytes.
    pub total_bytes: u64,
    /// Used of it, bytes.
    pub used_bytes: u64,
    /// What it takes on the host, bytes; shared with copies and counted in full.
    pub stored_bytes: u64,
}

/// What a path in a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeFileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A socket, pipe or device.
    Other,
}

/// One entry of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeFile {
    /// Its name; the path that was asked for, when one was.
    pub path: String,
    /// What it is.
    pub kind: VolumeFileKind,
    /// Size, bytes.
    pub size: u64,
    /// Permission bits, `0o7777`.
    pub mode: u32,
    /// Owner, as every sandbox sees it.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last modification, milliseconds since the epoch.
    pub modified_ms: i64,
    /// Last reading, as far as it is recorded, milliseconds since the epoch.
    pub accessed_ms: i64,
    /// Last change of content or attributes, milliseconds since the epoch.
    pub changed_ms: i64,
    /// Where a link points.
    pub target: Option<String>,
}

/// How to write a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeWrite {
    /// Permission bits.
    pub mode: u32,
    /// Owner of the file and of directories that are made.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Make missing directories.
    pub parents: bool,
    /// Put it in the place of a file that is there; otherwise that is an error.
    pub replace: bool,
}

/// How to make a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeDirectory {
    /// Permission bits.
    pub mode: u32,
    /// Owner of it and of directories that are made above it.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Make missing directories above it; one that is there already is no error, and stays as it is.
    pub parents: bool,
}

/// What to change of a file or directory. What is absent stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VolumeChange {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
}

/// Why something could not be done to a volume.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// Its data is not there.
    #[error("there is no such volume")]
    Gone,
    /// The host refused.
    #[error(transparent)]
    Host(#[from] IsolationError),
    /// A file in it could not be read or written: what its file system says.
    #[error("{0}")]
    File(#[source] io::Error),
}

/// The volumes of an installation. Paths are relative to the volume's root; nothing leads out of it.
#[async_trait]
pub trait Volumes: Send + Sync + std::fmt::Debug {
    /// Makes an empty volume.
    ///
    /// # Errors
    /// [`VolumeError::Host`]; something may be left: call [`Self::remove`].
    async fn create(&self, id: &VolumeId, bytes: u64) -> Result<(), VolumeError>;

    /// Makes a volume with the content that another has at one moment, while it is in use.
    ///
    /// # Errors
    /// As [`Self::create`], and [`VolumeError::Gone`].
    async fn copy(&self, from: &VolumeId, to: &VolumeId) -> Result<(), VolumeError>;

    /// Sees to it that the directory of a volume that an instance is to have is there, if the instance gets only a part
    /// of the volume. No link is followed.
    ///
    /// # Errors
    /// Any [`VolumeError`].
    async fn prepare(&self, volume: &PlannedVolume) -> Result<(), VolumeError>;

    /// Removes everything that exists of a volume that no instance has mounted. Succeeds when there is nothing.
    ///
    /// # Errors
    /// [`VolumeError::Host`].
    async fn remove(&self, id: &VolumeId) -> Result<(), VolumeError>;

    /// Lets volumes go on that an earlier process left standing still. The server calls this before it waits for any
    /// process that may write to one.
    ///
    /// # Errors
    /// [`VolumeError::Host`].
    async fn recover(&self) -> Result<(), VolumeError>;

    /// Every volume that has something on the host.
    ///
    /// # Errors
    /// [`VolumeError::Host`].
    async fn list(&self) -> Result<Vec<VolumeId>, VolumeError>;

    /// Measures it.
    ///
    /// # Errors
    /// [`VolumeError::Gone`], [`VolumeError::Host`].
    async fn usage(&self, id: &VolumeId) -> Result<VolumeUsage, VolumeError>;

    /// What a path is. The last link is not followed.
    ///
    /// # Errors
    /// Any [`VolumeError`].
    async fn stat(&self, id: &VolumeId, path: &str) -> Result<VolumeFile, VolumeError>;

    /// Entries of a directory, at most `max`, and whether there are more. Sorted by name, unless there are more.
    ///
    /// # Errors
    /// Any [`VolumeError`].
    async fn list_files(
        &self,
        id: &VolumeId,
        path: &str,
        max: usize,
    ) -> Result<(Vec<VolumeFile>, bool), VolumeError>;

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// Any [`VolumeError`].
    async fn read(&self, id: &VolumeId, path: &str) -> Result<File, VolumeError>;

    /// Writes a file, whole or not at all; gives its size.
    ///
    /// # Errors
    /// Any [`VolumeError`]; an error of `content` comes as [`VolumeError::File`].
    async fn write(
        &self,
        id: &VolumeId,
        path: &str,
        write: VolumeWrite,
        content: Box<dyn AsyncRead + Send + Unpin>,
    ) -> Result<u64, VolumeError>;

    /// Makes a directory; gives what is there now.
    ///
    /// # Errors
    /// Any [`VolumeError`].
    async fn make_directory(
        &self,
        id: &VolumeId,
        path: &str,
        new: VolumeDirectory,
    ) -> Result<VolumeFile, VolumeError>;

    /// Changes owner or permissions of a regular file or a directory, also one that a link leads to; gives what is there
    /// now.
    ///
    /// # Errors
    /// Any [`VolumeError`].
    async fn change(
        &self,
        id: &VolumeId,
        path: &str,
        change: VolumeChange,
    ) -> Result<VolumeFile, VolumeError>;

    /// Removes a file, or a directory with everything in it if `recursive`.
    ///
    /// # Errors
    /// Any [`VolumeError`].
    async fn remove_file(&self, id: &VolumeId, path: &str, recursive: bool) -> Result<(), VolumeError>;
}
