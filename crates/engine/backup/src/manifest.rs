//! The manifest: a line of JSON for each member. The writer and the reader of an archive keep the lines in a file
//! without a name, so that they need no more memory for more members.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{BackupError, Result};
use crate::format::LINE_MAX_BYTES;
use crate::member::Member;

/// The line of a member in a manifest. Paths are escaped: they are only compared and shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    path: String,
    kind: String,
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: (i64, u32),
    size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    link: Option<String>,
    /// BLAKE3 of names and values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attributes: Option<String>,
    /// BLAKE3 of what follows the member's header in the archive: of a file with holes its map and its data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    blake3: Option<String>,
}

impl Line {
    fn of(member: &Member, digest: Option<blake3::Hash>) -> Self {
        let escaped = |bytes: &[u8]| bytes.escape_ascii().to_string();
        Self {
            path: escaped(&member.path),
            kind: member.kind.name().to_owned(),
            mode: member.mode,
            uid: member.uid,
            gid: member.gid,
            mtime: member.mtime,
            size: member.size,
            link: (!member.link.is_empty()).then(|| escaped(&member.link)),
            attributes: (!member.xattrs.is_empty()).then(|| attributes(member).to_hex().to_string()),
            blake3: digest.map(|digest| digest.to_hex().to_string()),
        }
    }
}

fn attributes(member: &Member) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for part in member.xattrs.iter().flat_map(|(name, value)| [name, value]) {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    hasher.finalize()
}

/// The lines so far.
#[derive(Debug)]
pub(crate) struct Lines {
    file: BufWriter<File>,
    bytes: u64,
    count: u64,
}

fn failed(error: std::io::Error) -> BackupError {
    BackupError::io("keep the manifest of the backup", error)
}

impl Lines {
    /// Begins without lines. Its file is in this directory, without a name.
    pub(crate) fn new(dir: &Path) -> Result<Self> {
        let file = tempfile::tempfile_in(dir).map_err(failed)?;
        Ok(Self { file: BufWriter::new(file), bytes: 0, count: 0 })
    }

    /// Adds the line of a member.
    pub(crate) fn push(&mut self, member: &Member, digest: Option<blake3::Hash>) -> Result<()> {
        let mut line = serde_json::to_vec(&Line::of(member, digest)).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        self.bytes += line.len() as u64;
        self.count += 1;
        self.file.write_all(&line).map_err(failed)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// All of them, from the first on, and how many bytes that is.
    pub(crate) fn finish(self) -> Result<(BufReader<File>, u64)> {
        let mut file = self.file.into_inner().map_err(|error| failed(error.into_error()))?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        Ok((BufReader::new(file), self.bytes))
    }

    /// Compares them with a manifest.
    ///
    /// # Errors
    /// [`BackupError::Invalid`], which names the first member that is not what was backed up.
    pub(crate) fn compare(self, manifest: impl Read) -> Result<()> {
        let (mut ours, _bytes) = self.finish()?;
        let mut theirs = BufReader::new(manifest);
        loop {
            let found = line(&mut ours).map_err(failed)?;
            let wanted = line(&mut theirs).map_err(BackupError::unreadable)?;
            if found != wanted {
                return Err(difference(&found, &wanted));
            }
            if found.is_empty() {
                return Ok(());
            }
        }
    }
}

fn line(from: &mut impl BufRead) -> std::io::Result<Vec<u8>> {
    let mut line = Vec::new();
    from.take(LINE_MAX_BYTES).read_until(b'\n', &mut line)?;
    Ok(line)
}

fn difference(found: &[u8], wanted: &[u8]) -> BackupError {
    let parsed = |line: &[u8]| serde_json::from_slice::<Line>(line).ok();
    BackupError::Invalid(match (parsed(found), parsed(wanted)) {
        (_, None) if !wanted.is_empty() => "its manifest is malformed".to_owned(),
        (Some(found), Some(wanted)) if found.path == wanted.path && found.blake3 != wanted.blake3 => {
            format!("the content of '{}' does not have the digest that the manifest says", found.path)
        }
        (Some(found), _) => format!("'{}' is not what the manifest says", found.path),
        (None, Some(wanted)) => format!("'{}' is missing", wanted.path),
        (None, None) => "its manifest is malformed".to_owned(),
    })
}
