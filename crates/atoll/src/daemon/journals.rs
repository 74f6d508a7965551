//! Journals in the object store: the server copies each segment of a journal there once the segment is closed. The copy
//! stays there, also when the segment on this host is removed.
//!
//! The server asks the store which segments are there already. It keeps no file about that which could be wrong after a
//! crash.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_objects::{Objects, ObjectsError};
use atoll_recorder::unsettled;
use atoll_store::Lease;
use tokio::task::JoinHandle;

use crate::failure::chain;

/// How often is looked for segments that were closed.
const ROUND: Duration = Duration::from_secs(10);
/// Segments that are remembered as copied; of more the store is asked again.
const KNOWN_MAX_COUNT: usize = 200_000;
/// Largest segment that is copied, bytes: many times the size that a segment can have.
const SEGMENT_MAX_BYTES: u64 = 64 << 20;
/// How the file name of a closed segment ends.
const CLOSED: &str = ".log.zst";

/// Copies while it lives.
#[derive(Debug)]
pub(crate) struct Journals(JoinHandle<()>);

impl Journals {
    /// Begins to copy the journals below `dir`, where each sandbox has a directory. A node copies only while it holds its
    /// lease: after that another may have gone on with a journal, under the same names.
    pub(crate) fn keep(dir: PathBuf, objects: Objects, lease: Option<Lease>) -> Self {
        Self(tokio::spawn(async move {
            let (mut known, mut failed) = (HashSet::new(), false);
            loop {
                match round(&dir, &objects, lease.as_ref(), &mut known).await {
                    Ok(()) => failed = false,
                    Err(error) if failed => tracing::debug!(%error, "journals are still not copied"),
                    Err(error) => {
                        tracing::warn!(%error, "journals cannot be copied to the object store, trying again");
                        failed = true;
                    }
                }
                tokio::time::sleep(ROUND).await;
            }
        }))
    }
}

impl Drop for Journals {
    fn drop(&mut self) {
        // A segment whose copy is under way is not in the store then; the next server copies it.
        self.0.abort();
    }
}

async fn round(
    dir: &Path,
    objects: &Objects,
    lease: Option<&Lease>,
    known: &mut HashSet<PathBuf>,
) -> Result<(), String> {
    let place = dir.to_owned();
    let closed = tokio::task::spawn_blocking(move || closed(&place)).await.map_err(|error| chain(&error))?;
    if known.len() > KNOWN_MAX_COUNT {
        known.clear();
    }
    for (path, name) in closed.map_err(|error| chain(&error))? {
        if lease.is_some_and(|lease| !lease.holds()) {
            return Ok(());
        }
        if !known.contains(&path) {
            copy(&path, &name, objects).await.map_err(|error| format!("{name}: {}", chain(&error)))?;
            known.insert(path);
        }
    }
    Ok(())
}

/// Closed segments, and their names in the store.
fn closed(dir: &Path) -> std::io::Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    for sandbox in std::fs::read_dir(dir)? {
        let sandbox = sandbox?.path();
        let Some(id) = sandbox.file_name().and_then(|name| name.to_str()).map(str::to_owned) else {
            continue;
        };
        // It came from another node, and the store has something else under the names of its segments.
        if id.parse::<SandboxId>().is_ok_and(|id| !matches!(unsettled(dir, &id), Ok(None))) {
            continue;
        }
        // It may go meanwhile.
        let Ok(segments) = std::fs::read_dir(&sandbox) else { continue };
        for segment in segments.flatten() {
            if let Some(file) = segment.file_name().to_str().filter(|file| file.ends_with(CLOSED)) {
                found.push((segment.path(), format!("trace/{id}/{file}")));
            }
        }
    }
    found.sort();
    Ok(found)
}

async fn copy(path: &Path, name: &str, objects: &Objects) -> Result<(), ObjectsError> {
    let size = match tokio::fs::metadata(path).await {
        Ok(meta) => meta.len(),
        // Retention was faster.
        Err(_gone) => return Ok(()),
    };
    if size > SEGMENT_MAX_BYTES || objects.exists(name).await? {
        return Ok(());
    }
    match tokio::fs::read(path).await {
        Ok(content) => objects.put_small(name, content).await,
        Err(error) => {
            tracing::debug!(%error, name, "a segment is gone before it was copied");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_closed_has_the_name_that_it_has_here() {
        let dir = tempfile::tempdir().unwrap();
        for file in ["sb_1/00000000000000000001.log.zst", "sb_1/00000000000000000044.log", "sb_2/x.cut"] {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        let names: Vec<_> = closed(dir.path()).unwrap().into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["trace/sb_1/00000000000000000001.log.zst"]);
    }

    #[test]
    fn what_came_from_another_node_waits_until_its_names_are_free() {
        let (dir, id) = (tempfile::tempdir().unwrap(), SandboxId::from_parts(1, 1));
        let journal = dir.path().join(id.as_str());
        std::fs::create_dir(&journal).unwrap();
        std::fs::write(journal.join("00000000000000000001.log.zst"), "x").unwrap();
        assert_eq!(closed(dir.path()).unwrap().len(), 1);
        std::fs::write(journal.join("unsettled"), "0").unwrap();
        assert_eq!(closed(dir.path()).unwrap(), []);
        atoll_recorder::settled(dir.path(), &id).unwrap();
        assert_eq!(closed(dir.path()).unwrap().len(), 1);
    }
}
