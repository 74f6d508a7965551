//! Which images are in use, so that none is taken from under a sandbox or a template.

use std::collections::{BTreeMap, BTreeSet};

use atoll_core::Result;
use atoll_core::layer::Layer;
use atoll_image::Digest;

use crate::engine::Engine;
use crate::errors::store_error;

impl Engine {
    /// Digests of the images that sandboxes, templates and snapshots use.
    ///
    /// # Errors
    /// [`atoll_core::Code::StoreUnavailable`].
    pub async fn images_in_use(&self) -> Result<BTreeSet<Digest>> {
        let digests = |image: Option<String>, layers: BTreeMap<String, Layer>| {
            image.into_iter().chain(layers.into_values().map(|layer| layer.digest))
        };
        let sandboxes = self.inner.all_sandboxes().into_iter().flat_map(|sandbox| {
            let record = sandbox.record();
            digests(record.image_digest, record.spec.layers)
        });
        let snapshots = self.all_snapshots().await?.into_iter();
        let snapshots =
            snapshots.flat_map(|snapshot| digests(snapshot.manifest.image_digest, snapshot.manifest.layers));
        let mut used: BTreeSet<Digest> = sandboxes
            .chain(self.inner.pools.images())
            .chain(snapshots)
            .filter_map(|digest| self.inner.images.resolve(&digest).ok())
            .map(|image| image.digest.clone())
            .collect();
        for template in self.inner.store.list_templates(None).await.map_err(store_error)? {
            if let Ok(image) = self.inner.images.resolve(&template.spec.image) {
                used.insert(image.digest.clone());
            }
        }
        Ok(used)
    }
}
