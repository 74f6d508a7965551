//! Being attached to an exec: its output live, its input, over a connection that may break.
//!
//! ```text
//! AttachInput ──(bounded)──▶ ┌────────────┐ ──▶ WebSocket ──▶ server
//!                            │ one task   │        │ cut: open again at the
//! AttachEvents ◀─(bounded)── └────────────┘ ◀──────┘ next byte that is due
//! ```
//!
//! **Output** is exact. The server numbers every byte; [`Tracker`] knows which is due, cuts off what
//! comes twice, and turns what is missing without having been announced into a broken connection.
//! Bytes the server dropped are an [`AttachEvent::Gap`], never silence.
//!
//! **Input** has no acknowledgement in the protocol. Input that was on its way when a connection
//! broke may have arrived or not; it is not sent again, and [`AttachEvent::Reconnected`] says how
//! much of it there is. Closing standard input and the terminal's size are states, not bytes: they
//! are told again on a new connection.
//!
//! **Back-pressure** goes both ways: a caller who does not take events makes the server wait, a
//! program that does not read its input makes [`AttachInput::write`] wait. Neither blocks the other.

mod connection;
mod tracker;

use std::pin::Pin;
use std::task::{Context, Poll};

use atoll_api::Exec;
use atoll_core::exec::{ExecState, Exit, OutputStream};
use atoll_core::limits::STDIN_CHUNK_MAX_BYTES;
use atoll_core::spec::TtySize;
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::resume::ResumePolicy;
use crate::{Client, Result};

/// Events that wait for the caller before the server has to.
const EVENTS_MAX_COUNT: usize = 64;
/// Pieces of input that wait for the connection before the caller has to.
const INPUTS_MAX_COUNT: usize = 16;
/// Largest piece of standard input in one message, bytes.
const INPUT_PIECE_MAX_BYTES: usize = 64 << 10;
const _: () = assert!(INPUT_PIECE_MAX_BYTES <= STDIN_CHUNK_MAX_BYTES);

/// What happens to an exec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachEvent {
    /// Output. Offsets of successive events join without overlap.
    Output {
        /// Which stream.
        stream: OutputStream,
        /// Offset of the first byte, counted over both streams.
        offset: u64,
        /// The bytes; at least one.
        data: Bytes,
    },
    /// Bytes `from..to` were dropped because the log's limit was reached.
    Gap {
        /// First dropped byte.
        from: u64,
        /// One past the last dropped byte.
        to: u64,
    },
    /// The connection broke and was had again. No output is missing.
    Reconnected {
        /// Bytes of standard input that may not have arrived.
        input_unconfirmed_bytes: u64,
    },
    /// Something that input asked for was refused.
    Refused(atoll_core::Error),
    /// Last: how it ended.
    Exit {
        /// Where it ended up.
        state: ExecState,
        /// How it ended.
        exit: Exit,
        /// One past the last byte of output.
        offset: u64,
    },
}

/// A live connection to an exec.
#[derive(Debug)]
pub struct Attachment {
    /// The exec as it was when the connection was made.
    pub exec: Exec,
    /// Towards it.
    pub input: AttachInput,
    /// From it.
    pub events: AttachEvents,
}

/// Input has no destination any more: the exec ended or the connection was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the exec takes no more input")]
pub struct InputClosed;

#[derive(Debug)]
enum Input {
    Stdin(Bytes),
    CloseStdin,
    Resize(TtySize),
    Signal { signal: String, tree: bool },
}

/// Towards an exec. Cheap to clone. Dropping it closes nothing.
#[derive(Debug, Clone)]
pub struct AttachInput {
    queue: mpsc::Sender<Input>,
}

impl AttachInput {
    /// Writes to standard input, or types on the terminal. Waits while the program does not read.
    ///
    /// # Errors
    /// [`InputClosed`] when the exec has ended.
    pub async fn write(&self, mut data: Bytes) -> Result<(), InputClosed> {
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(INPUT_PIECE_MAX_BYTES));
            self.send(Input::Stdin(piece)).await?;
        }
        Ok(())
    }

    /// Ends standard input.
    ///
    /// # Errors
    /// [`InputClosed`] when the exec has ended.
    pub async fn close(&self) -> Result<(), InputClosed> {
        self.send(Input::CloseStdin).await
    }

    /// Changes the terminal's size.
    ///
    /// # Errors
    /// [`InputClosed`] when the exec has ended.
    pub async fn resize(&self, size: TtySize) -> Result<(), InputClosed> {
        self.send(Input::Resize(size)).await
    }

    /// Sends a signal (`TERM`, `SIGINT`, a number) to the process group, or to the whole tree.
    ///
    /// # Errors
    /// [`InputClosed`] when the exec has ended.
    pub async fn signal(&self, signal: impl Into<String> + Send, tree: bool) -> Result<(), InputClosed> {
        self.send(Input::Signal { signal: signal.into(), tree }).await
    }

    async fn send(&self, input: Input) -> Result<(), InputClosed> {
        self.queue.send(input).await.map_err(|_rejected| InputClosed)
    }
}

/// From an exec: a stream of events. Dropping it lets go of the exec.
#[derive(Debug)]
pub struct AttachEvents {
    queue: mpsc::Receiver<Result<AttachEvent>>,
}

impl AttachEvents {
    /// The next event; `None` after the exit or an error.
    pub async fn next(&mut self) -> Option<Result<AttachEvent>> {
        self.queue.recv().await
    }
}

impl futures::Stream for AttachEvents {
    type Item = Result<AttachEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.queue.poll_recv(cx)
    }
}

impl Client {
    /// Attaches to an exec: its output from `offset` on, and its input.
    ///
    /// The first connection is tried once. When one breaks later it is opened again as `resume` says;
    /// when that fails the events end with the last error.
    ///
    /// # Errors
    /// [`crate::ClientError`].
    pub async fn attach(
        &self,
        sandbox: &str,
        exec: &str,
        offset: u64,
        resume: ResumePolicy,
    ) -> Result<Attachment> {
        let (input, inputs) = mpsc::channel(INPUTS_MAX_COUNT);
        let (events, queue) = mpsc::channel(EVENTS_MAX_COUNT);
        let place =
            connection::Place { client: self.clone(), sandbox: sandbox.to_owned(), exec: exec.to_owned() };
        let opened = place.open(offset).await?;
        let exec = opened.exec.clone();
        // Ends by itself: after the exit, after an error, or when `queue` is dropped.
        drop(tokio::spawn(connection::run(place, opened, offset, resume, inputs, events)));
        Ok(Attachment { exec, input: AttachInput { queue: input }, events: AttachEvents { queue } })
    }
}
