//! Journals that go on on another host.
//!
//! A journal is one chain, no matter how many hosts its sandbox was on. What one host has of it lies in files that need
//! nothing else, so the next host gets these files, believes as many of them, from the first on, as are as the recorder
//! wrote them, and goes on behind the last. The next segment's header names the chain's end before it, so a part that is
//! left out is noticed.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use atoll_core::id::SandboxId;

use crate::chain::{Kind, MAGIC, Next, decode};
use crate::journal::{Reader, Segment, list, read};
use crate::key::PublicKey;
use crate::verify::{Head, genuine, verify};

/// The directory beside that of the journals for what lies on this host and goes on on another.
const ASIDE: &str = "trace-aside";
/// A file in a journal that came from another host, as long as nothing was written here.
const CAME: &str = "came";
/// What it says if not all came that was there.
const LACKS: &str = "lacks";
/// A file in a journal that came from another host, as long as the place that all hosts share may have something else
/// under the names of its next segments. It says the number of the last event that came.
const UNSETTLED: &str = "unsettled";

/// One segment of a journal, as another host can have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    name: String,
    segment: Segment,
}

impl Piece {
    /// The name of its file, here and on every host.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it changes no more.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.segment.closed
    }

    /// What its file has; of a segment that is still written, what is signed, which may be nothing. Blocking.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] when it was closed, or dropped for its age, since [`pieces`] found it.
    pub fn content(&self) -> io::Result<Vec<u8>> {
        if self.segment.closed { fs::read(&self.segment.path) } else { read(&self.segment).map(signed_part) }
    }
}

/// The records of an open segment up to its last signature.
fn signed_part(mut bytes: Vec<u8>) -> Vec<u8> {
    let (mut at, mut end) = (MAGIC.len(), 0);
    let mut rest = bytes.strip_prefix(MAGIC).unwrap_or_default();
    while let Next::Frame(frame) = decode(rest) {
        at += frame.size;
        rest = &rest[frame.size..];
        if frame.kind == Kind::Checkpoint {
            end = at;
        }
    }
    bytes.truncate(end);
    bytes
}

/// The segments of a sandbox's journal below `base`, in order; none when there is no journal. Blocking.
///
/// # Errors
/// When the directory cannot be read.
pub fn pieces(base: &Path, sandbox: &SandboxId) -> io::Result<Vec<Piece>> {
    let segments = list(&base.join(sandbox.as_str()))?;
    Ok(segments.into_iter().map(|segment| Piece { name: file_name(&segment), segment }).collect())
}

fn file_name(segment: &Segment) -> String {
    segment.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// What became of a journal that came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Number of the last event that came; 0 when none did.
    pub last: u64,
    /// Files that were not as the recorder wrote them. They are set aside.
    pub refused: Vec<String>,
}

/// Makes `coming/SANDBOX` the journal below `dir`, as far as it is as the recorder wrote it. One that lies there already
/// stays if it has all of that, and is set aside if it has not.
pub(crate) fn adopt(dir: &Path, coming: &Path, sandbox: &SandboxId, key: &PublicKey) -> io::Result<Adopted> {
    let (from, to) = (coming.join(sandbox.as_str()), dir.join(sandbox.as_str()));
    private_dir(&from)?;
    let segments = list(&from)?;
    let (_good, wrong) = segments.split_at(genuine(&segments, sandbox, key));
    let refused: Vec<String> = wrong.iter().map(file_name).collect();
    if !wrong.is_empty() {
        let place = new_place(dir)?.join(sandbox.as_str());
        private_dir(&place)?;
        for (segment, name) in wrong.iter().zip(&refused) {
            fs::rename(&segment.path, place.join(name))?;
        }
    }
    let head = Reader::new(coming, sandbox, 1).head()?.map(|(number, link)| Head { number, link });
    let last = head.as_ref().map_or(0, |head| head.number);
    if !list(&to)?.is_empty() {
        let has_all = head.is_none() || verify(dir, sandbox, key, head.as_ref())?.findings.is_empty();
        if has_all {
            fs::remove_dir_all(&from)?;
            if !refused.is_empty() {
                fs::write(to.join(UNSETTLED), last.to_string())?;
            }
            return Ok(Adopted { last, refused });
        }
    }
    set_aside(dir, sandbox)?;
    fs::write(from.join(CAME), if refused.is_empty() { "" } else { LACKS })?;
    fs::write(from.join(UNSETTLED), last.to_string())?;
    // It may be removed from where it came: down to the disk.
    for entry in fs::read_dir(&from)? {
        let file = File::open(entry?.path())?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.sync_all()?;
    }
    fs::set_permissions(&from, Permissions::from_mode(0o700))?;
    File::open(&from)?.sync_all()?;
    fs::rename(&from, &to)?;
    File::open(dir)?.sync_all()?;
    Ok(Adopted { last, refused })
}

/// Of a journal below `base` that came from another host: the number of its last event that came, as long as the place
/// that all hosts share may have something behind that which is not of this journal. Nothing is to be sent there before
/// that is gone from there, and [`settled`] says so: it would lie under the same names. Blocking.
///
/// # Errors
/// What the file system says.
pub fn unsettled(base: &Path, sandbox: &SandboxId) -> io::Result<Option<u64>> {
    match fs::read_to_string(base.join(sandbox.as_str()).join(UNSETTLED)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // Torn by a crash: then nothing of what is there is known to be of this journal.
        said => Ok(Some(said?.parse().unwrap_or_default())),
    }
}

/// The place that all hosts share has nothing any more that is not of this journal. Blocking.
///
/// # Errors
/// What the file system says.
pub fn settled(base: &Path, sandbox: &SandboxId) -> io::Result<()> {
    match fs::remove_file(base.join(sandbox.as_str()).join(UNSETTLED)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// How a journal came to this host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Way {
    /// It was begun here, or has gone on here since.
    #[default]
    Here,
    /// From another host, all that was to be had of it.
    Came,
    /// From another host, and a part was refused.
    CameInPart,
}

/// How the journal in this directory came here, as long as nothing was written to it since.
pub(crate) fn way(journal: &Path) -> io::Result<Way> {
    match fs::read(journal.join(CAME)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Way::Here),
        said => Ok(if said? == LACKS.as_bytes() { Way::CameInPart } else { Way::Came }),
    }
}

/// Something was written to the journal in this directory since it came.
pub(crate) fn has_arrived(journal: &Path) -> io::Result<()> {
    fs::remove_file(journal.join(CAME))
}

/// Moves the journal of a sandbox, if there is one, to where no reader of this host's journals finds it.
pub(crate) fn set_aside(dir: &Path, sandbox: &SandboxId) -> io::Result<()> {
    let from = dir.join(sandbox.as_str());
    if !from.try_exists()? {
        return Ok(());
    }
    let place = new_place(dir)?;
    fs::rename(&from, place.join(sandbox.as_str()))
}

/// Directories with journals that were set aside, each as the recorder's own.
pub(crate) fn aside(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir.with_file_name(ASIDE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.map(|entry| entry.map(|entry| entry.path())).collect(),
    }
}

/// A new one of them, named after the time.
fn new_place(dir: &Path) -> io::Result<PathBuf> {
    let place = dir.with_file_name(ASIDE).join(crate::now_us().to_string());
    private_dir(&place)?;
    Ok(place)
}

fn private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests;
