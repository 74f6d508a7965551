//! Making, moving, removing, changing.

use atoll_core::Code;
use atoll_engine::guest_error;
use atoll_guest_protocol::messages::{Chmod, FileKind, Mkdir, Read, Remove, Rename, Stat, Write};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{fail, guest, owner, paths, resolve};
use crate::error::{Failure, Result};
use crate::request::{Json, Query};
use crate::who::Inside;

/// Largest file in which a text is replaced, bytes.
const REPLACE_MAX_BYTES: u64 = 32 << 20;

/// A file, and the change that a client wants.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Change {
    path: String,
    mode: Option<String>,
    owner: Option<String>,
    group: Option<String>,
    recursive: Option<bool>,
    source: String,
    destination: String,
}

/// Permission bits, in octal digits.
fn bits(mode: Option<&String>) -> Result<Option<u32>> {
    let Some(text) = mode.filter(|text| !text.is_empty()) else { return Ok(None) };
    let bits = u32::from_str_radix(text.trim_start_matches("0o"), 8).ok().filter(|bits| *bits <= 0o7777);
    bits.map(Some).ok_or_else(|| Failure::bad_daemon("mode: must be octal digits such as 0755"))
}

/// Makes a directory, with the directories above it.
pub(super) async fn make_folder(inside: Inside, Query(change): Query<Change>) -> Result<StatusCode> {
    let path = resolve(&inside, &change.path).await?;
    let mode = bits(change.mode.as_ref())?;
    let guest = guest(&inside).await?;
    let request =
        Mkdir { path: path.clone(), mode: mode.unwrap_or_default(), user: owner(&inside)?, parents: true };
    guest.mkdir(request).await.map_err(|error| fail(guest_error(error)))?;
    if mode.is_some() {
        let request = Chmod { path, mode, user: String::new() };
        guest.chmod(request).await.map_err(|error| fail(guest_error(error)))?;
    }
    Ok(StatusCode::CREATED)
}

/// Removes a file; removes a directory only when the client says so.
pub(super) async fn remove(inside: Inside, Query(change): Query<Change>) -> Result<StatusCode> {
    let path = resolve(&inside, &change.path).await?;
    let guest = guest(&inside).await?;
    let recursive = change.recursive.unwrap_or_default();
    let stat = Stat { path: path.clone(), no_follow: true };
    let info = guest.stat(stat).await.map_err(|error| fail(guest_error(error)))?;
    if info.kind() == FileKind::Directory && !recursive {
        return Err(Failure::bad_daemon("cannot delete directory without recursive flag"));
    }
    guest.remove(Remove { path, recursive }).await.map_err(|error| fail(guest_error(error)))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Moves a file or a directory.
pub(super) async fn rename(inside: Inside, Query(change): Query<Change>) -> Result<StatusCode> {
    let (from, to) = (resolve(&inside, &change.source).await?, resolve(&inside, &change.destination).await?);
    let guest = guest(&inside).await?;
    let stat = Stat { path: to.clone(), no_follow: false };
    // If the destination is a directory, the file goes into it.
    let to = match guest.stat(stat).await {
        Ok(info) if info.kind() == FileKind::Directory => {
            format!("{}/{}", to.trim_end_matches('/'), paths::name(&from))
        }
        _ => to,
    };
    let request = Rename { from, to, no_replace: true };
    match guest.rename(request).await.map_err(guest_error) {
        Ok(()) => Ok(StatusCode::OK),
        Err(error) if error.code == Code::FileExists => {
            Err(Failure::conflict("destination already exists").from(crate::error::Source::Daemon))
        }
        Err(error) => Err(fail(error)),
    }
}

/// Changes permission bits and owner.
pub(super) async fn permissions(inside: Inside, Query(change): Query<Change>) -> Result<StatusCode> {
    let path = resolve(&inside, &change.path).await?;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let user = match (text(&change.owner), text(&change.group)) {
        (user, group) if group.is_empty() => user,
        (user, group) => {
            format!("{}:{group}", if user.is_empty() { current(&inside, &path).await? } else { user })
        }
    };
    if !user.is_empty() {
        atoll_core::spec::user("owner", &user).map_err(fail)?;
    }
    let request = Chmod { path, mode: bits(change.mode.as_ref())?, user };
    guest(&inside).await?.chmod(request).await.map_err(|error| fail(guest_error(error)))?;
    Ok(StatusCode::OK)
}

/// The user that owns a file now.
async fn current(inside: &Inside, path: &str) -> Result<String> {
    let stat = Stat { path: path.to_owned(), no_follow: false };
    let info = guest(inside).await?.stat(stat).await.map_err(|error| fail(guest_error(error)))?;
    Ok(info.uid.to_string())
}

/// The text to replace, and the text in its place.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Replace {
    files: Vec<String>,
    pattern: String,
    new_value: String,
}

/// Replaces a text in files. An error with one file is told for that file alone.
pub(super) async fn replace(inside: Inside, Json(asked): Json<Replace>) -> Result<Json<Vec<Value>>> {
    if asked.pattern.is_empty() {
        return Err(Failure::bad_daemon("pattern is required"));
    }
    let mut results = Vec::with_capacity(asked.files.len());
    for file in &asked.files {
        results.push(match replace_in(&inside, file, &asked).await {
            Ok(()) => json!({"file": file, "success": true}),
            Err(failure) => json!({"file": file, "success": false, "error": failure.message}),
        });
    }
    Ok(Json(results))
}

async fn replace_in(inside: &Inside, file: &str, asked: &Replace) -> Result<()> {
    let path = resolve(inside, file).await?;
    let guest = guest(inside).await?;
    let info = guest
        .stat(Stat { path: path.clone(), no_follow: false })
        .await
        .map_err(|error| fail(guest_error(error)))?;
    if info.kind() != FileKind::File || info.size > REPLACE_MAX_BYTES {
        return Err(Failure::bad_daemon(format!("{path}: is no file, or larger than 32 MiB")));
    }
    let request = Read { path: path.clone(), offset: 0, length: REPLACE_MAX_BYTES };
    let mut reader = guest.read(request).await.map_err(|error| fail(guest_error(error)))?;
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next().await.map_err(|error| fail(guest_error(error)))? {
        bytes.extend_from_slice(&piece);
    }
    let text =
        String::from_utf8(bytes).map_err(|_binary| Failure::bad_daemon(format!("{path}: is no text")))?;
    if !text.contains(&asked.pattern) {
        return Ok(());
    }
    let times = text.matches(&asked.pattern).count() as u64;
    let grown = (info.size).saturating_add(times.saturating_mul(asked.new_value.len() as u64));
    if grown > 2 * REPLACE_MAX_BYTES {
        return Err(Failure::bad_daemon(format!("{path}: would be larger than 64 MiB")));
    }
    let changed = text.replace(&asked.pattern, &asked.new_value);
    let request = Write { path, mode: 0, user: owner(inside)?, parents: false, in_place: false };
    let mut writer = guest.write(request).await.map_err(|error| fail(guest_error(error)))?;
    for piece in changed.as_bytes().chunks(256 << 10) {
        let piece = bytes::Bytes::copy_from_slice(piece);
        writer.send(piece).await.map_err(|error| fail(guest_error(error)))?;
    }
    writer.finish().await.map_err(|error| fail(guest_error(error)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes() {
        let of = |text: &str| bits(Some(&text.to_owned()));
        assert_eq!(
            (of("0755").unwrap(), of("644").unwrap(), of("").unwrap()),
            (Some(0o755), Some(0o644), None)
        );
        assert!(of("99").is_err() && of("77777").is_err() && of("rwx").is_err());
    }
}
