//! The task behind an attachment: one connection after the other until the exec has ended.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_api::{AttachClientMessage, AttachServerMessage, Exec, OutputFrame};
use atoll_core::spec::TtySize;
use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use reqwest::Upgraded;
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

use super::tracker::{Piece, Tracker};
use super::{AttachEvent, Input};
use crate::resume::{Attempts, ResumePolicy};
use crate::{Client, ClientError, Result};

/// Longest wait for the first message of a connection.
const ATTACHED_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the server is pinged.
const PING_EVERY: Duration = Duration::from_secs(10);
/// A ping without answer for this long means that the server is not there.
const DEAD_AFTER: Duration = Duration::from_secs(30);
/// With more unconfirmed input than this a missing answer means nothing: a server may stop reading
/// while a program does not take its input, and a pipe alone holds 64 KiB.
const UNCONFIRMED_SMALL_BYTES: u64 = 4 << 10;
/// Longest wait for the server to take our goodbye.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

type Socket = WebSocketStream<Upgraded>;
type Events = mpsc::Sender<Result<AttachEvent>>;

/// What to attach to.
pub(super) struct Place {
    pub(super) client: Client,
    pub(super) sandbox: String,
    pub(super) exec: String,
}

/// A connection whose first message has come.
pub(super) struct Opened {
    pub(super) exec: Exec,
    begins: u64,
    socket: Socket,
}

impl Place {
    pub(super) async fn open(&self, offset: u64) -> Result<Opened> {
        let target =
            self.client.in_sandbox(&self.sandbox, &["execs", &self.exec, "attach"]).query("offset", offset);
        let mut socket = self.client.websocket(target).await?;
        let first = tokio::time::timeout(ATTACHED_TIMEOUT, first_message(&mut socket))
            .await
            .map_err(|late| self.client.no_connection(late))?
            .map_err(|error| self.client.no_connection(error))?;
        match read_text(&first)? {
            AttachServerMessage::Attached { exec, offset: begins } => Ok(Opened { exec, begins, socket }),
            AttachServerMessage::Error { error } => {
                let request_id = error.request_id.clone();
                Err(ClientError::Api { error: error.into(), request_id })
            }
            AttachServerMessage::Gap { .. } | AttachServerMessage::Exit { .. } => {
                Err(ClientError::Protocol("the first message does not say what this is".into()))
            }
        }
    }
}

async fn first_message(socket: &mut Socket) -> Result<String, WsError> {
    loop {
        match socket.next().await {
            Some(Ok(Message::Text(text))) => return Ok(text.as_str().to_owned()),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(Message::Binary(_) | Message::Close(_) | Message::Frame(_))) | None => {
                return Err(WsError::ConnectionClosed);
            }
            Some(Err(error)) => return Err(error),
        }
    }
}

fn read_text(text: &str) -> Result<AttachServerMessage> {
    serde_json::from_str(text).map_err(|error| ClientError::Protocol(format!("a message: {error}")))
}

/// How a connection ended.
enum Ended {
    /// The exec has ended, or the caller wants its events no more.
    Done,
    /// It broke.
    Lost(ClientError),
    /// It must not be opened again.
    Fatal(ClientError),
}

/// Runs until the exec has ended, the caller has gone or another connection cannot be had.
pub(super) async fn run(
    place: Place,
    opened: Opened,
    offset: u64,
    resume: ResumePolicy,
    inputs: mpsc::Receiver<Input>,
    events: Events,
) {
    let mut output = Output { tracker: Tracker::new(offset), attempts: Attempts::new(resume), events };
    let mut input = Outgoing { inputs: Some(inputs), closed: false, size: None, again: None };
    let mut opened = opened;
    let error = loop {
        output.attempts.connected();
        output.tracker.attached(opened.begins);
        let link = Link::default();
        let lost = match drive(&place.client, opened.socket, &mut output, &mut input, &link).await {
            Ended::Done => return,
            Ended::Fatal(error) => break error,
            Ended::Lost(error) => error,
        };
        opened = match reopen(&place, &mut output, lost).await {
            Ok(Some(opened)) => opened,
            Ok(None) => return,
            Err(error) => break error,
        };
        let event = AttachEvent::Reconnected { input_unconfirmed_bytes: link.unconfirmed() };
        if output.events.send(Ok(event)).await.is_err() {
            return;
        }
    };
    // If this fails the caller has gone.
    drop(output.events.send(Err(error)).await);
}

/// Tries for a new connection. `None`: the caller has gone.
async fn reopen(place: &Place, output: &mut Output, lost: ClientError) -> Result<Option<Opened>> {
    let mut last = lost;
    while let Some(wait) = output.attempts.next() {
        let due = output.tracker.due();
        let attempt = async {
            tokio::time::sleep(wait).await;
            place.open(due).await
        };
        let attempt = tokio::select! {
            attempt = attempt => attempt,
            () = output.events.closed() => return Ok(None),
        };
        match attempt {
            Ok(opened) => return Ok(Some(opened)),
            Err(error) if error.worth_another_connection() => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// One connection, both ways at once: neither direction waits for the other.
async fn drive(
    client: &Client,
    socket: Socket,
    output: &mut Output,
    input: &mut Outgoing,
    link: &Link,
) -> Ended {
    let (mut sink, mut stream) = socket.split();
    let ended = {
        let reader = output.read(client, &mut stream, link);
        let writer = input.write(&mut sink, link);
        tokio::pin!(reader, writer);
        tokio::select! {
            ended = &mut reader => ended,
            // A connection that cannot be written to may still have something to read, such as the exit.
            stopped = &mut writer => match stopped {
                Stopped::Broken => reader.await,
                Stopped::Dead => Ended::Lost(client.no_connection("the server does not answer")),
            },
        }
    };
    if matches!(ended, Ended::Done) {
        // Only politeness: the server sees the end of the connection anyway.
        drop(tokio::time::timeout(CLOSE_TIMEOUT, sink.close()).await);
    }
    ended
}

/// What is known about the input of one connection.
#[derive(Debug, Default)]
struct Link(Mutex<LinkState>);

#[derive(Debug, Default)]
struct LinkState {
    sent: u64,
    confirmed: u64,
    /// When the ping that has no answer yet was sent, and what had been sent before it.
    ping: Option<(Instant, u64)>,
}

impl Link {
    fn with<T>(&self, change: impl FnOnce(&mut LinkState) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn unconfirmed(&self) -> u64 {
        self.with(|link| link.sent - link.confirmed)
    }

    fn pong(&self) {
        self.with(|link| {
            if let Some((_, sent)) = link.ping.take() {
                link.confirmed = sent;
            }
        });
    }
}

/// The direction from the exec.
struct Output {
    tracker: Tracker,
    attempts: Attempts,
    events: Events,
}

impl Output {
    async fn read(&mut self, client: &Client, stream: &mut SplitStream<Socket>, link: &Link) -> Ended {
        loop {
            let message = tokio::select! {
                message = stream.next() => message,
                () = self.events.closed() => return Ended::Done,
            };
            let ended = match message {
                Some(Ok(Message::Binary(message))) => self.frame(client, &message).await,
                Some(Ok(Message::Text(text))) => match read_text(&text) {
                    Ok(message) => self.message(client, message).await,
                    Err(error) => Some(Ended::Fatal(error)),
                },
                Some(Ok(Message::Pong(_))) => {
                    link.pong();
                    None
                }
                Some(Ok(Message::Ping(_) | Message::Frame(_))) => None,
                Some(Ok(Message::Close(_))) | None => {
                    Some(Ended::Lost(client.no_connection("the server closed the connection")))
                }
                Some(Err(WsError::Capacity(error))) => {
                    Some(Ended::Fatal(ClientError::Protocol(error.to_string())))
                }
                Some(Err(error)) => Some(Ended::Lost(client.no_connection(error))),
            };
            if let Some(ended) = ended {
                return ended;
            }
        }
    }

    async fn frame(&mut self, client: &Client, message: &Bytes) -> Option<Ended> {
        let Some((frame, data)) = OutputFrame::decode(message) else {
            return Some(Ended::Fatal(ClientError::Protocol("a malformed piece of output".into())));
        };
        match self.tracker.output(frame.offset, data.len()) {
            Piece::Repeated => None,
            Piece::Hole => Some(Ended::Lost(client.no_connection("output is missing"))),
            Piece::Take { skip, gap } => {
                self.attempts.progressed();
                if let Some((from, to)) = gap
                    && let Some(ended) = self.emit(AttachEvent::Gap { from, to }).await
                {
                    return Some(ended);
                }
                let data = message.slice(OutputFrame::HEADER_BYTES + skip..);
                let offset = frame.offset + skip as u64;
                self.emit(AttachEvent::Output { stream: frame.stream, offset, data }).await
            }
        }
    }

    async fn message(&mut self, client: &Client, message: AttachServerMessage) -> Option<Ended> {
        match message {
            AttachServerMessage::Attached { .. } => None,
            AttachServerMessage::Gap { from, to } => match self.tracker.gap(from, to) {
                Ok(Some((from, to))) => self.emit(AttachEvent::Gap { from, to }).await,
                Ok(None) => None,
                Err(why) => Some(Ended::Fatal(ClientError::Protocol(why.into()))),
            },
            AttachServerMessage::Error { error } => self.emit(AttachEvent::Refused(error.into())).await,
            AttachServerMessage::Exit { state, exit, offset } => match offset.cmp(&self.tracker.due()) {
                std::cmp::Ordering::Equal => {
                    let ended = self.emit(AttachEvent::Exit { state, exit, offset }).await;
                    Some(ended.unwrap_or(Ended::Done))
                }
                std::cmp::Ordering::Greater => {
                    Some(Ended::Lost(client.no_connection("the end of the output is missing")))
                }
                std::cmp::Ordering::Less => Some(Ended::Fatal(ClientError::Protocol(format!(
                    "the output ends at {offset}, before its last byte"
                )))),
            },
        }
    }

    async fn emit(&self, event: AttachEvent) -> Option<Ended> {
        self.events.send(Ok(event)).await.is_err().then_some(Ended::Done)
    }
}

/// Why writing stopped.
enum Stopped {
    /// The connection takes nothing more.
    Broken,
    /// The server does not answer pings.
    Dead,
}

/// The direction to the exec.
struct Outgoing {
    /// `None` when the caller dropped every handle.
    inputs: Option<mpsc::Receiver<Input>>,
    closed: bool,
    size: Option<TtySize>,
    /// A signal whose sending failed.
    again: Option<Input>,
}

impl Outgoing {
    async fn write(&mut self, sink: &mut SplitSink<Socket, Message>, link: &Link) -> Stopped {
        if self.restore(sink, link).await.is_err() {
            return Stopped::Broken;
        }
        let mut ping = tokio::time::interval_at(tokio::time::Instant::now() + PING_EVERY, PING_EVERY);
        ping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let sent = tokio::select! {
                input = receive(&mut self.inputs) => match input {
                    Some(input) => self.send(sink, link, input).await,
                    None => {
                        self.inputs = None;
                        Ok(())
                    }
                },
                _ = ping.tick() => match check(link) {
                    Ok(true) => sink.send(Message::Ping(Bytes::new())).await,
                    Ok(false) => Ok(()),
                    Err(stopped) => return stopped,
                },
            };
            if sent.is_err() {
                return Stopped::Broken;
            }
        }
    }

    /// Tells a new connection what the one before knew.
    async fn restore(&mut self, sink: &mut SplitSink<Socket, Message>, link: &Link) -> Result<(), WsError> {
        if let Some(size) = self.size {
            self.send(sink, link, Input::Resize(size)).await?;
        }
        if self.closed {
            self.send(sink, link, Input::CloseStdin).await?;
        }
        match self.again.take() {
            Some(again) => self.send(sink, link, again).await,
            None => Ok(()),
        }
    }

    async fn send(
        &mut self,
        sink: &mut SplitSink<Socket, Message>,
        link: &Link,
        input: Input,
    ) -> Result<(), WsError> {
        let message = match input {
            Input::Stdin(data) => {
                link.with(|link| link.sent += data.len() as u64);
                return sink.send(Message::Binary(data)).await;
            }
            Input::CloseStdin => {
                self.closed = true;
                AttachClientMessage::CloseStdin {}
            }
            Input::Resize(size) => {
                self.size = Some(size);
                AttachClientMessage::Resize { cols: size.cols, rows: size.rows }
            }
            Input::Signal { signal, tree } => {
                let message = AttachClientMessage::Signal { signal: signal.clone(), tree };
                self.again = Some(Input::Signal { signal, tree });
                message
            }
        };
        sink.send(text(&message)).await?;
        self.again = None;
        Ok(())
    }
}

fn text(message: &AttachClientMessage) -> Message {
    // Strings and numbers only: cannot fail. An empty message would be refused by the server.
    Message::text(serde_json::to_string(message).unwrap_or_default())
}

async fn receive(inputs: &mut Option<mpsc::Receiver<Input>>) -> Option<Input> {
    match inputs {
        Some(inputs) => inputs.recv().await,
        None => std::future::pending().await,
    }
}

/// Whether to send a ping now, or that the last one has been without answer for too long.
fn check(link: &Link) -> Result<bool, Stopped> {
    link.with(|link| match link.ping {
        Some((at, _)) if at.elapsed() < DEAD_AFTER => Ok(false),
        Some(_) if link.sent - link.confirmed < UNCONFIRMED_SMALL_BYTES => Err(Stopped::Dead),
        Some(_) => Ok(false),
        None => {
            link.ping = Some((Instant::now(), link.sent));
            Ok(true)
        }
    })
}
