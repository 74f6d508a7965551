//! QEMU's machine protocol: one JSON object per line, over a socket that only root and the VMM can reach.
//!
//! The VMM may have been taken over by its guest: every line is bounded, and nothing it says is used but
//! that a command succeeded, a number, or a word that is shown.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

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
    pub(crate) async fn connect(path: &Path) -> Result<Self, QmpError> {
        let stream = UnixStream::connect(path).await.map_err(QmpError::Silent)?;
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

    async fn run_here(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        let mut line = json!({ "execute": command, "arguments": arguments }).to_string();
        line.push('\n');
        self.writer.write_all(line.as_bytes()).await.map_err(QmpError::Silent)?;
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
        serde_json::from_slice(&line).map_err(|error| QmpError::Silent(error.into()))
    }
}

async fn within<T>(answer: impl Future<Output = Result<T, QmpError>>) -> Result<T, QmpError> {
    tokio::time::timeout(ANSWER_TIMEOUT, answer).await.unwrap_or_else(|_late| Err(late()))
}

fn late() -> QmpError {
    QmpError::Silent(std::io::ErrorKind::TimedOut.into())
}
