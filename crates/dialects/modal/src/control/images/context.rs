//! Files of the client, for images and sandboxes. The client sends their contents before, each by its hash, and they
//! wait in the spool directory. The contents of different keys are kept apart.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use atoll_core::id::{KeyId, SandboxId};
use atoll_core::key::Scope;
use atoll_dialect_kit::kept::Kept;
use atoll_dialect_kit::memory::Held;
use atoll_dialect_kit::once::Limits;
use atoll_dialect_kit::status::Status;
use atoll_engine::{Engine, guest_error};
use atoll_guest_protocol::messages::Unpack;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;

use super::recipe::{Content, File, Recipe, weight};
use crate::auth::Asker;
use crate::grpc::{Fault, Result};
use crate::wire::apps::{
    MountBatchedCheckExistenceRequest, MountBatchedCheckExistenceResponse, MountFile,
    MountGetOrCreateRequest, MountGetOrCreateResponse, MountHandleMetadata, MountPutFileRequest,
    MountPutFileResponse,
};

/// How long a content is kept that its client does not send again.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// All contents together, bytes. A key has no more of them than it leaves to others.
const TOTAL_MAX_BYTES: u64 = 16 << 30;
/// Most files of one mount.
const FILES_MAX: usize = 20_000;
/// Mounts that are remembered.
const LIMITS: Limits = Limits {
    kept_ms: 24 * 3600 * 1000,
    of_key: 256,
    all: 1024,
    bytes_of_key: 64 << 20,
    bytes_all: 256 << 20,
};
/// Bytes of all files of one image or sandbox, which are in memory while they are packed.
const PACK_MAX_BYTES: usize = 256 << 20;
/// Bytes of a member of an archive beside its content, about.
const MEMBER_BYTES: usize = 1024;
/// Bytes of a piece on its way to a sandbox.
const PIECE_BYTES: usize = 1 << 20;

/// Lists of files, each for the key that sent it. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Mounts(Kept<Arc<[File]>>);

impl Default for Mounts {
    fn default() -> Self {
        Self(Kept::new(LIMITS))
    }
}

/// Bytes that are coming, beside those that are here: of a key, and of all.
#[derive(Debug, Clone, Copy)]
pub(in crate::control) struct Coming {
    pub(in crate::control) own: u64,
    pub(in crate::control) all: u64,
}

fn check_hash(hash: &str) -> Result<()> {
    let form = hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase());
    if form { Ok(()) } else { Err(Fault::invalid("sha256_hex: must be 64 hexadecimal digits")) }
}

fn dir(engine: &Engine) -> PathBuf {
    engine.spool_dir().join("modal")
}

fn place(engine: &Engine, key: &KeyId, hash: &str) -> PathBuf {
    dir(engine).join(format!("{key}-{hash}"))
}

/// A path below a directory, made from any path that a client sends.
///
/// # Errors
/// `INVALID_ARGUMENT` for a path that leads out of the directory.
pub(super) fn relative(path: &str) -> Result<String> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.is_empty() || parts.contains(&"..") || path.contains('\0') || path.len() > 4096 {
        let path = atoll_core::error::shorten(path);
        return Err(Fault::invalid(format!("filename: '{path}' is no path of a file")));
    }
    Ok(parts.join("/"))
}

fn broken(error: &dyn std::fmt::Display) -> Fault {
    tracing::error!(%error, "a client's file cannot be kept");
    Fault::new(Status::Internal, "the file cannot be kept")
}

async fn is_here(asker: &Asker, hash: &str) -> bool {
    tokio::fs::try_exists(place(asker.engine(), asker.key(), hash)).await.unwrap_or_default()
}

/// `MountBatchedCheckExistence`.
pub(in crate::control) async fn check_existence(
    asker: &Asker,
    request: MountBatchedCheckExistenceRequest,
) -> Result<MountBatchedCheckExistenceResponse> {
    asker.needs(Scope::Manage)?;
    let mut missing = Vec::new();
    for hash in request.sha256_hex_hashes.into_iter().take(FILES_MAX) {
        check_hash(&hash)?;
        if !is_here(asker, &hash).await {
            missing.push(hash);
        }
    }
    Ok(MountBatchedCheckExistenceResponse { missing_sha256_hex_hashes: missing })
}

/// `MountPutFile`: takes a content, or says whether it is here.
pub(in crate::control) async fn put_file(
    asker: &Asker,
    request: MountPutFileRequest,
) -> Result<MountPutFileResponse> {
    asker.needs(Scope::Manage)?;
    check_hash(&request.sha256_hex)?;
    // A client sends a content that it announced as a blob over HTTP, by its hash.
    let Some(data) = request.data else {
        return Ok(MountPutFileResponse { exists: is_here(asker, &request.sha256_hex).await });
    };
    if hex::encode(Sha256::digest(&data)) != request.sha256_hex {
        return Err(Fault::invalid("the content is not what its hash says"));
    }
    let engine = asker.engine();
    let bytes = data.len() as u64;
    let beside = beside(engine, asker.key(), Coming { own: bytes, all: bytes }).await?;
    let written = tokio::fs::write(&beside, &data).await.map_err(|error| broken(&error));
    let kept = match written {
        Ok(()) => put_in_place(engine, asker.key(), &request.sha256_hex, &beside).await,
        Err(fault) => Err(fault),
    };
    if let Err(fault) = kept {
        drop(tokio::fs::remove_file(&beside).await);
        return Err(fault);
    }
    Ok(MountPutFileResponse { exists: true })
}

/// The path at which a content may be received, once there is room for what is coming with it. Old files are removed.
///
/// # Errors
/// `RESOURCE_EXHAUSTED`.
pub(in crate::control) async fn beside(engine: &Engine, key: &KeyId, coming: Coming) -> Result<PathBuf> {
    let mut random = [0_u8; 8];
    getrandom::fill(&mut random).map_err(|error| broken(&error))?;
    let dir = dir(engine);
    let place = dir.join(format!("{key}-{}.part", hex::encode(random)));
    let own = format!("{key}-");
    let room = tokio::task::spawn_blocking(move || room(&dir, &own, coming)).await;
    if room.map_err(|error| broken(&error))?.map_err(|error| broken(&error))? {
        return Ok(place);
    }
    Err(Fault::new(Status::ResourceExhausted, "there are too many files; try again tomorrow"))
}

/// Removes old files; says whether there is room for what is coming: also for the key whose files' names begin with `own`.
fn room(dir: &Path, own: &str, coming: Coming) -> io::Result<bool> {
    std::fs::create_dir_all(dir)?;
    let (mut total, mut of_key) = (coming.all, coming.own);
    for entry in std::fs::read_dir(dir)?.flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        let age = metadata.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        if age.is_some_and(|age| age > KEPT) {
            drop(std::fs::remove_file(entry.path()));
        } else {
            total = total.saturating_add(metadata.len());
            if entry.file_name().to_string_lossy().starts_with(own) {
                of_key = of_key.saturating_add(metadata.len());
            }
        }
    }
    Ok(TOTAL_MAX_BYTES.checked_sub(total).is_some_and(|left| of_key <= left))
}

/// Puts a received content with this hash in its place.
///
/// # Errors
/// `INTERNAL`.
pub(in crate::control) async fn put_in_place(
    engine: &Engine,
    key: &KeyId,
    hash: &str,
    beside: &Path,
) -> Result<()> {
    tokio::fs::rename(beside, place(engine, key, hash)).await.map_err(|error| broken(&error))
}

/// Whether the caller has sent a content of this hash.
///
/// # Errors
/// `INVALID_ARGUMENT`.
pub(in crate::control) async fn is_sent(asker: &Asker, hash: &str) -> Result<bool> {
    check_hash(hash)?;
    Ok(is_here(asker, hash).await)
}

/// The content of this hash.
///
/// # Errors
/// `NOT_FOUND` for a content that the caller has not sent.
pub(in crate::control) async fn sent(asker: &Asker, hash: &str) -> Result<tokio::fs::File> {
    check_hash(hash)?;
    let opened = tokio::fs::File::open(place(asker.engine(), asker.key(), hash)).await;
    opened.map_err(|_missing| Fault::not_found(format!("the file with the hash {hash} was not sent")))
}

/// The first bytes of a content, so many at most.
///
/// # Errors
/// As reading does.
pub(in crate::control) async fn read_sent(asker: &Asker, hash: &str, most: usize) -> io::Result<Vec<u8>> {
    let file = tokio::fs::File::open(place(asker.engine(), asker.key(), hash)).await?;
    let mut bytes = Vec::new();
    file.take(most as u64).read_to_end(&mut bytes).await?;
    Ok(bytes)
}

/// `MountGetOrCreate`.
pub(in crate::control) async fn get_or_create_mount(
    asker: &Asker,
    request: MountGetOrCreateRequest,
) -> Result<MountGetOrCreateResponse> {
    asker.needs(Scope::Manage)?;
    if request.files.len() > FILES_MAX {
        return Err(Fault::invalid(format!("a mount may have {FILES_MAX} files")));
    }
    if request.files.is_empty() && !request.deployment_name.is_empty() {
        return Err(Fault::not_found("Mount not found: this server has none with a name"));
    }
    let file = |file: &MountFile| {
        check_hash(&file.sha256_hex)?;
        let mode = file.mode.filter(|mode| *mode != 0).unwrap_or(0o644) & 0o777;
        Ok(File { path: relative(&file.filename)?, content: Content::Sent(file.sha256_hex.clone()), mode })
    };
    let files: Arc<[File]> = request.files.iter().map(file).collect::<Result<Vec<_>>>()?.into();
    let text = format!("{files:?}");
    let mount_id = crate::control::id_of("mo", "atoll modal mount id", &[asker.key().as_str(), &text]);
    let bytes = weight(&files);
    if !asker.app.control.mounts.0.put(asker.key(), &mount_id, bytes, files) {
        return Err(Fault::new(
            Status::ResourceExhausted,
            "the names of the mount's files are too long together",
        ));
    }
    let checksum = hex::encode(Sha256::digest(text));
    let handle_metadata = Some(MountHandleMetadata { content_checksum_sha256_hex: checksum });
    Ok(MountGetOrCreateResponse { mount_id, handle_metadata })
}

/// The files of a mount; none where the id is empty.
///
/// # Errors
/// `NOT_FOUND`.
pub(super) fn mounted(asker: &Asker, id: &str) -> Result<Vec<File>> {
    if id.is_empty() {
        return Ok(Vec::new());
    }
    let files = asker.app.control.mounts.0.get(asker.key(), id);
    let files = files
        .ok_or_else(|| Fault::not_found(format!("Mount '{}' not found", atoll_core::error::shorten(id))))?;
    Ok(files.to_vec())
}

/// The context of a recipe as an archive, and the memory for it.
///
/// # Errors
/// `NOT_FOUND` for a content that was not sent; `RESOURCE_EXHAUSTED` when the files are too large together.
pub(super) async fn tar(asker: &Asker, recipe: &Recipe) -> Result<(io::Cursor<Vec<u8>>, Held)> {
    let parts: Vec<(String, File)> = recipe
        .parts
        .iter()
        .flat_map(|(dir, files)| files.iter().map(move |file| (format!("{dir}/{}", file.path), file.clone())))
        .collect();
    pack(asker, parts).await.map(|(archive, held)| (io::Cursor::new(archive), held))
}

async fn pack(asker: &Asker, files: Vec<(String, File)>) -> Result<(Vec<u8>, Held)> {
    let (engine, key) = (asker.engine().clone(), asker.key().clone());
    let mut held = asker.app.memory.hold(asker.caller());
    let work = move || -> Result<(Vec<u8>, Held)> {
        let mut archive = tar::Builder::new(Vec::new());
        let mut dirs = BTreeSet::new();
        for (path, file) in files {
            let data = read(&engine, &key, &file.content, &mut held)?;
            if archive.get_ref().len() + data.len() > PACK_MAX_BYTES {
                let why = format!("the files have more than {} MiB together", PACK_MAX_BYTES >> 20);
                return Err(Fault::new(Status::ResourceExhausted, why));
            }
            for (at, _) in path.match_indices('/') {
                if dirs.insert(path[..at].to_owned()) {
                    member(
                        &mut archive,
                        &format!("{}/", &path[..at]),
                        tar::EntryType::Directory,
                        0o755,
                        &[],
                    )?;
                }
            }
            member(&mut archive, &path, tar::EntryType::Regular, file.mode, &data)?;
            // It is in the archive now, and not beside it.
            held.give_back(data.len());
        }
        Ok((archive.into_inner().map_err(|error| broken(&error))?, held))
    };
    tokio::task::spawn_blocking(work).await.map_err(|error| broken(&error))?
}

fn member(
    archive: &mut tar::Builder<Vec<u8>>,
    path: &str,
    kind: tar::EntryType,
    mode: u32,
    data: &[u8],
) -> Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(data.len() as u64);
    header.set_uid(0);
    header.set_gid(0);
    archive.append_data(&mut header, path, data).map_err(|error| broken(&error))
}

/// A content, once there is memory for it and for its copy in the archive.
fn read(engine: &Engine, key: &KeyId, content: &Content, held: &mut Held) -> Result<Vec<u8>> {
    let hash = match content {
        Content::Here(bytes) => {
            held.grow(2 * bytes.len() + MEMBER_BYTES)?;
            return Ok(bytes.to_vec());
        }
        Content::Sent(hash) => hash,
    };
    let missing = |_error| Fault::not_found(format!("the file with the hash {hash} was not sent"));
    let file = std::fs::File::open(place(engine, key, hash)).map_err(missing)?;
    let size = file.metadata().map_err(|error| broken(&error))?.len().min(PACK_MAX_BYTES as u64);
    let bytes = usize::try_from(size).unwrap_or(PACK_MAX_BYTES);
    held.grow(2 * bytes + MEMBER_BYTES)?;
    let mut data = Vec::with_capacity(bytes);
    file.take(size).read_to_end(&mut data).map_err(|error| broken(&error))?;
    Ok(data)
}

/// Puts the files of mounts into a sandbox, below its root.
///
/// # Errors
/// As [`mounted`]; the guest's errors.
pub(crate) async fn put_mounts(asker: &Asker, sandbox: &SandboxId, mounts: &[String]) -> Result<()> {
    for id in mounts {
        let files = mounted(asker, id)?.into_iter().map(|file| (file.path.clone(), file)).collect();
        let (archive, _held) = pack(asker, files).await?;
        let archive = Bytes::from(archive);
        let lease = asker.engine().guest(sandbox).await?;
        let request = Unpack { path: "/".to_owned(), user: String::new() };
        let mut writer = lease.unpack(request).await.map_err(guest_error)?;
        for at in (0..archive.len()).step_by(PIECE_BYTES) {
            let piece = archive.slice(at..archive.len().min(at + PIECE_BYTES));
            writer.send(piece).await.map_err(guest_error)?;
        }
        writer.finish().await.map_err(guest_error)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_below() {
        assert_eq!(relative("/root/./a").unwrap(), "root/a");
        for bad in ["", "/", "../x", "a/../../b", "a\0"] {
            assert!(relative(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn hashes_are_no_paths() {
        assert!(check_hash(&"0a".repeat(32)).is_ok());
        for bad in ["", "../../x", &"0A".repeat(32), &"a".repeat(63)] {
            assert!(check_hash(bad).is_err(), "{bad}");
        }
    }
}
