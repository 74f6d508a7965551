//! The images of a directory: on disk ([`records`], and layers that [`collect`] removes), and in memory ([`index`]).
//!
//! Changes to records and names are made one at a time, on disk first, then in memory. Small files are
//! written whole (temporary file, sync, rename), so each is either old or new. Garbage collection moves a
//! layer to `tmp/` before it deletes it, so no reader sees half a layer.

mod collect;
mod index;
mod records;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use rustix::fs::{FlockOperation, flock};
use tokio::sync::Notify;

pub(crate) use collect::PIN_ALL;
use index::Index;

use crate::digest::Digest;
use crate::error::{ImageError, Result};
use crate::fetch::Blobs;
use crate::files::{file_names, make_dir};
use crate::image::{Image, Record};
use crate::limits::UNPACKED_DEFAULT_BYTES;
use crate::reach::Reach;
use crate::reference::local_or_normal;
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

    fn empty_tmp(&self) -> Result<()> {
        for name in file_names(&self.tmp())? {
            let path = self.tmp().join(name);
            fs::remove_dir_all(&path)
                .or_else(|_| fs::remove_file(&path))
                .map_err(|error| ImageError::io("clean up after an earlier run", error))?;
        }
        Ok(())
    }
}
