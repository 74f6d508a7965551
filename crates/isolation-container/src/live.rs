//! The instances this driver knows to be alive.
#![expect(unsafe_code, reason = "registers a descriptor with the runtime")]

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use atoll_core::id::SandboxId;
use atoll_isolation::IsolationError;
use atoll_network::Gate;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::disk::Disk;
use crate::record::Process;
use crate::spawn::{self, Exit};
use crate::step::Step;

/// A live instance's first process.
#[derive(Debug)]
pub(crate) struct Instance {
    pidfd: OwnedFd,
    /// The mount of its disk, so that its last process does not end by unmounting it. Absent when
    /// another server made the instance.
    disk: Mutex<Option<Disk>>,
    /// The way out that came with its slot, until somebody asks for it. Absent when another server made
    /// the instance.
    gate: Mutex<Option<Gate>>,
    exit: Mutex<Option<Exit>>,
    /// Held while it is stopped, let go on, or kept still for a snapshot: one at a time.
    freezing: Mutex<()>,
}

impl Instance {
    pub(crate) fn new(pidfd: OwnedFd, disk: Option<Disk>, gate: Option<Gate>) -> Self {
        let (disk, gate) = (Mutex::new(disk), Mutex::new(gate));
        Self { pidfd, disk, gate, exit: Mutex::new(None), freezing: Mutex::new(()) }
    }

    /// What keeps its disk mounted besides its processes.
    pub(crate) fn take_disk(&self) -> Option<Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The way out of its network, if it is still here.
    pub(crate) fn take_gate(&self) -> Option<Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The mount of its disk, if this process has it.
    pub(crate) fn disk_mount(&self) -> io::Result<Option<OwnedFd>> {
        let disk = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        disk.as_ref().map(|disk| disk.mount.try_clone()).transpose()
    }

    /// Waits until nobody else stops it or lets it go on, and keeps them from it.
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

    /// Takes up a process that was written down; `None` when it is no more.
    pub(crate) fn find(process: Process) -> Result<Option<Self>, IsolationError> {
        let Some(pid) = Pid::from_raw(process.pid) else { return Ok(None) };
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            other => other.step("open the process of a sandbox")?,
        };
        // The descriptor fixes the process; only now can the start time be compared without a race.
        let same = Process::read(process.pid).is_ok_and(|now| now == process);
        let instance = Self::new(pidfd, None, None);
        Ok((same && !instance.is_dead()).then_some(instance))
    }

    /// Whether it has ended.
    pub(crate) fn is_dead(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
    }

    /// Waits for its end.
    pub(crate) async fn ended(&self) -> io::Result<()> {
        let pidfd = self.pidfd.try_clone()?;
        // SAFETY: an owned descriptor stays open and the same for as long as it is owned.
        let watched = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }?;
        watched.readable().await.map(drop)
    }

    /// Takes its exit status if it was our child, and remembers it.
    pub(crate) fn reap(&self) -> Option<Exit> {
        let mut exit = self.exit.lock().unwrap_or_else(PoisonError::into_inner);
        if exit.is_none() {
            *exit = spawn::reap(&self.pidfd);
        }
        *exit
    }

    /// The process as a descriptor.
    pub(crate) fn pidfd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// All of them, by id.
#[derive(Debug, Default)]
pub(crate) struct Live(Mutex<HashMap<SandboxId, Arc<Instance>>>);

impl Live {
    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Instance>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, id: &SandboxId, instance: Instance) {
        self.lock().insert(id.clone(), Arc::new(instance));
    }

    pub(crate) fn get(&self, id: &SandboxId) -> Option<Arc<Instance>> {
        self.lock().get(id).cloned()
    }

    pub(crate) fn remove(&self, id: &SandboxId) -> Option<Arc<Instance>> {
        self.lock().remove(id)
    }
}
