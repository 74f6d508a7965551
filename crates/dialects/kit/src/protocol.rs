//! What the kit must know of a protocol.

use atoll_core::Error;
use atoll_server::dialect::Host;
use axum::extract::RawPathParams;
use axum::response::IntoResponse;
use http::request::Parts;

/// A protocol; implemented by the state of the dialect's router.
pub trait Protocol: Clone + Send + Sync + 'static {
    /// What handlers fail with: renders itself in the protocol's words.
    type Failure: IntoResponse + Send;

    /// Whether sandboxes are named by their ids alone. A name that some API gave one leads nowhere then: it may pass to
    /// another sandbox.
    const BY_ID_ALONE: bool = false;

    /// The server.
    fn host(&self) -> &Host;

    /// A request that was refused before its handler: by its key, its size, its form. `error` says which part of it is
    /// wrong.
    fn refused(error: &Error) -> Self::Failure;

    /// What the engine knows the sandbox by, an id or a name, that a request is about. `route` is the matched
    /// pattern, such as `/boxes/{name}`. `None` where no sandbox is named: only the key's scope counts then.
    ///
    /// What this does not find, nobody's role, visibility or lease protects.
    fn sandbox(route: &str, params: &RawPathParams, parts: &Parts) -> Option<String>;

    /// What a request is told whose sandbox is not there, or not for its key to know of. Without that its handler says
    /// it, which gets the error of [`crate::request::Caller::sandbox`].
    #[must_use]
    fn missing(_named: &str) -> Option<Self::Failure> {
        None
    }
}

/// An error as one sentence, with what to do about it.
#[must_use]
pub fn sentence(error: &Error) -> String {
    match &error.hint {
        Some(hint) => format!("{}; {hint}", error.message),
        None => error.message.clone(),
    }
}
