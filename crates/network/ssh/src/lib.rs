//! SSH into sandboxes: plain `ssh`, `scp`, `sftp`, `rsync` and editors, with no SSH server inside.
//!
//! ```text
//! client ─ SSH ─ here ─┬─ shell, exec      an exec of the engine: durable, listed, with its output kept
//!                      ├─ subsystem sftp   files, by the guest agent as the user
//!                      ├─ direct-tcpip     a port inside (-L, -D, -W)
//!                      └─ tcpip-forward    a port inside that comes out at the client (-R)
//! ```
//!
//! Who logs in is `SANDBOX` or `SANDBOX+USER`, with an SSH key that was registered for an API key, or with
//! the API key as password; the API key needs the scope `exec`. Or it is a token that was made for this
//! (`Engine::create_ssh_token`), and needs nothing else. The session may do what that key may, in that
//! one sandbox.
//!
//! Nothing of SSH reaches the guest: it sees execs, files and connections as from any other API. The host key
//! is made once and lies in the data directory.

mod forward;
mod handler;
mod host_key;
mod inbox;
mod login;
mod session;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use atoll_engine::Engine;
use russh::keys::PrivateKey;
use russh::server::Config;
use russh::{Disconnect, MethodKind, MethodSet, SshId};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::SetOnce;
use tokio_util::sync::CancellationToken;

pub use host_key::{HostKeyError, private_key};

use crate::handler::Handler;
use crate::login::Login;

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

/// The SSH server over an engine.
#[derive(Clone)]
pub struct SshServer {
    engine: Engine,
    config: Arc<Config>,
    host_key: Arc<str>,
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
        let key = host_key::open(path)?;
        let host_key = host_key::public_text(&key)?.into();
        Ok(Self { engine, config: Arc::new(config(key)), host_key })
    }

    /// The public host key as it stands in `known_hosts`, without names.
    #[must_use]
    pub fn host_key(&self) -> &str {
        &self.host_key
    }

    /// Serves one connection until it ends, or `stop` fires.
    pub async fn serve<S>(&self, stream: S, peer: Option<SocketAddr>, stop: CancellationToken)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let login = Arc::new(SetOnce::new());
        let handler = Handler::new(self.engine.clone(), peer, Arc::clone(&login));
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
            reason = self.until_refused(&login) => reason,
            () = stop.cancelled() => "the server is shutting down",
        };
        let told = handle.disconnect(Disconnect::ByApplication, reason.to_owned(), String::new());
        let ending = async {
            // It may have gone by itself.
            drop(told.await);
            session.await
        };
        if let Ok(ended) = tokio::time::timeout(END_TIMEOUT, ending).await {
            log_end(ended);
        }
    }

    /// Resolves when a client is to go, with the reason: the time for a login is over without one, or who logged
    /// in may use the sandbox no longer.
    async fn until_refused(&self, login: &SetOnce<Login>) -> &'static str {
        let Ok(login) = tokio::time::timeout(LOGIN_TIMEOUT, login.wait()).await else {
            return "the login took too long";
        };
        match &login.token {
            None => self.engine.until_revoked(&login.grant).await,
            Some(token) => tokio::select! {
                () = self.engine.until_revoked(&login.grant) => {}
                () = self.engine.until_revoked(token) => {}
            },
        }
        "the key may use this sandbox no longer"
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
