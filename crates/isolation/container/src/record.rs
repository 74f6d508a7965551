//! What is written down about each sandbox, so that another server process can find it.
//!
//! ```text
//! <dir>/sandboxes/<id>/
//!   uid-<first id>   empty; its name is the claim on a range of ids
//!   frozen           empty; there while a snapshot holds the disk still
//!   bare             empty; while it is there no agent layer is mounted
//!   guest.sock       where the guest agent listens
//!   process.json     which process is the guest agent
//! ```
//!
//! Names instead of contents where one word is enough: making a name is atomic. The server runs as root, and only root
//! may enter `<dir>`; the guest never sees it.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use atoll_core::id::SandboxId;
use atoll_isolation::IsolationError;
use atoll_isolation_host::resources::sandboxes_in;
use atoll_isolation_host::{Marker, Process, private_dir};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::step::Step;

/// Largest `process.json`, bytes.
const RECORD_MAX_BYTES: u64 = 4096;
/// Room for what it has, so that it is read at once, bytes.
const RECORD_CAPACITY_BYTES: usize = 256;
/// Connections that wait for the guest: the host has one, and one more while it replaces that.
const BACKLOG: i32 = 8;

/// The directories of all sandboxes.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    dir: PathBuf,
}

impl Records {
    /// Sandboxes are written down below `dir`.
    pub(crate) fn open(dir: PathBuf) -> Result<Self, IsolationError> {
        private_dir(&dir).step("make the directory of sandboxes")?;
        Ok(Self { dir })
    }

    /// One sandbox's directory.
    pub(crate) fn of(&self, id: &SandboxId) -> Record {
        Record { dir: self.dir.join(id.as_str()) }
    }

    /// Where they are.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Every sandbox that has a directory.
    pub(crate) fn list(&self) -> Result<Vec<SandboxId>, IsolationError> {
        sandboxes_in(&self.dir, "").step("list the sandboxes")
    }
}

/// One sandbox's directory.
#[derive(Debug)]
pub(crate) struct Record {
    dir: PathBuf,
}

impl Record {
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Says that the sandbox is being stopped for a snapshot: a process that finds this lets it go on.
    pub(crate) fn frozen(&self) -> Marker {
        Marker::new(self.dir.join("frozen"), "a sandbox is stopped")
    }

    /// Says that no agent layer is mounted. It is cleared before the first layer is mounted, so that a server that is
    /// killed in between leaves nothing false; a directory without it, as older servers left them, says nothing.
    pub(crate) fn bare(&self) -> Marker {
        Marker::new(self.dir.join("bare"), "a sandbox has no agent layers")
    }

    /// Makes the directory. Fails when there is one.
    pub(crate) fn create(&self) -> Result<(), IsolationError> {
        DirBuilder::new().mode(0o700).create(&self.dir).step("make the directory of a sandbox")
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

    /// Forgets everything but the disk: what belonged to the process that was.
    pub(crate) fn clear_run(&self) -> Result<(), IsolationError> {
        let step = || "forget the process of a sandbox";
        for name in ["process.json", "process.json.new", "guest.sock", "bare"] {
            match fs::remove_file(self.dir.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other.step(step())?,
            }
        }
        while let Some(first_id) = self.first_id() {
            fs::remove_file(self.dir.join(format!("uid-{first_id}"))).step(step())?;
        }
        Ok(())
    }

    /// Whether there is nothing of what a process needs.
    pub(crate) fn is_cleared(&self) -> bool {
        self.dir.try_exists().is_ok_and(|there| there)
            && !self.dir.join("process.json").try_exists().is_ok_and(|there| there)
            && self.first_id().is_none()
    }

    /// Writes down the process: whole or not at all.
    pub(crate) fn write_process(&self, process: Process) -> Result<(), IsolationError> {
        let new = self.dir.join("process.json.new");
        let write = || {
            let text = serde_json::to_vec(&process)?;
            File::create(&new)?.write_all(&text)?;
            fs::rename(&new, self.dir.join("process.json"))
        };
        write().step("write down the process of a sandbox")
    }

    /// The process, if it was written down.
    pub(crate) fn read_process(&self) -> Option<Process> {
        let file = File::open(self.dir.join("process.json")).ok()?;
        let mut text = Vec::with_capacity(RECORD_CAPACITY_BYTES);
        // What is longer is no record: it is cut off here.
        file.take(RECORD_MAX_BYTES).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Makes the socket on which the guest will listen.
    pub(crate) fn listen(&self) -> Result<OwnedFd, IsolationError> {
        let dir = open_dir(&self.dir).step("open the directory of a sandbox")?;
        let socket = || {
            let socket = rustix::net::socket_with(
                AddressFamily::UNIX,
                SocketType::STREAM,
                SocketFlags::CLOEXEC,
                None,
            )?;
            // Through a descriptor, because the name of a socket may have no more than 107 bytes.
            let name = format!("/proc/self/fd/{}/guest.sock", dir.as_raw_fd());
            rustix::net::bind(&socket, &SocketAddrUnix::new(name)?)?;
            rustix::net::listen(&socket, BACKLOG)?;
            rustix::io::Result::Ok(socket)
        };
        socket().step("make the socket of a sandbox")
    }

    /// Opens the socket's file as a path, refusing anything but a socket.
    pub(crate) fn socket(&self) -> Result<OwnedFd, IsolationError> {
        let find = || {
            let dir = open_dir(&self.dir)?;
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let file = openat2(&dir, c"guest.sock", flags, Mode::empty(), resolve)?;
            let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
            if kind == rustix::fs::FileType::Socket { Ok(file) } else { Err(rustix::io::Errno::NOTSOCK) }
        };
        match find() {
            Err(rustix::io::Errno::NOENT) => Err(IsolationError::Gone),
            other => other.step("find the socket of a sandbox"),
        }
    }
}

fn open_dir(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}
