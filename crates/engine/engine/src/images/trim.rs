//! What this node has fetched, or sent, is a cache as soon as every node can have it: images that nothing here stands
//! on take no more than [`Config::images_max_bytes`](crate::Config::images_max_bytes), and the one that was used
//! longest ago goes first. It comes again when it is needed. A template does not count as standing on an image here: it
//! says which image a sandbox needs, and not on which node that lies.
//!
//! When an image was used last is known only since this server started; one that was not used since counts as used when
//! this task first saw it. Sizes are those of whole images: layers that several have are counted with each, so that
//! what is kept is rather less than more.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use atoll_core::Result;
use atoll_image::{Digest, Image};

use super::Shared;
use crate::engine::{Engine, Inner};
use crate::errors::store_error;

const LOOK_EVERY: Duration = Duration::from_secs(30);
/// An image that was used so lately may be needed by a sandbox that is being made: from the look at the image until the
/// sandbox is entered, nothing waits so long.
const RECENT_MS: u64 = 60_000;

pub(super) async fn keep(engine: Engine) {
    let Some(shared) = engine.inner.shared_images.clone() else { return };
    loop {
        match engine.trim_images(&shared).await {
            Ok(0) => {}
            Ok(freed_bytes) => tracing::info!(freed_bytes, "images that other nodes can give made room"),
            Err(error) => tracing::warn!(%error, "images are not trimmed, trying again"),
        }
        engine.inner.clock.sleep(LOOK_EVERY).await;
    }
}

impl Inner {
    /// Notes that an image is used.
    pub(crate) fn image_is_used(&self, digest: &Digest) {
        if let Some(shared) = &self.shared_images {
            let mut used = shared.used.lock().unwrap_or_else(PoisonError::into_inner);
            used.insert(digest.clone(), self.now_ms());
        }
    }
}

impl Engine {
    /// Removes from this node what is too much. Gives the bytes that were freed.
    async fn trim_images(&self, shared: &Shared) -> Result<u64> {
        let mut unused = self.unused_images(shared).await?;
        let mut bytes = unused.iter().map(|(_, image)| image.size_bytes).fold(0, u64::saturating_add);
        if bytes <= self.inner.config.images_max_bytes {
            return Ok(0);
        }
        unused.sort_by_key(|(used_ms, _)| *used_ms);
        let recent_ms = self.inner.now_ms().saturating_sub(RECENT_MS);
        let mut freed = 0;
        for (used_ms, image) in unused {
            if bytes <= self.inner.config.images_max_bytes || used_ms > recent_ms {
                break;
            }
            self.let_go_of_images(|other| other.digest == image.digest);
            // A sandbox or a snapshot may stand on it since the look.
            let stood_on = self.images_stood_on().await?;
            if !stood_on.contains(&image.digest) && self.is_to_be_had(&image).await? {
                let removed = self.images().remove(image.digest.as_str(), &stood_on).await;
                freed += removed.map_err(|error| error.to_core())?.freed_bytes;
            }
            bytes = bytes.saturating_sub(image.size_bytes);
        }
        Ok(freed)
    }

    /// The images that every node can have and nothing here stands on, each with when it was used last.
    async fn unused_images(&self, shared: &Shared) -> Result<Vec<(u64, Arc<Image>)>> {
        let index = self.inner.store.shared_index().await.map_err(store_error)?;
        let there: HashSet<String> = index.digests.into_iter().collect();
        let stood_on = self.images_stood_on().await?;
        let not_told: BTreeSet<Digest> =
            self.images().unshared().into_values().map(|(digest, _)| digest).collect();
        let here = self.images().list();
        let now_ms = self.inner.now_ms();
        let mut used = shared.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.retain(|digest, _| here.iter().any(|image| image.digest == *digest));
        let unused = here.into_iter().filter(|image| {
            let digest = &image.digest;
            there.contains(digest.as_str()) && !stood_on.contains(digest) && !not_told.contains(digest)
        });
        Ok(unused.map(|image| (*used.entry(image.digest.clone()).or_insert(now_ms), image)).collect())
    }

    /// Whether all of an image lies in the object store, as far as the database knows.
    async fn is_to_be_had(&self, image: &Image) -> Result<bool> {
        let Some(document) = self.images().document(&image.digest) else { return Ok(false) };
        for layer in document.layers() {
            let layer = self.inner.store.shared_layer(layer.as_str()).await.map_err(store_error)?;
            if layer.is_none_or(|layer| layer.is_doubted) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
