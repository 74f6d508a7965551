//! The threads that open gates anew. Each enters one namespace after the other.
//!
//! A server that starts opens the gates of all its sandboxes, and to make and end a thread takes about as long as to open
//! a gate. So a thread opens all that wait, and ends when none does: one that waited for more would stay in the namespace
//! of a sandbox, and keep it when the sandbox is gone.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::gate::{Gate, open_here};
use crate::settings::Settings;
use crate::{NetworkError, Step};

/// Gates that are opened at the same time; more wait.
const THREADS_MAX_COUNT: usize = 2;

static OPENERS: Mutex<Openers> = Mutex::new(Openers { waiting: VecDeque::new(), threads: 0 });

struct Openers {
    waiting: VecDeque<Job>,
    /// Threads that take what waits.
    threads: usize,
}

struct Job {
    netns: OwnedFd,
    done: SyncSender<Result<Gate, NetworkError>>,
}

fn lock() -> MutexGuard<'static, Openers> {
    // Nothing in it is left half changed by a panic.
    OPENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a gate in a namespace, on a thread that is in it as long as that takes.
pub(crate) fn open(netns: BorrowedFd<'_>) -> Result<Gate, NetworkError> {
    let netns = netns.try_clone_to_owned().step("copy a file descriptor")?;
    let (done, opened) = sync_channel(1);
    if enter(Job { netns, done }) {
        let started = std::thread::Builder::new().name("atoll-gates".to_owned()).spawn(run);
        if started.is_err() {
            give_up();
        }
    }
    let gone = |_dropped| Err(io::Error::other("its thread could not be started")).step("open a gate");
    opened.recv().unwrap_or_else(gone)
}

/// Enters a job. Says whether the caller has to start a thread, which is counted from now on.
fn enter(job: Job) -> bool {
    let mut openers = lock();
    openers.waiting.push_back(job);
    let starts = openers.threads < THREADS_MAX_COUNT;
    openers.threads += usize::from(starts);
    starts
}

/// A thread could not be started: what waits fails, unless another thread takes it.
fn give_up() {
    let mut openers = lock();
    openers.threads -= 1;
    if openers.threads == 0 {
        openers.waiting.clear();
    }
}

/// The thread.
fn run() {
    while let Some(job) = next() {
        let opened = catch_unwind(AssertUnwindSafe(|| open_in(job.netns.as_fd())));
        let panicked = |_panic| Err(io::Error::other("its thread panicked")).step("open a gate");
        // The caller waits for it.
        drop(job.done.send(opened.unwrap_or_else(panicked)));
    }
}

/// The next job; without one, the thread is no longer counted.
fn next() -> Option<Job> {
    let mut openers = lock();
    let job = openers.waiting.pop_front();
    openers.threads -= usize::from(job.is_none());
    job
}

/// Nothing is opened in the namespace of the job before: whatever keeps the thread from this one ends the job.
fn open_in(netns: BorrowedFd<'_>) -> Result<Gate, NetworkError> {
    move_into_link_name_space(netns, Some(LinkNameSpaceType::Network)).step("enter a network namespace")?;
    let settings = Settings::open().step("find the settings of a network namespace")?;
    open_here(netns, &settings)
}
