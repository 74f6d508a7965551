//! What can go wrong between a caller and a server.

use atoll_api::ErrorBody;

/// Shorthand of this crate.
pub type Result<T, E = ClientError> = std::result::Result<T, E>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server refused, and says why.
    #[error("{error}")]
    Api {
        /// Code, message and hint.
        error: atoll_core::Error,
        /// The request's id, to find it in the server's log.
        request_id: Option<String>,
    },
    /// There was no connection, or it broke and could not be had again.
    #[error("no connection to {url}")]
    Connect {
        /// The server's address.
        url: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server's answer breaks the protocol or a limit.
    #[error("the server's answer makes no sense: {0}")]
    Protocol(String),
    /// The address or the key cannot be used.
    #[error("{0}")]
    Config(String),
}

impl ClientError {
    /// The error in the shape the server gives, for machines.
    #[must_use]
    pub fn to_body(&self) -> ErrorBody {
        match self {
            Self::Api { error, request_id } => {
                ErrorBody { request_id: request_id.clone(), ..ErrorBody::from(error.clone()) }
            }
            Self::Connect { .. } => body(atoll_core::Code::Timeout, self.with_sources()),
            Self::Protocol(_) => body(atoll_core::Code::Internal, self.to_string()),
            Self::Config(_) => body(atoll_core::Code::InvalidArgument, self.to_string()),
        }
    }

    /// The server's code, if it was the server that refused.
    #[must_use]
    pub fn code(&self) -> Option<atoll_core::Code> {
        match self {
            Self::Api { error, .. } => Some(error.code),
            Self::Connect { .. } | Self::Protocol(_) | Self::Config(_) => None,
        }
    }

    /// Whether a new connection may help.
    pub(crate) fn worth_another_connection(&self) -> bool {
        match self {
            Self::Api { error, .. } => matches!(
                error.code,
                atoll_core::Code::ShuttingDown
                    | atoll_core::Code::StoreUnavailable
                    | atoll_core::Code::NodeUnavailable
                    | atoll_core::Code::GuestUnavailable
                    | atoll_core::Code::Timeout
                    | atoll_core::Code::Internal
            ),
            Self::Connect { .. } => true,
            Self::Protocol(_) | Self::Config(_) => false,
        }
    }

    fn with_sources(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

fn body(code: atoll_core::Code, message: String) -> ErrorBody {
    ErrorBody::from(atoll_core::Error::new(code, message))
}
