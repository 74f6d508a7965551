//! Errors as the clients understand them: the status and the `error` of the body decide which exception a
//! user sees, so each kind of call has its own table here, and nowhere else.
//!
//! The clients retry 429, 502, 503 and 504, creations and uploads included. So these are given only while
//! nothing was done.

use atoll_core::{Code, Error};
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_RANGE, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, StatusCode, Uri};
use serde_json::{Value, json};

use crate::ids;

/// Seconds after which a client may try again.
const RETRY_AFTER_S: u16 = 1;

/// The error of handlers.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    /// The type by which the client chooses its exception.
    pub(crate) error: &'static str,
    pub(crate) message: String,
    /// The field of the request that is wrong, for the clients' validation errors.
    field: Option<String>,
    content_range: Option<String>,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// An error as one sentence, with what to do about it. Sandboxes and snapshots are called by the ids that clients know.
pub(crate) fn sentence(error: &Error) -> String {
    let text = atoll_dialect_kit::sentence(error);
    let mut told = String::with_capacity(text.len());
    for part in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let word = part.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        let sandbox = word.parse().map(|id| ids::of_sandbox(&id));
        match sandbox.or_else(|_| word.parse().map(|id| ids::of_snapshot(&id))) {
            Ok(uuid) => {
                told.push_str(&uuid);
                told.push_str(part.strip_prefix(word).unwrap_or_default());
            }
            Err(_) => told.push_str(part),
        }
    }
    told
}

impl Failure {
    pub(crate) fn new(status: StatusCode, error: &'static str, message: impl Into<String>) -> Self {
        Self { status, error, message: message.into(), field: None, content_range: None }
    }

    /// A field of the request is wrong.
    pub(crate) fn field(field: &str, why: impl std::fmt::Display) -> Self {
        let mut failure =
            Self::new(StatusCode::UNPROCESSABLE_ENTITY, "ValidationError", format!("{field}: {why}"));
        failure.field = Some(field.to_owned());
        failure
    }

    /// The range asked for lies outside a file of `size` bytes.
    pub(crate) fn range(size: u64) -> Self {
        let message = format!("the range lies outside the file, which has {size} bytes");
        let mut failure = Self::new(StatusCode::RANGE_NOT_SATISFIABLE, "RangeNotSatisfiable", message);
        failure.content_range = Some(format!("bytes */{size}"));
        failure
    }

    /// Errors of reading, listing, changing: the general table of the control plane.
    pub(crate) fn control(error: &Error) -> Self {
        if is_argument(error.code) {
            return invalid(error);
        }
        // The sandbox that the path names is there: a 404 would say that it is not.
        match error.code {
            Code::SecretNotFound => return Self::field("proxy_config", sentence(error)),
            Code::VolumeNotFound => return Self::field("volumes", sentence(error)),
            _ => {}
        }
        let (status, kind) = match error.code {
            Code::Unauthorized => (StatusCode::UNAUTHORIZED, "Unauthorized"),
            Code::Forbidden => (StatusCode::FORBIDDEN, "Forbidden"),
            Code::NameTaken => (StatusCode::CONFLICT, "Conflict"),
            Code::LimitExceeded | Code::QuotaExceeded => (StatusCode::TOO_MANY_REQUESTS, "QuotaExceeded"),
            Code::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "TooLarge"),
            Code::GuestUnavailable | Code::ShuttingDown | Code::StoreUnavailable | Code::NodeUnavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable")
            }
            Code::Timeout => (StatusCode::REQUEST_TIMEOUT, "Timeout"),
            Code::Internal | Code::RecordUnreadable => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
            code if is_missing(code) => (StatusCode::NOT_FOUND, "NotFound"),
            _ => (StatusCode::CONFLICT, "InvalidState"),
        };
        let message = match error.code {
            // By this word the clients tell which limit it is.
            Code::LimitExceeded | Code::QuotaExceeded => format!("limit reached: {}", sentence(error)),
            _ => sentence(error),
        };
        Self::new(status, kind, message)
    }

    /// Errors of making a sandbox.
    pub(crate) fn create(error: &Error) -> Self {
        let (status, kind) = match error.code {
            Code::Timeout => (StatusCode::REQUEST_TIMEOUT, "Timeout"),
            Code::ImageNotFound
            | Code::ImageInvalid
            | Code::ImagePlatformMismatch
            | Code::DigestMismatch
            | Code::IssuerInvalid
            | Code::IssuerUnavailable
            | Code::RegistryDenied
            | Code::RegistryInvalid
            | Code::RegistryUnavailable
            | Code::RegistryImageNotFound => (StatusCode::UNPROCESSABLE_ENTITY, "ImagePull"),
            Code::IsolationUnavailable
            | Code::LimitUnenforceable
            | Code::Unenforceable
            | Code::UserNotFound
            | Code::CwdNotFound => (StatusCode::UNPROCESSABLE_ENTITY, "SandboxConfig"),
            Code::SandboxFailed => (StatusCode::UNPROCESSABLE_ENTITY, "CrashLoop"),
            Code::HostDiskFull
            | Code::GuestUnavailable
            | Code::ShuttingDown
            | Code::StoreUnavailable
            | Code::NodeUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "Unschedulable"),
            _ => return Self::control(error),
        };
        Self::new(status, kind, sentence(error))
    }

    /// Errors of commands, files and searches. `kind` is the type from which the client makes its "operation failed":
    /// `CommandError`, `ReadError` or `WriteError`.
    pub(crate) fn data(kind: &'static str, error: &Error) -> Self {
        let (status, kind) = match error.code {
            Code::Unauthorized | Code::Forbidden => return Self::control(error),
            // A file that cannot be written because a directory above it is missing is not a missing file.
            Code::FileNotFound if kind != "WriteError" => (StatusCode::NOT_FOUND, "FileNotFound"),
            Code::ExecNotFound => (StatusCode::NOT_FOUND, "CommandNotFound"),
            // A 404 would be taken for a missing file, and at a WebSocket for a server without WebSockets.
            Code::SandboxNotFound => (StatusCode::GONE, "SandboxNotFound"),
            Code::SandboxFailed => (StatusCode::GONE, "SandboxFailed"),
            Code::PermissionDenied => (StatusCode::FORBIDDEN, "PermissionDenied"),
            Code::InvalidState => (StatusCode::BAD_REQUEST, "NotReady"),
            Code::GuestUnavailable | Code::ShuttingDown | Code::StoreUnavailable | Code::NodeUnavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable")
            }
            Code::LimitExceeded | Code::QuotaExceeded => (StatusCode::TOO_MANY_REQUESTS, kind),
            Code::Timeout => (StatusCode::REQUEST_TIMEOUT, kind),
            Code::DiskFull | Code::HostDiskFull => (StatusCode::INSUFFICIENT_STORAGE, kind),
            Code::Internal | Code::RecordUnreadable => (StatusCode::INTERNAL_SERVER_ERROR, kind),
            _ => (StatusCode::BAD_REQUEST, kind),
        };
        Self::new(status, kind, sentence(error))
    }

    fn body(&self) -> Value {
        match &self.field {
            Some(field) => {
                json!({"detail": [{"loc": ["body", field], "msg": self.message, "type": "value_error"}]})
            }
            None => json!({"detail": {"error": self.error, "message": self.message}}),
        }
    }
}

const fn is_argument(code: Code) -> bool {
    matches!(code, Code::InvalidArgument | Code::InvalidJson | Code::PathInvalid)
}

fn is_missing(code: Code) -> bool {
    code.as_str().ends_with("_not_found")
}

/// The engine's messages begin with the field.
fn invalid(error: &Error) -> Failure {
    let field = match error.message.split_once(": ") {
        // The one field of this protocol that becomes several fields of the engine.
        Some((field, _)) if field.starts_with("egress") || field.starts_with("secrets") => "proxy_config",
        Some((field, _)) => field,
        None => "body",
    };
    let mut failure = Failure::new(StatusCode::UNPROCESSABLE_ENTITY, "ValidationError", sentence(error));
    failure.field = Some(field.to_owned());
    failure
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.body().to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, RETRY_AFTER_S.into());
            }
            _ => {}
        }
        if let Some(range) = self.content_range.and_then(|text| HeaderValue::try_from(text).ok()) {
            headers.insert(CONTENT_RANGE, range);
        }
        tracing::info!(status = self.status.as_u16(), error = self.error, message = self.message, "refused");
        response
    }
}

/// No such route.
pub(crate) async fn route_not_found(uri: Uri) -> Failure {
    let path = atoll_core::error::shorten(uri.path());
    Failure::new(StatusCode::NOT_FOUND, "NotFound", format!("no route '{path}' in the LangSmith protocol"))
}

/// The route exists, the method does not.
pub(crate) async fn method_not_allowed(method: Method) -> Failure {
    Failure::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "MethodNotAllowed",
        format!("this route does not take {method}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::id::{SandboxId, SnapshotId};

    #[test]
    fn what_is_retried_is_what_may_succeed_later() {
        for code in Code::ALL {
            let error = Error::new(*code, "x");
            for failure in
                [Failure::control(&error), Failure::create(&error), Failure::data("ReadError", &error)]
            {
                let retried = matches!(failure.status.as_u16(), 429 | 502 | 503 | 504);
                assert!(!retried || code.retryable(), "{code}: {}", failure.status);
                assert!(failure.status.is_client_error() || failure.status.is_server_error());
            }
        }
    }

    #[test]
    fn a_wrong_field_is_named() {
        let failure = Failure::create(&Error::invalid("name", "not a name").hint("use letters"));
        assert_eq!(failure.status, StatusCode::UNPROCESSABLE_ENTITY);
        let body = failure.body();
        assert_eq!(body["detail"][0]["loc"][1], "name");
        assert_eq!(body["detail"][0]["type"], "value_error");
        assert_eq!(body["detail"][0]["msg"], "name: not a name; use letters");
    }

    #[test]
    fn a_sandbox_that_is_gone_is_no_missing_file() {
        let gone = Error::new(Code::SandboxNotFound, "no sandbox 'x'");
        assert_eq!(Failure::data("ReadError", &gone).status, StatusCode::GONE);
        assert_eq!(Failure::control(&gone).status, StatusCode::NOT_FOUND);
    }

    #[test]
    fn ids_are_those_that_clients_know() {
        let (id, snapshot) = (SandboxId::from_parts(7, 8), SnapshotId::from_parts(9, 10));
        let (uuid, other) = (ids::of_sandbox(&id), ids::of_snapshot(&snapshot));
        let said =
            |text: String| sentence(&Error::new(Code::InvalidState, text).hint(format!("ask for {id}")));
        assert_eq!(
            said(format!("no sandbox '{id}' of {snapshot}. Ünd")),
            format!("no sandbox '{uuid}' of {other}. Ünd; ask for {uuid}")
        );
        assert_eq!(said("sb-box sb06".to_owned()), format!("sb-box sb06; ask for {uuid}"));
    }
}
