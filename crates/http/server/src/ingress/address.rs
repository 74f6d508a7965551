//! Which requests are for a port of a sandbox, and which port.
//!
//! | form | example | for |
//! |---|---|---|
//! | host name | `http://3000-web.localhost:4600/` | browsers: each port is an origin of its own |
//! | headers | `X-Atoll-Sandbox: web`, `X-Atoll-Port: 3000` | programs that keep the path |
//! | path | `/v1/sandboxes/web/ports/3000/…` | programs that know only the server's address |
//!
//! The host name decides first: every request that a page in a sandbox makes to its own origin goes to its own port.

use atoll_core::access::{parse_host_name, parse_port};
use atoll_core::{Error, Result};
use http::header::HOST;
use http::{HeaderMap, HeaderName, Uri};

/// Names the sandbox, in the form with headers.
pub(super) const SANDBOX_HEADER: HeaderName = HeaderName::from_static("x-atoll-sandbox");
/// Names the port, in the form with headers.
pub(super) const PORT_HEADER: HeaderName = HeaderName::from_static("x-atoll-port");
/// The host name of the page that lists the ports of a sandbox begins with this.
const PORTS_PAGE: &str = "ports-";
const SANDBOXES: &str = "/v1/sandboxes/";

/// How a request names its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Form {
    Host,
    Headers,
    /// With this beginning of the path, which the server inside does not see.
    Path {
        prefix: String,
    },
}

/// The port or page that a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// A port. The sandbox is an id or a name.
    Port { sandbox: String, port: u16, form: Form },
    /// The page that lists the ports of a sandbox.
    Page { sandbox: String },
}

/// The host that a request names.
pub(crate) fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => headers.get(HOST)?.to_str().ok(),
    }
}

/// Reads what a request is for; `None` when it is for the server itself.
///
/// # Errors
/// [`atoll_core::Code::InvalidArgument`] for headers that name no port.
pub(crate) fn parse(uri: &Uri, headers: &HeaderMap, domain: &str) -> Result<Option<Address>> {
    if let Some(address) = by_host(uri, headers, domain) {
        return Ok(Some(address));
    }
    if headers.contains_key(SANDBOX_HEADER) || headers.contains_key(PORT_HEADER) {
        return by_headers(headers).map(Some);
    }
    Ok(by_path(uri.path()))
}

/// The port or page that the host name alone names.
pub(crate) fn by_host(uri: &Uri, headers: &HeaderMap, domain: &str) -> Option<Address> {
    let host = host(uri, headers)?;
    match parse_host_name(host, domain) {
        Some((port, sandbox)) => Some(Address::Port { sandbox, port, form: Form::Host }),
        None => page(host, domain).map(|sandbox| Address::Page { sandbox }),
    }
}

/// `ports-<sandbox>.<domain>` is read as if `ports` were a port.
fn page(host: &str, domain: &str) -> Option<String> {
    let start = host.get(..PORTS_PAGE.len())?;
    if !start.eq_ignore_ascii_case(PORTS_PAGE) {
        return None;
    }
    let rest = host.get(PORTS_PAGE.len()..)?;
    parse_host_name(&format!("1-{rest}"), domain).map(|(_, sandbox)| sandbox)
}

fn by_headers(headers: &HeaderMap) -> Result<Address> {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let sandbox = text(&SANDBOX_HEADER)
        .filter(|sandbox| !sandbox.is_empty())
        .ok_or_else(|| Error::invalid("X-Atoll-Sandbox", "must name a sandbox, beside X-Atoll-Port"))?;
    let port = text(&PORT_HEADER).and_then(parse_port).ok_or_else(|| {
        Error::invalid("X-Atoll-Port", "must be a port from 1 to 65535, beside X-Atoll-Sandbox")
    })?;
    Ok(Address::Port { sandbox: sandbox.to_owned(), port, form: Form::Headers })
}

fn by_path(path: &str) -> Option<Address> {
    let (sandbox, rest) = path.strip_prefix(SANDBOXES)?.split_once('/')?;
    let rest = rest.strip_prefix("ports/")?;
    let digits = rest.split_once('/').map_or(rest, |(digits, _)| digits);
    let port = parse_port(digits)?;
    let prefix = format!("{SANDBOXES}{sandbox}/ports/{digits}");
    Some(Address::Port { sandbox: sandbox.to_owned(), port, form: Form::Path { prefix } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn address(uri: &str, pairs: &[(&'static str, &'static str)]) -> Result<Option<Address>> {
        let headers = pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        parse(&uri.parse().unwrap(), &headers, "localhost")
    }

    fn port(sandbox: &str, form: Form) -> Option<Address> {
        Some(Address::Port { sandbox: sandbox.to_owned(), port: 3000, form })
    }

    #[test]
    fn three_forms() {
        let by_host = address("/x", &[("host", "3000-Web.localhost:4600")]).unwrap();
        assert_eq!(by_host, port("web", Form::Host));
        // HTTP/2 has the host in the address.
        assert_eq!(address("http://3000-web.localhost:4600/x", &[]).unwrap(), port("web", Form::Host));
        let headers = [("host", "127.0.0.1"), ("x-atoll-sandbox", "web"), ("x-atoll-port", "3000")];
        assert_eq!(address("/x", &headers).unwrap(), port("web", Form::Headers));
        let prefix = || Form::Path { prefix: "/v1/sandboxes/web/ports/3000".to_owned() };
        for path in ["/v1/sandboxes/web/ports/3000", "/v1/sandboxes/web/ports/3000/a/b?c"] {
            assert_eq!(address(path, &[("host", "127.0.0.1")]).unwrap(), port("web", prefix()));
        }
        let page = address("/", &[("host", "PORTS-web.localhost:4600")]).unwrap();
        assert_eq!(page, Some(Address::Page { sandbox: "web".to_owned() }));
    }

    #[test]
    fn the_host_name_decides() {
        let pairs = [("host", "3000-web.localhost"), ("x-atoll-sandbox", "other"), ("x-atoll-port", "80")];
        assert_eq!(address("/v1/sandboxes/other/ports/80/", &pairs).unwrap(), port("web", Form::Host));
    }

    #[test]
    fn the_server_keeps_its_own() {
        for path in [
            "/",
            "/v1/sandboxes",
            "/v1/sandboxes/web/ports",
            "/v1/sandboxes/web/ports/x",
            "/v1/sandboxes/web/ports/0/",
        ] {
            assert_eq!(address(path, &[("host", "localhost:4600")]).unwrap(), None, "{path}");
        }
        assert!(address("/", &[("x-atoll-sandbox", "web")]).is_err());
        assert!(address("/", &[("x-atoll-port", "3000")]).is_err());
        assert!(address("/", &[("x-atoll-sandbox", "web"), ("x-atoll-port", "99999")]).is_err());
    }
}
