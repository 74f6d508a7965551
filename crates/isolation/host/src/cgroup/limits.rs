//! Limits of memory, which the two versions of cgroups count differently.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::files::write;

/// The buffers of TCP that a sandbox with so much memory may have beside it, where version 1 counts them: a quarter of
/// its memory, but no less than a few fast connections need.
pub(super) const fn tcp_memory(memory_bytes: u64) -> u64 {
    const TCP_MIN_BYTES: u64 = 16 << 20;
    let quarter = memory_bytes / 4;
    if quarter > TCP_MIN_BYTES { quarter } else { TCP_MIN_BYTES }
}

/// Limits the buffers of TCP. Version 1 counts them beside all other memory, and without a limit it does not count them
/// at all.
fn limit_tcp_memory(dir: BorrowedFd<'_>, memory_bytes: u64) -> rustix::io::Result<()> {
    let bytes = tcp_memory(memory_bytes).to_string();
    match write(dir, "memory.kmem.tcp.limit_in_bytes", &bytes) {
        // The kernel was built without version 1's kernel memory; or more is in use now than the new limit, and the
        // earlier limit stays.
        Err(Errno::NOENT | Errno::BUSY) => Ok(()),
        other => other,
    }
}

pub(super) fn limit_memory(dir: BorrowedFd<'_>, unified: bool, limit: u64) -> rustix::io::Result<()> {
    let bytes = limit.to_string();
    if unified {
        write(dir, "memory.max", &bytes)?;
        return match write(dir, "memory.swap.max", "0") {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        };
    }
    // Memory may never be above memory and swap: which of the two goes first depends on the direction.
    let (memory, both) = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes");
    limit_tcp_memory(dir, limit)?;
    match write(dir, memory, &bytes) {
        Err(Errno::INVAL) => {
            write(dir, both, &bytes)?;
            write(dir, memory, &bytes)
        }
        first => {
            first?;
            match write(dir, both, &bytes) {
                // Without swap accounting the next best: do not swap.
                Err(Errno::NOENT | Errno::ACCESS) => write(dir, "memory.swappiness", "0"),
                other => other,
            }
        }
    }
}
