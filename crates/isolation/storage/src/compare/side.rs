//! One side of a comparison: a snapshot mounted as a sandbox would see it, and its own layer.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use atoll_core::id::SnapshotId;
use atoll_isolation::IsolationError;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen,
};

use crate::step::Step;
use crate::{LoopDevice, Storage, Use, attach_read_only, mount_ext4, open_upper, path_of};

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
        let mut lower: Vec<PathBuf> = layers.iter().rev().cloned().collect();
        let (mut mounts, mut layer, mut device, mut disk_image) = (Vec::new(), None, None, None);
        if let Some(artifact) = artifact {
            let image = File::open(storage.artifact_disk(artifact)?).step("open the disk of a snapshot")?;
            let attached = attach_read_only(&image)?;
            let disk = mount_ext4(&attached.path(), Use::Reading)?;
            // Opened once: what is compared, and what the overlay stands on, is this very directory.
            let upper = open_upper(disk.as_fd())?;
            lower.insert(0, path_of(upper.as_fd()));
            layer = Some(upper);
            mounts.push(disk);
            device = Some(attached);
            disk_image = Some(image);
        }
        let merged = match lower.as_slice() {
            [only] => open_dir(only)?,
            several => {
                let overlay = mount_overlay(several)?;
                let root = crate::freeze::root(overlay.as_fd())?;
                mounts.insert(0, overlay);
                root
            }
        };
        Ok(Self { merged, layer, image: disk_image, _mounts: mounts, _device: device })
    }
}

fn open_dir(path: &Path) -> Result<OwnedFd, IsolationError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty()).step("open one side of a comparison")
}

fn mount_overlay(layers: &[PathBuf]) -> Result<OwnedFd, IsolationError> {
    let step = "mount a snapshot on its image";
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).step(step)?;
    let mut held = Vec::new();
    for layer in layers {
        // A short path, however long the layer's own is: mount options have a maximum length.
        let dir = open_dir(layer)?;
        let place = path_of(dir.as_fd());
        held.push(dir);
        fsconfig_set_string(&context, "lowerdir+", place.as_os_str()).map_err(|error| match error {
            rustix::io::Errno::INVAL => {
                IsolationError::Unavailable("comparing snapshots needs Linux 6.8 or newer".to_owned())
            }
            other => crate::step::failed(step.to_owned(), other.into()),
        })?;
    }
    fsconfig_set_flag(&context, "ro").step(step)?;
    fsconfig_create(&context).step(step)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, HARMLESS).step(step)
}
