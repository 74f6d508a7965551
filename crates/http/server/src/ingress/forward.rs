//! Passing one request on.

use std::io;

use atoll_core::id::SandboxId;
use atoll_core::{Error, Result};
use atoll_engine::Grant;
use axum::body::Body;
use axum::body::HttpBody as _;
use axum::extract::Request;
use axum::response::Response;
use http::header::{CONTENT_TYPE, HOST};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, StatusCode, Uri, Version};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;

use super::address;
use super::answer::Streaming;
use super::headers::{self, Origin};
use super::pool::Key;
use super::upstream::{self, Answered};
use crate::revocation::{GrantSlot, UntilRevoked, revoked};
use crate::serve::{Peer, Slot};
use crate::shared::App;

/// Bytes of a switched connection that are under way in each direction.
const RELAY_BYTES: usize = 16 << 10;

/// Where a request goes, and how.
#[derive(Debug, Clone)]
pub struct Forward {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The port.
    pub port: u16,
    /// Beginning of the path that the server inside does not see.
    pub prefix: Option<String>,
    /// Let the server inside see the host that the client asked for, rather than `localhost:PORT`.
    pub keep_host: bool,
    /// The server inside speaks TLS on this port.
    pub tls: bool,
    /// The right by which the request goes there: when it ends, the server cuts the answer, or the connection that it
    /// became.
    pub grant: Grant,
}

/// Passes a request on and gives the answer.
///
/// # Errors
/// See [`upstream::send`].
pub(super) async fn forward(app: &App, request: Request, to: Forward) -> Result<Response> {
    let (mut parts, body) = request.into_parts();
    let client = parts.extensions.remove::<OnUpgrade>();
    let slot = parts.extensions.remove::<Slot>();
    let http2 = parts.version == Version::HTTP_2 && needs_http2(&parts.headers);
    let switching = head(app, &mut parts, &to)?;
    let app_in = app.clone();
    let body = Body::new(super::answer::counted(body, move |bytes| app_in.metrics.received(bytes)));
    let key = Key { sandbox: to.sandbox.clone(), port: to.port, tls: to.tls };
    let sent = async {
        if http2 {
            parts.version = Version::HTTP_2;
            parts.uri = absolute(&parts.uri, parts.headers.remove(HOST).as_ref())?;
            upstream::send_http2(&app.engine, &app.ports, &key, Request::from_parts(parts, body)).await
        } else {
            parts.version = Version::HTTP_11;
            atoll_hop::frame_body(&mut parts.headers, !body.is_end_stream());
            upstream::send(&app.engine, &app.ports, &key, Request::from_parts(parts, body)).await
        }
    };
    let answered = tokio::select! {
        biased;
        answered = sent => answered?,
        () = app.engine.until_revoked(&to.grant) => return Err(revoked()),
    };
    let switched = answered.response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if switched {
        return match client.filter(|_| switching) {
            Some(client) => Ok(switch(app, answered, client, slot, to)),
            None => Err(Error::new(
                atoll_core::Code::PortBroken,
                format!("the server on port {} switched protocols without being asked", to.port),
            )),
        };
    }
    Ok(stream(app, answered, key, to))
}

/// Whether a request needs HTTP/2 all the way, because it streams both ways at once or ends with trailers: gRPC, and
/// Connect's streams of protocol buffers.
fn needs_http2(headers: &HeaderMap) -> bool {
    const KINDS: [&[u8]; 2] = [b"application/grpc", b"application/connect+proto"];
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    KINDS.iter().any(|prefix| kind.starts_with(prefix))
}

/// Changes the head of the request to the one that the server inside gets; says whether it asks for another protocol.
fn head(app: &App, parts: &mut Parts, to: &Forward) -> Result<bool> {
    let host = address::host(&parts.uri, &parts.headers).map(str::to_owned);
    let inside = match &host {
        Some(host) if to.keep_host => host.clone(),
        _ => format!("localhost:{}", to.port),
    };
    let origin = Origin {
        host: host.as_deref(),
        peer: parts.extensions.get::<Peer>().map(|peer| peer.0.ip()),
        https: app.config.is_https(),
        prefix: to.prefix.as_deref(),
    };
    let upgrade = headers::toward_inside(&mut parts.headers, &origin, &inside);
    parts.uri = path_inside(&parts.uri, to.prefix.as_deref())?;
    Ok(upgrade.is_some())
}

/// Path and query as the server inside gets them.
fn path_inside(uri: &Uri, prefix: Option<&str>) -> Result<Uri> {
    let whole = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let rest = prefix.and_then(|prefix| whole.strip_prefix(prefix)).unwrap_or(whole);
    let text = if rest.starts_with('/') || rest == "*" { rest.to_owned() } else { format!("/{rest}") };
    text.parse().map_err(|_error| Error::invalid("path", "cannot be passed on"))
}

/// HTTP/2 has scheme and host in the address. Servers refuse a request whose `Host` says something else, so there is
/// none beside it.
fn absolute(uri: &Uri, host: Option<&HeaderValue>) -> Result<Uri> {
    let host = host.and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    format!("http://{host}{uri}").parse().map_err(|_error| Error::invalid("path", "cannot be passed on"))
}

/// The answer, streamed; its connection goes back to the pool when it is over.
fn stream(app: &App, answered: Answered, key: Key, to: Forward) -> Response {
    let Answered { response, sender, lease } = answered;
    let (mut parts, body) = response.into_parts();
    headers::toward_client(&mut parts.headers, to.prefix.as_deref(), false);
    parts.extensions.clear();
    let streaming = Streaming::new(app, body, sender.map(|sender| (key, sender)), lease);
    let slot = GrantSlot::of(to.grant);
    Response::from_parts(parts, UntilRevoked::body(streaming, &slot, &app.engine))
}

/// Answers 101 and passes bytes on from then on, until one side ends.
fn switch(app: &App, answered: Answered, client: OnUpgrade, slot: Option<Slot>, to: Forward) -> Response {
    let Answered { mut response, sender, lease } = answered;
    let server = hyper::upgrade::on(&mut response);
    let mut parts = response.into_parts().0;
    headers::toward_client(&mut parts.headers, to.prefix.as_deref(), true);
    let counting = app.clone();
    app.tasks.spawn(async move {
        // This task owns the connection now; it holds the lease and the slot as long as the connection lives.
        let _held = (slot, sender);
        let relay = async {
            let (client, server) = tokio::try_join!(client, server).map_err(io::Error::other)?;
            relay(client, server).await
        };
        let ended = tokio::select! {
            ended = relay => ended,
            () = lease.dead() => Ok((0, 0)),
            () = counting.engine.until_revoked(&to.grant) => Ok((0, 0)),
            () = counting.draining.cancelled() => Ok((0, 0)),
        };
        match ended {
            Ok((up, down)) => {
                counting.metrics.received(usize::try_from(up).unwrap_or(usize::MAX));
                counting.metrics.sent(usize::try_from(down).unwrap_or(usize::MAX));
            }
            Err(error) => tracing::debug!(%error, "a switched connection ended"),
        }
    });
    Response::from_parts(parts, Body::empty())
}

/// Passes bytes on both ways until both sides have ended.
pub(crate) async fn relay(client: Upgraded, server: Upgraded) -> io::Result<(u64, u64)> {
    let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
    tokio::io::copy_bidirectional_with_sizes(&mut client, &mut server, RELAY_BYTES, RELAY_BYTES).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_need_http2() {
        let needs = |kind: &'static str| {
            needs_http2(&HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]))
        };
        assert!(needs("application/grpc+proto") && needs("application/connect+proto"));
        assert!(!needs("application/json") && !needs("application/proto") && !needs_http2(&HeaderMap::new()));
    }

    #[test]
    fn the_prefix_is_taken_off_the_path() {
        let prefix = Some("/v1/sandboxes/web/ports/80");
        for (from, to) in [
            ("/v1/sandboxes/web/ports/80", "/"),
            ("/v1/sandboxes/web/ports/80?a=b", "/?a=b"),
            ("/v1/sandboxes/web/ports/80/x/%2e?a", "/x/%2e?a"),
        ] {
            assert_eq!(path_inside(&from.parse().unwrap(), prefix).unwrap().to_string(), to);
        }
        assert_eq!(path_inside(&"http://h/x?y".parse().unwrap(), None).unwrap().to_string(), "/x?y");
        let host = HeaderValue::from_static("3000-web.localhost:4600");
        let whole = absolute(&"/x?y".parse().unwrap(), Some(&host)).unwrap();
        assert_eq!(whole.to_string(), "http://3000-web.localhost:4600/x?y");
        assert_eq!(absolute(&"/x?y".parse().unwrap(), None).unwrap().to_string(), "http://localhost/x?y");
    }
}
