//! Why a command failed, and how that is told: text, JSON, exit code.

use std::io;

use atoll_api::ErrorBody;
use atoll_client::ClientError;
use atoll_core::{Code, Error};

/// Shorthand of the commands.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Exit code of everything that Atoll itself could not do. The command's own codes pass through.
pub(crate) const EXIT_FAILURE: u8 = 125;
/// Exit code of arguments that make no sense.
pub(crate) const EXIT_USAGE: u8 = 2;
/// Exit code when the reader of our output has gone: 128 + SIGPIPE, as a shell would see it.
const EXIT_BROKEN_PIPE: u8 = 141;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The server refused, or could not be asked.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// An error that this program found itself, without a server.
    #[error("{0}")]
    Plain(Error),
    /// Arguments that are fine one by one but not together.
    #[error("{0}")]
    Usage(String),
    /// A command that there is not.
    #[error("{message}")]
    NoCommand {
        /// Which.
        message: String,
        /// The command that the user may have meant.
        hint: String,
    },
    /// A local file, directory or terminal.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// Our output cannot be written.
    #[error("cannot write output")]
    Output(#[source] io::Error),
    /// A signal ended the command.
    #[error("interrupted")]
    Interrupted(u8),
}

/// The command that logs a person in, where the server allows that.
const LOGIN: &str = "atoll login --oidc";

impl Failure {
    /// A failure with a message only.
    pub(crate) fn plain(code: Code, message: impl Into<String>) -> Self {
        Self::Plain(Error::new(code, message))
    }

    /// A failure of a local file, directory or terminal.
    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { what: what.into(), source: source.into() }
    }

    /// The exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::NoCommand { .. } => EXIT_USAGE,
            Self::Output(_) if self.is_closed_pipe() => EXIT_BROKEN_PIPE,
            Self::Interrupted(signal) => 128_u8.saturating_add(*signal),
            Self::Client(_) | Self::Plain(_) | Self::Io { .. } | Self::Output(_) => EXIT_FAILURE,
        }
    }

    /// Whether the reader of our output has gone.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Whether no message is printed: the reader of our output has gone, or a signal ended the command.
    pub(crate) fn is_silent(&self) -> bool {
        match self {
            Self::Output(_) => self.is_closed_pipe(),
            Self::Interrupted(_) => true,
            Self::Client(_) | Self::Plain(_) | Self::Usage(_) | Self::NoCommand { .. } | Self::Io { .. } => {
                false
            }
        }
    }

    /// What is wrong, with every cause.
    pub(crate) fn message(&self) -> String {
        chain(self)
    }

    /// What to do about it.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            // The server's own hint is for users who write requests by hand.
            Self::Client(ClientError::Api { error, .. }) if error.code == Code::Unauthorized => {
                let people = error.hint.as_ref().is_some_and(|hint| hint.contains(LOGIN));
                let login =
                    if people { format!(", or log in as a person: '{LOGIN}'") } else { String::new() };
                Some(format!("set ATOLL_API_KEY, or api_key in the configuration file{login}"))
            }
            Self::Client(ClientError::Api { error, .. }) => error.hint.clone(),
            Self::Client(ClientError::Connect { .. }) => {
                Some("is the server running, and is the address right? (--url, ATOLL_URL)".to_owned())
            }
            Self::Plain(error) => error.hint.clone(),
            Self::NoCommand { hint, .. } => Some(hint.clone()),
            Self::Client(_) | Self::Usage(_) | Self::Io { .. } | Self::Output(_) | Self::Interrupted(_) => {
                None
            }
        }
    }

    /// In the shape that the server's errors have.
    pub(crate) fn to_body(&self) -> ErrorBody {
        let mut body = match self {
            Self::Client(error) => error.to_body(),
            Self::Plain(error) => ErrorBody::from(error.clone()),
            Self::Usage(_) | Self::NoCommand { .. } => ErrorBody::from(Error::new(Code::InvalidArgument, "")),
            Self::Io { .. } | Self::Output(_) | Self::Interrupted(_) => {
                ErrorBody { retryable: false, ..ErrorBody::from(Error::new(Code::Internal, "")) }
            }
        };
        body.message = self.message();
        body.hint = self.hint();
        body
    }
}

/// An error with every cause, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Libraries repeat their causes; saying it once is enough.
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}
