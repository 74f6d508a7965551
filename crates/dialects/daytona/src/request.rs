//! The parts of a request that handlers take.

use atoll_server::dialect::Origin;
use axum::extract::FromRequestParts;
use http::request::Parts;

use crate::App;

pub(crate) use atoll_dialect_kit::request::{Json, Path, Query};

/// The address of this dialect, as the caller sees it: absolute addresses in answers begin with it.
#[derive(Debug, Clone)]
pub(crate) struct Root(Origin);

impl Root {
    /// The address of a path in this dialect.
    pub(crate) fn url(&self, rest: &str) -> String {
        format!("{}{}{rest}", self.0, crate::PREFIX)
    }

    /// The address of the toolboxes.
    pub(crate) fn toolbox(&self) -> String {
        self.url("/toolbox")
    }

    /// The host's name or address, and the port.
    pub(crate) fn host_and_port(&self) -> (String, u16) {
        self.0.host_and_port()
    }

    /// The scheme by which the client reached the server; the server's other names use it, too.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.0.is_encrypted() { "https" } else { "http" }
    }
}

impl FromRequestParts<App> for Root {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Self::Rejection> {
        Ok(Self(Origin::of(parts)))
    }
}
