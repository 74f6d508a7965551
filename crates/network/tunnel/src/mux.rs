//! One connection, driven by one task.

use std::future::{Future, poll_fn};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};

use crate::STREAMS_MAX_COUNT;
use crate::stream::{Socket, Stream};

/// Accepted streams that wait to be taken; further ones are closed.
const ACCEPTED_MAX_COUNT: usize = 64;
/// Bytes that a stream may have under way before its window grows: yamux's own number.
const WINDOW_BYTES: usize = 256 << 10;

/// Which side of the connection this is: the two number their streams differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Opened the connection.
    Client,
    /// Accepted it.
    Server,
}

/// The connection is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the tunnel is closed")]
pub struct Closed;

/// A connection that carries streams.
#[derive(Debug)]
pub struct Mux<T> {
    connection: yamux::Connection<Socket<T>>,
}

type Reply = oneshot::Sender<Stream>;

/// Opens streams. Clones share the connection; it lives as long as its driver.
#[derive(Debug, Clone)]
pub struct Opener {
    requests: mpsc::Sender<Reply>,
}

/// Streams that the other side opened.
#[derive(Debug)]
pub struct Accepted {
    streams: mpsc::Receiver<Stream>,
}

impl Opener {
    /// Opens a stream.
    ///
    /// # Errors
    /// [`Closed`].
    pub async fn open(&self) -> Result<Stream, Closed> {
        let (reply, stream) = oneshot::channel();
        self.requests.send(reply).await.or(Err(Closed))?;
        stream.await.or(Err(Closed))
    }
}

impl Accepted {
    /// The next stream; `None` when the connection is gone.
    pub async fn next(&mut self) -> Option<Stream> {
        self.streams.recv().await
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Mux<T> {
    /// Speaks yamux over `socket`.
    pub fn new(socket: T, side: Side) -> Self {
        let mut config = yamux::Config::default();
        config
            .set_max_num_streams(STREAMS_MAX_COUNT)
            .set_max_connection_receive_window(Some(STREAMS_MAX_COUNT * WINDOW_BYTES));
        let mode = match side {
            Side::Client => yamux::Mode::Client,
            Side::Server => yamux::Mode::Server,
        };
        Self { connection: yamux::Connection::new(Socket::new(socket), config, mode) }
    }

    /// Both ends, and the driver: it has to be run, and ends with the connection. When it is dropped the
    /// connection is gone.
    pub fn split(self) -> (Opener, Accepted, impl Future<Output = ()> + Send + 'static) {
        let (requests, asked) = mpsc::channel(1);
        let (offer, streams) = mpsc::channel(ACCEPTED_MAX_COUNT);
        (Opener { requests }, Accepted { streams }, drive(self.connection, asked, offer))
    }
}

async fn drive<T: AsyncRead + AsyncWrite + Unpin>(
    mut connection: yamux::Connection<Socket<T>>,
    mut asked: mpsc::Receiver<Reply>,
    offer: mpsc::Sender<Stream>,
) {
    let mut waiting: Option<Reply> = None;
    poll_fn(|cx| {
        loop {
            if waiting.is_none()
                && let Poll::Ready(Some(reply)) = asked.poll_recv(cx)
            {
                waiting = Some(reply);
            }
            if waiting.is_some() {
                match connection.poll_new_outbound(cx) {
                    Poll::Ready(Ok(stream)) => {
                        // The task that asked may have gone: the stream is reset then.
                        if let Some(reply) = waiting.take() {
                            drop(reply.send(Stream::new(stream)));
                        }
                        continue;
                    }
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Pending => {}
                }
            }
            match inbound(&mut connection, cx) {
                // A stream that no task takes in time is reset by being dropped.
                Poll::Ready(Some(stream)) => drop(offer.try_send(stream)),
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
}

fn inbound<T: AsyncRead + AsyncWrite + Unpin>(
    connection: &mut yamux::Connection<Socket<T>>,
    cx: &mut Context<'_>,
) -> Poll<Option<Stream>> {
    connection.poll_next_inbound(cx).map(|next| next.and_then(Result::ok).map(Stream::new))
}
