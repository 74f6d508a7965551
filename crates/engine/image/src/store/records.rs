//! Records and names on disk. A record says which layers an image has, and a name to which record it leads; each is a small
//! file that is written before the index knows of it. An image is recorded only after its layers are synced.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::{Inner, Name, Whose};
use crate::digest::Digest;
use crate::error::{ImageError, Result};
use crate::files::{read_all, remove_file, write_json};
use crate::image::{Image, Record};
use crate::layer::Prepared;

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NameFile {
    name: String,
    digest: Digest,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    shared: bool,
    /// When it was given here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    said_ms: Option<u64>,
}

impl Inner {
    /// Records an image whose layers are all there, and names it. Blocking.
    pub(crate) fn record(&self, record: Record, names: &[String]) -> Result<Arc<Image>> {
        let _guard = self.changing();
        let digest = record.digest.clone();
        self.write_record(record)?;
        for name in names {
            self.write_name(name, &digest, Whose::Own)?;
        }
        Ok(self.renamed(&digest))
    }

    /// Writes a record down, if it is not there. The caller holds the lock of [`Self::changing`].
    pub(crate) fn write_record(&self, record: Record) -> Result<()> {
        let digest = record.digest.clone();
        let known = self.index().images.get(&digest).is_some_and(|(have, _)| *have == record);
        if !known {
            let fail = |error| ImageError::io("sync the image directory", error);
            let dir = File::open(&self.root).map_err(fail)?;
            rustix::fs::syncfs(&dir).map_err(|error| fail(error.into()))?;
            write_json(&self.tmp(), &self.record_path(&digest), &record)?;
            let image = Arc::new(record.image(Vec::new(), &self.layers()));
            self.index_mut().images.insert(digest, (record, image));
        }
        Ok(())
    }

    fn record_path(&self, digest: &Digest) -> PathBuf {
        self.root.join("images").join(format!("{}.json", digest.hex()))
    }

    /// Names may be longer than file names and hold slashes.
    fn name_path(&self, name: &str) -> PathBuf {
        self.root.join("refs").join(format!("{}.json", Digest::of(name.as_bytes()).hex()))
    }

    /// Writes a name down. The caller holds the lock of [`Self::changing`].
    pub(crate) fn write_name(&self, name: &str, digest: &Digest, whose: Whose) -> Result<()> {
        let said_ms = (whose == Whose::Own).then(now_ms);
        let shared = whose == Whose::All;
        let file = NameFile { name: name.to_owned(), digest: digest.clone(), shared, said_ms };
        write_json(&self.tmp(), &self.name_path(name), &file)?;
        let found = Name { digest: digest.clone(), unshared_since_ms: said_ms };
        let before = self.index_mut().names.insert(name.to_owned(), found);
        if let Some(before) = before.filter(|before| before.digest != *digest) {
            self.renamed(&before.digest);
        }
        if whose == Whose::Own {
            self.named.notify_one();
        }
        Ok(())
    }

    pub(crate) fn remove_name(&self, name: &str) -> Result<()> {
        remove_file(&self.name_path(name))?;
        self.index_mut().names.remove(name);
        Ok(())
    }

    /// Updates the names that the image in the index shows.
    pub(crate) fn renamed(&self, digest: &Digest) -> Arc<Image> {
        let mut index = self.index_mut();
        let of_it = index.names.iter().filter(|(_, to)| to.digest == *digest);
        let mut names: Vec<String> = of_it.map(|(name, _)| name.clone()).collect();
        names.sort();
        let layers = self.layers();
        let (record, image) = index.images.get_mut(digest).expect("callers hold the lock and know the image");
        *image = Arc::new(record.image(names, &layers));
        Arc::clone(image)
    }

    /// Removes record and names, and gives the keys of the image's layers.
    pub(crate) fn remove_image(&self, image: &Image) -> Result<BTreeSet<String>> {
        for name in &image.names {
            self.remove_name(name)?;
        }
        remove_file(&self.record_path(&image.digest))?;
        let gone = self.index_mut().images.remove(&image.digest);
        Ok(gone.into_iter().flat_map(|(record, _)| record.layers).map(|layer| layer.key).collect())
    }

    pub(super) fn read_index(&self) -> Result<()> {
        let mut index = self.index_mut();
        for record in read_all::<Record>(&self.root.join("images"))? {
            let there = |layer: &Prepared| matches!(Prepared::read(&self.layers(), &layer.key), Ok(Some(_)));
            if !record.layers.iter().all(there) {
                tracing::warn!(image = %record.digest, "an image lacks layers on disk; pull it again");
                continue;
            }
            let image = Arc::new(record.image(Vec::new(), &self.layers()));
            index.images.insert(record.digest.clone(), (record, image));
        }
        for file in read_all::<NameFile>(&self.root.join("refs"))? {
            if index.images.contains_key(&file.digest) {
                let unshared_since_ms = (!file.shared).then(|| file.said_ms.unwrap_or(0));
                let found = Name { digest: file.digest, unshared_since_ms };
                index.names.insert(file.name, found);
            }
        }
        let digests: Vec<_> = index.images.keys().cloned().collect();
        drop(index);
        for digest in &digests {
            self.renamed(digest);
        }
        Ok(())
    }
}
