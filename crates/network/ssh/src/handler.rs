//! Handles a client's requests on the connection: logging in, channels, forwardings.
//!
//! A connection takes a place of its key's when the key is known, and so does each of its sessions for as long as it runs. A
//! client that gets none is let in to hear why, and may do nothing else.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use atoll_core::Result;
use atoll_core::key::Scope;
use atoll_core::spec::TtySize;
use atoll_engine::{Asked, Caller, Engine};
use bytes::Bytes;
use russh::keys::HashAlg;
use russh::server::{Auth, ChannelOpenHandle, Msg, PublicKeyOffer, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelOpenFailure, Pty, Sig};
use tokio::sync::{Semaphore, SetOnce};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backlog::Backlog;
use crate::forward::{self, Ends};
use crate::inbox::{CHANNELS_MAX_COUNT, Event, Inboxes, REVERSED_MAX_COUNT, TooMuch};
use crate::login::{self, Claim, Login};
use crate::relay::Relay;
use crate::session::{self, Wanted, What};
use crate::waiting::{Waiting, is_plain};
use crate::{Elsewhere, Holder, Origin, Place, Places};

/// Ports of the client that one connection may show inside.
const LISTENERS_MAX_COUNT: usize = 32;
/// Terminals of no or absurd size get this one.
const TTY_DEFAULT: TtySize = TtySize { cols: 80, rows: 24 };

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// By an error of the SSH library.
    #[error(transparent)]
    Ssh(#[from] russh::Error),
    /// The client sends more than is kept of it.
    #[error(transparent)]
    TooMuch(#[from] TooMuch),
}

/// Where a client that was let in has its sandbox.
#[derive(Clone)]
pub(crate) enum Entered {
    Here(Box<Login>),
    /// On another node.
    There(Relay),
}

impl Entered {
    /// Who asks, as far as this node knows it.
    fn caller(&self) -> Option<&Caller> {
        match self {
            Self::Here(login) => Some(&login.caller),
            Self::There(relay) => relay.caller(),
        }
    }

    /// Whose places it takes. `None` when only the other node knows that, which counts as well.
    fn holder(&self) -> Option<Holder<'_>> {
        match self {
            // Whoever has the token may log in by it.
            Self::Here(login) if login.token.is_some() => Some(Holder::LinksTo(&login.sandbox)),
            Self::Here(_) | Self::There(_) => self.caller().and_then(Caller::key).map(Holder::Key),
        }
    }
}

/// How a login came out, for the connection's task.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) entered: SetOnce<Entered>,
    /// The client was let in only to hear this.
    pub(crate) full: SetOnce<String>,
}

/// One connection.
pub(crate) struct Handler {
    engine: Engine,
    peer: Option<SocketAddr>,
    elsewhere: Option<Elsewhere>,
    /// Another node has let it in: nothing is left to be shown.
    is_let_in: bool,
    outcome: Arc<Outcome>,
    places: Option<Places>,
    /// The connection's own.
    place: Option<Arc<Place>>,
    backlog: Backlog,
    /// Channels of sessions whose command was not named yet.
    waiting: HashMap<ChannelId, Waiting>,
    channels: Arc<Semaphore>,
    reversed: Arc<Semaphore>,
    inboxes: Inboxes,
    listeners: HashMap<u16, CancellationToken>,
    tasks: TaskTracker,
    /// Fires with the connection.
    gone: CancellationToken,
}

impl Drop for Handler {
    fn drop(&mut self) {
        self.gone.cancel();
        self.inboxes.close_all();
    }
}

impl Handler {
    /// For a new connection. One that another node has let in brings its login along.
    pub(crate) fn new(engine: Engine, from: Origin, outcome: Arc<Outcome>, backlog: Backlog) -> Self {
        let before = outcome.entered.get().cloned();
        let mut handler = Self {
            engine,
            peer: from.peer,
            elsewhere: from.elsewhere,
            is_let_in: before.is_some(),
            outcome,
            places: from.places,
            place: None,
            inboxes: Inboxes::new(&backlog),
            backlog,
            waiting: HashMap::new(),
            channels: Arc::new(Semaphore::new(CHANNELS_MAX_COUNT)),
            reversed: Arc::new(Semaphore::new(REVERSED_MAX_COUNT)),
            listeners: HashMap::new(),
            tasks: TaskTracker::new(),
            gone: CancellationToken::new(),
        };
        if let Some(entered) = before {
            handler.settle(&entered);
        }
        handler
    }

    /// The login, unless the client is let in only to hear why there is no place for it.
    fn entered(&self) -> Option<&Entered> {
        if self.outcome.full.get().is_some() { None } else { self.outcome.entered.get() }
    }

    /// Lets a client in whose sandbox is here, or on another node that lets it in.
    async fn enter(&mut self, claim: Claim) -> Auth {
        if self.is_let_in {
            return Auth::Accept;
        }
        let Some(entered) = self.admit(&claim).await else { return Auth::reject() };
        match &entered {
            Entered::Here(login) => {
                tracing::info!(sandbox = %login.sandbox, peer = ?self.peer, "an SSH login");
            }
            Entered::There(relay) => {
                tracing::info!(peer = ?self.peer, "an SSH login to another node");
                let (relay, gone) = (relay.clone(), self.gone.clone());
                tokio::spawn(async move {
                    gone.cancelled().await;
                    relay.close().await;
                });
            }
        }
        self.settle(&entered);
        // A second one on the same connection changes nothing.
        drop(self.outcome.entered.set(entered));
        Auth::Accept
    }

    /// Counts the connection for the one whose it is, now that this is known.
    fn settle(&mut self, entered: &Entered) {
        self.inboxes.belong_to(entered.caller());
        if self.place.is_some() {
            return;
        }
        match self.take_place(entered) {
            Ok(place) => self.place = place.map(Arc::new),
            Err(error) => {
                let hint = error.hint.map(|hint| format!("; {hint}")).unwrap_or_default();
                drop(self.outcome.full.set(format!("{}{hint}", error.message)));
            }
        }
    }

    /// A place of the one whose the login is; `None` where nobody counts.
    fn take_place(&self, entered: &Entered) -> Result<Option<Place>> {
        let places = self.places.as_ref().zip(entered.holder());
        places.map(|(places, holder)| places(holder)).transpose()
    }

    async fn admit(&self, claim: &Claim) -> Option<Entered> {
        self.engine.until_may_serve().await.ok()?;
        let asked = Arc::new(Asked::default());
        if let Some(login) = claim.admit_here(&self.engine, &asked).await {
            return Some(Entered::Here(Box::new(login)));
        }
        if let Some(elsewhere) = &self.elsewhere
            && let Some(stream) = elsewhere(asked, claim.to_text()?).await
        {
            let caller = claim.caller(&self.engine).await;
            return Relay::open(stream, caller, &self.backlog).await.map(Entered::There);
        }
        claim.make_here(&self.engine).await.map(|login| Entered::Here(Box::new(login)))
    }

    /// Starts the purpose of a session: a command, a shell, or files.
    fn start(&mut self, id: ChannelId, what: What, session: &mut Session) -> Result<(), SessionError> {
        let (Some(waiting), Some(entered)) = (self.waiting.remove(&id), self.entered().cloned()) else {
            return Ok(session.channel_failure(id)?);
        };
        // A forwarding may have taken the place meanwhile.
        let Ok(permit) = Arc::clone(&self.channels).try_acquire_owned() else {
            return Ok(session.channel_failure(id)?);
        };
        session.channel_success(id)?;
        let Waiting { ends, env, tty } = waiting;
        let wanted = Wanted { what, env, tty, peer: self.peer };
        let (place, of_connection) = (self.take_place(&entered), self.place.clone());
        let (engine, handle) = (self.engine.clone(), session.handle());
        self.tasks.spawn(async move {
            match (&place, entered) {
                (Err(error), _) => session::refuse(&ends.writer, error).await,
                (Ok(_), Entered::Here(login)) => session::run(engine, *login, wanted, ends, handle).await,
                (Ok(_), Entered::There(relay)) => relay.session(wanted, ends, handle).await,
            }
            drop((permit, place, of_connection));
        });
        Ok(())
    }
}

impl russh::server::Handler for Handler {
    type Error = SessionError;

    async fn auth_none(&mut self, user: &str) -> Result<Auth, SessionError> {
        Ok(self.enter(Claim::by_name(user)).await)
    }

    async fn auth_publickey_offered(
        &mut self,
        user: &str,
        offer: PublicKeyOffer<'_>,
    ) -> Result<Auth, SessionError> {
        let fingerprint = offer.public_key.fingerprint(HashAlg::Sha256).to_string();
        if login::may_be_made_for(&self.engine, user, &fingerprint) {
            return Ok(Auth::Accept);
        }
        let known = self.engine.verify_ssh_key(&fingerprint).await;
        Ok(if known.is_ok_and(|(key, _)| key.scope >= Scope::Exec) { Auth::Accept } else { Auth::reject() })
    }

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, SessionError> {
        let fingerprint = key.public_key.fingerprint(HashAlg::Sha256).to_string();
        Ok(self.enter(Claim::by_key(user, fingerprint)).await)
    }

    async fn auth_password(&mut self, user: &str, password: &str) -> Result<Auth, SessionError> {
        Ok(self.enter(Claim::by_password(user, password)).await)
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), SessionError> {
        // Channels that wait for their command will take a place each.
        if self.entered().is_none() || self.waiting.len() >= self.channels.available_permits() {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        }
        let (id, ends) = (channel.id(), Ends::new(channel, &self.inboxes));
        self.waiting.insert(id, Waiting::new(ends));
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
            waiting.set("TERM", term);
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
        let is_set = self.waiting.get_mut(&channel).is_some_and(|waiting| waiting.set(name, value));
        let answer = if is_set { session.channel_success(channel) } else { session.channel_failure(channel) };
        Ok(answer?)
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
        let entered = self.entered().cloned().filter(|entered| match entered {
            Entered::Here(login) => login.check(&self.engine).is_ok(),
            // The node that has the sandbox checks this.
            Entered::There(_) => true,
        });
        let permit = Arc::clone(&self.channels).try_acquire_owned();
        match (port, entered, permit) {
            (Some(port), Some(entered), Ok(permit)) if forward::is_inside(host) => {
                let (engine, gone) = (self.engine.clone(), self.gone.clone());
                let ends = Ends::new(channel, &self.inboxes);
                self.tasks.spawn(async move {
                    let forward = async {
                        match entered {
                            Entered::Here(login) => forward::direct(&engine, &login, port, ends, reply).await,
                            Entered::There(relay) => relay.direct(port, ends, reply).await,
                        }
                    };
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
        let (Ok(wanted), Some(entered)) = (u16::try_from(*port), self.entered()) else { return Ok(false) };
        let login = match entered {
            Entered::Here(login) => login,
            Entered::There(relay) => {
                let given = relay.listen(address, *port, session.handle(), &self.inboxes).await;
                *port = given.unwrap_or(*port);
                return Ok(given.is_some());
            }
        };
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
                let toward = forward::Toward {
                    handle: session.handle(),
                    inboxes: self.inboxes.clone(),
                    channels: Arc::clone(&self.reversed),
                };
                let serve = forward::reverse(listener, address.to_owned(), toward);
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
        address: &str,
        port: u32,
        _: &mut Session,
    ) -> Result<bool, SessionError> {
        if let Some(Entered::There(relay)) = self.entered() {
            return Ok(relay.stop_listening(address, port).await);
        }
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
