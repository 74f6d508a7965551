//! The parts of the host that all isolation levels use in the same way: control groups, and processes that outlive the
//! server.

mod cgroup;
mod end;
pub mod filter;
pub mod gate;
mod halt;
mod heap;
mod installation;
pub mod jail;
mod layout;
mod live;
mod marker;
pub mod process;
pub mod resources;

pub(crate) use atoll_isolation::step;

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use atoll_core::id::SandboxId;
use atoll_isolation::{HostLoad, IsolationError};

pub use cgroup::{Cgroups, DESCENDANTS_MAX, Membership};
pub use end::end;
pub use halt::Halt;
pub use heap::give_memory_back;
pub use installation::{
    EPHEMERAL, Installation, end_installation, in_use_elsewhere, installations, is_running, mark,
    owner_elsewhere,
};
pub use layout::{Controller, Layout};
pub use live::Live;
pub use marker::Marker;
pub use process::Process;

/// Longest host name that the kernel takes, bytes.
const HOSTNAME_MAX_BYTES: usize = 64;

/// Whether this can be a host name.
///
/// # Errors
/// [`IsolationError::Unavailable`], which says what one looks like.
pub fn check_hostname(hostname: &str) -> Result<(), IsolationError> {
    if hostname.is_empty() || hostname.len() > HOSTNAME_MAX_BYTES || hostname.contains(['\0', '\n']) {
        return Err(IsolationError::Unavailable(format!(
            "a host name has 1 to {HOSTNAME_MAX_BYTES} bytes, none of them a line break"
        )));
    }
    Ok(())
}

/// `/etc/machine-id` of a sandbox: thirty-two hexadecimal digits that are its own, even when it shares its image or
/// snapshot with others, and a line's end.
#[must_use]
pub fn machine_id(id: &SandboxId) -> String {
    format!("{}\n", &blake3::hash(id.as_str().as_bytes()).to_hex()[..32])
}

/// Makes a directory, with its parents, that only the user of this process may enter.
///
/// # Errors
/// What the kernel says; none when there is a directory, which keeps its permissions.
pub fn private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).recursive(true).create(path)
}

/// Memory that the host can still give, by the kernel's estimate, bytes.
#[must_use]
pub fn memory_available() -> Option<u64> {
    meminfo("MemAvailable:")
}

fn meminfo(field: &str) -> Option<u64> {
    let table = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = table.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The host's memory, and how busy its processors are.
#[must_use]
pub fn load() -> HostLoad {
    let pressure = std::fs::read_to_string("/proc/pressure/cpu");
    HostLoad {
        memory_total_bytes: meminfo("MemTotal:"),
        // A kernel without pressure stall information has no such file.
        cpu_pressure: pressure.ok().and_then(|text| waiting(&text)),
    }
}

/// The part of ten seconds in which a process waited, thousandths: of `some avg10=1.53 avg60=…`.
fn waiting(pressure: &str) -> Option<u32> {
    let some = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    let percent = some.split(' ').find_map(|field| field.strip_prefix("avg10="))?;
    let (whole, part) = percent.split_once('.')?;
    let tenth = part.get(..1)?.parse::<u32>().ok()?;
    Some(whole.parse::<u32>().ok()?.checked_mul(10)?.saturating_add(tenth).min(1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_read_in_thousandths() {
        let some = |avg10: &str| {
            waiting(&format!("some avg10={avg10} avg60=1.00 avg300=0.00 total=5\nfull avg10=9.00"))
        };
        assert_eq!(some("3.50"), Some(35));
        assert_eq!(some("0.00"), Some(0));
        assert_eq!(some("100.00"), Some(1000));
        assert_eq!((some("x"), waiting("")), (None, None));
        assert!(load().memory_total_bytes > memory_available());
    }
}
