//! Decides upon and serves a connection whose destination is known.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::policy::{EgressPolicy, HostName, Http, Internet};
use rustix::net::sockopt::set_socket_linger;
use tokio::io::AsyncWriteExt as _;

use crate::client::ClientStream;
use crate::connection::{Context, Target, shorten};
use crate::dial::DialError;
use crate::http;
use crate::interceptor::{Ask, Flow, Protocol};
use crate::limits::{SILENCE, SNIFF_TIMEOUT};
use crate::relay::{self, Direction};
use crate::sniff::{Opening, sniff};
use atoll_core::network::Stage;
use atoll_recorder::event::Destination;

/// A fatal alert: `access_denied`.
const TLS_ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

/// Serves a connection to `to`. `meant` is the name that the client gave to the explicit proxy.
pub(crate) async fn route(
    context: Context,
    mut client: ClientStream,
    to: SocketAddr,
    meant: Option<HostName>,
) -> io::Result<()> {
    let names = match meant {
        Some(name) => vec![name],
        None => context.net.names_of(to.ip()),
    };
    let target = Target::new(&context, names, to);
    context.connection.show("tcp", &target);
    let cancel = context.connection.cancel.clone();
    let first = {
        let (socket, ahead) = client.split();
        tokio::select! {
            opening = sniff(socket, ahead) => Some(opening?),
            () = tokio::time::sleep(SILENCE) => None,
            () = cancel.cancelled() => return Ok(()),
        }
    };
    let opening = match first {
        Some(opening) => opening,
        // The server may be the side that speaks first.
        None if may_speak_first(&target, &context.net.policy()) => {
            match server_first(&context, client, &target).await? {
                None => return Ok(()),
                Some((opening, spoken)) => {
                    client = spoken;
                    opening
                }
            }
        }
        // No server may be asked: no reason to keep a socket for that long.
        None if context.net.policy().internet == Internet::Off => Opening::Other,
        None => {
            let (socket, ahead) = client.split();
            tokio::select! {
                opening = sniff(socket, ahead) => opening?,
                () = tokio::time::sleep(SNIFF_TIMEOUT) => Opening::Other,
                () = cancel.cancelled() => return Ok(()),
            }
        }
    };
    settle(&context, client, target, opening).await
}

/// The client has spoken; decides and serves.
async fn settle(context: &Context, client: ClientStream, target: Target, opening: Opening) -> io::Result<()> {
    match opening {
        Opening::Nothing => Ok(()),
        Opening::Http => {
            context.connection.show("http", &target);
            http::serve_transparent(context.clone(), client, target).await
        }
        Opening::Tls(sni) => tls(context, client, target, sni.as_deref()).await,
        // Its requests could mean any name, so it has none.
        Opening::Http2 => carry(context, client, Target { names: Arc::default(), ..target }, None).await,
        Opening::Other => carry(context, client, target, None).await,
    }
}

async fn tls(context: &Context, client: ClientStream, target: Target, sni: Option<&str>) -> io::Result<()> {
    let target = confirm_sni(context, target, sni).await;
    context.connection.show("tls", &target);
    let policy = context.net.policy();
    if let (Some(interceptor), [name]) = (&context.shared.config.interceptor, &*target.names) {
        let ask = Ask {
            sandbox: &context.net.id,
            policy: &policy,
            name,
            address: target.address,
            protocol: Protocol::Tls,
            sender: target.sender.as_deref(),
        };
        if interceptor.wants(&ask) || policy.needs_http(&target.destination()) {
            context.connection.begin_requests();
            let flow = Flow {
                sandbox: context.net.id.clone(),
                original: target.address,
                name: name.clone(),
                protocol: Protocol::Tls,
                client,
            };
            let cancel = context.connection.cancel.clone();
            let begun = tokio::select! {
                begun = context.net.begin_interception(target.label()) => begun,
                () = cancel.cancelled() => return Ok(()),
            };
            let _place = match begun {
                Ok(place) => place,
                Err(refusal) => {
                    context.net.deny(&refusal);
                    return refuse(flow.client, true).await;
                }
            };
            return tokio::select! {
                served = interceptor.serve(flow, context.dialer(target.clone())) => served,
                () = cancel.cancelled() => Ok(()),
            };
        }
    }
    carry(context, client, target, Some(sni.unwrap_or("none"))).await
}

/// The target with the one name that is certain, or none.
async fn confirm_sni(context: &Context, target: Target, sni: Option<&str>) -> Target {
    let mut names = Vec::new();
    if let Some(name) = sni.and_then(|sni| sni.parse::<HostName>().ok())
        && context.confirm(&name, target.address.ip()).await
    {
        names.push(name);
    }
    target.meant(&context.shared.borders, names)
}

/// Decides upon a connection that is carried as it is, and carries it. `server_name` is the name in the TLS hello.
async fn carry(
    context: &Context,
    client: ClientStream,
    target: Target,
    server_name: Option<&str>,
) -> io::Result<()> {
    context.connection.begin_relay(&target);
    if !allowed(context, &target, server_name) {
        return refuse(client, server_name.is_some()).await;
    }
    let upstream = match context.dialer(target.clone()).connect().await {
        Ok(upstream) => upstream,
        Err(error) => return unreachable(client, &error, &target),
    };
    let cancel = context.connection.cancel.clone();
    tokio::select! {
        carried = relay::relay(client, upstream) => carried,
        () = cancel.cancelled() => Ok(()),
    }
}

/// Whether the gateway may connect to the server before the client has sent anything. Where rules decide by the
/// client's request, only that request tells whether they would refuse it, so the gateway waits for the client.
fn may_speak_first(target: &Target, policy: &EgressPolicy) -> bool {
    let ruling = target.decide(policy, Http::Unknown);
    ruling.by_rules || ruling.observed && !target.could_pass_by_rules(policy)
}

/// Asks the policy, and records a refusal, also one that is only observed.
fn allowed(context: &Context, target: &Target, server_name: Option<&str>) -> bool {
    let policy = context.net.policy();
    let ruling = target.decide(&policy, Http::Unknown);
    if ruling.by_rules {
        let to = || Destination { tls: server_name.is_some(), ..target.recorded() };
        context.net.record_allowed(|| target.label(), || policy.describe(ruling.basis), to);
        return true;
    }
    let what = match server_name {
        Some(name) if target.names.is_empty() => format!(
            "{} (TLS server name: {}; not a name that this sandbox's resolver gave for the address)",
            target.address,
            shorten(name)
        ),
        _ if target.names.len() > 1 => {
            let names: Vec<_> = target.names.iter().map(HostName::as_str).collect();
            shorten(&format!("{} ({})", target.address, names.join(", ")))
        }
        _ => target.label(),
    };
    let mut refusal = target.refusal(&policy, ruling.basis, Stage::Connect, what);
    if let Some(to) = &mut refusal.to {
        to.tls = server_name.is_some();
    }
    if ruling.observed {
        context.net.observe(&refusal);
    } else {
        context.net.deny(&refusal);
    }
    ruling.observed
}

/// Carries a connection on which the server may speak first. The first bytes of the client are looked at
/// all the same, whenever they come: nothing that names a host goes out unseen.
///
/// Gives the connection back when the client was first after all.
async fn server_first(
    context: &Context,
    mut client: ClientStream,
    target: &Target,
) -> io::Result<Option<(Opening, ClientStream)>> {
    context.connection.begin_relay(target);
    if !allowed(context, target, None) {
        return refuse(client, false).await.map(|()| None);
    }
    let cancel = context.connection.cancel.clone();
    let upstream = match context.dialer(target.clone()).connect().await {
        Ok(upstream) => upstream,
        Err(error) => return unreachable(client, &error, target).map(|()| None),
    };
    let (upstream, account) = upstream.into_parts();
    {
        let mut first = [0];
        let (socket, ahead) = client.split();
        tokio::select! {
            opening = sniff(socket, ahead) => return Ok(Some((opening?, client))),
            // Only bytes, or the end, are a word of the server; readiness alone may be left over.
            spoken = upstream.peek(&mut first) => spoken.map(drop)?,
            () = cancel.cancelled() => return Ok(None),
        }
    }
    let (socket, ahead) = client.split();
    let outwards = async {
        let opening = sniff(socket, ahead).await?;
        if !may_follow(context, target, &opening).await {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        relay::send(&ahead.split(), &upstream, &account).await?;
        relay::pump(socket, &upstream, Direction::Out, &account).await
    };
    let carried =
        async { tokio::try_join!(outwards, relay::pump(&upstream, socket, Direction::In, &account)) };
    tokio::select! {
        carried = carried => carried.map(|_both| None),
        () = cancel.cancelled() => Ok(None),
    }
}

/// Whether the client may begin so after the server has spoken. HTTP servers do not speak first, so a client that sends
/// a request then wants it to pass unseen.
async fn may_follow(context: &Context, target: &Target, opening: &Opening) -> bool {
    match opening {
        Opening::Nothing | Opening::Other => true,
        Opening::Tls(sni) => {
            let target = confirm_sni(context, target.clone(), sni.as_deref()).await;
            context.connection.begin_relay(&target);
            allowed(context, &target, Some(sni.as_deref().unwrap_or("none")))
        }
        Opening::Http | Opening::Http2 => {
            let target = Target { names: Arc::default(), ..target.clone() };
            context.connection.begin_relay(&target);
            allowed(context, &target, None)
        }
    }
}

/// Closes so that the client knows: an alert for TLS, a reset for everything else.
async fn refuse(mut client: ClientStream, tls: bool) -> io::Result<()> {
    if !tls {
        return reset(client.socket());
    }
    client.write_all(&TLS_ACCESS_DENIED).await?;
    client.shutdown().await?;
    linger(&mut client).await;
    Ok(())
}

/// Reads what the client still sends, for a moment: closing with unread bytes would reset the connection, and the reset
/// could overtake the bytes that were just sent.
async fn linger(client: &mut ClientStream) {
    let drain = async {
        while client.read_ahead().await.is_ok_and(|count| count > 0) {
            drop(client.take_ahead());
        }
    };
    // A client that keeps on sending has had time to read.
    let _ = tokio::time::timeout(Duration::from_secs(1), drain).await;
}

fn reset(socket: &tokio::net::TcpStream) -> io::Result<()> {
    set_socket_linger(socket, Some(Duration::ZERO)).map_err(io::Error::from)
}

fn unreachable(client: ClientStream, error: &DialError, target: &Target) -> io::Result<()> {
    tracing::debug!(%error, to = %target.address, "a sandbox's destination cannot be reached");
    reset(client.socket())
}
