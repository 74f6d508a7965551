//! Ports: the client's way in (`-L`, `-D`, `-W`), and a port inside that comes out at the client (`-R`).

use std::io;
use std::sync::Arc;

use atoll_core::Code;
use atoll_engine::{Engine, PortConnection, PortListener};
use russh::server::{ChannelOpenHandle, Handle, Msg};
use russh::{Channel, ChannelOpenFailure, ChannelWriteHalf};
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::inbox::{Event, Inbox, Inboxes};
use crate::login::Login;

/// Bytes of a connection that are under way in each direction.
const RELAY_BYTES: usize = 32 << 10;

/// Whether a host means the sandbox itself. Hosts outside are for the sandbox's network policy: commands inside reach
/// them, if they may.
pub(crate) fn is_inside(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host
            .trim_matches(['[', ']'])
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified())
}

/// A connection of the client to a port inside.
pub(crate) async fn direct(engine: &Engine, login: &Login, port: u16, ends: Ends, reply: ChannelOpenHandle) {
    let (lease, connection) = match engine.connect_port(&login.sandbox, port).await {
        Ok(connected) => connected,
        Err(error) => {
            tracing::debug!(%error, port, "a forwarded connection was refused");
            let reason = match error.code {
                Code::LimitExceeded => ChannelOpenFailure::ResourceShortage,
                _ => ChannelOpenFailure::ConnectFailed,
            };
            return reply.reject(reason).await;
        }
    };
    reply.accept().await;
    let dead = lease.dead();
    tokio::select! {
        ended = relay(ends, connection) => log_end(ended),
        () = dead => {}
    }
}

/// The client, for connections that are made to its ports.
pub(crate) struct Toward {
    pub(crate) handle: Handle,
    pub(crate) inboxes: Inboxes,
    /// Bounds the channels that are opened to it, for all ports together.
    pub(crate) channels: Arc<Semaphore>,
}

/// Carries connections that programs in the sandbox make to a port that the client shows there. Those that are too many end
/// at once.
pub(crate) async fn reverse(mut listener: PortListener, address: String, toward: Toward) {
    let Toward { handle, inboxes, channels } = toward;
    let port = listener.port();
    let mut connections = JoinSet::new();
    while let Some(accepted) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let Ok(connection) = accepted else { continue };
        let Ok(permit) = Arc::clone(&channels).try_acquire_owned() else { continue };
        let (handle, address, inboxes) = (handle.clone(), address.clone(), inboxes.clone());
        connections.spawn(async move {
            let _channel = permit;
            match handle.channel_open_forwarded_tcpip(address, port.into(), "127.0.0.1", 0).await {
                Ok(channel) => log_end(relay(Ends::new(channel, &inboxes), connection).await),
                Err(error) => tracing::debug!(%error, port, "the client did not take a connection"),
            }
        });
    }
}

/// Both ends of a channel.
pub(crate) struct Ends {
    pub(crate) inbox: Inbox,
    pub(crate) writer: ChannelWriteHalf<Msg>,
}

impl Ends {
    /// The ends of a new channel. Incoming data goes through its inbox alone: the library's own queue is not used.
    pub(crate) fn new(channel: Channel<Msg>, inboxes: &Inboxes) -> Self {
        let inbox = inboxes.open(channel.id());
        let (_unused, writer) = channel.split();
        Self { inbox, writer }
    }
}

/// Passes bytes on both ways until both directions ended, or the client closed the channel.
async fn relay(ends: Ends, connection: PortConnection) -> io::Result<()> {
    let Ends { mut inbox, writer } = ends;
    let closed = inbox.closed();
    let (from_port, mut to_port) = tokio::io::split(connection);
    let up = async {
        while let Some(event) = inbox.next().await {
            match event {
                Event::Data(bytes) => to_port.write_all(&bytes).await?,
                Event::Eof => {
                    to_port.shutdown().await?;
                    return Ok(());
                }
                _ => {}
            }
        }
        Err(io::ErrorKind::ConnectionAborted.into())
    };
    let down = async {
        let mut out = writer.make_writer();
        let mut from_port = BufReader::with_capacity(RELAY_BYTES, from_port);
        tokio::io::copy_buf(&mut from_port, &mut out).await?;
        writer.eof().await.map_err(io::Error::other)
    };
    let mut down = std::pin::pin!(down);
    let mut up = std::pin::pin!(up);
    let done = tokio::select! {
        sent = &mut up => match sent {
            Ok(()) => tokio::select! {
                done = down => done,
                () = closed => Ok(()),
            },
            Err(error) => Err(error),
        },
        got = &mut down => match got {
            Ok(()) => up.await,
            Err(error) => Err(error),
        },
    };
    // The client may have gone.
    drop(writer.close().await);
    done
}

fn log_end(ended: io::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a forwarded connection ended");
    }
}

#[cfg(test)]
mod tests {
    use super::is_inside;

    #[test]
    fn only_the_sandbox_itself() {
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3", "::1", "[::1]", "0.0.0.0"] {
            assert!(is_inside(host), "{host}");
        }
        for host in ["10.0.0.1", "example.com", "localhost.example.com", "169.254.169.254", ""] {
            assert!(!is_inside(host), "{host}");
        }
    }
}
