//! One side of a comparison: a snapshot mounted as a sandbox would see it, and its own layer.
//!
//! Before Linux 6.15 the kernel lets an overlay stand only on what is attached in the mount namespace of the thread that
//! mounts it. So a thread with a namespace of its own does that, in which the disk is attached over `/`: there is one, and
//! nothing that the thread opens is looked up through it. Nobody else sees it, and it is detached when the thread has ended.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use atoll_core::id::SnapshotId;
use atoll_isolation::IsolationError;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen,
};

use crate::mounts::attach_alone;
use crate::step::{Step, failed};
use crate::{LoopDevice, Storage, Use, attach_read_only, mount_ext4, open_upper, path_of};

const MOUNT: &str = "mount a snapshot on its image";
/// Longest value of a mount option, as the kernel takes it.
const OPTION_MAX_BYTES: usize = 255;
/// Nothing may be written, run, be a device or give rights.
const HARMLESS: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY
    .union(MountAttrFlags::MOUNT_ATTR_NOSUID)
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC)
    .union(MountAttrFlags::MOUNT_ATTR_NOATIME);

#[derive(Debug)]
pub(super) struct Side {
    /// The root that a sandbox would see.
    pub(super) merged: OwnedFd,
    /// The snapshot's own layer; none for the bare image.
    pub(super) layer: Option<OwnedFd>,
    /// The image of the disk on which that lies.
    pub(super) image: Option<File>,
    /// What holds the two: mounts first, then the device.
    _mounts: Vec<OwnedFd>,
    _device: Option<LoopDevice>,
}

impl Side {
    /// Mounts a snapshot on the image's layers (lowest first), or only these.
    pub(super) fn open(
        storage: &Storage,
        layers: &[PathBuf],
        artifact: Option<&SnapshotId>,
    ) -> Result<Self, IsolationError> {
        // The kernel wants the topmost first.
        let lower: Vec<PathBuf> = layers.iter().rev().cloned().collect();
        let Some(artifact) = artifact else {
            let (merged, overlay) = merge(None, &lower)?;
            let mounts = overlay.into_iter().collect();
            return Ok(Self { merged, layer: None, image: None, _mounts: mounts, _device: None });
        };
        let image = File::open(storage.artifact_disk(artifact)?).step("open the disk of a snapshot")?;
        let device = attach_read_only(&image)?;
        let disk = mount_ext4(&device.path(), Use::Reading)?;
        // Opened once: what is compared, and what the overlay stands on, is this very directory.
        let layer = open_upper(disk.as_fd())?;
        let top = Top { disk: disk.as_fd(), layer: layer.as_fd() };
        let (merged, overlay) = merge(Some(&top), &lower)?;
        let mounts = overlay.into_iter().chain([disk]).collect();
        Ok(Self { merged, layer: Some(layer), image: Some(image), _mounts: mounts, _device: Some(device) })
    }
}

/// What is seen through all layers, the topmost first; with the overlay, if there is more than one.
fn merge(top: Option<&Top<'_>>, lower: &[PathBuf]) -> Result<(OwnedFd, Option<OwnedFd>), IsolationError> {
    match (top, lower) {
        (Some(top), []) => Ok((open_dir(&path_of(top.layer))?, None)),
        (None, [only]) => Ok((open_dir(only)?, None)),
        _ => {
            let overlay = mount_overlay(top, lower)?;
            Ok((crate::freeze::root(overlay.as_fd())?, Some(overlay)))
        }
    }
}

fn open_dir(path: &Path) -> Result<OwnedFd, IsolationError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty()).step("open one side of a comparison")
}

/// What lies on the layers of an image.
struct Top<'a> {
    /// The disk of a snapshot, attached nowhere.
    disk: BorrowedFd<'a>,
    /// The snapshot's own layer, on the disk.
    layer: BorrowedFd<'a>,
}

fn mount_overlay(top: Option<&Top<'_>>, layers: &[PathBuf]) -> Result<OwnedFd, IsolationError> {
    let mount = || {
        match top {
            Some(top) => attach_alone(top.disk, Path::new("/")).step("attach the disk of a snapshot")?,
            None => crate::sys::own_mounts().step(MOUNT)?,
        }
        overlay(top.map(|top| top.layer), layers)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("atoll-compare".to_owned()).spawn_scoped(scope, mount);
        let thread = thread.step("start a thread that mounts")?;
        let panicked =
            |_panic| Err(failed(MOUNT.to_owned(), io::Error::other("the thread that mounts it panicked")));
        thread.join().unwrap_or_else(panicked)
    })
}

fn overlay(top: Option<BorrowedFd<'_>>, layers: &[PathBuf]) -> Result<OwnedFd, IsolationError> {
    // Opened here: the thread's mounts are others than those of the process, though they look the same.
    let held = layers.iter().map(|layer| open_dir(layer)).collect::<Result<Vec<_>, _>>()?;
    // Short paths, however long those of the layers are: mount options have a maximum length. The directory is the
    // thread's own, as its mounts are.
    let numbers = top.into_iter().chain(held.iter().map(AsFd::as_fd)).map(|dir| dir.as_raw_fd().to_string());
    let numbers: Vec<String> = numbers.collect();
    rustix::process::chdir("/proc/self/fd").step(MOUNT)?;
    let each: Vec<_> = numbers.iter().map(|number| ("lowerdir+", number.as_str())).collect();
    let all = numbers.join(":");
    let made = match stand_on(&each) {
        // Before Linux 6.8 there is one option for all.
        Err(Errno::INVAL) if all.len() <= OPTION_MAX_BYTES => stand_on(&[("lowerdir", &all)]),
        Err(Errno::INVAL) => {
            let why = format!("comparing snapshots on {} layers needs Linux 6.8 or newer", layers.len());
            return Err(IsolationError::Unavailable(why));
        }
        made => made,
    };
    made.step(MOUNT)
}

fn stand_on(options: &[(&str, &str)]) -> rustix::io::Result<OwnedFd> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in options {
        fsconfig_set_string(&context, *name, *value)?;
    }
    fsconfig_set_flag(&context, "ro")?;
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, HARMLESS)
}
