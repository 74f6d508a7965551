//! Finding files and lines: `glob` and `grep`.

use atoll_core::{Code, Error, spec};
use atoll_engine::guest_error;
use atoll_guest_protocol::messages::{FileInfo, FileKind, Find, Found};
use atoll_server::dialect::Host;
use axum::extract::State;
use serde::{Deserialize, Serialize};

use crate::boxes;
use crate::error::{Failure, Result};
use crate::request::{Caller, Json, Read};
use crate::time;

/// Matches when the client gives no number.
const LIMIT_DEFAULT: u32 = 1000;
/// Most matches of one answer.
const LIMIT_MAX: u32 = 100_000;

/// The files that the client searches for.
#[derive(Debug, Deserialize)]
pub(crate) struct Glob {
    pattern: String,
    path: String,
    limit: Option<u32>,
}

/// The lines that the client searches for. The text is searched as it is.
#[derive(Debug, Deserialize)]
pub(crate) struct Grep {
    pattern: String,
    path: String,
    glob: Option<String>,
    limit: Option<u32>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Matches<T> {
    matches: Vec<T>,
    truncated: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct File {
    path: String,
    is_dir: bool,
    size_bytes: u64,
    modified_at: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct Line {
    path: String,
    line: u64,
    text: String,
}

fn fail(error: &Error) -> Failure {
    Failure::data("ReadError", error)
}

fn limit(asked: Option<u32>) -> u32 {
    asked.unwrap_or(LIMIT_DEFAULT).clamp(1, LIMIT_MAX)
}

/// The whole path of a file that was found below `directory`.
fn whole(directory: &str, info: &FileInfo) -> String {
    format!("{}/{}", directory.trim_end_matches('/'), info.path)
}

async fn find(host: &Host, caller: &Caller<Read>, request: Find) -> Result<Matches<(FileInfo, Found)>> {
    spec::path("path", &request.path).map_err(|error| fail(&error))?;
    let sandbox = caller.sandbox().map_err(|error| fail(&error))?;
    let guest = boxes::awake(host.engine(), sandbox).await.map_err(|error| fail(&error))?;
    let (found, truncated) = guest.find(request).await.map_err(|error| fail(&guest_error(error)))?;
    let matches = found.into_iter().filter_map(|mut one| Some((one.info.take()?, one))).collect();
    Ok(Matches { matches, truncated })
}

/// Files whose path below a directory matches a pattern.
pub(crate) async fn glob(
    caller: Caller<Read>,
    State(host): State<Host>,
    Json(request): Json<Glob>,
) -> Result<Json<Matches<File>>> {
    let path = request.path.clone();
    let find = Find { path, pattern: request.pattern, text: String::new(), max_count: limit(request.limit) };
    let found = self::find(&host, &caller, find).await?;
    let file = |(info, _): (FileInfo, Found)| File {
        path: whole(&request.path, &info),
        is_dir: info.kind() == FileKind::Directory,
        size_bytes: info.size,
        modified_at: time::iso(u64::try_from(info.modified_ns / 1_000_000).unwrap_or_default()),
    };
    Ok(Json(Matches { matches: found.matches.into_iter().map(file).collect(), truncated: found.truncated }))
}

/// Lines that contain a text, in files below a directory.
pub(crate) async fn grep(
    caller: Caller<Read>,
    State(host): State<Host>,
    Json(request): Json<Grep>,
) -> Result<Json<Matches<Line>>> {
    if request.pattern.is_empty() {
        return Err(fail(&Error::new(Code::InvalidArgument, "the pattern is empty")));
    }
    // A bare name is searched at any depth.
    let pattern = match request.glob {
        None => String::new(),
        Some(glob) if glob.contains('/') || glob.contains("**") => glob,
        Some(glob) => format!("**/{glob}"),
    };
    let path = request.path.clone();
    let find = Find { path, pattern, text: request.pattern, max_count: limit(request.limit) };
    let found = self::find(&host, &caller, find).await?;
    let line = |(info, found): (FileInfo, Found)| Line {
        path: whole(&request.path, &info),
        line: found.line,
        text: found.text,
    };
    Ok(Json(Matches { matches: found.matches.into_iter().map(line).collect(), truncated: found.truncated }))
}
