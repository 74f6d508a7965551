//! Large objects elsewhere: a bucket that speaks S3.
//!
//! This crate knows names and bytes, nothing of snapshots. Objects are written in parts, and an object is there only
//! when its last part is: a broken upload leaves nothing that could be read. The object store is not trusted: the
//! caller checks each object that it reads.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::secret::Secret;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt as _, PutPayload, WriteMultipart};

/// One part of an upload, bytes. S3 takes 10,000 parts, so an object may have 160 GB.
const PART_BYTES: usize = 16 << 20;
/// Parts on their way at once.
const PARTS_MAX_COUNT: usize = 4;
/// Largest object that [`Objects::get_small`] reads, bytes.
pub const SMALL_MAX_BYTES: usize = 64 << 10;
/// Longest prefix, bytes.
const PREFIX_MAX_BYTES: usize = 512;

/// Where objects are, and the credentials for them.
#[derive(Debug, Clone)]
pub struct ObjectsConfig {
    /// `s3://bucket` or `s3://bucket/prefix`.
    pub url: String,
    /// The server, for all but Amazon's own: `https://host:port`. Plain HTTP is spoken where this says so.
    pub endpoint: Option<String>,
    /// The region; `us-east-1` when absent.
    pub region: Option<String>,
    /// Access key and secret. Absent, requests are not signed.
    pub credentials: Option<(String, Secret)>,
    /// Token of temporary credentials.
    pub token: Option<Secret>,
}

/// Why an object could not be stored or fetched.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// The configuration makes no sense.
    #[error("{0}")]
    Config(String),
    /// There is no such object.
    #[error("there is no such object")]
    NotFound,
    /// The credentials are missing or wrong.
    #[error("the object store refuses the credentials")]
    Denied,
    /// It is larger than it may be.
    #[error("the object is larger than {0} bytes")]
    TooLarge(usize),
    /// What was to be stored could not be read.
    #[error("what was to be stored broke off")]
    Source(#[source] io::Error),
    /// It cannot be reached, or broke off.
    #[error("the object store does not answer as it should")]
    Unavailable(#[source] object_store::Error),
}

impl From<object_store::Error> for ObjectsError {
    #[expect(clippy::wildcard_enum_match_arm, reason = "what is not told apart is unavailable")]
    fn from(error: object_store::Error) -> Self {
        match error {
            object_store::Error::NotFound { .. } => Self::NotFound,
            object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
                Self::Denied
            }
            other => Self::Unavailable(other),
        }
    }
}

/// A place for objects. Clones share it.
#[derive(Debug, Clone)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
}

/// How long the object store may take for the beginning of an answer, or for its next piece.
const SILENCE_MAX: Duration = Duration::from_secs(30);

impl Objects {
    /// A place. Nothing is sent yet.
    ///
    /// # Errors
    /// [`ObjectsError::Config`].
    pub fn open(config: &ObjectsConfig) -> Result<Self, ObjectsError> {
        let wrong = |why: &str| ObjectsError::Config(format!("'{}' {why}", config.url));
        let rest = config.url.strip_prefix("s3://").ok_or_else(|| wrong("does not begin with s3://"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() || prefix.len() > PREFIX_MAX_BYTES {
            return Err(wrong("names no bucket, or its prefix is too long"));
        }
        let prefix = Path::parse(prefix.trim_matches('/')).map_err(|_error| wrong("has no usable prefix"))?;
        // Large objects take long: a request ends only when no bytes come for so long.
        let client = ClientOptions::new().with_timeout_disabled().with_read_timeout(SILENCE_MAX);
        let mut builder = AmazonS3Builder::new()
            .with_client_options(client)
            .with_bucket_name(bucket)
            .with_region(config.region.as_deref().unwrap_or("us-east-1"));
        if let Some(endpoint) = &config.endpoint {
            builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
        }
        builder = match &config.credentials {
            Some((key, secret)) => builder.with_access_key_id(key).with_secret_access_key(secret.reveal()),
            None => builder.with_skip_signature(true),
        };
        if let Some(token) = &config.token {
            builder = builder.with_token(token.reveal());
        }
        let store = builder.build().map_err(|error| ObjectsError::Config(error.to_string()))?;
        Ok(Self { store: Arc::new(store), prefix })
    }

    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// Whether there is an object of this name.
    ///
    /// # Errors
    /// [`ObjectsError::Denied`], [`ObjectsError::Unavailable`].
    pub async fn exists(&self, name: &str) -> Result<bool, ObjectsError> {
        match self.store.head(&self.path(name)).await.map_err(ObjectsError::from) {
            Ok(_meta) => Ok(true),
            Err(ObjectsError::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Stores a stream under a name, in place of what is there. Gives how many bytes it was.
    ///
    /// # Errors
    /// [`ObjectsError::Source`] when the stream fails: then nothing is stored.
    pub async fn put(
        &self,
        name: &str,
        mut stream: impl Stream<Item = io::Result<Bytes>> + Unpin,
    ) -> Result<u64, ObjectsError> {
        let upload = self.store.put_multipart(&self.path(name)).await?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        let mut bytes = 0;
        while let Some(piece) = stream.next().await {
            let piece = match piece {
                Ok(piece) => piece,
                Err(error) => {
                    // If parts of the upload stay, the bucket's own lifecycle rules remove them.
                    drop(upload.abort().await);
                    return Err(ObjectsError::Source(error));
                }
            };
            bytes += piece.len() as u64;
            if let Err(error) = upload.wait_for_capacity(PARTS_MAX_COUNT).await {
                drop(upload.abort().await);
                return Err(error.into());
            }
            upload.put(piece);
        }
        upload.finish().await?;
        Ok(bytes)
    }

    /// Stores a small object.
    ///
    /// # Errors
    /// [`ObjectsError::Denied`], [`ObjectsError::Unavailable`].
    pub async fn put_small(&self, name: &str, content: Vec<u8>) -> Result<(), ObjectsError> {
        self.store.put(&self.path(name), PutPayload::from(content)).await?;
        Ok(())
    }

    /// Reads an object.
    ///
    /// # Errors
    /// [`ObjectsError::NotFound`].
    pub async fn get(&self, name: &str) -> Result<BoxStream<'static, io::Result<Bytes>>, ObjectsError> {
        let found = self.store.get(&self.path(name)).await?;
        Ok(found.into_stream().map(|piece| piece.map_err(io::Error::other)).boxed())
    }

    /// Reads a small object whole.
    ///
    /// # Errors
    /// [`ObjectsError::NotFound`], [`ObjectsError::TooLarge`].
    pub async fn get_small(&self, name: &str) -> Result<Vec<u8>, ObjectsError> {
        self.get_whole(name, SMALL_MAX_BYTES).await
    }

    /// Reads an object of at most so many bytes.
    ///
    /// # Errors
    /// [`ObjectsError::NotFound`], [`ObjectsError::TooLarge`].
    pub async fn get_whole(&self, name: &str, max_bytes: usize) -> Result<Vec<u8>, ObjectsError> {
        let mut stream = self.store.get(&self.path(name)).await?.into_stream();
        let mut content = Vec::new();
        while let Some(piece) = stream.next().await {
            content.extend_from_slice(&piece?);
            if content.len() > max_bytes {
                return Err(ObjectsError::TooLarge(max_bytes));
            }
        }
        Ok(content)
    }

    /// Removes an object. Succeeds when there is none.
    ///
    /// # Errors
    /// [`ObjectsError::Denied`], [`ObjectsError::Unavailable`].
    pub async fn remove(&self, name: &str) -> Result<(), ObjectsError> {
        match self.store.delete(&self.path(name)).await.map_err(ObjectsError::from) {
            Ok(()) | Err(ObjectsError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Moves an object to another name, in place of what is there. Succeeds when there is none. It has both names for a
    /// moment, and for good if this is cut off.
    ///
    /// # Errors
    /// [`ObjectsError::Denied`], also when it may be written and not removed; [`ObjectsError::Unavailable`].
    pub async fn rename(&self, from: &str, to: &str) -> Result<(), ObjectsError> {
        match self.store.rename(&self.path(from), &self.path(to)).await.map_err(ObjectsError::from) {
            Ok(()) | Err(ObjectsError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The names of all objects below a directory, or of all when it is empty, in the order in which the object store
    /// lists them. Names that are not below the prefix are left out.
    #[must_use]
    pub fn list(&self, below: &str) -> BoxStream<'static, Result<String, ObjectsError>> {
        let prefix = self.prefix.clone();
        let below = if below.is_empty() { prefix.clone() } else { self.path(below) };
        let found = self.store.list(Some(&below));
        found
            .filter_map(move |meta| {
                let name = match meta {
                    Err(error) => Some(Err(ObjectsError::from(error))),
                    Ok(meta) => {
                        let parts = meta.location.prefix_match(&prefix);
                        let name = parts.map(|parts| {
                            parts.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/")
                        });
                        name.map(Ok)
                    }
                };
                std::future::ready(name)
            })
            .boxed()
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    fn config(url: &str) -> ObjectsConfig {
        let url = url.to_owned();
        ObjectsConfig { url, endpoint: None, region: None, credentials: None, token: None }
    }

    #[tokio::test]
    async fn what_is_renamed_has_the_other_name_only() {
        let objects = Objects { store: Arc::new(InMemory::new()), prefix: Path::from("prefix") };
        objects.put_small("trace/sb/1", b"one".to_vec()).await.unwrap();
        objects.rename("trace/sb/1", "aside/sb/1").await.unwrap();
        assert!(!objects.exists("trace/sb/1").await.unwrap());
        assert_eq!(objects.get_small("aside/sb/1").await.unwrap(), b"one");
        objects.rename("trace/sb/1", "aside/sb/1").await.unwrap();
        assert_eq!(objects.get_small("aside/sb/1").await.unwrap(), b"one", "nothing was there");
    }

    #[test]
    fn places_at_their_edges() {
        for good in ["s3://bucket", "s3://bucket/", "s3://bucket/a/b"] {
            assert!(Objects::open(&config(good)).is_ok(), "{good}");
        }
        for bad in ["", "bucket", "s3://", "s3:///a", "https://bucket", "s3://bucket/a//b"] {
            assert!(matches!(Objects::open(&config(bad)), Err(ObjectsError::Config(_))), "{bad}");
        }
        let objects = Objects::open(&config("s3://bucket/a")).unwrap();
        assert_eq!(objects.path("tags/x").as_ref(), "a/tags/x");
    }
}
