//! Reading what a request says about its destination, and making the request that is sent on.

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use tokio::net::TcpStream;

use super::{Request, Response};
use crate::client::read_more;
use crate::limits::SNIFF_MAX_BYTES;
use crate::refusal::plain;

/// Headers that concern one connection only.
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// What a request names as its host, with its port: the authority of its URI, else its only `Host`.
pub(super) fn host(request: &Request) -> Result<Option<String>, &'static str> {
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

/// An upgrade that a message asks for or agrees to.
pub(super) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let connection = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let asked = connection.flat_map(|text| text.split(',')).any(|t| t.trim().eq_ignore_ascii_case("upgrade"));
    let to = headers.get(header::UPGRADE).filter(|_| asked)?;
    // HTTP/2 in clear would carry requests unseen.
    let http2 = to.to_str().map_or(true, |to| to.to_ascii_lowercase().contains("h2c"));
    (!http2).then(|| to.clone())
}

/// Removes what concerns one connection only; puts back the upgrade.
pub(super) fn strip(headers: &mut HeaderMap) {
    let upgrade = upgrade(headers);
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // A sender must not be able to remove what the receiver relies on.
        .filter(|name| *name != header::HOST && *name != header::CONTENT_LENGTH)
        .collect();
    for name in HOP_BY_HOP.iter().chain([&PROXY_CONNECTION]).chain(&named) {
        headers.remove(name);
    }
    headers.remove("http2-settings");
    if let Some(upgrade) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, upgrade);
    }
}

/// The URI as it is sent to a server: path and query.
pub(super) fn origin_form(uri: &Uri) -> Uri {
    let text = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    text.parse().unwrap_or_else(|_impossible| Uri::from_static("/"))
}

/// An answer of the gateway to a request that makes no sense.
pub(super) fn bad(why: &str) -> Response {
    boxed(plain(StatusCode::BAD_REQUEST, "request", format!("Atoll cannot pass this request on: {why}\n")))
}

/// An answer of the gateway when the other side does not answer.
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

    #[test]
    fn only_what_concerns_one_connection_is_removed() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "x-secret, host, keep-alive"),
            ("x-secret", "1"),
            ("host", "a.example"),
            ("proxy-authorization", "Basic x"),
            ("accept", "*/*"),
        ] {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        strip(&mut headers);
        // In no particular order: a header map does not keep it when something is taken out.
        let left: std::collections::BTreeSet<_> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["accept", "host"].into());
    }

    #[test]
    fn websockets_are_upgrades_and_http2_is_none() {
        let ask = |to: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
            headers.insert(header::UPGRADE, to.parse().unwrap());
            strip(&mut headers);
            headers.contains_key(header::UPGRADE)
        };
        assert!(ask("websocket"));
        assert!(!ask("h2c") && !ask("websocket, H2C"));
    }
}
