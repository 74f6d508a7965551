//! Archives on disk, below the server's spool: `KEY-HASH.tar`. An archive that comes in parts has a directory
//! `KEY-HASH-UPLOAD`, with a file `NUMBER-CHECKSUM` for each part.
//!
//! A file is written beside its place and then renamed, so that no reader finds half of it, and two clients that send
//! the same archive at once do not disturb each other. Archives that no client sent or asked about for a day are
//! removed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use atoll_core::id::KeyId;
use atoll_core::limits::BUILD_CONTEXT_MAX_BYTES;
use atoll_engine::Engine;

/// How long an archive is kept that no client asks about.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// All archives together, and those of one key, bytes.
const TOTAL_MAX_BYTES: u64 = 16 << 30;
const OF_KEY_MAX_BYTES: u64 = 8 << 30;
/// The size that a file counts at least, so that a key cannot keep too many small ones.
const FILE_MIN_BYTES: u64 = 64 << 10;
/// Hexadecimal digits of a hash and of the name of an upload.
const DIGITS: usize = 32;

/// The clients' name for an archive: an MD5, which the server does not check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hash(String);

impl Hash {
    /// Only hexadecimal digits: the hash becomes part of a path.
    pub(super) fn parse(text: &str) -> Option<Self> {
        is_hex(text).then(|| Self(text.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_hex(text: &str) -> bool {
    text.len() == DIGITS && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// The name of an upload that comes in parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Upload(String);

impl Upload {
    /// Only hexadecimal digits: the name becomes part of a path.
    pub(super) fn parse(text: &str) -> Option<Self> {
        is_hex(text).then(|| Self(text.to_owned()))
    }

    fn random() -> io::Result<Self> {
        let mut bytes = [0_u8; DIGITS / 2];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self(hex::encode(bytes)))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A part, as the client names it when it has sent all parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) number: u16,
    /// SHA-256, hexadecimal.
    pub(super) checksum: String,
}

impl Part {
    fn file(&self) -> String {
        format!("{:05}-{}", self.number, self.checksum)
    }
}

/// Size and time of an archive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) bytes: u64,
    /// Seconds since the epoch.
    pub(super) changed_s: u64,
}

/// The archives of one key.
#[derive(Debug, Clone)]
pub(super) struct Shelf {
    dir: PathBuf,
    key: KeyId,
}

async fn work<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

impl Shelf {
    pub(super) fn new(engine: &Engine, key: &KeyId) -> Self {
        Self { dir: engine.spool_dir().join("daytona"), key: key.clone() }
    }

    fn place(&self, hash: &Hash) -> PathBuf {
        self.dir.join(format!("{}-{}.tar", self.key, hash.0))
    }

    fn parts(&self, hash: &Hash, upload: &Upload) -> PathBuf {
        self.dir.join(format!("{}-{}-{}", self.key, hash.0, upload.0))
    }

    /// An archive, to read.
    pub(super) async fn open(&self, hash: &Hash) -> io::Result<File> {
        let place = self.place(hash);
        work(move || File::open(place)).await
    }

    /// Whether an archive is here. If it is, it is kept for another day.
    pub(super) async fn find(&self, hash: &Hash) -> io::Result<Option<Known>> {
        let place = self.place(hash);
        work(move || {
            let file = match File::open(place) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                file => file?,
            };
            let now = SystemTime::now();
            file.set_modified(now)?;
            let changed_s = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
            Ok(Some(Known { bytes: file.metadata()?.len(), changed_s }))
        })
        .await
    }

    /// Removes old files. Says whether there is room for more.
    pub(super) async fn make_room(&self) -> io::Result<bool> {
        let (dir, own) = (self.dir.clone(), format!("{}-", self.key));
        work(move || {
            fs::create_dir_all(&dir)?;
            let (mut all, mut of_key) = (0, 0);
            for entry in fs::read_dir(&dir)?.flatten() {
                let bytes = size_or_remove(&entry.path());
                all += bytes;
                if entry.file_name().to_string_lossy().starts_with(&own) {
                    of_key += bytes;
                }
            }
            Ok(all < TOTAL_MAX_BYTES && of_key < OF_KEY_MAX_BYTES)
        })
        .await
    }

    /// A path at which a body may be received. No other file has this name.
    pub(super) fn beside(&self) -> io::Result<PathBuf> {
        Ok(self.dir.join(format!("{}-{}.part", self.key, Upload::random()?.0)))
    }

    /// Keeps a received archive.
    pub(super) async fn keep(&self, hash: &Hash, received: PathBuf) -> io::Result<()> {
        let place = self.place(hash);
        work(move || put(&received, &place)).await
    }

    /// Begins an upload in parts.
    pub(super) async fn begin(&self, hash: &Hash) -> io::Result<Upload> {
        let upload = Upload::random()?;
        let dir = self.parts(hash, &upload);
        work(move || fs::create_dir_all(dir)).await?;
        Ok(upload)
    }

    /// Keeps a received part. `false` when there is no such upload.
    pub(super) async fn keep_part(
        &self,
        hash: &Hash,
        upload: &Upload,
        part: &Part,
        received: PathBuf,
    ) -> io::Result<bool> {
        let (dir, name) = (self.parts(hash, upload), part.file());
        work(move || match put(&received, &dir.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            done => done.map(|()| true),
        })
        .await
    }

    /// Joins parts to the archive and ends the upload. `None` when there is no such upload or part, or all are too
    /// large together.
    pub(super) async fn complete(
        &self,
        hash: &Hash,
        upload: &Upload,
        parts: Vec<Part>,
    ) -> io::Result<Option<()>> {
        let (dir, place, beside) = (self.parts(hash, upload), self.place(hash), self.beside()?);
        work(move || {
            let joined = join(&dir, &parts, &beside).and_then(|whole| match whole {
                true => put(&beside, &place).map(Some),
                false => Ok(None),
            });
            if !matches!(joined, Ok(Some(()))) {
                drop(fs::remove_file(&beside));
                return joined;
            }
            // Files that could not be removed are removed when they are old.
            drop(fs::remove_dir_all(&dir));
            joined
        })
        .await
    }

    /// Ends an upload, whether there is one or not.
    pub(super) async fn abort(&self, hash: &Hash, upload: &Upload) -> io::Result<()> {
        let dir = self.parts(hash, upload);
        work(move || match fs::remove_dir_all(dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        })
        .await
    }
}

/// Puts a file in its place. It is there as a whole, also after a power cut.
fn put(received: &Path, place: &Path) -> io::Result<()> {
    File::open(received)?.sync_all()?;
    fs::rename(received, place)
}

/// Writes parts into one file. Says whether all were there and not too large together.
fn join(dir: &Path, parts: &[Part], to: &Path) -> io::Result<bool> {
    let mut whole = File::create(to)?;
    let mut bytes = 0;
    for part in parts {
        let mut file = match File::open(dir.join(part.file())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        bytes += io::copy(&mut file, &mut whole)?;
        if bytes > BUILD_CONTEXT_MAX_BYTES {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The bytes that count for a file, or for a directory of files. Old ones are removed and count nothing.
fn size_or_remove(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
    let age = metadata.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
    let is_old = age.is_some_and(|age| age > KEPT);
    if !metadata.is_dir() {
        if is_old {
            drop(fs::remove_file(path));
        }
        return if is_old { 0 } else { metadata.len().max(FILE_MIN_BYTES) };
    }
    if is_old {
        drop(fs::remove_dir_all(path));
        return 0;
    }
    let parts = fs::read_dir(path).into_iter().flatten().flatten();
    let sizes = parts.map(|part| part.metadata().map_or(0, |metadata| metadata.len().max(FILE_MIN_BYTES)));
    FILE_MIN_BYTES + sizes.sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shelves() -> (tempfile::TempDir, Shelf, Shelf) {
        let dir = tempfile::tempdir().unwrap();
        let of = |number| Shelf { dir: dir.path().join("x"), key: KeyId::from_parts(0, number) };
        let (one, other) = (of(1), of(2));
        (dir, one, other)
    }

    fn received(shelf: &Shelf, text: &str) -> PathBuf {
        let path = shelf.beside().unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn names_are_no_paths() {
        assert!(Hash::parse(&"0a".repeat(16)).is_some());
        for bad in ["", "../../x", &"0A".repeat(16), &"g".repeat(32), &"a".repeat(31)] {
            assert!(Hash::parse(bad).is_none() && Upload::parse(bad).is_none(), "{bad}");
        }
    }

    #[tokio::test]
    async fn archives_of_keys_are_apart() {
        let (_dir, shelf, other) = shelves();
        let hash = Hash::parse(&"0a".repeat(16)).unwrap();
        assert!(shelf.make_room().await.unwrap());
        assert!(shelf.find(&hash).await.unwrap().is_none());
        shelf.keep(&hash, received(&shelf, "first")).await.unwrap();
        assert_eq!(shelf.find(&hash).await.unwrap().unwrap().bytes, 5);
        assert!(other.find(&hash).await.unwrap().is_none());
        assert!(other.open(&hash).await.is_err());
        assert_eq!(io::read_to_string(shelf.open(&hash).await.unwrap()).unwrap(), "first");
    }

    #[tokio::test]
    async fn parts_make_an_archive() {
        let (_dir, shelf, other) = shelves();
        let hash = Hash::parse(&"0a".repeat(16)).unwrap();
        shelf.make_room().await.unwrap();
        let upload = shelf.begin(&hash).await.unwrap();
        let part = |number, checksum: &str| Part { number, checksum: checksum.to_owned() };
        for (number, text) in [(2, "second"), (1, "lost"), (1, "first ")] {
            let received = received(&shelf, text);
            assert!(shelf.keep_part(&hash, &upload, &part(number, text), received).await.unwrap());
        }
        let stranger = received(&other, "x");
        assert!(!other.keep_part(&hash, &upload, &part(1, "x"), stranger).await.unwrap());
        let missing = vec![part(1, "first "), part(3, "third")];
        assert!(shelf.complete(&hash, &upload, missing).await.unwrap().is_none());
        assert!(shelf.find(&hash).await.unwrap().is_none());
        let all = vec![part(1, "first "), part(2, "second")];
        assert!(other.complete(&hash, &upload, all.clone()).await.unwrap().is_none());
        shelf.complete(&hash, &upload, all.clone()).await.unwrap().unwrap();
        assert_eq!(io::read_to_string(shelf.open(&hash).await.unwrap()).unwrap(), "first second");
        assert!(shelf.complete(&hash, &upload, all).await.unwrap().is_none());
        shelf.abort(&hash, &upload).await.unwrap();
    }

    #[tokio::test]
    async fn what_is_old_goes() {
        let (_dir, shelf, _) = shelves();
        let hash = Hash::parse(&"0a".repeat(16)).unwrap();
        shelf.make_room().await.unwrap();
        shelf.keep(&hash, received(&shelf, "first")).await.unwrap();
        let long_ago = SystemTime::now() - 2 * KEPT;
        File::open(shelf.place(&hash)).unwrap().set_modified(long_ago).unwrap();
        // A client that asks about it will want it.
        assert!(shelf.find(&hash).await.unwrap().is_some() && shelf.make_room().await.unwrap());
        assert!(shelf.find(&hash).await.unwrap().is_some());
        File::open(shelf.place(&hash)).unwrap().set_modified(long_ago).unwrap();
        shelf.make_room().await.unwrap();
        assert!(shelf.find(&hash).await.unwrap().is_none());
    }
}
