//! Answers that the gateway gives itself. They name the obstacle and what to do; none holds a secret.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};

use super::OutBody;

/// Tells an answer of the gateway from one of the server.
const REFUSED: HeaderName = HeaderName::from_static(crate::refusal::HEADER);

/// An answer of the gateway in place of the server's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{status} {text}")]
pub(super) struct Refusal {
    status: StatusCode,
    /// Machine-readable reason.
    reason: &'static str,
    text: String,
    /// Further bytes on the connection cannot be trusted.
    close: bool,
}

impl Refusal {
    fn new(status: StatusCode, reason: &'static str, text: impl Into<String>) -> Self {
        Self { status, reason, text: text.into(), close: false }
    }

    /// The request is malformed, or could be read in two ways.
    pub(super) fn malformed(text: impl Into<String>) -> Self {
        Self { close: true, ..Self::new(StatusCode::BAD_REQUEST, "malformed", text) }
    }

    /// The request is for another host than the connection.
    pub(super) fn misdirected(text: impl Into<String>) -> Self {
        Self::new(StatusCode::MISDIRECTED_REQUEST, "misdirected", text)
    }

    /// Policy or scope forbid it.
    pub(super) fn forbidden(text: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", text)
    }

    /// The body is too large for the change that a rule makes in it.
    pub(super) fn too_large(text: impl Into<String>) -> Self {
        Self { close: true, ..Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", text) }
    }

    /// The server cannot be reached, or its answer cannot be passed on.
    pub(super) fn upstream(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "upstream", text)
    }

    /// The gateway lacks a resource that it needs.
    pub(super) fn unavailable(text: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", text)
    }

    /// The answer when a secret could not be opened.
    pub(super) fn secret(error: &atoll_core::Error) -> Self {
        let text = match &error.hint {
            Some(hint) => format!("{error}; {hint}"),
            None => error.to_string(),
        };
        match error.code {
            atoll_core::Code::Forbidden | atoll_core::Code::SecretNotFound => Self::forbidden(text),
            _ => Self::unavailable(text),
        }
    }

    pub(super) fn into_response(self) -> Response<OutBody> {
        let text = format!("atoll: {}\n", self.text);
        let mut response = Response::new(());
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(CONTENT_LENGTH, HeaderValue::from(text.len()));
        headers.insert(REFUSED, HeaderValue::from_static(self.reason));
        if self.close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response.map(|()| Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed())
    }
}
