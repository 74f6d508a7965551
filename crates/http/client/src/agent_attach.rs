//! Being attached to a session: its events live, messages in, over a connection that may break.
//!
//! Events have numbers: a new connection goes on after the last that came. Messages have keys: those that have no
//! answer are sent again on a new connection, and the server takes them once. Answers and cancellations are not sent
//! again; a caller that waits for the reply to one is told by a `Lost`.

use atoll_api::{AgentSession, SessionClientMessage, SessionServerMessage};
use futures::{SinkExt as _, StreamExt as _};
use reqwest::Upgraded;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::resume::{Attempts, ResumePolicy};
use crate::{Client, ClientError, Result};

/// What the connection to a session brings.
#[derive(Debug, Clone, PartialEq)]
pub enum SessionUpdate {
    /// What the server said.
    Said(SessionServerMessage),
    /// The connection broke and was had again: this was not answered, and may have been done or not.
    Lost(SessionClientMessage),
}

/// A live connection to a session with an agent.
#[derive(Debug)]
pub struct SessionAttachment {
    /// The session as it was when the connection was made.
    pub session: AgentSession,
    client: Client,
    agent: String,
    after: u64,
    socket: Option<WebSocketStream<Upgraded>>,
    attempts: Attempts,
    /// Sent, and not answered.
    unanswered: Vec<SessionClientMessage>,
    /// Of those the ones that a new connection has to be told.
    again: Vec<SessionClientMessage>,
    /// Messages of which the caller is to be told that they are lost.
    lost: Vec<SessionClientMessage>,
    sent: u64,
}

impl Client {
    /// Attaches to a session: its events after a number, and messages to it.
    ///
    /// # Errors
    /// [`crate::ClientError`].
    pub async fn attach_agent_session(
        &self,
        agent: &str,
        session: &str,
        after: u64,
        resume: ResumePolicy,
    ) -> Result<SessionAttachment> {
        let (socket, session) = open(self, agent, session, after).await?;
        let mut attempts = Attempts::new(resume);
        attempts.connected();
        Ok(SessionAttachment {
            session,
            client: self.clone(),
            agent: agent.to_owned(),
            after,
            socket: Some(socket),
            attempts,
            unanswered: Vec::new(),
            again: Vec::new(),
            lost: Vec::new(),
            sent: 0,
        })
    }
}

async fn open(
    client: &Client,
    agent: &str,
    session: &str,
    after: u64,
) -> Result<(WebSocketStream<Upgraded>, AgentSession)> {
    let target = client.target(["v1", "agents", agent, "sessions", session, "attach"]);
    let mut socket = client.websocket(target.query("after", after)).await?;
    match receive(client, &mut socket).await? {
        SessionServerMessage::Attached { session, .. } => Ok((socket, session)),
        SessionServerMessage::Error { error, .. } => Err(refused(error)),
        _ => Err(ClientError::Protocol("the first message does not say what this is".into())),
    }
}

fn refused(error: atoll_api::ErrorBody) -> ClientError {
    let request_id = error.request_id.clone();
    ClientError::Api { error: error.into(), request_id }
}

async fn receive(client: &Client, socket: &mut WebSocketStream<Upgraded>) -> Result<SessionServerMessage> {
    loop {
        match socket.next().await {
            Some(Ok(Message::Text(text))) => {
                return serde_json::from_str(text.as_str())
                    .map_err(|error| ClientError::Protocol(format!("a message: {error}")));
            }
            Some(Ok(Message::Close(_))) | None => {
                return Err(client.no_connection("the server closed the connection"));
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(client.no_connection(error)),
        }
    }
}

impl SessionAttachment {
    /// Sends a message; gives the id by which it will be answered. A connection that breaks now is opened again by [`Self::next`].
    ///
    /// # Errors
    /// [`ClientError::Connect`] when there is no randomness for a key.
    pub async fn send(&mut self, mut message: SessionClientMessage) -> Result<String> {
        self.sent += 1;
        let name = message.id().map_or_else(|| self.sent.to_string(), str::to_owned);
        match &mut message {
            SessionClientMessage::Message { id, key, .. } => {
                *id = Some(name.clone());
                if key.is_none() {
                    let random = getrandom::u64().map_err(|error| self.client.no_connection(error))?;
                    *key = Some(format!("{random:016x}-{}", self.sent));
                }
            }
            SessionClientMessage::Answer { id, .. } | SessionClientMessage::Cancel { id } => {
                *id = Some(name.clone());
            }
        }
        self.unanswered.push(message.clone());
        self.transmit(&message).await;
        Ok(name)
    }

    /// How much of what was sent has no answer yet.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.unanswered.len()
    }

    /// The next that comes. May be dropped and called again.
    ///
    /// # Errors
    /// [`crate::ClientError`]: what the server refused for good, or that no connection can be had.
    pub async fn next(&mut self) -> Result<SessionUpdate> {
        loop {
            if let Some(lost) = self.lost.pop() {
                return Ok(SessionUpdate::Lost(lost));
            }
            // A caller that drops this future in between makes it send one message twice, which the server takes once.
            while let Some(message) = self.again.last().cloned() {
                self.transmit(&message).await;
                self.again.pop();
            }
            let error = match &mut self.socket {
                Some(socket) => match receive(&self.client, socket).await {
                    Ok(SessionServerMessage::Error { error, last: true, .. }) => refused(error),
                    Ok(said) => {
                        self.note(&said);
                        return Ok(SessionUpdate::Said(said));
                    }
                    Err(error) => error,
                },
                None => self.client.no_connection("the connection broke"),
            };
            self.socket = None;
            if !error.worth_another_connection() {
                return Err(error);
            }
            self.reopen(error).await?;
        }
    }

    fn note(&mut self, said: &SessionServerMessage) {
        let answered = match said {
            SessionServerMessage::Event { event } => {
                self.after = event.number;
                self.attempts.progressed();
                return;
            }
            SessionServerMessage::Taken { id, .. } => Some(id),
            SessionServerMessage::Error { id, .. } => id.as_ref(),
            SessionServerMessage::Attached { .. } | SessionServerMessage::Gap {} => None,
        };
        if let Some(id) = answered {
            self.unanswered.retain(|message| message.id() != Some(id));
        }
    }

    /// Tries for a new connection, and tells it what has no answer.
    async fn reopen(&mut self, lost: ClientError) -> Result<()> {
        let mut last = lost;
        while let Some(wait) = self.attempts.next() {
            tokio::time::sleep(wait).await;
            match open(&self.client, &self.agent, &self.session.id, self.after).await {
                Ok((socket, _session)) => {
                    self.attempts.connected();
                    self.socket = Some(socket);
                    let keyed = |message: &SessionClientMessage| {
                        matches!(message, SessionClientMessage::Message { .. })
                    };
                    let unanswered = std::mem::take(&mut self.unanswered);
                    (self.unanswered, self.lost) = unanswered.into_iter().partition(keyed);
                    self.again = self.unanswered.iter().rev().cloned().collect();
                    return Ok(());
                }
                Err(error) if error.worth_another_connection() => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    async fn transmit(&mut self, message: &SessionClientMessage) {
        // Strings only: cannot fail. An empty message would be refused by the server.
        let text = serde_json::to_string(message).unwrap_or_default();
        if let Some(socket) = &mut self.socket
            && socket.send(Message::text(text)).await.is_err()
        {
            self.socket = None;
        }
    }
}
