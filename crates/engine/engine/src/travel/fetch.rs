//! Fetches the copy of a sandbox.
//!
//! What lies there is believed by its digest only: the database has that of the index, the index those of all pieces. The disk
//! becomes an artifact, which is checked as everything that comes from elsewhere, and the sandbox is made from that. The
//! artifact has a row, so that what a crash leaves of it is removed.
//!
//! The memory of a sandbox that was put to disk with it is fetched, too, if it can be used here. Then the disk stays as the
//! sandbox's kernel knows it: the host never mounts that of a machine. Without its memory the disk is tidied first, because
//! files were open that nothing has any more; so is a disk that its host could not unmount whole.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use atoll_core::id::{SandboxId, SnapshotId};
use atoll_core::sandbox::PauseMode;
use atoll_core::{Code, Error, Result};
use atoll_isolation::{DiskSource, Isolation, IsolationError, Plan};
use atoll_objects::ObjectsError;
use atoll_store::{SandboxRecord, SnapshotRecord};
use futures::{StreamExt as _, TryStreamExt as _};

use super::index::{Extent, Index, Memory, PACKED_MAX_BYTES, Piece, digest};
use super::logs::{sync_dir, unpack};
use super::{Travel, owner_of};
use crate::engine::{Engine, Inner};
use crate::errors::{isolation_error, store_error};
use crate::rooms::Who;
use crate::snapshot::objects_error;

/// The name that holds the artifact of a sandbox that is fetched.
pub(crate) const HOLDER: &str = "a sandbox on its way";
/// Pieces that are fetched at the same time: a bound for memory, too.
const PIECES_AT_ONCE: usize = 8;
/// What is looked at to leave out what is zero, bytes.
const BLOCK_BYTES: usize = 4096;

/// What was fetched of a sandbox, as an artifact.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// The artifact, which the caller removes.
    pub(crate) artifact: SnapshotRecord,
    /// How the sandbox is made from it.
    pub(crate) plan: Plan,
    /// Why it goes on without its memory, although it was put to disk with that.
    pub(crate) without_memory: Option<String>,
}

/// Why an object of a copy cannot be read.
pub(super) fn missing(error: &ObjectsError) -> Error {
    match error {
        ObjectsError::NotFound => {
            Error::new(Code::SnapshotNotFound, "a part of its copy is not in the object store any more")
        }
        other => objects_error(other),
    }
}

fn broken(error: &io::Error) -> Error {
    if error.kind() == io::ErrorKind::StorageFull {
        return Error::new(Code::HostDiskFull, "the disk is full").hint("free some, then try again");
    }
    tracing::error!(%error, "what was fetched cannot be written");
    Error::new(Code::Internal, "what was fetched cannot be written")
}

impl Travel {
    async fn fetch_index(&self, inner: &Inner, id: &SandboxId) -> Result<Index> {
        let kept = inner.store.kept(id).await.map_err(store_error)?;
        let gone = || Error::new(Code::SnapshotNotFound, "there is no copy of the sandbox");
        self.index(id, &kept.copy.ok_or_else(gone)?).await
    }

    /// Writes what is not zero of an extent into a file.
    async fn fill(&self, id: &SandboxId, extent: &Extent, file: &Arc<File>) -> Result<()> {
        let pieces = futures::stream::iter(extent.pieces.clone());
        let fetched = pieces.map(|piece| self.fetch_piece(id, piece, Arc::clone(file)));
        fetched.buffer_unordered(PIECES_AT_ONCE).try_collect::<()>().await
    }

    async fn fetch_piece(&self, id: &SandboxId, piece: Piece, file: Arc<File>) -> Result<()> {
        let name = self.object(id, &piece.upload, &piece.digest);
        let packed =
            self.objects.get_whole(&name, PACKED_MAX_BYTES).await.map_err(|error| missing(&error))?;
        let written = tokio::task::spawn_blocking(move || write(&packed, &piece, &file)).await;
        written
            .unwrap_or_else(|_panicked| Err(Error::new(Code::Internal, "writing what was fetched broke off")))
    }

    /// Checks the disk of an artifact that was fetched for this owner, in a room of which others have a share: disks of one owner
    /// that take long hold up none of another's.
    async fn check(
        &self,
        owner: Who,
        driver: &dyn Isolation,
        artifact: &SnapshotId,
        was_open: bool,
    ) -> std::result::Result<(), IsolationError> {
        let _room = self.checking.wait(owner).await;
        check_disk(driver, artifact, was_open).await
    }

    /// Fetches the output of a sandbox's execs to its place, unless something is there.
    pub(crate) async fn fetch_logs(&self, inner: &Inner, record: &SandboxRecord) -> Result<()> {
        let id = &record.id;
        let place = inner.logs_dir(id);
        if tokio::fs::try_exists(&place).await.map_err(|error| broken(&error))? {
            return Ok(());
        }
        let _turn = self.fetching.wait(owner_of(record)).await;
        let index = self.fetch_index(inner, id).await?;
        let (dir, bytes) = (self.dir.join(format!("{id}.logs")), index.logs.bytes);
        let packed = self.dir.join(format!("{id}.packed"));
        let made = File::options().read(true).write(true).create(true).truncate(true).open(&packed);
        let file = Arc::new(made.map_err(|error| broken(&error))?);
        std::fs::remove_file(&packed).map_err(|error| broken(&error))?;
        file.set_len(bytes).map_err(|error| broken(&error))?;
        self.fill(id, &index.logs, &file).await?;
        let unpacked = tokio::task::spawn_blocking(move || {
            match std::fs::remove_dir_all(&dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            unpack(io::BufReader::new(Whole { file: &file, at: 0 }), bytes, &dir)?;
            let parent = place.parent().ok_or_else(|| io::Error::other("logs have no place"))?;
            std::fs::create_dir_all(parent)?;
            std::fs::rename(&dir, &place)?;
            sync_dir(parent)
        });
        let unpacked = unpacked.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        unpacked.map_err(|error| broken(&error))?;
        inner.logs.measure_one(id);
        Ok(())
    }
}

/// A file from its beginning, at a position that other readers and writers of it do not move.
struct Whole<'a> {
    file: &'a File,
    at: u64,
}

impl io::Read for Whole<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(into, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// Checks a piece and writes what is not zero of it.
fn write(packed: &[u8], piece: &Piece, file: &File) -> Result<()> {
    let len = usize::try_from(piece.len).unwrap_or(usize::MAX);
    let mismatch = || {
        Error::new(
            Code::DigestMismatch,
            "the object store has something else in the place of a part of the copy",
        )
    };
    // No more than it should have is unpacked.
    let bytes = zstd::bulk::decompress(packed, len).map_err(|_error| mismatch())?;
    if bytes.len() != len || digest(&bytes) != piece.digest {
        return Err(mismatch());
    }
    let mut at = piece.at;
    for block in bytes.chunks(BLOCK_BYTES) {
        if block.iter().any(|byte| *byte != 0) {
            file.write_all_at(block, at).map_err(|error| broken(&error))?;
        }
        at += block.len() as u64;
    }
    Ok(())
}

/// Checks the disk of an artifact that was fetched, after it was tidied if that is needed: it `was_open` when it was copied, or
/// its host could not unmount it whole, because it could not write to it any more. That host would tidy it, too.
async fn check_disk(
    driver: &dyn Isolation,
    artifact: &SnapshotId,
    was_open: bool,
) -> std::result::Result<(), IsolationError> {
    if !was_open {
        match driver.check_artifact(artifact).await {
            Err(IsolationError::BadArtifact(why)) => {
                tracing::warn!(%artifact, why, "a disk that was fetched is put in order");
            }
            checked => return checked.map(drop),
        }
    }
    driver.seal_artifact(artifact).await?;
    driver.check_artifact(artifact).await.map(drop)
}

impl Engine {
    /// Fetches the disk of a sandbox, and its memory if it was put to disk with that and this node can use it.
    ///
    /// # Errors
    /// [`Code::ObjectsUnavailable`]; [`Code::DigestMismatch`], [`Code::SnapshotInvalid`] for what is not what it should be;
    /// [`Code::HostDiskFull`]. Nothing is left then.
    pub(crate) async fn fetch_asleep(&self, sandbox: &SandboxRecord) -> Result<Fetched> {
        let Some(travel) = &self.inner.travel else {
            return Err(Error::new(
                Code::InvalidState,
                "its disk is in an object store, and this server has none",
            )
            .hint("start it with --objects, as the other nodes"));
        };
        let turn = travel.fetching.wait(owner_of(sandbox)).await;
        let index = travel.fetch_index(&self.inner, &sandbox.id).await?;
        let mut artifact = super::checkpoint::held(sandbox, HOLDER, self.inner.now_ms())?;
        self.begin_snapshot(&mut artifact).await?;
        atoll_failpoint::fail_point!("engine.travel.fetching");
        let made = async {
            let without_memory = self.fill_artifact(travel, sandbox, &index, &artifact.id).await?;
            drop(turn);
            self.plan_with(travel, sandbox, &index, &artifact.id, without_memory).await
        };
        match Box::pin(made).await {
            Ok((plan, without_memory)) => {
                atoll_failpoint::fail_point!("engine.travel.fetched");
                Ok(Fetched { artifact, plan, without_memory })
            }
            Err(error) => {
                self.undo_snapshot(&artifact).await;
                Err(error)
            }
        }
    }

    /// Fetches disk and memory. Gives why the memory is not there if the sandbox had some.
    async fn fill_artifact(
        &self,
        travel: &Travel,
        sandbox: &SandboxRecord,
        index: &Index,
        artifact: &SnapshotId,
    ) -> Result<Option<String>> {
        let driver = self.inner.driver(sandbox.spec.isolation)?;
        let disk = driver.write_artifact(artifact, index.disk.bytes).await;
        let disk = Arc::new(disk.map_err(|error| isolation_error(&error))?);
        travel.fill(&sandbox.id, &index.disk, &disk).await?;
        drop(disk);
        if sandbox.paused != Some(PauseMode::Memory) {
            return Ok(None);
        }
        let plan = self.plan_for(sandbox, DiskSource::Asleep(artifact.clone()))?;
        self.fetch_memory(travel, sandbox, &plan, index.memory.as_ref(), artifact).await
    }

    /// Gives how the sandbox is made from an artifact that has its disk and, unless it goes on `without_memory`, the memory that
    /// it was put to disk with.
    async fn plan_with(
        &self,
        travel: &Travel,
        sandbox: &SandboxRecord,
        index: &Index,
        artifact: &SnapshotId,
        without_memory: Option<String>,
    ) -> Result<(Plan, Option<String>)> {
        if sandbox.paused == Some(PauseMode::Memory) && without_memory.is_none() {
            return Ok((self.plan_for(sandbox, DiskSource::Asleep(artifact.clone()))?, None));
        }
        let driver = self.inner.driver(sandbox.spec.isolation)?;
        let was_open = index.memory.is_some() || without_memory.is_some();
        let checked = travel.check(owner_of(sandbox), driver.as_ref(), artifact, was_open).await;
        checked.map_err(|error| isolation_error(&error))?;
        let plan = self.plan_for(sandbox, DiskSource::Artifact(artifact.clone()))?;
        Ok((plan, without_memory))
    }

    /// Fetches the memory of a sandbox into an artifact that has its disk. Gives why it is not there, if it is not.
    async fn fetch_memory(
        &self,
        travel: &Travel,
        sandbox: &SandboxRecord,
        plan: &Plan,
        memory: Option<&Memory>,
        artifact: &SnapshotId,
    ) -> Result<Option<String>> {
        let Some(memory) = memory else { return Ok(Some("it is not in the copy".to_owned())) };
        let driver = self.inner.driver(sandbox.spec.isolation)?;
        // Compared first: what cannot be used here is not fetched.
        let made = driver.write_artifact_memory(artifact, plan, &memory.needs, memory.content.bytes).await;
        let file = match made {
            Ok(file) => Arc::new(file),
            Err(IsolationError::BadArtifact(why)) => return Ok(Some(why)),
            Err(error) => return Err(isolation_error(&error)),
        };
        travel.fill(&sandbox.id, &memory.content, &file).await?;
        drop(file);
        match driver.check_artifact_memory(artifact, &memory.needs).await {
            Ok(()) => Ok(None),
            Err(IsolationError::BadArtifact(why)) => Ok(Some(why)),
            Err(error) => Err(isolation_error(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::task::Poll;

    use atoll_core::id::KeyId;
    use atoll_isolation::fake::FakeHost;
    use atoll_objects::{Objects, ObjectsConfig};

    use super::super::CHECKED_AT_ONCE;
    use super::*;

    fn key(number: u64) -> Who {
        Who::new(Some(&KeyId::from_parts(1, number)), None)
    }

    /// Nothing is asked of its object store.
    fn travel() -> Travel {
        let url = "s3://nowhere".to_owned();
        let config = ObjectsConfig { url, endpoint: None, region: None, credentials: None, token: None };
        Travel::new(Objects::open(&config).unwrap(), "kept/test".to_owned(), PathBuf::new())
    }

    /// Without the line of `Travel::check` that waits for a room the first key's last disk is tidied at once, too.
    #[tokio::test]
    async fn disks_of_one_owner_that_take_long_hold_up_none_of_anothers() {
        let (host, travel) = (FakeHost::new(), travel());
        let driver: Arc<dyn Isolation> = Arc::new(host.driver());
        let artifacts: Vec<_> = (1..10).map(|number| SnapshotId::from_parts(1, number)).collect();
        for artifact in &artifacts {
            drop(driver.write_artifact(artifact, 1 << 20).await.unwrap());
        }
        let check = |owner, artifact| Box::pin(travel.check(key(owner), driver.as_ref(), artifact, true));
        let of_key = CHECKED_AT_ONCE.of_key;
        host.hold_seals(u32::try_from(of_key).unwrap());
        let mut slow: Vec<_> = artifacts[..of_key + 1].iter().map(|artifact| check(1, artifact)).collect();
        for one in &mut slow {
            assert!(futures::poll!(one).is_pending());
        }
        assert_eq!(host.calls("seal_artifact"), of_key as u64, "one key has so many rooms at once");
        let Poll::Ready(checked) = futures::poll!(check(2, &artifacts[of_key + 1])) else {
            panic!("it waits for another owner's disks")
        };
        checked.unwrap();
        host.let_seals_go_on();
        for one in slow {
            one.await.unwrap();
        }
        assert_eq!(host.calls("check_artifact"), of_key as u64 + 2);
    }

    /// The fake refuses a disk that is all ones, and finds the same when it has tidied it.
    #[tokio::test]
    async fn a_disk_is_tidied_when_that_is_needed_and_only_then() {
        for (spoilt, was_open, tidied, looked) in
            [(false, false, 0, 1), (false, true, 1, 1), (true, false, 1, 2), (true, true, 1, 1)]
        {
            let host = FakeHost::new();
            let driver: Arc<dyn Isolation> = Arc::new(host.driver());
            let artifact = SnapshotId::from_parts(1, 1);
            let disk = driver.write_artifact(&artifact, 1 << 20).await.unwrap();
            if spoilt {
                disk.write_all_at(&[0xFF; 4096], 0).unwrap();
            }
            let checked = check_disk(driver.as_ref(), &artifact, was_open).await;
            assert_eq!(matches!(checked, Err(IsolationError::BadArtifact(_))), spoilt, "{checked:?}");
            assert_eq!((host.calls("seal_artifact"), host.calls("check_artifact")), (tidied, looked));
        }
    }
}
