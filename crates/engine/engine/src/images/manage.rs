//! Listing and removing images: on one server those that are here, in a cluster those that any node can have.

use std::collections::BTreeSet;
use std::sync::Arc;

use atoll_core::Result;
use atoll_image::{Asked, Digest, Document, Image, ImageError, Removed, local_or_normal};
use atoll_store::{SharedImage, StoreError};

use super::Shared;
use crate::boxed;
use crate::engine::Engine;
use crate::errors::store_error;

/// Where an image of a cluster is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImagePlace {
    /// On this node alone, as yet.
    Here,
    /// Here, and every node can have it.
    Shared,
    /// Not here; it comes when it is needed.
    Elsewhere,
}

/// An image in a list.
#[derive(Debug, Clone)]
pub struct ListedImage {
    /// The image. Of one that is not here the paths of its layers lead nowhere.
    pub image: Arc<Image>,
    /// Where it is; absent where there are no nodes that share images.
    pub place: Option<ImagePlace>,
}

impl Engine {
    /// The images that are here, and those that every node can have, by digest.
    ///
    /// # Errors
    /// [`atoll_core::Code::StoreUnavailable`].
    #[boxed]
    pub async fn list_images(&self) -> Result<Vec<ListedImage>> {
        let here = self.images().list();
        if self.inner.shared_images.is_none() {
            return Ok(here.into_iter().map(|image| ListedImage { image, place: None }).collect());
        }
        let shared = self.inner.store.shared_images().await.map_err(store_error)?;
        let digests: BTreeSet<&str> = shared.iter().map(|image| image.digest.as_str()).collect();
        let place = |image: &Image| {
            let is_shared = digests.contains(image.digest.as_str());
            Some(if is_shared { ImagePlace::Shared } else { ImagePlace::Here })
        };
        let mut all: Vec<ListedImage> =
            here.iter().map(|image| ListedImage { image: Arc::clone(image), place: place(image) }).collect();
        for found in &shared {
            if here.iter().any(|image| image.digest.as_str() == found.digest) {
                continue;
            }
            match Document::parse(&found.document, &found.digest) {
                Ok(document) => all.push(ListedImage {
                    image: Arc::new(document.image(found.names.keys().cloned().collect())),
                    place: Some(ImagePlace::Elsewhere),
                }),
                Err(error) => {
                    tracing::warn!(image = found.digest, %error, "an image is left out of the list");
                }
            }
        }
        all.sort_by(|one, other| one.image.digest.cmp(&other.image.digest));
        Ok(all)
    }

    /// Removes a name of an image, and the image with its last name; given a digest, the image with all its names. In a cluster
    /// from every node.
    ///
    /// # Errors
    /// [`atoll_core::Code::ImageNotFound`]; [`atoll_core::Code::ImageInUse`] while a sandbox, template or snapshot needs it.
    #[boxed]
    pub async fn remove_image(&self, text: &str) -> Result<Removed> {
        let digest = self.images().resolve(text).map(|image| image.digest.clone()).ok();
        let used = self.images_to_keep(|image| Some(&image.digest) == digest.as_ref()).await?;
        let Some(shared) = &self.inner.shared_images else { return self.remove_here(text, &used).await };
        let _turn = shared.naming.lock().await;
        let found = match self.images().resolve(text) {
            Ok(image) => self.find_shared(image.digest.as_str()).await?,
            Err(ImageError::NotFound(_)) => self.find_shared(text).await?,
            Err(error) => return Err(error.to_core()),
        };
        let Some(found) = found else { return self.remove_here(text, &used).await };
        self.remove_shared(shared, text, found, &used).await
    }

    async fn remove_here(&self, text: &str, used: &BTreeSet<Digest>) -> Result<Removed> {
        self.images().remove(text, used).await.map_err(|error| error.to_core())
    }

    /// Removes an image, or one of its names, that every node can have.
    async fn remove_shared(
        &self,
        shared: &Arc<Shared>,
        text: &str,
        found: SharedImage,
        used: &BTreeSet<Digest>,
    ) -> Result<Removed> {
        let store = &self.inner.store;
        let here = self.images().resolve(&found.digest).ok();
        let mut names: BTreeSet<String> = found.names.into_keys().collect();
        names.extend(here.iter().flat_map(|image| image.names.clone()));
        let asked = [Some(text.to_owned()), local_or_normal(text).ok()];
        let name = asked.into_iter().flatten().find(|name| names.contains(name));
        if let Some(name) = name.filter(|_| names.len() > 1) {
            store.remove_shared_name(&name, &found.digest, self.inner.now_ms()).await.map_err(store_error)?;
            self.images().forget_name(&name).await.map_err(|error| error.to_core())?;
            self.follow_with_turn(shared).await?;
            return Ok(Removed { names: vec![name], ..Removed::default() });
        }
        let digest: Digest = found.digest.parse().map_err(|error: ImageError| error.to_core())?;
        let is_used = used.contains(&digest)
            || store.is_image_used(&found.digest).await.map_err(store_error)?
            || self.is_in_a_template(&found.digest, &names).await?;
        if is_used {
            return Err(ImageError::InUse(found.digest).to_core());
        }
        match store.remove_shared_image(&found.digest, self.inner.now_ms()).await {
            // Another node has begun to use it since.
            Err(StoreError::Conflict) => return Err(ImageError::InUse(found.digest).to_core()),
            removed => {
                removed.map_err(store_error)?;
            }
        }
        atoll_failpoint::fail_point!("engine.images.removed");
        let mut freed_bytes = self.follow_with_turn(shared).await?;
        if self.images().resolve(&found.digest).is_ok() {
            freed_bytes += self.remove_here(&found.digest, used).await?.freed_bytes;
        }
        Ok(Removed { names: names.into_iter().collect(), image: Some(digest), freed_bytes })
    }

    /// Whether a template names an image by its digest or one of these names, or may do so, as it cannot be read.
    async fn is_in_a_template(&self, digest: &str, names: &BTreeSet<String>) -> Result<bool> {
        let templates = self.inner.store.list_templates(None).await.map_err(store_error)?;
        let unreadable = !self.inner.store.unreadable_of("templates").is_empty();
        Ok(unreadable
            || templates.iter().filter_map(|template| Asked::parse(&template.spec.image).ok()).any(|asked| {
                let by_digest = asked.digest.is_some_and(|begin| digest.starts_with(&begin));
                by_digest || asked.names.iter().any(|name| names.contains(name))
            }))
    }

    /// Removes images that have no name and that nothing uses, here and for every node, and what interrupted pulls left here. Gives
    /// their digests, and the bytes that were freed here.
    ///
    /// # Errors
    /// [`atoll_core::Code::StoreUnavailable`]; what the host says.
    #[boxed]
    pub async fn prune_images(&self) -> Result<(BTreeSet<Digest>, u64)> {
        let used = self.images_to_keep(|image| image.names.is_empty()).await?;
        let before = self.images().list();
        let freed = self.images().prune(&used).await.map_err(|error| error.to_core())?;
        let left = self.images().list();
        let gone = before.iter().filter(|image| left.iter().all(|other| other.digest != image.digest));
        let mut gone: BTreeSet<Digest> = gone.map(|image| image.digest.clone()).collect();
        let Some(shared) = &self.inner.shared_images else { return Ok((gone, freed)) };
        let _turn = shared.naming.lock().await;
        let store = &self.inner.store;
        for image in store.shared_images().await.map_err(store_error)? {
            let is_named = |image: &SharedImage| {
                !image.names.is_empty()
                    || self.images().unshared().values().any(|(to, _said_ms)| to.as_str() == image.digest)
            };
            if is_named(&image)
                || store.is_image_used(&image.digest).await.map_err(store_error)?
                || self.is_in_a_template(&image.digest, &BTreeSet::new()).await?
            {
                continue;
            }
            match store.remove_shared_image(&image.digest, self.inner.now_ms()).await {
                Err(StoreError::Conflict) => continue,
                removed => {
                    removed.map_err(store_error)?;
                }
            }
            gone.extend(image.digest.parse::<Digest>().ok());
        }
        Ok((gone, freed + self.follow_with_turn(shared).await?))
    }
}
