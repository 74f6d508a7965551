//! A client whose sandbox another node has: its channels go on to that node's server, on an SSH connection of their own.
//!
//! ```text
//! client ─ SSH ─ this node ─ SSH in mutual TLS ─ the node that has the sandbox ─ sandbox
//! ```
//!
//! The client's connection ends here, as its keys were agreed on with this node. This node passes the client's requests
//! to the other node in the same words, so that a session may do here all that it may do there. Each direction waits
//! for its slowest reader: no more data piles up here than the windows of both connections allow ([`crate::inbox`]).
//!
//! The SSH library does not read while it writes. Two such libraries at the ends of one connection would wait for each
//! other for ever, so a task takes in the other node's data at all times ([`taken_in`]).

use std::sync::Arc;
use std::time::Duration;

use atoll_core::{Code, Error};
use atoll_engine::Caller;
use bytes::Bytes;
use russh::client::{self, Config, DisconnectReason, Msg, Session};
use russh::keys::PublicKeyOrCertificate;
use russh::server::{self, ChannelOpenHandle};
use russh::{Channel, ChannelId, ChannelOpenFailure, ChannelWriteHalf, Disconnect, Sig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::SetOnce;
use tokio::task::JoinSet;

use crate::backlog::Backlog;
use crate::forward::Ends;
use crate::handler::SessionError;
use crate::inbox::{self, Event, Inbox, Inboxes};
use crate::session::{STDERR, Wanted, What, Writer, refuse};
use crate::{KEEPALIVE, LOGIN_TIMEOUT};

/// Bytes that the other node may send on a channel before they were taken.
const NODE_WINDOW_BYTES: u32 = 256 << 10;
/// Bytes that are taken in of one connection: the windows of all channels, and as much for the protocol around the
/// data.
const TAKEN_IN_MAX_BYTES: usize =
    2 * (inbox::CHANNELS_MAX_COUNT + inbox::REVERSED_MAX_COUNT) * (NODE_WINDOW_BYTES as usize);
/// The reason for a connection that ended without giving one.
const BROKE: &str = "the connection to the node that has the sandbox broke";
/// Longest reason of another node that is passed on, bytes.
const REASON_MAX_BYTES: usize = 512;
/// How long the other node may take to hear that the client has gone.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// The connection to the node that has the sandbox.
#[derive(Clone)]
pub(crate) struct Relay {
    shared: Arc<Shared>,
}

struct Shared {
    node: client::Handle<Node>,
    /// Who the client is, if it has shown a key of this installation: a token is known to the other node alone.
    caller: Option<Caller>,
    inboxes: Inboxes,
    ended: Arc<SetOnce<String>>,
    client: Arc<SetOnce<Client>>,
    /// Ends with it.
    _taking_in: JoinSet<()>,
}

/// The client's side, for channels that the other node opens.
#[derive(Clone)]
struct Client {
    handle: server::Handle,
    inboxes: Inboxes,
}

impl Relay {
    /// Begins the connection. The other node was told the client's credentials before: none are left to be shown.
    pub(crate) async fn open<S>(stream: S, caller: Option<Caller>, backlog: &Backlog) -> Option<Self>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (inboxes, ended, client) = (Inboxes::new(backlog), Arc::default(), Arc::default());
        inboxes.belong_to(caller.as_ref());
        let node = Node { inboxes: inboxes.clone(), ended: Arc::clone(&ended), client: Arc::clone(&client) };
        let mut taking_in = JoinSet::new();
        let stream = taken_in(stream, &mut taking_in);
        let opening = async {
            let mut handle = client::connect_stream(Arc::new(config()), stream, node).await?;
            // No name is given here: the other node was told it before, with the credentials.
            let answer = handle.authenticate_none("").await?;
            Ok::<_, SessionError>(answer.success().then_some(handle))
        };
        match tokio::time::timeout(LOGIN_TIMEOUT, opening).await {
            Ok(Ok(handle)) => {
                let shared = Shared { node: handle?, caller, inboxes, ended, client, _taking_in: taking_in };
                Some(Self { shared: Arc::new(shared) })
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "an SSH connection to another node did not come about");
                None
            }
            Err(_late) => None,
        }
    }

    /// Who the client is, if this node knows it.
    pub(crate) fn caller(&self) -> Option<&Caller> {
        self.shared.caller.as_ref()
    }

    /// Resolves when the other node ends the connection, with its reason.
    pub(crate) async fn ended(&self) -> String {
        self.shared.ended.wait().await.clone()
    }

    /// Tells the other node that the client has gone.
    pub(crate) async fn close(&self) {
        let told = self.shared.node.disconnect(Disconnect::ByApplication, "the client went away", "");
        // It may have ended by itself.
        drop(tokio::time::timeout(END_TIMEOUT, told).await);
    }

    /// A command, a shell, or files.
    pub(crate) async fn session(&self, wanted: Wanted, ends: Ends, handle: server::Handle) {
        match self.begin(wanted).await {
            Ok(channel) => self.pass(ends, channel, Some(handle)).await,
            Err(error) => {
                tracing::debug!(%error, "another node did not begin a session");
                let error =
                    Error::new(Code::NodeUnavailable, "the node that has the sandbox did not begin it");
                refuse(&ends.writer, &error.hint("try again")).await;
            }
        }
    }

    async fn begin(&self, wanted: Wanted) -> Result<Channel<Msg>, russh::Error> {
        let Wanted { what, mut env, tty, .. } = wanted;
        let channel = self.shared.node.channel_open_session().await?;
        if let Some(size) = tty {
            let term = env.remove("TERM").unwrap_or_default();
            channel.request_pty(false, &term, size.cols.into(), size.rows.into(), 0, 0, &[]).await?;
        }
        for (name, value) in env {
            channel.set_env(false, name, value).await?;
        }
        match what {
            What::Shell => channel.request_shell(false).await?,
            What::Line(line) => channel.exec(false, line).await?,
            What::Sftp => channel.request_subsystem(false, "sftp").await?,
        }
        Ok(channel)
    }

    /// A connection of the client to a port inside.
    pub(crate) async fn direct(&self, port: u16, ends: Ends, reply: ChannelOpenHandle) {
        let opened =
            self.shared.node.channel_open_direct_tcpip("localhost", port.into(), "127.0.0.1", 0).await;
        match opened {
            Ok(channel) => {
                reply.accept().await;
                self.pass(ends, channel, None).await;
            }
            Err(russh::Error::ChannelOpenFailure(reason)) => reply.reject(reason).await,
            Err(_broken) => reply.reject(ChannelOpenFailure::ConnectFailed).await,
        }
    }

    /// Shows a port of the client inside; gives which it became.
    pub(crate) async fn listen(
        &self,
        address: &str,
        port: u32,
        handle: server::Handle,
        inboxes: &Inboxes,
    ) -> Option<u32> {
        // Each call for this connection would set the same value.
        drop(self.shared.client.set(Client { handle, inboxes: inboxes.clone() }));
        let given = self.shared.node.tcpip_forward(address, port).await.ok()?;
        Some(if port == 0 { given } else { port })
    }

    pub(crate) async fn stop_listening(&self, address: &str, port: u32) -> bool {
        self.shared.node.cancel_tcpip_forward(address, port).await.is_ok()
    }

    async fn pass(&self, client: Ends, channel: Channel<Msg>, handle: Option<server::Handle>) {
        let inbox = self.shared.inboxes.open(channel.id());
        // The library waits until its own queue is read, unless that queue is dropped.
        let (unread, writer) = channel.split();
        drop(unread);
        pass(client, inbox, writer, handle).await;
    }
}

/// The same stream, from which a task reads at all times, also when the SSH library does not.
fn taken_in<S>(stream: S, tasks: &mut JoinSet<()>) -> impl AsyncRead + AsyncWrite + Send + Unpin + 'static
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut from_node, to_node) = tokio::io::split(stream);
    let (taken, mut taking) = tokio::io::duplex(TAKEN_IN_MAX_BYTES);
    tasks.spawn(async move {
        // An end or a failure: both show as an end.
        drop(tokio::io::copy(&mut from_node, &mut taking).await);
    });
    tokio::io::join(taken, to_node)
}

fn config() -> Config {
    Config {
        window_size: NODE_WINDOW_BYTES,
        keepalive_interval: Some(KEEPALIVE),
        keepalive_max: 3,
        ..Config::default()
    }
}

/// Passes on the data of two channels, until one of them is closed and its data was taken.
async fn pass(client: Ends, mut inbox: Inbox, node: ChannelWriteHalf<Msg>, handle: Option<server::Handle>) {
    let Ends { inbox: mut typed, writer } = client;
    let gone = typed.closed();
    let ends = inbox.closed();
    let up = async {
        while let Some(event) = typed.next().await {
            if up(&node, event).await.is_err() {
                break;
            }
        }
    };
    let down = async {
        while let Some(event) = inbox.next().await {
            if down(&writer, handle.as_ref(), event).await.is_err() {
                break;
            }
        }
    };
    let both = async {
        let mut down = std::pin::pin!(down);
        tokio::select! {
            () = &mut down => return,
            // The other node closed its channel: data that waits to be sent there will never be read;
            // data that came from there still goes to the client.
            () = ends => {}
            () = up => {}
        }
        down.await;
    };
    tokio::select! {
        biased;
        // The client is gone: data that it sent last is dropped.
        () = gone => {}
        () = both => {}
    }
    // Either may have gone.
    drop(node.close().await);
    drop(writer.eof().await);
    drop(writer.close().await);
}

async fn up(node: &ChannelWriteHalf<Msg>, event: Event) -> Result<(), russh::Error> {
    match event {
        Event::Data(bytes) => node.data_bytes(bytes).await,
        Event::Eof => node.eof().await,
        Event::Resize { cols, rows } => node.window_change(cols, rows, 0, 0).await,
        Event::Signal(signal) => node.signal(signal).await,
        // No client sends these.
        Event::Stderr(_) | Event::Exited(_) | Event::Killed(..) => Ok(()),
    }
}

async fn down(writer: &Writer, handle: Option<&server::Handle>, event: Event) -> Result<(), russh::Error> {
    match (event, handle) {
        (Event::Data(bytes), _) => writer.data_bytes(bytes).await,
        (Event::Eof, _) => writer.eof().await,
        (Event::Stderr(bytes), Some(_)) => writer.extended_data_bytes(STDERR, bytes).await,
        (Event::Exited(code), Some(_)) => writer.exit_status(code).await,
        (Event::Killed(signal, reason), Some(handle)) => {
            let told = handle.exit_signal_request(writer.id(), signal, false, reason, String::new());
            told.await.map_err(|()| russh::Error::SendError)
        }
        // Nothing that a port says, or a server.
        _ => Ok(()),
    }
}

/// Handles the other node's messages on the connection.
struct Node {
    inboxes: Inboxes,
    ended: Arc<SetOnce<String>>,
    client: Arc<SetOnce<Client>>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.inboxes.close_all();
        // Set already, if the other node gave a reason.
        drop(self.ended.set(BROKE.to_owned()));
    }
}

impl Node {
    async fn take(&self, channel: ChannelId, event: Event, len: usize) -> Result<(), SessionError> {
        self.inboxes.put(channel, event)?;
        self.inboxes.pace(len).await;
        Ok(())
    }
}

impl client::Handler for Node {
    type Error = SessionError;

    /// The node has shown its certificate before the first byte of this.
    async fn check_server_key(&mut self, _: &PublicKeyOrCertificate) -> Result<bool, SessionError> {
        Ok(true)
    }

    async fn data(&mut self, channel: ChannelId, data: &[u8], _: &mut Session) -> Result<(), SessionError> {
        self.take(channel, Event::Data(Bytes::copy_from_slice(data)), data.len()).await
    }

    async fn extended_data(
        &mut self,
        channel: ChannelId,
        ext: u32,
        data: &[u8],
        _: &mut Session,
    ) -> Result<(), SessionError> {
        if ext != STDERR {
            return Ok(());
        }
        self.take(channel, Event::Stderr(Bytes::copy_from_slice(data)), data.len()).await
    }

    async fn channel_eof(&mut self, channel: ChannelId, _: &mut Session) -> Result<(), SessionError> {
        Ok(self.inboxes.put(channel, Event::Eof)?)
    }

    async fn exit_status(
        &mut self,
        channel: ChannelId,
        exit_status: u32,
        _: &mut Session,
    ) -> Result<(), SessionError> {
        Ok(self.inboxes.put(channel, Event::Exited(exit_status))?)
    }

    async fn exit_signal(
        &mut self,
        channel: ChannelId,
        signal_name: Sig,
        _core_dumped: bool,
        error_message: &str,
        _lang_tag: &str,
        _: &mut Session,
    ) -> Result<(), SessionError> {
        Ok(self.inboxes.put(channel, Event::Killed(signal_name, error_message.to_owned()))?)
    }

    async fn channel_close(&mut self, channel: ChannelId, _: &mut Session) -> Result<(), SessionError> {
        self.inboxes.close(channel);
        Ok(())
    }

    fn adjust_window(&mut self, _: ChannelId, _: u32) -> u32 {
        self.inboxes.window().min(NODE_WINDOW_BYTES)
    }

    /// A program in the sandbox connects to a port that the client shows there.
    async fn server_channel_open_forwarded_tcpip(
        &mut self,
        channel: Channel<Msg>,
        connected_address: &str,
        connected_port: u32,
        _originator_address: &str,
        _originator_port: u32,
        reply: client::ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), SessionError> {
        let Some(client) = self.client.get().cloned() else {
            reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await;
            return Ok(());
        };
        let inbox = self.inboxes.open(channel.id());
        let (_unused, writer) = channel.split();
        let address = connected_address.to_owned();
        tokio::spawn(async move {
            let opened =
                client.handle.channel_open_forwarded_tcpip(address, connected_port, "127.0.0.1", 0).await;
            match opened {
                Ok(channel) => {
                    reply.accept().await;
                    pass(Ends::new(channel, &client.inboxes), inbox, writer, None).await;
                }
                Err(error) => {
                    tracing::debug!(%error, "the client did not take a connection");
                    reply.reject(ChannelOpenFailure::ConnectFailed).await;
                }
            }
        });
        Ok(())
    }

    async fn disconnected(&mut self, reason: DisconnectReason<SessionError>) -> Result<(), SessionError> {
        let text = match reason {
            DisconnectReason::ReceivedDisconnect(told) => told.message,
            DisconnectReason::Error(error) => {
                tracing::debug!(%error, "an SSH connection to another node broke");
                BROKE.to_owned()
            }
        };
        let text = text.chars().filter(|c| !c.is_control()).take(REASON_MAX_BYTES).collect();
        drop(self.ended.set(text));
        Ok(())
    }
}
