//! The bpf file system of an installation, which keeps the programs and rings while no server runs.
//!
//! ```text
//! /run/atoll/witness-<installation>/ a mount of type bpf, source "atoll-witness"
//!   set-<16 digits of the object>/   map_<name>, prog_<program>, link_<program>, and before_<slot> while a ring grows
//! ```
//!
//! Only root may enter it; beside it, in the directory with `.d` at its end, are the facts about sandboxes that are not
//! in the kernel. It is the one mount in the host's mount table, and it is there as long as sandboxes are.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};

use crate::beside;
use crate::level::Missing;
use crate::object::OBJECT;

/// The source that the mount table shows.
const SOURCE: &str = "atoll-witness";
/// What the directory of a version's pins is called, before its number.
const SET_PREFIX: &str = "set-";
/// `statfs` of a bpf file system.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

/// The mounted directory.
#[derive(Debug)]
pub(crate) struct Pins {
    dir: PathBuf,
}

impl Pins {
    /// Mounts it, unless it is mounted.
    pub(crate) fn open(dir: &Path) -> Result<Self, Missing> {
        let refused = |error: io::Error| Missing::refused("mount a bpf file system", error);
        std::fs::DirBuilder::new().mode(0o700).recursive(true).create(dir).map_err(refused)?;
        if !is_mounted(dir) {
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            rustix::mount::mount(SOURCE, dir, "bpf", flags, c"mode=0700")
                .map_err(|error| refused(error.into()))?;
        }
        Ok(Self { dir: dir.to_owned() })
    }

    /// Where the pins of this version of the programs are.
    pub(crate) fn set(&self) -> PathBuf {
        self.dir.join(set_name())
    }

    /// Where pins of other versions of the programs are. Removing one ends its programs, and then they hold no program
    /// back any more.
    pub(crate) fn others(&self) -> io::Result<Vec<PathBuf>> {
        Ok(self.sets()?.into_iter().filter(|set| *set != self.set()).collect())
    }

    fn sets(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            // The kernel puts files of its own into every such file system.
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(SET_PREFIX)) {
                found.push(entry.path());
            }
        }
        Ok(found)
    }

    /// Whether no version of our programs is pinned.
    pub(crate) fn is_empty(&self) -> bool {
        self.sets().is_ok_and(|sets| sets.is_empty())
    }

    /// Removes everything, and the mount.
    pub(crate) fn close(&self) {
        close(&self.dir);
    }
}

fn set_name() -> String {
    format!("{SET_PREFIX}{}", &blake3::hash(OBJECT).to_hex()[..16])
}

/// Whether a bpf file system is mounted there.
#[must_use]
pub fn is_mounted(dir: &Path) -> bool {
    rustix::fs::statfs(dir).is_ok_and(|fs| u64::try_from(fs.f_type).is_ok_and(|kind| kind == BPF_FS_MAGIC))
}

/// Removes the mount that keeps programs and rings in the kernel without a server: for a data directory that has no
/// sandbox.
pub fn close(dir: &Path) {
    while is_mounted(dir) {
        if let Err(error) = rustix::mount::unmount(dir, UnmountFlags::DETACH) {
            tracing::warn!(%error, dir = %dir.display(), "cannot unmount the bpf file system");
            return;
        }
    }
    // An error is ignored: absent is as good.
    drop(std::fs::remove_dir(dir));
    drop(std::fs::remove_dir_all(beside(dir)));
}
