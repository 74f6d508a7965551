//! Files in volumes, without a sandbox: callers read, write, list and change what a volume holds.

use std::fs::File;
use std::sync::Arc;

use atoll_core::id::VolumeId;
use atoll_core::volume::inner_path;
use atoll_core::{Code, Error, Result};
use atoll_isolation::volumes::{VolumeChange, VolumeDirectory, VolumeFile, VolumeWrite, Volumes};
use atoll_store::VolumeRecord;
use tokio::io::AsyncRead;

use super::ready;
use crate::boxed;
use crate::engine::Engine;

/// What the file system of a volume says, for the caller.
pub(super) fn file_error(error: &std::io::Error) -> Error {
    use std::io::ErrorKind;
    let code = match error.kind() {
        ErrorKind::NotFound => Code::FileNotFound,
        ErrorKind::AlreadyExists => Code::FileExists,
        ErrorKind::NotADirectory => Code::NotADirectory,
        ErrorKind::IsADirectory => Code::IsADirectory,
        ErrorKind::DirectoryNotEmpty => Code::DirectoryNotEmpty,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Code::DiskFull,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Code::PermissionDenied,
        ErrorKind::InvalidInput | ErrorKind::InvalidFilename | ErrorKind::CrossesDevices => Code::PathInvalid,
        _ => {
            // An error of the request's body comes as what it was.
            if let Some(inner) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
                return inner.clone();
            }
            tracing::warn!(%error, "a file of a volume");
            Code::Internal
        }
    };
    let what = match code {
        Code::FileNotFound => "no such file or directory in the volume",
        Code::FileExists => "the file is there already",
        Code::NotADirectory => "not a directory",
        Code::IsADirectory => "is a directory",
        Code::DirectoryNotEmpty => "the directory is not empty",
        Code::DiskFull => "the volume is full",
        Code::PermissionDenied => "the volume is read-only",
        Code::PathInvalid => "the path leads out of the volume, or is no regular file",
        _ => "the volume's file system failed",
    };
    Error::new(code, what)
}

impl Engine {
    fn usable_volume(&self, id: &VolumeId) -> Result<(VolumeRecord, &Arc<dyn Volumes>)> {
        Ok((ready(self.inner.volumes.get(id)?)?, self.inner.volume_host()?))
    }

    /// What a path in a volume is.
    ///
    /// # Errors
    /// [`Code::VolumeNotFound`], [`Code::FileNotFound`], [`Code::PathInvalid`].
    #[boxed]
    pub async fn stat_in_volume(&self, volume: &VolumeId, path: &str) -> Result<VolumeFile> {
        let (record, host) = self.usable_volume(volume)?;
        host.stat(&record.id, &inner_path(path)?)
            .await
            .map_err(|error| self.inner.unless_removed(&record.id, &error))
    }

    /// Entries of a directory of a volume, and whether there are more than `max`.
    ///
    /// # Errors
    /// As [`Self::stat_in_volume`].
    #[boxed]
    pub async fn list_in_volume(
        &self,
        volume: &VolumeId,
        path: &str,
        max: usize,
    ) -> Result<(Vec<VolumeFile>, bool)> {
        let (record, host) = self.usable_volume(volume)?;
        host.list_files(&record.id, &inner_path(path)?, max)
            .await
            .map_err(|error| self.inner.unless_removed(&record.id, &error))
    }

    /// Opens a file of a volume for reading.
    ///
    /// # Errors
    /// As [`Self::stat_in_volume`].
    #[boxed]
    pub async fn read_in_volume(&self, volume: &VolumeId, path: &str) -> Result<File> {
        let (record, host) = self.usable_volume(volume)?;
        host.read(&record.id, &inner_path(path)?)
            .await
            .map_err(|error| self.inner.unless_removed(&record.id, &error))
    }

    /// Writes a file of a volume, whole or not at all; gives its size.
    ///
    /// # Errors
    /// As [`Self::stat_in_volume`], and [`Code::DiskFull`], [`Code::PermissionDenied`]; [`Code::FileExists`] for one
    /// that is there and not to be replaced.
    #[boxed]
    pub async fn write_in_volume(
        &self,
        volume: &VolumeId,
        path: &str,
        write: VolumeWrite,
        content: Box<dyn AsyncRead + Send + Unpin>,
    ) -> Result<u64> {
        self.inner.disk.check()?;
        let (record, host) = self.writable_volume(volume)?;
        host.write(&record.id, &inner_path(path)?, write, content)
            .await
            .map_err(|error| self.inner.unless_removed(&record.id, &error))
    }

    /// Makes a directory of a volume; gives what is there now.
    ///
    /// # Errors
    /// As [`Self::write_in_volume`].
    #[boxed]
    pub async fn make_directory_in_volume(
        &self,
        volume: &VolumeId,
        path: &str,
        new: VolumeDirectory,
    ) -> Result<VolumeFile> {
        self.inner.disk.check()?;
        let (record, host) = self.writable_volume(volume)?;
        host.make_directory(&record.id, &inner_path(path)?, new)
            .await
            .map_err(|error| self.inner.unless_removed(&record.id, &error))
    }

    /// Changes owner or permissions of a file or directory of a volume; gives what is there now.
    ///
    /// # Errors
    /// As [`Self::write_in_volume`].
    #[boxed]
    pub async fn change_in_volume(
        &self,
        volume: &VolumeId,
        path: &str,
        change: VolumeChange,
    ) -> Result<VolumeFile> {
        let (record, host) = self.writable_volume(volume)?;
        host.change(&record.id, &inner_path(path)?, change)
            .await
            .map_err(|error| self.inner.unless_removed(&record.id, &error))
    }

    /// Removes a file of a volume, or a directory with everything in it if `recursive`.
    ///
    /// # Errors
    /// As [`Self::write_in_volume`], and [`Code::DirectoryNotEmpty`].
    #[boxed]
    pub async fn remove_in_volume(&self, volume: &VolumeId, path: &str, recursive: bool) -> Result<()> {
        let (record, host) = self.writable_volume(volume)?;
        let path = inner_path(path)?;
        if path == "." {
            return Err(Error::new(Code::PathInvalid, "the root of a volume cannot be removed")
                .hint("'atoll volume rm' removes the volume"));
        }
        host.remove_file(&record.id, &path, recursive)
            .await
            .map_err(|error| self.inner.unless_removed(&record.id, &error))
    }

    fn writable_volume(&self, id: &VolumeId) -> Result<(VolumeRecord, &Arc<dyn Volumes>)> {
        let (record, host) = self.usable_volume(id)?;
        if record.read_only {
            return Err(Error::new(
                Code::PermissionDenied,
                "the volume is a snapshot: nobody can write to it",
            )
            .hint("'atoll volume clone' makes one that can be written to"));
        }
        Ok((record, host))
    }
}
