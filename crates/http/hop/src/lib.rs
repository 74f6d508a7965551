//! The parts of an HTTP message that concern one connection only (RFC 9110, 7.6.1), for everything in Atoll that passes
//! messages on: the gateway for requests in clear, the one that looks into TLS, and the ports of sandboxes.

mod body;
#[cfg(test)]
mod fuzz;

pub use body::SendFirst;

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Headers that concern one connection whether or not `Connection` names them.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    HTTP2_SETTINGS,
];
/// Headers that a sender cannot take away by naming them in `Connection`: the receiver relies on them.
const KEPT: [HeaderName; 3] = [HOST, CONTENT_LENGTH, COOKIE];

/// The protocol that a message asks to switch to, or agrees to. HTTP/2 in clear is none: it would carry requests that
/// no program in between sees.
#[must_use]
pub fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    if !named(headers).any(|name| name == UPGRADE) {
        return None;
    }
    let mut protocols = headers.get_all(UPGRADE).iter();
    let protocol = protocols.next().filter(|_| protocols.next().is_none())?;
    let http2 = protocol.to_str().map_or(true, |text| text.to_ascii_lowercase().contains("h2c"));
    (!http2).then(|| protocol.clone())
}

/// Removes headers that concern one connection only. Of `TE` the word that trailers are understood stays, which is true
/// of every program in between. Gives the [`upgrade`], for [`set_upgrade`] where it is to go on.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) -> Option<HeaderValue> {
    let upgrade = upgrade(headers);
    let trailers = headers
        .get_all(TE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .any(|token| token.trim().eq_ignore_ascii_case("trailers"));
    let named: Vec<HeaderName> = named(headers).filter(|name| !KEPT.contains(name)).collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    upgrade
}

/// Asks for another protocol on the next connection, or agrees to it.
pub fn set_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
}

/// Says how a body of unknown length is framed, for a message whose headers were stripped and that goes over HTTP/1:
/// without it the body of a `GET` would be left out.
pub fn frame_body(headers: &mut HeaderMap, has_body: bool) {
    if has_body && !headers.contains_key(CONTENT_LENGTH) {
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

/// The headers that `Connection` names.
fn named(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|text| text.split(',')).filter_map(|name| name.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap())
        };
        let mut map = HeaderMap::new();
        for (name, value) in pairs.iter().map(pair) {
            map.append(name, value);
        }
        map
    }

    #[test]
    fn only_what_concerns_one_connection_is_removed() {
        let mut map = headers(&[
            ("connection", "x-secret, host, keep-alive, Content-Length, cookie"),
            ("connection", "close, X-Second"),
            ("x-secret", "1"),
            ("x-second", "1"),
            ("host", "a.example"),
            ("content-length", "5"),
            ("cookie", "a=b"),
            ("transfer-encoding", "chunked"),
            ("te", "gzip, Trailers"),
            ("proxy-authorization", "Basic x"),
            ("proxy-connection", "keep-alive"),
            ("keep-alive", "timeout=5"),
            ("http2-settings", "AAMAAABk"),
            ("upgrade", "websocket"),
            ("accept", "*/*"),
        ]);
        assert_eq!(strip_hop_by_hop(&mut map), None, "Connection does not name the upgrade");
        let left: std::collections::BTreeSet<_> = map.keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["accept", "content-length", "cookie", "host", "te"].into());
        assert_eq!(map[TE], "trailers");
    }

    #[test]
    fn a_body_without_a_length_is_chunked() {
        for (length, has_body, chunked) in
            [(None, true, true), (None, false, false), (Some("3"), true, false)]
        {
            let mut map: HeaderMap =
                length.map(|text| (CONTENT_LENGTH, HeaderValue::from_static(text))).into_iter().collect();
            frame_body(&mut map, has_body);
            assert_eq!(map.contains_key(TRANSFER_ENCODING), chunked);
        }
    }

    #[test]
    fn websockets_are_upgrades_and_http2_is_none() {
        let ask = |to: &str| {
            let mut map = headers(&[("connection", "keep-alive, Upgrade, HTTP2-Settings"), ("upgrade", to)]);
            let upgrade = strip_hop_by_hop(&mut map);
            assert!(!map.contains_key(UPGRADE) && !map.contains_key(CONNECTION));
            upgrade
        };
        assert_eq!(ask("websocket").unwrap(), "websocket");
        for http2 in ["h2c", "H2C", "websocket, h2c"] {
            assert_eq!(ask(http2), None, "{http2}");
        }
        let twice = headers(&[("connection", "upgrade"), ("upgrade", "websocket"), ("upgrade", "h2c")]);
        assert_eq!(upgrade(&twice), None);
        let mut map = HeaderMap::new();
        set_upgrade(&mut map, HeaderValue::from_static("websocket"));
        assert_eq!(upgrade(&map).unwrap(), "websocket");
    }
}
