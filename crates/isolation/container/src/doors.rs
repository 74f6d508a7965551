//! The directory that the driver shows to a sandbox whose processes may ask for other profiles: the command
//! `atoll-run`, and a door to each profile.
//!
//! A door is a copy of the command under an inode of its own, by which the kernel knows the profile. They lie in a
//! directory of the host that is mounted read-only at [`RUN_DIR`]: no process in the sandbox can write to it, put
//! something in its place, or take it away. Directories are named after their content, never changed, and removed when
//! no sandbox is there.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use atoll_core::profile::{Profiles, RUN_DIR, door};
use atoll_isolation::IsolationError;
use atoll_isolation_host::private_dir;

use crate::lock;
use crate::step::Step;

/// Where the command is, below the directory that is shown.
const COMMAND: &str = "bin/atoll-run";
const UNUSABLE: &str = "the data directory lies on a file system that numbers files for itself, so no profile may be asked for (may_run)";

/// The directories.
#[derive(Debug)]
pub(crate) struct Doors {
    parent: PathBuf,
    program: &'static [u8],
    /// Whether the kernel would know doors here.
    usable: bool,
    /// One is made at a time.
    making: Mutex<()>,
}

/// Files of one, by device and inode.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// All of them.
    pub(crate) own: Vec<(u64, u64)>,
    /// The doors, in the order of the profiles' names.
    pub(crate) doors: Vec<(u64, u64)>,
}

impl Doors {
    /// `program` is the command. Removes old directories when `alone`, that is, when no sandbox needs them.
    pub(crate) fn open(parent: PathBuf, program: &'static [u8], alone: bool) -> Result<Self, IsolationError> {
        private_dir(&parent).step("make the directory of doors")?;
        for entry in fs::read_dir(&parent).step("list the doors")? {
            let path = entry.step("list the doors")?.path();
            if alone || path.extension().is_some() {
                fs::remove_dir_all(path).step("remove old doors")?;
            }
        }
        let usable = lock::can_have_doors(&parent);
        Ok(Self { parent, program, usable, making: Mutex::default() })
    }

    /// The directory for these profiles, made when it is not there; `None` where no profile may be asked for. Where the
    /// host cannot have doors, only profiles with `may_run`, which need them, are refused.
    pub(crate) fn dir(&self, profiles: &Profiles) -> Result<Option<PathBuf>, IsolationError> {
        if profiles.named.values().all(|profile| profile.asks().is_empty()) {
            return Ok(None);
        }
        if !self.usable {
            let wanted = profiles.named.values().any(|profile| !profile.may_run.is_empty());
            return if wanted { Err(lock::cannot(UNUSABLE)) } else { Ok(None) };
        }
        let mut hasher = blake3::Hasher::new();
        for part in profiles.named.keys().map(String::as_bytes).chain([self.program]) {
            hasher.update(&part.len().to_le_bytes()).update(part);
        }
        let dir = self.parent.join(&hasher.finalize().to_hex()[..16]);
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if !dir.try_exists().step("find the doors to profiles")? {
            self.build(&dir, profiles).step("make the doors to profiles")?;
        }
        Ok(Some(dir))
    }

    fn build(&self, dir: &Path, profiles: &Profiles) -> io::Result<()> {
        let new = dir.with_extension("new");
        if new.try_exists()? {
            fs::remove_dir_all(&new)?;
        }
        // The process's umask does not apply to permissions that are set afterwards.
        let all = || Permissions::from_mode(0o755);
        for path in [new.clone(), new.join("bin"), new.join("profiles")] {
            DirBuilder::new().mode(0o755).create(&path)?;
            fs::set_permissions(&path, all())?;
        }
        for path in [COMMAND.to_owned()].into_iter().chain(profiles.named.keys().map(|name| below(name))) {
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o755).open(new.join(path))?;
            file.write_all(self.program)?;
            file.set_permissions(all())?;
        }
        fs::rename(new, dir)
    }
}

/// Where a door is, below the directory that is shown.
fn below(profile: &str) -> String {
    door(profile).trim_start_matches(RUN_DIR).trim_start_matches('/').to_owned()
}

/// The files of a directory, by device and inode, as the kernel gets them.
pub(crate) fn files(dir: &Path, profiles: &Profiles) -> io::Result<Files> {
    let identity = |path: &str| fs::symlink_metadata(dir.join(path)).map(|meta| (meta.dev(), meta.ino()));
    let doors = profiles.named.keys().map(|name| identity(&below(name))).collect::<io::Result<Vec<_>>>()?;
    let own = doors.iter().copied().chain([identity(COMMAND)?]).collect();
    Ok(Files { own, doors })
}
