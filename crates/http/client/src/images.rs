//! Images and registries.

use atoll_api::{
    ImageList, ImageProgress, PruneResult, PullImage, RegistryCredentials, RegistryList, RemovedImage,
};
use bytes::Bytes;
use futures::Stream;
use http::Method;

use crate::lines::lines;
use crate::{Client, Result};

/// # Errors
/// Every call fails with [`crate::ClientError`]; so may each item of a progress stream, after which
/// there is no further one. A stream that ends without `done` or `error` ends with such a failure.
impl Client {
    /// All images.
    pub async fn list_images(&self) -> Result<ImageList> {
        self.call(self.request(Method::GET, self.target(["v1", "images"]))).await
    }

    /// Pulls from a registry. Dropping the stream stops the pull; the next one continues what came.
    pub async fn pull_image(
        &self,
        pull: &PullImage,
    ) -> Result<impl Stream<Item = Result<ImageProgress>> + Send + Unpin + use<>> {
        let request = self.request(Method::POST, self.target(["v1", "images", "pull"])).json(pull);
        Ok(lines(self.clone(), self.open(request).await?))
    }

    /// Loads a `docker save` or OCI layout tar.
    pub async fn load_image(
        &self,
        tar: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    ) -> Result<impl Stream<Item = Result<ImageProgress>> + Send + Unpin> {
        let body = reqwest::Body::wrap_stream(tar);
        let request = self.request(Method::POST, self.target(["v1", "images", "load"])).body(body);
        Ok(lines(self.clone(), self.send(request).await?))
    }

    /// Makes an image called `name`, and `also` like that, of a root file system's tar.
    pub async fn import_image(
        &self,
        name: &str,
        also: Option<&str>,
        tar: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    ) -> Result<impl Stream<Item = Result<ImageProgress>> + Send + Unpin> {
        let body = reqwest::Body::wrap_stream(tar);
        let target = self.target(["v1", "images", "import"]).query("name", name).maybe("also", also);
        let request = self.request(Method::POST, target).body(body);
        Ok(lines(self.clone(), self.send(request).await?))
    }

    /// Takes a name off an image, and removes the image with its last name. `name` may be a digest.
    pub async fn remove_image(&self, name: &str) -> Result<RemovedImage> {
        let target = self.target(["v1", "images"].into_iter().chain(name.split('/')));
        self.call(self.request(Method::DELETE, target)).await
    }

    /// Removes all images that nothing uses.
    pub async fn prune_images(&self) -> Result<PruneResult> {
        self.call(self.request(Method::POST, self.target(["v1", "images", "prune"]))).await
    }

    /// Registries with stored credentials.
    pub async fn list_registries(&self) -> Result<RegistryList> {
        self.call(self.request(Method::GET, self.target(["v1", "registries"]))).await
    }

    /// Stores credentials for a registry.
    pub async fn set_registry(&self, host: &str, credentials: &RegistryCredentials) -> Result<()> {
        let target = self.target(["v1", "registries", host]);
        self.call_empty(self.request(Method::PUT, target).json(credentials)).await
    }

    /// Forgets the credentials of a registry.
    pub async fn delete_registry(&self, host: &str) -> Result<()> {
        self.call_empty(self.request(Method::DELETE, self.target(["v1", "registries", host]))).await
    }
}
