//! The file of an access.
//!
//! The bytes come from inside and are answered under the server's own address. So a browser saves them; where
//! it may show them (`inline`) they get an origin of their own that may run nothing.

use atoll_core::access::Target;
use atoll_core::{Code, Error, Result};
use atoll_engine::Grant;
use axum::response::Response;
use http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue};
use std::fmt::Write as _;

use crate::error::ApiError;
use crate::revocation::{GrantSlot, UntilRevoked};
use crate::routes::read_path;
use crate::shared::App;
use crate::streams::{Owner, Turn};

/// What an answer may do in a browser: nothing.
const INERT: &str = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:";

/// Answers with the file.
pub(super) async fn download(app: &App, token: &str, headers: &HeaderMap) -> Result<Response> {
    let refused =
        || Error::new(Code::Unauthorized, "the link is not valid, or no longer").hint("ask for a new one");
    let access = app.engine.verify_access(token).map_err(|_why| refused())?;
    let Target::File { path, media_type, inline } = access.target().clone() else { return Err(refused()) };
    let record = app.engine.sandbox(access.sandbox())?;
    let owner = Owner { key: record.owner.as_ref(), project: record.project.as_ref() };
    let turn = Turn::by_link(app, access.sandbox(), owner)?;
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    let lease = app.engine.guest(access.sandbox()).await?.of_anybody();
    let mut response = read_path(lease, path, headers).await.map_err(|ApiError(error)| error)?;
    let out = response.headers_mut();
    out.insert(CONTENT_DISPOSITION, disposition(&name, inline));
    out.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    out.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(INERT));
    out.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    out.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-store"));
    if let Some(kind) = media_type.and_then(|kind| HeaderValue::try_from(kind).ok()) {
        out.insert(CONTENT_TYPE, kind);
    }
    let slot = GrantSlot::of(Grant::of_link(access));
    let response = turn.answered(response, &slot);
    Ok(response.map(|body| UntilRevoked::body(body, &slot, &app.engine)))
}

/// `Content-Disposition` with the file's name, in the form for names of any language.
fn disposition(name: &str, inline: bool) -> HeaderValue {
    let kind = if inline { "inline" } else { "attachment" };
    let mut text = format!("{kind}; filename*=UTF-8''");
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("attachment"))
}
