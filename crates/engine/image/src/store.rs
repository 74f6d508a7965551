//! The images on disk, and the index of them in memory.
//!
//! Changes to records and names are made one at a time, on disk first, then in memory. Small files are
//! written whole (temporary file, sync, rename), so each is either old or new. Garbage collection moves a
//! layer to `tmp/` before it deletes it, so no reader sees half a layer.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::digest::{Digest, PREFIX};
use crate::error::{ImageError, Result};
use crate::fetch::Blobs;
use crate::files::{file_names, make_dir, read_all, remove_file, write_json};
use crate::image::{Image, Record};
use crate::layer::{Prepared, boot_id};
use crate::limits::{DIGEST_PREFIX_MIN_CHARS, UNPACKED_DEFAULT_BYTES};
use crate::reach::Reach;
use crate::reference::{Reference, local_or_normal};
use crate::shared::Elsewhere;

/// Settings that an operator may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// All layers of one image unpacked, bytes.
    pub unpacked_max_bytes: u64,
    /// The addresses that pulls may reach; public ones by default.
    pub reach: Reach,
    /// Whether packed layers stay until the engine has given them to the other nodes.
    pub keep_packed: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { unpacked_max_bytes: UNPACKED_DEFAULT_BYTES, reach: Reach::default(), keep_packed: false }
    }
}

/// What a removal did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// Names that are gone.
    pub names: Vec<String>,
    /// The image, if it is gone too and not only one of its names.
    pub image: Option<Digest>,
    /// Bytes of files that are gone.
    pub freed_bytes: u64,
}

/// The images of one directory. A clone is another handle on the same.
#[derive(Debug, Clone)]
pub struct Images {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    root: PathBuf,
    pub(crate) settings: Settings,
    pub(crate) blobs: Arc<Blobs>,
    index: RwLock<Index>,
    /// Held by a task while it changes records, names or layers on disk.
    changes: Mutex<()>,
    /// Layers that pulls and loads are about to use, each with the number of its users.
    pins: Mutex<BTreeMap<String, usize>>,
    /// Where the layers of other nodes are, if images are shared.
    pub(crate) elsewhere: OnceLock<Arc<dyn Elsewhere>>,
    /// A name was given to an image here.
    pub(crate) named: Notify,
    /// The lock on the directory, held as long as this process uses it.
    _lock: File,
}

#[derive(Debug, Default)]
struct Index {
    images: BTreeMap<Digest, (Record, Arc<Image>)>,
    names: HashMap<String, Name>,
}

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) digest: Digest,
    /// When it was given here, milliseconds since 1970; absent when all nodes know it.
    pub(crate) unshared_since_ms: Option<u64>,
}

/// Where a name comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// It was given on this node, now.
    Own,
    /// All nodes know it.
    All,
}

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

/// A panic while a lock was held leaves nothing half done here: every change is one assignment.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(ImageError::Io { what: "finish work on an image".into(), source: io::Error::other(error) })
    })
}

impl Images {
    /// Opens a directory, which is made when it is not there, and cleans what an earlier process left half
    /// done. Blocking: reads every record.
    ///
    /// # Errors
    /// [`ImageError::Locked`] when another process has it; [`ImageError::Io`].
    pub fn open(dir: &Path) -> Result<Self> {
        Self::open_with(dir, Settings::default())
    }

    /// [`Images::open`] with settings.
    ///
    /// # Errors
    /// As [`Images::open`].
    pub fn open_with(dir: &Path, settings: Settings) -> Result<Self> {
        let fail = |error| ImageError::io("open the image directory", error);
        make_dir(dir).map_err(fail)?;
        let root = fs::canonicalize(dir).map_err(fail)?;
        let lock = File::create(root.join("lock")).map_err(fail)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            rustix::io::Errno::WOULDBLOCK => ImageError::Locked(root.clone()),
            other => fail(other.into()),
        })?;
        for part in ["layers", "images", "refs", "partial", "packed", "tmp"] {
            make_dir(&root.join(part)).map_err(fail)?;
        }
        let inner = Inner {
            blobs: Arc::new(Blobs::new(root.join("partial"))),
            root,
            settings,
            index: RwLock::default(),
            changes: Mutex::default(),
            pins: Mutex::default(),
            elsewhere: OnceLock::new(),
            named: Notify::new(),
            _lock: lock,
        };
        inner.empty_tmp()?;
        inner.read_index()?;
        inner.drop_doubtful_layers()?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Finds an image by name, reference or digest. No I/O.
    ///
    /// A name is looked up as it stands first, then in its normal form; `sha256:…` may be cut down to 12
    /// digits, and the prefix may be left out.
    ///
    /// # Errors
    /// [`ImageError::NotFound`], [`ImageError::Ambiguous`] or [`ImageError::BadReference`].
    pub fn resolve(&self, name: &str) -> Result<Arc<Image>> {
        let index = self.inner.index();
        let digest = index.find(name)?;
        index.images.get(&digest).map(|(_, image)| Arc::clone(image)).ok_or_else(|| missing(name))
    }

    /// All images, sorted by digest. No I/O.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Image>> {
        self.inner.index().images.values().map(|(_, image)| Arc::clone(image)).collect()
    }

    /// Gives an image another name; the name leaves the image that had it.
    ///
    /// # Errors
    /// [`ImageError::NotFound`], [`ImageError::BadReference`], [`ImageError::HostFull`].
    pub async fn tag(&self, digest: &Digest, name: &str) -> Result<Arc<Image>> {
        let (inner, digest, name) = (Arc::clone(&self.inner), digest.clone(), local_or_normal(name)?);
        blocking(move || {
            let _guard = locked(&inner.changes);
            if !inner.index().images.contains_key(&digest) {
                return Err(missing(digest.as_str()));
            }
            inner.write_name(&name, &digest, Whose::Own)?;
            Ok(inner.renamed(&digest))
        })
        .await
    }

    /// Removes a name, and the image with it when this was the last one; given a digest, removes the image
    /// with all its names. Layers that no other image uses go too.
    ///
    /// # Errors
    /// [`ImageError::InUse`] when the image would go and is in `in_use`; as [`Images::resolve`].
    pub async fn remove(&self, name_or_digest: &str, in_use: &BTreeSet<Digest>) -> Result<Removed> {
        let (inner, given, in_use) = (Arc::clone(&self.inner), name_or_digest.to_owned(), in_use.clone());
        blocking(move || {
            let _guard = locked(&inner.changes);
            let image = {
                let index = inner.index();
                let digest = index.find(&given)?;
                index.images.get(&digest).map(|(_, image)| Arc::clone(image))
            };
            let image = image.ok_or_else(|| missing(&given))?;
            let name = [Some(given.clone()), local_or_normal(&given).ok()]
                .into_iter()
                .flatten()
                .find(|name| image.names.contains(name));
            if let Some(name) = name.filter(|_| image.names.len() > 1) {
                inner.remove_name(&name)?;
                inner.renamed(&image.digest);
                return Ok(Removed { names: vec![name], ..Removed::default() });
            }
            if in_use.contains(&image.digest) {
                return Err(ImageError::InUse(image.digest.to_string()));
            }
            let keys = inner.remove_image(&image)?;
            let freed_bytes = inner.collect(|key| keys.contains(key))?;
            Ok(Removed { names: image.names.clone(), image: Some(image.digest.clone()), freed_bytes })
        })
        .await
    }

    /// Removes images that have no name and are not in `in_use`, layers that belong to no image, and what
    /// interrupted pulls left. What a running pull or load works on stays. Gives the bytes that were freed.
    ///
    /// # Errors
    /// [`ImageError::Io`].
    pub async fn prune(&self, in_use: &BTreeSet<Digest>) -> Result<u64> {
        let (inner, in_use) = (Arc::clone(&self.inner), in_use.clone());
        blocking(move || {
            let _guard = locked(&inner.changes);
            let nameless: Vec<_> = {
                let index = inner.index();
                let images = index.images.values().map(|(_, image)| Arc::clone(image));
                images.filter(|image| image.names.is_empty() && !in_use.contains(&image.digest)).collect()
            };
            for image in nameless {
                inner.remove_image(&image)?;
            }
            Ok(inner.collect(|_| true)? + inner.blobs.prune()?)
        })
        .await
    }
}

fn missing(name: &str) -> ImageError {
    ImageError::NotFound(name.to_owned())
}

impl Index {
    fn find(&self, name: &str) -> Result<Digest> {
        if let Some(found) = self.names.get(name) {
            return Ok(found.digest.clone());
        }
        let hex = name.strip_prefix(PREFIX);
        if let Some(digest) = self.find_prefix(hex.unwrap_or(name))? {
            return Ok(digest);
        }
        if hex.is_some() {
            return Err(missing(name));
        }
        let reference = Reference::parse(name)?;
        let pinned = reference.digest().filter(|digest| self.images.contains_key(digest));
        let named = self.names.get(&reference.name()).map(|found| &found.digest);
        named.or(pinned).cloned().ok_or_else(|| missing(name))
    }

    fn find_prefix(&self, hex: &str) -> Result<Option<Digest>> {
        let long = (DIGEST_PREFIX_MIN_CHARS..=64).contains(&hex.len());
        if !long || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Ok(None);
        }
        let mut found = self.images.keys().filter(|digest| digest.hex().starts_with(hex));
        match (found.next(), found.next()) {
            (Some(_), Some(_)) => Err(ImageError::Ambiguous(hex.to_owned())),
            (first, _) => Ok(first.cloned()),
        }
    }
}

impl Inner {
    pub(crate) fn layers(&self) -> PathBuf {
        self.root.join("layers")
    }

    pub(crate) fn tmp(&self) -> PathBuf {
        self.root.join("tmp")
    }

    fn index(&self) -> std::sync::RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn index_mut(&self) -> std::sync::RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps these layers, whether they are there yet or not.
    pub(crate) fn pin(self: &Arc<Self>, keys: Vec<String>) -> Pin {
        let mut pins = locked(&self.pins);
        for key in &keys {
            *pins.entry(key.clone()).or_default() += 1;
        }
        Pin { inner: Arc::clone(self), keys }
    }

    pub(crate) fn packed_dir(&self) -> PathBuf {
        self.root.join("packed")
    }

    pub(crate) fn record_of(&self, digest: &Digest) -> Option<Record> {
        self.index().images.get(digest).map(|(record, _)| record.clone())
    }

    /// Every name, and what it stands for.
    pub(crate) fn names(&self) -> BTreeMap<String, Name> {
        self.index().names.iter().map(|(name, found)| (name.clone(), found.clone())).collect()
    }

    /// Takes the lock that a task holds while it changes records, names or layers on disk.
    pub(crate) fn changing(&self) -> MutexGuard<'_, ()> {
        locked(&self.changes)
    }

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

    fn empty_tmp(&self) -> Result<()> {
        for name in file_names(&self.tmp())? {
            let path = self.tmp().join(name);
            fs::remove_dir_all(&path)
                .or_else(|_| fs::remove_file(&path))
                .map_err(|error| ImageError::io("clean up after an earlier run", error))?;
        }
        Ok(())
    }

    fn read_index(&self) -> Result<()> {
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

    /// Layers are not synced before an image is recorded. After a crash of the host, those that belong to
    /// no image may have holes; after a crash of this process they are whole.
    fn drop_doubtful_layers(&self) -> Result<()> {
        let boot = boot_id()?;
        let layers = self.layers();
        self.collect(|key| !matches!(Prepared::read(&layers, key), Ok(Some(layer)) if layer.boot == boot))?;
        Ok(())
    }
}
