//! The stream of a process: `start`, output as it comes, `end`.

use std::time::Duration;

use atoll_core::Code;
use atoll_core::exec::OutputStream;
use atoll_core::id::ExecId;
use atoll_engine::{ExecView, OutputEvent, OutputReader, Piece};
use bytes::Bytes;
use tokio::time::Instant;

use super::{Delivered, end, running_or_retained};
use crate::connect::{Answer, Ending, Fault};
use crate::envd::Envd;
use crate::wire::process::{ConnectRequest, DataEvent, Empty, Event, Output, StartEvent, Streamed};

/// Bytes of output in one message.
const CHUNK_BYTES: usize = 32 << 10;

/// The part of the stream that is sent next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Start,
    Output,
    Nothing,
}

/// Follows a process.
#[derive(Debug)]
pub(crate) struct Feed {
    reader: OutputReader,
    exec: ExecId,
    pid: u32,
    tty: bool,
    next: Next,
    keepalive: Duration,
    /// When the client's time is over: then the stream ends, but the process goes on.
    until: Option<Instant>,
    delivered: Delivered,
    draining: tokio_util::sync::CancellationToken,
}

impl Feed {
    pub(super) fn new(
        envd: &Envd,
        view: &ExecView,
        reader: OutputReader,
        keepalive: Duration,
        until: Option<Instant>,
    ) -> Self {
        Self {
            reader,
            exec: view.record.id.clone(),
            pid: view.record.pid.unwrap_or_default(),
            tty: view.record.spec.tty.is_some(),
            next: Next::Start,
            keepalive,
            until,
            delivered: envd.app.delivered.clone(),
            draining: envd.app.host.draining_token(),
        }
    }

    fn data(&self, stream: OutputStream, bytes: Bytes) -> Event {
        let output = match stream {
            OutputStream::Stdout if self.tty => Output::Pty(bytes),
            OutputStream::Stdout => Output::Stdout(bytes),
            OutputStream::Stderr => Output::Stderr(bytes),
        };
        Event::Data(DataEvent { output: Some(output) })
    }

    /// The next event, or `None` when the log had only a gap.
    async fn event(&mut self) -> Result<Option<Event>, Ending> {
        let until = self.until;
        let time = async move {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        // The connection asks for more, so it has taken the messages before.
        self.delivered.note(&self.exec, self.reader.offset());
        let event = tokio::select! {
            biased;
            event = self.reader.next(CHUNK_BYTES) => event,
            () = time => return Err(Fault::deadline().into()),
            () = self.draining.cancelled() => return Err(Ending::Cut),
            () = tokio::time::sleep(self.keepalive) => return Ok(Some(Event::Keepalive(Empty {}))),
        };
        match event {
            Ok(OutputEvent::Piece(Piece::Output { stream, bytes, .. })) => Ok(Some(self.data(stream, bytes))),
            // The log dropped this output: the process wrote faster than any client read.
            Ok(OutputEvent::Piece(Piece::Gap { .. })) => Ok(None),
            Ok(OutputEvent::End { exit, .. }) => {
                self.next = Next::Nothing;
                end::end(&exit).map(|end| Some(Event::End(end)))
            }
            Err(error) if error.code == Code::ShuttingDown => Err(Ending::Cut),
            Err(error) => Err(Fault::of(&error).into()),
        }
    }
}

impl Answer for Feed {
    type Item = Streamed;

    async fn next(&mut self) -> Result<Option<Streamed>, Ending> {
        loop {
            match self.next {
                Next::Start => {
                    self.next = Next::Output;
                    return Ok(Some(Streamed::new(Event::Start(StartEvent { pid: self.pid }))));
                }
                Next::Output => {
                    if let Some(event) = self.event().await? {
                        return Ok(Some(Streamed::new(event)));
                    }
                }
                Next::Nothing => {
                    self.delivered.note(&self.exec, self.reader.offset());
                    return Ok(None);
                }
            }
        }
    }
}

/// Connects to a process that runs, or that ended a moment ago.
pub(super) async fn attach(
    envd: &Envd,
    request: &ConnectRequest,
    limit: Option<Duration>,
    keepalive: Duration,
) -> Result<Feed, Fault> {
    let view = running_or_retained(envd, request.process.clone()).await?;
    let from = envd.app.delivered.offset(&view.record.id).min(view.extent.end);
    let reader = envd.engine().output(envd.id(), view.record.id.as_str(), from, true).await;
    let reader = reader.map_err(|error| envd.fault(&error))?.read_by(envd.recorded().key());
    Ok(Feed::new(envd, &view, reader, keepalive, limit.map(|limit| Instant::now() + limit)))
}
