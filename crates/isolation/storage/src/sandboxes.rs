//! The disks of sandboxes: where those of each level lie, which there are, and the loop devices that have them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_core::id::SandboxId;
use atoll_isolation::{IsolationError, Resource};
use atoll_isolation_host::resources::sandboxes_in;

use crate::step::{Step, failed};
use crate::{Storage, loops};

/// How long the kernel may take to write a disk back and let go of its loop device.
const RELEASE_DEADLINE: Duration = Duration::from_secs(60);
/// What follows a container's id in the name of its image.
const IMAGE: &str = ".img";

impl Storage {
    /// The image of a container's disk.
    #[must_use]
    pub fn sandbox_disk(&self, id: &SandboxId) -> PathBuf {
        self.root.join("sandboxes").join(format!("{id}{IMAGE}"))
    }

    /// The directory of a virtual machine's disk and memory.
    #[must_use]
    pub fn machine(&self, id: &SandboxId) -> PathBuf {
        self.root.join("machines").join(id.as_str())
    }

    /// The directory of the disk of a sandbox of gVisor.
    #[must_use]
    pub fn sentry(&self, id: &SandboxId) -> PathBuf {
        self.root.join("sentries").join(id.as_str())
    }

    /// The images of all containers' disks, and the loop devices that have one.
    ///
    /// # Errors
    /// When the directory, or the list of loop devices, cannot be read.
    pub fn container_disks(&self) -> Result<Vec<Resource>, IsolationError> {
        let mut found = self.disks_in("sandboxes", IMAGE)?;
        found.extend(self.container_loops()?.into_iter().map(loop_device));
        Ok(found)
    }

    /// The directories of all virtual machines.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn machine_disks(&self) -> Result<Vec<Resource>, IsolationError> {
        self.disks_in("machines", "")
    }

    /// The directories of all sandboxes of gVisor, and the loop devices that have the disk of one.
    ///
    /// # Errors
    /// As [`Self::container_disks`].
    pub fn sentry_disks(&self) -> Result<Vec<Resource>, IsolationError> {
        let mut found = self.disks_in("sentries", "")?;
        found.extend(self.sentry_loops()?.into_iter().map(loop_device));
        Ok(found)
    }

    /// The loop devices that have a container's disk.
    ///
    /// # Errors
    /// When the list of loop devices cannot be read.
    pub fn container_loops(&self) -> Result<Vec<(SandboxId, PathBuf)>, IsolationError> {
        self.loops_of(|disk| disk.strip_prefix("sandboxes").ok()?.to_str()?.strip_suffix(IMAGE)?.parse().ok())
    }

    /// The loop devices that have the disk of a sandbox of gVisor.
    ///
    /// # Errors
    /// As [`Self::container_loops`].
    pub fn sentry_loops(&self) -> Result<Vec<(SandboxId, PathBuf)>, IsolationError> {
        self.loops_of(|disk| disk.strip_prefix("sentries").ok()?.parent()?.to_str()?.parse().ok())
    }

    /// The loop devices that have an image here for which `sandbox` names a sandbox, by the image's path within the
    /// place.
    fn loops_of(
        &self,
        sandbox: impl Fn(&Path) -> Option<SandboxId>,
    ) -> Result<Vec<(SandboxId, PathBuf)>, IsolationError> {
        let in_use = loops::in_use().step("list the loop devices")?;
        let ours = |(number, seen): (u32, String)| Some((sandbox(self.within(&seen)?)?, loops::path(number)));
        Ok(in_use.into_iter().filter_map(ours).collect())
    }

    fn disks_in(&self, part: &str, ending: &str) -> Result<Vec<Resource>, IsolationError> {
        let dir = self.root.join(part);
        let sandboxes = sandboxes_in(&dir, ending).step("list the disks of sandboxes")?;
        let disk = |sandbox: SandboxId| {
            let name = dir.join(format!("{sandbox}{ending}")).display().to_string();
            Resource { sandbox, kind: "disk", name }
        };
        Ok(sandboxes.into_iter().map(disk).collect())
    }
}

/// Waits until a disk that was unmounted is on no loop device any more, which `is_bound` tells. Blocks for as long as
/// the kernel writes the disk back.
///
/// # Errors
/// [`IsolationError::Kernel`] after a minute, and the error of `is_bound`.
pub fn until_released(is_bound: impl Fn() -> Result<bool, IsolationError>) -> Result<(), IsolationError> {
    let deadline = Instant::now() + RELEASE_DEADLINE;
    let mut wait = Duration::from_millis(1);
    while is_bound()? {
        if Instant::now() >= deadline {
            let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
            return Err(failed("unmount the disk of a sandbox".to_owned(), late));
        }
        std::thread::sleep(wait);
        wait = (wait * 2).min(Duration::from_millis(20));
    }
    Ok(())
}

fn loop_device((sandbox, device): (SandboxId, PathBuf)) -> Resource {
    Resource { sandbox, kind: "loop", name: device.display().to_string() }
}
