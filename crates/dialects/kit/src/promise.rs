//! Requests that make a thing and that the client may send twice, also to two servers: the server that made the thing
//! was killed before it answered, and the client asks the next server.
//!
//! A dialect chooses the id of the thing and writes it down before it makes the thing: a [`Promise`]. When the request
//! comes again, the dialect finds the promise, and by its ids the thing that was made. Beside the promise a dialect
//! keeps what else it has to know of the request. A [`Shelf`] has a file for each request, named after the API key and
//! the client's id of the request.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::id::{BuildId, KeyId, SnapshotId};
use atoll_engine::Engine;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::disk;
use crate::time::now_ms;

/// How often old files are removed, milliseconds.
const SWEEP_MS: u64 = 10 * 60 * 1000;
/// Bytes of a file at most.
const FILE_MAX_BYTES: u64 = 1 << 20;
/// Files of one API key: the oldest go first.
const OF_KEY_MAX_COUNT: usize = 2000;
/// Digits of a seed from which ids are made.
const ID_DIGITS: usize = 16;

/// The source of the ids of things that are going to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    at_ms: u64,
    /// Random hexadecimal digits.
    seed: String,
    /// An earlier request made this promise: the things that it promised may exist already.
    #[serde(skip)]
    pub renewed: bool,
}

impl Promise {
    /// A new one.
    ///
    /// # Errors
    /// When the host has no randomness.
    pub fn new() -> io::Result<Self> {
        Ok(Self { at_ms: now_ms(), seed: disk::random()?, renewed: false })
    }

    /// The same, found again by a later request.
    #[must_use]
    pub fn again(self) -> Self {
        Self { renewed: true, ..self }
    }

    /// When it was given, milliseconds since the epoch.
    #[must_use]
    pub const fn at_ms(&self) -> u64 {
        self.at_ms
    }

    /// Digits for an id of the dialect's own, 64 at most.
    #[must_use]
    pub fn digits(&self, count: usize) -> &str {
        self.seed.get(..count).unwrap_or(&self.seed)
    }

    fn random(&self) -> u64 {
        u64::from_str_radix(self.digits(ID_DIGITS), 16).unwrap_or_default()
    }

    /// The snapshot that is going to be taken.
    #[must_use]
    pub fn snapshot(&self) -> SnapshotId {
        SnapshotId::from_parts(self.at_ms, self.random())
    }

    /// The build that is going to be begun.
    #[must_use]
    pub fn build(&self) -> BuildId {
        BuildId::from_parts(self.at_ms, self.random())
    }
}

/// Names a request: the API key that sent it, and the client's own id of it.
pub type Of = (KeyId, String);

#[derive(Debug, Serialize, Deserialize)]
struct File<T> {
    key: KeyId,
    id: String,
    at_ms: u64,
    what: T,
}

/// The files about requests. Clones share the directory and the counts.
#[derive(Debug)]
pub struct Shelf<T> {
    dir: PathBuf,
    kept_ms: u64,
    swept_ms: Arc<AtomicU64>,
    /// The requests that each key has here since the server began, the oldest first: no key fills the disk.
    newest: Arc<Mutex<HashMap<KeyId, VecDeque<String>>>>,
    what: PhantomData<fn() -> T>,
}

impl<T> Clone for Shelf<T> {
    fn clone(&self) -> Self {
        let (dir, swept_ms, newest) =
            (self.dir.clone(), Arc::clone(&self.swept_ms), Arc::clone(&self.newest));
        Self { dir, kept_ms: self.kept_ms, swept_ms, newest, what: PhantomData }
    }
}

impl<T: Serialize + DeserializeOwned> Shelf<T> {
    /// The shelf of this name below the server's spool; its files are kept for `kept_ms` milliseconds.
    #[must_use]
    pub fn new(engine: &Engine, name: &str, kept_ms: u64) -> Self {
        Self::at(engine.spool_dir().join(name), kept_ms)
    }

    fn at(dir: PathBuf, kept_ms: u64) -> Self {
        Self { dir, kept_ms, swept_ms: Arc::default(), newest: Arc::default(), what: PhantomData }
    }

    /// Writes down what is known of a request, in place of an older file: it is there after a power cut. Removes files
    /// that are too old now and then.
    ///
    /// # Errors
    /// What the file system says.
    pub fn save(&self, of: &Of, what: T) -> io::Result<()> {
        fs::create_dir_all(&self.dir)?;
        let (now, swept) = (now_ms(), self.swept_ms.load(Ordering::Relaxed));
        if swept.saturating_add(SWEEP_MS) <= now && self.claim(swept, now) {
            self.sweep();
        }
        if let Some(oldest) = self.count(of) {
            self.remove(&oldest);
        }
        let file = File { key: of.0.clone(), id: of.1.clone(), at_ms: now, what };
        disk::save(&self.dir, &name(of), &serde_json::to_vec(&file)?)
    }

    /// What is known of a request; `None` when it was written too long ago.
    #[must_use]
    pub fn find(&self, of: &Of) -> Option<T> {
        let file = self.open(&self.dir.join(name(of)))?;
        (file.key == of.0 && file.id == of.1).then_some(file.what)
    }

    /// Removes what is known of a request.
    pub fn remove(&self, of: &Of) {
        // There may be no such file.
        drop(fs::remove_file(self.dir.join(name(of))));
    }

    /// Notes that a key has this request here; gives the key's oldest request when it now has too many.
    fn count(&self, of: &Of) -> Option<Of> {
        // The map stays usable when a task panics while it holds the lock.
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let ids = newest.entry(of.0.clone()).or_default();
        if ids.contains(&of.1) {
            return None;
        }
        ids.push_back(of.1.clone());
        let oldest = if ids.len() > OF_KEY_MAX_COUNT { ids.pop_front() } else { None };
        oldest.map(|id| (of.0.clone(), id))
    }

    fn claim(&self, swept: u64, now: u64) -> bool {
        self.swept_ms.compare_exchange(swept, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// What is known of the newest requests, with when it was written: `most` of them, from files of `bytes` together at
    /// most. No other file is read. Removes half-written files. Call it when the server starts, while no task writes to
    /// the shelf.
    #[must_use]
    pub fn all(&self, most: usize, bytes: usize) -> Vec<(Of, u64, T)> {
        let mut files = Vec::new();
        for path in self.files() {
            if is_part(&path) {
                drop(fs::remove_file(path));
            } else {
                let Ok(metadata) = path.metadata() else { continue };
                files.push((metadata.modified().ok(), metadata.len(), path));
            }
        }
        files.sort_unstable();
        let mut left = u64::try_from(bytes).unwrap_or(u64::MAX);
        let mut found = Vec::new();
        for (_, len, path) in files.into_iter().rev() {
            if found.len() >= most || len > left {
                break;
            }
            if let Some(file) = self.open_or_remove(&path) {
                left -= len;
                found.push(file);
            }
        }
        found.sort_unstable_by_key(|file| std::cmp::Reverse(file.at_ms));
        found.into_iter().map(|file| ((file.key, file.id), file.at_ms, file.what)).collect()
    }

    fn open(&self, path: &Path) -> Option<File<T>> {
        let small = path.metadata().is_ok_and(|metadata| metadata.len() <= FILE_MAX_BYTES);
        let text = small.then(|| fs::read(path).ok()).flatten()?;
        let file: File<T> = serde_json::from_slice(&text).ok()?;
        Some(file).filter(|file| file.at_ms.saturating_add(self.kept_ms) > now_ms())
    }

    /// Reads a file; removes one that is too old or cannot be read.
    fn open_or_remove(&self, path: &Path) -> Option<File<T>> {
        let file = self.open(path);
        if file.is_none() {
            drop(fs::remove_file(path));
        }
        file
    }

    /// Removes the files that are too old or cannot be read, but for those that a task may be writing.
    fn sweep(&self) {
        for path in self.files() {
            if !is_part(&path) {
                drop(self.open_or_remove(&path));
            }
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(&self.dir) else { return Vec::new() };
        entries.flatten().map(|entry| entry.path()).collect()
    }
}

/// Whether a file was not written to its end.
fn is_part(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "part")
}

/// The name of a request's file.
fn name(of: &Of) -> String {
    format!("{}.json", blake3::hash(format!("{} {}", of.0, of.1).as_bytes()).to_hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_server_finds_it() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = |kept_ms| Shelf::<Promise>::at(dir.path().join("promises"), kept_ms);
        let of = (KeyId::from_parts(1, 1), "id".to_owned());
        let promise = Promise::new().unwrap();
        assert_eq!(shelf(60_000).find(&of), None);
        shelf(60_000).save(&of, promise.clone()).unwrap();
        fs::write(dir.path().join("promises/half.json.part"), "{").unwrap();
        let found = shelf(60_000).find(&of).unwrap();
        assert_eq!((found.snapshot(), found.build()), (promise.snapshot(), promise.build()));
        assert_eq!(found.digits(24), promise.digits(24));
        for other in [(KeyId::from_parts(1, 2), "id".to_owned()), (of.0.clone(), "id2".to_owned())] {
            assert_eq!(shelf(60_000).find(&other), None);
        }
        let all = shelf(60_000).all(10, 10_000);
        assert_eq!(all.iter().map(|(of, _, _)| of).collect::<Vec<_>>(), [&of]);
        assert_eq!(fs::read_dir(dir.path().join("promises")).unwrap().count(), 1, "halves are gone");
        assert_eq!(shelf(0).find(&of), None, "too old");
        shelf(60_000).remove(&of);
        assert_eq!(shelf(60_000).find(&of), None);
    }

    #[test]
    fn only_the_newest_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = Shelf::<u8>::at(dir.path().join("shelf"), 60_000);
        let of = |id: &str| (KeyId::from_parts(1, 1), id.to_owned());
        for (id, what) in [("old", 1), ("new", 2), ("older", 3)] {
            shelf.save(&of(id), what).unwrap();
        }
        let ago = |id: &str, seconds| {
            let file = fs::File::options().write(true).open(shelf.dir.join(name(&of(id)))).unwrap();
            file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(seconds))
                .unwrap();
        };
        // Whoever reads it removes it.
        fs::write(shelf.dir.join(name(&of("older"))), "{").unwrap();
        ago("older", 20);
        ago("old", 10);
        let all =
            |most| shelf.all(most, 10_000).into_iter().map(|(of, _, what)| (of.1, what)).collect::<Vec<_>>();
        assert_eq!(all(1), [("new".to_owned(), 2)]);
        assert_eq!(all(2).len(), 2);
        assert!(shelf.all(2, 10).is_empty(), "a file has more bytes");
        assert!(shelf.dir.join(name(&of("older"))).try_exists().unwrap(), "it was not read");
        assert_eq!(all(3).len(), 2);
        assert!(!shelf.dir.join(name(&of("older"))).try_exists().unwrap());
    }

    #[test]
    fn no_key_fills_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = Shelf::<u8>::at(dir.path().join("shelf"), 60_000);
        let of = |number: usize| (KeyId::from_parts(1, 1), number.to_string());
        for number in 0..OF_KEY_MAX_COUNT {
            assert_eq!(shelf.count(&of(number)), None);
        }
        shelf.save(&of(0), 1).unwrap();
        assert_eq!(shelf.find(&of(0)), Some(1));
        shelf.save(&(KeyId::from_parts(1, 2), "other".into()), 1).unwrap();
        shelf.save(&of(OF_KEY_MAX_COUNT), 2).unwrap();
        assert_eq!((shelf.find(&of(0)), shelf.find(&of(OF_KEY_MAX_COUNT))), (None, Some(2)));
    }

    #[test]
    fn no_two_are_the_same() {
        let (one, other) = (Promise::new().unwrap(), Promise::new().unwrap());
        assert_ne!(one.digits(24), other.digits(24));
        assert_ne!(one.snapshot(), other.snapshot());
        assert_eq!(one.digits(1000).len(), 64);
    }
}
