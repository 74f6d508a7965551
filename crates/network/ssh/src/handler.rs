//! What a client asks of the connection: logging in, channels, forwardings.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use atoll_core::key::Scope;
use atoll_core::spec::TtySize;
use atoll_engine::Engine;
use bytes::Bytes;
use russh::keys::HashAlg;
use russh::server::{Auth, ChannelOpenHandle, Msg, PublicKeyOffer, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelOpenFailure, Pty, Sig};
use tokio::sync::{Semaphore, SetOnce};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::forward::{self, Ends};
use crate::inbox::{CHANNELS_MAX_COUNT, Event, Flood, Inboxes};
use crate::login::{self, Login};
use crate::session::{self, Wanted, What};

/// Ports of the client that one connection may show inside.
const LISTENERS_MAX_COUNT: usize = 32;
/// Variables that a client may set for a command.
const ENV_MAX_COUNT: usize = 64;
/// Terminals of no or absurd size get this one.
const TTY_DEFAULT: TtySize = TtySize { cols: 80, rows: 24 };

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// By what the library found.
    #[error(transparent)]
    Ssh(#[from] russh::Error),
    /// The client does not keep to its windows.
    #[error(transparent)]
    Flood(#[from] Flood),
}

/// One connection.
pub(crate) struct Handler {
    engine: Engine,
    peer: Option<SocketAddr>,
    login: Arc<SetOnce<Login>>,
    /// Channels of sessions whose command was not named yet.
    waiting: HashMap<ChannelId, Waiting>,
    channels: Arc<Semaphore>,
    inboxes: Inboxes,
    listeners: HashMap<u16, CancellationToken>,
    tasks: TaskTracker,
    /// Fires with the connection.
    gone: CancellationToken,
}

struct Waiting {
    channel: Channel<Msg>,
    env: BTreeMap<String, String>,
    tty: Option<TtySize>,
}

impl Drop for Handler {
    fn drop(&mut self) {
        self.gone.cancel();
        self.inboxes.close_all();
    }
}

impl Handler {
    pub(crate) fn new(engine: Engine, peer: Option<SocketAddr>, login: Arc<SetOnce<Login>>) -> Self {
        Self {
            engine,
            peer,
            login,
            waiting: HashMap::new(),
            channels: Arc::new(Semaphore::new(CHANNELS_MAX_COUNT)),
            inboxes: Inboxes::default(),
            listeners: HashMap::new(),
            tasks: TaskTracker::new(),
            gone: CancellationToken::new(),
        }
    }

    fn let_in(&mut self, login: Option<Login>) -> Auth {
        match login {
            Some(login) => {
                tracing::info!(sandbox = %login.sandbox, peer = ?self.peer, "an SSH login");
                // A second one on the same connection changes nothing.
                drop(self.login.set(login));
                Auth::Accept
            }
            None => Auth::reject(),
        }
    }

    /// Starts what a session is for.
    fn start(&mut self, id: ChannelId, what: What, session: &mut Session) -> Result<(), SessionError> {
        let (Some(waiting), Some(login)) = (self.waiting.remove(&id), self.login.get().cloned()) else {
            return Ok(session.channel_failure(id)?);
        };
        // A forwarding may have taken the place meanwhile.
        let Ok(permit) = Arc::clone(&self.channels).try_acquire_owned() else {
            return Ok(session.channel_failure(id)?);
        };
        session.channel_success(id)?;
        let wanted = Wanted { what, env: waiting.env, tty: waiting.tty, peer: self.peer };
        let ends = Ends::new(waiting.channel, &self.inboxes);
        let run = session::run(self.engine.clone(), login, wanted, ends, session.handle());
        self.tasks.spawn(async move {
            run.await;
            drop(permit);
        });
        Ok(())
    }
}

impl russh::server::Handler for Handler {
    type Error = SessionError;

    /// The first that clients try: a token is the name, and needs nothing else.
    async fn auth_none(&mut self, user: &str) -> Result<Auth, SessionError> {
        let login = login::admit_token(&self.engine, user).await;
        Ok(self.let_in(login))
    }

    async fn auth_publickey_offered(
        &mut self,
        user: &str,
        offer: PublicKeyOffer<'_>,
    ) -> Result<Auth, SessionError> {
        let fingerprint = offer.public_key.fingerprint(HashAlg::Sha256).to_string();
        if login::is_made_for(&self.engine, user, &fingerprint) {
            return Ok(Auth::Accept);
        }
        let known = self.engine.verify_ssh_key(&fingerprint).await;
        Ok(if known.is_ok_and(|(key, _)| key.scope >= Scope::Exec) { Auth::Accept } else { Auth::reject() })
    }

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, SessionError> {
        let fingerprint = key.public_key.fingerprint(HashAlg::Sha256).to_string();
        let key = self.engine.verify_ssh_key(&fingerprint).await.ok();
        let login = match key {
            Some((key, _)) => login::admit(&self.engine, user, &key, Some(fingerprint)).await,
            None => login::admit_made_key(&self.engine, user, &fingerprint).await,
        };
        Ok(self.let_in(login))
    }

    async fn auth_password(&mut self, user: &str, password: &str) -> Result<Auth, SessionError> {
        let login = match self.engine.verify_key(password) {
            Ok(key) => login::admit(&self.engine, user, &key, None).await,
            // Clients that must send one.
            Err(_) => login::admit_token(&self.engine, user).await,
        };
        Ok(self.let_in(login))
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), SessionError> {
        // Those that wait to be told their command will take a place each.
        if self.login.get().is_none() || self.waiting.len() >= self.channels.available_permits() {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        }
        self.waiting.insert(channel.id(), Waiting { channel, env: BTreeMap::new(), tty: None });
        reply.accept().await;
        Ok(())
    }

    async fn channel_close(&mut self, channel: ChannelId, _: &mut Session) -> Result<(), SessionError> {
        self.waiting.remove(&channel);
        self.inboxes.close(channel);
        Ok(())
    }

    async fn data(&mut self, channel: ChannelId, data: &[u8], _: &mut Session) -> Result<(), SessionError> {
        if !data.is_empty() {
            self.inboxes.put(channel, Event::Data(Bytes::copy_from_slice(data)))?;
        }
        self.inboxes.pace(data.len()).await;
        Ok(())
    }

    async fn channel_eof(&mut self, channel: ChannelId, _: &mut Session) -> Result<(), SessionError> {
        Ok(self.inboxes.put(channel, Event::Eof)?)
    }

    async fn window_change_request(
        &mut self,
        channel: ChannelId,
        cols: u32,
        rows: u32,
        _pix_width: u32,
        _pix_height: u32,
        _: &mut Session,
    ) -> Result<(), SessionError> {
        Ok(self.inboxes.put(channel, Event::Resize { cols, rows })?)
    }

    async fn signal(&mut self, channel: ChannelId, signal: Sig, _: &mut Session) -> Result<(), SessionError> {
        Ok(self.inboxes.put(channel, Event::Signal(signal))?)
    }

    fn adjust_window(&mut self, _: ChannelId, _: u32) -> u32 {
        self.inboxes.window()
    }

    async fn pty_request(
        &mut self,
        channel: ChannelId,
        term: &str,
        col_width: u32,
        row_height: u32,
        _pix_width: u32,
        _pix_height: u32,
        _modes: &[(Pty, u32)],
        session: &mut Session,
    ) -> Result<(), SessionError> {
        let Some(waiting) = self.waiting.get_mut(&channel) else {
            return Ok(session.channel_failure(channel)?);
        };
        waiting.tty = Some(size(col_width, row_height));
        if is_plain(term) {
            waiting.env.insert("TERM".to_owned(), term.to_owned());
        }
        Ok(session.channel_success(channel)?)
    }

    async fn env_request(
        &mut self,
        channel: ChannelId,
        name: &str,
        value: &str,
        session: &mut Session,
    ) -> Result<(), SessionError> {
        match self.waiting.get_mut(&channel) {
            Some(waiting) if waiting.env.len() < ENV_MAX_COUNT && is_plain(name) && !value.contains('\0') => {
                waiting.env.insert(name.to_owned(), value.to_owned());
                Ok(session.channel_success(channel)?)
            }
            _ => Ok(session.channel_failure(channel)?),
        }
    }

    async fn shell_request(&mut self, channel: ChannelId, session: &mut Session) -> Result<(), SessionError> {
        self.start(channel, What::Shell, session)
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        data: &[u8],
        session: &mut Session,
    ) -> Result<(), SessionError> {
        match std::str::from_utf8(data) {
            Ok(line) => self.start(channel, What::Line(line.to_owned()), session),
            // An exec is recorded as text.
            Err(_) => Ok(session.channel_failure(channel)?),
        }
    }

    async fn subsystem_request(
        &mut self,
        channel: ChannelId,
        name: &str,
        session: &mut Session,
    ) -> Result<(), SessionError> {
        match name {
            "sftp" => self.start(channel, What::Sftp, session),
            _ => Ok(session.channel_failure(channel)?),
        }
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _originator: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), SessionError> {
        let port = u16::try_from(port).ok().filter(|port| *port != 0);
        let login = self.login.get().filter(|login| login.check(&self.engine).is_ok()).cloned();
        let permit = Arc::clone(&self.channels).try_acquire_owned();
        match (port, login, permit) {
            (Some(port), Some(login), Ok(permit)) if forward::is_inside(host) => {
                let (engine, gone) = (self.engine.clone(), self.gone.clone());
                let ends = Ends::new(channel, &self.inboxes);
                self.tasks.spawn(async move {
                    let forward = forward::direct(&engine, &login, port, ends, reply);
                    gone.run_until_cancelled(forward).await;
                    drop(permit);
                });
            }
            (_, _, Err(_)) => reply.reject(ChannelOpenFailure::ResourceShortage).await,
            _ => reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await,
        }
        Ok(())
    }

    async fn tcpip_forward(
        &mut self,
        address: &str,
        port: &mut u32,
        session: &mut Session,
    ) -> Result<bool, SessionError> {
        let (Ok(wanted), Some(login)) = (u16::try_from(*port), self.login.get()) else { return Ok(false) };
        if self.listeners.len() >= LISTENERS_MAX_COUNT || login.check(&self.engine).is_err() {
            return Ok(false);
        }
        let listener = match self.engine.guest(&login.sandbox).await {
            Ok(lease) => lease.listen_port(wanted).await,
            Err(error) => Err(error),
        };
        match listener {
            Ok(listener) => {
                *port = listener.port().into();
                let stop = self.gone.child_token();
                self.listeners.insert(listener.port(), stop.clone());
                let serve =
                    forward::reverse(listener, address.to_owned(), session.handle(), self.inboxes.clone());
                self.tasks.spawn(async move { stop.run_until_cancelled(serve).await });
                Ok(true)
            }
            Err(error) => {
                tracing::info!(%error, port = wanted, "a port is not forwarded");
                Ok(false)
            }
        }
    }

    async fn cancel_tcpip_forward(
        &mut self,
        _address: &str,
        port: u32,
        _: &mut Session,
    ) -> Result<bool, SessionError> {
        let stop = u16::try_from(port).ok().and_then(|port| self.listeners.remove(&port));
        Ok(stop.map(|stop| stop.cancel()).is_some())
    }
}

/// The size of a terminal, as far as it makes sense.
pub(crate) fn size(cols: u32, rows: u32) -> TtySize {
    match (u16::try_from(cols), u16::try_from(rows)) {
        (Ok(cols), Ok(rows)) => {
            let size = TtySize { cols, rows };
            if size.validate("size").is_ok() { size } else { TTY_DEFAULT }
        }
        _ => TTY_DEFAULT,
    }
}

/// A name of a variable or terminal.
fn is_plain(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.+".contains(&b))
}
