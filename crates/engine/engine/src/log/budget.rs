//! What output may take on the host: of the execs of one sandbox, and of all together.
//!
//! A writer that begins a segment looks whether there is too much. Of its sandbox the logs of execs that have ended go
//! first, oldest first, then segments of those that run, but never the newest one. When all sandboxes together have
//! too much, the one that has most loses. Readers are told of it as of everything that is dropped: by a gap.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::{ExecId, SandboxId};

use super::READING_MAX_BYTES;
use super::reading::Reading;
use super::segment::{data_path, index_path, list, size};

/// Sandboxes that lose something at one time, at most.
const LOSERS_MAX_COUNT: usize = 64;

/// The output of all execs of this installation.
#[derive(Debug)]
pub(crate) struct Logs {
    dir: PathBuf,
    max_bytes: u64,
    sandboxes: Mutex<BTreeMap<SandboxId, Arc<SandboxLogs>>>,
    /// What readers may hold.
    reading: Arc<Reading>,
}

/// That of one sandbox.
#[derive(Debug)]
struct SandboxLogs {
    dir: PathBuf,
    max_bytes: AtomicU64,
    bytes: AtomicU64,
    /// Execs whose logs are being written.
    live: Mutex<BTreeSet<ExecId>>,
}

/// The part of one writer. As long as it lives its newest segment stays.
#[derive(Debug)]
pub(crate) struct LogShare {
    all: Arc<Logs>,
    sandbox: Arc<SandboxLogs>,
    exec: ExecId,
}

impl Logs {
    /// Those in `dir`, of which nothing is known yet.
    pub(crate) fn new(dir: PathBuf, max_bytes: u64) -> Arc<Self> {
        let reading = Reading::new(READING_MAX_BYTES);
        Arc::new(Self { dir, max_bytes, sandboxes: Mutex::default(), reading })
    }

    /// The bytes that readers may hold together.
    pub(crate) fn reading(&self) -> Arc<Reading> {
        Arc::clone(&self.reading)
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Arc<SandboxLogs>>> {
        // One map: a panic leaves it usable as it is.
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, sandbox: &SandboxId) -> Arc<SandboxLogs> {
        let mut table = self.table();
        Arc::clone(table.entry(sandbox.clone()).or_insert_with(|| {
            Arc::new(SandboxLogs {
                dir: self.dir.join(sandbox.as_str()),
                max_bytes: AtomicU64::new(u64::MAX),
                bytes: AtomicU64::new(0),
                live: Mutex::default(),
            })
        }))
    }

    /// Measures what an earlier process left. Blocks.
    pub(crate) fn measure(&self) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten() {
            if let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<SandboxId>().ok()) {
                self.measure_one(&id);
            }
        }
    }

    /// The same, of one sandbox. Blocks.
    pub(crate) fn measure_one(&self, sandbox: &SandboxId) {
        let sandbox = self.of(sandbox);
        let bytes = sandbox.logs(&BTreeSet::new()).map_or(0, |logs| logs.iter().map(Log::bytes).sum());
        sandbox.bytes.store(bytes, Ordering::Relaxed);
    }

    /// What there is, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.table().values().map(|sandbox| sandbox.bytes.load(Ordering::Relaxed)).sum()
    }

    /// What there may be, bytes.
    pub(crate) const fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Nothing is left of a sandbox.
    pub(crate) fn forget(&self, sandbox: &SandboxId) {
        self.table().remove(sandbox);
    }

    /// Removes the log of an exec that has ended. Blocks.
    pub(crate) fn remove(&self, sandbox: &SandboxId, exec: &ExecId) -> io::Result<()> {
        let sandbox = self.of(sandbox);
        let dir = sandbox.dir.join(exec.as_str());
        let bytes = Log::read(&dir, exec.clone(), false).map_or(0, |log| log.bytes());
        remove_dir(&dir)?;
        sandbox.less(bytes);
        Ok(())
    }

    /// For a writer. A sandbox of which nothing is said keeps the bound that it had.
    pub(crate) fn share(
        self: &Arc<Self>,
        sandbox: &SandboxId,
        exec: &ExecId,
        max_bytes: Option<u64>,
    ) -> LogShare {
        let sandbox = self.of(sandbox);
        if let Some(max_bytes) = max_bytes {
            sandbox.max_bytes.store(max_bytes, Ordering::Relaxed);
        }
        sandbox.live().insert(exec.clone());
        LogShare { all: Arc::clone(self), sandbox, exec: exec.clone() }
    }

    /// Takes from those that have most until there is not too much.
    fn shrink(&self) -> io::Result<()> {
        for _ in 0..LOSERS_MAX_COUNT {
            let excess = self.bytes().saturating_sub(self.max_bytes);
            let largest = self.table().values().max_by_key(|one| one.bytes.load(Ordering::Relaxed)).cloned();
            let Some(largest) = largest.filter(|_| excess > 0) else { return Ok(()) };
            let bytes = largest.bytes.load(Ordering::Relaxed);
            // Some more than that, so that not every segment begins with this.
            largest.shrink(bytes.saturating_sub(excess + self.max_bytes / 16))?;
        }
        Ok(())
    }
}

impl LogShare {
    pub(super) fn wrote(&self, bytes: usize) {
        self.sandbox.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn dropped(&self, bytes: u64) {
        self.sandbox.less(bytes);
    }

    /// Drops what is too much.
    pub(super) fn keep_within(&self) -> io::Result<()> {
        let max = self.sandbox.max_bytes.load(Ordering::Relaxed);
        if self.sandbox.bytes.load(Ordering::Relaxed) > max {
            self.sandbox.shrink(max - max / 8)?;
        }
        if self.all.bytes() > self.all.max_bytes {
            self.all.shrink()?;
        }
        Ok(())
    }
}

impl Drop for LogShare {
    fn drop(&mut self) {
        self.sandbox.live().remove(&self.exec);
    }
}

impl SandboxLogs {
    fn live(&self) -> MutexGuard<'_, BTreeSet<ExecId>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn less(&self, bytes: u64) {
        let less = |now: u64| Some(now.saturating_sub(bytes));
        // Never fails: there is always a new value.
        let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Every log, oldest first, those that have ended before those that have not.
    fn logs(&self, live: &BTreeSet<ExecId>) -> io::Result<Vec<Log>> {
        let mut logs = Vec::new();
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(logs),
            other => other?,
        };
        for entry in entries {
            let entry = entry?;
            let Some(exec) = entry.file_name().to_str().and_then(|name| name.parse::<ExecId>().ok()) else {
                continue;
            };
            let is_live = live.contains(&exec);
            logs.push(Log::read(&entry.path(), exec, is_live)?);
        }
        logs.sort_by(|a, b| (a.live, &a.exec).cmp(&(b.live, &b.exec)));
        Ok(logs)
    }

    /// Drops until there is no more than this, as far as it can be dropped.
    fn shrink(&self, to_bytes: u64) -> io::Result<()> {
        // One at a time, and no writer becomes live meanwhile.
        let live = self.live();
        let logs = self.logs(&live)?;
        let mut bytes: u64 = logs.iter().map(Log::bytes).sum();
        for log in &logs {
            if bytes <= to_bytes {
                break;
            }
            bytes -= log.shrink(bytes - to_bytes)?;
        }
        self.bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// One log as it lies there.
struct Log {
    exec: ExecId,
    live: bool,
    dir: PathBuf,
    /// Where each segment begins, and its size with its index.
    segments: Vec<(u64, u64)>,
}

impl Log {
    fn read(dir: &Path, exec: ExecId, live: bool) -> io::Result<Self> {
        let segments = list(dir)?.into_iter().map(|start| (start, size(dir, start))).collect();
        Ok(Self { exec, live, dir: dir.to_owned(), segments })
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Drops at least so much, if it has that; gives how much it was.
    fn shrink(&self, by_bytes: u64) -> io::Result<u64> {
        let keeps = usize::from(self.live).min(self.segments.len());
        let mut dropped = 0;
        for (start, bytes) in &self.segments[..self.segments.len() - keeps] {
            if dropped >= by_bytes {
                return Ok(dropped);
            }
            remove_file(&data_path(&self.dir, *start))?;
            remove_file(&index_path(&self.dir, *start))?;
            dropped += bytes;
        }
        if !self.live {
            remove_dir(&self.dir)?;
        }
        Ok(dropped)
    }
}

fn absent_is_fine(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    absent_is_fine(fs::remove_file(path))
}

fn remove_dir(path: &Path) -> io::Result<()> {
    absent_is_fine(fs::remove_dir_all(path))
}
