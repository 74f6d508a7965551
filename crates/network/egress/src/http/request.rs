//! Reads the destination of a request, and makes the request that is sent on.

use atoll_hop::{set_upgrade, strip_hop_by_hop};
use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap};
use http::{Method, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use tokio::net::TcpStream;

use super::Response;
use crate::client::read_more;
use crate::limits::SNIFF_MAX_BYTES;
use crate::refusal::plain;

/// The host that a request names, with its port: the authority of its URI, else its only `Host`.
pub(super) fn host<B>(request: &http::Request<B>) -> Result<Option<String>, &'static str> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let said = hosts.next();
    if hosts.next().is_some() {
        return Err("more than one Host header");
    }
    let said = said.map(|value| value.to_str().map_err(|_odd| "the Host header is no text")).transpose()?;
    if said.is_some_and(|host| host.contains(['@', '/', '?', '#', ' ', ','])) {
        return Err("the Host header is no host");
    }
    match (request.uri().authority(), said) {
        (Some(authority), _) if authority.as_str().contains('@') => Err("the URI carries credentials"),
        (Some(authority), Some(said)) if !authority.as_str().eq_ignore_ascii_case(said) => {
            Err("the URI and the Host header name different hosts")
        }
        (Some(authority), _) => Ok(Some(authority.as_str().to_owned())),
        (None, said) => Ok(said.filter(|host| !host.is_empty()).map(str::to_owned)),
    }
}

/// The host, without port, that a request to a server names; empty when it names none.
pub(super) fn meant<B>(request: &http::Request<B>) -> Result<String, &'static str> {
    // A connection is named, whichever the method is, and neither a path that rules could be asked about nor one that could be
    // passed on.
    if request.method() == Method::CONNECT || request.uri().path().is_empty() {
        return Err("it names a connection, which is for a proxy, and this is a server");
    }
    Ok(host(request)?.as_deref().map_or("", without_port).to_owned())
}

/// A host without its port; an IPv6 address without its brackets.
pub(super) fn without_port(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    host.rsplit_once(':').map_or(host, |(host, _)| host)
}

/// The port that a host comes with.
pub(super) fn port(host: &str) -> Option<u16> {
    let after = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.1,
        None => host,
    };
    after.rsplit_once(':')?.1.parse().ok().filter(|port| *port != 0)
}

/// Reads ahead to the end of the first request's head, and gives its `Host` without port.
pub(super) async fn first_host(socket: &TcpStream, ahead: &mut BytesMut) -> Option<String> {
    while !ends(ahead) && ahead.len() < SNIFF_MAX_BYTES {
        if read_more(socket, ahead).await.ok()? == 0 {
            break;
        }
    }
    let head = String::from_utf8_lossy(ahead);
    let line = head.lines().skip(1).take_while(|line| !line.is_empty()).find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host").then(|| value.trim().to_owned())
    })?;
    Some(without_port(&line).to_owned())
}

fn ends(head: &[u8]) -> bool {
    head.windows(4).any(|end| end == b"\r\n\r\n") || head.windows(2).any(|end| end == b"\n\n")
}

/// Removes headers that concern one connection only; puts back the upgrade.
pub(super) fn strip(headers: &mut HeaderMap) {
    if let Some(protocol) = strip_hop_by_hop(headers) {
        set_upgrade(headers, protocol);
    }
}

/// The URI as it is sent to a server: path and query.
pub(super) fn origin_form(uri: &Uri) -> Uri {
    uri.path_and_query().cloned().map_or_else(|| Uri::from_static("/"), Uri::from)
}

/// An answer of the gateway to a request that makes no sense.
pub(super) fn bad(why: &str) -> Response {
    boxed(plain(StatusCode::BAD_REQUEST, "request", format!("Atoll cannot pass this request on: {why}\n")))
}

/// An answer of the gateway when the server cannot be reached.
pub(super) fn unreachable(what: &str, why: &str) -> Response {
    boxed(plain(StatusCode::BAD_GATEWAY, "unreachable", format!("Atoll cannot reach {what}: {why}\n")))
}

pub(super) fn boxed(response: http::Response<Full<Bytes>>) -> Response {
    response.map(|body| body.map_err(|never| match never {}).boxed_unsync())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_sent_what_was_asked_for() {
        for (uri, sent) in [
            ("http://a.example?b=c", "/?b=c"),
            ("http://a.example", "/"),
            ("/a/../b?c#d", "/a/../b?c"),
            ("*", "*"),
            ("a.example:80", "/"),
        ] {
            assert_eq!(origin_form(&uri.parse().unwrap()), sent, "{uri}");
        }
    }

    #[test]
    fn a_request_to_a_server_names_a_path() {
        let request = |method: &str, uri: &str| {
            http::Request::builder().method(method).uri(uri).header("host", "a.example:80").body(()).unwrap()
        };
        assert_eq!(meant(&request("GET", "/")).as_deref(), Ok("a.example"));
        assert_eq!(meant(&request("GET", "http://a.example:80")).as_deref(), Ok("a.example"));
        for (method, uri) in [("CONNECT", "a.example:80"), ("GET", "a.example:80"), ("CONNECT", "/")] {
            assert!(meant(&request(method, uri)).unwrap_err().contains("for a proxy"), "{method} {uri}");
        }
    }

    #[test]
    fn hosts_and_ports() {
        for (text, host, number) in [
            ("a.example", "a.example", None),
            ("a.example:80", "a.example", Some(80)),
            ("[::1]:443", "::1", Some(443)),
            ("[::1]", "::1", None),
            ("a:0", "a", None),
        ] {
            assert_eq!((without_port(text), port(text)), (host, number), "{text}");
        }
    }
}
