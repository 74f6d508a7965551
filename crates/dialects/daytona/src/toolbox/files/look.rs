//! Listing, describing, searching.

use atoll_engine::guest_error;
use atoll_guest_protocol::messages::{Find, List, Stat};
use serde::Deserialize;
use serde_json::{Value, json};

use super::entry::entry;
use super::{fail, guest, resolve};
use crate::error::{Failure, Result};
use crate::request::{Json, Query};
use crate::who::Inside;

/// Most entries of one listing or one search.
const ENTRIES_MAX: u32 = 100_000;
/// Levels of one listing.
const DEPTH_MAX: u32 = 64;

/// The files that a client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
    path: Option<String>,
    depth: Option<u32>,
    pattern: String,
}

impl Wanted {
    /// The path, or else the directory in which commands run.
    fn path(&self) -> &str {
        self.path.as_deref().filter(|path| !path.is_empty()).unwrap_or(".")
    }

    fn pattern(&self) -> Result<String> {
        if self.pattern.is_empty() {
            return Err(Failure::bad_daemon("pattern is required"));
        }
        Ok(self.pattern.clone())
    }
}

/// The entries of a directory.
pub(super) async fn list(inside: Inside, Query(wanted): Query<Wanted>) -> Result<Json<Vec<Value>>> {
    let path = resolve(&inside, wanted.path()).await?;
    let depth = wanted.depth.unwrap_or(1).clamp(1, DEPTH_MAX);
    let request = List { path: path.clone(), depth, max_entries: ENTRIES_MAX };
    let guest = guest(&inside).await?;
    let (mut infos, cut) = guest.list(request).await.map_err(|error| fail(guest_error(error)))?;
    if cut {
        return Err(Failure::bad_daemon(format!(
            "the directory has more than {ENTRIES_MAX} entries: list less deep"
        )));
    }
    infos.sort_unstable_by(|one, other| one.path.split('/').cmp(other.path.split('/')));
    let base = path.trim_end_matches('/');
    let shown = infos.iter().map(|info| entry(&format!("{base}/{}", info.path), info, depth > 1));
    Ok(Json(shown.collect()))
}

/// One file.
pub(super) async fn info(inside: Inside, Query(wanted): Query<Wanted>) -> Result<Json<Value>> {
    let path = wanted.path.clone().unwrap_or_default();
    let path = resolve(&inside, &path).await?;
    let stat = Stat { path: path.clone(), no_follow: false };
    let info = guest(&inside).await?.stat(stat).await.map_err(|error| fail(guest_error(error)))?;
    Ok(Json(entry(&path, &info, false)))
}

/// Files whose name matches this pattern, at any depth.
pub(super) async fn search(inside: Inside, Query(wanted): Query<Wanted>) -> Result<Json<Value>> {
    let base = resolve(&inside, wanted.path()).await?;
    let pattern = wanted.pattern()?;
    let pattern = if pattern.contains('/') { pattern } else { format!("**/{pattern}") };
    let request = Find { path: base.clone(), pattern, text: String::new(), max_count: ENTRIES_MAX };
    let (found, _) = guest(&inside).await?.find(request).await.map_err(|error| fail(guest_error(error)))?;
    let base = base.trim_end_matches('/');
    let files = found.into_iter().filter_map(|found| Some(format!("{base}/{}", found.info?.path)));
    Ok(Json(json!({"files": files.collect::<Vec<_>>()})))
}

/// Lines with this text, in a file or in all below a directory.
pub(super) async fn find(inside: Inside, Query(wanted): Query<Wanted>) -> Result<Json<Vec<Value>>> {
    let path = resolve(&inside, wanted.path()).await?;
    let guest = guest(&inside).await?;
    let stat = Stat { path: path.clone(), no_follow: false };
    let info = guest.stat(stat).await.map_err(|error| fail(guest_error(error)))?;
    let is_dir = info.kind() == atoll_guest_protocol::messages::FileKind::Directory;
    let (dir, name) = if is_dir { (path.as_str(), "") } else { path.rsplit_once('/').unwrap_or(("", &path)) };
    let dir = if dir.is_empty() { "/" } else { dir };
    let request =
        Find { path: dir.to_owned(), pattern: plain(name), text: wanted.pattern()?, max_count: ENTRIES_MAX };
    let (found, _) = guest.find(request).await.map_err(|error| fail(guest_error(error)))?;
    let base = dir.trim_end_matches('/');
    let matches = found.into_iter().filter_map(|found| {
        let file = format!("{base}/{}", found.info?.path);
        Some(json!({"file": file, "line": found.line, "content": found.text}))
    });
    Ok(Json(matches.collect()))
}

/// A pattern that matches only this name.
fn plain(name: &str) -> String {
    let special = |c: char| matches!(c, '*' | '?' | '[');
    name.chars().map(|c| if special(c) { format!("[{c}]") } else { c.to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_no_patterns() {
        assert_eq!((plain("a.txt"), plain("a*[b]?")), ("a.txt".to_owned(), "a[*][[]b][?]".to_owned()));
    }
}
