//! Which layers stay. A layer goes when no image needs it and no pull or load has pinned it: a [`Pin`] is taken before its
//! user looks for the layer, so the two cannot miss each other.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use super::{Inner, locked};
use crate::error::{ImageError, Result};
use crate::files::file_names;
use crate::layer::{Prepared, boot_id};

/// Pins every layer: for an import, which does not know the key of its layer beforehand.
pub(crate) const PIN_ALL: &str = "*";

/// Keeps layers from being collected as long as it lives.
#[derive(Debug)]
pub(crate) struct Pin {
    inner: Arc<Inner>,
    keys: Vec<String>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = locked(&self.inner.pins);
        for key in &self.keys {
            if let Some(count) = pins.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    pins.remove(key);
                }
            }
        }
    }
}

impl Inner {
    /// Keeps these layers, whether they are there yet or not.
    pub(crate) fn pin(self: &Arc<Self>, keys: Vec<String>) -> Pin {
        let mut pins = locked(&self.pins);
        for key in &keys {
            *pins.entry(key.clone()).or_default() += 1;
        }
        Pin { inner: Arc::clone(self), keys }
    }

    /// Deletes those of the chosen layers that no image needs and no pull or load has pinned. Deletes all such packed
    /// layers, chosen or not.
    pub(crate) fn collect(&self, chosen: impl Fn(&str) -> bool) -> Result<u64> {
        let fail = |error| ImageError::io("remove a layer", error);
        let mut needed: BTreeSet<String> = BTreeSet::new();
        for (record, _) in self.index().images.values() {
            // Packed ones go by their diff id.
            let names = |layer: &Prepared| [layer.key.clone(), layer.diff_id.hex().to_owned()];
            needed.extend(record.layers.iter().flat_map(names));
        }
        let mut freed = 0;
        let mut doomed = Vec::new();
        {
            // A pull or load pins a layer first and looks for it afterwards. So either this collection sees the pin and
            // keeps the layer, or the pull or load finds that the layer is missing.
            let pins = locked(&self.pins);
            if pins.contains_key(PIN_ALL) {
                return Ok(0);
            }
            needed.extend(pins.keys().cloned());
            freed += self.drop_packed(|name| needed.contains(name))?;
            for key in file_names(&self.layers())? {
                if needed.contains(&key) || !chosen(&key) {
                    continue;
                }
                freed += Prepared::read(&self.layers(), &key)?.map_or(0, |layer| layer.size_bytes);
                let grave = tempfile::tempdir_in(self.tmp()).map_err(fail)?;
                fs::rename(self.layers().join(&key), grave.path().join("layer")).map_err(fail)?;
                doomed.push(grave);
            }
        }
        for grave in doomed {
            grave.close().map_err(fail)?;
        }
        Ok(freed)
    }

    /// Layers are not synced before an image is recorded. After a crash of the host, those that belong to
    /// no image may have holes; after a crash of this process they are whole.
    pub(super) fn drop_doubtful_layers(&self) -> Result<()> {
        let boot = boot_id()?;
        let layers = self.layers();
        self.collect(|key| !matches!(Prepared::read(&layers, key), Ok(Some(layer)) if layer.boot == boot))?;
        Ok(())
    }
}
