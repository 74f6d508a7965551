//! Bulk data from a sandbox: streams that hold their lease on the guest.

mod file;
mod range;

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use atoll_core::Error;
use atoll_engine::{ByteStream, FileReader, GuestLease, guest_error};
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use futures::stream;
use http_body::{Frame, SizeHint};
use http_body_util::Full;

pub use self::file::OpenFile;
pub use self::range::{Wanted, wanted};

/// The source that bulk data is read from.
#[derive(Debug)]
pub enum Source {
    /// A file.
    File(Box<FileReader>),
    /// An archive made of files.
    Archive(ByteStream),
}

impl Source {
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        match self {
            Self::File(reader) => reader.next().await,
            Self::Archive(stream) => stream.next().await,
        }
        .map_err(guest_error)
    }
}

/// The body of an answer that is here as a whole, with the reader that has the memory for it.
fn held(bytes: Bytes, reader: FileReader) -> Body {
    Body::new(Held { body: Full::new(bytes), _reader: reader })
}

struct Held {
    body: Full<Bytes>,
    _reader: FileReader,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

struct Download {
    /// While it is held the sandbox is not idle.
    _lease: GuestLease,
    source: Source,
    /// Taken already: it comes first.
    first: Option<Bytes>,
    /// Bytes that were announced and are still to come; `None` when nothing was announced.
    left: Option<u64>,
}

/// The body of an answer. `length` bytes were announced: what goes beyond is cut (the file grew), and an
/// end before it breaks the connection off (the file shrank), so that the client notices.
pub fn body(lease: GuestLease, source: Source, first: Option<Bytes>, length: Option<u64>) -> Body {
    let download = Download { _lease: lease, source, first, left: length };
    Body::from_stream(stream::try_unfold(download, |mut download| async move {
        let piece = download.next().await.map_err(|error| {
            tracing::info!(%error, "a download broke off");
            io::Error::other(error)
        })?;
        Ok::<_, io::Error>(piece.map(|piece| (piece, download)))
    }))
}

impl Download {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        if self.left == Some(0) {
            return Ok(None);
        }
        let piece = match self.first.take() {
            Some(piece) => Some(piece),
            None => self.source.next().await?,
        };
        let Some(mut piece) = piece else {
            return match self.left {
                None => Ok(None),
                Some(_) => {
                    Err(Error::new(atoll_core::Code::InvalidState, "the file shrank while it was read"))
                }
            };
        };
        if let Some(left) = &mut self.left {
            piece.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= piece.len() as u64;
        }
        Ok(Some(piece))
    }
}
