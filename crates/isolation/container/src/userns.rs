//! User namespaces: each sandbox has 65,536 ids of its own, so that root inside is an unprivileged user outside.
//!
//! Ranges are numbered slots above [`FIRST_ID`]. Which slots are taken is written down as an empty
//! file `uid-<first id>` in the sandbox's directory (creating a name is atomic), and read back from there
//! when the driver starts. The first slot tried depends on the installation, so that two installations
//! on one host rarely use the same ids.
//!
//! The namespace itself is a file descriptor, made ahead of need: 0.25 ms. Programs inside cannot make further user
//! namespaces: the process that holds the namespace sets their count to 0 inside, and no other process ever has the
//! right to change it.
//!
//! What the kernel counts for each user (inotify, queued signals, message queues, locked memory) it charges twice: to
//! the user inside, and to the namespace's owner outside. The owner is therefore the sandbox's own root and not the
//! host's: else all sandboxes, and the host's root with them, would share one allowance.
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
/// Sandboxes that can run at once. Every id stays below 2^31: kernels before 6.18 read the ids in mount options as signed
/// numbers and refuse larger ones, and below systemd's range for foreign images (0x7ffe0000). What is above
/// these is for sentries.
pub(crate) const RANGES_MAX_COUNT: u32 = 3_072;
/// The highest id that a sandbox can have.
pub(crate) const LAST_ID: u32 = FIRST_ID + RANGES_MAX_COUNT * IDS_PER_SANDBOX - 1;
const _: () = assert!(LAST_ID <= i32::MAX.cast_unsigned(), "ids are below 2^31");
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
    /// All of `taken` (first ids) are in use. Those that are none of today's ranges (earlier versions gave higher ones)
    /// are left to the sandboxes that have them.
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

    /// The range now belongs to the claim that is written down on disk.
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
    let holder = Holder::start(first_id)?;
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
    /// Starts it in a namespace that the user `owner` owns.
    fn start(owner: u32) -> Result<Self, IsolationError> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).step("make a pipe")?;
        let stack = sys::Stack::new(STACK_BYTES).step("map a stack")?;
        let mut order = Order { report: write, parent: Some(getpid()) };
        let argument = (&raw mut order).cast();
        let mask = sys::block_signals();
        let child = sys::as_effective_user(owner, || {
            // SAFETY: `hold` makes only system calls and never returns. It uses `order` before it reports,
            // and this function waits for the report; the stack lives as long as the holder.
            unsafe { sys::clone_sharing_memory(hold, argument, &stack, libc::CLONE_NEWUSER, None) }
        });
        mask.restore();
        let child = child.step("become the owner of a user namespace")?.step("make a user namespace")?;
        let holder = Self { child, _stack: stack };
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
    // The parent may have died before `die_with_parent`, and no signal tells of that: then this process would sleep for
    // ever, and keep open every file that it has a copy of.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_of_every_installation_is_below_two_to_the_31st() {
        for instance in ["00000000", "ffffffff", "00000bff", "00001000", "89abcdef"] {
            let ranges = Ranges::new(instance, []);
            let mut seen = BTreeSet::new();
            while let Some(first_id) = ranges.take() {
                assert!((FIRST_ID..=LAST_ID - (IDS_PER_SANDBOX - 1)).contains(&first_id), "{first_id:#x}");
                assert!(i32::try_from(first_id + IDS_PER_SANDBOX - 1).is_ok(), "{first_id:#x}");
                assert!(seen.insert(first_id), "{first_id:#x} twice");
            }
            assert_eq!(seen.len(), 3072, "{instance}");
        }
    }

    #[test]
    fn what_earlier_versions_gave_takes_no_place_and_can_be_given_back() {
        // The first and the last range that an earlier version gave to sandboxes and that today's ranges do not have.
        let (above, last) = (0x7000_0000 + 4096 * IDS_PER_SANDBOX, 0xafff_0000);
        let ranges = Ranges::new("00000000", [above, last, FIRST_ID]);
        assert_eq!(ranges.take(), Some(FIRST_ID + IDS_PER_SANDBOX), "the one that is today's is taken");
        for old in [above, last] {
            ranges.give_back(old);
        }
        assert_eq!(ranges.take(), Some(FIRST_ID + 2 * IDS_PER_SANDBOX));
    }
}
