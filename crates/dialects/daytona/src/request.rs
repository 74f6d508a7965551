//! The parts of a request that handlers take.

use axum::extract::FromRequestParts;
use http::HeaderMap;
use http::header::HOST;
use http::request::Parts;

use crate::App;

pub(crate) use atoll_dialect_kit::request::{Json, Path, Query};

/// Where this dialect is, as the caller sees it: what absolute addresses in answers begin with.
#[derive(Debug, Clone)]
pub(crate) struct Root(String);

impl Root {
    /// The address of something in this dialect.
    pub(crate) fn url(&self, rest: &str) -> String {
        format!("{}{}{rest}", self.0, crate::PREFIX)
    }

    /// Where toolboxes are.
    pub(crate) fn toolbox(&self) -> String {
        self.url("/toolbox")
    }

    fn of(headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        // A proxy that ends TLS says so. Whoever lies here lies to himself only.
        let scheme = text("x-forwarded-proto").filter(|scheme| *scheme == "https").unwrap_or("http");
        let authority = text("x-forwarded-host").or_else(|| text(HOST.as_str())).unwrap_or("localhost");
        Self(format!("{scheme}://{authority}"))
    }
}

impl FromRequestParts<App> for Root {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Self::Rejection> {
        let mut root = Self::of(&parts.headers);
        // HTTP/2 names the host in its address.
        if let Some(authority) = parts.uri.authority().filter(|_| !parts.headers.contains_key(HOST)) {
            root = Self(format!("http://{authority}"));
        }
        Ok(root)
    }
}
