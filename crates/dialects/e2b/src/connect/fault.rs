//! Errors as the Connect protocol has them.

use atoll_core::{Code, Error};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};

/// The protocol's codes, as far as this server gives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Unimplemented,
    Internal,
    Unavailable,
    Unauthenticated,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::InvalidArgument => "invalid_argument",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::PermissionDenied => "permission_denied",
            Self::ResourceExhausted => "resource_exhausted",
            Self::FailedPrecondition => "failed_precondition",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
            Self::Unauthenticated => "unauthenticated",
        }
    }

    const fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument | Self::FailedPrecondition => StatusCode::BAD_REQUEST,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists => StatusCode::CONFLICT,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Unknown | Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
        }
    }
}

/// The error of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) message: String,
}

impl Fault {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The client's time is over.
    pub(crate) fn deadline() -> Self {
        Self::new(Kind::DeadlineExceeded, "the deadline of the call is over")
    }

    /// The engine's error, in the protocol's terms.
    pub(crate) fn of(error: &Error) -> Self {
        let kind = match error.code {
            Code::InvalidArgument
            | Code::InvalidJson
            | Code::PathInvalid
            | Code::CwdNotFound
            | Code::CommandNotExecutable
            | Code::NotADirectory
            | Code::IsADirectory => Kind::InvalidArgument,
            Code::FileNotFound | Code::ExecNotFound | Code::ExecEnded => Kind::NotFound,
            Code::FileExists => Kind::AlreadyExists,
            Code::Unauthorized | Code::UserNotFound => Kind::Unauthenticated,
            Code::Forbidden | Code::PermissionDenied => Kind::PermissionDenied,
            Code::TooLarge
            | Code::LimitExceeded
            | Code::QuotaExceeded
            | Code::DiskFull
            | Code::HostDiskFull => Kind::ResourceExhausted,
            Code::SandboxLeased | Code::NotATerminal => Kind::FailedPrecondition,
            Code::Timeout => Kind::DeadlineExceeded,
            Code::GuestUnavailable | Code::ShuttingDown | Code::StoreUnavailable | Code::NodeUnavailable => {
                Kind::Unavailable
            }
            Code::StdinClosed | Code::Internal | Code::RecordUnreadable => Kind::Internal,
            _ => Kind::Unknown,
        };
        Self::new(kind, &error.message)
    }

    /// The error as a JSON object.
    pub(crate) fn to_json(&self) -> Value {
        json!({"code": self.kind.as_str(), "message": self.message})
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        tracing::info!(code = self.kind.as_str(), message = self.message, "call refused");
        (self.kind.status(), [(CONTENT_TYPE, "application/json")], self.to_json().to_string()).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_engine_has_a_kind() {
        for code in Code::ALL {
            let fault = Fault::of(&Error::new(*code, "x"));
            assert!(fault.kind.status().is_client_error() || fault.kind.status().is_server_error());
            // Here no code tells the client that it may try again: clients retry only the proxy's own answers.
            assert_eq!(fault.to_json()["message"], "x");
        }
    }
}
