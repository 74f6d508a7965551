//! What is written down about each sandbox, so that another server process can find it.
//!
//! ```text
//! <dir>/sandboxes/<id>/
//!   uid-<uid>      empty; its name is the claim on a user id
//!   disk.img       the writable disk
//!   run/           the VMM's sockets; the only directory it may write to
//!   vmm.pid        the VMM's process id, as its launcher wrote it
//!   process.json   the same with its start time: the sandbox was made
//!   template       which saved machine it was restored from
//! ```

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use atoll_core::id::SandboxId;
use atoll_isolation::IsolationError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::step::Step;

/// Largest `process.json`, bytes.
const RECORD_MAX_BYTES: u64 = 4096;

/// A VMM's process. The start time tells it from another that later got the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) start_time: u64,
}

impl Process {
    pub(crate) fn read(pid: i32) -> io::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let fields = stat.rsplit_once(") ").map(|(_, rest)| rest).unwrap_or_default();
        let start_time = fields.split(' ').nth(19).and_then(|field| field.parse().ok());
        let start_time = start_time.ok_or_else(|| io::Error::other("the process has no start time"))?;
        Ok(Self { pid, start_time })
    }

    /// Opens it, if it is still the same and alive.
    pub(crate) fn open(self) -> Option<OwnedFd> {
        let pidfd = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        // The descriptor fixes the process; only now can the start time be compared without a race.
        let same = Self::read(self.pid).is_ok_and(|now| now == self);
        (same && !is_dead(&pidfd)).then_some(pidfd)
    }
}

/// Whether a process has ended.
pub(crate) fn is_dead(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
}

/// One sandbox's directory.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) dir: PathBuf,
}

impl Record {
    pub(crate) fn of(sandboxes: &Path, id: &SandboxId) -> Self {
        Self { dir: sandboxes.join(id.as_str()) }
    }

    /// Makes the directory with the claim on a user id. Fails when there is one.
    pub(crate) fn create(&self, uid: u32) -> Result<(), IsolationError> {
        DirBuilder::new().mode(0o700).create(&self.dir).step("make the directory of a sandbox")?;
        File::create_new(self.dir.join(format!("uid-{uid}"))).step("write down the user of a sandbox")?;
        let run = self.run();
        DirBuilder::new().mode(0o700).create(&run).step("make a directory of sockets")?;
        std::os::unix::fs::chown(run, Some(uid), Some(uid)).step("give a directory to a VMM")
    }

    pub(crate) fn run(&self) -> PathBuf {
        self.dir.join("run")
    }

    pub(crate) fn disk(&self) -> PathBuf {
        self.dir.join("disk.img")
    }

    pub(crate) fn pid_file(&self) -> PathBuf {
        self.dir.join("vmm.pid")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join("vmm.log")
    }

    pub(crate) fn uid(&self) -> Option<u32> {
        let entries = fs::read_dir(&self.dir).ok()?;
        entries.flatten().find_map(|entry| entry.file_name().to_str()?.strip_prefix("uid-")?.parse().ok())
    }

    pub(crate) fn write_process(&self, process: Process) -> Result<(), IsolationError> {
        let new = self.dir.join("process.json.new");
        let write = || {
            fs::write(&new, serde_json::to_vec(&process)?)?;
            fs::rename(&new, self.dir.join("process.json"))
        };
        write().step("write down the process of a sandbox")
    }

    pub(crate) fn read_process(&self) -> Option<Process> {
        let path = self.dir.join("process.json");
        let small = fs::metadata(&path).is_ok_and(|meta| meta.len() <= RECORD_MAX_BYTES);
        serde_json::from_slice(&small.then(|| fs::read(path).ok()).flatten()?).ok()
    }

    /// The VMM, also one whose creation was cut off.
    pub(crate) fn vmm(&self) -> Option<i32> {
        let pid = fs::read_to_string(self.pid_file()).ok()?;
        pid.trim().parse().ok()
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(self.disk()).map_or(0, |meta| meta.blocks() * 512)
    }
}
