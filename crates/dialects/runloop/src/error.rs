//! Errors: JSON with a `message`, in a status for which the clients raise the right exception.
//!
//! The clients send a request again up to five times, with growing pauses, after 408, 409, 429 or 5xx, unless
//! `x-should-retry` says otherwise: this server always sends it. 408 is only for waits ("not yet"); 409 is not used.

use atoll_core::{Code, Error};
use atoll_dialect_kit::sentence;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Method, StatusCode, Uri};
use serde_json::json;

/// Header that tells the clients whether to send the request again.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// Seconds after which a client may try again.
const RETRY_AFTER_S: u16 = 1;

/// The error of handlers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// For programs.
    code: &'static str,
    /// The same request may succeed later, and nothing was done.
    retry: bool,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), code, retry: false }
    }

    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_argument", message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// For a request that this server does not support. No 5xx: the clients would send it again.
    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "unsupported", message)
    }

    /// A port that cannot be reached now.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "unavailable", message)
    }

    pub(crate) fn no_devbox(id: &str) -> Self {
        Self::not_found(format!("Devbox {} not found", atoll_core::error::shorten(id)))
    }

    pub(crate) fn no_execution(id: &str) -> Self {
        Self::not_found(format!("Execution {} not found", atoll_core::error::shorten(id)))
    }

    /// A wait whose time is over. Its clients do not count it as an error.
    pub(crate) fn not_yet() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "timeout", "none of the statuses was reached in time")
    }

    /// The same error about a thing that a body names: 404 would be about the path.
    pub(crate) fn of_body(self) -> Self {
        match self.status {
            StatusCode::NOT_FOUND => Self::bad(self.message),
            _ => self,
        }
    }

    /// The engine's error.
    pub(crate) fn of(error: &Error) -> Self {
        let status = match error.code {
            Code::Unauthorized => StatusCode::UNAUTHORIZED,
            Code::Forbidden | Code::SandboxLeased | Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::SandboxNotFound
            | Code::ExecNotFound
            | Code::SnapshotNotFound
            | Code::TemplateNotFound
            | Code::BuildNotFound
            | Code::SecretNotFound
            | Code::FileNotFound
            | Code::AccessNotFound => StatusCode::NOT_FOUND,
            Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Code::NameTaken | Code::IdempotencyMismatch => StatusCode::UNPROCESSABLE_ENTITY,
            Code::LimitExceeded | Code::QuotaExceeded => StatusCode::TOO_MANY_REQUESTS,
            Code::GuestUnavailable
            | Code::ShuttingDown
            | Code::StoreUnavailable
            | Code::NodeUnavailable
            | Code::HostDiskFull => StatusCode::SERVICE_UNAVAILABLE,
            Code::Internal | Code::RecordUnreadable => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        };
        let retry = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        Self { retry, ..Self::new(status, error.code.as_str(), sentence(error)) }
    }

    /// The error as JSON, for streams that have begun.
    pub(crate) fn body(&self) -> serde_json::Value {
        json!({"code": self.status.as_u16(), "error": self.code, "message": self.message})
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::of(&error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        if self.status != StatusCode::REQUEST_TIMEOUT {
            tracing::info!(status = self.status.as_u16(), message = self.message, "refused");
        }
        let body = json!({"code": self.code, "message": self.message});
        let mut response = (self.status, body.to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(SHOULD_RETRY, HeaderValue::from_static(if self.retry { "true" } else { "false" }));
        if self.retry {
            headers.insert(RETRY_AFTER, RETRY_AFTER_S.into());
        }
        response
    }
}

/// No such route.
pub(crate) async fn route_not_found(method: Method, uri: Uri) -> Failure {
    let path = atoll_core::error::shorten(uri.path());
    Failure::not_found(format!("no route '{method} {path}' in the Runloop protocol"))
}

/// The route exists, the method does not.
pub(crate) async fn method_not_allowed(method: Method) -> Failure {
    Failure::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        format!("this route does not take {method}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_retried_is_what_may_succeed_later() {
        for code in Code::ALL {
            let failure = Failure::of(&Error::new(*code, "x"));
            assert!(!failure.retry || code.retryable(), "{code}");
            assert!(failure.status.is_client_error() || failure.status.is_server_error());
            assert_ne!(failure.status, StatusCode::REQUEST_TIMEOUT, "{code}");
        }
    }

    #[test]
    fn every_answer_says_whether_to_come_again() {
        let of = |failure: Failure| failure.into_response().headers()[SHOULD_RETRY].clone();
        assert_eq!(of(Failure::bad("x")), "false");
        assert_eq!(of(Failure::of(&Error::new(Code::ShuttingDown, "x"))), "true");
    }
}
