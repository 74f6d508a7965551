//! Images that several nodes have: what a node tells the other nodes about its images, and how it takes images from
//! them.
//!
//! A name is *shared* when all nodes know it; then it follows what they say ([`Images::follow`]). A name that was
//! given on this node is not shared until the engine has told the other nodes ([`Images::unshared`],
//! [`Images::shared`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Seek as _};
use std::path::Path;
use std::sync::Arc;

use atoll_core::spec::ImageDefaults;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt as _;

use crate::digest::Digest;
use crate::error::{ImageError, Result};
use crate::image::{Image, Record, chains};
use crate::layer::{Expected, Packed, Prepared};
use crate::limits::{BLOB_MAX_BYTES, DOCUMENT_MAX_BYTES, FETCH_PARALLEL_COUNT, LAYERS_MAX_COUNT};
use crate::manifest::{Config, Platform};
use crate::pull::{find, prepare};
use crate::store::{Images, Whose, blocking};

/// Version of the form.
const FORMAT: u32 = 1;

/// A layer on its way.
pub type Coming = BoxStream<'static, io::Result<Bytes>>;

/// The place from which a node can fetch layers that any node has put there.
pub trait Elsewhere: Send + Sync + std::fmt::Debug {
    /// The layer with this diff id, packed; nothing when it is not there. The caller checks the bytes. The stream
    /// breaks off with [`io::ErrorKind::InvalidData`] as soon as it cannot be that layer.
    fn layer<'a>(&'a self, diff_id: &'a Digest) -> BoxFuture<'a, io::Result<Option<Found>>>;

    /// Whether a layer is there, as far as can be told without looking at it.
    fn has<'a>(&'a self, diff_id: &'a Digest) -> BoxFuture<'a, io::Result<bool>>;

    /// Reports that the object in `place` was read whole and is not this layer.
    fn damaged<'a>(&'a self, diff_id: &'a Digest, place: &'a str) -> BoxFuture<'a, ()>;
}

/// A layer that lies elsewhere.
pub struct Found {
    /// Where it lies, for [`Elsewhere::damaged`].
    pub place: String,
    /// The layer, packed.
    pub coming: Coming,
}

/// A layer that came from elsewhere, in a file without a name.
#[derive(Debug)]
pub(crate) struct Came {
    place: String,
    file: File,
}

/// What an image consists of, and how it is run: all that another node needs besides its layers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    format: u32,
    digest: Digest,
    layers: Vec<Part>,
    defaults: ImageDefaults,
    entrypoint: Vec<String>,
    cmd: Vec<String>,
    exposed_ports: Vec<String>,
    labels: BTreeMap<String, String>,
    created: Option<String>,
    architecture: String,
    os: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    diff_id: Digest,
    /// Unpacked, for people.
    size_bytes: u64,
}

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Found").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Document {
    fn of(record: Record) -> Self {
        let part = |layer: Prepared| Part { diff_id: layer.diff_id, size_bytes: layer.size_bytes };
        Self {
            format: FORMAT,
            digest: record.digest,
            layers: record.layers.into_iter().map(part).collect(),
            defaults: record.defaults,
            entrypoint: record.entrypoint,
            cmd: record.cmd,
            exposed_ports: record.exposed_ports,
            labels: record.labels,
            created: record.created,
            architecture: record.architecture,
            os: record.os,
        }
    }

    /// As text.
    ///
    /// # Errors
    /// [`ImageError::Invalid`] when it is longer than other nodes read.
    pub fn to_text(&self) -> Result<String> {
        let text = serde_json::to_string(self)
            .map_err(|error| ImageError::Invalid(format!("it cannot be described: {error}")))?;
        if text.len() > DOCUMENT_MAX_BYTES {
            return Err(ImageError::Invalid(format!("its description has {} bytes", text.len())));
        }
        Ok(text)
    }

    /// Reads what [`Self::to_text`] gave for the image with this digest.
    ///
    /// # Errors
    /// [`ImageError::Invalid`], [`ImageError::DigestMismatch`].
    pub fn parse(text: &str, digest: &str) -> Result<Self> {
        let invalid = |why: String| ImageError::Invalid(format!("its description cannot be used: {why}"));
        if text.len() > DOCUMENT_MAX_BYTES {
            return Err(invalid(format!("it has {} bytes", text.len())));
        }
        let document: Self = serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?;
        if document.format != FORMAT {
            return Err(invalid("its form is that of another version".to_owned()));
        }
        if document.digest.as_str() != digest {
            let why = format!("the description is that of {}", document.digest);
            return Err(ImageError::DigestMismatch { expected: digest.to_owned(), why });
        }
        if document.layers.is_empty() || document.layers.len() > LAYERS_MAX_COUNT {
            return Err(invalid(format!("it has {} layers", document.layers.len())));
        }
        Ok(document)
    }

    /// Its layers, each one once.
    #[must_use]
    pub fn layers(&self) -> BTreeSet<Digest> {
        self.layers.iter().map(|part| part.diff_id.clone()).collect()
    }

    /// The image as it would be here. The paths of its layers lead nowhere.
    #[must_use]
    pub fn image(&self, names: Vec<String>) -> Image {
        let part = |part: &Part| Prepared {
            key: part.diff_id.hex().to_owned(),
            diff_id: part.diff_id.clone(),
            size_bytes: part.size_bytes,
            boot: String::new(),
        };
        let layers: Vec<Prepared> = self.layers.iter().map(part).collect();
        let record = Record::new(self.digest.clone(), self.config(), layers);
        record.image(names, Path::new(""))
    }

    fn config(&self) -> Config {
        Config {
            diff_ids: self.layers.iter().map(|part| part.diff_id.clone()).collect(),
            defaults: self.defaults.clone(),
            entrypoint: self.entrypoint.clone(),
            cmd: self.cmd.clone(),
            exposed_ports: self.exposed_ports.clone(),
            labels: self.labels.clone(),
            created: self.created.clone(),
            architecture: self.architecture.clone(),
            os: self.os.clone(),
        }
    }
}

fn away(diff_id: &Digest, source: io::Error) -> ImageError {
    ImageError::LayerAway { layer: diff_id.to_string(), source }
}

impl Images {
    /// Sets where pulls look for layers before they ask registries. Only the first call has an effect.
    pub fn look_elsewhere(&self, elsewhere: Arc<dyn Elsewhere>) {
        drop(self.inner.elsewhere.set(elsewhere));
    }

    /// Resolves when a name was given to an image here.
    pub async fn named(&self) {
        self.inner.named.notified().await;
    }

    /// What an image here consists of.
    #[must_use]
    pub fn document(&self, digest: &Digest) -> Option<Document> {
        self.inner.record_of(digest).map(Document::of)
    }

    /// The names that other nodes do not know yet, what they stand for, and when that was said, milliseconds since 1970.
    #[must_use]
    pub fn unshared(&self) -> BTreeMap<String, (Digest, u64)> {
        let names = self.inner.names().into_iter();
        names.filter_map(|(name, found)| Some((name, (found.digest, found.unshared_since_ms?)))).collect()
    }

    /// All nodes know these names of an image now: from here on they follow what the nodes say.
    ///
    /// # Errors
    /// [`ImageError::Io`], [`ImageError::HostFull`].
    pub async fn shared(&self, digest: &Digest, names: &[String]) -> Result<()> {
        let (inner, digest, names) = (Arc::clone(&self.inner), digest.clone(), names.to_vec());
        blocking(move || {
            let _guard = inner.changing();
            let now = inner.names();
            // A name that was given to another image meanwhile stays with that image.
            for name in names.iter().filter(|name| now.get(*name).is_some_and(|to| to.digest == digest)) {
                inner.write_name(name, &digest, Whose::All)?;
            }
            Ok(())
        })
        .await
    }

    /// Takes a name away; the image stays.
    ///
    /// # Errors
    /// [`ImageError::Io`].
    pub async fn forget_name(&self, name: &str) -> Result<()> {
        let (inner, name) = (Arc::clone(&self.inner), name.to_owned());
        blocking(move || {
            let _guard = inner.changing();
            if let Some(found) = inner.names().remove(&name) {
                inner.remove_name(&name)?;
                inner.renamed(&found.digest);
            }
            Ok(())
        })
        .await
    }

    /// Follows what the nodes say: each shared name stands for the image that they say, and is removed when they do
    /// not have it or that image is not here. An image whose last name is removed so goes too, unless it is in
    /// `images`, the images that the nodes have, or in `in_use`. Gives the bytes that were freed.
    ///
    /// # Errors
    /// [`ImageError::Io`], [`ImageError::HostFull`].
    pub async fn follow(
        &self,
        names: BTreeMap<String, Digest>,
        images: BTreeSet<Digest>,
        in_use: BTreeSet<Digest>,
    ) -> Result<u64> {
        let inner = Arc::clone(&self.inner);
        blocking(move || {
            let _guard = inner.changing();
            let here = inner.names();
            let mut left = BTreeSet::new();
            for (name, found) in here.iter().filter(|(_, found)| found.unshared_since_ms.is_none()) {
                match names.get(name) {
                    Some(to) if *to == found.digest => {}
                    Some(to) if inner.record_of(to).is_some() => {
                        inner.write_name(name, to, Whose::All)?;
                        inner.renamed(to);
                        left.insert(found.digest.clone());
                    }
                    // The nodes do not have the name any more, or it stands for an image that is not here. It is
                    // removed, so that a client that asks for it does not get the old image.
                    Some(_) | None => {
                        inner.remove_name(name)?;
                        left.insert(found.digest.clone());
                    }
                }
            }
            for (name, to) in &names {
                if !here.contains_key(name) && inner.record_of(to).is_some() {
                    inner.write_name(name, to, Whose::All)?;
                    inner.renamed(to);
                }
            }
            let mut keys = BTreeSet::new();
            for digest in left {
                let image = inner.renamed(&digest);
                if image.names.is_empty() && !images.contains(&digest) && !in_use.contains(&digest) {
                    keys.extend(inner.remove_image(&image)?);
                }
            }
            if keys.is_empty() { Ok(0) } else { inner.collect(|key| keys.contains(key)) }
        })
        .await
    }

    /// Takes an image that other nodes have: fetches the layers that are not here, several at once. The image gets no
    /// new name: see [`Self::follow`].
    ///
    /// # Errors
    /// [`ImageError::DigestMismatch`], [`ImageError::Invalid`] for layers that are not what they should be; [`ImageError::Io`] when
    /// they cannot be had; [`ImageError::HostFull`]; [`ImageError::PlatformMismatch`].
    pub async fn take(&self, document: &Document) -> Result<Arc<Image>> {
        let config = document.config();
        config.check(&Platform::host(), document.layers.len())?;
        let stacks = chains(&config.diff_ids);
        let plan: Vec<(Digest, Digest)> = config.diff_ids.iter().cloned().zip(stacks).collect();
        let keys = plan.iter().flat_map(|(diff_id, chain)| Prepared::keys(diff_id, chain)).collect();
        let _pin = self.inner.pin(keys);
        let mut coming = std::pin::pin!(
            futures::stream::iter(plan.clone())
                .map(|(diff_id, chain)| async move {
                    let (inner, own) = (Arc::clone(&self.inner), diff_id.clone());
                    if blocking(move || find(&inner, &own, &chain)).await?.is_some() {
                        return Ok(None);
                    }
                    let missing = || away(&diff_id, io::ErrorKind::NotFound.into());
                    self.fetch_elsewhere(&diff_id).await?.ok_or_else(missing).map(Some)
                })
                .buffered(FETCH_PARALLEL_COUNT)
        );
        let mut done: Vec<Prepared> = Vec::with_capacity(plan.len());
        for (diff_id, chain) in &plan {
            let Some(came) = coming.try_next().await? else { break };
            done.push(self.unpack_fetched(diff_id, chain, came, &done).await?);
        }
        let inner = Arc::clone(&self.inner);
        let record = Record::new(document.digest.clone(), config, done);
        blocking(move || {
            let _guard = inner.changing();
            let digest = record.digest.clone();
            inner.write_record(record)?;
            Ok(inner.renamed(&digest))
        })
        .await
    }

    /// Fetches a layer that other nodes have; nothing when they do not have it.
    pub(crate) async fn fetch_elsewhere(&self, diff_id: &Digest) -> Result<Option<Came>> {
        let Some(elsewhere) = self.inner.elsewhere.get() else { return Ok(None) };
        let fail = |error| ImageError::io("keep a layer that is fetched", error);
        let lost = |error| away(diff_id, error);
        let found = elsewhere.layer(diff_id).await.map_err(lost)?;
        let Some(Found { place, mut coming }) = found else { return Ok(None) };
        let file = tempfile::tempfile_in(self.inner.tmp()).map_err(fail)?;
        let mut file = tokio::fs::File::from_std(file);
        let mut bytes = 0_u64;
        loop {
            let chunk = match coming.try_next().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    elsewhere.damaged(diff_id, &place).await;
                    let (expected, why) = (diff_id.to_string(), error.to_string());
                    return Err(ImageError::DigestMismatch { expected, why });
                }
                Err(error) => return Err(lost(error)),
            };
            bytes = bytes.saturating_add(chunk.len() as u64);
            if bytes > BLOB_MAX_BYTES {
                return Err(ImageError::Invalid(format!("a layer has more than {BLOB_MAX_BYTES} bytes")));
            }
            file.write_all(&chunk).await.map_err(fail)?;
        }
        file.flush().await.map_err(fail)?;
        Ok(Some(Came { place, file: file.into_std().await }))
    }

    /// Whether a layer that is here should be fetched all the same, because the other nodes cannot get it yet.
    pub(crate) async fn lacks_elsewhere(&self, diff_id: &Digest) -> bool {
        let Some(elsewhere) = self.inner.elsewhere.get() else { return false };
        let (inner, own) = (Arc::clone(&self.inner), diff_id.clone());
        let is_lacking = blocking(move || Ok(inner.lacks_packed(&own))).await.unwrap_or(false);
        is_lacking && matches!(elsewhere.has(diff_id).await, Ok(false))
    }

    /// Unpacks a layer that was fetched, or finds it if it is here already.
    pub(crate) async fn unpack_fetched(
        &self,
        diff_id: &Digest,
        chain: &Digest,
        came: Option<Came>,
        below: &[Prepared],
    ) -> Result<Prepared> {
        let (place, file) = came.map(|came| (came.place, came.file)).unzip();
        let (inner, own, chain, below) =
            (Arc::clone(&self.inner), diff_id.clone(), chain.clone(), below.to_vec());
        let unpacked = blocking(move || {
            if let Some(prepared) = find(&inner, &own, &chain)? {
                return Ok(prepared);
            }
            // It was here a moment ago, and is pinned.
            let gone = || ImageError::Invalid(format!("the layer {own} went away"));
            let mut file = file.ok_or_else(gone)?;
            file.rewind().map_err(|error| ImageError::io("read a fetched layer", error))?;
            let packed = Packed { reader: file, done: Arc::default() };
            let expected = Expected { blob: None, diff_id: Some(own), chain: Some(chain) };
            prepare(&inner, packed, &expected, &below)
        })
        .await;
        if let (Err(ImageError::Invalid(_) | ImageError::DigestMismatch { .. }), Some(place)) =
            (&unpacked, place)
            && let Some(elsewhere) = self.inner.elsewhere.get()
        {
            elsewhere.damaged(diff_id, &place).await;
        }
        unpacked
    }
}
