//! Files in a sandbox.

use atoll_api::{
    Chmod, FileEntry, FileList, FileWritten, FindFiles, FoundFiles, Mkdir, MoveFile, WatchMessage,
};
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http::{Method, header};

use crate::sse::Events;
use crate::{Client, ClientError, Result};

/// How to write a file.
#[derive(Debug, Clone, Default)]
pub struct WriteFile {
    /// Permissions in octal; `0644` when absent.
    pub mode: Option<String>,
    /// Owner; the sandbox's default user when absent.
    pub user: Option<String>,
    /// Make missing parent directories.
    pub parents: bool,
}

/// Bytes on their way.
pub struct Download {
    /// How many there will be, where the server knows.
    pub length: Option<u64>,
    stream: futures::stream::BoxStream<'static, Result<Bytes>>,
}

impl std::fmt::Debug for Download {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Download").field("length", &self.length).finish_non_exhaustive()
    }
}

impl Download {
    /// The next piece; `None` when all has come.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        self.stream.next().await
    }
}

/// What a watch says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// First: from now on nothing is missed.
    Ready,
    /// Something changed.
    Changed(WatchMessage),
}

/// Paths are absolute, inside the sandbox.
///
/// # Errors
/// Every call fails with [`crate::ClientError`].
impl Client {
    /// Content of a file. `range` is first byte and, if not to the end, last byte.
    pub async fn read_file(
        &self,
        sandbox: &str,
        path: &str,
        range: Option<(u64, Option<u64>)>,
    ) -> Result<Download> {
        let target = self.in_sandbox(sandbox, &["files"]).query("path", path);
        let mut request = self.request(Method::GET, target);
        if let Some((first, last)) = range {
            let last = last.map_or_else(String::new, |last| last.to_string());
            request = request.header(header::RANGE, format!("bytes={first}-{last}"));
        }
        self.download(request).await
    }

    /// Writes a file from a stream. An error of the stream ends the upload.
    pub async fn write_file(
        &self,
        sandbox: &str,
        path: &str,
        write: &WriteFile,
        content: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    ) -> Result<FileWritten> {
        let target = self
            .in_sandbox(sandbox, &["files"])
            .query("path", path)
            .maybe("mode", write.mode.as_deref())
            .maybe("user", write.user.as_deref())
            .flag("parents", write.parents);
        self.upload(target, content).await
    }

    /// Removes a file or, if `recursive`, a directory with everything in it.
    pub async fn remove_file(&self, sandbox: &str, path: &str, recursive: bool) -> Result<()> {
        let target = self.in_sandbox(sandbox, &["files"]).query("path", path).flag("recursive", recursive);
        self.call_empty(self.request(Method::DELETE, target)).await
    }

    /// What a path is. A symbolic link is not followed.
    pub async fn stat_file(&self, sandbox: &str, path: &str) -> Result<FileEntry> {
        let target = self.in_sandbox(sandbox, &["files", "stat"]).query("path", path);
        self.call(self.request(Method::GET, target)).await
    }

    /// Entries of a directory, `depth` levels deep.
    pub async fn list_files(
        &self,
        sandbox: &str,
        path: &str,
        depth: Option<u32>,
        limit: Option<u32>,
    ) -> Result<FileList> {
        let target = self
            .in_sandbox(sandbox, &["files", "list"])
            .query("path", path)
            .maybe("depth", depth)
            .maybe("limit", limit);
        self.call(self.request(Method::GET, target)).await
    }

    /// Finds files by pattern, or lines in them.
    pub async fn find_files(&self, sandbox: &str, find: &FindFiles) -> Result<FoundFiles> {
        let target = self.in_sandbox(sandbox, &["files", "find"]);
        self.call(self.request(Method::POST, target).json(find)).await
    }

    /// Makes a directory.
    pub async fn make_directory(&self, sandbox: &str, mkdir: &Mkdir) -> Result<()> {
        let target = self.in_sandbox(sandbox, &["files", "mkdir"]);
        self.call_empty(self.request(Method::POST, target).json(mkdir)).await
    }

    /// Renames.
    pub async fn move_file(&self, sandbox: &str, rename: &MoveFile) -> Result<()> {
        let target = self.in_sandbox(sandbox, &["files", "move"]);
        self.call_empty(self.request(Method::POST, target).json(rename)).await
    }

    /// Changes permissions or owner.
    pub async fn chmod_file(&self, sandbox: &str, chmod: &Chmod) -> Result<()> {
        let target = self.in_sandbox(sandbox, &["files", "chmod"]);
        self.call_empty(self.request(Method::POST, target).json(chmod)).await
    }

    /// A tar of a file or directory. Names in it begin with the path's last component.
    ///
    /// The tar is made inside the sandbox: treat it as hostile.
    pub async fn read_archive(&self, sandbox: &str, path: &str) -> Result<Download> {
        let target = self.in_sandbox(sandbox, &["archive"]).query("path", path);
        self.download(self.request(Method::GET, target)).await
    }

    /// Unpacks a tar below a directory.
    pub async fn write_archive(
        &self,
        sandbox: &str,
        path: &str,
        user: Option<&str>,
        tar: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    ) -> Result<FileWritten> {
        let target = self.in_sandbox(sandbox, &["archive"]).query("path", path).maybe("user", user);
        self.upload(target, tar).await
    }

    /// Watches a file or directory until the stream is dropped.
    pub async fn watch_files(
        &self,
        sandbox: &str,
        path: &str,
        recursive: bool,
    ) -> Result<impl Stream<Item = Result<WatchEvent>> + Send + Unpin + use<>> {
        let target = self.in_sandbox(sandbox, &["watch"]).query("path", path).flag("recursive", recursive);
        let response = self.open(self.request(Method::GET, target)).await?;
        let events = Events::new(self.clone(), response);
        Ok(Box::pin(futures::stream::try_unfold(events, |mut events| async move {
            let Some(event) = events.next().await? else { return Ok(None) };
            if event.name == "ready" {
                return Ok(Some((WatchEvent::Ready, events)));
            }
            let change = serde_json::from_str(&event.data)
                .map_err(|error| ClientError::Protocol(format!("an event of the watch: {error}")))?;
            Ok(Some((WatchEvent::Changed(change), events)))
        })))
    }

    pub(crate) async fn upload(
        &self,
        target: crate::http::Target,
        content: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    ) -> Result<FileWritten> {
        let body = reqwest::Body::wrap_stream(content);
        let response = self.send(self.request(Method::PUT, target).body(body)).await?;
        let body = self.body(response, 1 << 20).await?;
        serde_json::from_slice(&body).map_err(|error| ClientError::Protocol(error.to_string()))
    }

    pub(crate) async fn download(&self, request: reqwest::RequestBuilder) -> Result<Download> {
        let response = self.open(request).await?;
        let length = response.content_length();
        let client = self.clone();
        let stream = response
            .bytes_stream()
            .map(move |chunk| chunk.map_err(|error| client.no_connection(error.without_url())));
        Ok(Download { length, stream: stream.boxed() })
    }
}
