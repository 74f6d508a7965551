//! Where other vendors' protocols join the server.
//!
//! A *dialect* is a crate with a router of its own. The server passes on to it what its [`Mount`]s claim: below a
//! path, under a host name, with a header, or of a gRPC service. It gets a [`Host`]: the engine, the caller, and the
//! signal that the server stops. The middleware around every request (id, log, metrics, the check of `Origin`, panics)
//! is the server's. The dialect decides how paths are read, in which form a key is shown, and what errors look like:
//! the errors of the middleware itself are rendered by [`Dialect::refuse`] too.

pub mod credentials;
mod mount;
mod origin;

use atoll_core::id::SandboxId;
use atoll_core::secret::Secret;
use atoll_core::{Code, Error};
use atoll_engine::{Engine, Grant, SshSeed, VerifiedKey};
use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{Extensions, HeaderMap, HeaderValue, Method, Uri};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::ingress::Ingress;
use crate::serve::Slot;
use crate::shared::App;

pub use self::mount::{Arrival, Mount, Named, below};
pub(crate) use self::mount::{Mounts, claim};
pub use self::origin::Origin;
pub use crate::auth::{Admin, Exec, Manage, Read, Release, Requires};
pub use crate::body::{Pieces, read_all, reader};
pub use crate::hangup::{ClientGone, Undo, delete_untold};
pub use crate::transfer::{OpenFile, Source, Wanted, body, wanted};

/// Longest text that can be a key, bytes. Anything longer is refused unread.
const KEY_MAX_BYTES: usize = 256;

/// Stands in the extensions of an answer that is a refusal though its status does not say so, as in protocols that tell of
/// errors at the end of a stream. Nothing was done for it then.
#[derive(Debug, Clone, Copy)]
pub struct Refused;

/// A dialect to mount.
#[derive(Debug, Clone, Copy)]
pub struct Dialect {
    /// Its name, for metrics.
    pub name: &'static str,
    /// Which requests are its own.
    pub mounts: &'static [Mount],
    /// Makes the router. It sees paths without the prefix by which a request came.
    pub router: fn(Host) -> Router,
    /// Finds the key that a request shows, in whichever headers and shape: see [`credentials`]. It is verified as
    /// any other key of this installation.
    pub credential: fn(&HeaderMap) -> Option<Secret>,
    /// Renders an error that the server makes: a request from another web site, a right that ended, a panic.
    pub refuse: fn(&Error, &Asked) -> Response,
}

/// The parts of a request that an error's form may depend on.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The method.
    pub method: Method,
    /// The address, as the dialect's router sees it.
    pub uri: Uri,
    /// Of the request's body.
    pub content_type: Option<HeaderValue>,
    /// The content types that the client takes.
    pub accept: Option<HeaderValue>,
    /// The client.
    pub user_agent: Option<HeaderValue>,
}

impl Asked {
    /// Of this request.
    #[must_use]
    pub fn of(request: &Request) -> Self {
        let header = |name| request.headers().get(name).cloned();
        Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            content_type: header(CONTENT_TYPE),
            accept: header(ACCEPT),
            user_agent: header(USER_AGENT),
        }
    }
}

/// The parts of the server that a dialect may use.
#[derive(Debug, Clone)]
pub struct Host {
    app: App,
    dialect: Dialect,
}

/// Keeps the server from stopping, and the connection counted, while a task goes on.
#[derive(Debug)]
pub struct Held {
    _task: TaskTrackerToken,
    _slot: Option<Slot>,
}

impl Host {
    /// The use cases.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.app.engine
    }

    /// The domain of ports: names below it lead here.
    #[must_use]
    pub fn ports_domain(&self) -> &str {
        &self.app.config.ports_domain
    }

    /// Whether SSH clients are let in, at the same port.
    #[must_use]
    pub fn has_ssh(&self) -> bool {
        self.app.ssh.get().is_some()
    }

    /// The private key that is made of a seed, as SSH clients read it, if they are let in.
    #[must_use]
    pub fn ssh_private_key(&self, seed: &SshSeed) -> Option<Secret> {
        (self.app.ssh.get()?.private_key)(seed.reveal())
    }

    /// The ways to ports of sandboxes.
    #[must_use]
    pub fn ingress(&self) -> Ingress {
        Ingress { app: self.app.clone() }
    }

    /// The key that a request shows.
    ///
    /// # Errors
    /// [`atoll_core::Code::Unauthorized`]: one answer for every way of being wrong.
    pub fn verify(&self, headers: &HeaderMap) -> Result<VerifiedKey, Error> {
        let shown = (self.dialect.credential)(headers);
        let shown = shown.filter(|key| key.reveal().len() <= KEY_MAX_BYTES);
        shown.and_then(|key| self.app.engine.verify_key(key.reveal()).ok()).ok_or_else(|| {
            Error::new(Code::Unauthorized, "a valid API key is needed").hint("'atoll key create' makes one")
        })
    }

    /// Notes the right by which a request is answered: its bodies break off when that right ends. A task that outlives
    /// the request, as that of a WebSocket does, waits for [`Engine::until_revoked`] itself. To be called before
    /// anything is done for the request.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`] when the key has too many answers open that go on or are long.
    pub fn fill(&self, extensions: &Extensions, grant: Grant) -> Result<(), Error> {
        crate::revocation::GrantSlot::fill(extensions, grant)
    }

    /// As [`Self::fill`], for a request by an address of a file of a sandbox, which a key has signed and anybody may have. It
    /// takes no place of that key, but one of those that the links to the sandbox's files have.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`] when these are all taken; [`Code::SandboxNotFound`].
    pub fn fill_signed(&self, extensions: &Extensions, grant: Grant) -> Result<(), Error> {
        crate::revocation::GrantSlot::fill_signed(extensions, grant, &self.app.engine)
    }

    /// As [`Self::fill`], for a request by an address of an object that the dialect keeps, which the object's owner has
    /// signed and anybody may have. It takes no place of that key, but one of those that the object's addresses have.
    /// `object` is the object's name, with the dialect's before it where another dialect could have the same.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`] when these are all taken.
    pub fn fill_signed_object(
        &self,
        extensions: &Extensions,
        grant: Grant,
        object: &str,
    ) -> Result<(), Error> {
        crate::revocation::GrantSlot::fill_signed_object(extensions, grant, object)
    }

    /// Resolves when the server begins to stop: streams should end.
    pub fn draining(&self) -> WaitForCancellationFuture<'_> {
        self.app.draining.cancelled()
    }

    /// The token behind [`Self::draining`], for streams that outlive a borrow.
    #[must_use]
    pub fn draining_token(&self) -> CancellationToken {
        self.app.draining.clone()
    }

    /// For a task that outlives its HTTP request, as that of a WebSocket does. `extensions` are the request's. The task
    /// also keeps the request's place among the answers that its key may have open.
    #[must_use]
    pub fn hold(&self, extensions: &Extensions) -> Held {
        Held { _task: self.app.tasks.token(), _slot: extensions.get::<Slot>().cloned() }
    }

    /// Deletes sandboxes that a request made, unless its client takes the answer that carries this, as an extension. For a
    /// request that the client cannot send again to get the same sandboxes: without an idempotency key, or where the
    /// protocol has none, a client that left has lost them.
    #[must_use]
    pub fn undo(&self, made: Vec<SandboxId>) -> Undo {
        Undo::creations(&self.app.tasks, &self.app.engine, made)
    }

    /// Counts bytes that a WebSocket took and gave.
    pub fn count(&self, received: usize, sent: usize) {
        self.app.metrics.received(received);
        self.app.metrics.sent(sent);
    }
}
