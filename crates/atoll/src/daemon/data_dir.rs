//! The data directory: private, and one server's at a time.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_backup::STAGING;
use atoll_core::{Code, Error};
use rustix::fs::{FlockOperation, Mode, flock};

use super::left_behind::end_left_behind;
use crate::failure::{Failure, Result};

/// Directories in it that hold what sandboxes wrote, in files that every user could read.
const OUTPUT: [&str; 2] = ["builds", "logs"];
/// Hexadecimal digits in the name of an installation.
const INSTALLATION_LEN: usize = 8;
/// How long the lock of a server that was killed may last.
const LEFT_BEHIND: Duration = Duration::from_secs(2);
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// A directory whose lock this process holds. Its content does not matter.
#[derive(Debug)]
pub(crate) struct Claim {
    path: PathBuf,
    _lock: File,
}

impl Claim {
    /// Makes the directory if it is absent, and locks it.
    fn take(path: &Path, wait: Duration, in_use: impl FnOnce(&Path) -> Failure) -> Result<Self> {
        // Users inside sandboxes walk through the directories of images and disks. The modes of these must not depend
        // on the umask with which the server is started, such as the strict umask of a service. Private files and
        // directories get their modes explicitly, like this directory.
        rustix::process::umask(Mode::from_raw_mode(0o022));
        let what = |what: &str| format!("{what} {}", path.display());
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|error| Failure::io(what("cannot make the data directory"), error))?;
        let path = path.canonicalize().map_err(|error| Failure::io(what("cannot open"), error))?;
        let lock = private(&path.join("lock")).map_err(|error| Failure::io(what("cannot lock"), error))?;
        if lock_within(&lock, Duration::ZERO).is_err() {
            end_left_behind(&path);
            lock_within(&lock, wait).map_err(|_locked| in_use(&path))?;
        }
        Ok(Self { path, _lock: lock })
    }

    /// Takes a directory to restore into, without a look at its content.
    pub(crate) fn for_restore(path: &Path) -> Result<Self> {
        Self::take(path, Duration::ZERO, another_server)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Lets go of it. Of a directory in which there is nothing the lock's file goes, too, and the directory itself if it
    /// was not there before.
    pub(crate) fn leave(self, was_there: bool) {
        let Ok(entries) = std::fs::read_dir(&self.path) else { return };
        if entries.flatten().any(|entry| entry.file_name() != "lock") {
            return;
        }
        // A lock file or a directory that cannot be removed does no harm.
        drop(std::fs::remove_file(self.path.join("lock")));
        if !was_there {
            drop(std::fs::remove_dir(&self.path));
        }
    }
}

/// A data directory that this process holds the lock of.
#[derive(Debug)]
pub(crate) struct DataDir {
    claim: Claim,
    installation: String,
}

impl DataDir {
    /// Makes the directory if it is absent, and locks it. A server that was killed a moment ago may have left
    /// children that hold its lock for as long as they take to become programs of their own.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Self::open_within(path, LEFT_BEHIND, another_server)
    }

    /// As [`Self::open`]; `in_use` makes the error for a directory that a server has locked.
    pub(crate) fn open_or(path: &Path, in_use: impl FnOnce(&Path) -> Failure) -> Result<Self> {
        Self::open_within(path, LEFT_BEHIND, in_use)
    }

    /// As [`Self::open`], without waiting for a lock.
    pub(crate) fn open_now(path: &Path) -> Result<Self> {
        Self::open_within(path, Duration::ZERO, another_server)
    }

    fn open_within(path: &Path, wait: Duration, in_use: impl FnOnce(&Path) -> Failure) -> Result<Self> {
        let claim = Claim::take(path, wait, in_use)?;
        let path = claim.path();
        if path.join(STAGING).symlink_metadata().is_ok() {
            return Err(Failure::Plain(
                Error::new(
                    Code::InvalidState,
                    format!("a backup was not restored to its end in {}", path.display()),
                )
                .hint("run 'atoll restore' again, which begins anew; or remove the directory"),
            ));
        }
        let installation = installation(&path.join("installation")).map_err(|error| {
            Failure::io(format!("cannot name the installation of {}", path.display()), error)
        })?;
        Ok(Self { claim, installation })
    }

    pub(crate) fn path(&self) -> &Path {
        self.claim.path()
    }

    pub(crate) fn installation(&self) -> &str {
        &self.installation
    }

    /// Lets no other user of the host enter [`OUTPUT`], also where another program made the data directory, with a mode
    /// of its own, or an earlier version made these.
    pub(crate) fn close_output(&self) -> Result<()> {
        for name in OUTPUT {
            let path = self.path().join(name);
            let told = |error| Failure::io(format!("cannot make {}", path.display()), error);
            DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(told)?;
            std::fs::set_permissions(&path, Permissions::from_mode(0o700)).map_err(told)?;
        }
        Ok(())
    }
}

fn another_server(path: &Path) -> Failure {
    Failure::Plain(
        Error::new(Code::InvalidState, format!("another server uses {}", path.display()))
            .hint("stop it, talk to it with --url, or choose another --data-dir"),
    )
}

fn lock_within(file: &File, wait: Duration) -> rustix::io::Result<()> {
    let deadline = Instant::now() + wait;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(LOCK_INTERVAL);
            }
            outcome => return outcome,
        }
    }
}

fn private(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)
}

/// The name, made on first use. A file that a crash left empty is filled now.
fn installation(path: &Path) -> std::io::Result<String> {
    let mut file = private(path)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let text = text.trim().to_owned();
    if text.len() == INSTALLATION_LEN && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(text);
    }
    let mut random = [0_u8; INSTALLATION_LEN / 2];
    getrandom::fill(&mut random).map_err(std::io::Error::other)?;
    let name: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    file.set_len(0)?;
    file.write_all(name.as_bytes())?;
    Ok(name)
}
