//! The files of builds: archives that the clients send before, and find again by the hash that they give them.
//!
//! The address for an archive carries its own authority, because the clients send nothing else: a random text that is
//! good for one archive of one key, for a while. Archives of different keys are kept apart, because the server does not
//! check a client's hash.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek as _};
use std::path::{Path as FsPath, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{self, Poll, ready};
use std::time::{Duration, SystemTime};

use atoll_core::id::KeyId;
use atoll_core::limits::BUILD_CONTEXT_MAX_BYTES;
use atoll_core::shares::Shares;
use atoll_core::sharing::Needs;
use atoll_core::{Code, Error};
use atoll_dialect_kit::spool::receive_while;
use atoll_engine::{Engine, Grant, members};
use axum::body::Body;
use axum::extract::State;
use flate2::read::MultiGzDecoder;
use http::{Extensions, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, ReadBuf};
use tokio::task::JoinHandle;
use tokio_util::io::SyncIoBridge;

use crate::App;
use crate::error::{Failure, Result};
use crate::request::{Caller, Manage, Path, Query, Root};

/// How long an address is good, milliseconds.
const ADDRESS_MS: u64 = 3600 * 1000;
/// Most addresses at once.
const ADDRESSES_MAX: usize = 10_000;
/// Most addresses of one key: no key uses up the room that all share.
const OF_KEY_MAX: usize = 1000;
/// How long an archive is kept that its client does not send again.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// All archives together, bytes; those that are coming may have as many besides.
const TOTAL_MAX_BYTES: u64 = 16 << 30;
/// Archives of one key. The oldest are removed: their client sends them again. Those that are coming may have as many bytes
/// besides.
const OF_KEY: Most = Most { bytes: 4 << 30, count: 4096 };
/// Bytes of a context that are in the pipe.
const PIPE_BYTES: usize = 256 << 10;

/// How much a key may keep.
#[derive(Debug, Clone, Copy)]
struct Most {
    bytes: u64,
    count: usize,
}

/// The addresses to which archives may be sent now, and the bytes of those that are coming. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Addresses {
    by_token: Arc<Mutex<HashMap<String, Address>>>,
    coming: Arc<Mutex<Shares<KeyId>>>,
}

/// What has come of an archive, until it is kept or given up. What is here is looked at before it begins: so many that
/// come at the same time are counted as they come.
#[derive(Debug)]
struct Coming {
    of: Arc<Mutex<Shares<KeyId>>>,
    key: KeyId,
    bytes: usize,
}

impl Coming {
    const fn new(of: Arc<Mutex<Shares<KeyId>>>, key: KeyId) -> Self {
        Self { of, key, bytes: 0 }
    }

    fn shares(&self) -> MutexGuard<'_, Shares<KeyId>> {
        // Counts: a panic leaves them usable as they are.
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes room for so many bytes more.
    fn grow(&mut self, bytes: usize) -> Result<(), Error> {
        let is_taken = {
            let mut shares = self.shares();
            let own = (shares.own(&self.key) as u64).saturating_add(bytes as u64);
            let max = usize::try_from(TOTAL_MAX_BYTES).unwrap_or(usize::MAX);
            own <= OF_KEY.bytes && shares.take(&self.key, bytes, max)
        };
        if !is_taken {
            let message = "too many archives are being sent at the same time";
            return Err(Error::new(Code::LimitExceeded, message).hint("send them one after the other"));
        }
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        self.shares().give_back(&self.key, self.bytes);
    }
}

#[derive(Debug, Clone)]
struct Address {
    key: KeyId,
    /// The right of the key: without it, the client may not use the address any more.
    grant: Grant,
    place: PathBuf,
    until_ms: u64,
}

/// Checks the hash of an archive: it becomes part of a path.
pub(super) fn check_hash(hash: &str) -> Result<()> {
    let form = hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase());
    if form { Ok(()) } else { Err(Failure::bad("the hash of the files must be 64 hexadecimal digits")) }
}

fn place(engine: &Engine, key: &KeyId, hash: &str) -> PathBuf {
    engine.spool_dir().join("e2b").join(format!("{key}-{hash}.tar"))
}

/// `GET /templates/{template}/files/{hash}`: whether an archive is here, else the address to send it to.
pub(super) async fn link(
    caller: Caller<Manage>,
    root: Root,
    State(app): State<App>,
    Path((_, hash)): Path<(String, String)>,
) -> Result<(StatusCode, axum::Json<Value>)> {
    check_hash(&hash)?;
    let place = place(app.host.engine(), &caller.key(), &hash);
    if tokio::fs::try_exists(&place).await.unwrap_or_default() {
        return Ok((StatusCode::CREATED, axum::Json(json!({"present": true}))));
    }
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(|error| broken(&error))?;
    let token = blake3::Hash::from_bytes(bytes).to_hex().to_string();
    let now = app.host.engine().now_ms();
    {
        let mut table = app.addresses.by_token.lock().unwrap_or_else(PoisonError::into_inner);
        table.retain(|_, address| address.until_ms > now);
        let own = table.values().filter(|address| address.key == caller.key()).count();
        if own >= OF_KEY_MAX || table.len() >= ADDRESSES_MAX {
            return Err(Failure::new(StatusCode::TOO_MANY_REQUESTS, "too many uploads are under way"));
        }
        let grant = caller.grant().clone();
        table.insert(token.clone(), Address { key: caller.key(), grant, place, until_ms: now + ADDRESS_MS });
    }
    let url = format!("{}/uploads?token={token}", root.0);
    Ok((StatusCode::CREATED, axum::Json(json!({"present": false, "url": url}))))
}

fn broken(error: &dyn std::fmt::Display) -> Failure {
    tracing::error!(%error, "an archive cannot be kept");
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "the archive cannot be kept")
}

/// The token of an address. It is in the query, which is not logged.
#[derive(Debug, serde::Deserialize)]
pub(super) struct Upload {
    token: String,
}

/// `PUT /uploads`: takes an archive.
pub(super) async fn upload(
    State(app): State<App>,
    Query(Upload { token }): Query<Upload>,
    request: Extensions,
    body: Body,
) -> Result<StatusCode> {
    let address = {
        let mut table = app.addresses.by_token.lock().unwrap_or_else(PoisonError::into_inner);
        // An address is good for one try: a client that needs another try asks for another address.
        table.remove(&token).filter(|address| address.until_ms > app.host.engine().now_ms())
    };
    let address = address.ok_or_else(|| {
        Failure::new(StatusCode::FORBIDDEN, "this address is not good any more: ask for another")
    })?;
    app.host.engine().recheck(&address.grant, Needs::MANAGE)?;
    app.host.fill_signed_object(&request, address.grant, &token)?;
    let dir = address.place.parent().map(FsPath::to_path_buf).unwrap_or_default();
    tokio::fs::create_dir_all(&dir).await.map_err(|error| broken(&error))?;
    make_room(&dir, &address.key).await?;
    let beside = address.place.with_extension(format!("{}.part", &token[..16.min(token.len())]));
    let mut coming = Coming::new(Arc::clone(&app.addresses.coming), address.key.clone());
    let received = receive_while(&beside, body, BUILD_CONTEXT_MAX_BYTES, |piece| coming.grow(piece.len()));
    let kept = match received.await {
        Ok(_size) => tokio::fs::rename(&beside, &address.place).await.map_err(|error| broken(&error)),
        Err(error) => Err(Failure::of(&error)),
    };
    drop(coming);
    if kept.is_err() {
        drop(tokio::fs::remove_file(&beside).await);
    }
    kept?;
    // Others may have come meanwhile.
    if let Err(full) = make_room(&dir, &address.key).await {
        drop(tokio::fs::remove_file(&address.place).await);
        return Err(full);
    }
    Ok(StatusCode::OK)
}

/// Removes old archives, and the oldest of a key that has too many bytes; refuses when all archives together are too
/// large.
async fn make_room(dir: &FsPath, key: &KeyId) -> Result<()> {
    let (dir, own) = (dir.to_path_buf(), format!("{key}-"));
    let work = move || tidy(&dir, &own, OF_KEY);
    let total = tokio::task::spawn_blocking(work).await.map_err(|error| broken(&error))?;
    if total.map_err(|error| broken(&error))? > TOTAL_MAX_BYTES {
        return Err(Failure::new(
            StatusCode::INSUFFICIENT_STORAGE,
            "there are too many archives; try again tomorrow",
        ));
    }
    Ok(())
}

/// Tidies a directory; gives the bytes that are left in it. Names of files that belong to one key begin with `own`.
fn tidy(dir: &FsPath, own: &str, most: Most) -> io::Result<u64> {
    let (mut total, mut of_key, mut own_bytes) = (0, Vec::new(), 0);
    for entry in std::fs::read_dir(dir)?.flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        let Ok(modified) = metadata.modified() else { continue };
        if SystemTime::now().duration_since(modified).is_ok_and(|age| age > KEPT) {
            drop(std::fs::remove_file(entry.path()));
            continue;
        }
        total += metadata.len();
        let name = entry.file_name();
        // An archive that is still coming is not removed: its client is sending it.
        if name.to_string_lossy().starts_with(own) && entry.path().extension() == Some("tar".as_ref()) {
            own_bytes += metadata.len();
            of_key.push((modified, metadata.len(), entry.path()));
        }
    }
    of_key.sort_unstable();
    let mut own_count = of_key.len();
    for (_, bytes, path) in of_key {
        if own_bytes <= most.bytes && own_count <= most.count {
            break;
        }
        if std::fs::remove_file(path).is_ok() {
            own_bytes -= bytes;
            own_count -= 1;
            total -= bytes;
        }
    }
    Ok(total)
}

/// The archives of a build, as one context: the files of each below its hash.
#[derive(Debug)]
pub(super) struct Context {
    places: Vec<(String, PathBuf)>,
}

impl Context {
    /// Looks whether the archives are here. Each is opened when its turn comes to be read: a build has hundreds, and a key
    /// has many builds.
    ///
    /// # Errors
    /// 400 for an archive that was not sent.
    pub(super) async fn find(engine: &Engine, key: &KeyId, hashes: &[String]) -> Result<Self> {
        let mut places = Vec::with_capacity(hashes.len());
        for hash in hashes {
            let place = place(engine, key, hash);
            if !tokio::fs::try_exists(&place).await.unwrap_or_default() {
                return Err(Failure::bad(format!("the files with the hash {hash} were not uploaded")));
            }
            places.push((hash.clone(), place));
        }
        Ok(Self { places })
    }

    /// One archive with the members of all, made while it is read. Reading it fails when one of them is malformed, or is not
    /// here any more.
    pub(super) fn into_tar(self) -> impl AsyncRead + Send + Unpin + 'static {
        let (reader, writer) = tokio::io::duplex(PIPE_BYTES);
        let writing = tokio::task::spawn_blocking(move || self.write(SyncIoBridge::new(writer)));
        reader.chain(Written(Some(writing)))
    }

    fn write(self, to: impl io::Write) -> io::Result<()> {
        let mut all = tar::Builder::new(to);
        for (hash, place) in self.places {
            append(&mut all, &hash, File::open(place)?)?;
        }
        all.finish()
    }
}

/// What follows the bytes of an archive: nothing, or the reason for which they are not all. An archive that ends early is whole
/// for who reads it.
struct Written(Option<JoinHandle<io::Result<()>>>);

impl AsyncRead for Written {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut task::Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(writing) = &mut self.0 else { return Poll::Ready(Ok(())) };
        let written = ready!(Pin::new(writing).poll(cx));
        self.0 = None;
        Poll::Ready(written.unwrap_or_else(|panicked| Err(io::Error::other(panicked))))
    }
}

/// Puts the members of an archive, which may be gzipped, below a directory.
fn append<W: io::Write>(all: &mut tar::Builder<W>, below: &str, mut file: File) -> io::Result<()> {
    let mut magic = [0_u8; 2];
    let len = file.read(&mut magic)?;
    file.rewind()?;
    let plain: Box<dyn Read> = match &magic[..len] {
        [0x1f, 0x8b] => Box::new(MultiGzDecoder::new(io::BufReader::new(file))),
        _ => Box::new(io::BufReader::new(file)),
    };
    members(
        plain.take(BUILD_CONTEXT_MAX_BYTES),
        |error| error,
        |entry| {
            let path = FsPath::new(below).join(entry.path()?.strip_prefix("/").unwrap_or(&entry.path()?));
            let mut header = entry.header().clone();
            match entry.link_name()? {
                // The target of a hard link is moved below the directory, too; the target of a symbolic link stays as
                // it is.
                Some(target) if header.entry_type() == tar::EntryType::Link => {
                    all.append_link(&mut header, path, FsPath::new(below).join(target))
                }
                Some(target) => all.append_link(&mut header, path, target),
                None => all.append_data(&mut header, path, entry),
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn the_oldest_archives_of_a_key_go_first() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        for (name, bytes, age_s) in [
            ("a-1.tar", 10, 30),
            ("a-2.tar", 10, 20),
            ("a-3.tar", 10, 10),
            ("b-1.tar", 100, 40),
            ("b-2.tar", 7, 90_000),
        ] {
            let path = dir.path().join(name);
            std::fs::write(&path, vec![0; bytes]).unwrap();
            File::options()
                .write(true)
                .open(path)
                .unwrap()
                .set_modified(now - Duration::from_secs(age_s))
                .unwrap();
        }
        let most = Most { bytes: 20, count: 3 };
        assert_eq!(tidy(dir.path(), "a-", most).unwrap(), 120);
        let left = |name: &str| dir.path().join(name).try_exists().unwrap();
        assert!(
            !left("a-1.tar") && left("a-2.tar") && left("a-3.tar") && left("b-1.tar") && !left("b-2.tar")
        );
        tidy(dir.path(), "a-", Most { count: 1, ..most }).unwrap();
        assert!(!left("a-2.tar") && left("a-3.tar") && left("b-1.tar"));
    }

    #[test]
    fn archives_that_come_at_the_same_time_are_counted() {
        let (of, one) = (Arc::<Mutex<Shares<KeyId>>>::default(), KeyId::from_parts(1, 1));
        let coming = |key: &KeyId| Coming::new(Arc::clone(&of), key.clone());
        let most = usize::try_from(OF_KEY.bytes).unwrap();
        let (mut first, mut second) = (coming(&one), coming(&one));
        first.grow(most - 1).unwrap();
        second.grow(1).unwrap();
        assert_eq!(second.grow(1).unwrap_err().code, Code::LimitExceeded);
        let mut others: Vec<Coming> = (2..7).map(|key| coming(&KeyId::from_parts(1, key))).collect();
        let has = |other: &mut Coming| (0..1 << 10).take_while(|_| other.grow(4 << 20).is_ok()).count();
        let all: usize = others.iter_mut().map(has).sum();
        assert!((all << 22) + most <= usize::try_from(TOTAL_MAX_BYTES).unwrap(), "{all}");
        assert!(others[4].bytes > 0, "some is left to each");
        drop(others);
        drop(first);
        second.grow(most - 1).unwrap();
    }

    /// The members that one archive adds to a build's context.
    fn appended(archive: &[u8]) -> io::Result<Vec<String>> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(archive).unwrap();
        file.rewind().unwrap();
        let mut all = tar::Builder::new(Vec::new());
        append(&mut all, "hash", file)?;
        let all = all.into_inner().unwrap();
        let mut found = tar::Archive::new(&all[..]);
        let names = found.entries()?.map(|entry| Ok(entry?.path()?.display().to_string()));
        names.collect()
    }

    #[tokio::test]
    async fn archives_are_read_one_after_the_other_and_a_missing_one_is_no_end() {
        let dir = tempfile::tempdir().unwrap();
        let places: Vec<(String, PathBuf)> = ["a", "b"]
            .map(|name| {
                let mut tar = tar::Builder::new(Vec::new());
                let mut header = tar::Header::new_gnu();
                header.set_size(2);
                header.set_mode(0o644);
                tar.append_data(&mut header, "file", &b"in"[..]).unwrap();
                let place = dir.path().join(name);
                std::fs::write(&place, tar.into_inner().unwrap()).unwrap();
                (name.to_owned(), place)
            })
            .into();
        let read = async || {
            let (mut all, mut tar) = (Vec::new(), Context { places: places.clone() }.into_tar());
            tar.read_to_end(&mut all).await.map(|_| all)
        };
        let whole = read().await.unwrap();
        let mut found = tar::Archive::new(&whole[..]);
        let names =
            found.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string());
        assert_eq!(names.collect::<Vec<_>>(), ["a/file", "b/file"]);
        // The second one was removed meanwhile: what comes of the first is not all.
        std::fs::remove_file(dir.path().join("b")).unwrap();
        assert_eq!(read().await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    fn gzipped(tar: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(tar).unwrap();
        packer.finish().unwrap()
    }

    #[test]
    fn an_archive_that_is_all_name() {
        let named = |bytes: usize| {
            let mut tar = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_size(2);
            header.set_mode(0o644);
            tar.append_data(&mut header, "x/".repeat(bytes / 2) + "end", &b"in"[..]).unwrap();
            tar.into_inner().unwrap()
        };
        let long = appended(&gzipped(&named(3000))).unwrap();
        assert!(long.len() == 1 && long[0].starts_with("hash/x/x/") && long[0].ends_with("/end"));
        let refused = appended(&gzipped(&named(2 << 20))).unwrap_err();
        assert!(refused.to_string().contains("longer than 1 MiB"), "{refused}");
    }

    #[test]
    fn hashes_are_no_paths() {
        assert!(check_hash(&"0a".repeat(32)).is_ok());
        for bad in ["", "../../x", &"0A".repeat(32), &"g".repeat(64), &"a".repeat(63)] {
            assert!(check_hash(bad).is_err(), "{bad}");
        }
    }
}
