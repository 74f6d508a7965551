//! The parts of a request that handlers take.

use atoll_server::dialect::Origin;
use axum::extract::FromRequestParts;
use http::request::Parts;

use crate::App;

pub(crate) use atoll_dialect_kit::request::{Json, Path, Query};

/// Where this dialect is, as the caller sees it: what absolute addresses in answers begin with.
#[derive(Debug, Clone)]
pub(crate) struct Root(Origin);

impl Root {
    /// The address of something in this dialect.
    pub(crate) fn url(&self, rest: &str) -> String {
        format!("{}{}{rest}", self.0, crate::PREFIX)
    }

    /// Where toolboxes are.
    pub(crate) fn toolbox(&self) -> String {
        self.url("/toolbox")
    }

    /// The host's name or address, and the port.
    pub(crate) fn host_and_port(&self) -> (String, u16) {
        self.0.host_and_port()
    }

    /// The scheme by which it was reached, and is reached at its other names.
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
