//! SSH into sandboxes: plain `ssh`, `scp`, `sftp`, `rsync` and editors, with no SSH server inside.
//!
//! ```text
//! client ─ SSH ─ here ─┬─ shell, exec      an exec of the engine: durable, listed, with its output kept
//!                      ├─ subsystem sftp   files, by the guest agent as the user
//!                      ├─ direct-tcpip     a port inside (-L, -D, -W)
//!                      └─ tcpip-forward    a port inside that comes out at the client (-R)
//! ```
//!
//! The login name is `SANDBOX` or `SANDBOX+USER`, with an SSH key that was registered for an API key, or with the API
//! key as password; the API key needs the scope `exec`. Or the login name is a token that was made for this
//! (`Engine::create_ssh_token`); then the client needs nothing else. The session has the rights of that key, in that
//! one sandbox.
//!
//! On a node of a cluster a login to a sandbox of another node goes on there ([`relay`]): this node passes the client's
//! name and credentials to that node, which decides.
//!
//! Nothing of SSH reaches the guest: it sees execs, files and connections as from any other API. The host key
//! is made once and lies in the data directory.

mod backlog;
mod forward;
mod handler;
mod host_key;
mod inbox;
mod login;
mod relay;
mod session;
mod waiting;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::Result;
use atoll_core::id::{KeyId, SandboxId};
use atoll_core::secret::Secret;
use atoll_engine::{Asked, Engine};
use russh::keys::PrivateKey;
use russh::server::Config;
use russh::{Disconnect, MethodKind, MethodSet, SshId};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::SetOnce;
use tokio_util::sync::CancellationToken;

pub use host_key::{HostKeyError, host_key_text, private_key};

use crate::backlog::Backlog;
use crate::handler::{Entered, Handler, Outcome};
use crate::login::{Claim, Login};

/// How long a client may take to log in.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Attempts at logging in on one connection: agents offer all the keys they have.
const ATTEMPTS_MAX_COUNT: usize = 20;
/// A refusal takes at least this long.
const REFUSAL_TIME: Duration = Duration::from_millis(300);
/// A silent client is asked this often whether it is there, and given up after three silent answers.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How long a client may take to end a connection that it is told to end.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// A byte stream both ways.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A value that comes later.
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The way to the SSH server of the node that has the sandbox of a login, when that is not here. That server is told
/// the client's name and credentials. If it lets the client in, this gives a connection to
/// [`SshServer::serve_admitted`] there.
pub type Elsewhere = Arc<dyn Fn(Arc<Asked>, Secret) -> Later<Option<Box<dyn Duplex>>> + Send + Sync>;

/// Whose places a connection or session takes.
#[derive(Debug, Clone, Copy)]
pub enum Holder<'a> {
    /// A key's.
    Key(&'a KeyId),
    /// Of those who came by a token for this sandbox: whoever has the token does.
    LinksTo(&'a SandboxId),
}

/// One place, until it is dropped.
pub type Place = Box<dyn Send + Sync>;

/// Gives the places that there are: of one key's, or a token's, so many are taken at once. The error says why there is none.
pub type Places = Arc<dyn Fn(Holder<'_>) -> Result<Place> + Send + Sync>;

/// Where a client comes from, where else it may want to go, and what it takes places of.
#[derive(Clone, Default)]
pub struct Origin {
    /// Its address.
    pub peer: Option<SocketAddr>,
    /// The way to other nodes, where this is one.
    pub elsewhere: Option<Elsewhere>,
    /// The places that its connection and its sessions take; without them nothing is counted.
    pub places: Option<Places>,
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Origin").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// A client of another node that was let in.
#[derive(Debug)]
pub struct Admitted(Login);

/// The SSH server over an engine.
#[derive(Clone)]
pub struct SshServer {
    engine: Engine,
    config: Arc<Config>,
    host_key: Arc<str>,
    /// What waits of all connections.
    backlog: Backlog,
}

impl fmt::Debug for SshServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SshServer").field("host_key", &self.host_key).finish_non_exhaustive()
    }
}

impl SshServer {
    /// A server with the host key at `path`, which is made if there is none.
    ///
    /// # Errors
    /// [`HostKeyError`].
    pub fn open(engine: Engine, path: &Path) -> Result<Self, HostKeyError> {
        Self::with_key(engine, host_key::open(path)?)
    }

    /// A server with a host key as [`host_key_text`] gives it.
    ///
    /// # Errors
    /// [`HostKeyError`].
    pub fn of_text(engine: Engine, text: &Secret) -> Result<Self, HostKeyError> {
        Self::with_key(engine, PrivateKey::from_openssh(text.reveal()).map_err(HostKeyError::Damaged)?)
    }

    fn with_key(engine: Engine, key: PrivateKey) -> Result<Self, HostKeyError> {
        let host_key = host_key::public_text(&key)?.into();
        Ok(Self { engine, config: Arc::new(config(key)), host_key, backlog: Backlog::default() })
    }

    /// The public host key as it stands in `known_hosts`, without names.
    #[must_use]
    pub fn host_key(&self) -> &str {
        &self.host_key
    }

    /// Serves one connection until it ends, or `stop` fires.
    pub async fn serve<S>(&self, stream: S, from: Origin, stop: CancellationToken)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        self.run(stream, from, Arc::default(), stop).await;
    }

    /// Lets a client in that came to another node, by the credentials that it has shown there. Objects that are not
    /// here are noted in `asked`.
    pub async fn admit(&self, asked: &Arc<Asked>, claim: &Secret) -> Option<Admitted> {
        self.engine.until_may_serve().await.ok()?;
        Claim::of_text(claim)?.admit_here(&self.engine, asked).await.map(Admitted)
    }

    /// Serves such a client. Its connection is the one that the other node made for it.
    pub async fn serve_admitted<S>(
        &self,
        stream: S,
        admitted: Admitted,
        from: Origin,
        stop: CancellationToken,
    ) where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let entered = SetOnce::new_with(Some(Entered::Here(Box::new(admitted.0))));
        let outcome = Outcome { entered, full: SetOnce::new() };
        self.run(stream, from, Arc::new(outcome), stop).await;
    }

    async fn run<S>(&self, stream: S, from: Origin, outcome: Arc<Outcome>, stop: CancellationToken)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let handler = Handler::new(self.engine.clone(), from, Arc::clone(&outcome), self.backlog.clone());
        let starting = russh::server::run_stream(Arc::clone(&self.config), stream, handler);
        let session = match tokio::time::timeout(LOGIN_TIMEOUT, starting).await {
            Ok(Ok(session)) => session,
            Ok(Err(error)) => return tracing::debug!(%error, "an SSH client was not understood"),
            Err(_elapsed) => return,
        };
        let handle = session.handle();
        let mut session = std::pin::pin!(session);
        let reason = tokio::select! {
            ended = &mut session => return log_end(ended),
            reason = self.until_refused(&outcome) => reason,
            () = stop.cancelled() => "the server is shutting down".to_owned(),
        };
        let told = handle.disconnect(Disconnect::ByApplication, reason, String::new());
        let ending = async {
            // It may have gone by itself.
            drop(told.await);
            session.await
        };
        if let Ok(ended) = tokio::time::timeout(END_TIMEOUT, ending).await {
            log_end(ended);
        }
    }

    /// Resolves when a client is to go, with the reason: the time for a login is over without one, there is no place for the
    /// client, or it may use the sandbox no longer.
    async fn until_refused(&self, outcome: &Outcome) -> String {
        let entered = tokio::select! {
            biased;
            full = outcome.full.wait() => return full.clone(),
            entered = tokio::time::timeout(LOGIN_TIMEOUT, outcome.entered.wait()) => entered,
        };
        let login = match entered {
            Ok(Entered::Here(login)) => login,
            Ok(Entered::There(relay)) => return relay.ended().await,
            Err(_late) => return "the login took too long".to_owned(),
        };
        match &login.token {
            None => self.engine.until_revoked(&login.grant).await,
            Some(token) => tokio::select! {
                () = self.engine.until_revoked(&login.grant) => {}
                () = self.engine.until_revoked(token) => {}
            },
        }
        "the key may use this sandbox no longer".to_owned()
    }
}

fn log_end(ended: Result<(), handler::SessionError>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "an SSH connection ended");
    }
}

fn config(key: PrivateKey) -> Config {
    Config {
        server_id: SshId::Standard(concat!("SSH-2.0-Atoll_", env!("CARGO_PKG_VERSION")).into()),
        methods: MethodSet::from(&[MethodKind::PublicKey, MethodKind::Password][..]),
        auth_rejection_time: REFUSAL_TIME,
        auth_rejection_time_initial: Some(Duration::ZERO),
        max_auth_attempts: ATTEMPTS_MAX_COUNT,
        keys: vec![key],
        window_size: inbox::WINDOW_BYTES,
        inactivity_timeout: None,
        keepalive_interval: Some(KEEPALIVE),
        keepalive_max: 3,
        nodelay: true,
        ..Config::default()
    }
}
