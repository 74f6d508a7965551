//! Decides which headers pass, in each direction.

use std::net::IpAddr;

use atoll_hop::{set_upgrade, strip_hop_by_hop};
use http::header::{CONTENT_SECURITY_POLICY, EXPECT, HOST, LOCATION, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::address::{PORT_HEADER, SANDBOX_HEADER};
use super::cookies;

const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
/// Headers that a server inside may not send: these would reach beyond its own origin, or lead clients around us.
const NEVER_FROM_INSIDE: [HeaderName; 3] = [
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("alt-svc"),
    HeaderName::from_static("service-worker-allowed"),
];
/// Headers that a server inside may send in the form with a path, where its address is that of the API. Many headers
/// are about a whole origin (`Strict-Transport-Security`, `Report-To`, `NEL`, `Origin-Agent-Cluster`, and more in
/// future), so a header that is not known to be about one answer does not pass.
const ABOUT_ONE_ANSWER: [&str; 47] = [
    "accept-ranges",
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
    "access-control-expose-headers",
    "access-control-max-age",
    "age",
    "allow",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-range",
    "content-security-policy",
    "content-type",
    "cross-origin-embedder-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
    "date",
    "deprecation",
    "etag",
    "expires",
    "grpc-message",
    "grpc-status",
    "last-modified",
    "link",
    "location",
    "permissions-policy",
    "pragma",
    "preference-applied",
    "ratelimit",
    "referrer-policy",
    "refresh",
    "retry-after",
    "sec-websocket-accept",
    "sec-websocket-extensions",
    "sec-websocket-protocol",
    "server",
    "server-timing",
    "set-cookie",
    "trailer",
    "vary",
    "warning",
    "www-authenticate",
];
/// Beginnings of names that applications and their protocols use among themselves: no browser acts on them, but for
/// those in [`ABOUT_AN_ORIGIN`].
const OF_APPLICATIONS: [&str; 10] = [
    "x-",
    "mcp-",
    "grpc-",
    "ratelimit-",
    "request-",
    "upload-",
    "tus-",
    "openai-",
    "anthropic-",
    "langsmith-",
];
/// `X-…` that browsers act on beyond one answer.
const ABOUT_AN_ORIGIN: [&str; 3] =
    ["x-dns-prefetch-control", "x-permitted-cross-domain-policies", "x-content-security-policy"];

/// Whether a header of a server inside may pass in the form with a path.
fn passes_with_path(name: &HeaderName) -> bool {
    let name = name.as_str();
    let of_applications = OF_APPLICATIONS.iter().any(|prefix| name.starts_with(prefix));
    ABOUT_ONE_ANSWER.contains(&name) || (of_applications && !ABOUT_AN_ORIGIN.contains(&name))
}

/// In the form with a path a page shares the address with the API. This policy gives the page an origin of its own all
/// the same: it cannot read what belongs to the server's origin, and what it sends there is refused.
const SANDBOXED: &str = "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts";
/// Longest chain of `X-Forwarded-For` that is passed on, bytes.
const CHAIN_MAX_BYTES: usize = 1024;

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
    let upgrade = strip_hop_by_hop(headers);
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
        set_upgrade(headers, protocol.clone());
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

/// Changes the head of an answer to the one that the client gets. `switching` keeps the headers that a 101 needs.
pub(super) fn toward_client(headers: &mut HeaderMap, prefix: Option<&str>, switching: bool) {
    let upgrade = strip_hop_by_hop(headers);
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
        let others: Vec<HeaderName> =
            headers.keys().filter(|name| !passes_with_path(name)).cloned().collect();
        for name in others {
            headers.remove(name);
        }
        headers.append(CONTENT_SECURITY_POLICY, HeaderValue::from_static(SANDBOXED));
        let moved = headers.get(LOCATION).and_then(|location| below(location, prefix));
        if let Some(location) = moved {
            headers.insert(LOCATION, location);
        }
    }
    if switching && let Some(protocol) = upgrade {
        set_upgrade(headers, protocol);
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
    use http::header::{CONNECTION, UPGRADE};

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
    fn with_a_path_nothing_is_said_about_the_whole_origin() {
        let about_all = [
            ("strict-transport-security", "max-age=99"),
            ("nel", "{}"),
            ("report-to", "{}"),
            ("reporting-endpoints", "a=\"https://evil\""),
            ("origin-agent-cluster", "?1"),
            ("expect-ct", "max-age=99"),
            ("public-key-pins", "x"),
            ("accept-ch", "DPR"),
            ("critical-ch", "DPR"),
            ("supports-loading-mode", "x"),
            ("speculation-rules", "\"/x\""),
            ("use-as-dictionary", "match=\"/*\""),
            ("set-login", "logged-out"),
            ("sourcemap", "/x"),
            ("x-dns-prefetch-control", "on"),
            ("a-header-of-tomorrow", "1"),
        ];
        let about_one = [
            ("content-type", "text/html"),
            ("x-own", "1"),
            ("etag", "1"),
            ("x-frame-options", "DENY"),
            ("mcp-session-id", "1"),
        ];
        let mut map = headers(&about_all);
        map.extend(headers(&about_one));
        let mut by_name = map.clone();
        toward_client(&mut map, Some("/p"), false);
        let left: std::collections::BTreeSet<_> = map.keys().map(HeaderName::as_str).collect();
        let want =
            ["content-security-policy", "content-type", "etag", "mcp-session-id", "x-frame-options", "x-own"];
        assert_eq!(left, want.into());
        // With a host name of its own the origin is its own.
        toward_client(&mut by_name, None, false);
        assert!(by_name.contains_key("strict-transport-security") && by_name.contains_key("nel"));
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
