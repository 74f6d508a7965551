//! Answers on disk: a file each, named after whose it is, in a directory below the server's spool.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use atoll_core::id::KeyId;
use atoll_dialect_kit::time::now_ms;
use atoll_engine::Engine;
use serde::{Deserialize, Serialize};

use crate::disk;

/// The directory.
const DIR: &str = "runloop-answers";
/// How often old ones are removed, milliseconds.
const SWEEP_MS: u64 = 10 * 60 * 1000;
/// Bytes of a file.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Written {
    /// Of what was asked.
    pub(super) print: String,
    pub(super) at_ms: u64,
    pub(super) status: u16,
    pub(super) body: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct File {
    key: KeyId,
    id: String,
    answer: Written,
}

/// Where they are. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Shelf {
    dir: PathBuf,
    swept_ms: Arc<AtomicU64>,
}

impl Shelf {
    pub(super) fn new(engine: &Engine) -> Self {
        Self { dir: engine.spool_dir().join(DIR), swept_ms: Arc::default() }
    }

    /// Writes an answer down: it is there after a power cut. Removes those that are older than `kept_ms` now and then.
    pub(super) fn save(&self, of: &(KeyId, String), answer: &Written, kept_ms: u64) -> io::Result<()> {
        fs::create_dir_all(&self.dir)?;
        let (now, swept) = (now_ms(), self.swept_ms.load(Ordering::Relaxed));
        if swept.saturating_add(SWEEP_MS) <= now && self.claim(swept, now) {
            self.read(kept_ms, false);
        }
        let answer = Written { print: answer.print.clone(), body: answer.body.clone(), ..*answer };
        let file = File { key: of.0.clone(), id: of.1.clone(), answer };
        disk::save(&self.dir, &name(of), &serde_json::to_vec(&file)?)
    }

    /// Removes an answer that is kept no more.
    pub(super) fn remove(&self, of: &(KeyId, String)) {
        // It may never have been written.
        drop(fs::remove_file(self.dir.join(name(of))));
    }

    fn claim(&self, swept: u64, now: u64) -> bool {
        self.swept_ms.compare_exchange(swept, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The newest answers, `most` of them, that are not older than that. For the start: nothing is being written.
    pub(super) fn all(&self, kept_ms: u64, most: usize) -> Vec<((KeyId, String), Written)> {
        let mut found = self.read(kept_ms, true);
        found.sort_unstable_by_key(|file| std::cmp::Reverse(file.answer.at_ms));
        found.truncate(most);
        found.into_iter().map(|file| ((file.key, file.id), file.answer)).collect()
    }

    /// Those that are not too old; all others are removed, and so is what is no answer.
    fn read(&self, kept_ms: u64, parts: bool) -> Vec<File> {
        let Ok(entries) = fs::read_dir(&self.dir) else { return Vec::new() };
        let now = now_ms();
        let mut found = Vec::new();
        for path in entries.flatten().map(|entry| entry.path()) {
            let small = path.metadata().is_ok_and(|metadata| metadata.len() <= FILE_MAX_BYTES);
            let file = small.then(|| fs::read(&path).ok()).flatten();
            let file: Option<File> = file.and_then(|text| serde_json::from_slice(&text).ok());
            match file.filter(|file| file.answer.at_ms.saturating_add(kept_ms) > now) {
                Some(file) => found.push(file),
                // One that is being written.
                None if !parts && path.extension().is_some_and(|end| end == "part") => {}
                None => drop(fs::remove_file(path)),
            }
        }
        found
    }
}

/// The name of an answer's file.
fn name(of: &(KeyId, String)) -> String {
    format!("{}.json", blake3::hash(format!("{} {}", of.0, of.1).as_bytes()).to_hex())
}
