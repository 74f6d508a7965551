//! Writable disks with a limit: sparse ext4 images on loop devices.
//!
//! A disk is a template of its size ([`filesystem`]), or a snapshot's disk, cloned to a sparse file, bound to
//! a loop device that frees itself, and mounted without a place: about a millisecond. A program inside sees the
//! right size and gets `ENOSPC` at the limit.
//!
//! Nothing but the image file outlives the process: the mount has no place, so it ends with its last
//! descriptor or mount namespace, and the loop device ends with the mount. Images that wait in the
//! pool lie in their own directory, which is emptied at start.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_isolation::IsolationError;
use atoll_isolation_storage::filesystem::{self, Template, Templates};
use atoll_isolation_storage::{LoopDevice, Storage, Use, attach, mount_ext4, prepare_disk};
use atoll_ready::{Keep, Pool};

use crate::step::{Step, failed};

/// Disks that are ready beyond the minimum because their sandboxes are gone: a burst finds those of the one before.
const KEEP: Keep = Keep { max_count: 128, unclaimed_for: Duration::from_secs(60) };
/// Images that wait to be used again where enough disks are ready.
const SPARES_MAX_COUNT: usize = 32;
/// The largest image that is used again, in bytes that it takes on the host.
const SPARE_MAX_BYTES: u64 = 4 << 20;

/// Disks of the usual size without content, mounted.
pub(crate) type ReadyDisks = Pool<Disk, IsolationError>;

/// Makes disks.
pub(crate) struct Disks {
    storage: Arc<Storage>,
    templates: Templates,
    /// Images without content, on their devices.
    spares: Mutex<Vec<Backing>>,
    spare_bytes: u64,
}

impl std::fmt::Debug for Disks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disks").field("storage", &self.storage).finish_non_exhaustive()
    }
}

/// A mounted disk with the directories `upper` and `work`.
#[derive(Debug)]
pub(crate) struct Disk {
    /// The mount, attached nowhere.
    pub(crate) mount: OwnedFd,
    backing: Backing,
}

/// An image on a loop device, which stays bound as long as this or a mount of it lives.
#[derive(Debug)]
struct Backing {
    bytes: u64,
    image: File,
    device: LoopDevice,
    /// The image's place, as long as it is ours to remove.
    path: Option<PathBuf>,
}

impl Disk {
    /// Moves the image to `path`. From then on dropping the disk does not remove it: the code that cleans up there
    /// does.
    pub(crate) fn move_image(&mut self, path: &Path) -> Result<(), IsolationError> {
        if let Some(image) = &self.backing.path {
            std::fs::rename(image, path).step("move a disk image to its sandbox")?;
            self.backing.path = None;
        }
        Ok(())
    }
}

impl Backing {
    fn mount(self) -> Result<Disk, IsolationError> {
        Ok(Disk { mount: mount_ext4(&self.device.path(), Use::Disk)?, backing: self })
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        if let Some(image) = &self.path
            && let Err(error) = std::fs::remove_file(image)
        {
            tracing::warn!(image = %image.display(), %error, "cannot remove an unused disk image");
        }
    }
}

impl Disks {
    /// Disks of `spare_bytes` may be used again. `scratch` is for templates.
    pub(crate) fn open(
        storage: Arc<Storage>,
        scratch: PathBuf,
        spare_bytes: u64,
    ) -> Result<Self, IsolationError> {
        let templates = Templates::open(scratch)?;
        Ok(Self { storage, templates, spares: Mutex::default(), spare_bytes })
    }

    /// Starts the thread that keeps `min` disks of the size that may be used again ready.
    pub(crate) fn start_ready(self: &Arc<Self>, min: usize) -> Result<ReadyDisks, IsolationError> {
        let (disks, bytes) = (Arc::clone(self), self.spare_bytes);
        let make = move || disks.make(bytes);
        Pool::start_keeping("atoll-disks", min, KEEP, make).step("start the thread atoll-disks")
    }

    /// Makes an empty disk of `bytes`, rounded down to whole blocks.
    pub(crate) fn make(&self, bytes: u64) -> Result<Disk, IsolationError> {
        let template = self.templates.get(&self.storage, bytes)?;
        let spare = {
            let mut spares = self.spares();
            spares.iter().position(|spare| spare.bytes == bytes).map(|index| spares.swap_remove(index))
        };
        if let Some(spare) = spare {
            spare.device.read_ahead(template.extents());
            match spare.mount() {
                Ok(disk) => return Ok(disk),
                // A process that is just being started has copies of all our descriptors, also of the one that opened
                // the device exclusively a moment ago.
                Err(error) => tracing::debug!(%error, "a disk is not used again"),
            }
        }
        self.storage.check_room()?;
        let backing = self.make_backing(bytes, &template)?;
        backing.device.read_ahead(template.extents());
        backing.mount()
    }

    /// Makes a disk of `bytes` of the image of an artifact that `bring` puts where it is told.
    pub(crate) fn make_from(
        &self,
        bytes: u64,
        bring: impl FnOnce(&Storage, &Path) -> Result<File, IsolationError>,
    ) -> Result<Disk, IsolationError> {
        self.storage.check_room()?;
        let path = self.next_path();
        let image = bring(&self.storage, &path)?;
        let made = (|| {
            let has = image.metadata().step("measure a disk image")?.len();
            if has > bytes {
                let why = format!("the snapshot's disk has {has} bytes and cannot become {bytes}");
                return Err(IsolationError::Unenforceable(why));
            }
            if has < bytes {
                image.set_len(bytes).step("size a disk image")?;
                filesystem::grow(&path)?;
            }
            attach(&image)
        })();
        match made {
            Ok(device) => {
                let disk = Backing { bytes, image, device, path: Some(path) }.mount()?;
                prepare_disk(disk.mount.as_fd())?;
                Ok(disk)
            }
            Err(error) => {
                std::fs::remove_file(&path).step("remove a disk image that was not needed")?;
                Err(error)
            }
        }
    }

    /// Mounts a disk that was used before and is used nowhere now. The image stays where it is.
    pub(crate) fn reopen(&self, path: &Path) -> Result<Disk, IsolationError> {
        let image =
            File::options().read(true).write(true).open(path).map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => IsolationError::Gone,
                _ => failed("open the disk of a sandbox".to_owned(), error),
            })?;
        filesystem::recover(path)?;
        let bytes = image.metadata().step("measure the disk of a sandbox")?.len();
        let device = attach(&image)?;
        let disk = Backing { bytes, image, device, path: None }.mount()?;
        prepare_disk(disk.mount.as_fd())?;
        Ok(disk)
    }

    /// An image on a device. It is bound before anything is written, because binding waits until written data has
    /// reached the host's disk. And it is bound while it has no size: a process that looks at new devices (udev reads
    /// each of them) would otherwise leave blocks of zeros in the device's cache, which would then be taken for the
    /// content of the disk.
    fn make_backing(&self, bytes: u64, template: &Template) -> Result<Backing, IsolationError> {
        let path = self.next_path();
        let image =
            File::options().read(true).write(true).create_new(true).open(&path).step("make a disk image")?;
        let backing = match attach(&image) {
            Ok(device) => Backing { bytes, image, device, path: Some(path) },
            Err(error) => {
                std::fs::remove_file(&path).step("remove a disk image that was not needed")?;
                return Err(error);
            }
        };
        backing.image.set_len(bytes).step("size a disk image")?;
        template.fill(&self.storage, &backing.image).step("write a disk image")?;
        backing.device.resize().step("size the device of a disk")?;
        Ok(backing)
    }

    fn next_path(&self) -> PathBuf {
        // Of the process: a driver may still be putting its last disk away when the next one on its directory begins.
        static COUNT: AtomicU64 = AtomicU64::new(0);
        self.storage.disks().join(format!("{}.img", COUNT.fetch_add(1, Ordering::Relaxed)))
    }

    fn spares(&self) -> MutexGuard<'_, Vec<Backing>> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes back a disk whose sandbox is gone, with its image at `path`, and makes another disk of it that is ready. Keeps
    /// only some, small ones; gives the disk back when it did not touch it.
    ///
    /// Unlinking an image and making another costs some tens of operations of the host's disk that the server waits
    /// for, where that disk discards freed blocks. An image that is kept is first made to read as an empty file system
    /// and zeros everywhere else: the next sandbox gets what it would get from a new one.
    pub(crate) fn take_back(&self, disk: Disk, path: &Path, ready: &ReadyDisks) -> Option<Disk> {
        let small = disk.backing.image.metadata().is_ok_and(|meta| meta.blocks() * 512 <= SPARE_MAX_BYTES);
        let wanted = ready.has_room() || self.spares().len() < SPARES_MAX_COUNT;
        if !small || disk.backing.bytes != self.spare_bytes || !wanted {
            return Some(disk);
        }
        let Disk { mount, mut backing } = disk;
        drop(mount);
        let kept = self.next_path();
        let cleaned = self
            .templates
            .get(&self.storage, backing.bytes)
            .and_then(|template| {
                template.reset(&self.storage, &backing.image, &backing.device).step("clean a disk")
            })
            .and_then(|()| std::fs::rename(path, &kept).step("keep a disk"));
        if let Err(error) = cleaned {
            tracing::debug!(%error, "a disk is not used again");
            return None;
        }
        backing.path = Some(kept);
        self.keep(backing, ready);
        None
    }

    /// Keeps a clean image: mounted while that is wanted. Mounting it now reads nothing from the host's disk, because all
    /// of it has just been read.
    fn keep(&self, backing: Backing, ready: &ReadyDisks) {
        if !ready.has_room() {
            self.spares().push(backing);
            return;
        }
        match backing.mount() {
            // One that the pool does not want after all is removed here.
            Ok(disk) => drop(ready.give_back(disk)),
            Err(error) => tracing::debug!(%error, "a disk is not used again"),
        }
    }
}
