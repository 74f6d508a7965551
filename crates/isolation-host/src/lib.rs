//! What isolation levels use of the host in the same way: control groups, and processes that outlive the server.

mod cgroup;
pub mod gate;
mod layout;
pub mod process;

pub(crate) use atoll_isolation::step;

pub use cgroup::{Cgroups, Membership};
pub use layout::{Controller, Layout};
pub use process::Process;

/// Memory that the host can still give, by the kernel's estimate, bytes.
#[must_use]
pub fn memory_available() -> Option<u64> {
    let table = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = table.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
