//! The instances this driver knows to be alive.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use atoll_isolation::IsolationError;
use atoll_isolation_host::{Process, process};

use crate::disk::Disk;
use crate::gate::Home;
use crate::spawn::{self, Exit};

/// A live instance's first process.
#[derive(Debug)]
pub(crate) struct Instance {
    pidfd: OwnedFd,
    pid: i32,
    /// The mount of its disk, so that its last process does not end by unmounting it. Absent when
    /// another server made the instance.
    disk: Mutex<Option<Disk>>,
    /// Where the network gate is that came with its slot.
    home: Arc<Home>,
    exit: Mutex<Option<Exit>>,
    /// Held by the task that stops it, lets it go on, or keeps it still for a snapshot: one task at a time.
    freezing: Mutex<()>,
}

impl Instance {
    /// `pid` is the number of the process that `pidfd` is.
    pub(crate) fn new(pidfd: OwnedFd, pid: i32, disk: Option<Disk>, home: Home) -> Self {
        let (disk, home) = (Mutex::new(disk), Arc::new(home));
        Self { pidfd, pid, disk, home, exit: Mutex::new(None), freezing: Mutex::new(()) }
    }

    /// The mount that keeps its disk mounted besides its processes.
    pub(crate) fn take_disk(&self) -> Option<Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Where the gate of its network is.
    pub(crate) const fn home(&self) -> &Arc<Home> {
        &self.home
    }

    /// The mount of its disk, if this process has it.
    pub(crate) fn disk_mount(&self) -> io::Result<Option<OwnedFd>> {
        let disk = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        disk.as_ref().map(|disk| disk.mount.try_clone()).transpose()
    }

    /// Waits until no other task stops it or lets it go on, and keeps other tasks from doing so.
    pub(crate) fn freezing(&self) -> MutexGuard<'_, ()> {
        self.freezing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, unless it would have to wait.
    pub(crate) fn try_freezing(&self) -> Option<MutexGuard<'_, ()>> {
        match self.freezing.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes up a process that was written down; `None` when it has ended.
    pub(crate) fn find(process: Process) -> Result<Option<Self>, IsolationError> {
        Ok(process.open()?.map(|pidfd| Self::new(pidfd, process.pid, None, Home::without_gate())))
    }

    /// Whether it has ended.
    pub(crate) fn is_dead(&self) -> bool {
        process::is_dead(&self.pidfd)
    }

    /// Waits for its end.
    pub(crate) async fn ended(&self) -> io::Result<()> {
        process::ended(&self.pidfd).await
    }

    /// Takes its exit status if it was our child, and remembers it.
    pub(crate) fn reap(&self) -> Option<Exit> {
        let mut exit = self.exit.lock().unwrap_or_else(PoisonError::into_inner);
        if exit.is_none() {
            *exit = spawn::reap(&self.pidfd);
        }
        *exit
    }

    /// The process's number. It is this process's as long as this has not [ended](Self::is_dead).
    pub(crate) const fn pid(&self) -> i32 {
        self.pid
    }

    /// The process as a descriptor.
    pub(crate) fn pidfd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}
