//! One session over standard input and output.

use std::pin::Pin;
use std::task::{Context, Poll};

use atoll_client::Client;
use rmcp::ServiceExt as _;
use rmcp::model::ProtocolVersion;
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::sync::CancellationToken;

use crate::session::{Preset, Session};
use crate::tools::Tools;

/// Serves one session until the client closes standard input or `stopped` is cancelled, and then removes what the session
/// made. Returns the ids of sandboxes that are left: all when they are to be kept, else those that could not be removed.
///
/// # Errors
/// When the client does not speak the protocol, or cannot be written to.
pub async fn serve_stdio(
    client: Client,
    preset: Preset,
    stopped: CancellationToken,
) -> std::io::Result<Vec<String>> {
    let session = Session::new(client, preset, &stopped);
    let (input, output) = rmcp::transport::io::stdio();
    let input = Watched { input, ended: session.ended.clone() };
    let newest = ProtocolVersion::LATEST;
    let served = match Tools::new(session.clone(), newest).serve_with_ct((input, output), stopped).await {
        Ok(running) => running.waiting().await.map(drop).map_err(std::io::Error::other),
        // Standard input that ends before anything was asked is no error.
        Err(_) if session.ended.is_cancelled() => Ok(()),
        Err(error) => Err(std::io::Error::other(error)),
    };
    let left = session.close().await;
    served.map(|()| left)
}

/// Standard input that tells the session of its end, so that commands that still run for the client are killed at once.
struct Watched<R> {
    input: R,
    ended: CancellationToken,
}

impl<R: AsyncRead + Unpin> AsyncRead for Watched<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.input).poll_read(cx, buf);
        if let Poll::Ready(result) = &polled
            && (result.is_err() || (buf.filled().len() == before && buf.remaining() > 0))
        {
            self.ended.cancel();
        }
        polled
    }
}
