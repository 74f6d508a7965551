//! Errors as the clients read them: `{statusCode, source, code, message, timestamp, path, method}`. The SDKs look up
//! source and code first, then the status, to choose the exception.

use atoll_core::{Code, Error};
use atoll_dialect_kit::{sentence, time};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, StatusCode, Uri};
use serde_json::{Value, json};

/// The part of Daytona that would give this error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Api,
    Daemon,
    Proxy,
}

impl Source {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "DAYTONA_API",
            Self::Daemon => "DAYTONA_DAEMON",
            Self::Proxy => "DAYTONA_PROXY",
        }
    }
}

/// The error of handlers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) message: String,
    source: Source,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), source: Source::Api }
    }

    /// The error of another part than the control plane.
    #[must_use]
    pub(crate) const fn from(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BAD_REQUEST", message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NOT_FOUND", message)
    }

    /// A session, a command of a session, or a terminal is not there.
    pub(crate) fn no_process(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "PROCESS_NOT_FOUND", message).from(Source::Daemon)
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "CONFLICT", message)
    }

    pub(crate) fn gone(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, code, message).from(Source::Daemon)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL_SERVER_ERROR", message)
    }

    /// The toolbox's own 400.
    pub(crate) fn bad_daemon(message: impl Into<String>) -> Self {
        Self::bad(message).from(Source::Daemon)
    }

    /// The engine's error, in the control plane's terms.
    pub(crate) fn of(error: &Error) -> Self {
        let (status, code) = match error.code {
            Code::Unauthorized => (StatusCode::UNAUTHORIZED, "UNAUTHORIZED"),
            Code::Forbidden | Code::SandboxLeased => (StatusCode::FORBIDDEN, "FORBIDDEN"),
            Code::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED"),
            Code::LimitExceeded | Code::QuotaExceeded => (StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_REQUESTS"),
            Code::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "PAYLOAD_TOO_LARGE"),
            Code::InvalidState
            | Code::SandboxFailed
            | Code::NameTaken
            | Code::VolumeBusy
            | Code::SnapshotInUse
            | Code::PauseUnavailable
            | Code::BudgetExhausted
            | Code::IdempotencyMismatch => (StatusCode::CONFLICT, "CONFLICT"),
            Code::GuestUnavailable
            | Code::ShuttingDown
            | Code::StoreUnavailable
            | Code::NodeUnavailable
            | Code::HostDiskFull => (StatusCode::SERVICE_UNAVAILABLE, "SERVICE_UNAVAILABLE"),
            Code::Timeout => (StatusCode::REQUEST_TIMEOUT, "REQUEST_TIMEOUT"),
            Code::Internal | Code::RecordUnreadable => {
                (StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL_SERVER_ERROR")
            }
            code if is_missing(code) => (StatusCode::NOT_FOUND, "NOT_FOUND"),
            _ => (StatusCode::BAD_REQUEST, "BAD_REQUEST"),
        };
        Self::new(status, code, sentence(error))
    }

    /// The engine's error about work inside a sandbox.
    pub(crate) fn of_daemon(error: &Error) -> Self {
        Self::of(error).from(Source::Daemon)
    }

    /// The engine's error about a file.
    pub(crate) fn of_file(error: &Error) -> Self {
        let (status, code) = match error.code {
            Code::FileNotFound => (StatusCode::NOT_FOUND, "FILE_NOT_FOUND"),
            Code::PermissionDenied => (StatusCode::FORBIDDEN, "FILE_ACCESS_DENIED"),
            Code::NotADirectory
            | Code::IsADirectory
            | Code::DirectoryNotEmpty
            | Code::PathInvalid
            | Code::FileExists => (StatusCode::BAD_REQUEST, "INVALID_FILE_PATH"),
            Code::DiskFull => (StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL_SERVER_ERROR"),
            _ => return Self::of_daemon(error),
        };
        Self::new(status, code, sentence(error)).from(Source::Daemon)
    }

    /// The body.
    pub(crate) fn json(&self, method: &Method, path: &str) -> Value {
        json!({
            "statusCode": self.status.as_u16(),
            "source": self.source.as_str(),
            "code": self.code,
            "error": self.status.canonical_reason().unwrap_or_default(),
            "message": self.message,
            "timestamp": time::iso(time::now_ms()),
            "path": atoll_core::error::shorten(path),
            "method": method.as_str(),
        })
    }

    /// The answer to a request with this method and path.
    pub(crate) fn response(&self, method: &Method, path: &str) -> Response {
        let mut response = (self.status, self.json(method, path).to_string()).into_response();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

/// A 404 says that a thing that the *path* names is missing; handlers give another error for things that the body
/// names.
fn is_missing(code: Code) -> bool {
    matches!(
        code,
        Code::SandboxNotFound
            | Code::ExecNotFound
            | Code::TemplateNotFound
            | Code::SnapshotNotFound
            | Code::VolumeNotFound
            | Code::PoolNotFound
            | Code::BuildNotFound
            | Code::SecretNotFound
            | Code::AccessNotFound
            | Code::KeyNotFound
            | Code::FileNotFound
            | Code::RouteNotFound
    )
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::of(&error)
    }
}

impl IntoResponse for Failure {
    /// Leaves out the body, which [`dress`] writes: only [`dress`] knows the request.
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Writes the bodies of refusals.
pub(crate) async fn dress(request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = next.run(request).await;
    match response.extensions_mut().remove::<Failure>() {
        Some(failure) => {
            tracing::info!(status = failure.status.as_u16(), message = failure.message, "refused");
            failure.response(&method, &path)
        }
        None => response,
    }
}

/// No such route.
pub(crate) async fn route_not_found(method: Method, uri: Uri) -> Failure {
    let path = atoll_core::error::shorten(uri.path());
    Failure::not_found(format!("this server has no route '{method} {path}' of the Daytona protocol"))
}

/// The route exists, the method does not.
pub(crate) async fn method_not_allowed(method: Method) -> Failure {
    let why = format!("this route does not take {method}");
    Failure::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_a_status_and_a_body() {
        for code in Code::ALL {
            let error = Error::new(*code, "x").hint("y");
            for failure in [Failure::of(&error), Failure::of_file(&error)] {
                assert!(failure.status.is_client_error() || failure.status.is_server_error(), "{code}");
                let body = failure.json(&Method::GET, "/a");
                assert_eq!(body["statusCode"], failure.status.as_u16());
                assert_eq!((&body["message"], &body["path"]), (&"x; y".into(), &"/a".into()));
            }
        }
    }

    #[test]
    fn files_have_codes_of_their_own() {
        let of = |code| Failure::of_file(&Error::new(code, "x")).code;
        assert_eq!(of(Code::FileNotFound), "FILE_NOT_FOUND");
        assert_eq!(of(Code::PermissionDenied), "FILE_ACCESS_DENIED");
        assert_eq!(of(Code::SandboxNotFound), "NOT_FOUND");
    }
}
