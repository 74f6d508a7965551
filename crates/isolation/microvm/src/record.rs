//! What is written down about each sandbox, so that another server process can find it.
//!
//! ```text
//! <dir>/sandboxes/<id>/
//!   uid-<uid>      empty; its name is the claim on a user id
//!   machine.json   how large its machine is
//!   io.json        how fast its disks are at most
//!   agent.sock, control.sock, qmp.sock   where the VMM listens; only root can reach them
//!   vmm.pid        the VMM's process id, as its launcher wrote it
//!   vmm.log        what the VMM said
//!   awake          empty; there while a machine that stands still runs for a snapshot
//!   stopped        empty; there while a machine is stopped to be copied
//!   unthrottled    empty; there while its disks are as fast as they can
//!   cold           empty; there when it was woken on its disk alone
//!   coming         empty; there while it comes from another host, and has not gone on with its memory
//!   process.json   which process the VMM is: the sandbox was made
//! ```
//!
//! Disk and memory lie in the storage's directory for the machine.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use atoll_core::id::SandboxId;
use atoll_isolation::IsolationError;
use atoll_isolation_host::{Marker, Process};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::is_there;
use crate::step::Step;
use crate::throttle::IoLimits;

/// Largest file that is read here, bytes.
const FILE_MAX_BYTES: u64 = 4096;
/// Names of the sockets.
pub(crate) const AGENT_SOCKET: &str = "agent.sock";
pub(crate) const CONTROL_SOCKET: &str = "control.sock";
pub(crate) const QMP_SOCKET: &str = "qmp.sock";
/// There while a machine that is to stand still runs.
const AWAKE: &str = "awake";
/// There while a machine that is to run stands still, or its processes do.
const STOPPED: &str = "stopped";
/// There while disks of a machine that are to be throttled are not.
const UNTHROTTLED: &str = "unthrottled";
/// There when a machine was woken on its disk alone.
const COLD: &str = "cold";
/// There while a machine that comes from another host has not gone on.
const COMING: &str = "coming";
/// What belongs to one life of a VMM.
const LIFE: [&str; 12] = [
    "process.json",
    "process.json.new",
    AGENT_SOCKET,
    CONTROL_SOCKET,
    QMP_SOCKET,
    "vmm.pid",
    "vmm.pid.new",
    AWAKE,
    STOPPED,
    UNTHROTTLED,
    COLD,
    COMING,
];

/// How large a machine is: what cannot change while it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Size {
    /// Memory of the whole machine, MiB.
    pub(crate) memory_mib: u64,
    /// Processors.
    pub(crate) cpus: u32,
}

/// One sandbox's directory.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) dir: PathBuf,
}

impl Record {
    pub(crate) fn of(sandboxes: &Path, id: &SandboxId) -> Self {
        Self { dir: sandboxes.join(id.as_str()) }
    }

    /// Makes the directory. Fails when there is one.
    pub(crate) fn create(&self) -> Result<(), IsolationError> {
        DirBuilder::new().mode(0o700).create(&self.dir).step("make the directory of a sandbox")
    }

    pub(crate) fn exists(&self) -> bool {
        is_there(&self.dir)
    }

    /// Claims a user id.
    pub(crate) fn claim_uid(&self, uid: u32) -> Result<(), IsolationError> {
        File::create_new(self.dir.join(format!("uid-{uid}"))).step("write down the user of a sandbox")?;
        Ok(())
    }

    pub(crate) fn uid(&self) -> Option<u32> {
        let entries = fs::read_dir(&self.dir).ok()?;
        entries.flatten().find_map(|entry| entry.file_name().to_str()?.strip_prefix("uid-")?.parse().ok())
    }

    /// Forgets what belonged to the VMM that was.
    pub(crate) fn clear_life(&self) -> Result<(), IsolationError> {
        let step = || "forget the VMM of a sandbox";
        for name in LIFE {
            match fs::remove_file(self.dir.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other.step(step())?,
            }
        }
        while let Some(uid) = self.uid() {
            fs::remove_file(self.dir.join(format!("uid-{uid}"))).step(step())?;
        }
        Ok(())
    }

    /// Says that a machine that stands still is let run: a process that finds this makes it stand still again.
    pub(crate) fn awake(&self) -> Marker {
        Marker::new(self.dir.join(AWAKE), "a sandbox runs for a moment")
    }

    /// Says that a machine is going to be stopped to be copied: a process that finds this lets it go on.
    pub(crate) fn stopped(&self) -> Marker {
        Marker::new(self.dir.join(STOPPED), "a sandbox is stopped")
    }

    /// Says that a machine's disks are not held back for a while.
    pub(crate) fn unthrottled(&self) -> Marker {
        Marker::new(self.dir.join(UNTHROTTLED), "a sandbox's disks are not limited")
    }

    /// Says that a machine is woken on its disk alone: a process that finds it half made does not take its memory for
    /// that of the sandbox.
    pub(crate) fn cold(&self) -> Marker {
        Marker::new(self.dir.join(COLD), "a sandbox is woken without its memory")
    }

    /// Says that a machine comes from another host, where all of it still is. It is cleared when the machine goes on
    /// here.
    pub(crate) fn coming(&self) -> Marker {
        Marker::new(self.dir.join(COMING), "a sandbox comes from another host")
    }

    pub(crate) fn write_io(&self, limits: IoLimits) -> Result<(), IsolationError> {
        if self.io() == limits { Ok(()) } else { self.write("io.json", &limits) }
    }

    /// No limits when nothing is written down.
    pub(crate) fn io(&self) -> IoLimits {
        self.read("io.json").unwrap_or_default()
    }

    /// Whether there is nothing of a VMM.
    pub(crate) fn is_cleared(&self) -> bool {
        self.exists() && !is_there(&self.dir.join("process.json")) && self.uid().is_none()
    }

    pub(crate) fn pid_file(&self) -> PathBuf {
        self.dir.join("vmm.pid")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join("vmm.log")
    }

    /// What the VMM said, its beginning.
    pub(crate) fn said(&self) -> String {
        let mut text = Vec::new();
        // A VMM that a guest has taken over may write as much there as it likes.
        let read = File::open(self.log()).and_then(|log| log.take(300).read_to_end(&mut text));
        if read.is_err() {
            return String::new();
        }
        String::from_utf8_lossy(&text).trim().replace('\n', "; ")
    }

    /// The process that the launcher started.
    pub(crate) fn launched(&self) -> Result<Process, IsolationError> {
        let step = || "find the process of a VMM";
        let pid = fs::read_to_string(self.pid_file()).step(step())?;
        let pid = pid.trim().parse().map_err(io::Error::other).step(step())?;
        Process::read(pid).step(step())
    }

    pub(crate) fn write_process(&self, process: Process) -> Result<(), IsolationError> {
        self.write("process.json", &process)
    }

    pub(crate) fn read_process(&self) -> Option<Process> {
        self.read("process.json")
    }

    pub(crate) fn write_size(&self, size: Size) -> Result<(), IsolationError> {
        self.write("machine.json", &size)
    }

    pub(crate) fn read_size(&self) -> Option<Size> {
        self.read("machine.json")
    }

    /// Whole or not at all.
    fn write(&self, name: &str, value: &impl Serialize) -> Result<(), IsolationError> {
        write_json(&self.dir.join(name), value).step(format!("write {name} of a sandbox"))
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        read_json(&self.dir.join(name))
    }

    /// Calls `with` with a path of a socket here that is short enough for the kernel, however long the directory's path
    /// is.
    pub(crate) async fn with_socket<T>(
        &self,
        name: &str,
        with: impl AsyncFnOnce(&Path) -> io::Result<T>,
    ) -> io::Result<T> {
        let dir = File::open(&self.dir)?;
        with(&PathBuf::from(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))).await
    }
}

/// Writes a small file whole or not at all.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let new = PathBuf::from(format!("{}.new", path.display()));
    fs::write(&new, serde_json::to_vec(value)?)?;
    fs::rename(&new, path)
}

pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let small = fs::metadata(path).is_ok_and(|meta| meta.len() <= FILE_MAX_BYTES);
    serde_json::from_slice(&small.then(|| fs::read(path).ok()).flatten()?).ok()
}
