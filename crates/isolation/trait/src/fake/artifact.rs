//! Artifacts of the fake: its files, written down in a sparse file as large as the disk, and what of its execs is in its
//! memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::{SandboxId, SnapshotId};
use atoll_core::snapshot::{Change, ChangeKind, Comparison, CopyMethod, EntryKind};
use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::exec::Exec;
use super::guest::{Files, Guest};
use super::{FakeIsolation, State, WITH_MEMORY, injected, kernel};
use crate::{ArtifactUsage, DiskSource, IsolationError, Plan, Taken};

/// What the files take at most, bytes.
const FILES_MAX_BYTES: u64 = 64 << 20;

#[derive(Debug, Clone)]
pub(super) struct Artifact {
    disk: Arc<File>,
    /// Absent where it holds a disk alone.
    pub(super) memory: Option<Arc<Vec<Exec>>>,
}

impl Artifact {
    /// An empty disk.
    pub(super) fn empty(bytes: u64) -> io::Result<Self> {
        let disk = tempfile::tempfile()?;
        disk.set_len(bytes)?;
        Ok(Self { disk: Arc::new(disk), memory: None })
    }

    /// A disk with files on it.
    pub(super) fn with(files: &Files, bytes: u64) -> io::Result<Self> {
        let mut text = BytesMut::new();
        text.put_u64(files.len() as u64);
        for (path, content) in files {
            for part in [path.as_bytes(), content] {
                text.put_u64(part.len() as u64);
                text.put_slice(part);
            }
        }
        let artifact = Self::empty(bytes)?;
        artifact.disk.write_all_at(&text, 0)?;
        Ok(artifact)
    }

    /// The files on it.
    pub(super) fn files(&self) -> io::Result<Files> {
        let len = self.disk.metadata()?.len().min(FILES_MAX_BYTES);
        let mut text = vec![0; usize::try_from(len).map_err(io::Error::other)?];
        self.disk.read_exact_at(&mut text, 0)?;
        let mut rest = Bytes::from(text);
        let part = |rest: &mut Bytes| {
            let len = rest.try_get_u64().map_err(io::Error::other)?;
            let len = usize::try_from(len).map_err(io::Error::other)?;
            if len > rest.len() {
                return Err(io::Error::other("not a disk of the fake"));
            }
            Ok(rest.split_to(len))
        };
        let count = rest.try_get_u64().map_err(io::Error::other)?;
        let mut files = Files::new();
        for _ in 0..count {
            let path = String::from_utf8_lossy(&part(&mut rest)?).into_owned();
            files.insert(path, part(&mut rest)?);
        }
        Ok(files)
    }

    /// The disk itself.
    pub(super) fn open(&self) -> io::Result<File> {
        self.disk.try_clone()
    }

    pub(super) fn usage(&self) -> io::Result<ArtifactUsage> {
        use std::os::unix::fs::MetadataExt;
        let meta = self.disk.metadata()?;
        Ok(ArtifactUsage { disk_bytes: meta.len(), stored_bytes: meta.blocks() * 512 })
    }
}

impl FakeIsolation {
    /// The guest that a plan is about.
    pub(super) fn guest(&self, plan: &Plan, state: &State) -> Result<Arc<Guest>, IsolationError> {
        let (id, runtime) = (plan.id.as_str(), self.host.runtime.clone());
        let artifact = match &plan.disk {
            DiskSource::Empty => return Ok(Guest::new(id, Files::new(), runtime)),
            DiskSource::Asleep(_) => {
                return Err(IsolationError::BadArtifact("nothing of another host is here".to_owned()));
            }
            DiskSource::Artifact(artifact)
            | DiskSource::Moved(artifact)
            | DiskSource::WithMemory(artifact, _) => artifact,
        };
        let artifact = state.artifacts.get(artifact).ok_or(IsolationError::NoArtifact)?;
        let files = artifact.files().map_err(|source| kernel("read a disk", source))?;
        let DiskSource::WithMemory(_, carried) = &plan.disk else {
            return Ok(Guest::new(id, files, runtime));
        };
        let memory = artifact.memory.as_ref();
        let memory = memory.ok_or_else(|| IsolationError::BadArtifact("it has no memory".to_owned()))?;
        let carried = carried.as_ref().and_then(|carried| {
            let exec = memory.iter().find(|exec| exec.request.exec_id == carried.was.as_str())?;
            Some((&carried.is, exec))
        });
        Ok(Guest::go_on(id, files, carried, runtime))
    }

    pub(super) fn take(
        &self,
        call: &'static str,
        id: &SandboxId,
        artifact: &SnapshotId,
    ) -> Result<Taken, IsolationError> {
        let mut state = self.host.count(call);
        let live = state.instances.get(id).filter(|instance| instance.alive()).ok_or(IsolationError::Gone)?;
        let made = Artifact::with(&live.guest.files(), live.plan.resources.disk_bytes);
        let mut made = made.map_err(|source| kernel("make a snapshot", source))?;
        made.memory = (call == WITH_MEMORY).then(|| Arc::new(live.guest.execs()));
        let usage = made.usage().map_err(|source| kernel("measure a snapshot", source))?;
        if state.artifacts.insert(artifact.clone(), made).is_some() {
            return Err(injected("make a snapshot twice"));
        }
        if state.failing_snapshots > 0 {
            state.failing_snapshots -= 1;
            return Err(injected("make a snapshot"));
        }
        Ok(Taken { usage, paused: Duration::ZERO, method: CopyMethod::Clone })
    }
}

/// What differs between two maps of files.
pub(super) fn compare(from: &Files, to: &Files) -> Comparison {
    let paths: std::collections::BTreeSet<&String> = from.keys().chain(to.keys()).collect();
    let change = |path: &String| {
        let (one, other) = (from.get(path), to.get(path));
        let kind = match (one, other) {
            (None, _) => ChangeKind::Added,
            (_, None) => ChangeKind::Removed,
            (one, other) if one == other => return None,
            _ => ChangeKind::Changed,
        };
        let bytes = |content: Option<&Bytes>| content.map(|content| content.len() as u64);
        Some(Change {
            path: path.clone(),
            kind,
            entry: EntryKind::File,
            from_bytes: bytes(one),
            to_bytes: bytes(other),
            text: None,
        })
    };
    Comparison { changes: paths.into_iter().filter_map(change).collect(), truncated: false }
}
