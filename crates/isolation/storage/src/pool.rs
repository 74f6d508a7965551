//! The pool: an XFS file system in a sparse file, on a loop device, mounted nowhere.
//!
//! Two mounts of one file through two devices would destroy it. So a server first looks for a device that
//! has the file, and XFS itself refuses a second device with the same identity.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use atoll_isolation::IsolationError;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
};

use crate::loops::{self, LoopDevice};
use crate::step::{Step, failed};
use crate::{Frozen, PoolSize, sys};

/// Smallest pool, bytes: below 300 MiB `mkfs.xfs` refuses.
const MIN_BYTES: u64 = 320 << 20;
/// A pool grows when it could be larger by this part of itself.
const GROW_PART: u64 = 10;
/// The same while it is full.
const GROW_PART_FULL: u64 = 100;
/// The log, bytes: the least that `mkfs.xfs` makes. All of it is written, so it never lacks room later.
const LOG_BYTES: u64 = 64 << 20;
/// Where `mkfs.xfs` may be.
const MKFS_XFS: [&str; 4] =
    ["/usr/sbin/mkfs.xfs", "/sbin/mkfs.xfs", "/usr/bin/mkfs.xfs", "/usr/local/sbin/mkfs.xfs"];
/// How long an earlier server's mount may take to go.
const MOUNT_DEADLINE: Duration = Duration::from_secs(10);
const MOUNT_PAUSE: Duration = Duration::from_millis(20);

fn image_path(dir: &Path) -> PathBuf {
    dir.join("pool.img")
}

/// Whether there is one.
pub(crate) fn exists(dir: &Path) -> bool {
    image_path(dir).try_exists().is_ok_and(|there| there)
}

/// Makes the pool when it is absent, and mounts it.
pub(crate) fn open(dir: &Path, instance: &str, size: PoolSize) -> Result<OwnedFd, IsolationError> {
    let path = image_path(dir);
    if !path.try_exists().is_ok_and(|there| there) {
        make(dir, &path, instance, size)?;
    }
    let image = File::options().read(true).write(true).open(&path).step("open the storage pool")?;
    let (mount, device) = mount_image(&path, &image)?;
    // A backup that was killed may have left the pool standing still.
    Frozen::thaw_left_over(mount.as_fd())?;
    if let Err(error) = grow(dir, &image, &device, mount.as_fd(), size, GROW_PART) {
        tracing::warn!(%error, "the storage pool does not grow");
    }
    Ok(mount)
}

/// Mounts the pool of a directory once more, if it is in use.
pub(crate) fn in_use(dir: &Path) -> Result<Option<OwnedFd>, IsolationError> {
    let device = find(&image_path(dir)).step("look for the storage pool's device")?;
    device.as_ref().map(mount).transpose()
}

/// Follows a host that got more room while the pool is open and full: every bit counts then.
pub(crate) fn follow_host(
    dir: &Path,
    mount: std::os::fd::BorrowedFd<'_>,
    size: PoolSize,
) -> Result<(), IsolationError> {
    let path = image_path(dir);
    let image = File::options().read(true).write(true).open(&path).step("open the storage pool")?;
    match find(&path).step("look for the storage pool's device")? {
        Some(device) => grow(dir, &image, &device, mount, size, GROW_PART_FULL),
        // The pool's file was moved after it was mounted: the pool grows when it is opened at the new place.
        None => Ok(()),
    }
}

/// How large it may be: what is free on the host, and what it has already.
fn wanted(dir: &Path, has: u64, size: PoolSize) -> Result<u64, IsolationError> {
    let host = rustix::fs::statvfs(dir).step("measure the host's file system")?;
    Ok(match size {
        PoolSize::Bytes(bytes) => bytes.max(MIN_BYTES),
        PoolSize::Host | PoolSize::None => (host.f_bavail * host.f_frsize).saturating_add(has).max(MIN_BYTES),
    })
}

fn make(dir: &Path, path: &Path, instance: &str, size: PoolSize) -> Result<(), IsolationError> {
    let program = MKFS_XFS
        .into_iter()
        .find(|path| Path::new(path).try_exists().unwrap_or(false))
        .ok_or_else(|| IsolationError::Unavailable("mkfs.xfs is missing: install xfsprogs".to_owned()))?;
    let new = path.with_extension("img.new");
    let made = (|| {
        let image = File::create(&new).step("make the storage pool")?;
        image.set_len(wanted(dir, 0, size)?).step("size the storage pool")?;
        let output = Command::new(program)
            .args(["-q", "-f", "-K", "-m", "crc=1,reflink=1", "-L"])
            .arg(format!("atoll{}", &instance[..instance.len().min(7)]))
            // Sectors as large as the blocks of our loop devices.
            .args(["-s", "size=4096", "-l", &format!("size={LOG_BYTES}")])
            .arg(&new)
            .env_clear()
            .output()
            .step("run mkfs.xfs")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(failed("make the storage pool".to_owned(), io::Error::other(said)));
        }
        image.sync_all().step("write the storage pool")?;
        std::fs::rename(&new, path).step("put the storage pool in place")
    })();
    if made.is_err() {
        drop(std::fs::remove_file(&new));
    }
    made
}

/// Mounts the device that has the image, or a new one.
fn mount_image(path: &Path, image: &File) -> Result<(OwnedFd, LoopDevice), IsolationError> {
    let deadline = Instant::now() + MOUNT_DEADLINE;
    loop {
        let device = match find(path).step("look for the storage pool's device")? {
            Some(device) => device,
            None => loops::attach(image)?,
        };
        match mount(&device) {
            Ok(mount) => return Ok((mount, device)),
            Err(error) if let Some(original) = original_of(&device, path) => {
                return Err(is_copy(path, &original, &error));
            }
            // An earlier server's mount is on its way out.
            Err(error) if is_passing(&error) && Instant::now() < deadline => {
                tracing::debug!(%error, "mounting the storage pool again");
            }
            Err(error) => return Err(error),
        }
        drop(device);
        std::thread::sleep(MOUNT_PAUSE);
    }
}

fn is_copy(path: &Path, original: &str, error: &IsolationError) -> IsolationError {
    IsolationError::Unavailable(format!(
        "{} is a copy of {original}, which is in use on this host: a data directory has an identity, and two with the \
         same one cannot be in use at once. End the other with 'atoll purge', or use the copy on another host ({error})",
        path.display()
    ))
}

/// Bytes of the beginning of an XFS file system up to the end of its identity, and where that begins.
const XFS_HEAD_BYTES: usize = 48;
const XFS_UUID_AT: usize = 32;

/// The identity of the XFS file system on a device.
fn identity(device: &Path) -> Option<[u8; XFS_HEAD_BYTES - XFS_UUID_AT]> {
    let mut head = [0; XFS_HEAD_BYTES];
    File::open(device).ok()?.read_exact_at(&mut head, 0).ok()?;
    head.starts_with(b"XFSB").then(|| head[XFS_UUID_AT..].try_into().ok())?
}

/// The file of another device that has the same identity: one of the two was copied from the other.
fn original_of(device: &LoopDevice, path: &Path) -> Option<String> {
    let ours = identity(&device.path())?;
    let others = loops::in_use().ok()?.into_iter();
    let mut others = others.filter(|(_, image)| Path::new(image) != path && !image.ends_with(" (deleted)"));
    others.find_map(|(number, image)| {
        let other = LoopDevice::existing(number).ok()?;
        (identity(&other.path()) == Some(ours)).then_some(image)
    })
}

/// Busy, gone in between or while it was read, or the identity is still mounted from another device.
fn is_passing(error: &IsolationError) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    let code = cause.and_then(io::Error::raw_os_error);
    matches!(code, Some(libc::EBUSY | libc::EINVAL | libc::ENXIO | libc::EIO))
}

fn find(path: &Path) -> io::Result<Option<LoopDevice>> {
    for (number, image) in loops::in_use()? {
        if Path::new(&image) == path {
            match LoopDevice::existing(number) {
                Ok(device) => return Ok(Some(device)),
                // It went in between.
                Err(rustix::io::Errno::NXIO) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(None)
}

fn mount(device: &LoopDevice) -> Result<OwnedFd, IsolationError> {
    let step = "mount the storage pool";
    let context = fsopen("xfs", FsOpenFlags::FSOPEN_CLOEXEC).step("open the file system type xfs")?;
    fsconfig_set_string(&context, "source", device.path().to_string_lossy().as_ref()).step(step)?;
    fsconfig_create(&context).step(step)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOATIME
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).step(step)
}

/// Follows a host that got more room, if that is at least this part of what the pool has.
fn grow(
    dir: &Path,
    image: &File,
    device: &LoopDevice,
    mount: std::os::fd::BorrowedFd<'_>,
    size: PoolSize,
    least_part: u64,
) -> Result<(), IsolationError> {
    use std::os::unix::fs::MetadataExt;
    let meta = image.metadata().step("measure the storage pool")?;
    let wanted = wanted(dir, meta.blocks() * 512, size)?;
    if wanted <= meta.len() + meta.len() / least_part {
        return Ok(());
    }
    image.set_len(wanted).step("size the storage pool")?;
    let rdwr = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let writable =
        rustix::fs::open(device.path(), rdwr, rustix::fs::Mode::empty()).step("open the storage pool")?;
    sys::loop_set_capacity(writable.as_fd()).step("size the storage pool's device")?;
    let stat = rustix::fs::fstatvfs(mount).step("measure the storage pool")?;
    sys::grow_xfs(crate::freeze::root(mount)?.as_fd(), wanted / stat.f_frsize).step("grow the storage pool")
}
