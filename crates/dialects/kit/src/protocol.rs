//! What the kit must know of a protocol.

use atoll_core::Error;
use atoll_server::dialect::Host;
use axum::extract::RawPathParams;
use axum::response::IntoResponse;
use http::request::Parts;

/// A protocol; implemented by the state of the dialect's router.
pub trait Protocol: Clone + Send + Sync + 'static {
    /// The error of handlers: renders itself in the protocol's words.
    type Failure: IntoResponse + Send;

    /// Whether sandboxes are named by their ids alone. If so, a name that another API gave a sandbox finds nothing: the
    /// name may pass to another sandbox.
    const BY_ID_ALONE: bool = false;

    /// The server.
    fn host(&self) -> &Host;

    /// The answer to a request that was refused before its handler: for its key, its size or its form. `error` says
    /// which part of the request is wrong.
    fn refused(error: &Error) -> Self::Failure;

    /// The id or name under which the engine knows the sandbox that a request is about. `route` is the matched pattern,
    /// such as `/boxes/{name}`. `None` where the request names no sandbox: only the key's scope counts then.
    ///
    /// If this does not find the sandbox that the handler uses, no role, visibility or lease protects that sandbox.
    fn sandbox(route: &str, params: &RawPathParams, parts: &Parts) -> Option<String>;

    /// The answer to a request whose sandbox does not exist, or that its key may not know of. If this gives `None`, the
    /// handler answers; it gets the error from [`crate::request::Caller::sandbox`].
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
