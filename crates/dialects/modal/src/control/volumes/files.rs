//! The files in a volume, without a sandbox. Sandboxes wrote them, so they are hostile; the engine keeps every path
//! within the volume.
//!
//! Each call exists twice, for volumes of both versions, with the same fields. But in one version clients send files
//! whole, by the hash of their content, and in the other by the hashes of their blocks.

use std::collections::{BTreeSet, VecDeque};

use atoll_core::Code;
use atoll_core::id::VolumeId;
use atoll_core::key::Scope;
use atoll_core::sharing::Needs;
use atoll_core::volume::inner_path;
use atoll_dialect_kit::status::Status;
use atoll_engine::{Grant, Resource, Target, VolumeDirectory, VolumeFile, VolumeFileKind, VolumeWrite};
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _};
use tokio::io::AsyncRead;
use tokio_util::io::StreamReader;

use crate::auth::Asker;
use crate::control::content::{self, BLOCK_BYTES};
use crate::control::{Done, images};
use crate::grpc::{Fault, Result};
use crate::ids;
use crate::wire::common::Empty;
use crate::wire::content::{
    FileEntry, VolumeCopyFilesRequest, VolumeGetFile2Request, VolumeGetFile2Response, VolumeListFilesRequest,
    VolumeListFilesResponse, VolumePutFiles2Request, VolumePutFiles2RequestFile as BlocksFile,
    VolumePutFiles2Response, VolumePutFiles2ResponseMissingBlock as MissingBlock, VolumePutFilesRequest,
    VolumeRemoveFileRequest,
};

/// Most entries of one listing.
const LIST_MAX: usize = 50_000;
/// Bytes of all paths of one listing.
const PATHS_MAX_BYTES: usize = 16 << 20;
/// Entries of one message of it.
const BATCH: usize = 1000;
/// Files of one call.
const FILES_MAX: usize = 20_000;
/// Blocks of one file.
const BLOCKS_MAX: usize = 8192;
/// Permissions when the client gives none.
const FILE_MODE: u32 = 0o644;

/// `FileEntry.FileType`.
const fn kind(kind: VolumeFileKind) -> i32 {
    match kind {
        VolumeFileKind::File => 1,
        VolumeFileKind::Directory => 2,
        VolumeFileKind::Symlink => 3,
        VolumeFileKind::Other => 0,
    }
}

async fn volume(asker: &Asker, text: &str, scope: Scope) -> Result<(VolumeId, Grant)> {
    asker.needs(scope)?;
    let id = ids::parse_volume(text)?;
    let grant = asker.grant(Needs::scope(scope), Target::Volume(id.as_str())).await?;
    match grant.resource() {
        Resource::Volume(id) => Ok((id.clone(), grant)),
        _ => Err(VolumeId::not_found(text).into()),
    }
}

/// A path without its beginning slash; empty for the root.
fn inner(path: &str) -> Result<String> {
    let path = inner_path(if path.is_empty() { "/" } else { path })?;
    Ok(if path == "." { String::new() } else { path })
}

fn entry(path: String, file: &VolumeFile) -> FileEntry {
    let mtime = u64::try_from(file.modified_ms / 1000).unwrap_or_default();
    FileEntry { path, r#type: kind(file.kind), mtime, size: file.size }
}

/// `VolumeListFiles`, `VolumeListFiles2`.
pub(in crate::control) async fn list(
    asker: &Asker,
    request: VolumeListFilesRequest,
) -> Result<BoxStream<'static, Result<VolumeListFilesResponse>>> {
    let (id, _) = volume(asker, &request.volume_id, Scope::Read).await?;
    let path = inner(&request.path)?;
    let top = asker.engine().stat_in_volume(&id, &path_of(&path)).await?;
    let mut found: Vec<FileEntry> = if top.kind == VolumeFileKind::Directory {
        let all = entries(asker, &id, path, request.recursive).await?;
        all.into_iter().map(|(path, file)| entry(path, &file)).collect()
    } else {
        vec![entry(path, &top)]
    };
    if let Some(most) = request.max_entries.filter(|most| *most > 0) {
        found.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    }
    let batches: Vec<_> =
        found.chunks(BATCH).map(|batch| Ok(VolumeListFilesResponse { entries: batch.to_vec() })).collect();
    Ok(stream::iter(batches).boxed())
}

fn path_of(inner: &str) -> String {
    format!("/{inner}")
}

/// The entries of a directory, and with `recursive` of those below it, with whole paths.
async fn entries(
    asker: &Asker,
    id: &VolumeId,
    top: String,
    recursive: bool,
) -> Result<Vec<(String, VolumeFile)>> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    let mut left = VecDeque::from([top]);
    while let Some(dir) = left.pop_front() {
        let room = LIST_MAX - found.len();
        let (files, more) = match asker.engine().list_in_volume(id, &path_of(&dir), room).await {
            Ok(listed) => listed,
            // The directory was removed meanwhile, or its name is no text.
            Err(error)
                if !found.is_empty()
                    && matches!(error.code, Code::FileNotFound | Code::NotADirectory | Code::PathInvalid) =>
            {
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        for file in files {
            let path = if dir.is_empty() { file.path.clone() } else { format!("{dir}/{}", file.path) };
            if recursive && file.kind == VolumeFileKind::Directory {
                left.push_back(path.clone());
            }
            bytes += path.len();
            found.push((path, file));
        }
        if more || bytes > PATHS_MAX_BYTES {
            return Err(Fault::invalid("there are too many entries: list directories below"));
        }
    }
    Ok(found)
}

/// `VolumeGetFile2`, of both versions: the addresses of the blocks of a file.
pub(in crate::control) async fn get(
    asker: &Asker,
    request: VolumeGetFile2Request,
) -> Result<VolumeGetFile2Response> {
    let (id, grant) = volume(asker, &request.volume_id, Scope::Read).await?;
    let path = path_of(&inner(&request.path)?);
    let file = asker.engine().read_in_volume(&id, &path).await?;
    let size = file.metadata().map(|metadata| metadata.len()).unwrap_or_default();
    let start = request.start.min(size);
    let len = if request.len == 0 { size - start } else { request.len.min(size - start) };
    let get_urls = content::addresses_to_read(asker, grant, id, path, start, len)?;
    Ok(VolumeGetFile2Response { get_urls, size, start, len })
}

/// `VolumeRemoveFile`, `VolumeRemoveFile2`.
pub(in crate::control) async fn remove(asker: &Asker, request: VolumeRemoveFileRequest) -> Done {
    let (id, _) = volume(asker, &request.volume_id, Scope::Exec).await?;
    let path = path_of(&inner(&request.path)?);
    asker.engine().remove_in_volume(&id, &path, request.recursive).await?;
    Ok(Empty {})
}

const fn write(mode: Option<u32>, replace: bool) -> VolumeWrite {
    let mode = match mode {
        Some(mode) if mode & 0o777 != 0 => mode & 0o777,
        _ => FILE_MODE,
    };
    VolumeWrite { mode, uid: 0, gid: 0, parents: true, replace }
}

/// `VolumeCopyFiles`, `VolumeCopyFiles2`: as `cp` does.
pub(in crate::control) async fn copy(asker: &Asker, request: VolumeCopyFilesRequest) -> Done {
    let (id, _) = volume(asker, &request.volume_id, Scope::Exec).await?;
    if request.src_paths.len() > FILES_MAX {
        return Err(Fault::invalid(format!("src_paths: at most {FILES_MAX}")));
    }
    let to = inner(&request.dst_path)?;
    let into = match asker.engine().stat_in_volume(&id, &path_of(&to)).await {
        Ok(there) => there.kind == VolumeFileKind::Directory,
        Err(error) if error.code == Code::FileNotFound => request.src_paths.len() > 1,
        Err(error) => return Err(error.into()),
    };
    for source in &request.src_paths {
        let from = inner(source)?;
        let name = from.rsplit('/').next().unwrap_or_default();
        let to = match (into, to.is_empty()) {
            (true, true) => name.to_owned(),
            (true, false) => format!("{to}/{name}"),
            (false, _) => to.clone(),
        };
        if to == from || to.starts_with(&format!("{from}/")) || from.is_empty() {
            return Err(Fault::invalid(format!("'{source}' cannot be copied into itself")));
        }
        copy_one(asker, &id, &from, &to, request.recursive).await?;
    }
    Ok(Empty {})
}

async fn copy_one(asker: &Asker, id: &VolumeId, from: &str, to: &str, recursive: bool) -> Result<()> {
    let source = asker.engine().stat_in_volume(id, &path_of(from)).await?;
    if source.kind != VolumeFileKind::Directory {
        return copy_file(asker, id, from, to, source.mode).await;
    }
    if !recursive {
        return Err(Fault::invalid(format!("'{from}' is a directory: copy it with recursive=True")));
    }
    make_directory(asker, id, to, source.mode).await?;
    for (path, file) in entries(asker, id, from.to_owned(), true).await? {
        let to = format!("{to}{}", &path[from.len()..]);
        match file.kind {
            VolumeFileKind::Directory => make_directory(asker, id, &to, file.mode).await?,
            VolumeFileKind::File => copy_file(asker, id, &path, &to, file.mode).await?,
            VolumeFileKind::Symlink | VolumeFileKind::Other => {}
        }
    }
    Ok(())
}

async fn make_directory(asker: &Asker, id: &VolumeId, path: &str, mode: u32) -> Result<()> {
    let new = VolumeDirectory { mode: mode & 0o777, uid: 0, gid: 0, parents: true };
    asker.engine().make_directory_in_volume(id, &path_of(path), new).await?;
    Ok(())
}

async fn copy_file(asker: &Asker, id: &VolumeId, from: &str, to: &str, mode: u32) -> Result<()> {
    asker.recheck()?;
    let file = asker.engine().read_in_volume(id, &path_of(from)).await?;
    let content = Box::new(tokio::fs::File::from_std(file));
    asker.engine().write_in_volume(id, &path_of(to), write(Some(mode), true), content).await?;
    Ok(())
}

/// Refuses files that are there already.
async fn check_new(asker: &Asker, id: &VolumeId, paths: impl Iterator<Item = &String>) -> Result<()> {
    for path in paths {
        if asker.engine().stat_in_volume(id, path).await.is_ok() {
            return Err(Fault::new(Status::AlreadyExists, format!("'{path}' exists already")));
        }
    }
    Ok(())
}

/// `VolumePutFiles`: writes files whose contents the client sent before, each as a whole.
pub(in crate::control) async fn put(asker: &Asker, request: VolumePutFilesRequest) -> Done {
    let (id, _) = volume(asker, &request.volume_id, Scope::Exec).await?;
    if request.files.len() > FILES_MAX {
        return Err(Fault::invalid(format!("files: at most {FILES_MAX}")));
    }
    let paths = request.files.iter().map(|file| Ok(path_of(&inner(&file.filename)?)));
    let paths = paths.collect::<Result<Vec<String>>>()?;
    if request.disallow_overwrite_existing_files {
        check_new(asker, &id, paths.iter()).await?;
    }
    for (file, path) in request.files.iter().zip(&paths) {
        asker.recheck()?;
        let content = images::sent(asker, &file.sha256_hex).await?;
        let write = write(file.mode, !request.disallow_overwrite_existing_files);
        asker.engine().write_in_volume(&id, path, write, Box::new(content)).await?;
    }
    Ok(Empty {})
}

/// `VolumePutFiles2`: files by the hashes of their blocks. Tells the client which blocks are missing, and where to send
/// them; once none is missing, it writes the files.
pub(in crate::control) async fn put_blocks(
    asker: &Asker,
    request: VolumePutFiles2Request,
) -> Result<VolumePutFiles2Response> {
    let (id, _) = volume(asker, &request.volume_id, Scope::Exec).await?;
    if request.files.len() > FILES_MAX {
        return Err(Fault::invalid(format!("files: at most {FILES_MAX}")));
    }
    let paths = request.files.iter().map(|file| Ok(path_of(&inner(&file.path)?)));
    let paths = paths.collect::<Result<Vec<String>>>()?;
    if request.disallow_overwrite_existing_files {
        check_new(asker, &id, paths.iter()).await?;
    }
    let missing_blocks = missing(asker, &request.files).await?;
    if !missing_blocks.is_empty() {
        return Ok(VolumePutFiles2Response { missing_blocks });
    }
    for (file, path) in request.files.into_iter().zip(&paths) {
        let write = write(file.mode, !request.disallow_overwrite_existing_files);
        asker.recheck()?;
        let content = whole(asker, file);
        asker.engine().write_in_volume(&id, path, write, content).await?;
    }
    Ok(VolumePutFiles2Response { missing_blocks: Vec::new() })
}

async fn missing(asker: &Asker, files: &[BlocksFile]) -> Result<Vec<MissingBlock>> {
    let mut missing = Vec::new();
    let mut told = BTreeSet::new();
    for (file_index, file) in files.iter().enumerate() {
        let expected = usize::try_from(file.size.div_ceil(BLOCK_BYTES)).unwrap_or(usize::MAX);
        if file.blocks.len() != expected || expected > BLOCKS_MAX {
            let why = format!("'{}': has other blocks than its size says, or too many", file.path);
            return Err(Fault::invalid(why));
        }
        for (block_index, block) in file.blocks.iter().enumerate() {
            let hash = hex::encode(&block.contents_sha256);
            if images::is_sent(asker, &hash).await? || !told.insert(hash.clone()) {
                continue;
            }
            let put_url = content::address_to_send(asker, hash, BLOCK_BYTES).await?;
            let (file_index, block_index) = (file_index as u64, block_index as u64);
            missing.push(MissingBlock { file_index, block_index, put_url });
        }
    }
    Ok(missing)
}

/// The content of a file, block by block. Zeros at the end of a block are not sent.
fn whole(asker: &Asker, file: BlocksFile) -> Box<dyn AsyncRead + Send + Unpin> {
    let (asker, size) = (asker.clone(), file.size);
    let blocks = stream::iter(file.blocks.into_iter().enumerate()).then(move |(index, block)| {
        let asker = asker.clone();
        async move {
            let begin = (index as u64).saturating_mul(BLOCK_BYTES);
            let len = usize::try_from(size.saturating_sub(begin).min(BLOCK_BYTES)).unwrap_or_default();
            let mut content = images::read_sent(&asker, &hex::encode(&block.contents_sha256), len).await?;
            content.resize(len, 0);
            Ok::<Bytes, std::io::Error>(content.into())
        }
    });
    Box::new(StreamReader::new(blocks.boxed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        for (path, within) in [("", ""), ("/", ""), ("/a/b", "a/b"), ("a/b/", "a/b")] {
            assert_eq!(inner(path).unwrap(), within, "{path}");
        }
        assert!(inner("../a").is_err() && inner("a\0b").is_err());
    }

    #[test]
    fn permissions() {
        assert_eq!((write(Some(0o100_755), true).mode, write(None, false).mode), (0o755, FILE_MODE));
    }
}
