//! Artifacts of the fake: its files, written down in a sparse file as large as the disk, and what of its execs is in its
//! memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use atoll_core::snapshot::{Change, ChangeKind, Comparison, EntryKind};
use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::exec::Exec;
use super::guest::Files;
use crate::ArtifactUsage;

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
