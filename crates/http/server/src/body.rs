//! Request bodies: read whole up to a limit, or streamed with a limit on stalling.

use std::io;
use std::time::Duration;

use atoll_core::{Code, Error};
use axum::body::{Body, BodyDataStream};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt as _, stream};
use tokio::io::AsyncRead;
use tokio_util::io::StreamReader;

/// A body from which no byte comes for this long is given up.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// The pieces of a request's body.
#[derive(Debug)]
pub struct Pieces {
    stream: BodyDataStream,
}

impl Pieces {
    /// The pieces of this body.
    #[must_use]
    pub fn new(body: Body) -> Self {
        Self { stream: body.into_data_stream() }
    }

    /// The next piece, or `None` at the proper end.
    ///
    /// # Errors
    /// [`Code::Timeout`] when nothing comes, [`Code::InvalidArgument`] when the body breaks off.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        match tokio::time::timeout(STALL_TIMEOUT, self.stream.next()).await {
            Ok(Some(Ok(piece))) => Ok(Some(piece)),
            Ok(None) => Ok(None),
            Ok(Some(Err(error))) => {
                tracing::debug!(%error, "a request's body broke off");
                Err(Error::invalid("body", "it broke off before its end"))
            }
            Err(_elapsed) => Err(Error::new(Code::Timeout, "the request's body stopped coming")),
        }
    }
}

/// Reads a body whole.
///
/// # Errors
/// [`Code::TooLarge`] over `max` bytes; as [`Pieces::next`].
pub async fn read_all(body: Body, max: usize) -> Result<Bytes, Error> {
    let mut pieces = Pieces::new(body);
    let Some(first) = pieces.next().await? else { return Ok(Bytes::new()) };
    let check = |len: usize| {
        if len <= max {
            return Ok(());
        }
        Err(Error::new(Code::TooLarge, format!("the body is larger than {max} bytes"))
            .hint("send less at once"))
    };
    check(first.len())?;
    let Some(second) = pieces.next().await? else { return Ok(first) };
    let mut all = BytesMut::from(&first[..]);
    let mut next = Some(second);
    while let Some(piece) = next {
        check(all.len() + piece.len())?;
        all.extend_from_slice(&piece);
        next = pieces.next().await?;
    }
    Ok(all.freeze())
}

/// A body as a reader. An error of the body comes as an I/O error.
pub fn reader(body: Body) -> impl AsyncRead + Send + Unpin + 'static {
    let pieces = stream::try_unfold(Pieces::new(body), |mut pieces| async move {
        let piece = pieces.next().await.map_err(io::Error::other)?;
        Ok::<_, io::Error>(piece.map(|piece| (piece, pieces)))
    });
    StreamReader::new(Box::pin(pieces))
}
