//! Journals of sandboxes that are gone and were on another node: read from the object store.
//!
//! A node copies each segment there once it is closed, which it is when the sandbox ends, and the open one with each copy
//! of the sandbox (module `moved`). The node that is asked for such a journal fetches the first segment, which names the
//! key that made the sandbox, and the others if the caller may read them. What was fetched is believed once the
//! signatures fit the key that all nodes share. It lies in a directory of its own, where it is kept as long as there is
//! room; one that has no end yet is fetched again when there is more of it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use atoll_core::id::SandboxId;
use atoll_core::{Code, Error, Result};
use atoll_objects::{Objects, ObjectsError};
use atoll_recorder::{Reader, Recorder, pieces, verify};
use atoll_store::Whereabouts;
use futures::{StreamExt as _, TryStreamExt as _};
use tokio::sync::Mutex;

use crate::engine::Engine;
use crate::errors::store_error;
use crate::snapshot::objects_error;

/// The directory beside that of the journals of this node.
const DIR: &str = "trace-fetched";
/// Largest segment that is fetched, bytes, and how many of one journal.
pub(super) const SEGMENT_MAX_BYTES: usize = 64 << 20;
const SEGMENTS_MAX_COUNT: usize = 1024;
/// Names of segments that are looked at; of more, the newest.
const NAMES_MAX_COUNT: usize = 100_000;
/// Largest journal, bytes.
const JOURNAL_MAX_BYTES: usize = 512 << 20;
/// Journals that are kept; the one that was fetched longest ago goes first.
const JOURNALS_MAX_COUNT: usize = 16;
/// Segments that are fetched at the same time.
pub(super) const AT_ONCE: usize = 4;
/// Digits of a segment's number in its name.
const NUMBER_DIGITS: usize = 20;
/// What a segment is called behind its number: a closed one, and one that was still written when it was copied.
const CLOSED: &str = ".log.zst";
const OPEN: &str = ".log";

/// One is fetched after the other, so that what is kept has a bound.
#[derive(Debug, Default)]
pub(crate) struct Fetching(Mutex<()>);

/// Where fetched journals lie.
pub(super) fn place(recorder: &Recorder) -> PathBuf {
    recorder.dir().with_file_name(DIR)
}

/// Where the journal of a sandbox is read. Of one that is gone, what was fetched comes first: it is only fetched where
/// this node has no journal, or one without an end.
pub(super) fn base(recorder: &Recorder, sandbox: &SandboxId, is_here: bool) -> PathBuf {
    let fetched = place(recorder);
    let was_fetched = || fetched.join(sandbox.as_str()).try_exists().unwrap_or_default();
    if !is_here && was_fetched() { fetched } else { recorder.dir().to_owned() }
}

fn unreadable(error: &dyn std::fmt::Display) -> Error {
    tracing::error!(%error, "a journal that was fetched cannot be kept");
    Error::new(Code::Internal, "the journal cannot be fetched")
}

fn too_large() -> Error {
    Error::new(Code::LimitExceeded, "the journal in the object store is too large")
}

impl Engine {
    /// Fetches the journal of a sandbox that is on no node that lives, if it is in the object store and `may` allows it
    /// for the key that made the sandbox. `ended`: only if it has its end. `false` when there is none for this caller.
    pub(super) async fn fetch_journal(
        &self,
        sandbox: &SandboxId,
        ended: bool,
        may: impl Fn(Option<&str>) -> bool,
    ) -> Result<bool> {
        let (Some(recorder), Some(objects)) = (self.recorder(), &self.inner.config.objects) else {
            return Ok(false);
        };
        if !self.is_node() || self.lives_elsewhere(sandbox).await? {
            return Ok(false);
        }
        let _turn = self.inner.fetching.0.lock().await;
        let place = place(recorder);
        let known = owner(&place, sandbox).await?;
        if let Some(owner) = &known
            && has_ended(&place, sandbox).await?
        {
            return Ok(may(owner.as_deref()));
        }
        let names = names(objects, sandbox).await?;
        if let Some(owner) = known
            && names == kept_names(&place, sandbox).await?
        {
            return Ok(may(owner.as_deref()));
        }
        // Readers do not find it until all of it is there.
        let whole = place.join(".coming");
        let fetched = fetch_whole(objects, sandbox, &whole, names, ended, may).await;
        let kept = match fetched {
            Ok(true) => self.keep_journal(recorder, &whole, sandbox).await.map(|()| true),
            other => other,
        };
        drop(tokio::fs::remove_dir_all(&whole).await);
        kept
    }

    /// Whether the database has the sandbox, on a node that lives: then that is to be asked.
    pub(super) async fn lives_elsewhere(&self, sandbox: &SandboxId) -> Result<bool> {
        let at = Whereabouts::Sandbox(sandbox.to_string());
        let node = self.inner.store.whereabouts(&at).await.map_err(store_error)?;
        Ok(node.is_some_and(|id| self.other_nodes().iter().any(|node| node.id == id)))
    }

    /// Verifies what was fetched, and puts it where it is read.
    async fn keep_journal(&self, recorder: &Recorder, whole: &Path, sandbox: &SandboxId) -> Result<()> {
        let (place, whole, id) = (place(recorder), whole.to_owned(), sandbox.clone());
        let key = recorder.public_key();
        let kept = tokio::task::spawn_blocking(move || {
            let report = verify(&whole, &id, &key, None)?;
            if !report.findings.is_empty() {
                return Ok(false);
            }
            match std::fs::remove_dir_all(place.join(id.as_str())) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => make_room(&place)?,
            }
            std::fs::rename(whole.join(id.as_str()), place.join(id.as_str()))?;
            Ok::<_, io::Error>(true)
        });
        match kept.await.map_err(|panicked| unreadable(&panicked))?.map_err(|error| unreadable(&error))? {
            true => Ok(()),
            false => Err(Error::new(
                Code::Internal,
                "the journal in the object store is not as it was written, and is not shown",
            )
            .hint("'atoll trace verify' on the node that wrote it says what that has")),
        }
    }
}

/// The name of a segment's object.
pub(super) fn object(sandbox: &SandboxId, file: &str) -> String {
    format!("trace/{sandbox}/{file}")
}

/// The name of a segment's file.
pub(super) fn file_name(number: &str, closed: bool) -> String {
    format!("{number}{}", if closed { CLOSED } else { OPEN })
}

/// The number of the segment in a file of this name, as text, and whether it is closed; `None` for a file that no recorder
/// writes.
fn segment_of(file: &str) -> Option<(&str, bool)> {
    let closed = file.strip_suffix(CLOSED);
    let number = closed.or_else(|| file.strip_suffix(OPEN))?;
    let is_number = number.len() == NUMBER_DIGITS && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && number.parse::<u64>().is_ok()).then_some((number, closed.is_some()))
}

/// The files of a journal's segments in the object store: the number as text, and whether it is a closed one's.
pub(super) async fn files(objects: &Objects, sandbox: &SandboxId) -> Result<BTreeSet<(String, bool)>> {
    let below = format!("trace/{sandbox}");
    let mut found = objects.list(&below);
    let mut files = BTreeSet::new();
    while let Some(name) = found.next().await {
        let name = name.map_err(|error| objects_error(&error))?;
        let file = name.strip_prefix(&below).and_then(|rest| rest.strip_prefix('/')).unwrap_or_default();
        let Some((number, closed)) = segment_of(file) else { continue };
        files.insert((number.to_owned(), closed));
        if files.len() > NAMES_MAX_COUNT {
            files.pop_first();
        }
    }
    Ok(files)
}

/// The numbers of a journal's segments in the object store, as text, in order, and whether each is closed there: an object
/// of a closed one stands for an earlier state of it, too.
pub(super) async fn segments(objects: &Objects, sandbox: &SandboxId) -> Result<BTreeMap<String, bool>> {
    let mut segments = BTreeMap::new();
    for (number, closed) in files(objects, sandbox).await? {
        *segments.entry(number).or_default() |= closed;
    }
    Ok(segments)
}

/// The files of a journal in the object store, in order.
async fn names(objects: &Objects, sandbox: &SandboxId) -> Result<Vec<String>> {
    let segments = segments(objects, sandbox).await?;
    if segments.len() > SEGMENTS_MAX_COUNT {
        return Err(too_large());
    }
    Ok(segments.iter().map(|(number, closed)| file_name(number, *closed)).collect())
}

/// The files of a journal that was fetched, in order.
async fn kept_names(base: &Path, sandbox: &SandboxId) -> Result<Vec<String>> {
    let (base, sandbox) = (base.to_owned(), sandbox.clone());
    let found = tokio::task::spawn_blocking(move || pieces(&base, &sandbox)).await;
    let found = found.map_err(|panicked| unreadable(&panicked))?.map_err(|error| unreadable(&error))?;
    Ok(found.iter().map(|piece| piece.name().to_owned()).collect())
}

/// Fetches the segments of these names below `whole`, as [`Engine::fetch_journal`]; those of the first and the last
/// decide whether the others are fetched.
async fn fetch_whole(
    objects: &Objects,
    sandbox: &SandboxId,
    whole: &Path,
    mut names: Vec<String>,
    ended: bool,
    may: impl Fn(Option<&str>) -> bool,
) -> Result<bool> {
    let coming = whole.join(sandbox.as_str());
    drop(tokio::fs::remove_dir_all(whole).await);
    tokio::fs::create_dir_all(&coming).await.map_err(|error| unreadable(&error))?;
    let get = |name| fetch(objects.clone(), sandbox.clone(), name, coming.clone());
    if ended {
        let Some(last) = names.pop() else { return Ok(false) };
        get(last).await?;
        if !has_ended(whole, sandbox).await? {
            return Ok(false);
        }
    }
    // The last may be the first.
    if !names.is_empty() {
        get(names.remove(0)).await?;
    }
    if !owner(whole, sandbox).await?.is_some_and(|owner| may(owner.as_deref())) {
        return Ok(false);
    }
    let rest = names.into_iter().map(|name| fetch(objects.clone(), sandbox.clone(), name, coming.clone()));
    let bounded = futures::stream::iter(rest).buffer_unordered(AT_ONCE).try_fold(0, |all, size| async move {
        let all = all + size;
        if all > JOURNAL_MAX_BYTES { Err(too_large()) } else { Ok(all) }
    });
    bounded.await?;
    Ok(true)
}

/// Fetches a segment; gives its size.
async fn fetch(objects: Objects, sandbox: SandboxId, file: String, to: PathBuf) -> Result<usize> {
    let name = object(&sandbox, &file);
    let content = objects.get_whole(&name, SEGMENT_MAX_BYTES).await.map_err(|error| match error {
        ObjectsError::TooLarge(_) => too_large(),
        other => objects_error(&other),
    })?;
    let size = content.len();
    tokio::fs::write(to.join(file), content).await.map_err(|error| unreadable(&error))?;
    Ok(size)
}

/// The key whose sandbox the journal below `base` is of; `None` when there is no journal.
async fn owner(base: &Path, sandbox: &SandboxId) -> Result<Option<Option<String>>> {
    let reader = Reader::new(base, sandbox, 1);
    let owner = tokio::task::spawn_blocking(move || reader.owner()).await;
    owner.map_err(|panicked| unreadable(&panicked))?.map_err(|error| unreadable(&error))
}

/// Whether the journal below `base` has its end.
pub(super) async fn has_ended(base: &Path, sandbox: &SandboxId) -> Result<bool> {
    let reader = Reader::new(base, sandbox, 1);
    let ended = tokio::task::spawn_blocking(move || reader.has_ended()).await;
    ended.map_err(|panicked| unreadable(&panicked))?.map_err(|error| unreadable(&error))
}

/// Removes what was fetched longest ago, where there is no room for one more.
fn make_room(place: &Path) -> io::Result<()> {
    let mut kept: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(place)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            kept.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    kept.sort();
    let too_many = (kept.len() + 1).saturating_sub(JOURNALS_MAX_COUNT);
    kept.iter().take(too_many).try_for_each(|(_, path)| std::fs::remove_dir_all(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_those_that_a_recorder_writes() {
        let number = format!("{:020}", 44);
        assert_eq!(segment_of(&file_name(&number, true)), Some((number.as_str(), true)));
        assert_eq!(segment_of(&file_name(&number, false)), Some((number.as_str(), false)));
        let long = "1".repeat(300);
        for number in ["", "44", "9".repeat(20).as_str(), long.as_str(), "+0000000000000000044"] {
            assert_eq!(segment_of(&file_name(number, true)), None, "{number}");
        }
        for other in ["00000000000000000044.cut", "00000000000000000044", "x/00000000000000000044.log"] {
            assert_eq!(segment_of(other), None, "{other}");
        }
    }
}
