//! The address by which a request reached the server. Absolute addresses in answers begin with it.

use std::convert::Infallible;
use std::fmt;

use axum::extract::FromRequestParts;
use http::header::HOST;
use http::request::Parts;

use crate::serve::Encrypted;

/// Scheme, host and port of the server as its caller sees them: `https://atoll.example:7070`.
///
/// A proxy before the server says in `X-Forwarded-Proto` and `X-Forwarded-Host` what its client asked for. A client
/// that lies there deceives only itself: the server uses them for nothing but the addresses in that client's own
/// answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin(String);

impl Origin {
    /// Of a request with this head.
    #[must_use]
    pub fn of(parts: &Parts) -> Self {
        let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let own = if parts.extensions.get::<Encrypted>().is_some() { "https" } else { "http" };
        let scheme =
            text("x-forwarded-proto").filter(|scheme| ["http", "https"].contains(scheme)).unwrap_or(own);
        let authority = parts.uri.authority().map(http::uri::Authority::as_str);
        let authority = text("x-forwarded-host").or_else(|| text(HOST.as_str())).or(authority);
        Self(format!("{scheme}://{}", authority.unwrap_or("localhost")))
    }

    /// Whether the caller's connection is encrypted, as far as the server knows.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.0.starts_with("https://")
    }

    /// The host's name or address, and the port.
    #[must_use]
    pub fn host_and_port(&self) -> (String, u16) {
        let authority = self.0.split_once("://").map_or(self.0.as_str(), |(_, rest)| rest);
        let port = if self.is_encrypted() { 443 } else { 80 };
        match authority.rsplit_once(':').map(|(host, port)| (host, port.parse())) {
            // Without the brackets of an IPv6 address, as 'ssh' has it.
            Some((host, Ok(port))) => (host.trim_matches(['[', ']']).to_owned(), port),
            _ => (authority.trim_matches(['[', ']']).to_owned(), port),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<S: Sync> FromRequestParts<S> for Origin {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(headers: &[(&str, &str)], encrypted: bool) -> String {
        let mut request = http::Request::builder().uri("/e2b/sandboxes");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        if encrypted {
            parts.extensions.insert(Encrypted);
        }
        Origin::of(&parts).to_string()
    }

    #[test]
    fn it_is_what_the_caller_sees() {
        let host = ("host", "box:7070");
        assert_eq!(of(&[host], false), "http://box:7070");
        assert_eq!(of(&[host], true), "https://box:7070");
        let proxy = [host, ("x-forwarded-proto", "https"), ("x-forwarded-host", "atoll.example")];
        assert_eq!(of(&proxy, false), "https://atoll.example");
        assert_eq!(of(&[host, ("x-forwarded-proto", "gopher")], true), "https://box:7070");
        assert_eq!(of(&[], false), "http://localhost");
    }
}
