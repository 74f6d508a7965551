//! Agent layers of sandboxes: which images they are, and what drivers are told.

use std::collections::BTreeMap;

use atoll_core::layer::{Layer, check_places};
use atoll_core::spec::SandboxSpec;
use atoll_core::{Code, Error, Result};
use atoll_isolation::PlannedLayer;

use crate::engine::Inner;
use crate::errors::isolation_error;

impl Inner {
    /// The layers that a sandbox has after a change: those that it has, with images put in their places (`Some`) or taken
    /// away (`None`).
    ///
    /// # Errors
    /// [`Code::ImageNotFound`]; [`Code::InvalidArgument`] for an image that is no layer; [`Code::PathInvalid`] when a volume
    /// is in the way; [`Code::Unenforceable`] at a level without layers.
    pub(crate) fn change_layers<'a>(
        &self,
        spec: &SandboxSpec,
        changes: impl Iterator<Item = (&'a String, Option<&'a String>)>,
    ) -> Result<BTreeMap<String, Layer>> {
        let mut layers = spec.layers.clone();
        for (name, image) in changes {
            match image {
                Some(image) => drop(layers.insert(name.clone(), self.layer(name, image)?)),
                None => drop(layers.remove(name)),
            }
        }
        check_places(&layers, &spec.volumes)?;
        if !layers.is_empty() {
            self.driver(spec.isolation)?.check_layers().map_err(|error| isolation_error(&error))?;
        }
        Ok(layers)
    }

    fn layer(&self, name: &str, image: &str) -> Result<Layer> {
        let field = format!("layers.{name}");
        if image == "host" {
            return Err(Error::invalid(&field, "'host' is no agent layer"));
        }
        let found = self.images.resolve(image).map_err(|error| error.to_core())?;
        self.image_is_used(&found.digest);
        if found.layers.len() != 1 {
            let why = format_args!("the image has {} layers, and must have one", found.layers.len());
            return Err(Error::invalid(&field, why).hint("'atoll agent build' makes such"));
        }
        Ok(Layer { image: image.to_owned(), digest: found.digest.to_string() })
    }

    /// What a driver is told of a sandbox's layers.
    ///
    /// # Errors
    /// [`Code::ImageNotFound`] when one is not here: a snapshot can come from elsewhere.
    pub(crate) fn planned_layers(&self, layers: &BTreeMap<String, Layer>) -> Result<Vec<PlannedLayer>> {
        let planned = layers.iter().map(|(name, layer)| {
            let missing = || {
                let Layer { image, digest } = layer;
                Error::new(
                    Code::ImageNotFound,
                    format!("the agent layer {name}, {image} ({digest}), is not here"),
                )
                .hint("build or import exactly that first, or name another image for it")
            };
            let found = self.images.resolve(&layer.digest).map_err(|_missing| missing())?;
            self.image_is_used(&found.digest);
            let dir = found.layers.first().cloned().ok_or_else(missing)?;
            Ok(PlannedLayer { name: name.clone(), dir })
        });
        planned.collect()
    }
}
