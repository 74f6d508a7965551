//! Addresses under which ports and files are reached from outside.

use atoll_core::Result;
use atoll_core::access::{Target, host_name};
use atoll_engine::Access;
use atoll_store::SandboxRecord;
use std::fmt::Write as _;

use crate::shared::App;

/// Scheme, and the port with its colon unless it is the scheme's own, for a client that reached this server as `host`.
fn scheme_and_port<'a>(app: &'a App, host: Option<&'a str>) -> (&'static str, &'a str) {
    let authority = match &app.config.public_url {
        Some(url) => url.authority().map(http::uri::Authority::as_str),
        None => host,
    };
    let port = authority
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
    fn names_are_one_segment() {
        assert_eq!(escaped("a b/ü?.txt"), "a%20b%2F%C3%BC%3F.txt");
        assert_eq!(escaped(".."), "file");
        assert_eq!(escaped(""), "file");
    }
}
