//! The data directory: private, and one server's at a time.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_core::{Code, Error};
use rustix::fs::{FlockOperation, flock};

use crate::failure::{Failure, Result};

/// Hexadecimal digits in the name of an installation.
const INSTALLATION_LEN: usize = 8;
/// How long the lock of a server that was killed may last.
const LEFT_BEHIND: Duration = Duration::from_secs(2);
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// A data directory that this process holds the lock of.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    installation: String,
    _lock: File,
}

impl DataDir {
    /// Makes the directory if it is absent, and locks it. A server that was killed a moment ago may have left
    /// children that hold its lock for as long as they take to become programs of their own.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Self::open_within(path, LEFT_BEHIND)
    }

    /// As [`Self::open`], without waiting for a lock.
    pub(crate) fn open_now(path: &Path) -> Result<Self> {
        Self::open_within(path, Duration::ZERO)
    }

    fn open_within(path: &Path, wait: Duration) -> Result<Self> {
        let what = |what: &str| format!("{what} {}", path.display());
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|error| Failure::io(what("cannot make the data directory"), error))?;
        let path = path.canonicalize().map_err(|error| Failure::io(what("cannot open"), error))?;
        let lock = private(&path.join("lock")).map_err(|error| Failure::io(what("cannot lock"), error))?;
        lock_within(&lock, wait).map_err(|_in_use| {
            Failure::Plain(
                Error::new(Code::InvalidState, format!("another server uses {}", path.display()))
                    .hint("stop it, talk to it with --url, or choose another --data-dir"),
            )
        })?;
        let installation = installation(&path.join("installation"))
            .map_err(|error| Failure::io(what("cannot name the installation of"), error))?;
        Ok(Self { path, installation, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn installation(&self) -> &str {
        &self.installation
    }
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
