//! A node's lease on this host: a process of its own makes the sandboxes stand still when it ends.
//!
//! The server may be gone, stopped or stuck when its lease ends, and its sandboxes go on without it. So the end of the lease
//! stands in a file, `DATA_DIR/lease`, and a small process, the *watchdog*, looks at it several times a second: at the end it makes
//! every sandbox of the installation stand still, before another node may take over; when the lease goes on, it lets them go
//! on. It outlives the server, and ends by itself once there is none and everything stands still.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_isolation_host::Halt;
use atoll_store::{Told, boot_ns};
use rustix::fs::{FlockOperation, flock};

use crate::failure::{Failure, Result};

/// How often the watchdog looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Name of the file with the end of the lease: eight bytes, nanoseconds since the machine started.
const LEASE: &str = "lease";
/// Name of the file that the one watchdog of a data directory has locked.
const LOCK: &str = "watchdog.lock";

/// The server's side: writes the end of the lease into the file, and keeps a watchdog running that looks at it.
#[derive(Debug)]
pub(crate) struct LeaseFile {
    dir: PathBuf,
    file: File,
    until_ns: AtomicU64,
    /// The server writes nothing before this is set: sandboxes that another node has taken over must not go on.
    armed: AtomicBool,
    watchdog: Mutex<Option<Child>>,
}

fn private(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

impl LeaseFile {
    pub(crate) fn open(dir: &Path) -> Result<Arc<Self>> {
        let file =
            private(&dir.join(LEASE)).map_err(|error| Failure::io("cannot write down the lease", error))?;
        let lease = Self {
            dir: dir.to_owned(),
            file,
            until_ns: AtomicU64::new(0),
            armed: AtomicBool::new(false),
            watchdog: Mutex::default(),
        };
        Ok(Arc::new(lease))
    }

    /// The function that the store calls with the end of each new term.
    pub(crate) fn told(self: &Arc<Self>) -> Told {
        let lease = Arc::clone(self);
        Arc::new(move |until_ns| lease.hear(until_ns))
    }

    /// From now on the sandboxes may run as long as the lease lasts.
    pub(crate) fn arm(&self) -> Result<()> {
        self.watch().map_err(|error| Failure::io("cannot start the watchdog of the lease", error))?;
        self.armed.store(true, Ordering::Release);
        self.hear(self.until_ns.load(Ordering::Acquire));
        Ok(())
    }

    fn hear(&self, until_ns: u64) {
        self.until_ns.store(until_ns, Ordering::Release);
        if !self.armed.load(Ordering::Acquire) {
            return;
        }
        // First the watchdog, then the new end of the lease: without a watchdog no lease is extended.
        let written = self.watch().and_then(|()| self.file.write_all_at(&until_ns.to_le_bytes(), 0));
        if let Err(error) = written {
            tracing::error!(%error, "the lease is not written down: sandboxes will stand still");
        }
    }

    /// Starts the watchdog, if there is none.
    fn watch(&self) -> std::io::Result<()> {
        let mut watchdog = self.watchdog.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(child) = watchdog.as_mut()
            && child.try_wait()?.is_none()
        {
            return Ok(());
        }
        // The watchdog of an earlier server goes on, and holds the lock.
        let lock = private(&self.dir.join(LOCK))?;
        if flock(&lock, FlockOperation::NonBlockingLockShared).is_err() {
            return Ok(());
        }
        drop(lock);
        let mut command = Command::new("/proc/self/exe");
        command.arg("watch-lease").arg(&self.dir).current_dir("/");
        // In a process group of its own: signals that a terminal sends to the server must not reach the watchdog.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        *watchdog = Some(command.spawn()?);
        Ok(())
    }
}

/// The watchdog: `atoll watch-lease DATA_DIR`.
pub(crate) fn watch_lease(dir: &Path) -> ExitCode {
    // The watchdog tells nothing to the server that started it: it writes to the kernel's cgroups only.
    match watch(dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_error) => ExitCode::FAILURE,
    }
}

fn watch(dir: &Path) -> std::io::Result<()> {
    let lock = private(&dir.join(LOCK))?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(());
    }
    let installation = std::fs::read_to_string(dir.join("installation"))?;
    let halt = Halt::open(installation.trim()).map_err(std::io::Error::other)?;
    let (file, server) = (File::open(dir.join(LEASE))?, File::open(dir.join("lock"))?);
    // On a busy machine the watchdog must not wait for a processor behind the sandboxes that it has to stop.
    let _ = rustix::process::setpriority_process(None, -20);
    let mut held = false;
    loop {
        let mut bytes = [0; 8];
        // Nothing has been written yet: nothing may run.
        let until_ns = file.read_exact_at(&mut bytes, 0).map_or(0, |()| u64::from_le_bytes(bytes));
        if boot_ns() < until_ns {
            if held {
                halt.hold(false);
                held = false;
            }
        } else {
            // At each look, to stop also the sandboxes that were made meanwhile.
            halt.hold(true);
            held = true;
            if flock(&server, FlockOperation::NonBlockingLockShared).is_ok() {
                return Ok(());
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
