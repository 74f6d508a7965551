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
    /// A command or option that there is not.
    #[error("{message}")]
    Unknown {
        /// Which.
        message: String,
        /// What the user may have meant.
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
            Self::Usage(_) | Self::Unknown { .. } => EXIT_USAGE,
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
            Self::Client(_) | Self::Plain(_) | Self::Usage(_) | Self::Unknown { .. } | Self::Io { .. } => {
                false
            }
        }
    }

    /// What is wrong, with every cause.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Client(ClientError::Api { error, .. }) if error.code == Code::Unauthorized => {
                "the server does not take this API key: it is wrong, was removed, or has ended".to_owned()
            }
            Self::Client(ClientError::Connect { source, .. }) => {
                format!("{self}: {}", innermost(source.as_ref()))
            }
            Self::Client(_)
            | Self::Plain(_)
            | Self::Usage(_)
            | Self::Unknown { .. }
            | Self::Io { .. }
            | Self::Output(_)
            | Self::Interrupted(_) => chain(self),
        }
    }

    /// Says that there was no key to show, where the server only says that it wants one.
    pub(crate) fn without_key(self) -> Self {
        match self.code() {
            Some(Code::Unauthorized) => Self::Plain(
                Error::new(Code::Unauthorized, "no API key is set")
                    .hint("set ATOLL_API_KEY to what 'atoll serve' printed, or 'atoll login' asks for it and keeps it"),
            ),
            Some(_) | None => self,
        }
    }

    /// The server's code, if it was the server that refused.
    pub(crate) fn code(&self) -> Option<Code> {
        match self {
            Self::Client(error) => error.code(),
            Self::Plain(_)
            | Self::Usage(_)
            | Self::Unknown { .. }
            | Self::Io { .. }
            | Self::Output(_)
            | Self::Interrupted(_) => None,
        }
    }

    /// What to do about it.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            // The server's own hint is for users who write requests by hand.
            Self::Client(ClientError::Api { error, .. }) if error.code == Code::Unauthorized => {
                let people = error.hint.as_ref().is_some_and(|hint| hint.contains(LOGIN));
                let login =
                    if people { format!(", or log in as a person: '{LOGIN}'") } else { String::new() };
                Some(format!("set ATOLL_API_KEY, or 'atoll login' asks for a key and keeps it{login}"))
            }
            Self::Client(ClientError::Api { error, .. }) => {
                error.hint.clone().or_else(|| lists(error.code).map(str::to_owned))
            }
            Self::Client(ClientError::Connect { .. }) => {
                Some("is the server running, and is the address right? (--url, ATOLL_URL)".to_owned())
            }
            Self::Plain(error) => error.hint.clone(),
            Self::Unknown { hint, .. } => Some(hint.clone()),
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
            Self::Usage(_) | Self::Unknown { .. } => ErrorBody::from(Error::new(Code::InvalidArgument, "")),
            Self::Io { .. } | Self::Output(_) | Self::Interrupted(_) => {
                ErrorBody { retryable: false, ..ErrorBody::from(Error::new(Code::Internal, "")) }
            }
        };
        body.message = self.message();
        body.hint = self.hint();
        body
    }
}

/// What lists the things of which one was not found.
#[expect(clippy::wildcard_enum_match_arm, reason = "most codes are not of things that are listed")]
const fn lists(code: Code) -> Option<&'static str> {
    match code {
        Code::SandboxNotFound => Some("'atoll ls' lists sandboxes"),
        Code::ExecNotFound => Some("'atoll ps SANDBOX' lists its commands"),
        Code::KeyNotFound => Some("'atoll key ls' lists keys"),
        Code::RegistryNotFound => Some("'atoll registry ls' lists registries"),
        Code::AgentNotFound => Some("'atoll agent ls' lists agents"),
        Code::ServiceNotFound => Some("'atoll service ls SANDBOX' lists its services"),
        Code::BuildNotFound => Some("'atoll build ls' lists builds"),
        Code::ProjectNotFound => Some("'atoll project ls' lists projects"),
        _ => None,
    }
}

/// Why there is no connection: the last cause, as the ones before it name only layers of the client.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    match last.downcast_ref::<io::Error>() {
        Some(error) => io_text(error),
        None => last.to_string(),
    }
}

/// What the system says, without its number.
fn io_text(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error ").next().map_or(text.clone(), str::to_owned)
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
