//! The host's disk, on which everything of every sandbox lies: how much room there is, and whether so little that
//! sandboxes must not write.

use tokio::sync::watch;

/// Space of one place that can become full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// `host`: the file system of the data directory; `pool`: the file system in it in which disks lie.
    pub place: &'static str,
    /// Free, bytes.
    pub free_bytes: u64,
    /// Altogether, bytes.
    pub total_bytes: u64,
}

/// Watches the host's disk.
pub trait HostDisk: Send + Sync + std::fmt::Debug {
    /// Whether the disk is so full that every sandbox stands still, now and whenever it changes. The sandboxes stood
    /// still before this says so, and go on before it says the opposite.
    fn full(&self) -> watch::Receiver<bool>;

    /// The space of each place. Measured at each call; blocks for no longer than two system calls.
    fn space(&self) -> Vec<DiskSpace>;

    /// Frees a part of the reserved space when there is no room at all, so that a task which removes something can
    /// write that down.
    fn make_room(&self);
}
