//! QEMU's machine protocol: one JSON object per line, over a socket that only root and the VMM can reach.
//!
//! The VMM may have been taken over by its guest: every line is bounded, and nothing it says is used but
//! that a command succeeded, a number, or a word that is shown.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::record::{QMP_SOCKET, Record};

/// Longest line that is read, bytes.
const LINE_MAX_BYTES: u64 = 256 << 10;
/// Lines that are skipped while waiting for an answer: events.
const EVENTS_MAX: usize = 256;
/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause between two looks at a migration.
const MIGRATION_LOOK: Duration = Duration::from_millis(2);
/// How long saving or restoring may take.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(120);

/// Why QEMU did not do it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QmpError {
    /// It said no.
    #[error("the VMM refused {command}: {said}")]
    Refused {
        /// The command.
        command: String,
        /// Its words, bounded.
        said: String,
    },
    /// It is not there, or said something that is no answer.
    #[error("the VMM does not answer")]
    Silent(#[source] std::io::Error),
}

/// A connection to one VMM.
#[derive(Debug)]
pub(crate) struct Qmp {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

impl Qmp {
    /// Connects and greets.
    pub(crate) async fn connect(record: &Record) -> Result<Self, QmpError> {
        let stream = record.with_socket(QMP_SOCKET, async |path| UnixStream::connect(path).await).await;
        let stream = stream.map_err(QmpError::Silent)?;
        let (reader, writer) = stream.into_split();
        let mut qmp = Self { reader: BufReader::new(reader), writer };
        within(qmp.line()).await?;
        qmp.run("qmp_capabilities", json!({})).await?;
        Ok(qmp)
    }

    /// Runs a command; gives what it returned.
    pub(crate) async fn run(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        within(self.run_here(command, arguments)).await
    }

    /// Hands over a file; gives the path under which the VMM knows it.
    pub(crate) async fn hand_over(&mut self, file: &impl AsFd) -> Result<String, QmpError> {
        let line = json!({ "execute": "add-fd" }).to_string();
        let send = || send_with(self.writer.as_ref(), line.as_bytes(), file.as_fd());
        let sent = self.writer.as_ref().async_io(Interest::WRITABLE, send).await.map_err(QmpError::Silent)?;
        self.writer.write_all(&line.as_bytes()[sent..]).await.map_err(QmpError::Silent)?;
        self.writer.write_all(b"\n").await.map_err(QmpError::Silent)?;
        let added = within(self.answer("add-fd")).await?;
        let set = added.get("fdset-id").and_then(Value::as_u64);
        let set = set.ok_or_else(|| QmpError::Silent(std::io::ErrorKind::InvalidData.into()))?;
        Ok(format!("/dev/fdset/{set}"))
    }

    async fn run_here(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        let mut line = json!({ "execute": command, "arguments": arguments }).to_string();
        line.push('\n');
        self.writer.write_all(line.as_bytes()).await.map_err(QmpError::Silent)?;
        self.answer(command).await
    }

    async fn answer(&mut self, command: &str) -> Result<Value, QmpError> {
        for _ in 0..EVENTS_MAX {
            let mut answer = self.line().await?;
            if let Some(error) = answer.get("error") {
                let said = error.get("desc").and_then(Value::as_str).unwrap_or("no reason");
                let said = said.chars().filter(|c| !c.is_control()).take(300).collect();
                return Err(QmpError::Refused { command: command.to_owned(), said });
            }
            if let Some(returned) = answer.get_mut("return") {
                return Ok(returned.take());
            }
        }
        Err(QmpError::Silent(std::io::Error::other("too many events")))
    }

    /// Waits until a migration is over.
    pub(crate) async fn migrated(&mut self) -> Result<(), QmpError> {
        let wait = async {
            loop {
                let state = self.run("query-migrate", json!({})).await?;
                match state.get("status").and_then(Value::as_str) {
                    Some("completed") => return Ok(()),
                    Some("failed" | "cancelled") => {
                        let said = state.get("error-desc").and_then(Value::as_str).unwrap_or("no reason");
                        let said = said.chars().filter(|c| !c.is_control()).take(300).collect();
                        return Err(QmpError::Refused { command: "migrate".to_owned(), said });
                    }
                    _ => tokio::time::sleep(MIGRATION_LOOK).await,
                }
            }
        };
        tokio::time::timeout(MIGRATION_TIMEOUT, wait).await.unwrap_or_else(|_late| Err(late()))
    }

    async fn line(&mut self) -> Result<Value, QmpError> {
        let mut line = Vec::new();
        let mut bounded = (&mut self.reader).take(LINE_MAX_BYTES);
        bounded.read_until(b'\n', &mut line).await.map_err(QmpError::Silent)?;
        if line.is_empty() {
            return Err(QmpError::Silent(std::io::ErrorKind::UnexpectedEof.into()));
        }
        serde_json::from_slice(&line).map_err(|error| QmpError::Silent(error.into()))
    }
}

async fn within<T>(answer: impl Future<Output = Result<T, QmpError>>) -> Result<T, QmpError> {
    tokio::time::timeout(ANSWER_TIMEOUT, answer).await.unwrap_or_else(|_late| Err(late()))
}

fn late() -> QmpError {
    QmpError::Silent(std::io::ErrorKind::TimedOut.into())
}

fn send_with(stream: &UnixStream, bytes: &[u8], file: BorrowedFd<'_>) -> std::io::Result<usize> {
    let files = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&files));
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
}
