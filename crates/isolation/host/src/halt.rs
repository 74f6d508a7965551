//! All sandboxes of an installation at once: makes them stand still by one write for each level, also while others are
//! made or end, and tells how much they have written that is not on the disk yet.

use std::os::fd::AsFd;

use atoll_core::id::SandboxId;
use atoll_isolation::IsolationError;
use rustix::io::Errno;

use crate::cgroup::files;
use crate::installation;
use crate::layout::{Controller, Layout};

/// What the names of the levels' cgroups end with.
pub(crate) const LEVELS: [&str; 3] = ["", "-gv", "-vm"];

/// The cgroups above those of an installation's sandboxes.
#[derive(Debug)]
pub struct Halt {
    layout: Layout,
    parents: [String; LEVELS.len()],
}

impl Halt {
    /// Those of an installation.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`] when the mount table cannot be read.
    pub fn open(instance: &str) -> Result<Self, IsolationError> {
        Ok(Self { layout: Layout::find()?, parents: LEVELS.map(|level| format!("atoll-{instance}{level}")) })
    }

    /// Makes every sandbox stand still, or lets them go on. A sandbox that stands still for a reason of its own goes on
    /// doing so. Does not wait: a process that is in the middle of a system call finishes that first. Processes that
    /// stand still can be killed.
    pub fn hold(&self, still: bool) {
        let root = self.layout.unified().root.as_fd();
        for parent in &self.parents {
            let held = files::open_dir(root, parent.as_str())
                .and_then(|dir| files::write(dir.as_fd(), "cgroup.freeze", if still { "1" } else { "0" }));
            match held {
                // There was no sandbox of this level yet.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => {
                    tracing::error!(%error, parent, still, "sandboxes cannot be stopped or let go on");
                }
            }
        }
    }

    /// Whether a level's sandboxes were made to stand still.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let root = self.layout.unified().root.as_fd();
        let held = |parent: &String| {
            let dir = files::open_dir(root, parent.as_str())?;
            files::read(dir.as_fd(), "cgroup.freeze")
        };
        self.parents.iter().any(|parent| held(parent).is_ok_and(|text| text.trim() == "1"))
    }

    /// Kills every process of a sandbox, whether it stands still or not.
    pub fn kill(&self, id: &SandboxId) {
        let places = self.parents.each_ref().map(|parent| format!("{parent}/{id}"));
        if let Err(error) = installation::kill(&self.layout, &places) {
            tracing::error!(sandbox = %id, %error, "a sandbox that is being made cannot be ended");
        }
    }

    /// Bytes that sandboxes have written and that are only in memory yet. The whole host's unwritten bytes, where those
    /// of sandboxes cannot be told.
    #[must_use]
    pub fn unwritten_bytes(&self) -> u64 {
        self.of_sandboxes().unwrap_or_else(of_host)
    }

    fn of_sandboxes(&self) -> Option<u64> {
        let memory = self.layout.with(Controller::Memory)?;
        let keys: [&str; 2] = if memory.unified {
            ["file_dirty", "file_writeback"]
        } else {
            ["total_dirty", "total_writeback"]
        };
        let mut bytes = 0_u64;
        for parent in &self.parents {
            let dir = match files::open_dir(memory.root.as_fd(), parent.as_str()) {
                Ok(dir) => dir,
                Err(Errno::NOENT) => continue,
                Err(_) => return None,
            };
            for key in keys {
                match files::field(dir.as_fd(), "memory.stat", key) {
                    Ok(of_level) => bytes = bytes.saturating_add(of_level),
                    Err(error) if is_gone(&error) => {}
                    Err(_) => return None,
                }
            }
        }
        Some(bytes)
    }
}

/// Whether the cgroup was removed meanwhile: it has no unwritten bytes that could be told, and the whole host's must
/// not be counted instead.
fn is_gone(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::NODEV | Errno::NOENT))
}

/// By `/proc/meminfo`.
fn of_host() -> u64 {
    let table = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| -> u64 {
        let line = table.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok()).unwrap_or(0)
    };
    (field("Dirty:") + field("Writeback:")) * 1024
}
