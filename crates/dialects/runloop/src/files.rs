//! Files of a devbox. Paths that are not absolute begin at the user's home.

use atoll_core::id::SandboxId;
use atoll_core::{Code, Error, spec};
use atoll_dialect_kit::files::{Form, SendError, send};
use atoll_dialect_kit::paths::Passwd;
use atoll_engine::{Engine, FileWriter, GuestLease, guest_error};
use atoll_guest_protocol::messages::{Mkdir, Remove, Rename, Write};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use crate::App;
use crate::devboxes::usable;
use crate::error::{Failure, Result};
use crate::ids;
use crate::request::{Caller, Exec, Json, Path, Read};

/// Bytes of a file of the server that are sent at once.
const PIECE_BYTES: usize = 256 << 10;
/// Most bytes of a path in a form.
const PATH_MAX_BYTES: usize = 4096;

/// The routes.
pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/devboxes/{devbox}/read_file_contents", post(read))
        .route("/v1/devboxes/{devbox}/download_file", post(download))
        .route("/v1/devboxes/{devbox}/write_file_contents", post(write_contents))
        .route("/v1/devboxes/{devbox}/upload_file", post(upload))
}

/// The directory at which relative paths begin.
#[derive(Debug)]
pub(crate) struct Home(String);

impl Home {
    /// The home of the sandbox's user, from its `/etc/passwd`. The text is hostile: it is used only for paths inside
    /// the sandbox.
    ///
    /// # Errors
    /// The guest's errors.
    pub(crate) async fn of(engine: &Engine, sandbox: &SandboxId) -> Result<Self, Error> {
        let user = engine.sandbox(sandbox)?.spec.user;
        let guest = engine.guest(sandbox).await?;
        let user = user.split(':').next().unwrap_or_default();
        Ok(Self(home_in(&Passwd::read(&guest).await?, user)))
    }

    /// The absolute path that the client means.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`].
    pub(crate) fn resolve(&self, path: &str) -> Result<String, Error> {
        let Self(home) = self;
        let path = match path.strip_prefix("~/") {
            Some(rest) => format!("{home}/{rest}"),
            None if path.starts_with('/') => path.to_owned(),
            None => format!("{home}/{path}"),
        };
        spec::path("path", &path)?;
        Ok(path)
    }
}

fn home_in(passwd: &Passwd, user: &str) -> String {
    let home = passwd.user(user).and_then(|entry| entry.home);
    let home = home.unwrap_or(if user == "root" || user == "0" { "/root" } else { "/" });
    home.trim_end_matches('/').to_owned()
}

/// A devbox whose files a client reads or writes.
struct Files {
    guest: GuestLease,
    home: Home,
    user: String,
}

impl Files {
    async fn open<S>(app: &App, caller: &Caller<S>, id: &str) -> Result<Self> {
        let record = usable(app, caller, id)?;
        let engine = app.host.engine();
        let guest = engine.guest(&record.id).await.map_err(|error| Failure::of(&error))?;
        let home = Home::of(engine, &record.id).await.map_err(|error| Failure::of(&error))?;
        Ok(Self { guest, home, user: record.spec.user })
    }

    fn path(&self, asked: &str) -> Result<String> {
        if asked.is_empty() {
            return Err(Failure::bad("path: is missing"));
        }
        self.home.resolve(asked).map_err(|error| Failure::of(&error))
    }

    async fn writer(&self, path: &str) -> Result<FileWriter> {
        open(&self.guest, path, &self.user).await.map_err(|error| Failure::of(&error))
    }
}

/// Opens a file to write, with the directories above it. The file appears as a whole or not at all.
async fn open(guest: &GuestLease, path: &str, user: &str) -> Result<FileWriter, Error> {
    let (path, user) = (path.to_owned(), user.to_owned());
    let request = Write { path, mode: 0, user, parents: true, in_place: false };
    guest.write(request).await.map_err(guest_error)
}

/// Writes a file, as the devbox's user.
///
/// # Errors
/// The guest's errors.
pub(crate) async fn write(
    engine: &Engine,
    sandbox: &SandboxId,
    path: &str,
    content: Bytes,
) -> Result<(), Error> {
    let user = engine.sandbox(sandbox)?.spec.user;
    let guest = engine.guest(sandbox).await?;
    let mut writer = open(&guest, path, &user).await?;
    writer.send(content).await.map_err(guest_error)?;
    writer.finish().await.map_err(guest_error)?;
    Ok(())
}

/// The same, from a file of the server.
///
/// # Errors
/// The guest's errors; [`Code::Internal`] when the file cannot be read.
pub(crate) async fn write_from(
    engine: &Engine,
    sandbox: &SandboxId,
    path: &str,
    mut content: tokio::fs::File,
) -> Result<(), Error> {
    let user = engine.sandbox(sandbox)?.spec.user;
    let guest = engine.guest(sandbox).await?;
    let mut writer = open(&guest, path, &user).await?;
    loop {
        let mut piece = BytesMut::with_capacity(PIECE_BYTES);
        let read = content.read_buf(&mut piece).await;
        match read.map_err(|error| Error::new(Code::Internal, format!("a file of the server: {error}")))? {
            0 => break,
            _ => writer.send(piece.freeze()).await.map_err(guest_error)?,
        }
    }
    writer.finish().await.map_err(guest_error)?;
    Ok(())
}

/// The file that the client names.
#[derive(Debug, Deserialize)]
struct FilePath {
    #[serde(alias = "file_path")]
    path: String,
}

async fn bytes<S>(app: &App, caller: &Caller<S>, id: &str, asked: &FilePath) -> Result<Response> {
    let files = Files::open(app, caller, id).await?;
    let path = files.path(&asked.path)?;
    let sent = send(files.guest, path, &Method::GET, &HeaderMap::new()).await;
    sent.map_err(|error| match error {
        SendError::Engine(error) => Failure::of(&error),
        SendError::Range(_) => Failure::bad("there is no such range"),
    })
}

/// `read_file_contents`: as text.
async fn read(
    caller: Caller<Read>,
    State(app): State<App>,
    Path(id): Path<String>,
    Json(asked): Json<FilePath>,
) -> Result<Response> {
    let mut response = bytes(&app, &caller, &id, &asked).await?;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    Ok(response)
}

/// `download_file`: as bytes.
async fn download(
    caller: Caller<Read>,
    State(app): State<App>,
    Path(id): Path<String>,
    Json(asked): Json<FilePath>,
) -> Result<Response> {
    bytes(&app, &caller, &id, &asked).await
}

/// A text to write.
#[derive(Debug, Deserialize)]
struct Contents {
    file_path: String,
    contents: String,
}

/// `write_file_contents`: answers as a command that wrote the file would.
async fn write_contents(
    caller: Caller<Exec>,
    State(app): State<App>,
    Path(id): Path<String>,
    Json(asked): Json<Contents>,
) -> Result<Json<Value>> {
    let files = Files::open(&app, &caller, &id).await?;
    let path = files.path(&asked.file_path)?;
    let mut writer = files.writer(&path).await?;
    let told = |error| Failure::of(&guest_error(error));
    writer.send(Bytes::from(asked.contents)).await.map_err(told)?;
    writer.finish().await.map_err(told)?;
    let id = ids::of_sandbox(files.guest.sandbox());
    Ok(Json(json!({"devbox_id": id, "exit_status": 0, "stdout": "", "stderr": ""})))
}

/// `upload_file`: a form with `path` and `file`, in either order.
async fn upload(
    caller: Caller<Exec>,
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>> {
    let files = Files::open(&app, &caller, &id).await?;
    let mut form = Form::new(&headers, body).map_err(|error| Failure::of(&error))?;
    let mut path: Option<String> = None;
    // A file that comes before its path is written to another file in the sandbox first, and moved once the path is
    // known.
    let mut waiting: Option<String> = None;
    let mut written = false;
    let taken = async {
        while let Some(part) = form.next().await.map_err(|error| Failure::of(&error))? {
            match part.name.as_deref() {
                Some("path") => {
                    let text = form.text(PATH_MAX_BYTES).await.map_err(|error| Failure::of(&error))?;
                    path = Some(files.path(&text)?);
                }
                Some("file") if written || waiting.is_some() => {
                    return Err(Failure::bad("the form has more than one file"));
                }
                Some("file") => {
                    let to = match &path {
                        Some(path) => path.clone(),
                        None => waiting.insert(beside(&files)?).clone(),
                    };
                    put(&files, &to, &mut form).await?;
                    written = path.is_some();
                }
                Some(_) | None => {}
            }
        }
        Ok(())
    };
    let taken: Result<()> = taken.await;
    let done = match (taken, &path, &waiting) {
        (Err(failure), ..) => Err(failure),
        (Ok(()), None, _) => Err(Failure::bad("path: is missing in the form")),
        (Ok(()), Some(_), None) if !written => Err(Failure::bad("file: is missing in the form")),
        (Ok(()), Some(_), None) => return Ok(Json(json!({}))),
        (Ok(()), Some(path), Some(from)) => move_to(&files, from, path).await,
    };
    if done.is_err()
        && let Some(path) = waiting
    {
        drop(files.guest.remove(Remove { path, recursive: false }).await);
    }
    done.map(|()| Json(json!({})))
}

async fn move_to(files: &Files, from: &str, to: &str) -> Result<()> {
    let told = |error| Failure::of(&guest_error(error));
    if let Some((dir, _)) = to.rsplit_once('/').filter(|(dir, _)| !dir.is_empty()) {
        let (path, user) = (dir.to_owned(), files.user.clone());
        files.guest.mkdir(Mkdir { path, mode: 0, user, parents: true }).await.map_err(told)?;
    }
    let rename = Rename { from: from.to_owned(), to: to.to_owned(), no_replace: false };
    files.guest.rename(rename).await.map_err(told)
}

/// A random path in the user's home that no other upload uses.
fn beside(files: &Files) -> Result<String> {
    let mut bytes = [0_u8; 8];
    getrandom::fill(&mut bytes).map_err(|error| {
        tracing::error!(%error, "no randomness for an upload");
        Failure::of(&Error::new(Code::Internal, "the host's random generator failed"))
    })?;
    files.path(&format!(".upload-{:016x}", u64::from_le_bytes(bytes)))
}

async fn put(files: &Files, path: &str, form: &mut Form) -> Result<()> {
    let told = |error| Failure::of(&guest_error(error));
    let mut writer = files.writer(path).await?;
    // Dropping the writer before it finished leaves no file.
    while let Some(content) = form.chunk().await.map_err(|error| Failure::of(&error))? {
        writer.send(content).await.map_err(told)?;
    }
    writer.finish().await.map_err(told)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes() {
        let text = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user/:/bin/bash\nbad:x:1\n";
        let passwd = Passwd::from(text.to_owned());
        assert_eq!(home_in(&passwd, "user"), "/home/user");
        assert_eq!(home_in(&passwd, "1000"), "/home/user");
        assert_eq!(home_in(&Passwd::from(String::new()), "root"), "/root");
        assert_eq!(home_in(&passwd, "bad"), "");
    }

    #[test]
    fn paths() {
        let home = Home("/home/user".to_owned());
        for (from, to) in [("a b", "/home/user/a b"), ("~/a", "/home/user/a"), ("/a", "/a")] {
            assert_eq!(home.resolve(from).unwrap(), to);
        }
        assert!(home.resolve("a\0b").is_err());
        assert_eq!(Home(String::new()).resolve("a").unwrap(), "/a");
    }
}
