//! User namespaces: each sandbox has 65,536 ids of its own, so that root inside is nobody outside.
//!
//! Ranges are numbered slots above [`FIRST_ID`]. Which slots are taken is written down as an empty
//! file `uid-<first id>` in the sandbox's directory (creating a name is atomic), and read back from there
//! when the driver starts. The first slot tried depends on the installation, so that two installations
//! on one host rarely use the same ids.
//!
//! The namespace itself is a file descriptor, made ahead of need: 0.25 ms. Programs inside cannot make
//! further user namespaces: the count is set to 0 inside, by the only process ever to have the right to.
#![expect(unsafe_code, reason = "starts a process that shares this one's memory")]

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_isolation::IsolationError;
use rustix::fs::{Mode, OFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, pidfd_send_signal, waitid};

use crate::step::{Step, failed};
use crate::sys;

/// First id ever given to a sandbox. Above the ids that distributions give to people, services,
/// containers of other programs (`/etc/subuid`) and systemd's dynamic ranges.
pub(crate) const FIRST_ID: u32 = 0x7000_0000;
/// Ids of one sandbox.
pub(crate) const IDS_PER_SANDBOX: u32 = 1 << 16;
/// Sandboxes that can exist at once.
pub(crate) const RANGES_MAX_COUNT: u32 = 16_384;
/// Stack of the process that holds a namespace while its map is written.
const STACK_BYTES: usize = 64 << 10;

/// Which ranges are taken.
#[derive(Debug)]
pub(crate) struct Ranges(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Slots, not ids.
    taken: BTreeSet<u32>,
    /// Where the search starts: a range rests as long as possible before it is used again.
    next: u32,
}

impl Ranges {
    /// All of `taken` (first ids) are in use.
    pub(crate) fn new(instance: &str, taken: impl IntoIterator<Item = u32>) -> Self {
        let start = u32::from_str_radix(instance, 16).unwrap_or(0) % RANGES_MAX_COUNT;
        let taken = taken.into_iter().filter_map(slot_of).collect();
        Self(Mutex::new(State { taken, next: start }))
    }

    fn take(&self) -> Option<u32> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = (0..RANGES_MAX_COUNT)
            .map(|step| (state.next + step) % RANGES_MAX_COUNT)
            .find(|slot| !state.taken.contains(slot))?;
        state.taken.insert(slot);
        state.next = (slot + 1) % RANGES_MAX_COUNT;
        Some(FIRST_ID + slot * IDS_PER_SANDBOX)
    }

    /// Gives a range back; the sandbox that had it must be gone entirely.
    pub(crate) fn give_back(&self, first_id: u32) {
        if let Some(slot) = slot_of(first_id) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).taken.remove(&slot);
        }
    }
}

fn slot_of(first_id: u32) -> Option<u32> {
    let slot = first_id.checked_sub(FIRST_ID)? / IDS_PER_SANDBOX;
    (slot < RANGES_MAX_COUNT).then_some(slot)
}

/// A range and a namespace that maps it. Gives the range back when it is dropped unused.
#[derive(Debug)]
pub(crate) struct UserNamespace {
    ranges: Arc<Ranges>,
    first_id: u32,
    fd: OwnedFd,
    kept: bool,
}

impl UserNamespace {
    /// The host's id of root inside.
    pub(crate) fn first_id(&self) -> u32 {
        self.first_id
    }

    /// The namespace.
    pub(crate) fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The range now belongs to what is written down on disk.
    pub(crate) fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for UserNamespace {
    fn drop(&mut self) {
        if !self.kept {
            self.ranges.give_back(self.first_id);
        }
    }
}

/// Takes a range and makes a namespace that maps it.
pub(crate) fn make(ranges: &Arc<Ranges>) -> Result<UserNamespace, IsolationError> {
    let first_id = ranges.take().ok_or_else(|| {
        let full = std::io::Error::from_raw_os_error(libc::EUSERS);
        failed(format!("find free user ids: all {RANGES_MAX_COUNT} ranges are taken"), full)
    })?;
    match make_mapped(first_id) {
        Ok(fd) => Ok(UserNamespace { ranges: Arc::clone(ranges), first_id, fd, kept: false }),
        Err(error) => {
            ranges.give_back(first_id);
            Err(error)
        }
    }
}

fn make_mapped(first_id: u32) -> Result<OwnedFd, IsolationError> {
    let holder = Holder::start()?;
    let pid = holder.child.pid;
    let map = format!("0 {first_id} {IDS_PER_SANDBOX}");
    for file in ["uid_map", "gid_map"] {
        std::fs::write(format!("/proc/{pid}/{file}"), &map).step(format!("write the {file} of a sandbox"))?;
    }
    let path = format!("/proc/{pid}/ns/user");
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).step("open a user namespace")
}

/// A process that does nothing but be in a new user namespace. Ended when dropped.
struct Holder {
    child: sys::Child,
    /// Must outlive the child, which runs on it.
    _stack: sys::Stack,
}

/// What the holder's process needs to know.
struct Order {
    report: OwnedFd,
    parent: Option<Pid>,
}

impl Holder {
    fn start() -> Result<Self, IsolationError> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).step("make a pipe")?;
        let stack = sys::Stack::new(STACK_BYTES).step("map a stack")?;
        let mut order = Order { report: write, parent: Some(getpid()) };
        let argument = (&raw mut order).cast();
        let mask = sys::block_signals();
        // SAFETY: `hold` makes only system calls and never returns. It uses `order` before it reports,
        // and this function waits for the report; the stack lives as long as the holder.
        let child = unsafe { sys::clone_sharing_memory(hold, argument, &stack, libc::CLONE_NEWUSER, None) };
        mask.restore();
        let holder = Self { child: child.step("make a user namespace")?, _stack: stack };
        drop(order);
        let mut errno = [0; 1];
        let count = rustix::io::retry_on_intr(|| rustix::io::read(&read, &mut errno));
        let refused = match count.step("read from a pipe")? {
            1 if errno[0] == 0 => return Ok(holder),
            1 => std::io::Error::from_raw_os_error(i32::from(errno[0])),
            _ => std::io::Error::other("the process that holds it ended"),
        };
        Err(failed("forbid further user namespaces inside a user namespace".to_owned(), refused))
    }
}

/// The holder: forbids further namespaces, reports, and sleeps.
extern "C" fn hold(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `start` passes a pointer to an `Order` that it keeps until this has reported.
    let order = unsafe { &*argument.cast::<Order>() };
    let bound = sys::die_with_parent();
    // A parent that died before that is told by nothing else: then this would sleep for ever, and with it whatever
    // it has copies of.
    if getppid() != order.parent {
        sys::exit_now(1);
    }
    let result = bound.and_then(|()| sys::write_file(c"/proc/sys/user/max_user_namespaces", b"0"));
    let errno = result.err().map_or(0, |errno| u8::try_from(errno.raw_os_error()).unwrap_or(u8::MAX));
    match rustix::io::write(&order.report, &[errno]) {
        Ok(_) => sys::sleep_forever(),
        Err(_) => sys::exit_now(1),
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let pidfd = self.child.pidfd.as_fd();
        // Both can only fail when the child is gone already.
        let _ = pidfd_send_signal(pidfd, Signal::KILL);
        let _ = rustix::io::retry_on_intr(|| waitid(WaitId::PidFd(pidfd), WaitIdOptions::EXITED));
    }
}
