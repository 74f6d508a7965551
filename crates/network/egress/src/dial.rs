//! Connects to the outside, and gives a stream that is counted.

use std::future::Future as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context as Task, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use crate::bucket::{Bucket, Due};
use crate::budget::Budget;
use crate::config::UpstreamProxy;
use crate::connection::Context;
use crate::limits::DIAL_TIMEOUT;
use crate::sandbox::Meter;
use crate::upstream;

/// Why the outside could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The connection is no longer allowed.
    #[error("the connection is no longer allowed")]
    Cancelled,
    /// The policy lets nothing pass there.
    #[error("the policy lets nothing pass there")]
    Forbidden,
    /// It took too long.
    #[error("connecting took longer than {} seconds", DIAL_TIMEOUT.as_secs())]
    Timeout,
    /// The network or the server refused.
    #[error("the other side cannot be reached: {0}")]
    Refused(#[source] io::Error),
    /// The upstream proxy refused.
    #[error("the upstream proxy refused: {0}")]
    Proxy(String),
}

/// Whether an address is one of the host's own: packets to it would leave from itself.
pub(crate) fn is_own(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting a datagram socket asks for the route and sends nothing.
    let route = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((address, 1))?;
        socket.local_addr()
    };
    // Without a route there is nothing to be reached either.
    route().is_ok_and(|local: SocketAddr| local.ip() == address)
}

/// Connects, through the proxy if there is one.
pub(crate) async fn dial(proxy: Option<&UpstreamProxy>, address: SocketAddr) -> Result<TcpStream, DialError> {
    let connect = async {
        let stream = match proxy {
            None => TcpStream::connect(address).await.map_err(DialError::Refused)?,
            Some(proxy) => upstream::connect(proxy, address).await?,
        };
        // Small messages must not wait for one another; both settings are optimisations.
        drop(stream.set_nodelay(true));
        let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
        Ok(stream)
    };
    tokio::time::timeout(DIAL_TIMEOUT, connect).await.unwrap_or(Err(DialError::Timeout))
}

/// A connection to the outside. Reading and writing are counted, and held to the sandbox's bandwidth.
#[derive(Debug)]
pub struct UpstreamStream {
    stream: TcpStream,
    account: Account,
    reading: Option<Resting>,
    writing: Option<Resting>,
}

/// A rest until what was read or written is paid.
#[derive(Debug)]
struct Resting {
    due: Due,
    sleep: Pin<Box<Sleep>>,
}

/// Where bytes of one connection to the outside are counted.
#[derive(Debug, Clone)]
pub(crate) struct Account {
    context: Context,
    destination: Arc<Meter>,
}

impl Account {
    /// Counts bytes that left the sandbox, and says when they are paid.
    pub(crate) fn sent(&self, bytes: usize) -> Option<Due> {
        for meter in [&self.context.net.total, &self.context.connection.meter, &self.destination] {
            meter.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        self.context.net.up.charge(bytes)
    }

    /// Counts bytes that came into the sandbox, and says when they are paid.
    pub(crate) fn received(&self, bytes: usize) -> Option<Due> {
        for meter in [&self.context.net.total, &self.context.connection.meter, &self.destination] {
            meter.received.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        self.context.net.down.charge(bytes)
    }

    pub(crate) fn up(&self) -> &Bucket {
        &self.context.net.up
    }

    pub(crate) fn down(&self) -> &Bucket {
        &self.context.net.down
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.context.net.budget
    }
}

impl UpstreamStream {
    pub(crate) fn new(stream: TcpStream, context: Context, destination: Arc<Meter>) -> Self {
        Self { stream, account: Account { context, destination }, reading: None, writing: None }
    }

    /// The bare socket, and where its bytes are to be counted.
    pub(crate) fn into_parts(self) -> (TcpStream, Account) {
        (self.stream, self.account)
    }
}

/// Waits out a rest.
fn rest(resting: &mut Option<Resting>, bucket: &Bucket, task: &mut Task<'_>) -> Poll<()> {
    while let Some(Resting { due, sleep }) = resting {
        ready!(sleep.as_mut().poll(task));
        let more = bucket.rest(*due);
        if more.is_zero() {
            *resting = None;
        } else {
            sleep.as_mut().reset(Instant::now() + more);
        }
    }
    Poll::Ready(())
}

fn pause(due: Option<Due>, bucket: &Bucket) -> Option<Resting> {
    due.map(|due| Resting { due, sleep: Box::pin(tokio::time::sleep(bucket.rest(due))) })
}

impl AsyncRead for UpstreamStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        task: &mut Task<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(rest(&mut this.reading, this.account.down(), task));
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(task, buf))?;
        let count = buf.filled().len() - before;
        this.reading = pause(this.account.received(count), this.account.down());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(mut self: Pin<&mut Self>, task: &mut Task<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        ready!(rest(&mut this.writing, this.account.up(), task));
        let portion = this.account.up().portion().unwrap_or(usize::MAX).min(buf.len());
        let count = ready!(Pin::new(&mut this.stream).poll_write(task, &buf[..portion]))?;
        this.writing = pause(this.account.sent(count), this.account.up());
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(task)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(task)
    }
}
