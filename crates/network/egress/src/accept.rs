//! Accepts connections that arrive at a sandbox's gate.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::network::Stage;
use atoll_core::policy::Sender;
use atoll_isolation::{Attribution, Gate, Original};
use rustix::net::sockopt::{ip_original_dst, set_socket_linger};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use crate::client::ClientStream;
use crate::connection::Context;
use crate::dns;
use crate::gateway::Shared;
use crate::http;
use crate::refusal::Refusal;
use crate::route::route;
use crate::sandbox::SandboxNet;

/// How long to rest when the host has no descriptor left for a connection.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// Addresses that mean the gateway itself.
#[derive(Debug, Clone, Copy)]
struct Own {
    proxy: SocketAddr,
    resolver: SocketAddr,
    original: Original,
}

/// Starts serving a gate until the sandbox is let go of.
pub(crate) fn spawn(shared: &Arc<Shared>, net: &Arc<SandboxNet>, gate: Gate) -> io::Result<()> {
    let Gate { tcp, dns, proxy, resolver, original, steering, attribution } = gate;
    // Both before anything is served: what fails here leaves no network that nobody can change or end.
    let listener = TcpListener::from_std(tcp)?;
    let dns = dns.map(UdpSocket::from_std).transpose()?;
    let own = Own { proxy, resolver, original };
    let (to_accept, accepting) = (Arc::clone(shared), Arc::clone(net));
    tokio::spawn(async move {
        let closed = accepting.closed.clone();
        tokio::select! {
            () = accept(&to_accept, &accepting, &listener, own, attribution.as_deref()) => {}
            () = closed.cancelled() => {}
        }
        drop(steering);
    });
    let Some(dns) = dns else {
        tracing::warn!(sandbox = %net.id, "a program inside has taken the resolver's address: no names there");
        return Ok(());
    };
    let socket = Arc::new(dns);
    let (shared, net) = (Arc::clone(shared), Arc::clone(net));
    tokio::spawn(async move {
        let closed = net.closed.clone();
        tokio::select! {
            () = dns::serve_udp(&shared, &net, &socket) => {}
            () = closed.cancelled() => {}
        }
    });
    Ok(())
}

async fn accept(
    shared: &Arc<Shared>,
    net: &Arc<SandboxNet>,
    listener: &TcpListener,
    own: Own,
    attribution: Option<&dyn Attribution>,
) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(sandbox = %net.id, %error, "a connection of a sandbox could not be accepted");
                tokio::time::sleep(EXHAUSTED_PAUSE).await;
                continue;
            }
        };
        let original = match own.original {
            Original::LocalAddress => stream.local_addr(),
            Original::Redirected => ip_original_dst(&stream).map(SocketAddr::from).map_err(io::Error::from),
        };
        // A connection without an original address was made to the gate's own socket, which no program
        // has a reason to do.
        let Ok(original) = original else { continue };
        let sender = attribution.and_then(|attribution| attribution.sender(stream.as_fd()));
        begin(shared, net, stream, original, own, sender);
    }
}

fn begin(
    shared: &Arc<Shared>,
    net: &Arc<SandboxNet>,
    stream: TcpStream,
    original: SocketAddr,
    own: Own,
    sender: Option<Sender>,
) {
    let entered = match Arc::clone(&shared.places).try_acquire_owned() {
        Ok(place) => {
            net.enter(&original.to_string(), shared.places_of_one).map(|connection| (connection, place))
        }
        Err(_full) => Err(Refusal {
            stage: Stage::Limit,
            what: "connections".to_owned(),
            why: "this server has no place for more, of all its sandboxes together".to_owned(),
            ask: None,
            to: None,
        }),
    };
    let (connection, place) = match entered {
        Ok(entered) => entered,
        Err(refusal) => {
            net.deny(&refusal);
            // Closing then resets the connection; an error of this call does not matter.
            let _ = set_socket_linger(&stream, Some(Duration::ZERO));
            return;
        }
    };
    connection.came_from(sender);
    // An optimisation.
    drop(stream.set_nodelay(true));
    let context = Context::new(Arc::clone(shared), Arc::clone(net), connection, place);
    tokio::spawn(async move {
        let client = ClientStream::new(stream);
        let served = if original == own.proxy {
            http::serve_explicit(context, client, own.proxy.ip()).await
        } else if original == own.resolver {
            dns::serve_tcp(context, client).await
        } else {
            route(context, client, original, None).await
        };
        if let Err(error) = served {
            tracing::debug!(%original, %error, "a connection of a sandbox broke off");
        }
    });
}
