//! What is written down about each sandbox, so that another server process can find it.
//!
//! ```text
//! <dir>/sandboxes/<id>/
//!   uid-<first id>   empty; its name is the claim on a range of ids
//!   frozen           empty; there while a snapshot holds the disk still
//!   jail.pid         the jail's first process, as its launcher wrote it
//!   process.json     the same, once the sandbox was made
//! ```
//!
//! The disk lies in the storage's directory for the sandbox.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use atoll_core::id::SandboxId;
use atoll_isolation::IsolationError;
use atoll_isolation_host::{Marker, Process};

use crate::step::Step;

/// Largest file that is read here, bytes.
const FILE_MAX_BYTES: u64 = 4096;
/// What belongs to one life of a jail.
const LIFE: [&str; 4] = ["process.json", "process.json.new", "jail.pid", "jail.new"];

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
        self.has(".")
    }

    fn has(&self, name: &str) -> bool {
        crate::is_there(&self.dir.join(name))
    }

    /// Claims a range of ids.
    pub(crate) fn claim_ids(&self, first_id: u32) -> Result<(), IsolationError> {
        File::create_new(self.dir.join(format!("uid-{first_id}"))).step("write down the ids of a sandbox")?;
        Ok(())
    }

    /// The claimed range, if there is one.
    pub(crate) fn first_id(&self) -> Option<u32> {
        let entries = fs::read_dir(&self.dir).ok()?;
        entries.flatten().find_map(|entry| entry.file_name().to_str()?.strip_prefix("uid-")?.parse().ok())
    }

    /// Forgets what belonged to the jail that was.
    pub(crate) fn clear_life(&self) -> Result<(), IsolationError> {
        for name in LIFE {
            self.remove(name)?;
        }
        while let Some(first_id) = self.first_id() {
            self.remove(&format!("uid-{first_id}"))?;
        }
        Ok(())
    }

    /// Whether there is nothing of a jail.
    pub(crate) fn is_cleared(&self) -> bool {
        self.exists() && !self.has("process.json") && self.first_id().is_none()
    }

    fn remove(&self, name: &str) -> Result<(), IsolationError> {
        match fs::remove_file(self.dir.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.step(format!("remove {name} of a sandbox")),
        }
    }

    /// Says that the disk is being frozen: a process that finds this thaws it.
    pub(crate) fn frozen(&self) -> Marker {
        Marker::new(self.dir.join("frozen"), "a disk is frozen")
    }

    pub(crate) fn pid_file(&self) -> PathBuf {
        self.dir.join("jail.pid")
    }

    /// The process that the launcher started.
    pub(crate) fn launched(&self) -> Result<Process, IsolationError> {
        let step = || "find the first process of a jail";
        let pid = fs::read_to_string(self.pid_file()).step(step())?;
        let pid = pid.trim().parse().map_err(io::Error::other).step(step())?;
        Process::read(pid).step(step())
    }

    /// Whole or not at all.
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
        let small = fs::metadata(&path).is_ok_and(|meta| meta.len() <= FILE_MAX_BYTES);
        serde_json::from_slice(&small.then(|| fs::read(path).ok()).flatten()?).ok()
    }
}
