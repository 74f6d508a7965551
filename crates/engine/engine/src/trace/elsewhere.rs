//! Journals of sandboxes that are gone and were on another node: read from the object store.
//!
//! A node copies each segment there once it is closed, which it is when the sandbox ends. The node that is asked for
//! such a journal fetches the first segment, which names the key that made the sandbox, and the others if the caller
//! may read them. What was fetched is believed once the signatures fit the key that all nodes share. It lies in a
//! directory of its own, where it is kept as long as there is room.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use atoll_core::id::SandboxId;
use atoll_core::{Code, Error, Result};
use atoll_objects::{Objects, ObjectsError};
use atoll_recorder::{Reader, Recorder, verify};
use atoll_store::Whereabouts;
use futures::{StreamExt as _, TryStreamExt as _};
use tokio::sync::Mutex;

use crate::engine::Engine;
use crate::errors::store_error;
use crate::snapshot::objects_error;

/// The directory beside that of the journals of this node.
const DIR: &str = "trace-fetched";
/// Largest segment that is fetched, bytes, and how many of one journal.
const SEGMENT_MAX_BYTES: usize = 64 << 20;
const SEGMENTS_MAX_COUNT: usize = 1024;
/// Largest journal, bytes.
const JOURNAL_MAX_BYTES: usize = 512 << 20;
/// Journals that are kept; the one that was fetched longest ago goes first.
const JOURNALS_MAX_COUNT: usize = 16;
/// Segments that are fetched at the same time.
const AT_ONCE: usize = 4;
/// What a closed segment is called behind its number.
const CLOSED: &str = ".log.zst";

/// One is fetched after the other, so that what is kept has a bound.
#[derive(Debug, Default)]
pub(crate) struct Fetching(Mutex<()>);

/// Where fetched journals lie.
fn place(recorder: &Recorder) -> PathBuf {
    recorder.dir().with_file_name(DIR)
}

/// Where the journal of a sandbox is read: that of this node if it has one.
pub(super) fn base(recorder: &Recorder, sandbox: &SandboxId) -> PathBuf {
    let (own, fetched) = (recorder.dir().to_owned(), place(recorder));
    let is_in = |base: &Path| base.join(sandbox.as_str()).try_exists().unwrap_or_default();
    if !is_in(&own) && is_in(&fetched) { fetched } else { own }
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
    /// for the key that made the sandbox. `false` when there is none for this caller.
    pub(super) async fn fetch_journal(
        &self,
        sandbox: &SandboxId,
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
        if let Some(owner) = owner(&place, sandbox).await? {
            return Ok(may(owner.as_deref()));
        }
        let names = names(objects, sandbox).await?;
        let mut names = names.into_iter();
        let Some(first) = names.next() else { return Ok(false) };
        // Readers do not find it until all of it is there.
        let whole = place.join(".coming");
        let coming = whole.join(sandbox.as_str());
        drop(tokio::fs::remove_dir_all(&whole).await);
        tokio::fs::create_dir_all(&coming).await.map_err(|error| unreadable(&error))?;
        fetch(objects.clone(), sandbox.clone(), first, coming.clone()).await?;
        let may_read = owner(&whole, sandbox).await?.is_some_and(|owner| may(owner.as_deref()));
        if may_read {
            let rest = names.map(|name| fetch(objects.clone(), sandbox.clone(), name, coming.clone()));
            let bounded =
                futures::stream::iter(rest).buffer_unordered(AT_ONCE).try_fold(0, |all, size| async move {
                    let all = all + size;
                    if all > JOURNAL_MAX_BYTES { Err(too_large()) } else { Ok(all) }
                });
            bounded.await?;
            self.keep_journal(recorder, &whole, sandbox).await?;
        }
        drop(tokio::fs::remove_dir_all(&whole).await);
        Ok(may_read)
    }

    /// Whether the database has the sandbox, on a node that lives: then that is to be asked.
    async fn lives_elsewhere(&self, sandbox: &SandboxId) -> Result<bool> {
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
            make_room(&place)?;
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

/// The segments of a journal, in order.
async fn names(objects: &Objects, sandbox: &SandboxId) -> Result<Vec<String>> {
    let below = format!("trace/{sandbox}");
    let mut found = objects.list(&below);
    let mut names = Vec::new();
    while let Some(name) = found.next().await {
        let name = name.map_err(|error| objects_error(&error))?;
        let file = name.strip_prefix(&below).and_then(|rest| rest.strip_prefix('/')).unwrap_or_default();
        let digits = file.strip_suffix(CLOSED).unwrap_or_default();
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        if names.len() >= SEGMENTS_MAX_COUNT {
            return Err(too_large());
        }
        names.push(file.to_owned());
    }
    names.sort();
    Ok(names)
}

/// Fetches a segment; gives its size.
async fn fetch(objects: Objects, sandbox: SandboxId, file: String, to: PathBuf) -> Result<usize> {
    let name = format!("trace/{sandbox}/{file}");
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
