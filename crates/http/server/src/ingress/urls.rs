//! Addresses under which ports and files are reached from outside.

use atoll_core::Result;
use atoll_core::access::{Target, host_name};
use atoll_engine::Access;
use atoll_store::SandboxRecord;
use http::uri::Authority;
use std::fmt::Write as _;
use std::net::IpAddr;

use crate::shared::App;

/// The name and port by which clients reach this server: what its operator says, or else what this client said.
fn authority<'a>(app: &'a App, host: Option<&'a str>) -> Option<&'a str> {
    match &app.config.public_url {
        Some(url) => url.authority().map(Authority::as_str),
        None => host,
    }
}

/// Scheme, and the port with its colon unless it is the scheme's own, for a client that reached this server as `host`.
fn scheme_and_port<'a>(app: &'a App, host: Option<&'a str>) -> (&'static str, &'a str) {
    let port = authority(app, host)
        .and_then(|authority| authority.rfind(':').map(|at| &authority[at..]))
        .filter(|port| port.len() > 1 && port[1..].bytes().all(|b| b.is_ascii_digit()))
        .unwrap_or_default();
    (if app.config.is_https() { "https" } else { "http" }, port)
}

/// The address of the server itself.
fn server(app: &App, host: Option<&str>) -> String {
    match &app.config.public_url {
        Some(url) => url.to_string().trim_end_matches('/').to_owned(),
        None => {
            let scheme = if app.config.is_https() { "https" } else { "http" };
            format!("{scheme}://{}", app.console.beside(host.unwrap_or("localhost")))
        }
    }
}

/// The address of a port, by host name; the sandbox by its name if that fits.
pub(crate) fn port(app: &App, sandbox: &SandboxRecord, port: u16, host: Option<&str>) -> String {
    let domain = &app.config.ports_domain;
    // A name within a project means nothing in the request of a client without a key.
    let name = sandbox.name.as_deref().filter(|_| sandbox.project.is_none());
    let named = name.and_then(|name| host_name(name, port, domain));
    let name = named.or_else(|| host_name(sandbox.id.as_str(), port, domain)).unwrap_or_default();
    let (scheme, port) = scheme_and_port(app, host);
    format!("{scheme}://{name}{port}/")
}

/// The domain of ports with the number of this server's own port, as in `localhost:4600`, for a client that reached
/// the server as `host`. `None` when names below the domain may lead that client elsewhere.
pub(crate) fn domain(app: &App, host: Option<&str>) -> Option<String> {
    let domain = &app.config.ports_domain;
    let leads = authority(app, host).is_some_and(|authority| leads_here(authority, domain));
    leads.then(|| format!("{domain}{}", scheme_and_port(app, host).1))
}

/// Whether names below a domain lead to where a client found the server: the client used such a name itself, or it is
/// on this machine, where `localhost` is.
fn leads_here(authority: &str, domain: &str) -> bool {
    let Ok(authority) = authority.parse::<Authority>() else { return false };
    let (host, domain) = (authority.host().to_ascii_lowercase(), domain.to_ascii_lowercase());
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    let is_loopback = address.is_ok_and(|address| address.to_canonical().is_loopback());
    let before = host.strip_suffix(&domain);
    before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
        || (is_loopback && domain == "localhost")
}

/// The address of the page that lists the ports of a sandbox.
pub(crate) fn page(app: &App, sandbox: &SandboxRecord, host: Option<&str>) -> String {
    let (scheme, port) = scheme_and_port(app, host);
    format!("{scheme}://ports-{}.{}{port}/", sandbox.id, app.config.ports_domain)
}

/// The address under which an access is used, without its token.
pub(crate) fn access(app: &App, access: &Access, host: Option<&str>) -> Result<String> {
    let sandbox = app.engine.sandbox(&access.sandbox)?;
    Ok(match &access.target {
        Target::Port(number) => port(app, &sandbox, *number, host),
        Target::Ports => page(app, &sandbox, host),
        Target::File { path, .. } => {
            let name = path.rsplit('/').next().unwrap_or_default();
            format!("{}/v1/download/{}", server(app, host), escaped(name))
        }
    })
}

/// A link that holds the token.
pub(crate) fn with_token(url: &str, token: &str) -> String {
    format!("{url}?{}={token}", super::credential::TOKEN_PARAMETER)
}

/// A name as one segment of a path.
fn escaped(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    // A segment of dots alone would mean a directory.
    if out.is_empty() || out.bytes().all(|b| b == b'.') { "file".to_owned() } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_told_to_whom_it_leads_here() {
        for here in ["localhost", "api.localhost:4600", "127.0.0.1:4600", "[::1]:4600", "[::ffff:127.0.0.1]"]
        {
            assert!(leads_here(here, "localhost"), "{here}");
        }
        for elsewhere in ["192.0.2.7:4600", "server:4600", "notlocalhost", "localhost.example.com", "", "a b"]
        {
            assert!(!leads_here(elsewhere, "localhost"), "{elsewhere}");
        }
        for here in ["boxes.example.com", "API.Boxes.example.com:8443"] {
            assert!(leads_here(here, "boxes.example.com"), "{here}");
        }
        for elsewhere in ["example.com", "myboxes.example.com", "127.0.0.1:4600", "localhost:4600"] {
            assert!(!leads_here(elsewhere, "boxes.example.com"), "{elsewhere}");
        }
    }

    #[test]
    fn names_are_one_segment() {
        assert_eq!(escaped("a b/ü?.txt"), "a%20b%2F%C3%BC%3F.txt");
        assert_eq!(escaped(".."), "file");
        assert_eq!(escaped(""), "file");
    }
}
