//! The caller and the parts of a request that every handler takes.

use atoll_server::dialect::Origin;
use axum::extract::FromRequestParts;
use http::request::Parts;

use crate::App;
use crate::error::Failure;

pub(crate) use atoll_dialect_kit::request::{Admin, Caller, Exec, Json, Manage, Query, Read};

/// One part of the path, decoded.
#[derive(Debug)]
pub(crate) struct Name(pub(crate) String);

impl FromRequestParts<App> for Name {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Failure> {
        let path = axum::extract::Path::<String>::from_request_parts(parts, app).await;
        path.map(|path| Self(path.0)).map_err(|rejection| Failure::field("path", rejection.body_text()))
    }
}

/// The address of this dialect, as the caller sees it: absolute addresses in answers begin with it.
#[derive(Debug, Clone)]
pub(crate) struct Root(String);

impl Root {
    /// The address of a path below `/v2/sandboxes`.
    pub(crate) fn url(&self, rest: &str) -> String {
        format!("{}/v2/sandboxes{rest}", self.0)
    }
}

impl FromRequestParts<App> for Root {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Self::Rejection> {
        Ok(Self(format!("{}{}", Origin::of(parts), crate::PREFIX)))
    }
}
