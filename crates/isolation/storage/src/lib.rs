//! Where disks and snapshots lie: a directory in which copying a file costs nothing.
//!
//! A snapshot of a disk is a *clone* of its image: a second file that shares all blocks with the first, until
//! either is written to. XFS and btrfs can do that, ext4 cannot. So there are three kinds of place, decided
//! once per data directory by trying ([`Kind`]):
//!
//! 1. the data directory itself, where its file system can clone;
//! 2. otherwise a *pool*: an XFS file system in the sparse file `pool.img`, on a loop device, mounted in no place that
//!    a process could walk into. Blocks that are freed in it go back to the host's file system (`trim`);
//! 3. otherwise the data directory, and every snapshot is a copy. It works, takes as long as there is data,
//!    and is called a copy wherever it shows.
//!
//! ```text
//! <root>/
//!   disks/              images that wait for a sandbox; emptied at start
//!   sandboxes/<id>.img  the writable disk of a sandbox
//!   machines/<id>/      what a virtual machine keeps: disk.img, and its memory while it is on disk
//!   prepared/<id>/      machines that are ready to be sandboxes; emptied at start
//!   sentries/<id>/      what a sandbox of gVisor keeps: disk.img
//!   artifacts/<id>/     what a snapshot is made of: disk.img, and what a driver adds
//!   volumes/<id>.img    the image of a volume
//!   trash/              emptied in the background, and at start
//! ```
//!
//! Nothing is mounted in the host's mount table. Running sandboxes hold their images open, and thereby the pool, which
//! therefore outlives the server. A server that starts finds the loop device that has the file and mounts it again,
//! which gives the same file system.

mod artifacts;
mod clone;
mod compare;
mod copy;
pub mod filesystem;
mod freeze;
mod guard;
mod journal;
mod loops;
mod making;
mod mounts;
mod pack;
mod pool;
mod reserve;
mod sandboxes;
mod spare;
mod still;
mod stored;
mod superblock;
mod sys;
mod tools;
mod trim;
mod volumes;

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_core::id::{SandboxId, SnapshotId};
use atoll_isolation::{Check, IsolationError, Status};
use atoll_isolation_host::private_dir;

pub use copy::LiveCopy;
pub use freeze::{Frozen, MountedDisk};
pub use guard::Guard;
pub use loops::{LoopDevice, attach, attach_read_only, in_use as loops_in_use};
pub use making::Making;
pub use mounts::{Use, mount_ext4, open_upper, part_of, path_of, prepare_disk};
pub use pack::pack_erofs;
pub use reserve::Reserve;
pub use sandboxes::until_released;
pub use spare::Spare;
pub use still::Still;
pub use stored::StoredArtifacts;
pub use volumes::{StoredVolumes, thaw_volumes_of};

pub(crate) use atoll_isolation::step;

use making::Makings;
use step::{Step, failed};
use trim::Trimmer;

/// The disk in an artifact's directory.
pub const DISK_FILE: &str = "disk.img";
/// Room that is kept free: making a sandbox or a snapshot is refused below it, because running sandboxes need room to
/// write. A twentieth of the place, at most this, bytes.
pub const RESERVE_MAX_BYTES: u64 = 1 << 30;
/// The reserve is this part of the place.
const RESERVE_PART: u64 = 20;

/// How snapshots are made here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The data directory's own file system clones.
    Native,
    /// An XFS file system in a file clones.
    Pool,
    /// Nothing clones: snapshots are copies.
    Copy,
}

/// What the place is made of.
#[derive(Debug, Clone)]
pub struct StorageConfig {
    /// The directory, private to root. Made when it is absent.
    pub dir: PathBuf,
    /// Names this installation among others on the host.
    pub instance: String,
    /// Whether to make a pool where the directory cannot clone, and of which size at most; by default as large as what
    /// is free on the host.
    pub pool: PoolSize,
}

/// Size of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PoolSize {
    /// No pool: clone natively or copy.
    None,
    /// As large as what is free on the host, and growing with it.
    #[default]
    Host,
    /// This many bytes, at least 320 MiB. An existing pool does not shrink.
    Bytes(u64),
}

/// The place.
#[derive(Debug)]
pub struct Storage {
    kind: Kind,
    /// A path that leads there from this process and its children.
    root: PathBuf,
    /// Which artifacts are being sealed.
    sealing: artifacts::Sealing,
    /// What the kernel calls the same place in the names of loop devices' files.
    seen: PathBuf,
    /// The directory on the host's file system.
    dir: PathBuf,
    /// How large a pool may be.
    pool_size: PoolSize,
    makings: Arc<Makings>,
    /// Why there is no pool although one was wanted.
    refused: Option<String>,
    /// Gives blocks that were freed in the pool back to the host. Declared before the mount, which must be dropped
    /// last.
    trimmer: Option<Trimmer>,
    /// Keeps the pool mounted.
    mount: Option<OwnedFd>,
}

impl Storage {
    /// Opens the place, making it when it is absent, and removes files that an earlier process left unused.
    ///
    /// # Errors
    /// When the directory, or a pool that exists, cannot be used.
    pub fn open(config: &StorageConfig) -> Result<Self, IsolationError> {
        private_dir(&config.dir).step("make the storage directory")?;
        let dir = config.dir.canonicalize().step("find the storage directory")?;
        let plain = dir.join("store");
        let exists = pool::exists(&dir);
        let native = !exists && clone::works_in(&dir).step("try to clone a file")?;
        let wanted = exists
            || (!native && config.pool != PoolSize::None && !plain.try_exists().is_ok_and(|there| there));
        let (mut pooled, mut refused) = (None, None);
        if wanted {
            match pool::open(&dir, &config.instance, config.pool) {
                Ok(mount) => pooled = Some(mount),
                // The files in a pool that exists must not seem to be gone.
                Err(error) if exists => return Err(error),
                Err(error) => {
                    let why = chain(&error);
                    tracing::warn!(%why, "no storage pool: snapshots will be copies");
                    refused = Some(why);
                }
            }
        }
        let name = format!("atoll-{}", config.instance);
        let (kind, root, seen) = match &pooled {
            // The number of this process, not `self`: programs that it starts are given such paths.
            Some(mount) => {
                let root = format!("/proc/{}/fd/{}/{name}", std::process::id(), mount.as_raw_fd());
                (Kind::Pool, PathBuf::from(root), Path::new("/").join(name))
            }
            None => (if native { Kind::Native } else { Kind::Copy }, plain.clone(), plain),
        };
        let trimmer = pooled.as_ref().map(|mount| Trimmer::start(mount.as_fd())).transpose()?;
        let sealing = artifacts::Sealing::default();
        let storage = Self {
            kind,
            root,
            seen,
            dir,
            pool_size: config.pool,
            makings: Arc::default(),
            refused,
            sealing,
            trimmer,
            mount: pooled,
        };
        let parts =
            ["", "disks", "sandboxes", "machines", "prepared", "sentries", "artifacts", "volumes", "trash"];
        for part in parts {
            private_dir(&storage.root.join(part)).step("make a directory of the storage")?;
        }
        for part in [storage.disks(), storage.prepared(), storage.trash()] {
            empty(&part).step("remove what an earlier process left")?;
        }
        Ok(storage)
    }

    /// How snapshots are made here.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where images wait.
    #[must_use]
    pub fn disks(&self) -> PathBuf {
        self.root.join("disks")
    }

    /// Where machines lie that are ready to be sandboxes.
    #[must_use]
    pub fn prepared(&self) -> PathBuf {
        self.root.join("prepared")
    }

    /// Where the images of volumes lie.
    #[must_use]
    pub(crate) fn volumes(&self) -> PathBuf {
        self.root.join("volumes")
    }

    /// Where things wait to be removed.
    #[must_use]
    pub fn trash(&self) -> PathBuf {
        self.root.join("trash")
    }

    /// The directory of a snapshot.
    fn artifact_dir(&self, id: &SnapshotId) -> PathBuf {
        self.root.join("artifacts").join(id.as_str())
    }

    /// The path of an image here as the kernel names it, relative to the place.
    #[must_use]
    pub fn within<'a>(&self, seen: &'a str) -> Option<&'a Path> {
        let seen = seen.strip_suffix(" (deleted)").unwrap_or(seen);
        Path::new(seen).strip_prefix(&self.seen).ok()
    }

    /// Makes `to` a file with the content of `from`: a clone where that is possible, else a copy of what is
    /// not a hole. On error nothing is left at `to`.
    ///
    /// # Errors
    /// [`IsolationError::HostFull`], [`IsolationError::Kernel`].
    pub fn duplicate(&self, from: &Path, to: &Path) -> Result<File, IsolationError> {
        let source = File::open(from).step("open an image")?;
        let target = File::options().read(true).write(true).create_new(true).open(to);
        let target = target.step("make an image")?;
        let done = self.fill(&source, &target);
        if done.is_err() {
            drop(fs::remove_file(to));
        }
        done.map(|()| target)
    }

    /// Gives an empty file, or one of the same size, the content of another.
    pub(crate) fn fill(&self, source: &File, target: &File) -> Result<(), IsolationError> {
        if self.kind == Kind::Copy {
            return clone::copy(source, target).step("copy an image");
        }
        rustix::fs::ioctl_ficlone(target, source).step("clone an image")
    }

    /// Replaces the content of an image by that of another of the same size. Only where files can be cloned.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn replace(&self, source: &File, target: &File) -> io::Result<()> {
        rustix::fs::ioctl_ficlone(target, source)?;
        Ok(())
    }

    /// Bytes that can be written here before it is full, counting the host's file system too.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn room(&self) -> Result<Room, IsolationError> {
        let measure = |path: &Path| rustix::fs::statvfs(path).step("measure the storage");
        let host = measure(&self.dir)?;
        let (mut free, mut total) = (host.f_bavail * host.f_frsize, host.f_blocks * host.f_frsize);
        if self.kind == Kind::Pool {
            let pool = measure(&self.root)?;
            free = free.min(pool.f_bavail * pool.f_frsize);
            total = total.min(pool.f_blocks * pool.f_frsize);
        }
        Ok(Room { free_bytes: free, total_bytes: total })
    }

    /// Refuses when there is so little room that running sandboxes need all of it.
    ///
    /// # Errors
    /// [`IsolationError::HostFull`].
    pub fn check_room(&self) -> Result<(), IsolationError> {
        let is_enough = || self.room().map(|room| room.free_bytes >= room.reserve_bytes());
        if is_enough()? {
            return Ok(());
        }
        if let Some(mount) = &self.mount {
            match trim::now(mount.as_fd()) {
                Ok(()) if is_enough()? => return Ok(()),
                Ok(()) => {}
                // The caller gets the error that the host is full, which is the cause.
                Err(error) => {
                    tracing::warn!(why = %chain(&error), "what was freed is not given back to the host");
                }
            }
        }
        Err(failed("keep room for the disks that are in use".to_owned(), rustix::io::Errno::NOSPC.into()))
    }

    /// To be called before the first process of a sandbox is started. Refuses when the host has no room; when the room
    /// runs out later, the guard ends the making.
    ///
    /// # Errors
    /// [`IsolationError::HostFull`].
    pub fn begin_making(&self, id: &SandboxId) -> Result<Making, IsolationError> {
        self.makings.begin(id)
    }

    /// What `atoll doctor` says about it.
    #[must_use]
    pub fn check(&self) -> Check {
        let room = match self.room() {
            Ok(room) => format!("{} of {} MiB free", room.free_bytes >> 20, room.total_bytes >> 20),
            Err(error) => chain(&error),
        };
        match self.kind {
            Kind::Native => Check::new(
                "snapshots",
                Status::Ok,
                format!("the data directory's file system clones files; {room}"),
            ),
            Kind::Pool => Check::new(
                "snapshots",
                Status::Ok,
                format!("disks lie in an XFS pool of their own, which clones files; {room}"),
            ),
            Kind::Copy => {
                let why = self.refused.as_deref().map_or_else(String::new, |why| format!(" ({why})"));
                Check::new("snapshots", Status::Limited, format!("snapshots are copies here{why}; {room}"))
                    .hint("install xfsprogs, or keep the data directory on XFS or btrfs")
            }
        }
    }
}

/// Space of the place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Free, bytes.
    pub free_bytes: u64,
    /// Altogether, bytes.
    pub total_bytes: u64,
}

impl Room {
    /// The bytes that are kept free for running sandboxes.
    #[must_use]
    pub fn reserve_bytes(&self) -> u64 {
        (self.total_bytes / RESERVE_PART).min(RESERVE_MAX_BYTES)
    }
}

fn chain(error: &IsolationError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn empty(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
