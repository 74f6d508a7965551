//! Errors as gRPC and Connect tell them.
//!
//! A refused gRPC call is an HTTP 200 whose headers say `grpc-status`: that is what [`grpc`] makes. Connect writes
//! the same codes as words ([`Status::connect`]), in a JSON body with an HTTP status ([`Status::http`]) or at the end
//! of a stream.

use atoll_core::{Code, Error};
use axum::response::{IntoResponse as _, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::sentence;

/// Characters that `grpc-message` may not hold as they are.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

/// A canonical code. Clients retry only [`Self::Unavailable`] and [`Self::DeadlineExceeded`], at most also
/// [`Self::Internal`]: these are for what may succeed later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the meaning")]
pub enum Status {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

impl Status {
    /// The status of a code. A protocol whose clients want another status looks at the code first.
    #[must_use]
    pub const fn of(code: Code) -> Self {
        match code {
            Code::InvalidArgument
            | Code::InvalidJson
            | Code::PathInvalid
            | Code::BuildFileInvalid
            | Code::UserNotFound
            | Code::CwdNotFound => Self::InvalidArgument,
            Code::Timeout => Self::DeadlineExceeded,
            Code::SandboxNotFound
            | Code::ExecNotFound
            | Code::TemplateNotFound
            | Code::ImageNotFound
            | Code::PoolNotFound
            | Code::VolumeNotFound
            | Code::SnapshotNotFound
            | Code::KeyNotFound
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
            | Code::FileNotFound => Self::NotFound,
            Code::NameTaken | Code::FileExists => Self::AlreadyExists,
            Code::Forbidden | Code::PermissionDenied => Self::PermissionDenied,
            Code::LimitExceeded
            | Code::QuotaExceeded
            | Code::BudgetExhausted
            | Code::TooLarge
            | Code::DiskFull
            | Code::HostDiskFull => Self::ResourceExhausted,
            Code::OffsetOutOfRange => Self::OutOfRange,
            Code::RouteNotFound | Code::MethodNotAllowed => Self::Unimplemented,
            Code::Internal | Code::RecordUnreadable => Self::Internal,
            Code::GuestUnavailable | Code::ShuttingDown | Code::StoreUnavailable | Code::NodeUnavailable => {
                Self::Unavailable
            }
            Code::Unauthorized => Self::Unauthenticated,
            _ => Self::FailedPrecondition,
        }
    }

    /// The word of the Connect protocol.
    #[must_use]
    pub const fn connect(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::PermissionDenied => "permission_denied",
            Self::ResourceExhausted => "resource_exhausted",
            Self::FailedPrecondition => "failed_precondition",
            Self::OutOfRange => "out_of_range",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
            Self::Unauthenticated => "unauthenticated",
        }
    }

    /// The HTTP status of a unary call of the Connect protocol.
    #[must_use]
    pub const fn http(self) -> StatusCode {
        match self {
            Self::InvalidArgument | Self::FailedPrecondition | Self::OutOfRange => StatusCode::BAD_REQUEST,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists => StatusCode::CONFLICT,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
        }
    }
}

/// A gRPC call that is refused before it has sent anything.
#[must_use]
pub fn grpc(error: &Error) -> Response {
    let message = utf8_percent_encode(&sentence(error), ESCAPED).to_string();
    let mut response = StatusCode::OK.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from(Status::of(error.code) as u16));
    if let Ok(message) = HeaderValue::try_from(message) {
        headers.insert("grpc-message", message);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_retried_is_what_may_succeed_later() {
        for code in Code::ALL {
            let status = Status::of(*code);
            let retried = matches!(status, Status::Unavailable);
            assert!(!retried || code.retryable(), "{code}: {status:?}");
        }
    }

    #[test]
    fn grpc_refuses_with_200() {
        let response = grpc(&Error::new(Code::SandboxNotFound, "no sandbox '50%\n€'"));
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["grpc-status"], "5");
        assert_eq!(response.headers()["grpc-message"], "no sandbox '50%25%0A%E2%82%AC'");
    }
}
