//! Ports: the client's way in (`-L`, `-D`, `-W`), and a port inside that comes out at the client (`-R`).

use std::io;

use atoll_core::Code;
use atoll_engine::{Engine, PortConnection, PortListener};
use russh::server::{ChannelOpenHandle, Handle, Msg};
use russh::{Channel, ChannelOpenFailure};
use tokio::task::JoinSet;

use crate::login::Login;

/// Bytes of a connection that are under way in each direction.
const RELAY_BYTES: usize = 32 << 10;

/// Whether a host means the sandbox itself. What lies beyond is for its own network policy: commands inside
/// reach it, if they may.
pub(crate) fn is_inside(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host
            .trim_matches(['[', ']'])
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified())
}

/// A connection of the client to a port inside.
pub(crate) async fn direct(
    engine: &Engine,
    login: &Login,
    port: u16,
    channel: Channel<Msg>,
    reply: ChannelOpenHandle,
) {
    let (lease, connection) = match engine.connect_port(login.sandbox.as_str(), port).await {
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
        ended = relay(channel, connection) => log_end(ended),
        () = dead => {}
    }
}

/// Connections that somebody inside makes to a port that the client shows there.
pub(crate) async fn reverse(mut listener: PortListener, address: String, handle: Handle) {
    let port = listener.port();
    let mut connections = JoinSet::new();
    while let Some(accepted) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let Ok(connection) = accepted else { continue };
        let (handle, address) = (handle.clone(), address.clone());
        connections.spawn(async move {
            match handle.channel_open_forwarded_tcpip(address, port.into(), "127.0.0.1", 0).await {
                Ok(channel) => log_end(relay(channel, connection).await),
                Err(error) => tracing::debug!(%error, port, "the client did not take a connection"),
            }
        });
    }
}

async fn relay(channel: Channel<Msg>, mut connection: PortConnection) -> io::Result<()> {
    let mut channel = channel.into_stream();
    tokio::io::copy_bidirectional_with_sizes(&mut channel, &mut connection, RELAY_BYTES, RELAY_BYTES)
        .await
        .map(drop)
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
