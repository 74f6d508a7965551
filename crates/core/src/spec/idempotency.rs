//! The name under which what a request made is found again: [`IdempotencyKey`].

use std::fmt;

use crate::error::{Error, Result};
use crate::limits::IDEMPOTENCY_KEY_MAX_BYTES;

/// What the stored form of the server's own keys begins with. No client's key has a space, so none is stored like one of these.
const OF_SERVER: &str = "server ";

/// The idempotency key of an exec, or of a message to an agent. A second request with the same key in the same sandbox,
/// or session, gets what the first one made.
///
/// The server's own keys are apart from those of clients: no client can take the name of a run of a service, and have
/// the server take its command for that run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdempotencyKey(Kind);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    /// As a client chose it.
    Client(String),
    /// As the server named what it runs itself.
    Server(String),
}

impl IdempotencyKey {
    /// A key that a client chose.
    ///
    /// # Errors
    /// [`crate::Code::InvalidArgument`] unless it has 1 to 128 printable ASCII characters and no space.
    pub fn client(text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        let fits = (1..=IDEMPOTENCY_KEY_MAX_BYTES).contains(&text.len());
        if fits && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Ok(Self(Kind::Client(text)));
        }
        Err(Error::invalid("idempotency_key", "must be 1 to 128 printable ASCII characters"))
    }

    /// A key of the server itself.
    #[must_use]
    pub fn server(name: impl Into<String>) -> Self {
        Self(Kind::Server(name.into()))
    }

    /// The key that is stored as this text.
    #[must_use]
    pub fn of_stored(text: String) -> Self {
        match text.strip_prefix(OF_SERVER) {
            Some(name) => Self::server(name),
            None => Self(Kind::Client(text)),
        }
    }

    /// As a client chose it; `None` for a key of the server.
    #[must_use]
    pub fn as_client(&self) -> Option<&str> {
        match &self.0 {
            Kind::Client(text) => Some(text),
            Kind::Server(_) => None,
        }
    }

    /// As the server named it; `None` for a client's key.
    #[must_use]
    pub fn as_server(&self) -> Option<&str> {
        match &self.0 {
            Kind::Server(name) => Some(name),
            Kind::Client(_) => None,
        }
    }
}

/// The form in which it is stored.
impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Client(text) => f.write_str(text),
            Kind::Server(name) => write!(f, "{OF_SERVER}{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_reaches_the_servers_keys() {
        let own = IdempotencyKey::server("atoll-service-x-1");
        for text in [own.to_string(), "server x".to_owned(), String::new(), "a b".to_owned(), "ü".to_owned()]
        {
            assert!(IdempotencyKey::client(text.as_str()).is_err(), "{text}");
        }
        assert!(IdempotencyKey::client("x".repeat(IDEMPOTENCY_KEY_MAX_BYTES + 1)).is_err());
        let client = IdempotencyKey::client("atoll-service-x-1").unwrap();
        assert_ne!(client, own);
        assert_ne!(client.to_string(), own.to_string());
        assert_eq!((client.as_client(), client.as_server()), (Some("atoll-service-x-1"), None));
        assert_eq!((own.as_client(), own.as_server()), (None, Some("atoll-service-x-1")));
        for key in [client, own] {
            assert_eq!(IdempotencyKey::of_stored(key.to_string()), key);
        }
    }
}
