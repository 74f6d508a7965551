//! The guard of the host's disk: stops every sandbox before there is no room left for what it has written.
//!
//! Disks are sparse: to a sandbox there is always room up to its limit, and a write succeeds as soon as the data is in
//! memory. If the host has no room when the kernel writes that data to disk, the data is lost, and no process inside is
//! told. So a thread measures how much is free and how much data is not on disk yet, and makes all sandboxes stand
//! still while there is still room for all of that.
//!
//! Between two looks the sandboxes can write only so much: the less is left, the more often the thread looks, and it
//! reckons with the fastest that memory can be written to. The margin ([`margin_bytes`]) is for the time that looking
//! and stopping take. The guard lets the sandboxes go on when there is room again. It ends sandboxes that are being
//! made when the disk gets full ([`crate::making`]).

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atoll_isolation::{DiskSpace, HostDisk, IsolationError};
use atoll_isolation_host::Halt;
use tokio::sync::watch;

use crate::reserve::Reserve;
use crate::step::Step;
use crate::{Kind, Storage, pool, trim};

/// The margin is this part of the place, within bounds, bytes.
const MARGIN_PART: u64 = 16;
const MARGIN_MIN_BYTES: u64 = 32 << 20;
const MARGIN_MAX_BYTES: u64 = 1 << 30;
/// Bytes that one core can write to memory in a second.
const CORE_BYTES_PER_SECOND: u64 = 1 << 30;
/// Between two looks.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Between two looks while everything stands still.
const PAUSE_FULL: Duration = Duration::from_millis(100);
/// Between two attempts, while the disk is full, at giving blocks freed in the pool back to the host, and at giving the
/// pool room that was freed on the host.
const LEVEL_EVERY: Duration = Duration::from_millis(500);
/// Priority of the thread: the highest.
const NICE: i32 = -20;

/// Room that must be left when the sandboxes are stopped, besides what is unwritten.
fn margin_bytes(total_bytes: u64) -> u64 {
    (total_bytes / MARGIN_PART).clamp(MARGIN_MIN_BYTES, MARGIN_MAX_BYTES)
}

/// The thread. Dropping it ends it and leaves the sandboxes as they are.
#[derive(Debug)]
pub struct Guard {
    post: Arc<Post>,
    full: watch::Receiver<bool>,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Post {
    storage: Arc<Storage>,
    reserve: Reserve,
    halt: Halt,
}

impl Guard {
    /// Looks once, stops the sandboxes that an earlier server left running or lets them go on, then keeps looking.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn start(storage: Arc<Storage>, data_dir: &Path, halt: Halt) -> Result<Self, IsolationError> {
        let post = Arc::new(Post { storage, reserve: Reserve::of(data_dir), halt });
        let first = post.look(false)?;
        post.hold(first.full);
        if first.full {
            tracing::error!(free_bytes = first.free_bytes, "the host's disk is full: sandboxes stand still");
        }
        let (tell, full) = watch::channel(first.full);
        let (end, ended) = channel::<()>();
        let watching = Arc::clone(&post);
        let look = move || {
            // An error is harmless: only how soon the thread runs depends on it.
            let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
            let mut watcher =
                Watcher { post: watching, full: tell, levelled: Instant::now(), pause: PAUSE_MIN };
            while ended.recv_timeout(watcher.pause) == Err(RecvTimeoutError::Timeout) {
                watcher.step();
            }
        };
        let thread = std::thread::Builder::new().name("atoll-disk".to_owned()).spawn(look);
        let thread = thread.step("start the thread atoll-disk")?;
        Ok(Self { post, full, end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook; there is nothing to undo.
            drop(thread.join());
        }
    }
}

impl HostDisk for Guard {
    fn full(&self) -> watch::Receiver<bool> {
        self.full.clone()
    }

    fn space(&self) -> Vec<DiskSpace> {
        self.post.storage.spaces().unwrap_or_default()
    }

    fn make_room(&self) {
        self.post.reserve.give_up_if_tight();
    }
}

/// What a look saw.
#[derive(Debug, Clone, Copy)]
struct Look {
    full: bool,
    free_bytes: u64,
    unwritten_bytes: u64,
    /// Bytes that the sandboxes may write until they must be stopped.
    left_bytes: u64,
    roomy: bool,
}

impl Post {
    fn look(&self, was_full: bool) -> Result<Look, IsolationError> {
        Ok(weigh(&self.storage.spaces()?, self.halt.unwritten_bytes(), was_full))
    }

    /// Stops the sandboxes that run and ends those that are being made, or lets all go on.
    fn hold(&self, still: bool) {
        let makings = &self.storage.makings;
        if !still {
            self.halt.hold(false);
            makings.shut(false);
            return;
        }
        // This comes first: a process that is started in a cgroup that stands still never gets far enough to be
        // registered.
        makings.shut(true);
        self.halt.hold(true);
        for id in makings.under_way() {
            self.halt.kill(&id);
        }
    }
}

/// Judges by what is free and what is unwritten. The fullest place decides.
fn weigh(spaces: &[DiskSpace], unwritten_bytes: u64, was_full: bool) -> Look {
    let mut look =
        Look { full: false, free_bytes: u64::MAX, unwritten_bytes, left_bytes: u64::MAX, roomy: true };
    // A file system that reports no size has no known end: a tmpfs without a limit, some in user space.
    for space in spaces.iter().filter(|space| space.total_bytes > 0) {
        let margin = margin_bytes(space.total_bytes);
        let needed = margin.saturating_add(unwritten_bytes);
        // Twice the margin must be free before the sandboxes go on: their first writes must not stop them again.
        let threshold = if was_full { needed.saturating_add(margin) } else { needed };
        look.full |= space.free_bytes < threshold;
        look.free_bytes = look.free_bytes.min(space.free_bytes);
        look.left_bytes = look.left_bytes.min(space.free_bytes.saturating_sub(needed));
        look.roomy &= space.free_bytes > needed.saturating_add(3 * margin);
    }
    look
}

struct Watcher {
    post: Arc<Post>,
    full: watch::Sender<bool>,
    levelled: Instant,
    pause: Duration,
}

impl Watcher {
    fn step(&mut self) {
        let was_full = *self.full.borrow();
        let look = match self.post.look(was_full) {
            Ok(look) => look,
            Err(error) => {
                tracing::error!(%error, "the room on the host's disk is not known");
                self.pause = PAUSE_MAX;
                return;
            }
        };
        self.pause = pause(look.left_bytes);
        match (was_full, look.full) {
            (false, false) if look.roomy => self.fill_reserve(),
            (false, false) => self.post.storage.give_back(),
            (false, true) => {
                self.post.hold(true);
                let Look { free_bytes, unwritten_bytes, .. } = look;
                tracing::error!(
                    free_bytes,
                    unwritten_bytes,
                    "the host's disk is full: sandboxes stand still"
                );
                self.full.send_replace(true);
                self.pause = PAUSE_FULL;
            }
            (true, true) => self.keep_still(look),
            (true, false) => {
                self.post.hold(false);
                tracing::info!(
                    free_bytes = look.free_bytes,
                    "there is room on the host's disk: sandboxes go on"
                );
                self.full.send_replace(false);
            }
        }
    }

    fn keep_still(&mut self, look: Look) {
        // Again, for sandboxes whose cgroups were made meanwhile.
        self.post.hold(true);
        // Another process on the host takes the room of data that is yet to be put on disk.
        if look.free_bytes < look.unwritten_bytes {
            self.post.reserve.give_up(look.unwritten_bytes - look.free_bytes);
        }
        if self.levelled.elapsed() >= LEVEL_EVERY {
            self.post.storage.level();
            self.levelled = Instant::now();
        }
        self.pause = PAUSE_FULL;
    }

    fn fill_reserve(&mut self) {
        if let Err(error) = self.post.reserve.fill() {
            tracing::debug!(%error, "nothing is kept in reserve on the host's disk");
        }
    }
}

/// The shortest time in which the sandboxes can write this much.
fn pause(left_bytes: u64) -> Duration {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    let millis = left_bytes / (cores * CORE_BYTES_PER_SECOND / 1000);
    Duration::from_millis(millis).clamp(PAUSE_MIN, PAUSE_MAX)
}

impl Storage {
    /// Space of the host's file system, and of the pool if there is one.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn spaces(&self) -> Result<Vec<DiskSpace>, IsolationError> {
        let measure = |place, path: &Path| {
            let stat = rustix::fs::statvfs(path).step("measure the storage")?;
            let (free_bytes, total_bytes) = (stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize);
            Ok(DiskSpace { place, free_bytes, total_bytes })
        };
        let mut spaces = vec![measure("host", &self.dir)?];
        if self.kind == Kind::Pool {
            spaces.push(measure("pool", &self.root)?);
        }
        Ok(spaces)
    }

    /// Asks the trimmer to give blocks freed in the pool back to the host, if there are enough of them. Does not wait.
    fn give_back(&self) {
        if let Some(trimmer) = &self.trimmer {
            trimmer.look();
        }
    }

    /// Gives blocks freed in the pool back to the host, and room freed on the host to the pool. Waits.
    fn level(&self) {
        let Some(mount) = &self.mount else { return };
        if let Err(error) = trim::now(mount.as_fd()) {
            tracing::warn!(%error, "what was freed is not given back to the host");
        }
        if let Err(error) = pool::follow_host(&self.dir, mount.as_fd(), self.pool_size) {
            tracing::warn!(%error, "the storage pool does not grow");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_the_more_often_the_less_is_left() {
        assert_eq!(pause(0), PAUSE_MIN);
        assert_eq!(pause(u64::MAX), PAUSE_MAX);
        assert!(pause(1 << 30) >= pause(1 << 28));
    }

    fn host(free_bytes: u64, total_bytes: u64) -> DiskSpace {
        DiskSpace { place: "host", free_bytes, total_bytes }
    }

    #[test]
    fn what_counts_is_what_is_left_not_how_much_is_taken() {
        // Nine tenths of it are taken, and the host has much unwritten.
        let look = weigh(&[host(50 << 30, 500 << 30)], 8 << 30, false);
        assert!(!look.full && look.roomy, "{look:?}");
        // However large the place, no more is kept free than this and the unwritten bytes.
        assert!(!weigh(&[host(MARGIN_MAX_BYTES + 1, 1 << 50)], 0, false).full);
        assert!(weigh(&[host(MARGIN_MAX_BYTES - 1, 1 << 50)], 0, false).full);
        assert!(weigh(&[host(MARGIN_MAX_BYTES + (1 << 20), 1 << 50)], 2 << 20, false).full);
    }

    #[test]
    fn they_go_on_when_there_is_twice_as_much() {
        let space = host(MARGIN_MAX_BYTES + (64 << 20), 1 << 40);
        assert!(!weigh(&[space], 0, false).full);
        assert!(weigh(&[space], 0, true).full);
        assert!(!weigh(&[host(2 * MARGIN_MAX_BYTES, 1 << 40)], 0, true).full);
    }

    #[test]
    fn the_fullest_place_decides_and_one_without_a_size_does_not() {
        let pool = DiskSpace { place: "pool", free_bytes: 0, total_bytes: 10 << 30 };
        assert!(weigh(&[host(1 << 40, 1 << 41), pool], 0, false).full);
        assert!(!weigh(&[host(0, 0)], 1 << 30, true).full);
    }

    #[test]
    fn a_small_place_is_not_held_back_as_a_whole() {
        assert_eq!(margin_bytes(320 << 20), MARGIN_MIN_BYTES);
        assert_eq!(margin_bytes(2 << 30), 128 << 20);
        assert_eq!(margin_bytes(u64::MAX), MARGIN_MAX_BYTES);
    }

    #[test]
    fn a_reserve_is_given_up_in_slices_and_made_whole_again() {
        let dir = tempfile::Builder::new().prefix("atoll-reserve-").tempdir().unwrap();
        let reserve = Reserve::of(dir.path());
        assert!(!reserve.give_up(1));
        reserve.fill().unwrap();
        let bytes = || std::fs::metadata(dir.path().join("reserve")).unwrap().len();
        let whole = bytes();
        assert!(whole >= 16 << 20);
        assert!(reserve.give_up(1 << 20));
        assert_eq!(bytes(), whole - (1 << 20));
        assert!(reserve.give_up(u64::MAX));
        assert_eq!(bytes(), 0);
        assert!(!reserve.give_up(1));
        reserve.fill().unwrap();
        assert_eq!(bytes(), whole);
    }
}
