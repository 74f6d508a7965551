//! What of a head passes, each way.

use std::net::IpAddr;

use http::header::{
    CONNECTION, CONTENT_SECURITY_POLICY, EXPECT, HOST, LOCATION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION,
    SET_COOKIE, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::address::{PORT_HEADER, SANDBOX_HEADER};
use super::cookies;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
/// What a server inside may not say: these would reach beyond its own origin, or lead clients around us.
const NEVER_FROM_INSIDE: [HeaderName; 3] = [
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("alt-svc"),
    HeaderName::from_static("service-worker-allowed"),
];
/// In the form with a path a page shares the address with the API. This gives it an origin of its own all the
/// same: it cannot read what belongs to the server's, and what it sends there is refused.
const SANDBOXED: &str = "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts";
/// Longest chain of `X-Forwarded-For` that is passed on, bytes.
const CHAIN_MAX_BYTES: usize = 1024;

/// Removes what concerns one connection only. Gives the protocol that is to be switched to, if any.
fn remove_hop_by_hop(headers: &mut HeaderMap) -> Option<HeaderValue> {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let upgrade = headers.get(UPGRADE).filter(|_| named.contains(&UPGRADE)).cloned();
    let trailers = headers.get(TE).is_some_and(|te| te.as_bytes().eq_ignore_ascii_case(b"trailers"));
    // What frames the message is not for `Connection` to take away.
    for name in named.iter().filter(|name| !matches!(name.as_str(), "host" | "content-length" | "cookie")) {
        headers.remove(name);
    }
    for name in [
        CONNECTION,
        KEEP_ALIVE,
        PROXY_CONNECTION,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRANSFER_ENCODING,
        UPGRADE,
    ] {
        headers.remove(name);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    upgrade
}

/// How a request came, as the server inside may know it.
#[derive(Debug)]
pub(super) struct Origin<'a> {
    pub(super) host: Option<&'a str>,
    pub(super) peer: Option<IpAddr>,
    pub(super) https: bool,
    pub(super) prefix: Option<&'a str>,
}

/// Makes the head of a request what the server inside gets. `host` is what it is to be called. Gives the
/// protocol that is to be switched to, if any.
pub(super) fn toward_inside(headers: &mut HeaderMap, origin: &Origin<'_>, host: &str) -> Option<HeaderValue> {
    let upgrade = remove_hop_by_hop(headers);
    for name in
        [SANDBOX_HEADER, PORT_HEADER, FORWARDED, FORWARDED_HOST, FORWARDED_PROTO, FORWARDED_PREFIX, EXPECT]
    {
        headers.remove(name);
    }
    let mut put = |name: HeaderName, text: &str| {
        if let Ok(value) = HeaderValue::from_str(text) {
            headers.insert(name, value);
        }
    };
    put(HOST, host);
    put(FORWARDED_PROTO, if origin.https { "https" } else { "http" });
    if let Some(host) = origin.host {
        put(FORWARDED_HOST, host);
    }
    if let Some(prefix) = origin.prefix {
        put(FORWARDED_PREFIX, prefix);
    }
    add_peer(headers, origin.peer);
    if let Some(protocol) = &upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol.clone());
    }
    upgrade
}

fn add_peer(headers: &mut HeaderMap, peer: Option<IpAddr>) {
    let before = headers.remove(FORWARDED_FOR);
    let before =
        before.as_ref().and_then(|chain| chain.to_str().ok()).filter(|chain| chain.len() <= CHAIN_MAX_BYTES);
    let text = match (before, peer) {
        (Some(before), Some(peer)) => format!("{before}, {peer}"),
        (Some(before), None) => before.to_owned(),
        (None, Some(peer)) => peer.to_string(),
        (None, None) => return,
    };
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(FORWARDED_FOR, value);
    }
}

/// Makes the head of an answer what the client gets. `switching` keeps what a 101 needs.
pub(super) fn toward_client(headers: &mut HeaderMap, prefix: Option<&str>, switching: bool) {
    let upgrade = remove_hop_by_hop(headers);
    for name in NEVER_FROM_INSIDE {
        headers.remove(name);
    }
    if headers.contains_key(SET_COOKIE) {
        let cookies: Vec<_> = headers
            .get_all(SET_COOKIE)
            .iter()
            .filter_map(|cookie| cookies::confined(cookie, prefix))
            .collect();
        headers.remove(SET_COOKIE);
        for cookie in cookies {
            headers.append(SET_COOKIE, cookie);
        }
    }
    if let Some(prefix) = prefix {
        headers.append(CONTENT_SECURITY_POLICY, HeaderValue::from_static(SANDBOXED));
        let moved = headers.get(LOCATION).and_then(|location| below(location, prefix));
        if let Some(location) = moved {
            headers.insert(LOCATION, location);
        }
    }
    if switching && let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}

/// A redirection to an absolute path, by a server that does not know the prefix, as it has to be.
fn below(location: &HeaderValue, prefix: &str) -> Option<HeaderValue> {
    let path = location.to_str().ok()?;
    let absolute = path.starts_with('/') && !path.starts_with("//") && !path.starts_with("/\\");
    if absolute && !path.starts_with(prefix) {
        return HeaderValue::try_from(format!("{prefix}{path}")).ok();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    fn origin() -> Origin<'static> {
        Origin { host: Some("h:1"), peer: Some(IpAddr::from([9, 9, 9, 9])), https: true, prefix: None }
    }

    #[test]
    fn what_concerns_one_connection_stays() {
        let mut map = headers(&[
            ("connection", "close, X-Secret-Hop, Content-Length"),
            ("x-secret-hop", "1"),
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("proxy-authorization", "x"),
            ("keep-alive", "timeout=5"),
            ("upgrade", "h2c"),
            ("expect", "100-continue"),
            ("x-kept", "1"),
        ]);
        assert_eq!(toward_inside(&mut map, &origin(), "localhost:80"), None);
        let mut names: Vec<_> = map.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let want = [
            "content-length",
            "host",
            "te",
            "x-forwarded-for",
            "x-forwarded-host",
            "x-forwarded-proto",
            "x-kept",
        ];
        assert_eq!(names, want);
    }

    #[test]
    fn an_upgrade_passes() {
        let mut map = headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]);
        assert_eq!(toward_inside(&mut map, &origin(), "h").unwrap(), "websocket");
        assert_eq!(
            (&map[CONNECTION], &map[UPGRADE]),
            (&HeaderValue::from_static("upgrade"), &HeaderValue::from_static("websocket"))
        );
        toward_client(&mut map, None, true);
        assert_eq!(map[UPGRADE], "websocket");
        toward_client(&mut map, None, false);
        assert!(!map.contains_key(UPGRADE));
    }

    #[test]
    fn nobody_else_says_where_a_request_came_from() {
        let mut map = headers(&[
            ("forwarded", "for=evil"),
            ("x-forwarded-host", "evil"),
            ("x-forwarded-proto", "gopher"),
            ("x-forwarded-prefix", "/evil"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x-atoll-sandbox", "web"),
        ]);
        toward_inside(&mut map, &Origin { prefix: Some("/p"), ..origin() }, "localhost:80");
        assert_eq!(map["x-forwarded-for"], "1.2.3.4, 9.9.9.9");
        assert_eq!(
            (&map["x-forwarded-host"], &map["x-forwarded-proto"]),
            (&HeaderValue::from_static("h:1"), &HeaderValue::from_static("https"))
        );
        assert_eq!(
            (&map["x-forwarded-prefix"], &map["host"]),
            (&HeaderValue::from_static("/p"), &HeaderValue::from_static("localhost:80"))
        );
        assert!(!map.contains_key("forwarded") && !map.contains_key("x-atoll-sandbox"));
    }

    #[test]
    fn a_server_inside_speaks_for_itself_only() {
        let mut map = headers(&[
            ("clear-site-data", "\"*\""),
            ("alt-svc", "h3=\":443\""),
            ("set-cookie", "a=1; Domain=localhost"),
            ("set-cookie", "atoll_port=x"),
            ("location", "/login"),
        ]);
        map.append(CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src *"));
        toward_client(&mut map, Some("/p"), false);
        assert!(!map.contains_key("clear-site-data") && !map.contains_key("alt-svc"));
        assert_eq!(map.get_all(SET_COOKIE).iter().collect::<Vec<_>>(), ["a=1; Path=/p/"]);
        assert_eq!(map[LOCATION], "/p/login");
        assert_eq!(map.get_all(CONTENT_SECURITY_POLICY).iter().count(), 2);
        for (from, to) in
            [("/p/x", "/p/x"), ("//evil/x", "//evil/x"), ("x", "x"), ("http://a/b", "http://a/b")]
        {
            let mut map = headers(&[("location", from)]);
            toward_client(&mut map, Some("/p"), false);
            assert_eq!(map[LOCATION], to);
        }
    }
}
