//! What the planning of one build may take: a short text can ask for very much. Each `COPY` names every file of the context
//! anew, each name is compared with each pattern, and each `$NAME` stands for a value that is longer than itself.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use atoll_core::limits::{BUILD_PLAN_MAX_BYTES, BUILD_PLAN_MAX_WORK};
use atoll_core::{Code, Result};

use crate::place::Place;

/// What is left for the planning of a build. It is counted where something is compared or kept, and looked at before the next
/// such thing, so that a plan takes little more than it may.
#[derive(Debug)]
pub struct Budget {
    max_work: u64,
    max_bytes: usize,
    work: AtomicU64,
    bytes: AtomicUsize,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(BUILD_PLAN_MAX_WORK, BUILD_PLAN_MAX_BYTES)
    }
}

impl Budget {
    /// So many comparisons of characters, and so many bytes of steps in memory.
    #[must_use]
    pub const fn new(max_work: u64, max_bytes: usize) -> Self {
        Self { max_work, max_bytes, work: AtomicU64::new(0), bytes: AtomicUsize::new(0) }
    }

    /// Nobody waits for the plan any more: the thread that makes it ends soon, with an error.
    pub fn end(&self) {
        self.work.store(u64::MAX / 2, Ordering::Relaxed);
    }

    /// Counts so many comparisons of characters.
    pub(crate) fn work(&self, count: usize) {
        self.work.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Counts so many bytes that stay in memory with the plan.
    pub(crate) fn keep(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether there are no comparisons left: what was compared since may be told wrongly.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.work.load(Ordering::Relaxed) > self.max_work
    }

    /// Whether more is kept than may be.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.max_bytes
    }

    /// Refuses what has taken too much.
    ///
    /// # Errors
    /// [`Code::TooLarge`] with the place.
    pub(crate) fn check(&self, place: Place) -> Result<()> {
        if self.is_spent() {
            let what = "there are too many patterns for so many names in the context";
            return Err(place
                .error(Code::TooLarge, what)
                .hint("send a smaller context, or shorten the .dockerignore"));
        }
        if self.is_full() {
            let most = self.max_bytes >> 20;
            let what = format_args!("the steps up to here name more than {most} MiB of files and values");
            return Err(place
                .error(Code::TooLarge, what)
                .hint("copy large parts of the context once, and use shorter values"));
        }
        Ok(())
    }
}
