//! Images that were pulled, loaded or imported here are put where the other nodes find them.
//!
//! Nobody waits for that. One image at a time, a few layers at once; each layer is read from its packed form, which the image
//! store keeps until it is there, and goes into an object of its own:
//!
//! | step | database says | after a crash |
//! |---|---|---|
//! | a layer is there | nothing | its object belongs to no row once the node starts anew: collected |
//! | recorded | the layer | no image needs it: forgotten, collected |
//! | all of them are, and the image is | the image and its names | whole; the names are told again |
//! | the names are marked here, the packed forms go | the same | whole |

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::{Code, Error, Result};
use atoll_image::{Digest, ImageError};
use atoll_objects::ObjectsError;
use atoll_store::{SharedImage, StoreError};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use tokio::sync::mpsc;

use super::Shared;
use crate::engine::Engine;
use crate::errors::store_error;
use crate::snapshot::{Pieces, objects_error};

/// Layers that are sent at the same time.
const LAYERS_AT_ONCE: usize = 2;
/// Pieces of a layer that wait to be sent.
const QUEUE_MAX_COUNT: usize = 16;
/// Pause before what failed is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// How often an image is recorded anew whose layers went away meanwhile.
const TRIES: u32 = 3;

pub(super) async fn keep(engine: Engine) {
    let Some(shared) = engine.inner.shared_images.clone() else { return };
    // Images of which something is missing here: other nodes cannot have them.
    let mut stay = BTreeSet::new();
    loop {
        if engine.share_all(&shared, &mut stay).await {
            engine.images().named().await;
        } else {
            engine.inner.clock.sleep(RETRY).await;
        }
    }
}

impl Engine {
    /// Gives the other nodes what has a name that they do not know; says whether nothing is left to be tried again.
    async fn share_all(&self, shared: &Arc<Shared>, stay: &mut BTreeSet<Digest>) -> bool {
        let mut wanted: BTreeMap<Digest, BTreeMap<String, u64>> = BTreeMap::new();
        for (name, (digest, said_ms)) in self.images().unshared() {
            wanted.entry(digest).or_default().insert(name, said_ms);
        }
        let mut done = true;
        for (digest, names) in wanted {
            if stay.contains(&digest) {
                // It may have been loaded again since.
                if !self.has_packed(&digest) {
                    continue;
                }
                stay.remove(&digest);
            }
            match self.share(shared, &digest, names).await {
                Ok(()) => tracing::info!(image = %digest, "every node can have an image that came here"),
                Err(error) if error.code == Code::ImageNotFound => {
                    tracing::warn!(image = %digest, %error, "an image stays on this node");
                    stay.insert(digest);
                }
                Err(error) => {
                    tracing::warn!(image = %digest, %error, "an image is not for every node yet, trying again");
                    done = false;
                }
            }
        }
        done
    }

    fn has_packed(&self, digest: &Digest) -> bool {
        let document = self.images().document(digest);
        document.is_some_and(|document| document.layers().iter().any(|layer| self.images().is_packed(layer)))
    }

    async fn share(&self, shared: &Arc<Shared>, digest: &Digest, names: BTreeMap<String, u64>) -> Result<()> {
        // Nothing is collected meanwhile that is sent here.
        let _turn = shared.sending.lock().await;
        // Deleted meanwhile.
        let Some(document) = self.images().document(digest) else { return Ok(()) };
        let layers = document.layers();
        let text =
            document.to_text().map_err(|error| Error { code: Code::ImageNotFound, ..error.to_core() })?;
        let image = SharedImage { digest: digest.to_string(), document: text, names };
        let ids: BTreeSet<String> = layers.iter().map(ToString::to_string).collect();
        for _ in 0..TRIES {
            let sending = futures::stream::iter(layers.clone()).map(|layer| self.send_layer(shared, layer));
            sending.buffer_unordered(LAYERS_AT_ONCE).try_collect::<()>().await?;
            atoll_failpoint::fail_point!("engine.images.sent");
            if self.tell(shared, digest, &image, &ids).await? {
                return self.forget_packed(layers).await;
            }
        }
        Err(Error::new(Code::Internal, "its layers are forgotten as fast as they are sent"))
    }

    /// Tells the other nodes of an image; says whether it did: not when a node forgot one of its layers at this moment.
    async fn tell(
        &self,
        shared: &Arc<Shared>,
        digest: &Digest,
        image: &SharedImage,
        layers: &BTreeSet<String>,
    ) -> Result<bool> {
        // Neither is an older word about names followed meanwhile, nor is the image deleted.
        let _turn = shared.naming.lock().await;
        let names = self.images().unshared();
        let mut image = image.clone();
        image.names.retain(|name, said_ms| names.get(name) == Some(&(digest.clone(), *said_ms)));
        if image.names.is_empty() {
            return Ok(true);
        }
        let told = match self.inner.store.put_shared_image(&image, layers, self.inner.now_ms()).await {
            Err(StoreError::NotFound) => return Ok(false),
            told => told.map_err(store_error)?,
        };
        atoll_failpoint::fail_point!("engine.images.told");
        let names: Vec<String> = image.names.into_keys().collect();
        self.images().shared(digest, &names).await.map_err(|error| error.to_core())?;
        if told < names.len() as u64 {
            // Some of these names have been given to another image, or taken away, since.
            self.follow_with_turn(shared).await?;
        }
        Ok(true)
    }

    /// Sends a layer that is not there.
    async fn send_layer(&self, shared: &Shared, layer: Digest) -> Result<()> {
        let store = &self.inner.store;
        let there = store.shared_layer(layer.as_str()).await.map_err(store_error)?;
        if there.is_some_and(|there| !there.is_doubted) {
            return Ok(());
        }
        let name = shared.object(&layer, &shared.upload);
        let bytes = self.send_packed(shared, &layer, &name).await?;
        atoll_failpoint::fail_point!("engine.images.layer");
        let recorded = store.put_shared_layer(layer.as_str(), &shared.upload, bytes).await;
        if recorded.map_err(store_error)? != shared.upload {
            // Another node was faster. If this fails it is collected.
            drop(shared.objects.remove(&name).await);
        }
        Ok(())
    }

    /// Sends the packed form of a layer; gives how many bytes that was.
    async fn send_packed(&self, shared: &Shared, layer: &Digest, name: &str) -> Result<u64> {
        let (sender, mut receiver) = mpsc::channel::<io::Result<Bytes>>(QUEUE_MAX_COUNT);
        let (images, own) = (self.images().clone(), layer.clone());
        let packing = tokio::task::spawn_blocking(move || {
            let packed = images.pack(&own, Pieces::new(sender.clone()));
            if !matches!(packed, Ok(true)) {
                // Sent so that nothing is stored. If this is not received either, the receiver is gone.
                drop(sender.blocking_send(Err(io::ErrorKind::NotFound.into())));
            }
            packed
        });
        let pieces = futures::stream::poll_fn(move |context| receiver.poll_recv(context));
        let put = shared.objects.put(name, pieces).await;
        let missing = || {
            let why = format!("its layer {layer} was prepared here before this server shared images");
            Error::new(Code::ImageNotFound, why).hint("load or pull the image again")
        };
        match packing.await {
            Ok(Ok(true)) => put.map_err(|error| objects_error(&error)),
            Ok(Ok(false)) => Err(missing()),
            // The other side went away.
            Ok(Err(ImageError::Io { .. })) if !matches!(put, Ok(_) | Err(ObjectsError::Source(_))) => {
                put.map_err(|error| objects_error(&error))
            }
            Ok(Err(error)) => {
                // What was kept of it is of no use.
                self.forget_packed(BTreeSet::from([layer.clone()])).await?;
                tracing::error!(%layer, %error, "the packed form of a layer is damaged");
                Err(missing())
            }
            Err(error) => {
                tracing::error!(%error, "packing a layer panicked");
                Err(Error::new(Code::Internal, "a layer could not be packed"))
            }
        }
    }

    async fn forget_packed(&self, layers: BTreeSet<Digest>) -> Result<()> {
        let images = self.images().clone();
        let forgotten = tokio::task::spawn_blocking(move || {
            layers.iter().try_for_each(|layer| images.forget_packed(layer))
        });
        let broken = |_panicked| Error::new(Code::Internal, "packed layers could not be removed");
        forgotten.await.map_err(broken)?.map_err(|error| error.to_core())
    }
}
