//! Directories of a sandbox as images, and images in its directories.
//!
//! A mounted image is a copy of its tree: changes below it stay the sandbox's own, as with the vendor. The directory
//! that was at its place waits beside it, under a name that follows from the place, and comes back when the image is
//! unmounted. So the sandbox's disk alone says what is mounted: in snapshots and forks, and also when a call breaks
//! off.

use atoll_core::Code;
use atoll_core::key::Scope;
use atoll_core::snapshot::SnapshotKind;
use atoll_core::volume::components;
use atoll_engine::{GuestLease, guest_error};
use atoll_guest_protocol::messages::{FileInfo, FileKind, Mkdir, Remove, Rename, Stat, Unpack};
use bytes::Bytes;

use super::Inside;
use super::sandbox::no_container;
use crate::control;
use crate::grpc::{Fault, Result};
use crate::wire::common::Empty;
use crate::wire::router::{
    TaskMountDirectoryRequest, TaskSnapshotDirectoryRequest, TaskSnapshotDirectoryResponse,
    TaskUnmountDirectoryRequest,
};

/// Bytes of a path.
const PATH_MAX_BYTES: usize = 1024;
/// Directories of the kernel.
const KERNEL: [&str; 3] = ["dev", "proc", "sys"];

/// A directory in a sandbox, absolute and without detours.
struct Place {
    path: String,
    above: String,
    name: String,
}

impl Place {
    /// # Errors
    /// `INVALID_ARGUMENT` for a path that names no directory, or the root.
    fn of(path: &[u8]) -> Result<Self> {
        let bad = |why: &str| Fault::invalid(format!("path: {why}"));
        let text = std::str::from_utf8(path).map_err(|_bytes| bad("must be UTF-8"))?;
        let parts = components(text);
        let detour = text.contains('\0') || parts.iter().any(|part| *part == "." || *part == "..");
        if !text.starts_with('/') || detour || text.len() > PATH_MAX_BYTES {
            return Err(bad("must be absolute, without '.' and '..'"));
        }
        let [above @ .., name] = parts.as_slice() else {
            return Err(bad("'/' itself cannot be one: name a directory below it"));
        };
        let above = above.iter().fold(String::new(), |path, part| format!("{path}/{part}"));
        Ok(Self { path: format!("{above}/{name}"), above, name: (*name).to_owned() })
    }

    /// A path beside the place, for the directory that waits or that is being made.
    fn beside(&self, what: &str) -> String {
        format!("{}/.atoll-{what}-{}", self.above, self.name)
    }

    /// The directory that was at the place before an image was mounted.
    fn covered(&self) -> String {
        self.beside("under")
    }

    /// Checks that the place is on the sandbox's own disk: no volume, file system of the kernel or agent layer lies at,
    /// above or below it.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION`.
    async fn check(&self, inside: &Inside) -> Result<()> {
        let parts = components(&self.path);
        let spec = inside.asker.engine().sandbox(inside.id())?.spec;
        let meets = |path: &str| components(path).iter().zip(&parts).all(|(a, b)| a == b);
        let volume = spec.volumes.iter().find(|volume| meets(&volume.path));
        let what = match volume {
            Some(volume) => format!("the volume at {}", volume.path),
            None if parts.first().is_some_and(|first| KERNEL.contains(first)) => {
                "a file system of the kernel".to_owned()
            }
            None if !spec.layers.is_empty() && meets(atoll_core::layer::LAYERS_DIR) => {
                "an agent layer".to_owned()
            }
            None => return Ok(()),
        };
        Err(Fault::unsupported(format!("path: {what} is in the way: images are of a sandbox's own disk")))
    }
}

/// `TaskSnapshotDirectory`. The server ignores the time to live: the snapshot stays until it is deleted.
pub(super) async fn snapshot(
    inside: &Inside,
    request: TaskSnapshotDirectoryRequest,
) -> Result<TaskSnapshotDirectoryResponse> {
    inside.is(&request.task_id)?;
    no_container(&request.container_id)?;
    no_key(request.customer_supplied_encryption_key.as_ref())?;
    let place = Place::of(&request.path)?;
    place.check(inside).await?;
    let lease = inside.asker.engine().guest(inside.id()).await?;
    let found = look(&lease, &place.path, false).await?;
    let found = found.ok_or_else(|| Fault::not_found(format!("{}: no such directory", place.path)))?;
    if found.kind() != FileKind::Directory {
        return Err(Fault::invalid(format!("path: {} is not a directory", place.path)));
    }
    let comment = control::directory_note(&place.path)?;
    let (kind, key) = (SnapshotKind::Disk, &request.snapshot_id);
    let taken = control::snapshot(&inside.asker, &inside.sandbox, kind, key, Some(comment));
    Ok(TaskSnapshotDirectoryResponse { image_id: taken.await? })
}

/// `TaskMountDirectory`: the image takes the directory's place; an image that was mounted there before is removed.
pub(super) async fn mount(inside: &Inside, request: TaskMountDirectoryRequest) -> Result<Empty> {
    inside.is(&request.task_id)?;
    no_container(&request.container_id)?;
    no_key(request.customer_supplied_encryption_key.as_ref())?;
    let place = Place::of(&request.path)?;
    place.check(inside).await?;
    let _turn = turn(inside).await;
    let lease = inside.asker.engine().guest(inside.id()).await?;
    let new = place.beside("new");
    // Left by a mount that broke off.
    remove(&lease, &new).await?;
    let placed = async {
        let tree = if request.image_id.is_empty() {
            make(&lease, &new).await?;
            new.clone()
        } else {
            copy(inside, &request.image_id, &lease, &new).await?
        };
        put(&lease, &place, &tree).await
    };
    let placed = placed.await;
    remove(&lease, &new).await?;
    placed?;
    Ok(Empty {})
}

/// `TaskUnmountDirectory`: puts back the directory that was there before.
pub(super) async fn unmount(inside: &Inside, request: TaskUnmountDirectoryRequest) -> Result<Empty> {
    inside.is(&request.task_id)?;
    no_container(&request.container_id)?;
    let place = Place::of(&request.path)?;
    let _turn = turn(inside).await;
    let lease = inside.asker.engine().guest(inside.id()).await?;
    if look(&lease, &place.covered(), true).await?.is_none() {
        return Err(Fault::unsupported(format!("path: no image is mounted at {}", place.path)));
    }
    remove(&lease, &place.path).await?;
    rename(&lease, &place.covered(), &place.path).await?;
    Ok(Empty {})
}

/// Mounts and unmounts of one sandbox happen one after the other.
async fn turn(inside: &Inside) -> impl Drop + use<> {
    inside.asker.app.task.turns.take(inside.id().as_str()).await
}

fn no_key(key: Option<&Bytes>) -> Result<()> {
    match key {
        None => Ok(()),
        Some(_) => Err(Fault::unsupported("encryption keys of snapshots are not supported by this server")),
    }
}

/// Copies the tree of an image below a new directory; gives the path of the tree.
async fn copy(inside: &Inside, image: &str, to: &GuestLease, new: &str) -> Result<String> {
    inside.asker.needs(Scope::Manage)?;
    let source = control::ImageSource::begin(&inside.asker, image).await?;
    let tree = format!("{new}/{}", source.name);
    let copied = pour(inside, &source, to, new).await;
    source.end(&inside.asker).await;
    copied.map(|()| tree)
}

async fn pour(inside: &Inside, source: &control::ImageSource, to: &GuestLease, new: &str) -> Result<()> {
    let from = inside.asker.engine().guest(&source.sandbox).await?;
    // The root has no name in an archive: it is given one.
    let below = if source.is_root() { format!("{new}/{}", source.name) } else { new.to_owned() };
    make(to, new).await?;
    let mut tree = from.pack(&source.path).await.map_err(guest_error)?;
    let request = Unpack { path: below, user: String::new() };
    let mut writer = to.unpack(request).await.map_err(guest_error)?;
    while let Some(piece) = tree.next().await.map_err(guest_error)? {
        writer.send(piece).await.map_err(guest_error)?;
    }
    writer.finish().await.map_err(guest_error)?;
    Ok(())
}

/// Puts a tree at a place. The directory that was there waits beside it, unless it was a mounted image.
async fn put(lease: &GuestLease, place: &Place, tree: &str) -> Result<()> {
    let covered = look(lease, &place.covered(), true).await?;
    match look(lease, &place.path, true).await? {
        Some(found) if found.kind() == FileKind::File || found.kind() == FileKind::Other => {
            return Err(Fault::invalid(format!("path: {} is not a directory", place.path)));
        }
        Some(_) if covered.is_some() => remove(lease, &place.path).await?,
        Some(_) => rename(lease, &place.path, &place.covered()).await?,
        None if covered.is_some() => {}
        None => make(lease, &place.covered()).await?,
    }
    rename(lease, tree, &place.path).await
}

async fn look(lease: &GuestLease, path: &str, no_follow: bool) -> Result<Option<FileInfo>> {
    match lease.stat(Stat { path: path.to_owned(), no_follow }).await.map_err(guest_error) {
        Ok(info) => Ok(Some(info)),
        Err(error) if error.code == Code::FileNotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn make(lease: &GuestLease, path: &str) -> Result<()> {
    let request = Mkdir { path: path.to_owned(), mode: 0, user: String::new(), parents: true };
    Ok(lease.mkdir(request).await.map_err(guest_error)?)
}

async fn rename(lease: &GuestLease, from: &str, to: &str) -> Result<()> {
    let request = Rename { from: from.to_owned(), to: to.to_owned(), no_replace: true };
    Ok(lease.rename(request).await.map_err(guest_error)?)
}

/// Removes a path, if it is there.
async fn remove(lease: &GuestLease, path: &str) -> Result<()> {
    match lease.remove(Remove { path: path.to_owned(), recursive: true }).await.map_err(guest_error) {
        Err(error) if error.code != Code::FileNotFound => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lead_nowhere_else() {
        let place = Place::of(b"/srv//data/").unwrap();
        assert_eq!((place.path.as_str(), place.covered().as_str()), ("/srv/data", "/srv/.atoll-under-data"));
        assert_eq!(Place::of(b"/a").unwrap().covered(), "/.atoll-under-a");
        let long = format!("/{}", "a".repeat(PATH_MAX_BYTES));
        for bad in [&b"/"[..], b"", b"a", b"/a/../b", b"/..", b"/a\0", b"/\xff", long.as_bytes()] {
            assert!(Place::of(bad).is_err(), "{bad:?}");
        }
    }
}
