//! The images that a sandbox stands on, where they are not on this node: from their registry, and exactly those.

use atoll_core::{Code, Error, Result};
use atoll_image::{NoProgress, PullOptions};
use atoll_store::SandboxRecord;
use tokio::runtime::Handle;

use crate::engine::Engine;

impl Engine {
    /// Pulls what a sandbox stands on and is not here: its image, and its agent layers.
    ///
    /// # Errors
    /// What the registry says; [`atoll_core::Code::ImageNotFound`] for an image that came from no registry.
    pub(crate) async fn obtain_images(&self, record: &SandboxRecord) -> Result<()> {
        let image = record.image_digest.iter().map(|digest| (record.spec.image.as_str(), digest.as_str()));
        let layers = record.spec.layers.values().map(|layer| (layer.image.as_str(), layer.digest.as_str()));
        let wanted: Vec<(&str, &str)> = image.chain(layers).collect();
        for (name, digest) in wanted {
            if self.inner.images.resolve(digest).is_err() {
                self.pull_exact(name, digest).await?;
            }
        }
        Ok(())
    }

    async fn pull_exact(&self, name: &str, digest: &str) -> Result<()> {
        let host = atoll_image::registry_of(name).map_err(|error| error.to_core())?;
        let credentials = self.registry_credentials(&host).await?;
        let known = credentials.is_some();
        let options = PullOptions { known, credentials, ..PullOptions::default() };
        tracing::info!(image = name, digest, "pulling what a sandbox that came here stands on");
        let reference = format!("{}@{digest}", without_tag(name));
        let (images, stop, runtime) =
            (self.inner.images.clone(), self.inner.shutdown.clone(), Handle::current());
        // On a thread of its own, as builds do it.
        let pulling = tokio::task::spawn_blocking(move || {
            runtime.block_on(stop.run_until_cancelled(images.pull(&reference, &options, &NoProgress)))
        });
        let pulled = match pulling.await {
            Ok(Some(pulled)) => pulled,
            Ok(None) => return Err(Error::new(Code::ShuttingDown, "the server is shutting down")),
            Err(error) => {
                tracing::error!(%error, "a pull panicked");
                return Err(Error::new(Code::Internal, "the image could not be pulled"));
            }
        };
        pulled.map(drop).map_err(|error| {
            let error = error.to_core();
            Error {
                message: format!("its image {name} ({digest}) is not on this node: {}", error.message),
                ..error
            }
        })
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
