//! Content that travels over plain HTTP beside the calls: the server gives the clients an address, and they send to it
//! or read from it with nothing else. An address is a ticket: random, for one purpose, for an hour, and valid as long
//! as the key that got it.
//!
//! Content that clients send is kept by its hash with the files of images ([`images`](super::images)); content that
//! they read is a part of a file of a volume.

use std::collections::HashMap;
use std::io::SeekFrom;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::id::{KeyId, VolumeId};
use atoll_core::key::Scope;
use atoll_core::sharing::Needs;
use atoll_dialect_kit::sentence;
use atoll_dialect_kit::spool::receive_with;
use atoll_dialect_kit::status::Status;
use atoll_dialect_kit::time::now_ms;
use atoll_engine::{Grant, Target};
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::header::{CONTENT_LENGTH, ETAG};
use http::{Method, StatusCode};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio_util::io::ReaderStream;

use super::images::{self, Coming};
use crate::App;
use crate::auth::{Asker, Head};
use crate::grpc::{Fault, Result};
use crate::wire::content::{BlobCreateRequest, BlobCreateResponse, UploadUrlList};

/// The addresses lie below it.
pub(crate) const PREFIX: &str = "/modal";
/// Bytes of a block of a file.
pub(super) const BLOCK_BYTES: u64 = 8 << 20;
/// Most bytes of one content that a client sends.
const BLOB_MAX_BYTES: u64 = 4 << 30;
/// Most tickets of all keys together, and of one key.
const TICKETS_MAX: usize = 20_000;
const OF_KEY_MAX: usize = 5000;
/// How long a ticket is good, milliseconds.
const GOOD_MS: u64 = 3600 * 1000;
/// Most addresses in one answer.
const ADDRESSES_MAX: u64 = 8192;
/// Bytes read at once.
const PIECE_BYTES: usize = 128 << 10;

/// The purpose of a ticket.
#[derive(Debug, Clone)]
enum For {
    /// Sending a content with this hash, of at most so many bytes. The answer gives `tag` to the sender.
    Send { sha256: String, max_bytes: u64, tag: Option<String> },
    /// Reading a part of a file of a volume.
    Read { volume: VolumeId, path: String, start: u64, len: u64 },
}

#[derive(Debug, Clone)]
struct Ticket {
    owner: KeyId,
    grant: Grant,
    at_ms: u64,
    what: For,
}

/// Tickets that are good. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tickets {
    table: Arc<Mutex<HashMap<String, Ticket>>>,
    /// Bytes that may still come of contents that are being sent, by the keys that send them.
    coming: Arc<Mutex<HashMap<KeyId, u64>>>,
}

/// Room for a content that is being sent.
struct Room {
    coming: Arc<Mutex<HashMap<KeyId, u64>>>,
    key: KeyId,
    bytes: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        // The map stays usable when a task panics while it holds the lock.
        let mut coming = self.coming.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = coming.get_mut(&self.key) {
            *own = own.saturating_sub(self.bytes);
            if *own == 0 {
                coming.remove(&self.key);
            }
        }
    }
}

impl Tickets {
    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<String, Ticket>> {
        // The map stays usable when a task panics while it holds the lock.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves so many bytes for a key. Gives the reservation, and how many bytes are reserved now.
    fn room(&self, key: &KeyId, bytes: u64) -> (Room, Coming) {
        let mut coming = self.coming.lock().unwrap_or_else(PoisonError::into_inner);
        let own = coming.entry(key.clone()).or_default();
        *own = own.saturating_add(bytes);
        let now = Coming { own: *own, all: coming.values().copied().fold(0, u64::saturating_add) };
        (Room { coming: Arc::clone(&self.coming), key: key.clone(), bytes }, now)
    }

    /// Makes the address for a purpose that this grant allows.
    fn issue(&self, asker: &Asker, grant: Grant, what: For) -> Result<(String, String)> {
        let mut random = [0_u8; 32];
        getrandom::fill(&mut random).map_err(|error| {
            tracing::error!(%error, "the kernel gave no randomness");
            Fault::new(Status::Internal, "the host's random generator failed")
        })?;
        let (id, now) = (hex::encode(random), now_ms());
        let mut table = self.table();
        table.retain(|_, ticket| ticket.at_ms.saturating_add(GOOD_MS) > now);
        let own = table.values().filter(|ticket| ticket.owner == *asker.key()).count();
        if table.len() >= TICKETS_MAX || own >= OF_KEY_MAX {
            return Err(Fault::new(Status::ResourceExhausted, "too many files are under way"));
        }
        table.insert(id.clone(), Ticket { owner: asker.key().clone(), grant, at_ms: now, what });
        let scheme = if asker.head.encrypted { "https" } else { "http" };
        let url = format!("{scheme}://{}{PREFIX}/content/{id}", asker.head.authority);
        Ok((id, url))
    }

    fn find(&self, id: &str) -> Option<Ticket> {
        let now = now_ms();
        self.table().get(id).filter(|ticket| ticket.at_ms.saturating_add(GOOD_MS) > now).cloned()
    }
}

/// The address to send a content to; it works as long as its sender may send files.
pub(super) async fn address_to_send(asker: &Asker, sha256: String, max_bytes: u64) -> Result<String> {
    let grant = asker.grant(Needs::MANAGE, Target::Installation).await?;
    Ok(asker.app.control.tickets.issue(asker, grant, For::Send { sha256, max_bytes, tag: None })?.1)
}

/// The addresses of the blocks of a part of a file.
pub(super) fn addresses_to_read(
    asker: &Asker,
    grant: Grant,
    volume: VolumeId,
    path: String,
    start: u64,
    len: u64,
) -> Result<Vec<String>> {
    let blocks = blocks(start, len)?;
    let (_, url) = asker.app.control.tickets.issue(asker, grant, For::Read { volume, path, start, len })?;
    Ok((0..blocks).map(|block| format!("{url}/{block}")).collect())
}

/// How many blocks a part of a file has.
///
/// # Errors
/// `INVALID_ARGUMENT` for more than one answer may have: a file that is all hole takes no room, whatever its size.
fn blocks(start: u64, len: u64) -> Result<u64> {
    let end = start.saturating_add(len).div_ceil(BLOCK_BYTES);
    let blocks = if len == 0 { 0 } else { end - start / BLOCK_BYTES };
    if blocks > ADDRESSES_MAX {
        let most = (ADDRESSES_MAX * BLOCK_BYTES) >> 30;
        return Err(Fault::invalid(format!("a call reads {most} GiB at most: ask for parts of the file")));
    }
    Ok(blocks)
}

/// The part of a block that lies in a part of a file: where it begins, and its length.
fn span(start: u64, len: u64, block: u64) -> Option<(u64, u64)> {
    let first = (start / BLOCK_BYTES).checked_add(block)?.checked_mul(BLOCK_BYTES)?;
    let (from, to) = (first.max(start), first.checked_add(BLOCK_BYTES)?.min(start + len));
    (from < to).then(|| (from, to - from))
}

/// `BlobCreate`: the client announces a content that is too large for a call.
pub(super) async fn create(asker: &Asker, request: BlobCreateRequest) -> Result<BlobCreateResponse> {
    asker.needs(Scope::Manage)?;
    let digest = |text: &str, bytes: usize| {
        let digest = BASE64_STANDARD.decode(text).ok().filter(|digest| digest.len() == bytes);
        digest.map(hex::encode).ok_or_else(|| Fault::invalid("a digest is not what it should be"))
    };
    let sha256 = digest(&request.content_sha256_base64, 32)?;
    let tag = (!request.content_md5.is_empty()).then(|| digest(&request.content_md5, 16)).transpose()?;
    let max_bytes = u64::try_from(request.content_length).ok().filter(|length| *length <= BLOB_MAX_BYTES);
    let max_bytes = max_bytes.ok_or_else(|| {
        let why = format!("a file may have {} GiB at most", BLOB_MAX_BYTES >> 30);
        Fault::new(Status::ResourceExhausted, why)
    })?;
    let grant = asker.grant(Needs::MANAGE, Target::Installation).await?;
    let what = For::Send { sha256, max_bytes, tag };
    let (id, url) = asker.app.control.tickets.issue(asker, grant, what)?;
    let blob_id = format!("bl-{id}");
    Ok(BlobCreateResponse {
        blob_id: blob_id.clone(),
        // Older clients read this one.
        upload_url: Some(url.clone()),
        blob_ids: vec![blob_id],
        upload_urls: Some(UploadUrlList { items: vec![url] }),
    })
}

fn refused(status: StatusCode, why: impl Into<String>) -> Response {
    (status, why.into()).into_response()
}

/// Serves an address.
pub(crate) async fn serve(app: App, head: Head, method: Method, path: &str, body: Body) -> Response {
    let mut parts = path.trim_start_matches('/').split('/');
    let known = (parts.next() == Some("content")).then(|| parts.next()).flatten();
    let Some((id, ticket)) = known.and_then(|id| Some((id, app.control.tickets.find(id)?))) else {
        return refused(StatusCode::NOT_FOUND, "there is no such address, or it has expired");
    };
    let block = parts.next().map(str::parse::<u64>);
    match (method, ticket.what, block) {
        (Method::PUT, For::Send { sha256, max_bytes, tag }, None) => {
            let to = Sent { owner: ticket.owner, sha256, max_bytes };
            if let Err(error) = app.host.engine().recheck(&ticket.grant, Needs::MANAGE) {
                return refused(StatusCode::FORBIDDEN, sentence(&error));
            }
            if let Err(error) = app.host.fill_signed_object(head.extensions(), ticket.grant, id) {
                return refused(StatusCode::TOO_MANY_REQUESTS, sentence(&error));
            }
            match take(&app, &to, body).await {
                Ok(()) => {
                    (StatusCode::OK, [(ETAG, format!("\"{}\"", tag.unwrap_or(to.sha256)))]).into_response()
                }
                Err(fault) => refused(fault.status.http(), fault.message),
            }
        }
        (Method::GET, For::Read { volume, path, start, len }, Some(Ok(block))) => {
            if let Err(error) = app.host.engine().recheck(&ticket.grant, Needs::READ) {
                return refused(StatusCode::FORBIDDEN, sentence(&error));
            }
            if let Err(error) = app.host.fill_signed_object(head.extensions(), ticket.grant, id) {
                return refused(StatusCode::TOO_MANY_REQUESTS, sentence(&error));
            }
            let Some(span) = span(start, len, block) else {
                return refused(StatusCode::NOT_FOUND, "the file has no such block");
            };
            match give(&app, &volume, &path, span).await {
                Ok(response) => response,
                Err(fault) => refused(fault.status.http(), fault.message),
            }
        }
        _ => refused(StatusCode::METHOD_NOT_ALLOWED, "the address is not for this"),
    }
}

/// A content that a client sends, and the key that owns it then.
struct Sent {
    owner: KeyId,
    sha256: String,
    max_bytes: u64,
}

/// Keeps a content, as a whole or not at all.
async fn take(app: &App, to: &Sent, body: Body) -> Result<()> {
    let (_room, together) = app.control.tickets.room(&to.owner, to.max_bytes);
    let beside = images::beside(app.host.engine(), &to.owner, together).await?;
    let mut hash = Sha256::new();
    let received = receive_with(&beside, body, to.max_bytes, |piece| hash.update(piece)).await;
    let checked = received.map_err(Fault::from).and_then(|_size| {
        if hex::encode(hash.finalize()) == to.sha256 {
            return Ok(());
        }
        Err(Fault::invalid("the content is not what its hash says"))
    });
    let kept = match checked {
        Ok(()) => images::put_in_place(app.host.engine(), &to.owner, &to.sha256, &beside).await,
        Err(fault) => Err(fault),
    };
    if kept.is_err() {
        drop(tokio::fs::remove_file(&beside).await);
    }
    kept
}

/// A part of a file as it is now.
async fn give(app: &App, volume: &VolumeId, path: &str, (from, len): (u64, u64)) -> Result<Response> {
    let broken = |error: std::io::Error| {
        tracing::error!(%error, "a file of a volume cannot be read");
        Fault::new(Status::Internal, "the file cannot be read")
    };
    let mut file = tokio::fs::File::from_std(app.host.engine().read_in_volume(volume, path).await?);
    let whole = file.metadata().await.map_err(broken)?.len();
    // The file may have become shorter since the client asked: the clients read zeros for the rest.
    let len = len.min(whole.saturating_sub(from));
    file.seek(SeekFrom::Start(from)).await.map_err(broken)?;
    let bytes = ReaderStream::with_capacity(file.take(len), PIECE_BYTES);
    let mut response = Body::from_stream(bytes).into_response();
    response.headers_mut().insert(CONTENT_LENGTH, len.into());
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_so_many_addresses() {
        assert_eq!(blocks(0, 0).unwrap(), 0);
        assert_eq!(blocks(BLOCK_BYTES - 1, 2).unwrap(), 2);
        assert_eq!(blocks(0, ADDRESSES_MAX * BLOCK_BYTES).unwrap(), ADDRESSES_MAX);
        assert!(blocks(1, ADDRESSES_MAX * BLOCK_BYTES).is_err());
        assert!(blocks(0, 16 << 40).is_err() && blocks(u64::MAX, u64::MAX).is_ok_and(|blocks| blocks <= 1));
    }

    #[test]
    fn blocks_lie_on_multiples() {
        let block = BLOCK_BYTES;
        assert_eq!(span(0, 10, 0), Some((0, 10)));
        assert_eq!(span(0, 10, 1), None);
        assert_eq!(span(0, block + 1, 1), Some((block, 1)));
        assert_eq!(span(block - 1, 2, 0), Some((block - 1, 1)));
        assert_eq!(span(block - 1, 2, 1), Some((block, 1)));
        assert_eq!(span(0, 0, 0), None);
        assert_eq!(span(u64::MAX - 1, 1, u64::MAX), None);
    }
}
