//! Volumes: ext4 images with a journal, on loop devices, mounted nowhere.
//!
//! The server mounts a volume once for itself, to read and write its files, and once for every sandbox that has it:
//! mounts of one device are one file system to the kernel, so what one sandbox writes the others see at once. A
//! sandbox's mount maps user ids, so that user 1000 of one is user 1000 of another.
//!
//! Two *devices* for one image would destroy it. So before the server opens a volume it looks for a device that has its
//! image already: after a `kill -9` of the server the sandboxes still hold that device. Unlike a sandbox's disk a
//! volume is still of use after a power cut: its journal is written through, and a sync inside is a sync on the host.

mod files;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use atoll_core::id::VolumeId;
use atoll_isolation::volumes::{
    VolumeChange, VolumeDirectory, VolumeError, VolumeFile, VolumeUsage, VolumeWrite, Volumes,
};
use atoll_isolation::{IsolationError, PlannedVolume};
use tokio::io::AsyncRead;

use crate::loops::{self, LoopDevice};
use crate::step::Step;
use crate::{Frozen, Storage, Use, mount_ext4, tools};

/// Attempts at mounting while an earlier user of the device lets go of it, and the pause between.
const MOUNT_TRIES: u32 = 100;
const MOUNT_PAUSE: Duration = Duration::from_millis(20);

/// A volume that this server has open.
#[derive(Debug)]
struct Open {
    /// Its root directory.
    root: OwnedFd,
    mount: OwnedFd,
    device: LoopDevice,
}

/// The volumes in a [`Storage`]. Clones share them.
#[derive(Debug, Clone)]
pub struct StoredVolumes {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    storage: Arc<Storage>,
    open: Mutex<BTreeMap<VolumeId, Arc<Open>>>,
    /// Held while a volume stands still for a copy of this server.
    copying: Mutex<()>,
}

impl StoredVolumes {
    /// The volumes that lie in `storage`. Nothing is opened yet.
    #[must_use]
    pub fn new(storage: Arc<Storage>) -> Self {
        Self { inner: Arc::new(Inner { storage, open: Mutex::default(), copying: Mutex::default() }) }
    }

    /// A new mount of a whole volume, attached nowhere, for one sandbox. Blocks. When the sandbox is to have only a
    /// directory of the volume, that directory is there; the caller attaches the mount and takes the directory out with
    /// [`crate::part_of`].
    ///
    /// # Errors
    /// [`IsolationError::Unavailable`] when its data is gone, or [`IsolationError::Kernel`].
    pub fn mount(&self, volume: &PlannedVolume) -> Result<OwnedFd, IsolationError> {
        let open = self.inner.open(&volume.id).map_err(|error| match error {
            VolumeError::Host(error) => error,
            VolumeError::Gone | VolumeError::File(_) => {
                IsolationError::Unavailable(format!("the data of the volume {} is not there", volume.id))
            }
        })?;
        prepare(&open, volume).step("open the directory of a volume that is to be mounted")?;
        mount(&open.device)
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, VolumeError> + Send + 'static,
    ) -> Result<T, VolumeError> {
        let inner = Arc::clone(&self.inner);
        let joined = tokio::task::spawn_blocking(move || work(&inner)).await;
        joined.map_err(std::io::Error::other).step("run a task")?
    }
}

impl Inner {
    fn table(&self) -> MutexGuard<'_, BTreeMap<VolumeId, Arc<Open>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn image(&self, id: &VolumeId) -> PathBuf {
        self.storage.volumes().join(format!("{id}.img"))
    }

    /// The volume, opened if it was not. The lock is held meanwhile: one image must never have two devices.
    fn open(&self, id: &VolumeId) -> Result<Arc<Open>, VolumeError> {
        let mut table = self.table();
        if let Some(open) = table.get(id) {
            return Ok(Arc::clone(open));
        }
        let image = match File::options().read(true).write(true).open(self.image(id)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(VolumeError::Gone),
            other => other.step("open the image of a volume")?,
        };
        let mut tries = 1;
        let (mount, device) = loop {
            let device = self.find(id)?.map_or_else(|| loops::attach(&image), Ok)?;
            match mount(&device) {
                Ok(mount) => break (mount, device),
                // The last user of the device let go of it in between.
                Err(error) if tries < MOUNT_TRIES => tracing::debug!(%error, "mounting a volume again"),
                Err(error) => return Err(error.into()),
            }
            drop(device);
            tries += 1;
            std::thread::sleep(MOUNT_PAUSE);
        };
        // A server that was killed while it copied the volume left it standing still.
        Frozen::thaw_left_over(mount.as_fd())?;
        let root = crate::freeze::root(mount.as_fd())?;
        let open = Arc::new(Open { root, mount, device });
        table.insert(id.clone(), Arc::clone(&open));
        Ok(open)
    }

    /// The device that has the volume's image.
    fn find(&self, id: &VolumeId) -> Result<Option<LoopDevice>, IsolationError> {
        let name = Path::new("volumes").join(format!("{id}.img"));
        for (number, seen) in loops::in_use().step("list the loop devices")? {
            if self.storage.within(&seen) == Some(&name) && !seen.ends_with(" (deleted)") {
                return LoopDevice::existing(number).map(Some).step("open the device of a volume");
            }
        }
        Ok(None)
    }

    /// Lets a volume go on that a server was copying when it was killed. Until then a process that writes to it hangs,
    /// and so does a task that tries to end such a process. Only a volume that is on a device can stand still.
    fn thaw_left_over(&self, id: &VolumeId) -> Result<(), VolumeError> {
        // Held, so that no copy of this server is under way.
        let _turn = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
        let device = self.find(id)?;
        match device {
            Some(device) => Ok(Frozen::thaw_left_over(mount(&device)?.as_fd())?),
            None => Ok(()),
        }
    }

    /// The same for all volumes, also for one whose image was removed before: its device and its file system would stay
    /// for ever. When one fails, the others still go on.
    fn thaw_all_left_over(&self) -> Result<(), VolumeError> {
        let _turn = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
        let is_volume =
            |seen: &str| self.storage.within(seen).is_some_and(|path| path.starts_with("volumes"));
        Ok(thaw_volumes(is_volume)?)
    }

    fn create(&self, id: &VolumeId, bytes: u64) -> Result<(), VolumeError> {
        self.storage.check_room()?;
        let path = self.image(id);
        let image = File::options().read(true).write(true).create_new(true).open(&path);
        let image = image.step("make the image of a volume")?;
        image.set_len(bytes).step("size the image of a volume")?;
        let made = tools::run(
            Command::new(tools::program("mke2fs")?)
                .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-m", "0"])
                .args(["-E", "root_owner=0:0,lazy_itable_init=1,nodiscard"])
                .arg(tools::IMAGE),
            &image,
            "run mke2fs",
        )?;
        if !made.status.is_some_and(|status| status.success()) {
            return Err(made.error(&format!("make a file system of {bytes} bytes")).into());
        }
        image.sync_all().step("write the image of a volume")?;
        drop(image);
        let open = self.open(id)?;
        files::prepare(open.root.as_fd()).step("prepare a volume")?;
        Ok(())
    }

    fn copy(&self, from: &VolumeId, to: &VolumeId) -> Result<(), VolumeError> {
        self.storage.check_room()?;
        let source = self.open(from)?;
        let _turn = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
        let frozen = Frozen::freeze(source.mount.as_fd())?;
        let copied = self.storage.duplicate(&self.image(from), &self.image(to));
        let stood_still = frozen.thaw()?;
        copied?.sync_all().step("write the image of a volume")?;
        tracing::info!(%from, %to, ?stood_still, "a volume was copied");
        Ok(())
    }

    fn remove(&self, id: &VolumeId) -> Result<(), VolumeError> {
        self.thaw_left_over(id)?;
        // The mount and the device go first: their last user frees them.
        drop(self.table().remove(id));
        match fs::remove_file(self.image(id)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => Ok(other.step("remove the image of a volume")?),
        }
    }

    fn list(&self) -> Result<Vec<VolumeId>, VolumeError> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(self.storage.volumes()).step("list the volumes")? {
            let name = entry.step("list the volumes")?.file_name();
            ids.extend(name.to_str().and_then(|name| name.strip_suffix(".img")?.parse::<VolumeId>().ok()));
        }
        Ok(ids)
    }

    fn usage(&self, id: &VolumeId) -> Result<VolumeUsage, VolumeError> {
        let open = self.open(id)?;
        let stat = rustix::fs::fstatvfs(&open.root).step("measure a volume")?;
        let stored = fs::metadata(self.image(id)).step("measure a volume")?.blocks() * 512;
        Ok(VolumeUsage {
            total_bytes: stat.f_blocks * stat.f_frsize,
            used_bytes: stat.f_blocks.saturating_sub(stat.f_bfree) * stat.f_frsize,
            stored_bytes: stored,
        })
    }
}

/// Lets the pool and then the volumes of an installation go on that were left standing still. Finds volumes by the
/// installation's name where they lie in a pool, else by its data directory. For an installation that is to be ended: a
/// process that waits for such a volume cannot be killed.
///
/// # Errors
/// When `/sys` cannot be read.
pub fn thaw_volumes_of(instance: &str, data_dir: Option<&Path>) -> Result<(), IsolationError> {
    if let Some(data_dir) = data_dir
        && let Some(mount) = crate::pool::in_use(&data_dir.join("storage"))?
    {
        Frozen::thaw_left_over(mount.as_fd())?;
    }
    thaw_volumes(of_instance(instance, data_dir))
}

/// Tells which devices have volumes of an installation, by the paths of their images.
fn of_instance(instance: &str, data_dir: Option<&Path>) -> impl Fn(&str) -> bool {
    let pooled = Path::new("/").join(format!("atoll-{instance}")).join("volumes");
    let plain = data_dir.map(|dir| dir.join("storage/store/volumes"));
    move |seen| {
        let seen = Path::new(seen);
        seen.starts_with(&pooled) || plain.as_ref().is_some_and(|plain| seen.starts_with(plain))
    }
}

fn thaw_volumes(is_one: impl Fn(&str) -> bool) -> Result<(), IsolationError> {
    for device in devices(is_one)? {
        let thawed = mount(&device).and_then(|mount| Frozen::thaw_left_over(mount.as_fd()));
        if let Err(error) = thawed {
            let device = device.path();
            tracing::error!(?device, %error, "a volume may stand still: whoever writes to it hangs");
        }
    }
    Ok(())
}

/// Makes all volumes of an installation that are in use stand still.
///
/// # Errors
/// [`IsolationError::Kernel`]; those that stood still by then go on.
pub(crate) fn freeze_volumes_of(instance: &str, data_dir: &Path) -> Result<Vec<Frozen>, IsolationError> {
    let devices = devices(of_instance(instance, Some(data_dir)))?;
    devices.iter().map(|device| Frozen::freeze(mount(device)?.as_fd())).collect()
}

/// The devices of volumes. A device that is freed in between is left out: no sandbox uses it.
fn devices(is_one: impl Fn(&str) -> bool) -> Result<Vec<LoopDevice>, IsolationError> {
    let mut devices = Vec::new();
    for (number, _) in
        loops::in_use().step("list the loop devices")?.into_iter().filter(|(_, seen)| is_one(seen))
    {
        match LoopDevice::existing(number) {
            Err(rustix::io::Errno::NXIO) => {}
            other => devices.push(other.step("open the device of a volume")?),
        }
    }
    Ok(devices)
}

/// A mount of the device, attached nowhere. The second one of a device is of the same file system.
fn mount(device: &LoopDevice) -> Result<OwnedFd, IsolationError> {
    mount_ext4(&device.path(), Use::Volume)
}

fn prepare(open: &Open, volume: &PlannedVolume) -> rustix::io::Result<()> {
    match &volume.subpath {
        Some(path) => files::make_part(open.root.as_fd(), path, volume.make),
        None => Ok(()),
    }
}

fn file<T>(result: rustix::io::Result<T>) -> Result<T, VolumeError> {
    result.map_err(|error| {
        VolumeError::File(match error {
            // A link that leads in circles, or one of `/proc`; a socket.
            rustix::io::Errno::LOOP | rustix::io::Errno::NXIO => ErrorKind::InvalidInput.into(),
            error => error.into(),
        })
    })
}

#[async_trait]
impl Volumes for StoredVolumes {
    async fn create(&self, id: &VolumeId, bytes: u64) -> Result<(), VolumeError> {
        let id = id.clone();
        self.blocking(move |inner| inner.create(&id, bytes)).await
    }

    async fn copy(&self, from: &VolumeId, to: &VolumeId) -> Result<(), VolumeError> {
        let (from, to) = (from.clone(), to.clone());
        self.blocking(move |inner| inner.copy(&from, &to)).await
    }

    async fn prepare(&self, volume: &PlannedVolume) -> Result<(), VolumeError> {
        let volume = volume.clone();
        self.blocking(move |inner| file(prepare(&*inner.open(&volume.id)?, &volume))).await
    }

    async fn remove(&self, id: &VolumeId) -> Result<(), VolumeError> {
        let id = id.clone();
        self.blocking(move |inner| inner.remove(&id)).await
    }

    async fn recover(&self) -> Result<(), VolumeError> {
        self.blocking(Inner::thaw_all_left_over).await
    }

    async fn list(&self) -> Result<Vec<VolumeId>, VolumeError> {
        self.blocking(Inner::list).await
    }

    async fn usage(&self, id: &VolumeId) -> Result<VolumeUsage, VolumeError> {
        let id = id.clone();
        self.blocking(move |inner| inner.usage(&id)).await
    }

    async fn stat(&self, id: &VolumeId, path: &str) -> Result<VolumeFile, VolumeError> {
        let (id, path) = (id.clone(), path.to_owned());
        self.blocking(move |inner| file(files::stat(inner.open(&id)?.root.as_fd(), &path))).await
    }

    async fn list_files(
        &self,
        id: &VolumeId,
        path: &str,
        max: usize,
    ) -> Result<(Vec<VolumeFile>, bool), VolumeError> {
        let (id, path) = (id.clone(), path.to_owned());
        self.blocking(move |inner| file(files::list(inner.open(&id)?.root.as_fd(), &path, max))).await
    }

    async fn read(&self, id: &VolumeId, path: &str) -> Result<File, VolumeError> {
        let (id, path) = (id.clone(), path.to_owned());
        self.blocking(move |inner| file(files::read(inner.open(&id)?.root.as_fd(), &path))).await
    }

    async fn write(
        &self,
        id: &VolumeId,
        path: &str,
        write: VolumeWrite,
        mut content: Box<dyn AsyncRead + Send + Unpin>,
    ) -> Result<u64, VolumeError> {
        let (id, path) = (id.clone(), path.to_owned());
        let new = self
            .blocking(move |inner| file(files::New::make(inner.open(&id)?.root.as_fd(), &path, write)))
            .await?;
        let copy = new.file().map_err(VolumeError::File)?;
        let mut target = tokio::fs::File::from_std(copy);
        let bytes = tokio::io::copy(&mut content, &mut target).await.map_err(VolumeError::File)?;
        tokio::io::AsyncWriteExt::flush(&mut target).await.map_err(VolumeError::File)?;
        self.blocking(move |_| file(new.finish())).await?;
        Ok(bytes)
    }

    async fn make_directory(
        &self,
        id: &VolumeId,
        path: &str,
        new: VolumeDirectory,
    ) -> Result<VolumeFile, VolumeError> {
        let (id, path) = (id.clone(), path.to_owned());
        self.blocking(move |inner| file(files::make_directory(inner.open(&id)?.root.as_fd(), &path, new)))
            .await
    }

    async fn change(
        &self,
        id: &VolumeId,
        path: &str,
        change: VolumeChange,
    ) -> Result<VolumeFile, VolumeError> {
        let (id, path) = (id.clone(), path.to_owned());
        self.blocking(move |inner| file(files::change(inner.open(&id)?.root.as_fd(), &path, change))).await
    }

    async fn remove_file(&self, id: &VolumeId, path: &str, recursive: bool) -> Result<(), VolumeError> {
        let (id, path) = (id.clone(), path.to_owned());
        self.blocking(move |inner| file(files::remove(inner.open(&id)?.root.as_fd(), &path, recursive))).await
    }
}

#[cfg(test)]
mod tests;
