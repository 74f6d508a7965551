//! Journals of sandboxes that go from node to node.
//!
//! A journal is one chain on whichever nodes its sandbox was. The node that has a sandbox sends the journal to the object
//! store: whenever it copies the sandbox, closed segments as they are and of the open one what is signed, and down to
//! the last event before it gives the sandbox away. The node that has the sandbox next fetches all of that before it
//! records anything, and goes on behind it; where its predecessor had written more than it sent, the journal says so.
//!
//! | a crash | leaves |
//! |---|---|
//! | while it is sent | less of it in the object store: sent with the next copy, or announced as missing |
//! | while it is fetched | a directory of what has come, removed at the next start; fetched anew |
//! | after the sandbox was given away | the journal here, set aside at the next start |

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::trace::TraceMode;
use atoll_core::{Code, Error, Result};
use atoll_objects::{Objects, ObjectsError};
use atoll_recorder::{NotWritten, Piece, Recorder, journals, pieces};
use atoll_store::SandboxRecord;
use futures::future::try_join_all;

use super::elsewhere::{self, AT_ONCE, SEGMENT_MAX_BYTES};
use crate::engine::Engine;
use crate::snapshot::objects_error;

/// Directories for journals that are fetched begin so, beside those that were.
const ARRIVING: &str = ".arriving-";
/// How often segments are looked for anew because one was closed while it was sent.
const SEND_TRIES: u32 = 5;
/// How long a sandbox waits for its journal that must be shown soon.
const FETCH_MAX: Duration = Duration::from_secs(20);

fn not_written(error: &NotWritten) -> Error {
    Error::new(Code::HostDiskFull, error.to_string())
}

fn broken(error: &dyn std::fmt::Display) -> Error {
    tracing::error!(%error, "a journal cannot be moved between nodes");
    Error::new(Code::Internal, "the journal cannot be read or kept")
}

/// Runs what waits for the disk.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|panicked| broken(&panicked))?;
    done.map_err(|error| broken(&error))
}

impl Engine {
    /// The recorder and the object store, on a node that has both.
    fn journals_move(&self) -> Option<(&Recorder, &Objects)> {
        let (recorder, objects) = (self.recorder()?, self.inner.config.objects.as_ref()?);
        self.is_node().then_some((recorder, objects))
    }

    // === where a sandbox is ===

    /// Sends the journal of a sandbox to the object store, down to the event that was recorded last.
    ///
    /// # Errors
    /// [`Code::HostDiskFull`] when it cannot be written; [`Code::ObjectsUnavailable`], [`Code::ObjectsDenied`];
    /// [`Code::NodeUnavailable`] when this node's term is over.
    pub(crate) async fn send_journal(&self, sandbox: &SandboxId) -> Result<()> {
        let Some((recorder, objects)) = self.journals_move() else { return Ok(()) };
        recorder.signed(sandbox).await.map_err(|error| not_written(&error))?;
        let find = || {
            let (dir, id) = (recorder.dir().to_owned(), sandbox.clone());
            blocking(move || pieces(&dir, &id))
        };
        // It is not recorded.
        if find().await?.is_empty() {
            return Ok(());
        }
        let there = elsewhere::segments(objects, sandbox).await?;
        for _ in 0..SEND_TRIES {
            if self.send_pieces(objects, sandbox, find().await?, &there).await? {
                return Ok(());
            }
        }
        Err(Error::new(Code::Internal, "the journal changes faster than it can be sent"))
    }

    /// Sends those that are not there. Says whether all were as they were found.
    async fn send_pieces(
        &self,
        objects: &Objects,
        sandbox: &SandboxId,
        found: Vec<Piece>,
        there: &BTreeMap<String, bool>,
    ) -> Result<bool> {
        for piece in found {
            let name = piece.name().to_owned();
            let is_there = name.split('.').next().and_then(|number| there.get(number)).copied();
            if piece.is_closed() && is_there == Some(true) {
                continue;
            }
            // A node that stood still for long may have been taken over: what is there now is another node's to write.
            if self.inner.store.lease().is_some_and(|lease| !lease.holds()) {
                return Err(Error::new(Code::NodeUnavailable, "the node's term is over"));
            }
            let content = tokio::task::spawn_blocking(move || piece.content()).await;
            let content = match content.map_err(|panicked| broken(&panicked))? {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
                content => content.map_err(|error| broken(&error))?,
            };
            if !content.is_empty() {
                let put = objects.put_small(&elsewhere::object(sandbox, &name), content).await;
                put.map_err(|error| objects_error(&error))?;
            }
        }
        Ok(true)
    }

    /// Ends the recording of a sandbox that another node is to have: from now on all of the journal is in the object
    /// store. The recording goes on when the sandbox is begun to be recorded again.
    ///
    /// # Errors
    /// As [`Self::send_journal`].
    pub(crate) async fn part_with_journal(&self, sandbox: &SandboxId) -> Result<()> {
        let Some((recorder, _objects)) = self.journals_move() else { return Ok(()) };
        recorder.pause(sandbox).await.map_err(|error| not_written(&error))?;
        self.send_journal(sandbox).await
    }

    /// Removes the journal of a sandbox that another node has now, with all of the journal.
    pub(crate) async fn forget_journal(&self, sandbox: &SandboxId) {
        let Some((recorder, _objects)) = self.journals_move() else { return };
        let (recorder, id) = (recorder.clone(), sandbox.clone());
        if let Err(error) = blocking(move || recorder.forget(&id)).await {
            tracing::warn!(sandbox = %sandbox, %error, "its journal stays here, too, until the next start");
        }
    }

    // === where a sandbox comes to ===

    /// Fetches the journal of a sandbox that another node had, before anything of it is recorded here.
    ///
    /// # Errors
    /// [`Code::ObjectsUnavailable`], [`Code::ObjectsDenied`]; [`Code::Internal`] when it cannot be kept here.
    pub(crate) async fn take_up_journal(&self, record: &SandboxRecord) -> Result<()> {
        let Some((recorder, objects)) = self.journals_move() else { return Ok(()) };
        if self.inner.config.trace.mode_of(record) == TraceMode::Off {
            return Ok(());
        }
        let id = &record.id;
        let whole = elsewhere::place(recorder).join(format!("{ARRIVING}{id}"));
        drop(tokio::fs::remove_dir_all(&whole).await);
        let coming = whole.join(id.as_str());
        tokio::fs::create_dir_all(&coming).await.map_err(|error| broken(&error))?;
        fetch_newest(objects, id, &coming, recorder.retention().bytes).await?;
        self.adopt_journal(recorder, id, whole).await
    }

    /// The same for one that must be shown, whether or not its journal can be had: the journal says what it lacks then.
    /// `reachable` is for all that come at once: where the object store did not answer for one, no other waits for it.
    pub(crate) async fn take_up_journal_if_there(&self, record: &SandboxRecord, reachable: &AtomicBool) {
        let Some((recorder, _objects)) = self.journals_move() else { return };
        if reachable.load(Ordering::Relaxed) {
            let error = match tokio::time::timeout(FETCH_MAX, self.take_up_journal(record)).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(late) => late.to_string(),
            };
            reachable.store(false, Ordering::Relaxed);
            tracing::error!(%error, "journals of sandboxes begin anew: what they had cannot be fetched");
        }
        let nothing = elsewhere::place(recorder).join(format!("{ARRIVING}{}", record.id));
        drop(tokio::fs::remove_dir_all(&nothing).await);
        if let Err(error) = self.adopt_journal(recorder, &record.id, nothing).await {
            tracing::error!(sandbox = %record.id, %error, "nor does it say so");
        }
    }

    async fn adopt_journal(&self, recorder: &Recorder, sandbox: &SandboxId, whole: PathBuf) -> Result<()> {
        let (adopts, id, fetched) = (recorder.clone(), sandbox.clone(), elsewhere::place(recorder));
        let adopted = blocking(move || {
            let adopted = adopts.adopt(&id, &whole)?;
            // One that was fetched to be read, while the sandbox was on no node that lived.
            match std::fs::remove_dir_all(fetched.join(id.as_str())) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            std::fs::remove_dir_all(&whole)?;
            Ok(adopted)
        });
        let adopted = adopted.await?;
        if !adopted.refused.is_empty() {
            tracing::error!(
                sandbox = %sandbox,
                refused = ?adopted.refused,
                "parts of a journal in the object store are not as they were written: they are set aside"
            );
        }
        Ok(())
    }

    // === at the start ===

    /// Fetches the journals of those of this node's sandboxes that came to it while no server of it ran, or just before
    /// the last one ended.
    pub(crate) async fn take_up_left_journals(&self, own: &[SandboxRecord]) -> Result<()> {
        let Some((recorder, _objects)) = self.journals_move() else { return Ok(()) };
        let (arriving, reachable) = (self.all_arriving().await?, AtomicBool::new(true));
        for record in own {
            let (dir, id) = (recorder.dir().to_owned(), record.id.clone());
            let here = !blocking(move || pieces(&dir, &id)).await?.is_empty();
            if !here || arriving.contains(&record.id) {
                self.take_up_journal_if_there(record, &reachable).await;
            }
        }
        Ok(())
    }

    async fn all_arriving(&self) -> Result<BTreeSet<SandboxId>> {
        let (mut all, mut after) = (BTreeSet::new(), None);
        loop {
            let found = self.inner.store.arrivals(after.as_ref()).await;
            let found = found.map_err(crate::errors::store_error)?;
            let Some(last) = found.last() else { return Ok(all) };
            after = Some(last.sandbox.clone());
            all.extend(found.into_iter().map(|arrival| arrival.sandbox));
        }
    }

    /// Sets aside the journals of sandboxes that other nodes have: they went on there.
    pub(crate) async fn set_journals_aside(
        &self,
        own: &BTreeSet<SandboxId>,
        everywhere: &BTreeSet<SandboxId>,
    ) -> Result<()> {
        let Some((recorder, _objects)) = self.journals_move() else { return Ok(()) };
        let (recorder, fetched) = (recorder.clone(), elsewhere::place(recorder));
        let (own, everywhere) = (own.clone(), everywhere.clone());
        let aside = blocking(move || {
            remove_arriving(&fetched)?;
            let mut aside = 0;
            for id in journals(recorder.dir())? {
                if everywhere.contains(&id) && !own.contains(&id) {
                    recorder.set_aside(&id)?;
                    aside += 1;
                }
            }
            Ok(aside)
        });
        let aside = aside.await?;
        if aside > 0 {
            tracing::warn!(journals = aside, "journals of sandboxes that other nodes have now are set aside");
        }
        Ok(())
    }
}

/// Removes what was fetched of journals when an earlier server ended.
fn remove_arriving(place: &Path) -> std::io::Result<()> {
    let entries = match std::fs::read_dir(place) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(ARRIVING.as_bytes()) {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Fetches the newest segments of a journal, of at most about so many bytes.
async fn fetch_newest(objects: &Objects, sandbox: &SandboxId, to: &Path, max_bytes: u64) -> Result<()> {
    let there = elsewhere::segments(objects, sandbox).await?;
    let names: Vec<String> =
        there.iter().rev().map(|(number, closed)| elsewhere::file_name(number, *closed)).collect();
    let mut bytes = 0;
    for some in names.chunks(AT_ONCE) {
        let sizes = try_join_all(some.iter().map(|file| fetch_one(objects, sandbox, file, to))).await?;
        bytes += sizes.into_iter().sum::<u64>();
        if bytes > max_bytes {
            return Ok(());
        }
    }
    Ok(())
}

/// Fetches a segment; gives its size. One that is gone, or larger than any that is written, is left out: the journal is
/// believed up to it.
async fn fetch_one(objects: &Objects, sandbox: &SandboxId, file: &str, to: &Path) -> Result<u64> {
    let content = match objects.get_whole(&elsewhere::object(sandbox, file), SEGMENT_MAX_BYTES).await {
        Err(ObjectsError::NotFound | ObjectsError::TooLarge(_)) => return Ok(0),
        content => content.map_err(|error| objects_error(&error))?,
    };
    let size = content.len() as u64;
    tokio::fs::write(to.join(file), content).await.map_err(|error| broken(&error))?;
    Ok(size)
}
