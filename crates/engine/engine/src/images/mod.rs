//! Images: which are in use, and those that every node of a cluster can have.
//!
//! ```text
//! share     what came here goes into the object store, and the other nodes are told
//! obtain    what is needed here and is not here comes from there, or from its registry
//! manage    all of them are listed, and removed everywhere
//! template  the same of the disks on which templates stand
//! collect   objects that nothing needs are removed
//! trim      what was used here longest ago makes room, while the others have it
//! ```
//!
//! The database says which images there are and which names they have: a node follows it. In the object store, below a directory that
//! the database names, lies
//!
//! ```text
//! layers/<diff id>/<upload>     a layer, packed; believed by the digest of what it unpacks to
//! snapshots/<id>/<upload>       the disk of a template, as snapshots are exported; believed by its digest
//! ```
//!
//! What else belongs to an image is a row, see `atoll_store`'s module `shared_images`. An upload is what a node calls everything that it
//! sends between two starts, so that no two processes ever write, or remove, under the same name. Nothing of it is there on a server
//! that is no node, or has no object store.

mod collect;
mod manage;
mod obtain;
mod share;
mod template;
mod trim;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use atoll_core::Result;
use atoll_core::id::SnapshotId;
use atoll_core::layer::Layer;
use atoll_core::placement::image_mark;
use atoll_image::{Coming, Digest, Elsewhere, Found, Images};
use atoll_objects::{Objects, ObjectsError};
use atoll_store::{SharedIndex, SharedLayer, Store};
use bytes::Bytes;
use futures::FutureExt as _;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use tokio::sync::{Notify, Semaphore};

use crate::boxed;
use crate::clock::random;
use crate::config::Config;
use crate::engine::Engine;
use crate::errors::store_error;

use template::Templates;

pub use manage::{ImagePlace, ListedImage};

/// Images that are fetched at the same time: each has several layers on their way.
const TAKE_AT_ONCE: usize = 2;
/// Pause before what failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// What a node has for images that all can have.
#[derive(Debug)]
pub(crate) struct Shared {
    objects: Objects,
    /// The directory there.
    place: String,
    /// The name under which this node sends objects.
    upload: String,
    /// Told when the list of images in the database has changed.
    pub(crate) changed: Notify,
    /// Held while something is sent, or what was sent is collected.
    sending: tokio::sync::Mutex<()>,
    /// Held while names are told, or followed.
    naming: tokio::sync::Mutex<()>,
    taking: Semaphore,
    /// For each image, by its digest: one request fetches it, the others wait for that.
    turns: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
    /// Marks of what every node can have: digests and names.
    marks: RwLock<HashSet<u64>>,
    templates: Templates,
    /// When each image was used here last, milliseconds since 1970.
    used: Mutex<HashMap<Digest, u64>>,
}

impl Shared {
    pub(crate) async fn open(config: &Config, store: &Store, images: &Images) -> Result<Option<Self>> {
        let (Some(objects), Some(_node)) = (&config.objects, store.lease()) else { return Ok(None) };
        let fresh = format!("{:016x}{:016x}", random()?, random()?);
        let place = format!("images/{}", store.kept_place(&fresh).await.map_err(store_error)?);
        let upload = format!("{:012x}{:016x}", config.clock.now_ms(), random()?);
        store.begin_image_uploads(&upload).await.map_err(store_error)?;
        let layers = Layers { objects: objects.clone(), place: place.clone(), store: store.clone() };
        images.look_elsewhere(Arc::new(layers));
        Ok(Some(Self {
            objects: objects.clone(),
            place,
            upload,
            changed: Notify::new(),
            sending: tokio::sync::Mutex::default(),
            naming: tokio::sync::Mutex::default(),
            taking: Semaphore::new(TAKE_AT_ONCE),
            turns: Mutex::default(),
            marks: RwLock::default(),
            templates: Templates::default(),
            used: Mutex::default(),
        }))
    }

    fn snapshot_object(&self, id: &SnapshotId, upload: &str) -> String {
        format!("{}/snapshots/{id}/{upload}", self.place)
    }

    fn object(&self, layer: &Digest, upload: &str) -> String {
        object(&self.place, layer, upload)
    }

    /// Whether every node can have an image with this mark, as far as is known here.
    pub(crate) fn has(&self, mark: u64) -> bool {
        self.marks.read().unwrap_or_else(PoisonError::into_inner).contains(&mark)
    }

    /// Takes in which images there are; says whether one went away.
    fn see(&self, index: &SharedIndex) -> bool {
        let all = index.digests.iter().chain(index.names.keys());
        let marks: HashSet<u64> = all.map(|text| image_mark(text)).collect();
        let is_less = self.templates.see(&index.snapshots);
        let before =
            std::mem::replace(&mut *self.marks.write().unwrap_or_else(PoisonError::into_inner), marks);
        is_less || !self.marks.read().unwrap_or_else(PoisonError::into_inner).is_superset(&before)
    }

    /// The turn of the requests that want the image with this digest.
    fn turn(&self, digest: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get(digest).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        turns.insert(digest.to_owned(), Arc::downgrade(&turn));
        turn
    }
}

fn object(place: &str, layer: &Digest, upload: &str) -> String {
    format!("{place}/layers/{}/{upload}", layer.hex())
}

/// The layers in the object store.
#[derive(Debug)]
struct Layers {
    objects: Objects,
    place: String,
    store: Store,
}

impl Elsewhere for Layers {
    fn layer<'a>(&'a self, diff_id: &'a Digest) -> BoxFuture<'a, io::Result<Option<Found>>> {
        async move {
            let layer = self.store.shared_layer(diff_id.as_str()).await.map_err(io::Error::other)?;
            // One that is doubted may have been put back.
            let Some(SharedLayer { upload, bytes, .. }) = layer else { return Ok(None) };
            match self.objects.get(&object(&self.place, diff_id, &upload)).await {
                Ok(coming) => Ok(Some(Found { place: upload, coming: at_most(coming, bytes) })),
                Err(ObjectsError::NotFound) => {
                    self.doubt(diff_id, &upload, "is gone").await;
                    Ok(None)
                }
                Err(error) => Err(io::Error::other(error)),
            }
        }
        .boxed()
    }

    fn has<'a>(&'a self, diff_id: &'a Digest) -> BoxFuture<'a, io::Result<bool>> {
        async move {
            let layer = self.store.shared_layer(diff_id.as_str()).await.map_err(io::Error::other)?;
            Ok(layer.is_some_and(|layer| !layer.is_doubted))
        }
        .boxed()
    }

    fn damaged<'a>(&'a self, diff_id: &'a Digest, place: &'a str) -> BoxFuture<'a, ()> {
        self.doubt(diff_id, place, "is not what was sent").boxed()
    }
}

impl Layers {
    /// Marks the layer as doubted, so that a node that has it may send it again.
    async fn doubt(&self, layer: &Digest, upload: &str, why: &str) {
        match self.store.doubt_shared_layer(layer.as_str(), upload).await {
            Ok(true) => {
                tracing::error!(%layer, upload, "an object of a layer {why}: pull or load an image that has it again");
            }
            Ok(false) => {}
            Err(error) => tracing::warn!(%layer, %error, "that an object of a layer is lost is not known"),
        }
    }
}

/// No more than was sent: a writer to the object store must not fill this node's disk before the digest is checked.
fn at_most(coming: Coming, bytes: u64) -> Coming {
    let mut left = bytes;
    let within = move |piece: io::Result<Bytes>| {
        let piece = piece?;
        let more = || {
            let why = "the object store has more in its place than was sent";
            io::Error::new(io::ErrorKind::InvalidData, why)
        };
        left = left.checked_sub(piece.len() as u64).ok_or_else(more)?;
        Ok(piece)
    };
    coming.map(within).boxed()
}

/// Starts what a node does all the time for images that all can have.
pub(crate) fn start(engine: &Engine) {
    if engine.inner.shared_images.is_some() {
        engine.spawn_while_open(share::keep(engine.clone()));
        engine.spawn_while_open(follow(engine.clone()));
        engine.spawn_while_open(template::keep(engine.clone()));
        engine.spawn_while_open(trim::keep(engine.clone()));
    }
}

async fn follow(engine: Engine) {
    let Some(shared) = engine.inner.shared_images.clone() else { return };
    loop {
        if let Err(error) = engine.follow_images().await {
            tracing::warn!(%error, "which images there are is not known, trying again");
            engine.inner.clock.sleep(RETRY).await;
            continue;
        }
        shared.changed.notified().await;
    }
}

impl Engine {
    /// Makes this node's images what the database says: names, and what was removed.
    pub(crate) async fn follow_images(&self) -> Result<u64> {
        let Some(shared) = &self.inner.shared_images else { return Ok(0) };
        let _turn = shared.naming.lock().await;
        self.follow_with_turn(shared).await
    }

    /// The same, for a caller that holds [`Shared::naming`]. Gives the bytes that were freed here.
    async fn follow_with_turn(&self, shared: &Arc<Shared>) -> Result<u64> {
        let index = self.inner.store.shared_index().await.map_err(store_error)?;
        let is_less = shared.see(&index);
        // What cannot be read is another version's.
        let digests: BTreeSet<Digest> =
            index.digests.iter().filter_map(|digest| digest.parse().ok()).collect();
        let names = index.names.into_iter().filter_map(|(name, digest)| Some((name, digest.parse().ok()?)));
        let in_use = self.images_to_keep(|image| !digests.contains(&image.digest)).await?;
        let freed = self.images().follow(names.collect(), digests, in_use).await;
        shared.templates.changed.notify_one();
        if is_less {
            let engine = self.clone();
            self.spawn_while_open(async move { engine.collect_shared().await });
        }
        freed.map_err(|error| error.to_core())
    }

    /// What [`Self::images_in_use`] gives, for a caller that is about to remove the other images: pools by demand that
    /// stand on those go first.
    async fn images_to_keep(&self, goes: impl Fn(&atoll_image::Image) -> bool) -> Result<BTreeSet<Digest>> {
        let used = self.images_in_use().await?;
        let has_gone = self.let_go_of_images(|image| goes(image) && !used.contains(&image.digest));
        // A caller may have got the last member of such a pool meanwhile.
        if has_gone { self.images_in_use().await } else { Ok(used) }
    }

    /// Lets go of what is kept ready by demand of some images. Says whether there was any.
    fn let_go_of_images(&self, goes: impl Fn(&atoll_image::Image) -> bool) -> bool {
        self.inner.pools.let_go(|kind| {
            let image = kind.mold.image.as_deref().and_then(|digest| self.images().resolve(digest).ok());
            image.is_some_and(|image| goes(&image))
        })
    }

    /// Digests of the images that sandboxes, templates and snapshots use. Those that an unreadable row uses are not known:
    /// then all are in use.
    ///
    /// # Errors
    /// [`atoll_core::Code::StoreUnavailable`].
    #[boxed]
    pub async fn images_in_use(&self) -> Result<BTreeSet<Digest>> {
        let mut used = self.images_stood_on().await?;
        let templates = self.inner.store.list_templates(None).await.map_err(store_error)?;
        if !self.inner.store.unreadable_of("templates").is_empty() {
            return Ok(self.all_images());
        }
        for template in templates {
            if let Ok(image) = self.inner.images.resolve(&template.spec.image) {
                used.insert(image.digest.clone());
            }
        }
        Ok(used)
    }

    fn all_images(&self) -> BTreeSet<Digest> {
        self.inner.images.list().into_iter().map(|image| image.digest.clone()).collect()
    }

    /// Digests of the images that something on this node stands on; of all images when there are rows that cannot be read.
    async fn images_stood_on(&self) -> Result<BTreeSet<Digest>> {
        let digests = |image: Option<String>, layers: BTreeMap<String, Layer>| {
            image.into_iter().chain(layers.into_values().map(|layer| layer.digest))
        };
        let sandboxes = self.inner.all_sandboxes().into_iter().flat_map(|sandbox| {
            let record = sandbox.record();
            digests(record.image_digest, record.spec.layers)
        });
        let snapshots = self.all_snapshots().await?.into_iter();
        let store = &self.inner.store;
        if !store.unreadable_of("sandboxes").is_empty() || !store.unreadable_of("snapshots").is_empty() {
            return Ok(self.all_images());
        }
        let snapshots =
            snapshots.flat_map(|snapshot| digests(snapshot.manifest.image_digest, snapshot.manifest.layers));
        let used = sandboxes.chain(self.inner.pools.images()).chain(snapshots);
        let images = used.filter_map(|digest| self.inner.images.resolve(&digest).ok());
        Ok(images.map(|image| image.digest.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_of_a_layer() {
        let digest = Digest::of(b"x");
        assert_eq!(object("images/p", &digest, "u"), format!("images/p/layers/{}/u", digest.hex()));
    }
}
