//! The files in a volume. Sandboxes wrote them, so they are hostile; the engine keeps every path within the volume.

use atoll_core::Code;
use atoll_core::id::VolumeId;
use atoll_core::volume::inner_path;
use atoll_engine::{Engine, VolumeChange, VolumeDirectory, VolumeFile, VolumeFileKind, VolumeWrite};
use atoll_server::dialect::reader;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio_util::io::ReaderStream;

use super::auth::OnVolume;
use super::told;
use crate::App;
use crate::error::{Failure, Result};
use crate::request::{Exec, Json, Query, Read};
use crate::time;

/// The owner of a new file or directory when the client names none: the first user of an image.
const OWNER: u32 = 1000;
/// The highest id that a user of a sandbox has.
const ID_MAX: u32 = u16::MAX as u32;
/// All bits of permissions.
const MODE_MAX: u32 = 0o7777;
/// Permissions of new files and directories when the client gives none: every sandbox that has the volume may use them.
const FILE_MODE: u32 = 0o666;
const DIRECTORY_MODE: u32 = 0o777;
/// Levels of directories that one listing goes down at most.
const DEPTH_MAX: usize = 10;
/// Entries of one listing: the protocol has no pages.
const LIST_MAX_COUNT: usize = 50_000;
/// Bytes read from a file at once.
const PIECE_BYTES: usize = 128 << 10;

/// The file or directory that the client names.
#[derive(Debug, Deserialize)]
pub(super) struct At {
    path: String,
}

/// The directory to list, and how far down.
#[derive(Debug, Deserialize)]
pub(super) struct List {
    path: String,
    depth: Option<u32>,
}

/// The file or directory to make.
#[derive(Debug, Deserialize)]
pub(super) struct Make {
    path: String,
    /// Of a directory: the directories above it are made, and one that is there is no error. Of a file: the same, and a
    /// file that is there is replaced.
    #[serde(default)]
    force: bool,
    uid: Option<u32>,
    gid: Option<u32>,
    mode: Option<u32>,
}

impl Make {
    fn attributes(&self) -> Result<VolumeChange> {
        Attributes { uid: self.uid, gid: self.gid, mode: self.mode }.change()
    }
}

/// The owner of an entry, and its permissions.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Attributes {
    uid: Option<u32>,
    gid: Option<u32>,
    mode: Option<u32>,
}

impl Attributes {
    fn change(&self) -> Result<VolumeChange> {
        let bounds = [("uid", self.uid, ID_MAX), ("gid", self.gid, ID_MAX), ("mode", self.mode, MODE_MAX)];
        for (field, number, max) in bounds {
            if number.is_some_and(|number| number > max) {
                return Err(Failure::bad(format!("{field}: must lie between 0 and {max}")));
            }
        }
        Ok(VolumeChange { mode: self.mode, uid: self.uid, gid: self.gid })
    }
}

/// An entry as the clients read it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Stat {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    path: String,
    size: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    atime: String,
    mtime: String,
    ctime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl Stat {
    /// `path` is the whole path, and begins with a slash.
    fn new(path: String, file: VolumeFile) -> Self {
        let name = path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("/");
        Self {
            name: name.to_owned(),
            kind: match file.kind {
                VolumeFileKind::File => "file",
                VolumeFileKind::Directory => "directory",
                VolumeFileKind::Symlink => "symlink",
                VolumeFileKind::Other => "unknown",
            },
            path,
            size: file.size,
            mode: file.mode,
            uid: file.uid,
            gid: file.gid,
            atime: at(file.accessed_ms),
            mtime: at(file.modified_ms),
            ctime: at(file.changed_ms),
            target: file.target,
        }
    }

    /// The answer of a call of the engine that is about one path.
    fn of(file: VolumeFile) -> axum::Json<Self> {
        axum::Json(Self::new(file.path.clone(), file))
    }
}

fn at(ms: i64) -> String {
    let nanos = i32::try_from(ms.rem_euclid(1000)).unwrap_or_default() * 1_000_000;
    time::rfc3339(ms.div_euclid(1000), nanos)
}

pub(super) async fn stat(
    volume: OnVolume<Read>,
    State(app): State<App>,
    Query(at): Query<At>,
) -> Result<axum::Json<Stat>> {
    let file = app.host.engine().stat_in_volume(&volume.id, &at.path).await;
    file.map(Stat::of).map_err(|error| told(&error))
}

pub(super) async fn change(
    volume: OnVolume<Exec>,
    State(app): State<App>,
    Query(at): Query<At>,
    Json(attributes): Json<Attributes>,
) -> Result<axum::Json<Stat>> {
    let change = attributes.change()?;
    let file = app.host.engine().change_in_volume(&volume.id, &at.path, change).await;
    file.map(Stat::of).map_err(|error| told(&error))
}

/// Removes a directory together with all entries below it.
pub(super) async fn remove(
    volume: OnVolume<Exec>,
    State(app): State<App>,
    Query(at): Query<At>,
) -> Result<StatusCode> {
    let removed = app.host.engine().remove_in_volume(&volume.id, &at.path, true).await;
    removed.map(|()| StatusCode::NO_CONTENT).map_err(|error| told(&error))
}

pub(super) async fn list(
    volume: OnVolume<Read>,
    State(app): State<App>,
    Query(query): Query<List>,
) -> Result<axum::Json<Vec<Stat>>> {
    let depth = query.depth.map_or(1, |depth| usize::try_from(depth).unwrap_or(usize::MAX));
    if depth > DEPTH_MAX {
        return Err(Failure::bad(format!("depth: must lie between 1 and {DEPTH_MAX}")));
    }
    entries(app.host.engine(), &volume.id, &query.path, depth.max(1)).await.map(axum::Json)
}

/// The entries of a directory; each directory comes before its own entries.
async fn entries(engine: &Engine, volume: &VolumeId, path: &str, depth: usize) -> Result<Vec<Stat>> {
    let top = inner_path(path).map_err(|error| told(&error))?;
    let top = if top == "." { String::new() } else { format!("/{top}") };
    let mut found = Vec::new();
    let (files, mut more) =
        engine.list_in_volume(volume, path, LIST_MAX_COUNT).await.map_err(|error| told(&error))?;
    // The directories that are being listed, each inside the one before it.
    let mut within = vec![(top, files.into_iter())];
    while let Some((above, files)) = within.last_mut() {
        let Some(file) = files.next().filter(|_| !more) else {
            if more {
                return Err(too_many());
            }
            within.pop();
            continue;
        };
        let path = format!("{above}/{}", file.path);
        let goes_down = file.kind == VolumeFileKind::Directory && within.len() < depth;
        found.push(Stat::new(path.clone(), file));
        let left = LIST_MAX_COUNT.checked_sub(found.len()).ok_or_else(too_many)?;
        if goes_down {
            match engine.list_in_volume(volume, &path, left).await {
                Ok((files, truncated)) => {
                    more = truncated;
                    within.push((path, files.into_iter()));
                }
                // The directory was removed or replaced by a file, or its name is no text.
                Err(error)
                    if matches!(error.code, Code::FileNotFound | Code::NotADirectory | Code::PathInvalid) => {
                }
                Err(error) => return Err(told(&error)),
            }
        }
    }
    Ok(found)
}

fn too_many() -> Failure {
    Failure::bad(format!("path: more than {LIST_MAX_COUNT} entries; list with less depth"))
}

pub(super) async fn make_directory(
    volume: OnVolume<Exec>,
    State(app): State<App>,
    Query(make): Query<Make>,
) -> Result<(StatusCode, axum::Json<Stat>)> {
    let asked = make.attributes()?;
    let new = VolumeDirectory {
        mode: asked.mode.unwrap_or(DIRECTORY_MODE),
        uid: asked.uid.unwrap_or(OWNER),
        gid: asked.gid.unwrap_or(OWNER),
        parents: make.force,
    };
    let made = app.host.engine().make_directory_in_volume(&volume.id, &make.path, new).await;
    Ok((StatusCode::CREATED, Stat::of(made.map_err(|error| told(&error))?)))
}

pub(super) async fn read(
    volume: OnVolume<Read>,
    State(app): State<App>,
    Query(at): Query<At>,
) -> Result<Response> {
    let file = app.host.engine().read_in_volume(&volume.id, &at.path).await;
    let file = tokio::fs::File::from_std(file.map_err(|error| told(&error))?);
    let length = file.metadata().await.map(|meta| meta.len()).unwrap_or_default();
    // The answer has the length that the file had when it was opened, even if a sandbox appends meanwhile.
    let bytes = ReaderStream::with_capacity(file.take(length), PIECE_BYTES);
    let mut response = Body::from_stream(bytes).into_response();
    let head = response.headers_mut();
    head.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    head.insert(CONTENT_LENGTH, length.into());
    Ok(response)
}

/// The file is there once the whole body has come, or not at all.
pub(super) async fn write(
    volume: OnVolume<Exec>,
    State(app): State<App>,
    Query(make): Query<Make>,
    body: Body,
) -> Result<(StatusCode, axum::Json<Stat>)> {
    let asked = make.attributes()?;
    let write = VolumeWrite {
        mode: asked.mode.unwrap_or(FILE_MODE),
        uid: asked.uid.unwrap_or(OWNER),
        gid: asked.gid.unwrap_or(OWNER),
        parents: make.force,
        replace: make.force,
    };
    let engine = app.host.engine();
    let written = engine.write_in_volume(&volume.id, &make.path, write, Box::new(reader(body))).await;
    written.map_err(|error| told(&error))?;
    let file = engine.stat_in_volume(&volume.id, &make.path).await.map_err(|error| told(&error))?;
    Ok((StatusCode::CREATED, Stat::of(file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(query: &str) -> std::result::Result<Make, serde_html_form::de::Error> {
        serde_html_form::from_str(query)
    }

    #[test]
    fn attributes_of_queries_and_bodies() {
        let some = make("path=%2Fa&uid=7&mode=493&force=true").unwrap();
        let change = some.attributes().unwrap();
        assert_eq!((some.path.as_str(), some.force), ("/a", true));
        assert_eq!(change, VolumeChange { mode: Some(0o755), uid: Some(7), gid: None });
        assert_eq!(make("path=a").unwrap().attributes().unwrap(), VolumeChange::default());
        let body: Attributes = serde_json::from_str(r#"{"gid":65535,"mode":4095}"#).unwrap();
        assert_eq!(body.change().unwrap().gid, Some(65535));
        for bad in ["path=a&uid=-1", "path=a&mode=x", "uid=1", "path=a&force=maybe", "path=a&uid=4294967296"]
        {
            assert!(make(bad).is_err(), "{bad}");
        }
        for bad in ["path=a&uid=65536", "path=a&mode=4096"] {
            assert!(make(bad).unwrap().attributes().is_err(), "{bad}");
        }
    }

    #[test]
    fn times_before_the_epoch() {
        assert_eq!(at(-1), "1969-12-31T23:59:59.999Z");
        assert_eq!(at(1500), "1970-01-01T00:00:01.500Z");
    }
}
