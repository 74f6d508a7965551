//! Images that are needed here and are not here: from the object store, where every node's lie, and else, for one that is known
//! exactly, from its registry.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_core::layer::Layer;
use atoll_core::{Code, Error, Result};
use atoll_image::{Asked, Document, ImageError, Images, NoProgress, PullOptions};
use atoll_store::{SandboxRecord, SharedImage};
use tokio::runtime::Handle;

use super::Shared;
use crate::boxed;
use crate::engine::Engine;
use crate::errors::store_error;
use crate::rooms::Who;
use crate::transfers::Room;

impl Engine {
    /// Gets what a sandbox stands on and is not here: its image, and its agent layers. It takes as long as a registry takes;
    /// the caller may give it up.
    ///
    /// # Errors
    /// What the registry says; [`Code::ImageNotFound`] for an image that came from no registry and that no other node gave.
    pub(crate) async fn obtain_images(&self, record: &SandboxRecord) -> Result<()> {
        let image = record.image_digest.iter().map(|digest| (record.spec.image.as_str(), digest.as_str()));
        let layers = record.spec.layers.values().map(|layer| (layer.image.as_str(), layer.digest.as_str()));
        for (name, digest) in image.chain(layers).collect::<Vec<_>>() {
            if self.inner.images.resolve(digest).is_ok() {
                continue;
            }
            self.obtain_image(digest).await?;
            if self.inner.images.resolve(digest).is_err() {
                // The image's registry may be one that its owner chose, and may take its time.
                let who = Who::new(record.owner.as_ref(), record.project.as_ref());
                let room = self.inner.transfers.room(who).await;
                self.pull_exact(name, digest, room).await?;
            }
        }
        Ok(())
    }

    /// Gets the images with these digests that other nodes have and this one does not: one, and agent layers.
    ///
    /// # Errors
    /// As [`Self::obtain_image`].
    pub(crate) async fn obtain_exactly(
        &self,
        image: Option<&str>,
        layers: &BTreeMap<String, Layer>,
    ) -> Result<()> {
        for digest in image.into_iter().chain(layers.values().map(|layer| layer.digest.as_str())) {
            self.obtain_image(digest).await?;
        }
        Ok(())
    }

    /// Gets an image that other nodes have and this one does not, by any text that a request names it with. That no
    /// node has it is no error here: the code that then looks for the image reports it.
    ///
    /// # Errors
    /// [`Code::DigestMismatch`], [`Code::ImageInvalid`] when what lies there is not what it should be, and the registry does not have it
    /// either; [`Code::ObjectsUnavailable`]; [`Code::HostDiskFull`].
    #[boxed]
    pub async fn obtain_image(&self, text: &str) -> Result<()> {
        let Some(shared) = &self.inner.shared_images else { return Ok(()) };
        if text == "host" {
            return Ok(());
        }
        if let Ok(image) = self.inner.images.resolve(text) {
            self.inner.image_is_used(&image.digest);
            return Ok(());
        }
        let Some(found) = self.find_shared(text).await? else { return Ok(()) };
        let (engine, shared) = (self.clone(), Arc::clone(shared));
        self.to_its_end(async move {
            let turn = shared.turn(&found.digest);
            let _turn = turn.lock().await;
            if engine.inner.images.resolve(&found.digest).is_err() {
                engine.take_shared(&shared, &found).await?;
            }
            engine.follow_images().await.map(drop)
        })
        .await
    }

    /// Fetches something to its end, even if the caller goes away, until the server stops.
    pub(super) async fn to_its_end<T: Send + 'static>(
        &self,
        fetching: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let stop = self.inner.shutdown.clone();
        let fetched = self.inner.tracker.spawn(async move { stop.run_until_cancelled(fetching).await }).await;
        match fetched {
            Ok(Some(fetched)) => fetched,
            Ok(None) => Err(Error::new(Code::ShuttingDown, "the server is shutting down")),
            Err(_panicked) => Err(Error::new(Code::Internal, "fetching broke off")),
        }
    }

    /// The image that every node can have and that a text stands for.
    pub(super) async fn find_shared(&self, text: &str) -> Result<Option<SharedImage>> {
        let asked = Asked::parse(text).map_err(|error| error.to_core())?;
        let found = self.inner.store.find_shared_images(&asked.names, asked.digest.as_deref()).await;
        let mut found = found.map_err(store_error)?;
        for name in &asked.names {
            if let Some(at) = found.iter().position(|image| image.names.contains_key(name)) {
                return Ok(Some(found.swap_remove(at)));
            }
        }
        if found.len() > 1 {
            return Err(ImageError::Ambiguous(text.to_owned()).to_core());
        }
        Ok(found.pop())
    }

    async fn take_shared(&self, shared: &Shared, found: &SharedImage) -> Result<()> {
        let document = Document::parse(&found.document, &found.digest).map_err(|error| error.to_core())?;
        tracing::info!(image = found.digest, "fetching an image that other nodes have");
        let taken = {
            let _turn = shared.taking.acquire().await;
            self.on_a_thread(|images| async move { images.take(&document).await }).await?
        };
        let Err(error) = taken else { return Ok(()) };
        let error = error.to_core();
        tracing::warn!(image = found.digest, %error, "an image cannot be fetched from the object store");
        // A name without a registry was given here.
        let has_registry = |name: &&String| name.contains('/');
        if error.code != Code::HostDiskFull
            && let Some(name) = found.names.keys().find(has_registry)
        {
            // Not while others wait for the object store: the registry may take its time.
            let room = self.inner.transfers.room(Who::new(None, None)).await;
            if self.pull_exact(name, &found.digest, room).await.is_ok() {
                return Ok(());
            }
        }
        let message = format!("the image {} is not on this node: {}", found.digest, error.message);
        Err(Error { message, ..error })
    }

    /// Pulls exactly this image. Its room is free when its thread is.
    async fn pull_exact(&self, name: &str, digest: &str, room: Room) -> Result<()> {
        let host = atoll_image::registry_of(name).map_err(|error| error.to_core())?;
        let credentials = self.registry_credentials(&host).await?;
        let known = credentials.is_some();
        let options = PullOptions { known, credentials, ..PullOptions::default() };
        tracing::info!(image = name, digest, "pulling an image that is needed here");
        let reference = format!("{}@{digest}", without_tag(name));
        let pulling = self.on_a_thread(|images| async move {
            let _room = room;
            images.pull(&reference, &options, &NoProgress).await.map(drop)
        });
        pulling.await?.map_err(|error| {
            let error = error.to_core();
            let message = format!("its image {name} ({digest}) is not on this node: {}", error.message);
            Error { message, ..error }
        })
    }

    /// Does something with images on a thread of its own, until the server stops or the caller gives it up: such work borrows
    /// across waits in ways that the compiler cannot prove to be `Send`.
    async fn on_a_thread<T, F, Fut>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(Images) -> Fut + Send + 'static,
        Fut: Future<Output = T>,
    {
        let (images, stop, runtime) =
            (self.inner.images.clone(), self.inner.shutdown.child_token(), Handle::current());
        let _stops_with_this = stop.clone().drop_guard();
        let working =
            tokio::task::spawn_blocking(move || runtime.block_on(stop.run_until_cancelled(work(images))));
        match working.await {
            Ok(Some(done)) => Ok(done),
            Ok(None) => Err(Error::new(Code::ShuttingDown, "the server is shutting down")),
            Err(error) => {
                tracing::error!(%error, "an image operation panicked");
                Err(Error::new(Code::Internal, "the server failed to prepare the image"))
            }
        }
    }
}

/// A reference to an image without its tag and digest.
fn without_tag(name: &str) -> &str {
    let name = name.split('@').next().unwrap_or(name);
    match name.rsplit_once(':') {
        // A colon before a slash is that of a port.
        Some((before, tag)) if !tag.contains('/') => before,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_digests_go() {
        for (name, plain) in [
            ("debian", "debian"),
            ("debian:12", "debian"),
            ("localhost:5000/app", "localhost:5000/app"),
            ("localhost:5000/app:1@sha256:12", "localhost:5000/app"),
        ] {
            assert_eq!(without_tag(name), plain);
        }
    }
}
