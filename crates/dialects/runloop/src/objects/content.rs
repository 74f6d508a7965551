//! The content of objects: clients send it to and read it from signed addresses, and builds and devboxes read it.

use std::fs::File;
use std::io::{self, Read, Seek as _};

use atoll_core::id::KeyId;
use atoll_core::limits::BUILD_CONTEXT_MAX_BYTES;
use atoll_core::sharing::Needs;
use atoll_dialect_kit::request::Root;
use atoll_dialect_kit::spool::receive_while;
use atoll_engine::{Caller as EngineCaller, Grant, Target};
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use flate2::read::MultiGzDecoder;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{Extensions, StatusCode};
use serde::Deserialize;
use tokio::io::AsyncRead;
use tokio_util::io::{ReaderStream, SyncIoBridge};

use super::missing;
use super::shelf::{self, ContentType, Object};
use crate::App;
use crate::disk::{broken, work};
use crate::error::{Failure, Result};
use crate::request::{Caller, Query};

/// Most bytes of all objects together. A key has no more of them than it leaves to others.
const TOTAL_MAX_BYTES: u64 = 64 << 30;
/// Bytes of content that are in the pipe.
const PIPE_BYTES: usize = 256 << 10;

/// The signature in an address. It is in the query, which is not logged.
#[derive(Debug, Deserialize)]
pub(super) struct Signed {
    signature: String,
    /// Only in an address to read from: the time when it ends, milliseconds.
    until: Option<u64>,
}

/// The signature of an address: to send to, or to read from until `until`.
fn sign(object: &Object, until: Option<u64>) -> blake3::Hash {
    let key = blake3::derive_key("atoll runloop object address", object.secret.as_bytes());
    let what = until.map_or_else(|| "send".to_owned(), |until| format!("read {until}"));
    blake3::keyed_hash(&key, what.as_bytes())
}

pub(super) fn upload_address(root: &Root, object: &Object) -> String {
    format!("{root}/v1/objects/{}/content?signature={}", object.id, sign(object, None).to_hex())
}

pub(super) fn download_address(root: &Root, object: &Object, until: u64) -> String {
    let signature = sign(object, Some(until)).to_hex();
    format!("{root}/v1/objects/{}/content?until={until}&signature={signature}", object.id)
}

/// The object of a valid address, and the right of its key.
async fn by_address(app: &App, id: &str, signed: &Signed, needs: Needs) -> Result<(Object, Grant)> {
    let refused =
        || Failure::new(StatusCode::FORBIDDEN, "forbidden", "this address is not good, or not any more");
    let (shelf, name) = (app.objects.clone(), id.to_owned());
    let object = work(move || shelf.find(&name)).await?.ok_or_else(refused)?;
    let shown = blake3::Hash::from_hex(&signed.signature).map_err(|_no_hash| refused())?;
    // Hashes are compared in constant time.
    if shown != sign(&object, signed.until)
        || signed.until.is_some_and(|until| app.host.engine().now_ms() > until)
    {
        return Err(refused());
    }
    let owner: KeyId = object.owner.parse().map_err(|error| broken(&error))?;
    let key = app.host.engine().key_behind(&owner).map_err(|_gone| refused())?;
    let grant = app.host.engine().authorize(&EngineCaller::of(&key), needs, Target::Installation).await;
    Ok((object, grant.map_err(|_weak| refused())?))
}

/// Whether a key whose objects have so many bytes, of so many of all, may send more.
fn is_room(own: u64, all: u64) -> bool {
    TOTAL_MAX_BYTES.checked_sub(all).is_some_and(|left| own <= left)
}

/// `PUT`: takes the content.
pub(super) async fn take(
    State(app): State<App>,
    Path(id): Path<String>,
    Query(signed): Query<Signed>,
    request: Extensions,
    body: Body,
) -> Result<StatusCode> {
    if signed.until.is_some() {
        return Err(Failure::new(StatusCode::FORBIDDEN, "forbidden", "this address is to read from"));
    }
    let (object, grant) = by_address(&app, &id, &signed, Needs::MANAGE).await?;
    let coming = grant.caller().map(|by| app.objects.coming(by));
    app.host.fill_signed_object(&request, grant, &object.id)?;
    let (shelf, owner) = (app.objects.clone(), object.owner.parse().map_err(|error| broken(&error))?);
    let (own, all) = work(move || shelf.totals(&owner)).await?;
    if !is_room(own.bytes, all.bytes) {
        return Err(Failure::new(
            StatusCode::INSUFFICIENT_STORAGE,
            "too_many",
            "the objects of this server, or those of this key, are too large together: delete some",
        ));
    }
    let beside = app.objects.beside(&object.id).map_err(|error| broken(&error))?;
    // What is on its way is on the disk already: there is so much of it at once.
    let mut coming = coming.ok_or_else(|| broken(&"a right of no key"))?;
    let may = |piece: &[u8]| coming.grow(piece.len());
    let filled = match receive_while(&beside, body, BUILD_CONTEXT_MAX_BYTES, may).await {
        Ok(size) => {
            let (shelf, id, place) = (app.objects.clone(), object.id.clone(), beside.clone());
            work(move || shelf.fill(&id, &place, size)).await
        }
        Err(error) => Err(Failure::of(&error)),
    };
    match filled {
        Ok(Some(())) => Ok(StatusCode::OK),
        Ok(None) => {
            drop(tokio::fs::remove_file(&beside).await);
            Err(Failure::bad("the object is closed: its content stays as it is"))
        }
        Err(failure) => {
            drop(tokio::fs::remove_file(&beside).await);
            Err(failure)
        }
    }
}

/// `GET`: gives the content.
pub(super) async fn give(
    State(app): State<App>,
    Path(id): Path<String>,
    Query(signed): Query<Signed>,
    request: Extensions,
) -> Result<Response> {
    if signed.until.is_none() {
        return Err(Failure::new(StatusCode::FORBIDDEN, "forbidden", "this address is to send to"));
    }
    let (object, grant) = by_address(&app, &id, &signed, Needs::READ).await?;
    app.host.fill_signed_object(&request, grant, &object.id)?;
    check_closed(&object)?;
    let (shelf, opened) = (app.objects.clone(), object.clone());
    let file = work(move || shelf.open(&opened)).await?;
    let kind = match object.content_type {
        ContentType::Text => "text/plain; charset=utf-8",
        ContentType::Gzip | ContentType::Tgz => "application/gzip",
        ContentType::Tar => "application/x-tar",
        ContentType::Binary | ContentType::Unspecified => "application/octet-stream",
    };
    let length = object.size_bytes.unwrap_or(0).to_string();
    let body = Body::from_stream(ReaderStream::with_capacity(tokio::fs::File::from_std(file), PIPE_BYTES));
    Ok(([(CONTENT_TYPE, kind.to_owned()), (CONTENT_LENGTH, length)], body).into_response())
}

/// Checks that the content can be read.
///
/// # Errors
/// 400.
pub(super) fn check_closed(object: &Object) -> Result<()> {
    if object.state == shelf::State::ReadOnly {
        return Ok(());
    }
    Err(Failure::bad(format!("object {}: was not completed yet", object.id)))
}

/// An object whose content can be read, even if the object is deleted meanwhile.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) id: String,
    is_archive: bool,
    file: File,
}

impl Opened {
    /// Opens an object of a key.
    ///
    /// # Errors
    /// 404; 400 when it is not complete.
    pub(crate) async fn new<S>(app: &App, caller: &Caller<S>, id: &str) -> Result<Self> {
        let object = super::find(app, caller, id).await?;
        check_closed(&object)?;
        let (shelf, opened) = (app.objects.clone(), object.clone());
        let file = work(move || shelf.open(&opened)).await.map_err(|_gone| missing(id))?;
        let is_archive = matches!(object.content_type, ContentType::Tar | ContentType::Tgz);
        Ok(Self { id: object.id, is_archive, file })
    }

    /// Whether it is unpacked where it is mounted.
    pub(crate) const fn is_archive(&self) -> bool {
        self.is_archive
    }

    /// Its bytes.
    pub(crate) fn into_file(self) -> tokio::fs::File {
        tokio::fs::File::from_std(self.file)
    }

    /// The content as an archive without compression.
    pub(crate) fn into_tar(self) -> impl AsyncRead + Send + Unpin + 'static {
        let (reader, writer) = tokio::io::duplex(PIPE_BYTES);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = unzip(self.file, &mut SyncIoBridge::new(writer)) {
                // Without its end the engine refuses the archive.
                tracing::info!(%error, "an object is no archive");
            }
        });
        reader
    }
}

fn unzip(mut file: File, to: &mut impl io::Write) -> io::Result<u64> {
    let mut magic = [0_u8; 2];
    let len = file.read(&mut magic)?;
    file.rewind()?;
    let plain: Box<dyn Read> = match &magic[..len] {
        [0x1f, 0x8b] => Box::new(MultiGzDecoder::new(io::BufReader::new(file))),
        _ => Box::new(file),
    };
    io::copy(&mut plain.take(BUILD_CONTEXT_MAX_BYTES), to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_leaves_room_for_the_objects_of_others() {
        let half = TOTAL_MAX_BYTES / 2;
        assert!(is_room(0, 0) && is_room(half, half));
        assert!(!is_room(half + 1, half + 1), "more than it leaves to others");
        assert!(is_room(0, half + 1), "others have their part still");
        assert!(is_room(0, TOTAL_MAX_BYTES) && !is_room(1, TOTAL_MAX_BYTES));
        assert!(!is_room(0, TOTAL_MAX_BYTES + 1));
    }
}
