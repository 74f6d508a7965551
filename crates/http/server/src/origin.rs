//! Web pages must not drive this server behind their reader's back.
//!
//! A browser says in `Origin` which site a request comes from. Requests that change something, and WebSockets, are
//! refused unless that site is the server itself: the same authority as `Host`, and a name of this server. The second
//! half matters because of DNS rebinding: an attacker's host name that points to 127.0.0.1 makes `Origin` and `Host`
//! agree. Clients that are no browsers send no `Origin`.

use atoll_core::{Code, Error};
use http::header::{HOST, ORIGIN, UPGRADE};
use http::{HeaderMap, Method};

/// Refuses a request that another web site sends.
///
/// # Errors
/// [`Code::Forbidden`].
pub(crate) fn check(method: &Method, headers: &HeaderMap, hosts: &[String]) -> Result<(), Error> {
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    if method.is_safe() && !headers.contains_key(UPGRADE) {
        return Ok(());
    }
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let own = origin.to_str().ok().zip(host).is_some_and(|(origin, host)| is_own(origin, host, hosts));
    if own {
        return Ok(());
    }
    Err(Error::new(Code::Forbidden, "the request comes from another web site")
        .hint("reach the server by its address, by 'localhost', or by a name in its configuration"))
}

fn is_own(origin: &str, host: &str, hosts: &[String]) -> bool {
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    let same = authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host));
    same && is_ours(name_of(host), hosts)
}

/// Whether a host (with or without a port) is an address or name of this server.
pub(crate) fn is_own_host(host: &str, hosts: &[String]) -> bool {
    is_ours(name_of(host), hosts)
}

/// The host without its port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        // The colons of an IPv6 address stand in brackets.
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

fn is_ours(name: &str, hosts: &[String]) -> bool {
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<std::net::IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || hosts.iter().any(|host| host.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn try_it(method: Method, origin: Option<&str>, host: &str, upgrade: bool) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_str(host).unwrap());
        if let Some(origin) = origin {
            headers.insert(ORIGIN, HeaderValue::from_str(origin).unwrap());
        }
        if upgrade {
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        }
        check(&method, &headers, &["atoll.example.com".to_owned()]).is_ok()
    }

    #[test]
    fn own_pages_and_programs_may() {
        assert!(try_it(Method::POST, None, "evil.example", false));
        assert!(try_it(Method::POST, Some("http://127.0.0.1:7070"), "127.0.0.1:7070", false));
        assert!(try_it(Method::POST, Some("http://[::1]:7070"), "[::1]:7070", false));
        assert!(try_it(Method::POST, Some("http://localhost:7070"), "localhost:7070", false));
        assert!(try_it(Method::GET, Some("https://atoll.example.com"), "atoll.example.com", true));
        assert!(try_it(Method::GET, Some("http://evil.example"), "127.0.0.1:7070", false));
    }

    #[test]
    fn other_pages_may_not() {
        assert!(!try_it(Method::POST, Some("http://evil.example"), "127.0.0.1:7070", false));
        assert!(!try_it(Method::GET, Some("http://evil.example"), "127.0.0.1:7070", true));
        assert!(!try_it(Method::POST, Some("null"), "127.0.0.1:7070", false));
        assert!(!try_it(Method::POST, Some("http://127.0.0.1:8080"), "127.0.0.1:7070", false));
        // DNS rebinding: they agree, but the name is not ours.
        assert!(!try_it(Method::DELETE, Some("http://evil.example:7070"), "evil.example:7070", false));
    }
}
