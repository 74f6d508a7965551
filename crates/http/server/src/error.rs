//! Errors on the wire: the one place where codes become statuses.

use atoll_api::ErrorBody;
use atoll_core::{Code, Error};
use axum::extract::rejection::PathRejection;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};

/// Seconds after which a client may send a request again that failed with a retryable error.
const RETRY_AFTER_S: &str = "1";

/// The error of a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError(pub(crate) Error);

/// The result of a handler.
pub(crate) type ApiResult<T> = Result<T, ApiError>;

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        Self(Error::invalid("path", rejection.body_text()))
    }
}

impl IntoResponse for ApiError {
    /// Only status and reason: the middleware knows the request's id and writes the body.
    fn into_response(self) -> Response {
        let mut response = status(self.0.code).into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Writes the body of an answer that a handler ended with an error; passes others on.
pub(crate) fn with_body(response: Response, request_id: &str) -> Response {
    let (mut parts, body) = response.into_parts();
    let Some(ApiError(error)) = parts.extensions.remove::<ApiError>() else {
        return Response::from_parts(parts, body);
    };
    if error.code == Code::Unauthorized {
        parts.headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if matches!(parts.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
        && error.code.retryable()
    {
        parts.headers.insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_S));
    }
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Response::from_parts(parts, json(&body_of(error, request_id)).into())
}

/// The body of an error, for answers and for events in streams.
pub(crate) fn body_of(error: Error, request_id: &str) -> ErrorBody {
    ErrorBody { request_id: Some(request_id.to_owned()), ..ErrorBody::from(error) }
}

/// JSON text of one of our own types.
pub(crate) fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| {
        // Our types have string keys and no failing serialisers.
        tracing::error!(%error, "an answer cannot be written as JSON");
        "null".to_owned()
    })
}

/// The status of a code.
pub(crate) const fn status(code: Code) -> StatusCode {
    match code {
        Code::BuildFileInvalid | Code::InvalidJson | Code::InvalidArgument | Code::PathInvalid => {
            StatusCode::BAD_REQUEST
        }
        Code::Unauthorized => StatusCode::UNAUTHORIZED,
        Code::Forbidden | Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::RouteNotFound
        | Code::SandboxNotFound
        | Code::ExecNotFound
        | Code::NodeNotFound
        | Code::TemplateNotFound
        | Code::ImageNotFound
        | Code::PoolNotFound
        | Code::VolumeNotFound
        | Code::SnapshotNotFound
        | Code::KeyNotFound
        | Code::ProjectNotFound
        | Code::BuildNotFound
        | Code::AccessNotFound
        | Code::SshKeyNotFound
        | Code::ServiceNotFound
        | Code::AgentNotFound
        | Code::SessionNotFound
        | Code::ScheduleNotFound
        | Code::ContextNotFound
        | Code::RegistryNotFound
        | Code::SecretNotFound
        | Code::FileNotFound => StatusCode::NOT_FOUND,
        Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Code::NameTaken
        | Code::InvalidState
        | Code::SandboxFailed
        | Code::IdempotencyMismatch
        | Code::BuildCancelled
        | Code::ImageInUse
        | Code::VolumeBusy
        | Code::SnapshotInUse
        | Code::ProjectInUse
        | Code::ExecEnded
        | Code::StdinClosed
        | Code::NotATerminal
        | Code::FileExists
        | Code::PortTaken
        | Code::NotADirectory
        | Code::IsADirectory
        | Code::DirectoryNotEmpty => StatusCode::CONFLICT,
        Code::SandboxLeased => StatusCode::LOCKED,
        Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::OffsetOutOfRange => StatusCode::RANGE_NOT_SATISFIABLE,
        Code::ImagePlatformMismatch
        | Code::InstructionUnsupported
        | Code::BuildContextInvalid
        | Code::BuildFileNotFound
        | Code::BuildStepFailed
        | Code::StartFailed
        | Code::ImageInvalid
        | Code::SnapshotIncompatible
        | Code::SnapshotInvalid
        | Code::InterpreterMissing
        | Code::CommandNotFound
        | Code::CommandNotExecutable
        | Code::CwdNotFound
        | Code::UserNotFound
        | Code::IsolationUnavailable
        | Code::LimitUnenforceable
        | Code::Unenforceable
        | Code::PauseUnavailable
        | Code::PoolTooLarge => StatusCode::UNPROCESSABLE_ENTITY,
        Code::BudgetExhausted => StatusCode::PAYMENT_REQUIRED,
        Code::LimitExceeded | Code::QuotaExceeded => StatusCode::TOO_MANY_REQUESTS,
        Code::Internal | Code::RecordUnreadable => StatusCode::INTERNAL_SERVER_ERROR,
        Code::DigestMismatch
        | Code::ObjectsDenied
        | Code::ObjectsUnavailable
        | Code::IssuerInvalid
        | Code::IssuerUnavailable
        | Code::RegistryDenied
        | Code::RegistryUnavailable
        | Code::RegistryInvalid
        | Code::RegistryImageNotFound
        | Code::PortClosed
        | Code::PortBroken
        | Code::InterpreterFailed => StatusCode::BAD_GATEWAY,
        Code::BuildInterrupted
        | Code::GuestUnavailable
        | Code::NodeUnavailable
        | Code::ShuttingDown
        | Code::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Timeout => StatusCode::GATEWAY_TIMEOUT,
        Code::DiskFull | Code::HostDiskFull => StatusCode::INSUFFICIENT_STORAGE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_an_error_and_says_when_to_retry() {
        for code in Code::ALL {
            let response = ApiError(Error::new(*code, "x")).into_response();
            let response = with_body(response, "id");
            let status = response.status();
            assert!(status.is_client_error() || status.is_server_error(), "{code}");
            let waits = response.headers().contains_key(RETRY_AFTER);
            assert_eq!(waits, code.retryable() && matches!(status.as_u16(), 429 | 503), "{code}");
        }
    }

    #[test]
    fn what_may_succeed_later_is_never_the_callers_fault() {
        for code in Code::ALL.iter().filter(|code| code.retryable()) {
            let status = status(*code).as_u16();
            // 423: the lease of another client is in the way, and it ends.
            assert!(matches!(status, 423 | 429) || status >= 500, "{code}");
        }
    }
}
