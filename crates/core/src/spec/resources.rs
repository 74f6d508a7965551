//! Limits: [`ResourcesDraft`] as asked, [`Resources`] as they will be enforced.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::limits::{
    CPU_MAX_MILLIS, CPU_MIN_MILLIS, DISK_MAX_BYTES, DISK_MIN_BYTES, MEMORY_MAX_BYTES, MEMORY_MIN_BYTES,
    PIDS_MAX, PIDS_MIN,
};

/// Limits of a sandbox, all enforced by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Resources {
    /// CPU time per wall time, thousandths of a core.
    pub cpu_millis: u32,
    /// Memory with page cache and tmpfs, bytes. Beyond it the kernel kills inside the sandbox.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u32,
    /// Writable disk, bytes. Beyond it writes get `ENOSPC`.
    pub disk_bytes: u64,
}

impl Default for Resources {
    /// Two cores, 2 GiB of memory, 4096 processes, 10 GiB of disk. All are limits, none is reserved.
    fn default() -> Self {
        Self { cpu_millis: 2000, memory_bytes: 2 << 30, pids: 4096, disk_bytes: 10 << 30 }
    }
}

/// Limits as asked: what is absent comes from the template or the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ResourcesDraft {
    /// See [`Resources::cpu_millis`].
    pub cpu_millis: Option<u32>,
    /// See [`Resources::memory_bytes`].
    pub memory_bytes: Option<u64>,
    /// See [`Resources::pids`].
    pub pids: Option<u32>,
    /// See [`Resources::disk_bytes`].
    pub disk_bytes: Option<u64>,
}

impl ResourcesDraft {
    /// Takes what is set here, the rest from `base`.
    #[must_use]
    pub fn over(self, base: Resources) -> Resources {
        Resources {
            cpu_millis: self.cpu_millis.unwrap_or(base.cpu_millis),
            memory_bytes: self.memory_bytes.unwrap_or(base.memory_bytes),
            pids: self.pids.unwrap_or(base.pids),
            disk_bytes: self.disk_bytes.unwrap_or(base.disk_bytes),
        }
    }
}

/// The operator's upper bounds for one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// The most that one sandbox may ask for.
    pub resources: Resources,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            resources: Resources {
                cpu_millis: CPU_MAX_MILLIS,
                memory_bytes: MEMORY_MAX_BYTES,
                pids: PIDS_MAX,
                disk_bytes: DISK_MAX_BYTES,
            },
        }
    }
}

fn in_range<T: PartialOrd + std::fmt::Display>(field: &str, value: T, min: T, max: T) -> Result<()> {
    if value < min || value > max {
        return Err(Error::invalid(field, format_args!("{value} is not between {min} and {max}")));
    }
    Ok(())
}

impl Resources {
    pub(crate) fn validate(&self, caps: &Caps) -> Result<()> {
        let cap = caps.resources;
        in_range("resources.cpu_millis", self.cpu_millis, CPU_MIN_MILLIS, cap.cpu_millis)?;
        in_range("resources.memory_bytes", self.memory_bytes, MEMORY_MIN_BYTES, cap.memory_bytes)?;
        in_range("resources.pids", self.pids, PIDS_MIN, cap.pids)?;
        in_range("resources.disk_bytes", self.disk_bytes, DISK_MIN_BYTES, cap.disk_bytes)
    }
}
