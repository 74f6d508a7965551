//! Journals of sandboxes that go from node to node.
//!
//! A journal is one chain on whichever nodes its sandbox was. The node that has a sandbox sends the journal to the object
//! store: whenever it copies the sandbox, closed segments as they are and of the open one what is signed, and down to
//! the last event before it gives the sandbox away. The node that has the sandbox next fetches all of that before it
//! records anything, and goes on behind it; where its predecessor had written more than it sent, the journal says so.
//!
//! What was not believed, or could not be fetched, still lies in the object store, under the names that the journal's next
//! segments have. So nothing is sent before all of that has another name (`trace-aside/TIME/SANDBOX/FILE`).
//!
//! | a crash | leaves |
//! |---|---|
//! | while it is sent | less of it in the object store: sent with the next copy, or announced as missing |
//! | while it is fetched | a directory of what has come, removed at the next start; fetched anew |
//! | before the object store is in order | nothing is sent there; it is put in order by the next server |
//! | after the sandbox was given away | the journal here, set aside at the next start |

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::trace::TraceMode;
use atoll_core::{Code, Error, Result};
use atoll_objects::{Objects, ObjectsError};
use atoll_recorder::{NotWritten, Piece, Recorder, journals, now_us, pieces, settled, unsettled};
use atoll_store::SandboxRecord;
use futures::StreamExt as _;
use futures::future::try_join_all;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{Mutex, Semaphore};

use super::elsewhere::{self, AT_ONCE, SEGMENT_MAX_BYTES};
use crate::engine::Engine;
use crate::snapshot::objects_error;

/// Directories for journals that are fetched begin so, beside those that were.
const ARRIVING: &str = ".arriving-";
/// How often segments are looked for anew because one was closed while it was sent.
const SEND_TRIES: u32 = 5;
/// How long a sandbox waits for its journal that must be shown soon.
const FETCH_MAX: Duration = Duration::from_secs(20);
/// The directory in the object store for what is of no journal that goes on.
const ASIDE: &str = "trace-aside";
/// How often is looked for journals that cannot be sent yet.
const SETTLE_EVERY: Duration = Duration::from_secs(30);
/// Journals that are looked at at the same time: each segment is unpacked whole for that, of what may be anybody's.
const ADOPTED_AT_ONCE: usize = 2;

/// What tasks that move journals wait for.
#[derive(Debug)]
pub(crate) struct Moving {
    /// The object store is put in order for one journal after the other: a task that has found something there must not
    /// move it away when another one has sent the journal's own meanwhile.
    settling: Mutex<()>,
    /// A bound for memory.
    adopting: Semaphore,
}

impl Default for Moving {
    fn default() -> Self {
        Self { settling: Mutex::default(), adopting: Semaphore::new(ADOPTED_AT_ONCE) }
    }
}

/// Puts the object store in order, all the time, for journals of which nothing is to be sent.
pub(crate) async fn keep_settled(engine: Engine) {
    loop {
        if let Err(error) = engine.settle_journals().await {
            tracing::warn!(%error, "journals that came to this node are not copied to the object store yet");
        }
        tokio::time::sleep(SETTLE_EVERY).await;
    }
}

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
        self.settle_journal(sandbox).await?;
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
            self.must_hold_lease()?;
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

    /// A node that stood still for long may have been taken over: what is in the object store now is another node's to write.
    fn must_hold_lease(&self) -> Result<()> {
        if self.inner.store.lease().is_some_and(|lease| !lease.holds()) {
            return Err(Error::new(Code::NodeUnavailable, "the node's term is over"));
        }
        Ok(())
    }

    /// Gives other names to what lies in the object store under the names of a journal that came to this node, and is not of
    /// this journal.
    async fn settle_journal(&self, sandbox: &SandboxId) -> Result<()> {
        let Some((recorder, objects)) = self.journals_move() else { return Ok(()) };
        let _turn = self.inner.moving.settling.lock().await;
        let (dir, id) = (recorder.dir().to_owned(), sandbox.clone());
        let came = blocking(move || {
            let Some(last) = unsettled(&dir, &id)? else { return Ok(None) };
            let found = pieces(&dir, &id)?;
            let here: BTreeSet<u64> = found.iter().filter_map(|piece| number_of(piece.name())).collect();
            Ok(Some((last, here)))
        });
        let Some((last, here)) = came.await? else { return Ok(()) };
        let aside = format!("{ASIDE}/{}/{sandbox}", now_us());
        let mut moved = 0_u64;
        for (number, closed) in elsewhere::files(objects, sandbox).await? {
            if !number_of(&number).is_some_and(|first| is_foreign(first, last, &here)) {
                continue;
            }
            self.must_hold_lease()?;
            let file = elsewhere::file_name(&number, closed);
            let (from, to) = (elsewhere::object(sandbox, &file), format!("{aside}/{file}"));
            objects.rename(&from, &to).await.map_err(|error| objects_error(&error))?;
            moved += 1;
        }
        if moved > 0 {
            tracing::error!(%sandbox, moved, aside, "the object store had parts that are not of a journal: they have other names");
        }
        let (dir, id) = (recorder.dir().to_owned(), sandbox.clone());
        blocking(move || settled(&dir, &id)).await
    }

    /// Does so for all journals of which nothing was to be sent since they came.
    async fn settle_journals(&self) -> Result<()> {
        let Some((recorder, _objects)) = self.journals_move() else { return Ok(()) };
        let dir = recorder.dir().to_owned();
        let left = blocking(move || {
            let mut left = Vec::new();
            for id in journals(&dir)? {
                if unsettled(&dir, &id)?.is_some() {
                    left.push(id);
                }
            }
            Ok(left)
        });
        let mut all = Ok(());
        for id in left.await? {
            // One whose objects cannot be renamed holds up no other.
            let settled = self.settle_journal(&id).await;
            all = all.and(settled);
        }
        all
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
        let _turn = self.inner.moving.adopting.acquire().await;
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
/// believed up to it. It goes to disk as it comes: many are fetched at the same time.
async fn fetch_one(objects: &Objects, sandbox: &SandboxId, file: &str, to: &Path) -> Result<u64> {
    let mut content = match objects.get(&elsewhere::object(sandbox, file)).await {
        Err(ObjectsError::NotFound) => return Ok(0),
        content => content.map_err(|error| objects_error(&error))?,
    };
    let path = to.join(file);
    let mut kept = tokio::fs::File::create(&path).await.map_err(|error| broken(&error))?;
    let mut size = 0;
    while let Some(piece) = content.next().await {
        let piece = piece.map_err(|error| broke_off(&error))?;
        size += piece.len() as u64;
        if size > SEGMENT_MAX_BYTES as u64 {
            tokio::fs::remove_file(&path).await.map_err(|error| broken(&error))?;
            return Ok(size);
        }
        kept.write_all(&piece).await.map_err(|error| broken(&error))?;
    }
    kept.flush().await.map_err(|error| broken(&error))?;
    Ok(size)
}

fn broke_off(error: &std::io::Error) -> Error {
    tracing::warn!(%error, "a segment of a journal breaks off");
    Error::new(Code::ObjectsUnavailable, "the object store does not answer as it should")
}

/// The number that the name of a segment's file begins with.
fn number_of(file: &str) -> Option<u64> {
    file.split('.').next()?.parse().ok()
}

/// Whether a segment that begins with this event is of another chain than the journal here, which has segments that begin
/// with those of `here`, and of which everything up to the event `last` came from where that segment is. What is older
/// than the journal here is of the same: it was too much to be fetched, or dropped.
fn is_foreign(first: u64, last: u64, here: &BTreeSet<u64>) -> bool {
    first > last || (!here.contains(&first) && here.first().is_some_and(|oldest| first > *oldest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_of_a_journal_is_told_from_what_is() {
        let here = |numbers: &[u64]| numbers.iter().copied().collect::<BTreeSet<u64>>();
        let foreign = |last, here: &BTreeSet<u64>| -> Vec<u64> {
            [1, 5, 11, 21, 30].into_iter().filter(|first| is_foreign(*first, last, here)).collect()
        };
        assert!(foreign(40, &here(&[1, 5, 11, 21, 30])).is_empty(), "all of it came");
        assert_eq!(foreign(20, &here(&[1, 5, 11])), [21, 30], "not believed");
        assert_eq!(foreign(20, &here(&[1, 5, 11, 21])), [21, 30], "and it has gone on here");
        assert_eq!(foreign(20, &here(&[1, 11])), [5, 21, 30], "put between");
        assert!(foreign(40, &here(&[11, 21, 30])).is_empty(), "older than what was fetched");
        assert_eq!(foreign(0, &here(&[])), [1, 5, 11, 21, 30], "nothing came");
        assert_eq!(foreign(0, &here(&[1])), [1, 5, 11, 21, 30], "and it was begun anew");
    }
}
