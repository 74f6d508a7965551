//! `filesystem.Filesystem`.

mod entry;
mod share;
mod watch;
mod watchers;

use atoll_core::{Code, Error};
use atoll_engine::{GuestLease, guest_error};
use atoll_guest_protocol::messages::{Describe, FileInfo, FileKind, List, Mkdir, Remove, Rename};
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use prost::Message as _;

use super::process::keepalive;
use super::{Envd, paths};
use crate::connect::{Fault, Kind, Requests, streamed, timeout, unary};
use crate::wire::filesystem::{
    Empty, EntryInfo, EntryResponse, ListDirRequest, ListDirResponse, MoveRequest, PathRequest,
};

pub(crate) use entry::ATTRIBUTES;
pub(crate) use watchers::Watchers;

/// Most entries of one listing.
const ENTRIES_MAX: u32 = 100_000;
/// Most bytes of what is said of them: each may have 64 KiB of metadata.
const LISTED_MAX_BYTES: usize = 64 << 20;

/// Serves one call.
pub(crate) async fn call(envd: Envd, method: &str, request: Request) -> Response {
    match method {
        "Stat" => unary(request, async |message| stat(&envd, message).await).await,
        "MakeDir" => unary(request, async |message| make_dir(&envd, message).await).await,
        "Move" => unary(request, async |message| rename(&envd, message).await).await,
        "ListDir" => unary(request, async |message| list_dir(&envd, message).await).await,
        "Remove" => unary(request, async |message| remove(&envd, message).await).await,
        "WatchDir" => {
            let keepalive = keepalive(request.headers());
            match timeout(request.headers()) {
                Ok(limit) => {
                    let begin = async |mut requests: Requests<_>| {
                        let request = requests.next().await?.unwrap_or_default();
                        watch::stream(&envd, &request, limit, keepalive).await
                    };
                    streamed(request, begin).await
                }
                Err(fault) => fault.into_response(),
            }
        }
        "CreateWatcher" => unary(request, async |message| watchers::create(&envd, &message).await).await,
        "GetWatcherEvents" => unary(request, async |message| watchers::events(&envd, message).await).await,
        "RemoveWatcher" => unary(request, async |message| watchers::remove(&envd, &message)).await,
        _ => super::no_such_method(method),
    }
}

async fn guest(envd: &Envd) -> Result<GuestLease, Fault> {
    envd.guest().await.map_err(|error| Fault::of(&error))
}

/// The entry of one path.
///
/// # Errors
/// `not_found`.
pub(crate) async fn described(guest: &GuestLease, path: &str) -> Result<EntryInfo, Fault> {
    let request = Describe { paths: vec![path.to_owned()], attributes: ATTRIBUTES.to_owned() };
    let found = guest.describe(request).await.map_err(|error| Fault::of(&guest_error(error)))?;
    let entry = found.into_iter().next().and_then(|described| entry::entry(path, described));
    entry.ok_or_else(|| Fault::new(Kind::NotFound, format!("file not found: path '{path}' does not exist")))
}

/// The file that a path leads to, through links.
async fn kind(guest: &GuestLease, path: &str) -> Result<Option<FileInfo>, Fault> {
    let request = atoll_guest_protocol::messages::Stat { path: path.to_owned(), no_follow: false };
    match guest.stat(request).await.map_err(guest_error) {
        Ok(info) => Ok(Some(info)),
        Err(Error { code: Code::FileNotFound | Code::NotADirectory, .. }) => Ok(None),
        Err(error) => Err(Fault::of(&error)),
    }
}

async fn stat(envd: &Envd, request: PathRequest) -> Result<EntryResponse, Fault> {
    let guest = guest(envd).await?;
    let path = paths::resolve(envd, &guest, &request.path).await?;
    Ok(EntryResponse { entry: Some(described(&guest, &path).await?) })
}

async fn make_dir(envd: &Envd, request: PathRequest) -> Result<EntryResponse, Fault> {
    let guest = guest(envd).await?;
    let path = paths::resolve(envd, &guest, &request.path).await?;
    if let Some(info) = kind(&guest, &path).await? {
        return Err(if info.kind() == FileKind::Directory {
            Fault::new(Kind::AlreadyExists, format!("directory already exists: {path}"))
        } else {
            Fault::new(
                Kind::InvalidArgument,
                format!("path already exists but it is not a directory: {path}"),
            )
        });
    }
    make_directories(envd, &guest, &path).await?;
    Ok(EntryResponse { entry: Some(described(&guest, &path).await?) })
}

async fn make_directories(envd: &Envd, guest: &GuestLease, path: &str) -> Result<(), Fault> {
    let user = envd.owner().map_err(|error| Fault::of(&error))?;
    let request = Mkdir { path: path.to_owned(), mode: 0, user, parents: true };
    guest.mkdir(request).await.map_err(|error| envd.fault(&guest_error(error)))
}

async fn rename(envd: &Envd, request: MoveRequest) -> Result<EntryResponse, Fault> {
    let guest = guest(envd).await?;
    let from = paths::resolve(envd, &guest, &request.source).await?;
    let to = paths::resolve(envd, &guest, &request.destination).await?;
    let order = || Rename { from: from.clone(), to: to.clone(), no_replace: false };
    let mut moved = guest.rename(order()).await.map_err(guest_error);
    // The missing path may be the directory above the destination.
    if moved.as_ref().is_err_and(|error| error.code == Code::FileNotFound) {
        // Fails when the source itself is missing; a link counts.
        described(&guest, &from).await?;
        if let Some((above, _)) = to.rsplit_once('/').filter(|(above, _)| !above.is_empty()) {
            make_directories(envd, &guest, above).await?;
        }
        moved = guest.rename(order()).await.map_err(guest_error);
    }
    moved.map_err(|error| envd.fault(&error))?;
    Ok(EntryResponse { entry: Some(described(&guest, &to).await?) })
}

async fn remove(envd: &Envd, request: PathRequest) -> Result<Empty, Fault> {
    let guest = guest(envd).await?;
    let path = paths::resolve(envd, &guest, &request.path).await?;
    match guest.remove(Remove { path, recursive: true }).await.map_err(guest_error) {
        // The client wants the path gone, and it is.
        Err(error) if !matches!(error.code, Code::FileNotFound | Code::NotADirectory) => {
            Err(envd.fault(&error))
        }
        Ok(()) | Err(_) => Ok(Empty {}),
    }
}

async fn list_dir(envd: &Envd, request: ListDirRequest) -> Result<ListDirResponse, Fault> {
    let guest = guest(envd).await?;
    let path = paths::resolve(envd, &guest, &request.path).await?;
    let list = List { path: path.clone(), depth: request.depth.max(1), max_entries: ENTRIES_MAX };
    let (infos, cut) = guest.list(list).await.map_err(|error| match guest_error(error) {
        Error { code: Code::FileNotFound, .. } => {
            Fault::new(Kind::NotFound, format!("path not found: '{path}'"))
        }
        Error { code: Code::NotADirectory, .. } => {
            Fault::new(Kind::InvalidArgument, format!("path is not a directory: {path}"))
        }
        error => envd.fault(&error),
    })?;
    if cut {
        return Err(Fault::new(
            Kind::ResourceExhausted,
            format!("the directory has more than {ENTRIES_MAX} entries: list less deep"),
        ));
    }
    let base = path.trim_end_matches('/');
    let mut all: Vec<String> = infos.into_iter().map(|info| format!("{base}/{}", info.path)).collect();
    all.sort_unstable_by(|one, other| one.split('/').cmp(other.split('/')));
    let mut listed = Listed::default();
    for some in all.chunks(atoll_guest_protocol::DESCRIBE_MAX_COUNT) {
        let request = Describe { paths: some.to_vec(), attributes: ATTRIBUTES.to_owned() };
        let described = guest.describe(request).await.map_err(|error| envd.fault(&guest_error(error)))?;
        let found = some.iter().zip(described).filter_map(|(path, described)| entry::entry(path, described));
        listed.extend(found)?;
    }
    Ok(ListDirResponse { entries: listed.entries })
}

/// The entries of one answer, as they come. A sandbox says what they are, so their bytes are counted.
#[derive(Debug, Default)]
struct Listed {
    entries: Vec<EntryInfo>,
    bytes: usize,
}

impl Listed {
    fn extend(&mut self, found: impl Iterator<Item = EntryInfo>) -> Result<(), Fault> {
        for entry in found {
            self.bytes += size_of::<EntryInfo>() + entry.encoded_len();
            if self.bytes > LISTED_MAX_BYTES {
                let most = LISTED_MAX_BYTES >> 20;
                let why =
                    format!("the entries have more than {most} MiB of names and metadata: list less deep");
                return Err(Fault::new(Kind::ResourceExhausted, why));
            }
            self.entries.push(entry);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_has_so_many_bytes() {
        let metadata = [("note".to_owned(), "x".repeat(64 << 10))];
        let entry = EntryInfo { metadata: metadata.into(), ..EntryInfo::default() };
        let mut listed = Listed::default();
        listed.extend(std::iter::repeat_n(entry.clone(), 1000)).unwrap();
        let refused = listed.extend(std::iter::repeat_n(entry, 1000)).unwrap_err();
        assert!(refused.kind == Kind::ResourceExhausted && listed.entries.len() < 1100, "{refused:?}");
    }
}
