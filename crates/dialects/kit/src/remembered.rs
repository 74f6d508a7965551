//! What the server remembers of sandboxes that may be gone: the engine forgets a sandbox with its end, and clients ask
//! for it once more, to hear how it ended. Each sandbox has a file below the server's spool, so that a restarted server
//! knows it.
//!
//! A file is written and not flushed: it outlives the server process, and after a power cut the sandbox is gone anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::SandboxId;
use atoll_engine::Engine;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What is remembered, by sandbox. The one with the oldest id is forgotten first. Clones share it.
#[derive(Debug)]
pub struct Remembered<T>(Arc<Inner<T>>);

#[derive(Debug)]
struct Inner<T> {
    dir: PathBuf,
    max_count: usize,
    table: Mutex<Table<T>>,
}

#[derive(Debug)]
struct Table<T> {
    /// What was noted or read since the server began.
    known: BTreeMap<SandboxId, T>,
    /// The sandboxes that have a file. Ids sort by the time in them.
    kept: BTreeSet<SandboxId>,
}

impl<T> Clone for Remembered<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

fn kept(dir: &Path) -> io::Result<BTreeSet<SandboxId>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries?,
    };
    let id = |entry: io::Result<fs::DirEntry>| {
        let name = entry.ok()?.file_name();
        name.to_str()?.strip_suffix(".json")?.parse().ok()
    };
    Ok(entries.filter_map(id).collect())
}

fn save<T: Serialize>(dir: &Path, id: &SandboxId, what: &T) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    // One file is written at a time: the next write replaces the leftovers of a crash.
    let (beside, place) = (dir.join("part"), dir.join(format!("{id}.json")));
    fs::write(&beside, serde_json::to_vec(what)?)?;
    fs::rename(beside, place)
}

impl<T: Clone + PartialEq + Serialize + DeserializeOwned> Remembered<T> {
    /// The memory of the dialect with this name, for at most `max_count` sandboxes.
    #[must_use]
    pub fn new(engine: &Engine, dialect: &str, max_count: usize) -> Self {
        Self::at(engine.spool_dir().join(format!("{dialect}-ended")), max_count)
    }

    fn at(dir: PathBuf, max_count: usize) -> Self {
        let kept = kept(&dir).unwrap_or_else(|error| {
            tracing::warn!(%error, dir = %dir.display(), "what is remembered of sandboxes cannot be read");
            BTreeSet::new()
        });
        let table = Mutex::new(Table { known: BTreeMap::new(), kept });
        Self(Arc::new(Inner { dir, max_count, table }))
    }

    fn table(&self) -> MutexGuard<'_, Table<T>> {
        // The table is complete after each change, so it stays usable when a task panics while it holds the lock.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, table: &mut Table<T>, id: &SandboxId) -> Option<T> {
        if let Some(known) = table.known.get(id) {
            return Some(known.clone());
        }
        table.kept.contains(id).then_some(())?;
        let read = fs::read(self.0.dir.join(format!("{id}.json"))).ok()?;
        let what: T = serde_json::from_slice(&read).ok()?;
        table.known.insert(id.clone(), what.clone());
        Some(what)
    }

    /// What is remembered of a sandbox.
    #[must_use]
    pub fn get(&self, id: &SandboxId) -> Option<T> {
        self.find(&mut self.table(), id)
    }

    /// Changes what is remembered of a sandbox, if `change` gives a value; gives what is remembered then.
    pub fn change(&self, id: &SandboxId, change: impl FnOnce(Option<T>) -> Option<T>) -> Option<T> {
        let mut table = self.table();
        let before = self.find(&mut table, id);
        let after = change(before.clone())?;
        if before.as_ref() == Some(&after) {
            return Some(after);
        }
        if let Err(error) = save(&self.0.dir, id, &after) {
            tracing::warn!(%error, sandbox = %id, "what is remembered of a sandbox cannot be kept");
        }
        table.kept.insert(id.clone());
        table.known.insert(id.clone(), after.clone());
        while table.kept.len() > self.0.max_count {
            let Some(oldest) = table.kept.pop_first() else { break };
            table.known.remove(&oldest);
            drop(fs::remove_file(self.0.dir.join(format!("{oldest}.json"))));
        }
        Some(after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u128) -> SandboxId {
        SandboxId::from_parts(u64::try_from(number).unwrap(), 1)
    }

    #[test]
    fn the_next_server_knows() {
        let dir = tempfile::tempdir().unwrap();
        let here = Remembered::<String>::at(dir.path().join("ended"), 2);
        assert_eq!(here.get(&id(1)), None);
        assert_eq!(here.change(&id(1), |_| None), None);
        here.change(&id(1), |_| Some("one".into()));
        here.change(&id(2), |_| Some("two".into()));
        let next = Remembered::<String>::at(dir.path().join("ended"), 2);
        assert_eq!(next.get(&id(1)).as_deref(), Some("one"));
        next.change(&id(1), |before| before.map(|text| text + "!"));
        // The oldest goes, with its file.
        next.change(&id(3), |_| Some("three".into()));
        let last = Remembered::<String>::at(dir.path().join("ended"), 2);
        assert_eq!((last.get(&id(1)), last.get(&id(3)).as_deref()), (None, Some("three")));
        assert_eq!(fs::read_dir(dir.path().join("ended")).unwrap().count(), 2);
    }
}
