//! Accepts connections that arrive at a sandbox's gate.

use std::future::pending;
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

/// Starts serving a gate until the sandbox is let go of. Then its keeper has it again, if it has one; else it is closed.
pub(crate) fn spawn(shared: &Arc<Shared>, net: &Arc<SandboxNet>, gate: Gate) -> io::Result<()> {
    let Gate { tcp, dns, proxy, resolver, original, steering, attribution, keeper } = gate;
    // Both before anything is served: what fails here leaves no network that nobody can change or end.
    let listener = TcpListener::from_std(tcp)?;
    let dns = dns.map(UdpSocket::from_std).transpose()?.map(Arc::new);
    if dns.is_none() {
        tracing::warn!(sandbox = %net.id, "a program inside has taken the resolver's address: no names there");
    }
    let own = Own { proxy, resolver, original };
    let (shared, net) = (Arc::clone(shared), Arc::clone(net));
    tokio::spawn(async move {
        tokio::select! {
            () = accept(&shared, &net, &listener, own, attribution.as_deref()) => {}
            () = answer(&shared, &net, dns.as_ref()) => {}
            () = net.closed.cancelled() => {}
        }
        // It knows this sandbox.
        drop(attribution);
        if let Some(keeper) = keeper
            && let Some((tcp, dns)) = unwatched(listener, dns)
        {
            keeper.take_back(Gate {
                tcp,
                dns,
                proxy,
                resolver,
                original,
                steering,
                attribution: None,
                keeper: None,
            });
        }
    });
    Ok(())
}

/// The sockets of a gate, which the runtime no longer watches; `None` when an answer to a question still has one of them.
fn unwatched(
    listener: TcpListener,
    dns: Option<Arc<UdpSocket>>,
) -> Option<(std::net::TcpListener, Option<std::net::UdpSocket>)> {
    let dns = match dns {
        Some(socket) => Some(Arc::into_inner(socket)?.into_std().ok()?),
        None => None,
    };
    Some((listener.into_std().ok()?, dns))
}

/// Answers questions at a gate for ever, if it has a socket for them.
async fn answer(shared: &Arc<Shared>, net: &Arc<SandboxNet>, socket: Option<&Arc<UdpSocket>>) {
    match socket {
        Some(socket) => dns::serve_udp(shared, net, socket).await,
        None => pending().await,
    }
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use atoll_core::id::SandboxId;
    use atoll_core::policy::EgressPolicy;
    use atoll_isolation::Keeper;
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

    use super::*;
    use crate::{Gateway, GatewayConfig};

    #[derive(Debug)]
    struct Back(UnboundedSender<Gate>);

    impl Keeper for Back {
        fn take_back(&self, gate: Gate) {
            drop(self.0.send(gate));
        }
    }

    fn gate() -> Gate {
        let tcp = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let dns = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        tcp.set_nonblocking(true).unwrap();
        dns.set_nonblocking(true).unwrap();
        let (proxy, resolver) = (tcp.local_addr().unwrap(), dns.local_addr().unwrap());
        Gate {
            tcp,
            dns: Some(dns),
            proxy,
            resolver,
            original: Original::LocalAddress,
            steering: Box::new("steering"),
            attribution: None,
            keeper: None,
        }
    }

    #[tokio::test]
    async fn a_gate_that_is_let_go_of_comes_back_whole_and_can_be_served_again() {
        let (back, mut came_back) = unbounded_channel();
        let gateway = Gateway::new(GatewayConfig::default());
        let id = SandboxId::from_parts(1, 1);
        let mut gate = gate();
        let (tcp, dns) = (gate.proxy, gate.resolver);
        for _ in 0..2 {
            gate.keeper = Some(Arc::new(Back(back.clone())));
            gateway.attach(&id, EgressPolicy::default(), gate).unwrap();
            gateway.detach(&id);
            gate = came_back.recv().await.unwrap();
            assert_eq!(gate.tcp.local_addr().unwrap(), tcp);
            assert_eq!(gate.dns.as_ref().unwrap().local_addr().unwrap(), dns);
            assert!(gate.steering.is::<&str>() && gate.keeper.is_none());
        }
        // Nobody accepts any more.
        let _waiting = std::net::TcpStream::connect(tcp).unwrap();
        gate.tcp.accept().unwrap();
    }

    #[tokio::test]
    async fn a_gate_without_a_keeper_is_closed() {
        let gateway = Gateway::new(GatewayConfig::default());
        let id = SandboxId::from_parts(1, 1);
        let gate = gate();
        let tcp = gate.proxy;
        gateway.attach(&id, EgressPolicy::default(), gate).unwrap();
        gateway.detach(&id);
        while TcpStream::connect(tcp).await.is_ok() {
            tokio::task::yield_now().await;
        }
    }
}
