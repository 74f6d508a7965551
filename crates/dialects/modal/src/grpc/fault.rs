//! Why a call fails: a status, by which the clients choose their exception, and one sentence.
//!
//! Clients try again after `UNAVAILABLE`, `DEADLINE_EXCEEDED`, `CANCELLED`, `INTERNAL` and `UNKNOWN`: the server gives
//! these only where trying again may help.

use atoll_core::{Code, Error};
use atoll_dialect_kit::sentence;
use atoll_dialect_kit::status::Status;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

pub(crate) const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// Characters that `grpc-message` may not hold as they are.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

/// The error of handlers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) status: Status,
    pub(crate) message: String,
}

pub(crate) type Result<T, E = Fault> = std::result::Result<T, E>;

impl Fault {
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Status::InvalidArgument, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(Status::NotFound, message)
    }

    /// For a request that this server does not support.
    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Status::FailedPrecondition, message)
    }

    /// The engine's error.
    pub(crate) fn of(error: &Error) -> Self {
        let status = match error.code {
            // The sandbox has ended: the clients keep that apart from a call that came too early.
            Code::SandboxFailed => Status::NotFound,
            code => Status::of(code),
        };
        Self::new(status, sentence(error))
    }

    pub(crate) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(STATUS, HeaderValue::from(self.status as u16));
        let message = utf8_percent_encode(&self.message, ESCAPED).to_string();
        if let Ok(message) = HeaderValue::try_from(message) {
            headers.insert(MESSAGE, message);
        }
        headers
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::of(&error)
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let mut headers = self.headers();
        headers.insert(CONTENT_TYPE, super::GRPC);
        headers.into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_travels_in_headers() {
        let response = Fault::not_found("no sandbox '50%\n€'").into_response();
        assert_eq!(response.status(), http::StatusCode::OK);
        assert_eq!(response.headers()[STATUS], "5");
        assert_eq!(response.headers()[MESSAGE], "no sandbox '50%25%0A%E2%82%AC'");
    }
}
