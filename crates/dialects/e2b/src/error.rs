//! Errors of the control plane and of envd's plain HTTP: always JSON, with the status repeated in the body, where
//! the JavaScript client looks for it. An empty body would be an exception of its own in the Python client.

use atoll_core::{Code, Error};
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Method, StatusCode, Uri};
use serde_json::json;

/// Tells the Python client whether to try again.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");
/// Seconds after which a client may try again.
const RETRY_AFTER_S: u16 = 1;

/// The error of handlers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// For programs, where there is more than one error of a status.
    pub(crate) code: Option<&'static str>,
    /// The same request may succeed later, and nothing was done.
    retry: bool,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// One sentence, with what the client can do about the error.
pub(crate) fn sentence(error: &Error) -> String {
    match &error.hint {
        Some(hint) => format!("{}; {hint}", error.message),
        None => error.message.clone(),
    }
}

impl Failure {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), code: None, retry: false }
    }

    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    pub(crate) fn no_sandbox(id: &str) -> Self {
        let id: String = id.chars().take(64).collect();
        Self::not_found(format!("Sandbox \"{id}\" doesn't exist or you don't have access to it"))
    }

    #[must_use]
    pub(crate) const fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// The engine's error, in the control plane's terms.
    pub(crate) fn of(error: &Error) -> Self {
        let status = match error.code {
            Code::Unauthorized => StatusCode::UNAUTHORIZED,
            Code::Forbidden | Code::SandboxLeased => StatusCode::FORBIDDEN,
            Code::SandboxNotFound
            | Code::TemplateNotFound
            | Code::SnapshotNotFound
            | Code::BuildNotFound
            | Code::AccessNotFound
            | Code::ExecNotFound => StatusCode::NOT_FOUND,
            Code::LimitExceeded | Code::QuotaExceeded => StatusCode::TOO_MANY_REQUESTS,
            Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Code::InvalidState
            | Code::SandboxFailed
            | Code::NameTaken
            | Code::VolumeBusy
            | Code::SnapshotInUse
            | Code::PauseUnavailable
            | Code::BudgetExhausted
            | Code::IdempotencyMismatch => StatusCode::CONFLICT,
            Code::GuestUnavailable
            | Code::ShuttingDown
            | Code::StoreUnavailable
            | Code::NodeUnavailable
            | Code::HostDiskFull => StatusCode::SERVICE_UNAVAILABLE,
            Code::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Code::Internal | Code::RecordUnreadable => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        };
        let mut failure = Self::new(status, sentence(error));
        failure.retry = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        failure
    }

    /// The engine's error about a file, in envd's terms.
    pub(crate) fn of_file(error: &Error) -> Self {
        let status = match error.code {
            Code::FileNotFound => StatusCode::NOT_FOUND,
            Code::DiskFull | Code::HostDiskFull => StatusCode::INSUFFICIENT_STORAGE,
            Code::UserNotFound | Code::Unauthorized => StatusCode::UNAUTHORIZED,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::GuestUnavailable | Code::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            Code::Timeout => StatusCode::REQUEST_TIMEOUT,
            Code::Internal | Code::RecordUnreadable => StatusCode::INTERNAL_SERVER_ERROR,
            Code::Forbidden | Code::SandboxLeased => StatusCode::FORBIDDEN,
            _ => StatusCode::BAD_REQUEST,
        };
        Self::new(status, error.message.clone())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::of(&error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        tracing::info!(status = self.status.as_u16(), message = self.message, "refused");
        let mut body = json!({"code": self.status.as_u16(), "message": self.message});
        if let Some(code) = self.code {
            body["error_code"] = code.into();
        }
        let mut response = (self.status, body.to_string()).into_response();
        response.extensions_mut().insert(self.clone());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // Without this header the Python client retries after 429, 502, 503 and 504, creations too.
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
    Failure::not_found(format!("no route '{method} {path}' in the E2B protocol"))
}

/// The route exists, the method does not.
pub(crate) async fn method_not_allowed(method: Method) -> Failure {
    Failure::new(StatusCode::METHOD_NOT_ALLOWED, format!("this route does not take {method}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_retried_is_what_may_succeed_later() {
        for code in Code::ALL {
            let error = Error::new(*code, "x");
            let failure = Failure::of(&error);
            assert!(!failure.retry || code.retryable(), "{code}");
            for failure in [failure, Failure::of_file(&error)] {
                assert!(failure.status.is_client_error() || failure.status.is_server_error());
            }
        }
    }

    #[test]
    fn a_sandbox_that_is_gone_is_not_found() {
        assert_eq!(Failure::of(&Error::new(Code::SandboxNotFound, "x")).status, StatusCode::NOT_FOUND);
    }
}
