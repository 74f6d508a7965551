//! Volumes, and files in them without a sandbox.

use atoll_api::{CreateVolume, FileEntry, FileList, FileWritten, Volume, VolumeList};
use bytes::Bytes;
use futures::Stream;
use http::Method;

use crate::{Client, Download, Result};

/// A volume is named by its id or its name in all of these.
///
/// # Errors
/// Every call fails with [`crate::ClientError`].
impl Client {
    /// Makes a volume, empty or as a copy of another.
    pub async fn create_volume(&self, create: &CreateVolume) -> Result<Volume> {
        self.submit(Method::POST, self.target(["v1", "volumes"]), create).await
    }

    /// All volumes.
    pub async fn list_volumes(&self) -> Result<VolumeList> {
        self.call(self.request(Method::GET, self.target(["v1", "volumes"]))).await
    }

    /// One volume, with its space.
    pub async fn get_volume(&self, volume: &str) -> Result<Volume> {
        self.call(self.request(Method::GET, self.target(["v1", "volumes", volume]))).await
    }

    /// Deletes it with everything in it.
    pub async fn delete_volume(&self, volume: &str) -> Result<()> {
        self.call_empty(self.request(Method::DELETE, self.target(["v1", "volumes", volume]))).await
    }

    /// The bytes of a file in it.
    pub async fn read_volume_file(&self, volume: &str, path: &str) -> Result<Download> {
        let target = self.target(["v1", "volumes", volume, "files"]).query("path", path);
        self.download(self.request(Method::GET, target)).await
    }

    /// Writes a file in it from a stream, making missing directories. An error of the stream ends the upload.
    pub async fn write_volume_file(
        &self,
        volume: &str,
        path: &str,
        content: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    ) -> Result<FileWritten> {
        let target =
            self.target(["v1", "volumes", volume, "files"]).query("path", path).flag("parents", true);
        self.upload(target, content).await
    }

    /// Removes a file in it or, if `recursive`, a directory with everything in it.
    pub async fn remove_volume_file(&self, volume: &str, path: &str, recursive: bool) -> Result<()> {
        let target = self.target(["v1", "volumes", volume, "files"]);
        let target = target.query("path", path).flag("recursive", recursive);
        self.call_empty(self.request(Method::DELETE, target)).await
    }

    /// What a path in it is.
    pub async fn stat_volume_file(&self, volume: &str, path: &str) -> Result<FileEntry> {
        let target = self.target(["v1", "volumes", volume, "files", "stat"]).query("path", path);
        self.call(self.request(Method::GET, target)).await
    }

    /// Entries of a directory in it.
    pub async fn list_volume_files(&self, volume: &str, path: &str) -> Result<FileList> {
        let target = self.target(["v1", "volumes", volume, "files", "list"]).query("path", path);
        self.call(self.request(Method::GET, target)).await
    }
}
