//! Sessions: commands that go on where the last one stopped.
//!
//! A session is a directory inside the sandbox that holds the state that one command leaves to the next. Each command
//! is an exec of its own (`guest/session.sh`), so it has the exec's output, input, exit code and end. A command that
//! breaks its shell ends, and the session goes on.
//!
//! A command waits for the one before it, but not for an asynchronous command that still runs after a moment: a server
//! that was started in a session does not block it.

pub(super) mod commands;
pub(super) mod entrypoint;
pub(super) mod logs;

use std::fmt::Write as _;

use atoll_core::{Code, Error};
use atoll_dialect_kit::sandboxes;
use atoll_engine::{ExecQuery, ExecView, guest_error};
use atoll_guest_protocol::messages::{FileKind, List, Mkdir, Remove, Stat};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::{Failure, Result, Source};
use crate::request::{Json, Path};
use crate::who::Inside;

/// The directory of sessions, inside the sandbox.
const ROOT: &str = "/tmp/.daytona-sessions";
/// Longest name of a session, bytes: its directory has two digits for each.
const NAME_MAX_BYTES: usize = 120;
/// Most sessions of a sandbox that are listed.
const SESSIONS_MAX: u32 = 10_000;
/// Most commands of a session that are shown.
const COMMANDS_MAX_COUNT: usize = 1000;

fn fail(error: Error) -> Failure {
    Failure::of_daemon(&error)
}

/// The tag of a session's execs.
fn tag(session: &str) -> String {
    format!("daytona session {session}")
}

fn checked(session: &str) -> Result<()> {
    if session.is_empty() || session.len() > NAME_MAX_BYTES {
        return Err(Failure::bad_daemon(format!("sessionId: must have 1 to {NAME_MAX_BYTES} bytes")));
    }
    Ok(())
}

/// Sessions end when the sandbox stops: a sandbox that was started again has none.
fn root(inside: &Inside) -> Result<String> {
    let boot: String =
        inside.record()?.boot_id.chars().filter(char::is_ascii_alphanumeric).take(64).collect();
    Ok(format!("{ROOT}/{boot}"))
}

/// The directory of a session. Its name is written in hexadecimal digits, because a session's name may have any
/// characters.
fn directory(inside: &Inside, session: &str) -> Result<String> {
    let mut path = root(inside)?;
    path.push('/');
    for byte in session.bytes() {
        let _ = write!(path, "{byte:02x}");
    }
    Ok(path)
}

/// The name of the session with this directory.
fn name_of(directory: &str) -> Option<String> {
    if directory.len() % 2 == 1 || !directory.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let digits = directory.as_bytes().chunks(2);
    let bytes = digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    String::from_utf8(bytes.collect::<Option<Vec<u8>>>()?).ok()
}

fn missing(session: &str) -> Failure {
    Failure::no_process(format!("session {} not found", atoll_core::error::shorten(session)))
}

/// The directory of a session that is there.
async fn existing(inside: &Inside, session: &str) -> Result<String> {
    checked(session)?;
    let guest = sandboxes::awake(inside.engine(), inside.id()).await.map_err(fail)?;
    let path = directory(inside, session)?;
    match guest.stat(Stat { path: path.clone(), no_follow: true }).await.map_err(guest_error) {
        Ok(info) if info.kind() == FileKind::Directory => Ok(path),
        Ok(_) | Err(Error { code: Code::FileNotFound | Code::NotADirectory, .. }) => Err(missing(session)),
        Err(error) => Err(fail(error)),
    }
}

/// The session that a client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Create {
    session_id: String,
}

/// Begins a session.
pub(super) async fn create(inside: Inside, Json(Create { session_id }): Json<Create>) -> Result<StatusCode> {
    checked(&session_id)?;
    if session_id == entrypoint::SESSION {
        return Err(Failure::conflict("session already exists").from(Source::Daemon));
    }
    let guest = sandboxes::awake(inside.engine(), inside.id()).await.map_err(fail)?;
    let user = inside.record()?.spec.user;
    let make = |path: String, parents| {
        let mode = if parents { 0 } else { 0o700 };
        guest.mkdir(Mkdir { path, mode, user: user.clone(), parents })
    };
    let path = directory(&inside, &session_id)?;
    let mut made = make(path.clone(), false).await.map_err(guest_error);
    if made.as_ref().is_err_and(|error| error.code == Code::FileNotFound) {
        make(root(&inside)?, true).await.map_err(|error| fail(guest_error(error)))?;
        made = make(path, false).await.map_err(guest_error);
    }
    match made {
        Ok(()) => Ok(StatusCode::CREATED),
        Err(error) if error.code == Code::FileExists => {
            Err(Failure::conflict("session already exists").from(Source::Daemon))
        }
        Err(error) => Err(fail(error)),
    }
}

/// The commands of one or all sessions, as many as are shown, the oldest first.
async fn commands_of(inside: &Inside, session: Option<&str>) -> Result<Vec<ExecView>> {
    let wanted = session.map(tag);
    let is = |view: &ExecView| {
        let tag = view.record.spec.tag.as_deref().unwrap_or_default();
        wanted.as_ref().map_or_else(|| tag.starts_with("daytona session "), |wanted| tag == wanted)
    };
    let mut query = ExecQuery { limit: Some(1000), ..ExecQuery::default() };
    let mut found = Vec::new();
    loop {
        let (page, next) = inside.engine().execs(inside.id(), &query).await.map_err(fail)?;
        found.extend(page.into_iter().filter(is));
        query.cursor = next;
        if query.cursor.is_none() || found.len() >= COMMANDS_MAX_COUNT {
            found.truncate(COMMANDS_MAX_COUNT);
            // Ids sort by age.
            found.sort_unstable_by(|one, other| one.record.id.cmp(&other.record.id));
            return Ok(found);
        }
    }
}

fn shown(session: &str, commands: &[ExecView]) -> Value {
    let of_session = commands.iter().filter(|view| view.record.spec.tag.as_deref() == Some(&tag(session)));
    json!({"sessionId": session, "commands": of_session.map(commands::shown).collect::<Vec<_>>()})
}

/// One session with its commands.
pub(super) async fn read(inside: Inside, Path((_, session)): Path<(String, String)>) -> Result<Json<Value>> {
    existing(&inside, &session).await?;
    Ok(Json(shown(&session, &commands_of(&inside, Some(&session)).await?)))
}

/// All sessions.
pub(super) async fn list(inside: Inside) -> Result<Json<Vec<Value>>> {
    let guest = sandboxes::awake(inside.engine(), inside.id()).await.map_err(fail)?;
    let request = List { path: root(&inside)?, depth: 1, max_entries: SESSIONS_MAX };
    let entries = match guest.list(request).await.map_err(guest_error) {
        Ok((entries, _)) => entries,
        Err(error) if error.code == Code::FileNotFound => Vec::new(),
        Err(error) => return Err(fail(error)),
    };
    let mut names: Vec<String> = entries.iter().filter_map(|entry| name_of(&entry.path)).collect();
    names.sort_unstable();
    let commands = commands_of(&inside, None).await?;
    Ok(Json(names.iter().map(|name| shown(name, &commands)).collect()))
}

/// Ends a session with all commands that run in it.
pub(super) async fn remove(inside: Inside, Path((_, session)): Path<(String, String)>) -> Result<StatusCode> {
    let path = existing(&inside, &session).await?;
    let tag = tag(&session);
    let running = inside.engine().running_execs(inside.id()).await.map_err(fail)?;
    let ours = running.iter().filter(|view| view.record.spec.tag.as_ref() == Some(&tag));
    let kills = ours.map(|view| inside.engine().kill_exec(inside.id(), view.record.id.as_str()));
    for killed in futures::future::join_all(kills).await {
        killed.map_err(fail)?;
    }
    let guest = sandboxes::awake(inside.engine(), inside.id()).await.map_err(fail)?;
    match guest.remove(Remove { path, recursive: true }).await.map_err(guest_error) {
        Err(error) if error.code != Code::FileNotFound => Err(fail(error)),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sessions_are_anything() {
        assert_eq!(name_of("612f2e2e"), Some("a/..".to_owned()));
        for bad in ["6", "+6", "xx", "ff", "é"] {
            assert_eq!(name_of(bad), None, "{bad}");
        }
        assert!(checked("").is_err() && checked(&"x".repeat(121)).is_err() && checked("a b/ü").is_ok());
    }
}
